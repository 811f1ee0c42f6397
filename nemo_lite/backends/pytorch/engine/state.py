"""The state of an action: plain counters, the times of steps, and what callbacks see and ask for.

What evaluates and saves is made of this state, and is in `evaluation` and `checkpoints`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from torch.optim import Optimizer

from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.engine.batches import NO_WISHES, NoValues, Wishes
from nemo_lite.base.interruption import StopSignals, name_of
from nemo_lite.core.callbacks.action_state import (
    Averages,
    Best,
    Evaluated,
    EvaluationResult,
    StepTensors,
    StepTiming,
    TbWriter,
)
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.core.neural_types import NmTensor

T = TypeVar("T")


class StepClock:
    """Sums of what the steps took, and what each reader had seen of them."""

    def __init__(self) -> None:
        self.total = StepTiming()
        # Readers need not be hashable. Each is kept with its id, which no other object can get while it lives.
        self._seen: dict[int, tuple[object, StepTiming]] = {}

    def add(self, seconds: float, data_wait_seconds: float, amount: float) -> None:
        """Add a step."""
        self.total.num_steps += 1
        self.total.seconds += seconds
        self.total.data_wait_seconds += data_wait_seconds
        self.total.amount += amount

    def read(self, reader: object) -> StepTiming:
        """The sums of the steps since this reader last asked."""
        now, (_, before) = replace(self.total), self._seen.get(id(reader), (reader, StepTiming()))
        self._seen[id(reader)] = (reader, now)
        sums = ("num_steps", "seconds", "data_wait_seconds", "amount")
        return replace(now, **{name: getattr(now, name) - getattr(before, name) for name in sums})


class RunState:
    """State of an action; :class:`nemo_lite.core.callbacks.base.ActionState` says what callbacks may use of it.

    Args:
        comm: the ranks.
        optimizers: of the run.
        modules: of the run, by name.
        tb_writer: for callbacks without one of their own.
        tensors: those of the last step.

    Attributes:
        steps_done, epochs_done: what a checkpoint is named after; ``step`` and ``epoch`` are those being made.
        clock: times of the steps.
        stop_signals: those that this process got.
    """

    # Set by `Evaluations` and `Checkpoints`, which are made of this state.
    evaluate: Callable[[Sequence[NmTensor]], Evaluated]
    publish: Callable[[Callable[[], EvaluationResult]], None]
    save_module: Callable[..., None]
    save_state_to: Callable[[str | Path], None]
    restore_state_from: Callable[[str | Path], None]
    save_checkpoint: Callable[..., None]
    load_checkpoint: Callable[..., str | None]
    open_checkpoints: Callable[[str | Path], None]
    saved_checkpoint: Callable[..., str]
    is_among_best: Callable[[str | Path, Best], bool]
    note_evaluation: Callable[[str | Path], None]

    def __init__(
        self,
        comm: Comm,
        optimizers: Sequence[Optimizer] = (),
        modules: Mapping[str, NeuralModule] | None = None,
        tb_writer: TbWriter | None = None,
        tensors: StepTensors | None = None,
    ) -> None:
        self.local_rank, self.world_size = comm.local_rank, comm.world_size
        self.global_rank = None if comm.local_rank is None else comm.rank
        self.optimizers = list(optimizers)
        self.modules: Mapping[str, NeuralModule] = dict(modules or {})
        self.tb_writer = tb_writer
        self.tensors: StepTensors = tensors or NoValues()
        self.averaging: Averages | None = None
        self.evaluation: EvaluationResult | None = None
        self.clock = StepClock()
        # Counters
        self.step = self.steps_done = 0
        self.epoch = self.epochs_done = 0
        self.total_steps: int | None = None
        self.learning_rate = 0.0
        self.is_epoch_over = False
        # Requests of this rank, and what all ranks agreed on
        self.stop_signals = StopSignals()
        self.stop_reason = ""
        self.is_save_requested = self._wants_save = self._all_stop = False
        self.interrupted_by = 0
        self.on_first, self.from_first, self.timing = comm.on_first, comm.from_first, self.clock.read

    def __getitem__(self, key: str) -> Any:  # an attribute of any type
        return getattr(self, key)

    def request_stop(self, reason: str) -> None:
        """End the run. See ``ActionState``."""
        self.stop_reason = reason

    def request_save(self) -> None:
        """Ask for a checkpoint after this step. See ``ActionState``."""
        self._wants_save = True

    @property
    def wishes(self) -> Wishes:
        """Requests of this rank for the end of the step."""
        signal = self.stop_signals.received
        if not (self.stop_reason or self._wants_save or signal):
            return NO_WISHES
        return Wishes(bool(self.stop_reason), self._wants_save, signal)

    def agree(self, wishes: Wishes) -> None:
        """Note what some rank wanted: all ranks do it at this step."""
        self.is_save_requested, self._wants_save = wishes.save, False
        if wishes.stop:
            self._all_stop = True
            self.stop_reason = self.stop_reason or "another rank asked for it"
        if wishes.signal:
            self.agree_on_signal(wishes.signal)

    def agree_on_signal(self, number: int) -> None:
        """Note the stop signal that some rank got, or 0: all ranks end the run at this step."""
        self.interrupted_by = self.interrupted_by or number
        if self.interrupted_by:
            self.stop_reason = self.stop_reason or name_of(self.interrupted_by)

    @property
    def is_stopping(self) -> bool:
        """Whether the run ends here. With several ranks: whether all of them know that one asked to stop."""
        return self._all_stop or bool(self.interrupted_by) or (self.world_size == 1 and bool(self.stop_reason))
