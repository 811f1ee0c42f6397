"""A fake action for the tests of callbacks: counters, a loss for each step, a record of what callbacks asked for.

It is one rank of a world that may have several: what all ranks must call, in the same order, is noted in
``FakeState.collective``, and an attempt of one of them inside ``on_first`` fails the test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_lite.base.files import make_writable_folder
from nemo_lite.core import NeuralModule, NmTensor
from nemo_lite.core.callbacks import CallbackList
from nemo_lite.core.callbacks.action_state import Best, EvaluationResult, LossGradients, StepTiming
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


class Encoder:
    """A module that saves itself as a text."""

    def __init__(self, name=None):
        self.name, self.has_own_name = name or "encoder", name is not None
        self.label = self.name
        self.num_unfreezes = 0
        self.dropout = 0.25

    def __str__(self):
        return self.name if self.has_own_name else "Encoder"

    def save_to(self, path):
        Path(path).write_text("weights", encoding="utf-8")

    def unfreeze(self):
        self.num_unfreezes += 1


class FakeEvaluated:
    """See ``Evaluated``: the rows of all ranks, in rounds, on the first; what it is asked is noted."""

    def __init__(self, state: FakeState) -> None:
        self._state = state
        self._is_done = False

    def __iter__(self) -> Iterator[list[list[Any]]]:
        self._state.note("round")
        rows, size = self._state.batches, self._state.world_size
        for start in range(0, len(rows), size):
            if self._state.is_first:
                yield [list(column) for column in zip(*rows[start : start + size], strict=True)]
            self._state.note("round")
        self._is_done = True

    def _read(self, value: Any) -> Any:
        assert self._is_done, "known after the iteration"
        assert self._state.is_first, "known on the first rank"
        return value

    @property
    def items(self) -> list[int] | None:
        return self._read(None if self._state.num_items is None else [*range(self._state.num_items)])

    @property
    def num_items(self) -> int | None:
        return self._read(self._state.num_items)

    @property
    def digest(self) -> str:
        return self._read(self._state.digest)


@dataclass(eq=False)
class FakeState:
    """See ``ActionState``. The loss of step n is n + 0.5; other values are in ``values``, by wire or name.

    ``batches`` holds the rows of all ranks, in data order: for each batch the values of the evaluated wires.
    """

    step: int = 0
    epoch: int = 0
    total_steps: int | None = None
    local_rank: int | None = None
    global_rank: int | None = None
    world_size: int = 1
    optimizers: list[Any] = field(default_factory=list)
    learning_rate: float = 0.01
    tb_writer: Any = None
    values: dict[Any, Any] = field(default_factory=dict)
    reads: list[float] = field(default_factory=list)
    checkpoint: str | None = None
    being_saved: str = ""
    loaded: list[Any] = field(default_factory=list)
    saved: list[tuple[Any, str, int, int]] = field(default_factory=list)
    evaluated: list[tuple[int, list[NmTensor]]] = field(default_factory=list)
    batches: list[list[Any]] = field(default_factory=list)
    num_items: int | None = None
    digest: str = ""
    collective: list[tuple[str, int]] = field(default_factory=list)
    is_in_first: bool = False
    modules: Mapping[str, Any] = field(default_factory=dict)
    evaluation: EvaluationResult | None = None
    stop_reason: str = ""
    shared: list[Any] = field(default_factory=list)
    is_epoch_over: bool = False
    is_save_requested: bool = False
    interrupted_by: int = 0
    best: bool = True
    noted: list[tuple[str, int]] = field(default_factory=list)
    callbacks: CallbackList = field(default_factory=lambda: CallbackList([]))

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def __post_init__(self) -> None:
        self.tensors = self

    def get_tensor(self, wire: str | NmTensor, compute: bool = True) -> Any:
        return Scalar(self.step + 0.5, self.reads) if wire == "loss" else self.values[wire]

    def loss_gradients(self, losses: Sequence[NmTensor]) -> LossGradients | None:
        return LossGradients("encoder.encoded", [self.values[wire] for wire in losses])

    def timing(self, reader: object) -> StepTiming:
        return StepTiming(num_steps=2, seconds=0.5, data_wait_seconds=0.1, amount=50.0, amount_unit="audio-s")

    @property
    def is_first(self) -> bool:
        return not self.global_rank

    def note(self, what: str) -> None:
        """A call that every rank must make."""
        assert not self.is_in_first, f"{what} inside on_first: the other ranks do not call it"
        self.collective.append((what, self.step))

    def on_first(self, make: Callable[[], Any]) -> Any:
        self.note("on_first")
        if not self.is_first:
            return None
        self.is_in_first = True
        try:
            return make()
        finally:
            self.is_in_first = False

    def from_first(self, make: Callable[[], Any]) -> Any:
        """As on rank 0; a test of another rank gives what it shall get in ``shared``."""
        made = self.on_first(make)
        self.note("share")
        return made if self.is_first else self.shared.pop(0)

    def evaluate(self, wires: Sequence[NmTensor]) -> FakeEvaluated:
        self.note("evaluate")
        self.evaluated.append((self.step, list(wires)))
        return FakeEvaluated(self)

    def publish(self, make: Callable[[], EvaluationResult]) -> None:
        self.evaluation = self.on_first(make) or self.evaluation
        self.note("publish")
        self.callbacks.notify("on_evaluation_end", self)

    def save_module(self, module: Any, path: Any) -> None:
        self.note("save_module")
        if self.is_first:
            module.save_to(path)

    def save_checkpoint(
        self, folder: Any, kind: str, keep: int, about: Any = None, best: Best | None = None, suffix: str = ""
    ) -> None:
        self.note("save_checkpoint")
        self.saved.append((folder, kind, self.step + 1, keep))
        self.being_saved = f"{folder}/checkpoint-{kind}-{1 + (self.step if kind == 'STEP' else self.epoch)}"

    def open_checkpoints(self, folder: Any) -> None:
        self.note("open_checkpoints")
        self.on_first(lambda: make_writable_folder(folder))

    def saved_checkpoint(self, folder: Any, *, wait: bool = False) -> str:
        """As if a checkpoint were complete at the next step, on the first rank; the others only know if they wait."""
        if wait:
            self.note("saved_checkpoint")
        path = self.being_saved if wait or self.is_first else ""
        self.being_saved = "" if path else self.being_saved
        return path

    def is_among_best(self, folder: Any, best: Best) -> bool:
        self.note("is_among_best")
        return self.best

    def note_evaluation(self, folder: Any) -> None:
        self.note("note_evaluation")
        assert self.evaluation is not None
        self.noted.append((self.evaluation.name, self.evaluation.step))

    def request_save(self) -> None:
        self.is_save_requested = True

    def load_checkpoint(
        self, folder: Any, must_go_on: bool = False, allow_world_size_change: bool = False
    ) -> str | None:
        self.note("load_checkpoint")
        self.loaded.append(folder)
        return self.checkpoint

    def save_state_to(self, path: Any) -> None: ...

    def restore_state_from(self, path: Any) -> None: ...

    def request_stop(self, reason: str, *, is_of_all_ranks: bool = False) -> None:
        self.stop_reason = reason


def train(state: FakeState, callbacks: Sequence[Any], num_epochs: int = 1, steps_per_epoch: int = 5) -> FakeState:
    """The events of a run, one batch a step, in the order of the engine."""
    called = state.callbacks = CallbackList(callbacks)
    called.notify("on_action_start", state)
    steps_done = state.step
    first_epoch = state.epoch
    for epoch in range(first_epoch, first_epoch + num_epochs):
        state.epoch = epoch
        called.notify("on_epoch_start", state)
        for number in range(1, steps_per_epoch + 1):
            state.step, state.is_save_requested = steps_done, False
            state.is_epoch_over = number == steps_per_epoch
            called.notify("on_step_start", state)
            called.notify("on_batch_start", state)
            called.notify("on_batch_end", state)
            steps_done += 1
            called.notify("on_step_end", state)
        called.notify("on_epoch_end", state)
    called.notify("on_action_end", state)
    called.close()
    return state


def messages(text: str) -> list[str]:
    """What was logged, without the marks of warnings and errors."""
    return [re.sub(r"^(warning|error): ", "", line) for line in text.splitlines()]
