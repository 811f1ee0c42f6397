"""GraphOutputs: which wires a graph gives, under which names: chosen ones, or else every output of its steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from nemo_lite.core.neural_types import NeuralType
from nemo_lite.core.neural_types.nm_tensor import NmTensor, StepModulePort
from nemo_lite.errors import GraphKeyError, GraphTypeError


class GraphOutput(NamedTuple):
    """One output: its type, and the port that gives it."""

    ntype: NeuralType
    producer_step_module_port: StepModulePort


class GraphOutputs(MutableMapping[str, GraphOutput]):
    """The outputs of a graph by name. The first ``outputs["loss"] = wire`` hides the default ones.

    Args:
        tensors: the wires of the graph, by step and port.
    """

    def __init__(self, tensors: Mapping[int, Mapping[str, NmTensor]]) -> None:
        self._all = tensors
        self._default: dict[str, NmTensor] = {}
        self._manual: dict[str, NmTensor] = {}

    @property
    def are_manual(self) -> bool:
        """Whether they were chosen."""
        return bool(self._manual)

    @property
    def _bound(self) -> dict[str, NmTensor]:
        return self._manual or self._default

    def __setitem__(self, name: str, wire: NmTensor) -> None:  # type: ignore[override]  # a wire comes in, NeMo's way
        """Choose an output.

        Raises:
            GraphTypeError: not a wire.
            GraphKeyError: a name that has been given.
        """
        if not isinstance(wire, NmTensor):
            raise GraphTypeError(f'output "{name}" is no wire', got=type(wire).__name__, wanted="an NmTensor")
        if name in self._manual:
            raise GraphKeyError(f'there is an output "{name}" already', remedy="give this one another name")
        self._manual[name] = wire

    def __getitem__(self, name: str) -> GraphOutput:
        wire = self._bound[name]
        return GraphOutput(wire.ntype, wire.producer_step_module_port)

    def __delitem__(self, name: str) -> None:
        raise GraphTypeError(f'the output "{name}" of a graph cannot be taken out', remedy="make another graph")

    def __iter__(self) -> Iterator[str]:
        return iter(self._bound)

    def __len__(self) -> int:
        return len(self._bound)

    def bind(self, tensors_ref: Iterable[NmTensor], port_names: Sequence[str] | None = None) -> None:
        """Add default outputs, under the names of their ports or under others.

        A second wire of a name is called ``STEP_MODULE_PORT``.
        """
        for number, wire in enumerate(tensors_ref):
            name = wire.output_port_name if port_names is None else port_names[number]
            if name in self._default:
                name = "_".join(map(str, wire.producer_step_module_port))
            self._default[name] = wire

    def replace_default(self, wires: Mapping[str, NmTensor]) -> None:
        """Take these as the default outputs, by name."""
        self._default = dict(wires)

    @property
    def definitions(self) -> Mapping[str, NeuralType]:
        """Types by name; read-only."""
        return MappingProxyType({name: wire.ntype for name, wire in self._bound.items()})

    @property
    def tensors(self) -> Mapping[str, NmTensor]:
        """Wires by name; read-only."""
        return MappingProxyType(self._bound)

    @property
    def tensor_list(self) -> list[NmTensor]:
        """The wires."""
        return list(self._bound.values())

    def serialize(self) -> dict[str, str | list[str]]:
        """``type``: default or manual; ``mappings``: ``STEP.MODULE.PORT->NAME | TYPE`` for each."""
        lines = [
            f"{'.'.join(map(str, wire.producer_step_module_port))}->{name} | {wire.ntype}"
            for name, wire in self._bound.items()
        ]
        return {"type": "manual" if self.are_manual else "default", "mappings": lines}
