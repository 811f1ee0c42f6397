"""MlflowTracker: against a fake of the package's signatures, and a store of files where it is installed."""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

import pytest
from toys.recorded_run import record_run

from nemo_lite.core.trackers import MlflowTracker
from nemo_lite.errors import UsageError


@pytest.fixture
def mlflow(monkeypatch):
    """A fake package that records its calls."""
    fake: Any = types.ModuleType("mlflow")
    fake.calls = []
    fake.set_experiment = lambda experiment_name: fake.calls.append(("experiment", experiment_name))
    fake.start_run = lambda *, run_name: fake.calls.append(("run", run_name))
    fake.log_params = lambda params: fake.calls.append(("params", params))
    fake.log_metrics = lambda metrics, step: fake.calls.append(("metrics", step, metrics))
    fake.end_run = lambda status: fake.calls.append(("end", status))
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    return fake


def test_a_run_has_parameters_steps_and_evaluations_and_ends(mlflow):
    record_run(MlflowTracker("speech", "mine"), long="x" * 9000)
    experiment, begun, (_, params), train, evaluated, ended = mlflow.calls
    assert (experiment, begun, ended) == (("experiment", "speech"), ("run", "mine"), ("end", "FINISHED"))
    assert params["arguments.lr"] == "0.1"
    assert (params["world_size"], len(params["arguments.long"])) == ("1", 500)
    assert train[1:] == (1, {"loss": 0.5, "param/lr": 0.1, "misc/epoch": 1.0, **train[2]})
    assert evaluated == ("metrics", 1, {"dev/wer": 0.25, "dev/seconds": 1.0})


def test_a_run_that_failed_ends_as_failed(mlflow):
    record_run(MlflowTracker(), reason="failed")
    assert mlflow.calls[-1] == ("end", "FAILED")


def test_a_missing_package_is_an_error_with_the_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UsageError, match="MlflowTracker: MLflow is not installed; pip install mlflow"):
        MlflowTracker()


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")
def test_the_package_itself_stores_a_run_in_files(monkeypatch, tmp_path, capfd):
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(tmp_path.as_uri())
    try:
        record_run(MlflowTracker("speech", "mine"))
    finally:
        mlflow.set_tracking_uri(before)
    (stored,) = tmp_path.glob("*/*/metrics/dev/wer")
    assert stored.read_text().split()[1:] == ["0.25", "1"]
    assert "takes no more records" not in capfd.readouterr().err
