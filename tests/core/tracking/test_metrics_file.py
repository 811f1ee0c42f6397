"""metrics.jsonl: one JSON object a line, readable after a kill, and by any reader of JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nemo_lite.core.trackers import MetricsFile, Trackers, read_metrics
from nemo_lite.errors import UsageError


def test_each_record_is_a_line_of_json_at_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    trackers = Trackers([MetricsFile(path)])
    trackers.record("start", arguments={"lr": 0.1, "run_dir": Path("a/ü"), "sets": ("x",)})
    (line,) = path.read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["arguments"] == {"lr": 0.1, "run_dir": "a/ü", "sets": ["x"]}
    trackers.record("train", loss=float("nan"), lr=float("inf"))
    train = path.read_text().splitlines()[1]
    assert '"loss": null, "lr": null' in train
    assert [record["kind"] for record in read_metrics(path)] == ["start", "train"]


def test_a_run_that_goes_on_appends_after_a_line_cut_off(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "start"}\n{"kind": "tra')
    MetricsFile(path).write({"kind": "train", "step": 1})
    MetricsFile(path).write({"kind": "train", "step": 2})
    assert [*read_metrics(path)] == [
        {"kind": "start"},
        {"kind": "train", "step": 1},
        {"kind": "train", "step": 2},
    ]


def test_a_file_that_cannot_be_written_costs_a_warning_and_not_the_run_and_goes_on_later(tmp_path, capsys):
    path = tmp_path / "gone" / "metrics.jsonl"
    trackers = Trackers([MetricsFile(path)])
    trackers.record("train", step=1)
    trackers.record("train", step=2)
    path.parent.mkdir()
    trackers.record("train", step=3)
    assert [record["step"] for record in read_metrics(path)] == [3]
    assert capsys.readouterr().err.count("metrics.jsonl: cannot be written: No such file or directory; the run ") == 1


def test_a_pipe_in_the_place_of_the_file_costs_a_warning_and_hangs_nobody(tmp_path, capsys):
    os.mkfifo(tmp_path / "metrics.jsonl")
    MetricsFile(tmp_path / "metrics.jsonl").write({"kind": "train"})
    assert "metrics.jsonl: cannot be written" in capsys.readouterr().err


def test_metrics_that_are_not_there_are_an_error_that_names_the_file(tmp_path):
    with pytest.raises(UsageError, match=r"metrics\.jsonl: the file of metrics cannot be opened \(No such file"):
        [*read_metrics(tmp_path / "metrics.jsonl")]
