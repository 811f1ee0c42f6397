"""WandbTracker: a run at Weights & Biases. The package is optional; ``WandbRun`` imports it."""

from __future__ import annotations

from pathlib import Path

from nemo_lite.core.callbacks.wandb_loggers import WandbRun
from nemo_lite.core.tracking.records import FAILED, Record, Tracker, numbers_of


class WandbTracker(Tracker):
    """Records arguments, training steps and evaluations; a run that the script has begun is used.

    Where and as whom is up to the package: ``wandb login``, ``WANDB_MODE=offline``, ``WANDB_ENTITY``.

    Args:
        project: the project's name.
        name: the run's name.
        folder: where the package keeps its files; by default it decides.

    Raises:
        UsageError: the package is not installed.
    """

    def __init__(self, project: str | None = None, name: str | None = None, folder: str | Path | None = None) -> None:
        self._run = WandbRun("WandbTracker", name, project, folder=folder)
        self._exit_code = 0

    def write(self, record: Record) -> None:
        """Record what has numbers; the start gives the hyperparameters."""
        if record["kind"] == "start":
            self._run.begin({key: value for key, value in record.items() if key not in ("kind", "time")})
        if record["kind"] == "end":
            self._exit_code = int(record["reason"] == FAILED)
        if numbers := numbers_of(record):
            self._run.log(numbers, record["step"])

    def close(self) -> None:
        """End the run, if it was begun here."""
        self._run.finish(self._exit_code)
