"""NmTensor: a typed wire that knows the call which produces it, and that call. No ordering, no execution in here."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from nemo_lite.core.neural_types.neural_type import NeuralType
from nemo_lite.utils.alive import AppState
from nemo_lite.utils.alive import Connection as Connection
from nemo_lite.utils.alive import StepModulePort as StepModulePort

if TYPE_CHECKING:
    from nemo_lite.core.graph.neural_module import NeuralModule
    from nemo_lite.core.graph.recording import Recorder


# A wire's place in the order in which calls were recorded; only differences count.
_serials = count()


@dataclass(frozen=True, eq=False)
class NestedUse:
    """One use of a graph inside another: pictures draw a box with this name around its calls."""

    name: str


class ModuleCall:
    """One use of a module on wires. A module that is called twice has two of them and one set of weights.

    Attributes:
        module: the module that is called.
        inputs: the wires that it takes, by port.
        outputs: the wires that it gives, by port.
        step_number: its number in the graph that recorded it, or ``None``.
        nested_in: the uses of graphs that it belongs to, the outermost first.
    """

    __slots__ = ("_serial", "inputs", "module", "nested_in", "outputs", "step_number")

    def __init__(
        self,
        module: NeuralModule,
        inputs: Mapping[str, NmTensor],
        output_types: Mapping[str, NeuralType],
        nested_in: tuple[NestedUse, ...] = (),
    ) -> None:
        self.module = module
        self.nested_in = nested_in
        self.inputs = dict(inputs)
        self.step_number: int | None = None
        self._serial = next(_serials)
        self.outputs = {
            port: NmTensor(module, self.inputs, port, ntype, call=self) for port, ntype in output_types.items()
        }
        for port, wire in self.inputs.items():
            wire.readers.append((self, port))

    @property
    def step(self) -> int:
        """Its step: that of its graph, or its place among the calls that wires connect to it, in order of recording."""
        if self.step_number is not None:
            return self.step_number
        connected = {self}
        pending = [self]
        while pending:
            call = pending.pop()
            near = [wire.call for wire in call.inputs.values()]
            near += [reader for wire in call.outputs.values() for reader, _ in wire.readers]
            pending += [other for other in dict.fromkeys(near) if other not in connected]
            connected.update(near)
        return sorted(call._serial for call in connected).index(self._serial)


class NmTensor(NeuralType):
    """A wire between modules: what will be a tensor when the DAG runs. It is also its type, and can be compared as one.

    Scripts get wires from calls of modules. One made by hand belongs to no DAG.

    Args:
        producer: the module that gives it, or ``None``.
        producer_args: the wires that the producing call takes, by port.
        output_port_name: the producing module's output port.
        ntype: its type.
        call: the call that produces it, which knows the two above.

    Attributes:
        call: the call that produces it.
        output_port_name: the producing module's output port.
        ntype: its :class:`NeuralType`.
        readers: the calls that take it, with the port each takes it at.
    """

    is_graph_input = False
    """Whether it is the input of a graph, which only calls in that graph take."""

    def __init__(
        self,
        producer: NeuralModule | None,
        producer_args: Mapping[str, NmTensor] | None,
        output_port_name: str,
        ntype: NeuralType,
        call: ModuleCall | None = None,
    ) -> None:
        self.axes, self.elements_type, self.optional = ntype.axes, ntype.elements_type, ntype.optional
        if call is None:
            call = ModuleCall(producer, {}, {})  # type: ignore[arg-type]  # by hand: lowering refuses what is no module
            call.inputs.update(producer_args or {})
            call.outputs[output_port_name] = self
        self.call = call
        self.output_port_name = output_port_name
        self.ntype = ntype
        self.readers: list[tuple[ModuleCall, str]] = []
        self._more_consumers: list[StepModulePort] = []
        self._new_name = ""
        self._unique_name = ""
        AppState().tensor_names.register(self)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def graph(self) -> Recorder | None:
        """The graph whose input it is, or None."""
        return None

    @property
    def producer(self) -> NeuralModule:
        """The module that produces it."""
        return self.call.module

    @property
    def producer_name(self) -> str:
        """The producing module's name."""
        return str(self.producer and self.producer.name)

    @property
    def producer_args(self) -> dict[str, NmTensor]:
        """The wires that the producing call takes, by port."""
        return dict(self.call.inputs)

    @property
    def producer_step_number(self) -> int:
        """The step in which it is produced: that of its graph, or its place among the calls connected to it."""
        return self.call.step

    @property
    def producer_step_module_port(self) -> StepModulePort:
        """Step, module and port that produce it."""
        return StepModulePort(self.call.step, self.producer_name, self.output_port_name)

    @property
    def consumers(self) -> list[StepModulePort]:
        """Steps, modules and ports that take it, in the order of connection."""
        readers = [StepModulePort(call.step, call.module.name, port) for call, port in self.readers]
        return readers + self._more_consumers

    def add_consumer(self, step_module_port: StepModulePort) -> None:
        """Note one more that takes it; a call of a module on the wire does so by itself."""
        self._more_consumers.append(step_module_port)

    def connections(self) -> list[Connection]:
        """A connection for each of :attr:`consumers`."""
        return [Connection(self.producer_step_module_port, consumer, self.ntype) for consumer in self.consumers]

    @property
    def name(self) -> str:
        """Its name: that given to :meth:`rename`, or the output port's."""
        return self._new_name or self.output_port_name

    @property
    def is_renamed(self) -> bool:
        """Whether a script gave it a name; such wires can be asked for by name while a DAG runs."""
        return bool(self._new_name)

    def rename(self, new_name: str) -> None:
        """Give it a name for callbacks: ``state["tensors"].get_tensor(new_name)``.

        Raises:
            TakenKeyError: another wire that is alive has this name, or it is "loss".
        """
        AppState().tensor_names.rename_NmTensor(self, new_name)
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
        return f"{self.producer and self.producer.label}.{self.output_port_name}"

    def __repr__(self) -> str:
        return f"NmTensor({self.place}: {self.ntype.brief})"
