"""NmTensor: a typed wire that knows the call which produces it, and that call. No ordering, no execution in here."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nemo_lite.core.neural_types import NeuralType

if TYPE_CHECKING:
    from nemo_lite.core.graph.neural_module import NeuralModule
    from nemo_lite.core.graph.recording import Recorder


class StepModulePort(NamedTuple):
    """A port of one step of a graph."""

    step_number: int
    module_name: str
    port_name: str


class Connection(NamedTuple):
    """From an output port to an input port."""

    producer: StepModulePort
    consumer: StepModulePort
    ntype: NeuralType


@dataclass(frozen=True, eq=False)
class NestedUse:
    """One use of a graph inside another: pictures draw a box with this name around its calls."""

    name: str


class ModuleCall:
    """One use of a module on wires. A module that is called twice has two of them and one set of weights.

    Attributes:
        step_number: its number in the graph that recorded it, or None.
        nested_in: the uses of graphs that it belongs to, the outermost first.
    """

    __slots__ = ("inputs", "module", "nested_in", "outputs", "step_number")

    def __init__(
        self,
        module: NeuralModule,
        inputs: Mapping[str, NmTensor],
        output_types: Mapping[str, NeuralType],
        nested_in: tuple[NestedUse, ...] = (),
    ) -> None:
        self.module = module
        self.step_number: int | None = None
        self.nested_in = nested_in
        self.inputs = dict(inputs)
        self.outputs = {port: NmTensor(self, port, ntype) for port, ntype in output_types.items()}
        for port, wire in self.inputs.items():
            wire.readers.append((self, port))


class NmTensor:
    """A wire between modules: what will be a tensor when the DAG runs.

    Attributes:
        call: the call that produces it.
        output_port_name: the producing module's output port.
        ntype: its :class:`NeuralType`.
        readers: the calls that take it, with the port each takes it at.
    """

    __slots__ = ("_new_name", "_unique_name", "call", "ntype", "output_port_name", "readers")

    is_graph_input = False
    """Whether it is the input of a graph, which only calls in that graph take."""

    def __init__(self, call: ModuleCall, output_port_name: str, ntype: NeuralType) -> None:
        self.call = call
        self.output_port_name = output_port_name
        self.ntype = ntype
        self.readers: list[tuple[ModuleCall, str]] = []
        self._new_name = ""
        self._unique_name = ""

    @property
    def graph(self) -> Recorder | None:
        """The graph whose input it is, or None."""
        return None

    @property
    def producer_step_number(self) -> int | None:
        """The producing call's number in the graph that recorded it; None outside of graphs."""
        return self.call.step_number

    @property
    def producer_step_module_port(self) -> StepModulePort:
        """Where it comes from; the step is -1 outside of graphs."""
        step = -1 if self.call.step_number is None else self.call.step_number
        return StepModulePort(step, self.producer_name, self.output_port_name)

    @property
    def producer(self) -> NeuralModule:
        """The module that produces it."""
        return self.call.module

    @property
    def producer_name(self) -> str:
        """The producing module's name."""
        return self.producer.name

    @property
    def producer_args(self) -> dict[str, NmTensor]:
        """The wires that the producing call takes, by port."""
        return dict(self.call.inputs)

    @property
    def consumers(self) -> list[tuple[NeuralModule, str]]:
        """The modules that take it, each with the port it takes it at."""
        return [(call.module, port) for call, port in self.readers]

    def connections(self) -> list[tuple[str, str]]:
        """``(from, to)`` of every connection of this wire, each written ``module.port``."""
        return [(self.place, f"{module.name}.{port}") for module, port in self.consumers]

    @property
    def name(self) -> str:
        """Its name: that given to :meth:`rename`, or the output port's."""
        return self._new_name or self.output_port_name

    @property
    def is_renamed(self) -> bool:
        """Whether a script gave it a name; such wires can be asked for by name while a DAG runs."""
        return bool(self._new_name)

    def rename(self, new_name: str) -> None:
        """Give it a name for callbacks: ``state["tensors"].get_tensor(new_name)``."""
        self._new_name = new_name

    @property
    def unique_name(self) -> str:
        """``port~~~module~~~id``: different for every wire of a process."""
        if not self._unique_name:
            self._unique_name = f"{self.output_port_name}~~~{self.producer_name}~~~{uuid.uuid4().hex}"
        return self._unique_name

    @property
    def place(self) -> str:
        """``module.port``, for messages."""
        return f"{self.producer_name}.{self.output_port_name}"

    def __repr__(self) -> str:
        return f"NmTensor({self.place}: {self.ntype})"
