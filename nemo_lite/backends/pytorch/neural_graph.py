"""Runs a NeuralGraph without a factory, and keeps its weights in one file."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.utils.data import DataLoader, Dataset

from nemo_lite.backends.pytorch.checkpoint.state import fitted
from nemo_lite.backends.pytorch.checkpoint.storage import fill_module, load_training_state, save_training_state
from nemo_lite.backends.pytorch.engine.module_state import evaluating, set_training
from nemo_lite.backends.pytorch.lowering import Unit, lower, units_of
from nemo_lite.backends.pytorch.nm import DataLayerNM, TrainableNM
from nemo_lite.backends.pytorch.placement import choose_device, to_device
from nemo_lite.core.backend import DeviceType
from nemo_lite.core.dag import Node, Slice
from nemo_lite.core.neural_graph import NEMO_VERSION, NeuralGraph
from nemo_lite.core.neural_types import NmTensor
from nemo_lite.core.ports import OperationMode, refuse_unconnected
from nemo_lite.errors import CheckpointError, ConfigurationError, UsageError
from nemo_lite.utils import logging

# The weights of a NeuralGraph in one file: ``header`` and ``modules``, a state dictionary for each, as in NeMo.


def save_graph(graph: NeuralGraph, path: Path, module_names: Sequence[str]) -> None:
    """Write the state dictionaries of modules to one file, atomically; ``torch.load`` reads .pt, .pth and .ckpt."""
    modules = {name: dict(_module(graph, name).state_dict()) for name in module_names}
    header = {"nemo_core_version": NEMO_VERSION, "name": graph.name}
    save_training_state(path, {"header": header, "modules": modules})


def restore_graph(graph: NeuralGraph, path: Path, module_names: Sequence[str]) -> None:
    """Fill modules from such a file, all or none; those that are not in both are told in one warning.

    Raises:
        CheckpointError: the file is missing, damaged or something else, or tensors do not fit.
    """
    stored = load_training_state(path).get("modules")
    if not isinstance(stored, Mapping):
        raise CheckpointError("these are no weights of a graph", place=str(path), wanted="modules by name")
    in_both = [name for name in module_names if name in stored and name in graph.modules]
    fitting = {name: fitted(_module(graph, name), stored[name], f"{path}: {name}") for name in in_both}
    for name, tensors in fitting.items():
        fill_module(_module(graph, name), tensors)
    missing = [name for name in module_names if name not in in_both]
    if missing:
        places = {name: "the file" if name in graph.modules else f"graph {graph.name}" for name in missing}
        listed = ", ".join(f"{name} (not in {place})" for name, place in places.items())
        logging.warning("%s: modules without weights, which stay as they are: %s", path, listed)


def _module(graph: NeuralGraph, name: str) -> nn.Module:
    module = graph[name]
    assert isinstance(module, nn.Module), "only modules that run on torch are trainable"
    return module


# PtGraphRunner: batches, forward, backward and weights of one NeuralGraph on PyTorch, without factory and actions.


# Any: values of wires are tensors, lists or numbers; options are those of torch's DataLoader.


class PtGraphRunner:
    """The methods of :class:`~nemo_lite.core.neural_graph.NeuralGraph` that run it, as an fx module."""

    def __init__(self) -> None:
        self._device: torch.device | None = None
        self._is_parallel = False
        self._loader: Iterable[Any] | None = None
        self._part: Slice | None = None
        self._lowered: fx.GraphModule | None = None
        self._losses: list[torch.Tensor] = []

    def to(self, graph: NeuralGraph, device_type: DeviceType, use_dataparallel: bool) -> None:
        """Move the modules, and from now on the batches."""
        if device_type is not DeviceType.CPU and not torch.cuda.is_available():
            remedy = "use DeviceType.CPU"
            raise ConfigurationError("there is no GPU", place=graph.name, got=device_type.name, remedy=remedy)
        num_gpus = torch.cuda.device_count() if device_type is not DeviceType.CPU else 0
        if use_dataparallel and num_gpus < 2:
            problem = "use_dataparallel divides batches among GPUs"
            raise ConfigurationError(problem, place=graph.name, got=f"{num_gpus} to use", wanted="2 or more")
        self._device, self._is_parallel, self._part = choose_device(device_type), use_dataparallel, None
        for module in _torch_modules(graph):
            module.to(self._device)

    def configure_data_loader(self, graph: NeuralGraph, **options: Any) -> None:
        """Make the loader anew."""
        layer = _data_layer(graph)
        dataset = layer if isinstance(layer, Dataset) else layer.dataset
        if dataset is None:
            assert layer.data_iterator is not None, "a data layer has a dataset or a data_iterator"
            self._loader = layer.data_iterator
            return
        options.setdefault("collate_fn", layer.setting("collate_fn", None))
        self._loader = DataLoader(dataset, **options)

    def get_batch(self, graph: NeuralGraph, yield_dict: bool) -> Iterator[Any]:
        """The batches of an epoch."""
        if self._loader is None:
            self.configure_data_loader(graph)
        assert self._loader is not None
        layer = _data_layer(graph)
        ports = list(layer.output_ports)
        output = namedtuple(f"{type(layer).__name__}Output", ports)  # type: ignore[misc]  # ports are known at run time
        for batch in self._loader:
            several = isinstance(batch, (tuple, list)) and (len(ports) > 1 or len(batch) == 1)
            values: Sequence[Any] = tuple(batch) if several else (batch,)
            values = values if self._device is None else to_device(values, self._device)
            if yield_dict:
                yield dict(zip(ports, values, strict=True))
            else:
                yield output(*values) if len(ports) > 1 else values[0]

    def forward(self, graph: NeuralGraph, batches: Sequence[Any], ports: Mapping[str, Any]) -> list[Any]:
        """The values of the graph's outputs."""
        source = graph.data_layer_call
        names = list(graph.inputs if source is None else source.outputs)
        given = _by_port(graph, names, batches, ports)
        part, lowered = self._run_on(graph)
        if graph.operation_mode is OperationMode.training:
            set_training(_torch_modules(graph))  # another graph may have put shared modules into evaluation mode
        with ExitStack() as around:
            if graph.operation_mode is OperationMode.evaluation:
                around.enter_context(evaluating(_torch_modules(graph)))
                around.enter_context(torch.no_grad())
            values = lowered(*(given[wire.output_port_name] for wire in part.inputs))
        by_wire: dict[NmTensor, Any] = dict(zip(part.outputs, values, strict=True))
        self._losses = [by_wire[wire] for wire in graph.losses]
        return [by_wire[wire] for wire in graph.outputs.tensor_list]

    def backward(self, graph: NeuralGraph, losses: Sequence[Any]) -> None:
        """Add the gradients of all losses: in one pass, so that what they share is passed once."""
        chosen = list(losses) or self._losses
        if not chosen:
            raise ConfigurationError("there is no loss to take gradients of", place=graph.name, remedy="call forward")
        torch.autograd.backward(chosen)

    def parameters(self, graph: NeuralGraph, recurse: bool) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and parameters of the trainable modules, in their order."""
        for module in _torch_modules(graph):
            if isinstance(module, TrainableNM):
                yield from module.named_parameters(recurse=recurse)

    def save_to(self, graph: NeuralGraph, path: Path, module_names: Sequence[str]) -> None:
        """Write the weights of modules to one file."""
        save_graph(graph, path, module_names)

    def restore_from(self, graph: NeuralGraph, path: Path, module_names: Sequence[str]) -> None:
        """Read weights of modules from such a file."""
        restore_graph(graph, path, module_names)

    def _run_on(self, graph: NeuralGraph) -> tuple[Slice, fx.GraphModule]:
        """The graph's part of its DAG and its fx module; made again when the graph has grown."""
        part = graph.slice()
        if (
            self._lowered is None
            or self._part is None
            or (part.inputs, part.outputs)
            != (
                self._part.inputs,
                self._part.outputs,
            )
        ):
            for node in part.nodes:
                refuse_unconnected(node.name, node.module.input_ports, node.inputs)
            self._part, self._lowered = part, lower(part, graph.name, self._units)
        return self._part, self._lowered

    def _units(self, nodes: Sequence[Node]) -> Iterator[Unit]:
        for unit in units_of(nodes):
            divided = self._is_parallel and not getattr(unit.module, "skip_in_data_parallel", False)
            if divided and any(parameter.requires_grad for parameter in unit.module.parameters()):
                unit = unit._replace(module=nn.DataParallel(unit.module))
            yield unit


def _torch_modules(graph: NeuralGraph) -> list[nn.Module]:
    return [module for module in graph.modules.values() if isinstance(module, nn.Module)]


def _data_layer(graph: NeuralGraph) -> DataLayerNM:
    call = graph.data_layer_call
    layer = None if call is None else call.module
    if not isinstance(layer, DataLayerNM):
        got = "no data layer as step 0" if layer is None else type(layer).__name__
        raise ConfigurationError("the graph has no data of its own", place=graph.name, got=got)
    return layer


def _by_port(
    graph: NeuralGraph, names: Sequence[str], batches: Sequence[Any], ports: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Values by the names of the ports that the graph is given.

    Raises:
        UsageError: several batches, a batch and ports, or not exactly these names.
    """
    if len(batches) > 1 or (batches and ports):
        got = f"{len(batches)} batches and {len(ports)} ports"
        raise UsageError("forward takes one batch, or ports by name", place=graph.name, got=got)
    given = ports
    if batches:
        batch = batches[0]
        if hasattr(batch, "_asdict"):
            given = batch._asdict()
        elif isinstance(batch, Mapping):
            given = batch
        elif len(names) == 1:
            given = {names[0]: batch}
        elif isinstance(batch, (tuple, list)) and len(batch) == len(names):
            given = dict(zip(names, batch, strict=True))
        else:
            raise UsageError("the batch does not have the graph's ports", place=graph.name, wanted=", ".join(names))
    if set(given) != set(names):
        got = ", ".join(given) or "nothing"
        raise UsageError("forward takes exactly the graph's ports", place=graph.name, got=got, wanted=", ".join(names))
    return given
