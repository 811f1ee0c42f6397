"""AveragedModelCallback: a model folder with averaged weights, written at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from nemo_asr.trained.best import BestModelCallback
from nemo_lite import EvaluatorCallback, NeMoCallback
from nemo_lite.core.action_state import ActionState
from nemo_lite.errors import UsageError
from nemo_lite.utils import logging


class AveragedModelCallback(NeMoCallback):
    """At the end of a training, evaluates the averaged weights and writes them as a model of their own.

    The run's weights, checkpoints and best model stay as they are. Statistics of batch norm are estimated again on the
    training data. Put it last in the list of callbacks, so that the last checkpoint has been saved. A run that a signal
    interrupts writes nothing.

    Args:
        writer: writes the model folder; it ranks by the first of ``evaluators``, by the name it has there.
        evaluators: evaluate the averaged weights; not in the list of callbacks themselves.
        last: average so many of the newest checkpoints; 0: take the moving average (``ema_decay``).
        checkpoints: the folder of the checkpoints.

    Raises:
        UsageError: fewer than two checkpoints to average; when training ends, no moving average.
        CheckpointError: when training ends, no checkpoint to average.
    """

    def __init__(
        self,
        writer: BestModelCallback,
        evaluators: Sequence[EvaluatorCallback],
        last: int = 0,
        checkpoints: str | Path = "",
    ) -> None:
        if last < 0 or last == 1:
            wanted = "2 or more checkpoints, or 0 for the moving average"
            raise UsageError("that is no average", place="AveragedModelCallback", got=f"last={last}", wanted=wanted)
        self._writer, self._evaluators, self._last, self._checkpoints = writer, evaluators, last, checkpoints
        self._has_stepped = False

    def fingerprint(self) -> Mapping[str, object]:
        """What is averaged: all ranks take part."""
        return {"average_last": self._last}

    def on_action_start(self, state: ActionState) -> None:
        """See that the folder can be written to."""
        self._has_stepped = False
        self._writer.on_action_start(state)

    def on_epoch_start(self, state: ActionState) -> None:
        """Note where the run starts."""
        self._writer.on_epoch_start(state)

    def on_step_end(self, state: ActionState) -> None:
        """Note that there are new weights."""
        self._has_stepped = True
        self._writer.on_step_end(state)

    def on_evaluation_end(self, state: ActionState) -> None:
        """Note the rates of the averaged weights."""
        self._writer.on_evaluation_end(state)

    def on_action_end(self, state: ActionState) -> None:
        """Average, evaluate, write."""
        if state.interrupted_by or state.averaging is None:
            return
        with state.averaging.applied(self._last, self._checkpoints) as words:
            state.on_first(lambda: logging.info("Averaged: %s", words))
            for evaluator in self._evaluators:
                evaluator.evaluate_now(state, state.step + self._has_stepped)
            self._writer.on_action_end(state)
