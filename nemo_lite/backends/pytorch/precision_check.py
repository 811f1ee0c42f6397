"""Compares what each node of a DAG computes at a precision with float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.backends.pytorch.distributed.batchnorm import needs_all_ranks
from nemo_lite.backends.pytorch.engine.evaluation import torch_data_layer
from nemo_lite.backends.pytorch.engine.module_state import evaluating, modules_of
from nemo_lite.backends.pytorch.generators import seed_all
from nemo_lite.backends.pytorch.half_modules import name_of
from nemo_lite.backends.pytorch.placement import to_device
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.base.errors import UsageError
from nemo_lite.core.dag import Dag, Node
from nemo_lite.core.neural_types import NmTensor, Value
from nemo_lite.core.run_options import Optimization
from nemo_lite.core.show import NodePrecision, PrecisionReport

_CONVERSIONS = ("_to_copy", "copy_", "clone", "empty", "zeros", "ones", "full")


def check_precision(dag: Dag, precision: Precision, num_batches: int) -> PrecisionReport:
    """Run a DAG in float32 and in the level, in evaluation mode, and compare what its nodes give.

    Each run goes from the batch to the end by itself, so the error of a node includes that of the nodes before it.

    Args:
        dag: what to run; its modules are left as they were.
        precision: the level.
        num_batches: how many batches of its data layer.

    Raises:
        UsageError: the level is float32, the weights are divided among the ranks, or the data layer gives no batch.
    """
    if precision.level is Optimization.mxprO0:
        remedy = "take O1, O2 or O3"
        raise UsageError("a precision check compares a level with float32", got="O0, which is float32", remedy=remedy)
    modules, device = modules_of(dag), precision.device
    if needs_all_ranks(modules, in_training=False):
        remedy = "check before training, or without shard_weights"
        raise UsageError("a precision check cannot run weights that are divided among the ranks", remedy=remedy)
    compared = {node: _Compared() for node in dag.nodes}
    count, gpus = 0, [device] if device.type == "cuda" else []
    for module in modules:
        module.to(device)
    with evaluating(modules), torch.no_grad(), torch.random.fork_rng(gpus):
        batches = torch_data_layer(dag).loader(training=False, shard=Shard()).epoch(0)
        for count, batch in enumerate(islice(batches, num_batches), 1):
            values = to_device(batch.values, device)
            seed_all(count)
            exact = {node: list(_floats(outputs)) for node, outputs in _run(dag, values)}
            seed_all(count)
            with precision.prepared(modules), precision.forward():
                for node, outputs in _run(dag, values, lambda node: compared[node].dtypes):
                    compared[node].add(_floats(outputs), exact.pop(node))
    if not count:
        raise UsageError(f"{dag.data_layer.label} gives no batch to check", place="precision_check")
    nodes = [extremes.result(node) for node, extremes in compared.items()]
    return PrecisionReport(dag, precision.describe(), count, nodes)


def _run(
    dag: Dag, batch: Iterable[object], dtypes_of: Callable[[Node], dict[str, None]] | None = None
) -> Iterator[tuple[Node, list[object]]]:
    """Each node with what it gives, one after the other; ``dtypes_of``: where the types of its results are noted."""
    values: dict[NmTensor, Value] = dict(zip(dag.inputs, batch, strict=True))
    for node in dag.nodes:
        module: Any = node.module
        arguments = {port: values[wire] for port, wire in node.inputs.items()}
        with _Dtypes({} if dtypes_of is None else dtypes_of(node)):
            result = module(**arguments)
        outputs = list(result) if len(node.outputs) > 1 else [result]
        values.update(zip(node.outputs.values(), outputs, strict=True))
        yield node, outputs


def _floats(values: Iterable[object]) -> Iterator[Tensor]:
    return (v for v in tree_leaves(list(values)) if isinstance(v, Tensor) and v.is_floating_point() and v.numel())


class _Dtypes(TorchDispatchMode):
    """Notes the floating types of what is computed inside; conversions and copies are no computation.

    Args:
        dtypes: where to; a dictionary, for its order.
    """

    def __init__(self, dtypes: dict[str, None]) -> None:
        super().__init__()
        self._dtypes = dtypes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        """Run the operation."""
        result = func(*args, **(kwargs or {}))
        is_view = any(value.alias_info is not None for value in func._schema.returns)
        if not is_view and not func._schema.name.removeprefix("aten::").startswith(_CONVERSIONS):
            self._dtypes.update((name_of(value.dtype), None) for value in _floats([result]))
        return result


class _Compared:
    """The extremes of one node over the batches. Nothing is read back before the end."""

    def __init__(self) -> None:
        self.dtypes: dict[str, None] = {}
        self._errors: list[Tensor] = []
        self._exact: list[Tensor] = []
        self._smallest: list[Tensor] = []
        self._largest: list[Tensor] = []
        self._output_dtypes: dict[str, None] = {}

    def add(self, halves: Iterable[Tensor], exact: Iterable[Tensor]) -> None:
        """The outputs of one batch, in the level and in float32."""
        for half, wide in zip(halves, exact, strict=True):
            self._output_dtypes[name_of(half.dtype)] = None
            value, reference = half.double(), wide.double()
            magnitude = value.abs()
            self._errors.append((value - reference).abs().amax())
            self._exact.append(reference.abs().amax())
            self._smallest.append(torch.where(magnitude > 0, magnitude, torch.inf).amin())
            self._largest.append(magnitude.amax())

    def result(self, node: Node) -> NodePrecision:
        """The extremes as numbers."""
        error, exact, largest = (_most(values) for values in (self._errors, self._exact, self._largest))
        smallest = min((value.item() for value in self._smallest), default=0.0)
        return NodePrecision(
            name=node.name,
            module=type(node.module).__name__,
            # A node that computes nothing hands on what it gets: an augmentation in evaluation, say.
            dtypes=tuple(self.dtypes or self._output_dtypes) if self._errors else (),
            error=error,
            relative_error=error / exact if exact else error,
            smallest=smallest if smallest < float("inf") else 0.0,
            largest=largest,
            is_finite=bool(torch.tensor([error, largest]).isfinite().all()),
        )


def _most(values: list[Tensor]) -> float:
    """The largest; NaN if one is."""
    return torch.stack(values).amax().item() if values else 0.0
