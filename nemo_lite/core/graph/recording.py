"""Recorder: what takes down the calls inside ``with graph:``. No graph, no modules and no wires are made here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from nemo_lite.core.graph.kinds import OperationMode as OperationMode
from nemo_lite.errors import NeuralPortNameMismatchError
from nemo_lite.utils.alive import AppState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nemo_lite.core.neural_types import NeuralType
    from nemo_lite.core.neural_types.nm_tensor import ModuleCall, NmTensor


class Recorder(ABC):
    """Takes down every connecting call while it is the active one."""

    operation_mode: OperationMode

    @abstractmethod
    def input_for(self, owner: str, port: str, ntype: NeuralType) -> NmTensor:
        """The wire for an input port to which the recorder itself was given.

        Raises:
            GraphConnectionError: the recorder is not the active one.
        """

    @abstractmethod
    def record(self, call: ModuleCall) -> None:
        """Take down a call."""


def active_recorder() -> Recorder | None:
    """The recorder inside whose ``with`` this is, or None."""
    recorder: Recorder | None = AppState().active_graph
    return recorder


def set_active_recorder(recorder: Recorder | None) -> None:
    """Let a recorder take down the calls from here on, or none."""
    AppState().active_graph = recorder


def refuse_foreign(owner: str, inputs: Mapping[str, NmTensor]) -> None:
    """Check that inputs of a graph are used inside of it.

    Raises:
        NeuralPortNameMismatchError: a wire is the input of a graph that is not the active one.
    """
    active = active_recorder()
    for port, wire in inputs.items():
        if wire.is_graph_input and wire.graph is not active:
            remedy = "call the module inside `with` of the graph whose input this is"
            raise NeuralPortNameMismatchError(
                f'"{port}" is given the input of a graph that is not active', place=owner, got=wire.name, remedy=remedy
            )
