"""GraphInput and GraphInputs: the wires that come into a graph from outside, by name."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from types import MappingProxyType

from nemo_lite.core.graph.neural_module import NeuralModule
from nemo_lite.core.graph.recording import Recorder
from nemo_lite.core.neural_types import NeuralType
from nemo_lite.core.neural_types.nm_tensor import ModuleCall, NmTensor, StepModulePort
from nemo_lite.errors import GraphKeyError, GraphTypeError


class Outside(NeuralModule):
    """Stands where a wire has the module that gives it: what is outside of the graph."""

    name = label = "input"


class GraphInput(NmTensor):
    """A wire whose values the graph is given.

    Args:
        ntype: its type.
        name: its name in the graph.
        graph: the graph, or None for an input by itself.

    Attributes:
        ntype: its type.
    """

    is_graph_input = True

    def __init__(self, ntype: NeuralType, name: str = "", graph: Recorder | None = None) -> None:
        # Made without the constructor, so that it takes no module's name.
        outside: Outside = object.__new__(Outside)
        call = ModuleCall(outside, {}, {})
        super().__init__(outside, {}, name, ntype, call=call)
        call.outputs[name] = self
        self._graph = None if graph is None else weakref.ref(graph)
        self._bound: list[StepModulePort] = []

    @property
    def graph(self) -> Recorder | None:
        return None if self._graph is None else self._graph()

    @property
    def consumers(self) -> list[StepModulePort]:
        """The ports of the graph that take it, in the order of the calls."""
        return list(self._bound)

    def bind(self, step_module_ports: StepModulePort | Sequence[StepModulePort]) -> None:
        """Note one port that takes it, or several."""
        if isinstance(step_module_ports, StepModulePort):
            step_module_ports = [step_module_ports]
        self._bound += step_module_ports


class GraphInputs(MutableMapping[str, GraphInput]):
    """The inputs of a graph by name; ``inputs["x"] = NeuralType(...)`` makes one.

    Args:
        graph: whose inputs they are, or None.
    """

    def __init__(self, graph: Recorder | None = None) -> None:
        self._graph = None if graph is None else weakref.ref(graph)
        self._inputs: dict[str, GraphInput] = {}

    def __setitem__(self, name: str, value: NeuralType | GraphInput) -> None:
        """Make an input of a type, or of the type of another graph's input.

        Raises:
            GraphTypeError: neither of them.
            GraphKeyError: there is an input of this name with this very type; with another type, the first one stays.
        """
        if not isinstance(value, (NeuralType, GraphInput)):
            wanted = "a NeuralType, such as module.input_ports[...], or a GraphInput"
            raise GraphTypeError(f'input "{name}" is no type', got=type(value).__name__, wanted=wanted)
        ntype = value.ntype if isinstance(value, GraphInput) else value
        if name not in self._inputs:
            self._inputs[name] = GraphInput(ntype, name, None if self._graph is None else self._graph())
        elif self._inputs[name].ntype is ntype:
            raise GraphKeyError(f'there is an input "{name}" already', remedy="give this one another name")

    def __getitem__(self, name: str) -> GraphInput:
        return self._inputs[name]

    def __delitem__(self, name: str) -> None:
        raise GraphTypeError(f'the input "{name}" of a graph cannot be taken out', remedy="make another graph")

    def __iter__(self) -> Iterator[str]:
        return iter(self._inputs)

    def __len__(self) -> int:
        return len(self._inputs)

    @property
    def definitions(self) -> Mapping[str, NeuralType]:
        """Types by name; read-only."""
        return MappingProxyType({name: each.ntype for name, each in self._inputs.items()})

    def has_binding(self, step_number: int, port_name: str) -> str | None:
        """The name of the input that a port takes, or None."""
        for name, each in self._inputs.items():
            if any((port.step_number, port.port_name) == (step_number, port_name) for port in each.consumers):
                return name
        return None

    def serialize(self) -> list[str]:
        """``length->1.encoder.length | TYPE`` for each port that takes an input."""
        return [
            f"{name}->{port.step_number}.{port.module_name}.{port.port_name} | {each.ntype}"
            for name, each in self._inputs.items()
            for port in each.consumers
        ]
