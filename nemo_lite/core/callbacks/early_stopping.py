"""EarlyStoppingCallback: end a training whose evaluations get no better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from nemo_lite.base.errors import UnknownNameError, counted
from nemo_lite.base.ranges import PositiveInt, numbers_checked
from nemo_lite.core.callbacks.action_state import ActionState
from nemo_lite.core.callbacks.base import NeMoCallback, TagOwners
from nemo_lite.core.callbacks.metrics import higher_is_better


class EarlyStoppingCallback(NeMoCallback):
    """Ends the run when so many evaluations in a row have not been better than the best one before them.

    All ranks stop after the same step. The count is in the checkpoint: a run that goes on counts on, and one that had
    stopped stops again, unless ``patience`` has grown; by another metric or set counting begins anew. Put it behind the
    evaluators in the list of callbacks, so that all sets of a step are evaluated.

    Args:
        evaluation: the name of the evaluation that decides: ``EvaluatorCallback(name=...)``.
        metric: the tag of the value that decides.
        patience: how many evaluations; those before the first step do not count.
        ties: tags of the values that decide among equal ones, in this order; those that an evaluation does not give
            are passed over.
        best_is: ``lowest`` or ``highest``; by default what the metric says, or its name.
        starts_trained: training starts from a trained model: the evaluation before the first step is one to beat.

    Raises:
        UsageError: a patience below 1; when training starts, it is not known whether a good value is low or high.
        UnknownNameError: another ``best_is``.
    """

    @numbers_checked
    def __init__(
        self,
        evaluation: str,
        metric: str,
        patience: PositiveInt,
        ties: Sequence[str] = (),
        best_is: Literal["lowest", "highest"] | None = None,
        starts_trained: bool = False,
    ) -> None:
        if best_is not in (None, "lowest", "highest"):
            raise UnknownNameError("best_is", best_is, ("lowest", "highest"), place="EarlyStoppingCallback")
        self._evaluation, self._metric, self._patience, self._ties = evaluation, metric, patience, tuple(ties)
        self._best_is, self._starts_trained = best_is, starts_trained
        self._tags = TagOwners()
        self._state: ActionState | None = None
        self._signs: dict[str, float] = {}
        self._forget()

    def _forget(self) -> None:
        self._best: list[float] | None = None  # of the metric and the ties, the lowest is the best
        self._best_step = self._num_worse = 0
        self._counted_step = -1  # of the last evaluation that was counted; one that is repeated is not counted again

    def fingerprint(self) -> Mapping[str, object]:
        """When it stops: all ranks decide alike."""
        return {"decides": self._decides, "patience": self._patience, "starts_trained": self._starts_trained}

    @property
    def _decides(self) -> list[str]:
        return [self._evaluation, self._metric, *self._ties]

    def join(self, label: str, tags: TagOwners) -> None:
        """Learn what the metrics of the list's evaluators say."""
        self._tags = tags

    def on_action_start(self, state: ActionState) -> None:
        """Forget an earlier run; see which values are good."""
        self._state = state
        self._forget()
        directions = self._tags.higher_is_better.get(self._evaluation)
        is_highest = self._best_is == "highest"
        if self._best_is is None:
            is_highest = higher_is_better(self._metric, directions, "EarlyStoppingCallback")
        self._signs = {self._metric: -1.0 if is_highest else 1.0}
        for tag in self._ties:
            self._signs[tag] = -1.0 if higher_is_better(tag, directions, "EarlyStoppingCallback") else 1.0

    def on_evaluation_end(self, state: ActionState) -> None:
        """Count it."""
        result = state.evaluation
        if result is None or result.name != self._evaluation or result.step <= self._counted_step:
            return
        if not result.step and not self._starts_trained:
            return
        rank = [_finite(result.values.get(tag), sign) for tag, sign in self._signs.items()]
        if math.isfinite(rank[0]) and (self._best is None or rank < self._best):
            self._best, self._best_step, self._num_worse = rank, result.step, 0
        elif result.step:
            self._num_worse += 1
        self._counted_step = result.step
        self._stop_if_due()

    def state_dict(self) -> Mapping[str, object]:
        """The best values, and how many evaluations have not been better since."""
        best = None if self._best is None else [value if math.isfinite(value) else None for value in self._best]
        counts = {"best_step": self._best_step, "num_worse": self._num_worse, "counted_step": self._counted_step}
        return {"decides": self._decides, "best": best, **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting, unless another value decides now; stop where the run had stopped."""
        if state.get("decides") != self._decides:
            return
        best = state["best"]
        self._best = None if best is None else [math.inf if value is None else float(value) for value in best]
        self._best_step, self._num_worse = int(state["best_step"]), int(state["num_worse"])
        self._counted_step = int(state["counted_step"])
        self._stop_if_due()

    def _stop_if_due(self) -> None:
        if self._num_worse < self._patience:
            return
        evaluations = counted(self._num_worse, "evaluation")
        best = "" if self._best is None else f" than at step {self._best_step}"
        assert self._state is not None, "a run has started"
        self._state.request_stop(
            f"{self._metric} of {self._evaluation} no better{best} in {evaluations} (patience {self._patience})",
            is_of_all_ranks=True,
        )


def _finite(value: object, sign: float) -> float:
    return sign * value if isinstance(value, (int, float)) and math.isfinite(value) else math.inf
