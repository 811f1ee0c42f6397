"""Dag: the nodes needed for some wires, in order, checked. No torch, no drawing, no execution in this file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from nemo_lite.base.errors import DagError
from nemo_lite.core.neural_module import NeuralModule, refuse_unconnected
from nemo_lite.core.neural_types import ModuleCall, NmTensor


@dataclass(frozen=True)
class Node:
    """One call of one module. ``name`` is unique in its DAG; ``inputs`` and ``outputs`` are wires by port."""

    name: str
    call: ModuleCall

    @property
    def module(self) -> NeuralModule:
        """The module that is called."""
        return self.call.module

    @property
    def inputs(self) -> dict[str, NmTensor]:
        """The wires it takes."""
        return self.call.inputs

    @property
    def outputs(self) -> dict[str, NmTensor]:
        """The wires it gives."""
        return self.call.outputs


Step = Node  # the earlier name, still importable from nemo_lite.core


@dataclass(frozen=True)
class Slice:
    """Nodes that lead from some wires to others: what a backend lowers to one executable module."""

    inputs: tuple[NmTensor, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[NmTensor, ...]


class Dag:
    """The nodes needed for some wires, from the one data layer to them.

    Args:
        outputs: the wires asked for: losses, or tensors to evaluate or infer.

    Attributes:
        outputs: the wires asked for, in the order given.
        data_node: the data layer's node.
        data_layer: the one data layer.
        inputs: the data layer's wires, in port order: what a batch holds.
        nodes: all other nodes, each after those it takes wires from.

    Raises:
        DagError: nothing asked for, no data layer, two data layers, or two modules of one given name.
        NeuralPortNameMismatchError: an input that a module needs is not connected.
    """

    # Set by core/show.py, which draws DAGs and is therefore above this file.
    drawn: ClassVar[Callable[[Dag], str]]

    def __init__(self, outputs: Sequence[NmTensor]) -> None:
        if isinstance(outputs, NmTensor):
            raise DagError("a DAG is made from the wires asked for", got="one NmTensor", wanted="a list of them")
        if not outputs or any(not isinstance(wire, NmTensor) for wire in outputs):
            got = ", ".join(type(wire).__name__ for wire in outputs) or "nothing"
            raise DagError("a DAG is made from the wires asked for", got=got, wanted="NmTensors")
        self.outputs = tuple(outputs)
        calls = _in_order(outputs)
        for call in calls:
            if not isinstance(call.module, NeuralModule):
                remedy = "get it from a call of a module"
                raise DagError("a wire was made by hand", place=next(iter(call.outputs)), remedy=remedy)
            if call.inputs:
                refuse_unconnected(call.module.label, call.module.input_ports, call.inputs)
        source = _only_source(calls, outputs)
        self._calls = set(calls)
        named = _named_nodes(calls)
        self.data_node = named[source]
        self.data_layer = source.module
        self.inputs = tuple(source.outputs.values())
        self.nodes = tuple(node for call, node in named.items() if call is not source)

    @property
    def modules(self) -> dict[str, NeuralModule]:
        """Every module but the data layer once, by the name of its first node; also those that nodes refer to."""
        names: dict[NeuralModule, str] = {}
        for node in self.nodes:
            names.setdefault(node.module, node.name)
        for module in [other for node in self.nodes for other in node.module.referenced]:
            names.setdefault(module, module.label)
        return {name: module for module, name in names.items()}

    def _repr_html_(self) -> str:
        """The picture of the DAG, where a notebook shows it."""
        return type(self).drawn(self)

    def __contains__(self, wire: NmTensor) -> bool:
        return wire.call in self._calls

    def slice(self, outputs: Sequence[NmTensor] | None = None) -> Slice:
        """From the data layer's wires to ``outputs``: wires of this DAG, by default those it was made for.

        Raises:
            DagError: a wire that this DAG does not produce.
        """
        wanted = self.outputs if outputs is None else tuple(outputs)
        self._refuse_foreign(wire for wire in wanted if wire not in self)
        needed = set(_in_order(wanted, known=lambda wire: wire.call is self.data_node.call))
        return Slice(self.inputs, tuple(node for node in self.nodes if node.call in needed), wanted)

    def continuation(self, wires: Sequence[NmTensor]) -> Slice:
        """The nodes that lead from this DAG's wires to ``wires``, without those of the DAG itself.

        The slice's inputs are the few wires of the DAG from which ``wires`` continue.

        Raises:
            DagError: a wire of another DAG.
        """
        self._refuse_foreign(wires)
        return _slice_from(self.__contains__, wires)

    def wires_by_name(self) -> dict[str, NmTensor]:
        """Renamed wires that this DAG's data layer leads to, those that continue beyond the DAG among them.

        Raises:
            DagError: two wires of one name.
        """
        named: dict[str, NmTensor] = {}
        for wire in _led_to(self.data_node.call):
            if wire.is_renamed and named.setdefault(wire.name, wire) is not wire:
                got = f"{named[wire.name].place} and {wire.place}"
                raise DagError(f'two wires are named "{wire.name}"', got=got, remedy="rename one")
        return named

    def _refuse_foreign(self, wires: Iterable[NmTensor]) -> None:
        for wire in wires:
            sources = [call for call in _in_order([wire]) if not call.inputs]
            if any(call is not self.data_node.call for call in sources):
                other = ", ".join(call.module.label for call in sources)
                raise DagError(
                    f"{wire.place} belongs to another DAG",
                    got=f"a wire from {other}",
                    wanted=f"one from this DAG's call of {self.data_layer.label}",
                )


def slice_between(inputs: Iterable[NmTensor], outputs: Sequence[NmTensor]) -> Slice:
    """The nodes that lead from ``inputs`` to ``outputs``.

    Raises:
        DagError: ``outputs`` need more than ``inputs``.
    """
    known = set(inputs)
    part = _slice_from(known.__contains__, outputs)
    for node in part.nodes:
        if not node.inputs:
            places = ", ".join(wire.place for wire in known)
            raise DagError(
                f"{', '.join(wire.place for wire in outputs)} needs more than the wires that are there",
                got=places or "nothing",
                wanted=f"also what {node.name} gives",
            )
    return part


def parting_wires(outputs: Sequence[NmTensor]) -> list[NmTensor]:
    """The wires of nodes that all ``outputs`` need which a node that only some of them need takes.

    Raises:
        DagError: see :class:`Dag`.
    """
    dag = Dag(outputs)
    shared = set.intersection(*({node.call for node in Dag([output]).nodes} for output in outputs))
    taken = [wire for node in dag.nodes if node.call not in shared for wire in node.inputs.values()]
    return [wire for wire in dict.fromkeys(taken) if wire.call in shared]


def _slice_from(known: Callable[[NmTensor], bool], outputs: Sequence[NmTensor]) -> Slice:
    calls = _in_order(outputs, known)
    taken = [wire for call in calls for wire in call.inputs.values()] + list(outputs)
    inputs = dict.fromkeys(wire for wire in taken if known(wire))
    return Slice(tuple(inputs), tuple(_named_nodes(calls).values()), tuple(outputs))


def _in_order(wires: Iterable[NmTensor], known: Callable[[NmTensor], bool] = lambda wire: False) -> list[ModuleCall]:
    """The calls that ``wires`` need, each after those it takes wires from; nothing behind wires that are ``known``.

    An explicit stack, so that a long chain does not exhaust Python's own.

    Raises:
        DagError: a module was kept by a graph that is gone.
    """
    ordered: dict[ModuleCall, None] = {}
    stack = [(wire.call, False) for wire in reversed(list(wires)) if not known(wire)]
    while stack:
        call, inputs_done = stack.pop()
        if call in ordered:
            continue
        if inputs_done:
            if call.module is None and call.step_number is not None:
                remedy = "keep the graph in which the wire was made, or the module"
                raise DagError("the module of a wire is gone", place=next(iter(call.outputs)), remedy=remedy)
            ordered[call] = None
            continue
        stack.append((call, True))
        stack += [(wire.call, False) for wire in reversed(call.inputs.values()) if not known(wire)]
    return list(ordered)


def _led_to(call: ModuleCall) -> list[NmTensor]:
    """Every wire that a call's outputs lead to, its own first."""
    seen = {call: None}
    pending = [call]
    while pending:
        for wire in pending.pop().outputs.values():
            for reader, _ in wire.readers:
                if reader not in seen:
                    seen[reader] = None
                    pending.append(reader)
    return [wire for reached in seen for wire in reached.outputs.values()]


def _only_source(calls: Iterable[ModuleCall], outputs: Sequence[NmTensor]) -> ModuleCall:
    sources = [call for call in calls if not call.inputs]
    places = ", ".join(wire.place for wire in outputs)
    for call in sources:
        if call.module.input_ports:
            remedy = "connect it to a wire that leads back to a data layer"
            raise DagError(f"no data layer leads to {call.module.label}", place=places, got="no inputs", remedy=remedy)
    if len(sources) > 1:
        names = " and ".join(call.module.label for call in sources)
        same = len({id(call.module) for call in sources}) == 1
        remedy = "call the data layer once and use its wires for all" if same else "make one DAG for each data layer"
        raise DagError("two data layers lead to these wires", place=places, got=names, wanted="one", remedy=remedy)
    return sources[0]


def _named_nodes(calls: Iterable[ModuleCall]) -> dict[ModuleCall, Node]:
    """A node for each call. Given names stay; others, and repeated calls of a module, are numbered from the second."""
    calls = list(calls)
    owners: dict[str, NeuralModule] = {}
    for module in (call.module for call in calls if call.module.has_own_name):
        if owners.setdefault(module.label, module) is not module:
            raise DagError(f'two modules are named "{module.label}"', remedy="give each its own name=")
    nodes: dict[ModuleCall, Node] = {}
    used: set[str] = set()
    numbers: Counter[str] = Counter()
    for call in calls:
        base = name = call.module.label
        while name in used or (name in owners and owners[name] is not call.module):
            numbers[base] += 1
            name = f"{base}_{numbers[base] + 1}"
        used.add(name)
        nodes[call] = Node(name, call)
    return nodes
