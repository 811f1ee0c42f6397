"""Trackers: records, numbers by tag, the file of metrics, services, lines in the terminal."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from toys.fake_action_state import Writer
from toys.recorded_run import record_run

from nemo_lite.base.errors import UsageError
from nemo_lite.core.trackers import (
    MetricsFile,
    MlflowTracker,
    TensorboardTracker,
    TerminalLines,
    Tracker,
    Trackers,
    WandbTracker,
    duration_text,
    number,
    numbers_of,
    percent,
    read_metrics,
    scientific,
)

# Trackers: each gets every record, one that fails is left out; the numbers of a record by tag.


class Kept(Tracker):
    """Keeps what it gets."""

    def __init__(self, problem=None):
        self.records, self.num_closed, self.problem = [], 0, problem

    def write(self, record):
        if self.problem is not None:
            raise self.problem
        self.records.append(record)

    def close(self):
        self.num_closed += 1
        if self.records[-1:] and self.records[-1]["kind"] == "poison":
            raise ConnectionError("gone")


def test_every_tracker_gets_kind_time_and_fields():
    first, second = Kept(), Kept()
    trackers = Trackers([first, second])
    trackers.record("checkpoint", step=7, epoch=1, path="x")
    trackers.close()
    trackers.close()
    (record,) = first.records
    assert second.records == [record]
    assert [*record] == ["kind", "time", "step", "epoch", "path"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record["time"])
    assert first.num_closed == 1


@pytest.mark.parametrize(
    ("problem", "told"), [(OSError(28, "No space left"), "No space left"), (ValueError(), "ValueError")]
)
def test_a_tracker_that_fails_is_warned_of_once_and_left_out(problem, told, capsys):
    broken, kept = Kept(problem), Kept()
    trackers = Trackers([broken, kept])
    for step in range(3):
        trackers.record("train", step=step)
    trackers.close()
    assert [record["step"] for record in kept.records] == [0, 1, 2]
    (warning,) = capsys.readouterr().err.splitlines()
    assert re.search(f"Kept takes no more records of this run: .*{told}", warning)
    assert broken.num_closed == 0


def test_a_tracker_that_cannot_be_closed_does_not_keep_others_open(capsys):
    broken, kept = Kept(), Kept()
    trackers = Trackers([broken, kept])
    trackers.record("poison")
    trackers.close()
    assert capsys.readouterr().err.count("Kept could not be closed: gone") == 2
    assert kept.num_closed == 1


def test_numbers_have_one_tag_wherever_they_go():
    train = {"kind": "train", "time": "t", "step": 3, "epoch": 1, "loss": 0.5, "lr": 0.1, "amount_per_second": 5.0}
    train |= {"amount_unit": "items", "data_wait_share": 0.25, "step_seconds": 2.0}
    assert numbers_of(train) == {
        "loss": 0.5,
        "param/lr": 0.1,
        "misc/epoch": 1.0,
        "misc/step_time": 2.0,
        "misc/amount_per_second": 5.0,
        "misc/data_wait_share": 0.25,
    }
    evaluation = {"kind": "evaluation", "time": "t", "step": 3, "set": "dev", "wer": 0.5, "note": "x", "num_items": 4}
    assert numbers_of({**evaluation, "digest": "d", "seconds": 1.5}) == {"dev/wer": 0.5, "dev/seconds": 1.5}
    assert numbers_of({"kind": "checkpoint", "step": 3}) == {}


# metrics.jsonl: one JSON object a line, readable after a kill, and by any reader of JSON.


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


def test_a_name_that_is_no_utf_8_is_kept_in_a_record(tmp_path):
    name, path = os.fsdecode(b"d\xff/train.json"), tmp_path / "metrics.jsonl"
    MetricsFile(path).write({"kind": "start", "arguments": {"train_dataset": name}, "path": Path(name)})
    (record,) = read_metrics(path)
    assert record == {"kind": "start", "arguments": {"train_dataset": name}, "path": name}


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


# TensorboardTracker: training steps become curves.


def test_training_steps_are_written_and_evaluations_left_to_their_callback():
    writer = Writer()
    tracker = TensorboardTracker(writer)
    train = {"kind": "train", "time": "t", "step": 25, "epoch": 2, "loss": 0.5, "lr": 0.1, "amount_per_second": 5.0}
    tracker.write({**train, "amount_unit": "items", "data_wait_share": 0.25, "step_seconds": 2.0})
    tracker.write({"kind": "evaluation", "step": 25, "set": "dev", "wer": 0.5})
    tracker.write({"kind": "end", "step": 25})
    assert writer.of("loss") == [(0.5, 25)]
    assert writer.of("param/lr") == [(0.1, 25)]
    assert writer.of("misc/step_time") == [(2.0, 25)]
    assert len(writer.scalars) == 6
    tracker.close()
    assert writer.num_flushes == 1


# WandbTracker: against a fake of the package's signatures, and offline against the package where it is installed.


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


# MlflowTracker: against a fake of the package's signatures, and a store of files where it is installed.


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


def test_a_run_that_failed_ends_as_failed_mlflow_tracker(mlflow):
    record_run(MlflowTracker(), reason="failed")
    assert mlflow.calls[-1] == ("end", "FAILED")


def test_a_missing_package_is_an_error_with_the_install_line_mlflow_tracker(monkeypatch):
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


# TerminalLines: what a person reads of a run.


TRAIN = {
    **{"kind": "train", "step": 100, "epoch": 3, "loss": 29.6512345, "lr": 0.012, "amount_per_second": 243.7},
    **{"amount_unit": "audio-s", "data_wait_share": 0.0123, "step_seconds": 0.4},
}


def evaluation(step, wer, name="dev-clean", **more):
    values = {"loss": 3.5, "wer": wer, "cer": 0.0421, "num_items": 2703, "digest": "ab", "seconds": 1.5, **more}
    return {"kind": "evaluation", "step": step, "set": name, **values}


def end(reason="finished"):
    return {"kind": "end", "step": 145, "epoch": 4, "seconds": 250.0, "reason": reason}


@pytest.fixture
def told(capsys):
    """The lines that records give."""

    def tell(*records, **options):
        terminal = TerminalLines(rates=("wer", "cer"), **options)
        for record in records:
            terminal.write(record)
        return capsys.readouterr().out.splitlines()

    return tell


def test_a_step_is_one_line(told):
    start = {"kind": "start", "total_steps": 145}
    line = "epoch 3  step 100/145  loss 29.65  lr 1.2e-2  244 audio-s/s  data 1 %"
    assert told(start, TRAIN) == [line]
    assert told(TRAIN) == [line.replace("/145", "")]


def test_the_parts_of_a_loss_are_told_behind_it_and_are_curves_of_their_own(told):
    parts = {**TRAIN, "loss_ctc": 40.0, "loss_attention": 2.125}
    assert told(parts) == [
        "epoch 3  step 100  loss 29.65 (ctc 40, attention 2.125)  lr 1.2e-2  244 audio-s/s  data 1 %"
    ]
    numbers = numbers_of(parts)
    assert {name: numbers[name] for name in numbers if name.startswith("loss")} == {
        "loss": 29.6512345,
        "loss_ctc": 40.0,
        "loss_attention": 2.125,
    }


def test_from_the_second_line_on_the_time_left_is_told(told):
    start, last = {"kind": "start", "total_steps": 145}, {**TRAIN, "step": 145}
    lines = told(start, {**TRAIN, "step": 1}, TRAIN, {**TRAIN, "step_seconds": 100.0}, last)
    assert [line.partition("data 1 %")[2] for line in lines] == ["", "  18.0 s left", "  1 h 15 min left", ""]
    assert not any("left" in line for line in told(TRAIN, TRAIN)), "the end is not known"


def test_an_evaluation_is_one_line_with_the_best_one_before(told):
    assert told(evaluation(0, 1.0), evaluation(900, 0.121), evaluation(1000, 0.124)) == [
        "dev-clean  WER 100.0 %  CER 4.2 %  n=2703",
        "dev-clean  WER 12.1 % (best)  CER 4.2 %  n=2703",
        "dev-clean  WER 12.4 % (best 12.1 % at 900)  CER 4.2 %  n=2703",
    ]


def test_a_first_evaluation_that_is_worse_than_untrained_weights_is_the_best_of_training(told):
    lines = told(evaluation(0, 1.0), evaluation(10, 1.4), evaluation(20, 1.5), evaluation(30, 0.9), end())
    assert [line.partition("  CER")[0] for line in lines[1:4]] == [
        "dev-clean  WER 140.0 % (best of training)",
        "dev-clean  WER 150.0 % (best of training 140.0 % at 10)",
        "dev-clean  WER 90.0 % (best)",
    ]


def test_a_run_that_starts_from_a_trained_model_can_have_its_best_step_at_the_start(told):
    model = {"kind": "model", "step": 0, "set": "dev-clean", "metric": "wer", "value": 0.0, "path": "RUN/model"}
    lines = told(evaluation(0, 0.0), model, evaluation(12, 0.04), end(), starts_trained=True)
    assert lines[1] == "dev-clean  WER 4.0 % (best 0.0 % at 0)  CER 4.2 %  n=2703"
    assert lines[-1] == "Best model (WER 0.0 % of dev-clean, step 0: training has not made it better): RUN/model"


def test_each_set_has_a_best_of_its_own_and_the_first_of_equals_stays(told):
    lines = told(
        evaluation(1, 0.2), evaluation(1, 0.5, "dev-other"), evaluation(2, 0.2), evaluation(2, 0.4, "dev-other")
    )
    assert lines[2:] == [
        "dev-clean  WER 20.0 % (ties best at 1)  CER 4.2 %  n=2703",
        "dev-other  WER 40.0 % (best)  CER 4.2 %  n=2703",
    ]


def test_of_equal_rates_the_other_rate_and_the_loss_decide_as_for_the_best_model(told):
    lines = told(evaluation(1, 0.2), evaluation(2, 0.2, cer=0.04), evaluation(3, 0.2, cer=0.04, loss=3.6))
    assert [line.partition("WER ")[2] for line in lines[1:]] == [
        "20.0 % (best)  CER 4.0 %  n=2703",
        "20.0 % (ties best at 2)  CER 4.0 %  n=2703",
    ]


def test_the_duration_of_a_run_is_that_of_all_its_starts(told):
    assert told(end(), earlier_seconds=3600.0) == [
        "Done: 145 steps, 4 epochs in 1 h 4 min (4 min 10 s of it since the last start)"
    ]


def test_a_run_that_goes_on_knows_what_was_the_best_before(told):
    model = {"kind": "model", "step": 900, "set": "dev-clean", "metric": "wer", "value": 0.121, "path": "RUN/model"}
    earlier = [evaluation(900, 0.121), evaluation(1000, 0.3), evaluation(900, 0.1, "gone"), model]
    assert told(evaluation(1000, 0.3), evaluation(1100, 0.2), end(), earlier=earlier) == [
        "dev-clean  WER 30.0 % (best 12.1 % at 900)  CER 4.2 %  n=2703",
        "dev-clean  WER 20.0 % (best 12.1 % at 900)  CER 4.2 %  n=2703",
        "Done: 145 steps, 4 epochs in 4 min 10 s",
        "  dev-clean  WER 20.0 % (best 12.1 % at 900)  CER 4.2 %",
        "Best model (WER 12.1 % of dev-clean, step 900): RUN/model",
    ]


def test_a_run_that_starts_anew_knows_nothing_of_an_older_one(told):
    assert told(evaluation(0, 1.0), evaluation(100, 0.5), earlier=[evaluation(900, 0.121)]) == [
        "dev-clean  WER 100.0 %  CER 4.2 %  n=2703",
        "dev-clean  WER 50.0 % (best)  CER 4.2 %  n=2703",
    ]


def test_the_summary_of_a_run_that_a_signal_stopped_ends_with_a_line_of_its_own(told):
    assert told(end("SIGTERM"), if_interrupted="Report so far: x")[-1] == "Report so far: x"
    for reason in ("finished", "wer of dev no better in 3 evaluations"):
        assert "Report so far: x" not in told(end(reason), if_interrupted="Report so far: x")


def test_the_rate_that_counts_comes_first(capsys):
    terminal = TerminalLines(rates=("cer", "wer"))
    terminal.write(evaluation(1, 0.2))
    assert capsys.readouterr().out == "dev-clean  CER 4.2 %  WER 20.0 %  n=2703\n"


def test_other_values_are_shown_as_they_are_and_an_infinite_rate_is_no_best(told):
    other = {"kind": "evaluation", "step": 1, "set": "points", "mse": 0.123456, "note": "x", "num_items": None}
    assert told(other, evaluation(1, float("inf"), num_items=None)) == [
        "points  mse 0.1235",
        "dev-clean  WER inf %  CER 4.2 %",
    ]


def test_the_end_is_a_summary_with_the_way_to_use_the_model(told):
    model = {"kind": "model", "step": 900, "set": "dev-clean", "metric": "wer", "value": 0.121, "path": "runs/a/model"}
    checkpoint = {"kind": "checkpoint", "step": 145, "epoch": 4, "path": "runs/a/checkpoints/checkpoint-STEP-145"}
    lines = told(
        evaluation(900, 0.121),
        model,
        evaluation(145, 0.124),
        checkpoint,
        end(),
        use="Transcribe: nemo-lite transcribe runs/a FILES",
    )
    assert lines[2:] == [
        "Done: 145 steps, 4 epochs in 4 min 10 s",
        "  dev-clean  WER 12.4 % (best 12.1 % at 900)  CER 4.2 %",
        "Last checkpoint: runs/a/checkpoints/checkpoint-STEP-145",
        "Best model (WER 12.1 % of dev-clean, step 900): runs/a/model",
        "Transcribe: nemo-lite transcribe runs/a FILES",
    ]


def test_the_summary_shows_the_intervals_of_the_rates(told):
    model = {"kind": "model", "step": 900, "set": "dev-clean", "metric": "wer", "value": 0.121, "path": "runs/a/model"}
    ends = {"wer_low": 0.104, "wer_high": 0.1392, "cer_low": 0.0, "cer_high": 0.009}
    lines = told(
        evaluation(900, 0.121, **ends),
        model,
        evaluation(145, 0.124, **{**ends, "wer_low": 0.11, "cer_high": None}),
        end(),
    )
    assert lines[:2] == [
        "dev-clean  WER 12.1 %  CER 4.2 %  n=2703",
        "dev-clean  WER 12.4 % (best 12.1 % at 900)  CER 4.2 %  n=2703",
    ]
    assert lines[3:] == [
        "  dev-clean  WER 12.4 % [11.0 to 13.9] (best 12.1 % at 900)  CER 4.2 %",
        "  [...]: the 95 % interval of a rate, how far other utterances of this kind would move it",
        "Best model (WER 12.1 % [10.4 to 13.9] of dev-clean, step 900): runs/a/model",
    ]


def test_a_model_that_no_set_chose_is_the_last(told):
    model = {"kind": "model", "step": 145, "set": "", "metric": "wer", "value": None, "path": "runs/a/model"}
    assert told(model, end())[1:] == ["Model of step 145: runs/a/model"]


def test_a_run_that_saved_nothing_has_nothing_to_use(told):
    assert told(end(), use="Transcribe: ...") == ["Done: 145 steps, 4 epochs in 4 min 10 s"]


def test_a_run_that_was_stopped_says_why_and_one_that_failed_has_no_summary(told):
    assert told(end("no progress")) == ["Stopped: no progress; 145 steps, 4 epochs in 4 min 10 s"]
    assert told(end("failed")) == []
    assert told({**end(), "step": 1, "epoch": 1}) == ["Done: 1 step, 1 epoch in 4 min 10 s"]


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (number(29.6512345), "29.65"),
        (number(1234.56), "1235"),
        (number(0.000123456), "0.0001235"),
        (number(45678.9, 3), "45679"),
        (number(float("nan")), "nan"),
        (scientific(0.012), "1.2e-2"),
        (scientific(0.0), "0.0e0"),
        (scientific(2.5), "2.5e0"),
        (percent(0.1239), "12.4 %"),
        (percent(0.00351), "0.35 %"),
        (percent(0.0), "0.0 %"),
        (duration_text(3.21), "3.2 s"),
        (duration_text(250), "4 min 10 s"),
        (duration_text(7501), "2 h 5 min"),
        (duration_text(59.97), "1 min 0 s"),
    ],
)
def test_numbers_are_short(shown, text):
    assert shown == text
