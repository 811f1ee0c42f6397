"""Callbacks that report a run: its records, which trackers get, and a progress bar, which only a terminal shows.

With several ranks rank 0 does. Nothing of the bar goes to logs or files.
"""

from __future__ import annotations

import io
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO, TypeVar, cast

from tqdm import tqdm

from nemo_lite.base.ranges import PositiveInt, numbers_checked
from nemo_lite.core.callbacks.action_state import ActionState, EvaluationResult, StepTiming
from nemo_lite.core.callbacks.base import NeMoCallback, TagOwners
from nemo_lite.core.neural_types import NmTensor
from nemo_lite.core.trackers import FAILED, FINISHED, PART_OF_LOSS, Trackers, fetch_number, is_number
from nemo_lite.utils import logging

T = TypeVar("T")


class TrackingCallback(NeMoCallback):
    """Records the start, training steps, evaluations and the end of a run. With several ranks rank 0 does.

    Put it before the other callbacks: then a step is recorded before its evaluation. The end is recorded after all of
    them, also when the run ends with an error.

    Args:
        trackers: what gets the records; closed when the run is over.
        step_freq: record the first step, and each whose number this divides. It costs a host sync.
        start: more of the ``start`` record: arguments, versions, precision.
        losses: parts of the loss by name, recorded as ``loss_NAME``.

    Raises:
        UsageError: ``step_freq`` below 1.
    """

    @numbers_checked
    def __init__(
        self,
        trackers: Trackers,
        step_freq: PositiveInt = 25,
        start: Mapping[str, object] | None = None,
        losses: Mapping[str, NmTensor] | None = None,
    ) -> None:
        self._trackers, self._step_freq, self._start = trackers, step_freq, dict(start or {})
        self._losses = dict(losses or {})
        self._is_running = False
        self._num_steps = 0
        self._started = time.monotonic()
        self._end = {"step": 0, "epoch": 0, "reason": FAILED}

    def join(self, label: str, tags: TagOwners) -> None:
        """Say that evaluation results are recorded."""
        tags.are_recorded = True

    def wanted_wires(self) -> Sequence[NmTensor]:
        """The parts of the loss."""
        return list(self._losses.values())

    def fingerprint(self) -> Mapping[str, object]:
        """When it records a step."""
        return {"step_freq": self._step_freq}

    def on_action_start(self, state: ActionState) -> None:
        """Record the start."""
        self._num_steps = 0
        state.on_first(lambda: self._begin(state))

    def on_step_end(self, state: ActionState) -> None:
        """Record the step at the first and at every ``step_freq``-th."""
        self._num_steps += 1
        self._end.update(step=state.step + 1, epoch=state.epoch + 1)
        if self._num_steps == 1 or (state.step + 1) % self._step_freq == 0:
            state.on_first(lambda: self._record_step(state))

    def on_evaluation_end(self, state: ActionState) -> None:
        """Record what an evaluation gave."""
        result: EvaluationResult = state["evaluation"]
        state.on_first(lambda: self._record_evaluation(result))

    def on_action_end(self, state: ActionState) -> None:
        """Note that the run ends in order."""
        if not self._num_steps:  # where a checkpoint had brought it
            self._end.update(step=state.step, epoch=state.epoch + (not state.is_epoch_over))
        self._end["reason"] = state.stop_reason or FINISHED

    def close(self) -> None:
        """Record the end."""
        if self._is_running:
            self._is_running = False
            self._trackers.record("end", **self._end, seconds=round(time.monotonic() - self._started, 3))
            self._trackers.close()

    def _begin(self, state: ActionState) -> None:
        self._is_running, self._started = True, time.monotonic()
        self._end = {"step": 0, "epoch": 0, "reason": FAILED}
        self._trackers.record("start", **self._start, world_size=state.world_size, total_steps=state.total_steps)

    def _record_step(self, state: ActionState) -> None:
        timing = state.timing(self)
        self._trackers.record(
            "train",
            step=state.step + 1,
            epoch=state.epoch + 1,
            loss=fetch_number(state.tensors.get_tensor("loss"), "loss", "TrackingCallback"),  # host sync
            **{
                f"{PART_OF_LOSS}{name}": fetch_number(state.tensors.get_tensor(wire), name, "TrackingCallback")
                for name, wire in self._losses.items()
            },
            lr=state.learning_rate,
            amount_per_second=round(timing.amount_per_second, 3),
            amount_unit=timing.amount_unit,
            data_wait_share=round(timing.data_wait_share, 4),
            step_seconds=round(timing.step_seconds, 6),
        )

    def _record_evaluation(self, result: EvaluationResult) -> None:
        fields: dict[str, Any] = {
            "num_items": result.num_items,
            "digest": result.digest,
            "seconds": round(result.seconds, 3),
        }
        if result.higher_is_better:
            fields["higher_is_better"] = dict(result.higher_is_better)
        self._trackers.record("evaluation", step=result.step, set=result.name, **{**result.values, **fields})


# For tqdm: short enough for 80 columns, with a bar, in runs of 100,000 steps and a day.
_SHAPE = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{remaining} left{postfix}]"
_SHAPE_WITHOUT_END = "{n_fmt} steps [{elapsed}{postfix}]"


class ProgressBar(NeMoCallback):
    """A bar with the time left, the moving loss, the speed as log lines have it, and the share of waiting for data.

    Without a terminal on stderr it shows and reads nothing. Log lines appear above it. With several ranks rank 0
    shows it.

    Args:
        seconds_between_readings: how often the loss is read, a host sync; the bar itself moves at every step.

    Attributes:
        smoothing: weight of what was before in the moving loss, at each reading.
    """

    smoothing = 0.7

    def __init__(self, seconds_between_readings: float = 0.5) -> None:
        self._interval = seconds_between_readings
        self._bar: tqdm[Any] | None = None
        self._held = ExitStack()
        self._loss: float | None = None
        self._next_reading = 0.0

    def on_action_start(self, state: ActionState) -> None:
        """Show the bar, where there is a terminal."""
        self.close()
        self._loss, self._next_reading = None, 0.0
        state.on_first(lambda: self._open(state))

    def on_step_end(self, state: ActionState) -> None:
        """Move on; every now and then read the loss and the times."""
        bar = self._bar
        if bar is None:
            return
        now = time.perf_counter()
        if now >= self._next_reading:
            self._next_reading = now + self._interval
            self._read_loss(state)
            bar.set_postfix_str(self._text(state.timing(self)), refresh=False)
        bar.update()

    def on_action_end(self, state: ActionState) -> None:
        """Leave the bar as it is."""
        self.close()

    def close(self) -> None:
        """End the bar's line, and let log lines go their usual way."""
        self._bar = None
        self._held.close()

    def _open(self, state: ActionState) -> None:
        if not _on_terminal():  # asked here: the ranks' terminals differ, what they call must not
            return
        state.timing(self)
        shape = _SHAPE if state.total_steps else _SHAPE_WITHOUT_END
        bar = tqdm(total=state.total_steps, initial=state.step, file=sys.stderr, dynamic_ncols=True, bar_format=shape)
        self._bar = self._held.enter_context(bar)
        self._held.enter_context(_log_lines_above())

    def _read_loss(self, state: ActionState) -> None:
        value = state.tensors.get_tensor("loss")
        if not is_number(value):
            return
        loss = fetch_number(value, "loss", "ProgressBar")  # host sync: not at every step
        # A loss that is not finite is shown, but does not stay in the mean.
        before = loss if self._loss is None or not math.isfinite(self._loss) else self._loss
        self._loss = self.smoothing * before + (1 - self.smoothing) * loss

    def _text(self, timing: StepTiming) -> str:
        loss = [] if self._loss is None else [f"loss {self._loss:.4g}"]
        speed = f"{timing.amount_per_second:.3g} {timing.amount_unit}/s"
        return ", ".join([*loss, speed, f"data {timing.data_wait_share:.0%}"])

    @staticmethod
    @contextmanager
    def over(items: Iterable[T], verbose: bool, title: str, unit: str = "batch") -> Iterator[Iterable[T]]:
        """``items``, with a bar while they are taken; without one where there is no terminal, or not ``verbose``.

        With several ranks, the caller is ``verbose`` on rank 0 only.
        """
        if not (verbose and _on_terminal()):
            yield items
            return
        with _log_lines_above(), tqdm(items, desc=title, unit=unit, file=sys.stderr, dynamic_ncols=True) as bar:
            yield bar


class _AboveBar(io.TextIOBase):
    """Replaces a standard stream of the log, so that lines are printed above the bar."""

    def __init__(self, name: str) -> None:
        self._name_in_sys = name

    def isatty(self) -> bool:
        return bool(getattr(sys, self._name_in_sys).isatty())

    def write(self, text: str) -> int:
        tqdm.write(text, file=getattr(sys, self._name_in_sys), end="")
        return len(text)


@contextmanager
def _log_lines_above() -> Iterator[None]:
    with (
        logging.patch_stdout_handler(cast("TextIO", _AboveBar("stdout"))),
        logging.patch_stderr_handler(cast("TextIO", _AboveBar("stderr"))),
    ):
        yield


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
