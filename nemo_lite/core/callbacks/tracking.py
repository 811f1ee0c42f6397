"""TrackingCallback: the records of a run of training. With several ranks rank 0 makes them; trackers get them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_lite.base.ranges import PositiveInt, numbers_checked
from nemo_lite.core.callbacks.action_state import ActionState, EvaluationResult
from nemo_lite.core.callbacks.base import NeMoCallback, TagOwners
from nemo_lite.core.callbacks.numbers import fetch_number
from nemo_lite.core.neural_types import NmTensor
from nemo_lite.core.trackers import FAILED, FINISHED, PART_OF_LOSS, Trackers


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
            self._end.update(step=state.step, epoch=state.epoch)
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
