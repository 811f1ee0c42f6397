"""A fake action for the tests of callbacks: counters, a loss for each step, a record of what callbacks asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nemo_lite.core import NeuralModule, NmTensor
from nemo_lite.core.actions import StepTiming
from nemo_lite.core.callbacks import CallbackList
from nemo_lite.core.neural_types import ChannelType, NeuralType


class Source(NeuralModule):
    """Gives two wires: ``x`` and ``y``."""

    input_ports = {}
    output_ports = {"x": NeuralType("B D", ChannelType()), "y": NeuralType("B D", ChannelType())}

    def forward(self) -> None:
        """Never called."""


class Scalar:
    """Stands in for a tensor of one element, and counts how often it is read."""

    def __init__(self, value: float, reads: list[float]) -> None:
        self.value, self.reads = value, reads

    def numel(self) -> int:
        return 1

    def item(self) -> float:
        self.reads.append(self.value)
        return self.value


class Vector:
    """Stands in for a tensor of three elements."""

    shape = (3,)

    def numel(self) -> int:
        return 3

    def item(self) -> float:
        raise RuntimeError("more than one element")

    def __str__(self) -> str:
        return "[1, 2, 3]"


class Writer:
    """Records what a TensorBoard writer would get."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, Any, int]] = []
        self.texts: list[tuple[str, str, int]] = []
        self.num_flushes = 0

    def add_scalar(self, tag: str, value: Any, step: int) -> None:
        self.scalars.append((tag, value, step))

    def add_text(self, tag: str, value: str, step: int) -> None:
        self.texts.append((tag, value, step))

    def flush(self) -> None:
        self.num_flushes += 1

    def of(self, tag: str) -> list[tuple[Any, int]]:
        return [(value, step) for name, value, step in self.scalars if name == tag]


@dataclass(eq=False)
class FakeState:
    """See ``ActionState``. The loss of step n is n + 0.5; other values are in ``values``, by wire or name."""

    step: int = 0
    epoch: int = 0
    total_steps: int | None = None
    local_rank: int | None = None
    global_rank: int | None = None
    optimizers: list[Any] = field(default_factory=list)
    learning_rate: float = 0.01
    tb_writer: Any = None
    values: dict[Any, Any] = field(default_factory=dict)
    reads: list[float] = field(default_factory=list)
    checkpoint: str | None = None
    loaded: list[Any] = field(default_factory=list)
    saved: list[tuple[Any, str, int, int]] = field(default_factory=list)
    evaluated: list[tuple[int, list[NmTensor]]] = field(default_factory=list)
    batches: list[list[Any]] = field(default_factory=list)
    modules: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    @property
    def tensors(self) -> FakeState:
        return self

    def get_tensor(self, wire: str | NmTensor, compute: bool = True) -> Any:
        return Scalar(self.step + 0.5, self.reads) if wire == "loss" else self.values[wire]

    def timing(self, reader: object) -> StepTiming:
        return StepTiming(num_steps=2, seconds=0.5, data_wait_seconds=0.1, amount=50.0, amount_unit="audio-s")

    def evaluate(self, wires: Sequence[NmTensor]) -> Iterator[list[Any]]:
        self.evaluated.append((self.step, list(wires)))
        yield from self.batches

    def save_checkpoint(self, folder: Any, kind: str, keep: int) -> None:
        self.saved.append((folder, kind, self.step + 1, keep))

    def load_checkpoint(self, folder: Any) -> str | None:
        self.loaded.append(folder)
        return self.checkpoint

    def save_state_to(self, path: Any) -> None: ...

    def restore_state_from(self, path: Any) -> None: ...

    def request_stop(self, reason: str) -> None: ...


def train(state: FakeState, callbacks: Sequence[Any], num_epochs: int = 1, steps_per_epoch: int = 5) -> FakeState:
    """The events of a run, one batch a step, in the order of the engine."""
    called = CallbackList(callbacks)
    called.on_action_start(state)
    steps_done = state.step
    first_epoch = state.epoch
    for epoch in range(first_epoch, first_epoch + num_epochs):
        state.epoch = epoch
        called.on_epoch_start(state)
        for _ in range(steps_per_epoch):
            state.step = steps_done
            called.on_step_start(state)
            called.on_batch_start(state)
            called.on_batch_end(state)
            steps_done += 1
            called.on_step_end(state)
        called.on_epoch_end(state)
    called.on_action_end(state)
    called.close()
    return state
