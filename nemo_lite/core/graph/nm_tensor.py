"""NmTensor: a typed wire that knows the call which produces it, and that call. No ordering, no execution in here."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nemo_lite.core.neural_types import NeuralType

if TYPE_CHECKING:
    from nemo_lite.core.graph.neural_module import NeuralModule


class ModuleCall:
    """One use of a module on wires. A module that is called twice has two of them and one set of weights."""

    __slots__ = ("inputs", "module", "outputs")

    def __init__(
        self, module: NeuralModule, inputs: Mapping[str, NmTensor], output_types: Mapping[str, NeuralType]
    ) -> None:
        self.module = module
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

    def __init__(self, call: ModuleCall, output_port_name: str, ntype: NeuralType) -> None:
        self.call = call
        self.output_port_name = output_port_name
        self.ntype = ntype
        self.readers: list[tuple[ModuleCall, str]] = []
        self._new_name = ""
        self._unique_name = ""

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
