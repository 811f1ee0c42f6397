"""MlflowTracker: a run in MLflow. The package is optional: it is imported when a tracker is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemo_lite.core.tracking.records import FAILED, Record, Tracker, numbers_of
from nemo_lite.errors import UsageError

_LONGEST_PARAMETER = 500  # characters that every store of MLflow takes


class MlflowTracker(Tracker):
    """Records arguments, training steps and evaluations; where is up to the package: ``MLFLOW_TRACKING_URI``.

    Args:
        experiment: the experiment's name.
        name: the run's name.

    Raises:
        UsageError: the package is not installed.
    """

    def __init__(self, experiment: str | None = None, name: str | None = None) -> None:
        try:
            import mlflow
        except ImportError:
            raise UsageError("MLflow is not installed", place="MlflowTracker", remedy="pip install mlflow") from None
        self._mlflow: Any = mlflow
        self._experiment, self._name = experiment, name
        self._status = "FINISHED"

    def write(self, record: Record) -> None:
        """Record what has numbers; the start gives the parameters."""
        if record["kind"] == "start":
            if self._experiment is not None:
                self._mlflow.set_experiment(self._experiment)
            self._mlflow.start_run(run_name=self._name)
            self._mlflow.log_params(_parameters(record))
        if record["kind"] == "end":
            self._status = "FAILED" if record["reason"] == FAILED else "FINISHED"
        if numbers := numbers_of(record):
            self._mlflow.log_metrics(numbers, step=record["step"])

    def close(self) -> None:
        """End the run."""
        self._mlflow.end_run(self._status)


def _parameters(record: Record) -> dict[str, str]:
    """The fields of a record as short texts, those of a mapping in it by their own names."""
    fields: dict[str, Any] = {}
    for key, value in record.items():
        if key not in ("kind", "time"):
            fields.update(
                {f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, Mapping) else {key: value}
            )
    return {key: str(value)[:_LONGEST_PARAMETER] for key, value in fields.items()}
