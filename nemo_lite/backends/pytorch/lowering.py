"""Lowering: a slice of a DAG becomes an ordinary ``torch.fx.GraphModule`` whose submodules are the user's own objects.

Everything else (devices, precision, data parallelism) is applied to that module from outside.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import fx, nn

from nemo_lite.base.errors import DagError
from nemo_lite.core.dag import Node, Slice
from nemo_lite.core.neural_types import NmTensor


class Unit(NamedTuple):
    """One call in a lowered module: mostly of a node's module, or of one that stands for several nodes.

    Attributes:
        name: of the attribute that holds the module.
        module: what is called.
        inputs: wires by the names of its arguments.
        outputs: wires that it gives.
        gives_tuple: whether it returns them as a tuple.
        keeps_state: whether its ``step`` is called, with its state and ``last``; see `streaming.Streams`.
    """

    name: str
    module: nn.Module
    inputs: Mapping[str, NmTensor]
    outputs: Sequence[NmTensor]
    gives_tuple: bool
    keeps_state: bool = False


class Lowering(Protocol):
    """How a slice becomes a module: :func:`lower`, or one that compiles parts of it."""

    def __call__(self, part: Slice, name: str) -> fx.GraphModule:
        """See :func:`lower`."""


def units_of(nodes: Iterable[Node]) -> Iterator[Unit]:
    """Each node by itself.

    Raises:
        DagError: a node whose module does not run on torch.
    """
    for node in nodes:
        if not isinstance(node.module, nn.Module):
            raise DagError(
                f"{node.name} ({type(node.module).__name__}) does not run on torch", remedy="derive it from TrainableNM"
            )
        outputs = tuple(node.outputs.values())
        yield Unit(node.name, node.module, node.inputs, outputs, gives_tuple=len(outputs) > 1)


def lower(
    part: Slice,
    name: str = "Dag",
    units: Callable[[Sequence[Node]], Iterable[Unit]] = units_of,
    in_chunks: bool = False,
) -> fx.GraphModule:
    """A new fx module over the slice's module objects, in their present mode and on their present device.

    Its forward takes the slice's input wires as positional arguments, in their order and unused ones too, and returns a
    tuple of the output wires, also for a single one. ``print(lowered.code)`` reads as a script. Each intermediate is
    freed as soon as its last reader has run.

    Args:
        part: what is lowered.
        name: of the module's class.
        units: from the nodes to the calls that stand for them, in order.
        in_chunks: its forward takes two more arguments, ``state`` and ``last``, and returns the pair of the outputs and
            the new state: a mapping of a state for each unit that keeps one.

    Raises:
        DagError: a node whose module does not run on torch, or a wire that the slice does not produce.
    """
    graph = fx.Graph()
    values: dict[NmTensor, fx.Node] = {wire: graph.placeholder(_identifier(wire.name)) for wire in part.inputs}
    state, last = map(graph.placeholder, ("state", "last")) if in_chunks else (None, None)
    new_state: dict[str, fx.Node] = {}
    targets: dict[nn.Module, str] = {}
    for unit in units(part.nodes):
        target = targets.setdefault(unit.module, _identifier(unit.name))
        arguments: dict[str, fx.node.Argument] = {key: values[wire] for key, wire in unit.inputs.items()}
        if unit.keeps_state:
            kept = graph.call_function(operator.getitem, (state, unit.name))
            module = graph.get_attr(target)
            step = graph.call_method("step", (module, *arguments.values()), {"state": kept, "last": last})
            called, new_state[unit.name] = (graph.call_function(operator.getitem, (step, place)) for place in (0, 1))
        else:
            called = graph.call_module(target, kwargs=arguments)
        for position, wire in enumerate(unit.outputs):
            values[wire] = graph.call_function(operator.getitem, (called, position)) if unit.gives_tuple else called
    missing = [wire.place for wire in part.outputs if wire not in values]
    if missing:
        raise DagError(f"{', '.join(missing)} cannot be computed from what the slice takes")
    outputs = tuple(values[wire] for wire in part.outputs)
    graph.output((outputs, new_state) if in_chunks else outputs)
    graph.eliminate_dead_code(is_impure_node=lambda fx_node: fx_node.op in ("placeholder", "output", "call_module"))
    return fx.GraphModule({target: module for module, target in targets.items()}, graph, name)


def _identifier(name: str) -> str:
    identifier = re.sub(r"\W", "_", name)
    return identifier if identifier.isidentifier() else f"_{identifier}"
