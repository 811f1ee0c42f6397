"""WandbTracker: against a fake of the package's signatures, and offline against the package where it is installed."""

from __future__ import annotations

import importlib.util
import re
import sys

import pytest
from toys.recorded_run import record_run

from nemo_lite.core.trackers import WandbTracker
from nemo_lite.errors import UsageError


def test_a_run_has_hyperparameters_steps_and_evaluations_and_ends(wandb, tmp_path):
    record_run(WandbTracker("speech", "mine", tmp_path))
    assert wandb.inits == [{"project": "speech", "name": "mine", "dir": str(tmp_path)}]
    assert wandb.hyperparameters == [{"arguments": {"lr": 0.1}, "precision": "O0", "world_size": 1, "total_steps": 2}]
    assert [(step, sorted(values)[0]) for step, values in wandb.logged] == [(1, "loss"), (1, "dev/seconds")]
    assert wandb.logged[1][1]["dev/wer"] == 0.25
    assert wandb.finished == [0]


def test_a_run_that_failed_ends_as_failed(wandb):
    record_run(WandbTracker(), reason="failed")
    assert wandb.finished == [1]


def test_a_run_that_the_script_has_begun_is_left_open(wandb):
    wandb.init(project="own")
    record_run(WandbTracker("speech"))
    assert wandb.inits == [{"project": "own"}]
    assert wandb.finished == []


def test_a_missing_package_is_an_error_with_the_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match="WandbTracker: Weights & Biases is not installed; pip install wandb"):
        WandbTracker()


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_the_package_itself_takes_a_run_offline(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("WANDB_MODE", "offline")
    record_run(WandbTracker("speech", "mine", tmp_path))
    assert len([*tmp_path.glob("wandb/offline-run-*/*.wandb")]) == 1
    told = capfd.readouterr().err
    assert re.search(r"dev/wer\W+0\.25", told)
    assert "takes no more records" not in told
