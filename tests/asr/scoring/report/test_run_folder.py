"""From a folder to what a report shows."""

import base64

import msgspec
import numpy as np
import pytest
from toys.run_folder import make_run, records, row, write_lines

from nemo_asr.run.calibration import Calibration, CalibrationRecord, MeasuredSet, reliability
from nemo_asr.scoring.report.page import write_report
from nemo_asr.scoring.report.run_folder import MAX_TEXT, read_run, reliability_charts
from nemo_lite.base.errors import DataError, UsageError


def test_a_run_is_read_whole(tmp_path):
    report = read_run(make_run(tmp_path / "Toy"))
    assert report.title == "Toy"
    assert dict(report.facts) == {
        "started": "2026-11-22 06:00:00 UTC",
        "precision": "O0",
        "processes": "1",
        "versions": "nemo_lite 0.1.0, torch 2.13.0",
        "steps": "100, epoch 4",
        "duration": "6 min 44 s",
        "ended": "finished",
        "speed": "255 audio-s a second (median)",
        "best model": "model: step 100, dev WER 25.00%",
    }
    assert report.notes == []
    assert [found.name for found in report.sets] == ["dev", "other"]
    assert [chart.title for chart in report.charts] == [
        *("Loss", "Word error rate", "Character error rate", "Learning rate"),
    ]
    assert [line.name for line in report.charts[0].lines] == ["training", "dev", "other"]
    assert dict(report.arguments) == {
        **{"model_config": "toy.yaml", "eval_datasets": "dev.json", "lr": "0.02", "num_epochs": "4"},
    }
    assert report.configuration == [("toy_2026-11-22_06-00-00.yaml", "model: Toy\nlabels: [a, b]\n")]


def test_the_history_of_a_set_has_its_last_and_its_best_rate(tmp_path):
    lines = [{"kind": "evaluation", "set": "dev", "step": step, "wer": wer, "cer": wer / 2} for step, wer in WERS]
    write_lines(tmp_path / "metrics.jsonl", lines)
    (history,) = read_run(tmp_path).history
    assert (history.num_evaluations, history.last_step, history.last) == (3, 30, {"wer": 0.3, "cer": 0.15})
    assert (history.best_step, history.best["wer"]) == (20, 0.2)


@pytest.mark.parametrize(
    ("arguments", "best"),
    [
        ({}, (20, {"wer": 0.25, "cer": 0.25})),
        ({"init_from": "runs/Base"}, (0, {"wer": 0.0, "cer": 0.25})),
        ({"eval_metric": "cer"}, (10, {"cer": 0.125, "wer": 0.5})),
    ],
    ids=["from nothing", "from a model", "by characters"],
)
def test_the_best_step_is_that_of_the_log_and_of_the_best_model(tmp_path, arguments, best):
    rates = [(0, 0.0, 0.25), (10, 0.5, 0.125), (20, 0.25, 0.25), (30, 0.25, 0.5)]
    lines = [{"kind": "evaluation", "set": "dev", "step": step, "wer": wer, "cer": cer} for step, wer, cer in rates]
    write_lines(tmp_path / "metrics.jsonl", [{"kind": "start", "arguments": arguments}, *lines])
    report = read_run(tmp_path)
    (history,) = report.history
    assert (history.best_step, history.best) == best
    assert list(history.best) == list(best[1]), "the one that counts comes first"
    charts = ["Word error rate", "Character error rate"]
    assert [chart.title for chart in report.charts] == (charts if report.metric == "wer" else charts[::-1])


WERS = [(10, 0.5), (20, 0.2), (30, 0.3)]


def test_an_evaluation_s_folder_has_sets_alone(tmp_path):
    for name in ("test", "old"):
        write_lines(tmp_path / f"{name}.transcripts.jsonl", [row(1, "one two", "one")])
    report = read_run(tmp_path, sets=["test"], facts={"model": "runs/A step 12"})
    assert [found.name for found in report.sets] == ["test"]
    assert report.facts == [("model", "runs/A step 12")]
    assert (report.charts, report.history, report.notes) == ([], [], [])


def test_what_is_not_as_it_should_be_is_said(tmp_path):
    write_lines(tmp_path / "metrics.jsonl", [{"kind": "start"}, *records()[:-1]])
    assert read_run(tmp_path).notes == [
        "The run has not ended, or was killed: metrics.jsonl has no end.",
        "The run was started 2 times; arguments and versions are those of the last start.",
    ]


def test_of_several_copies_of_a_configuration_the_newest_is_shown(tmp_path):
    make_run(tmp_path)
    (tmp_path / "toy_2026-11-23_06-00-00.yaml").write_text("model: Newer\n")
    (tmp_path / "more.yaml").write_text("x" * (MAX_TEXT + 1))
    shown = dict(read_run(tmp_path).configuration)
    assert list(shown) == ["more.yaml", "toy_2026-11-23_06-00-00.yaml"]
    assert len(shown["more.yaml"]) < MAX_TEXT + 10


def test_pictures_of_dags_are_taken_in_and_huge_ones_left_out(tmp_path):
    make_run(tmp_path)
    for name in ("evaluation_dev", "training"):
        (tmp_path / f"{name}.svg").write_text(f"<svg>{name}</svg>")
    (tmp_path / "huge.svg").write_text("<svg>" + " " * 600_000 + "</svg>")
    dags = read_run(tmp_path).dags
    assert [picture.name for picture in dags] == ["training", "evaluation_dev"]
    assert base64.b64decode(dags[0].url.partition(",")[2]) == b"<svg>training</svg>"


def test_a_folder_with_nothing_to_report_is_refused(tmp_path):
    wanted = r"there is nothing to report: wanted metrics\.jsonl or \*\.transcripts\.jsonl; give the folder of a run"
    with pytest.raises(UsageError, match=wanted):
        read_run(tmp_path)
    with pytest.raises(UsageError, match="nothing to report"):
        read_run(tmp_path / "not there")


def test_a_damaged_file_of_transcripts_is_named(tmp_path):
    (tmp_path / "dev.transcripts.jsonl").write_text("[]\n")
    with pytest.raises(DataError, match=r"dev\.transcripts\.jsonl:1: the line is not a transcript"):
        read_run(tmp_path)


@pytest.mark.parametrize("arguments", [["jasper.py", "--lr", 1], "jasper.py --lr 1"])
def test_arguments_may_be_a_command_line(tmp_path, arguments):
    write_lines(tmp_path / "metrics.jsonl", [{"kind": "start", "arguments": arguments}])
    assert read_run(tmp_path).arguments == [("command", "jasper.py --lr 1")]


def write_calibration(folder):
    right = np.array([True, True, False, True])
    before, after = (reliability(np.array(c), right) for c in ([0.95, 0.95, 0.95, 0.55], [0.75, 0.75, 0.75, 0.65]))
    sets = [MeasuredSet(name="dev (held out)", before=before, after=after)]
    record = CalibrationRecord(calibration=Calibration(slope=1.0, offset=0.0), sets=sets)
    (folder / "calibration.json").write_bytes(msgspec.json.encode(record))


def test_a_plot_has_what_is_measured_before_and_after_beside_what_should_be(tmp_path):
    write_calibration(tmp_path)
    (drawn,) = reliability_charts(tmp_path)
    assert (drawn.title, drawn.x_name) == ("Share of right words, dev (held out)", "confidence")
    assert [line.name for line in drawn.lines] == ["equal", "before: 32.5% off", "calibrated: 15.0% off"]
    assert [text for _, _, text in drawn.lines[1].dots] == [
        "before: 32.5% off, confidence 0.55: 100 %",
        "before: 32.5% off, confidence 0.95: 66.67 %",
    ]


def test_the_report_of_a_run_shows_the_plot(tmp_path):
    run = make_run(tmp_path / "run", num_rows=2)
    assert "Share of right words" not in write_report(run).read_text(encoding="utf-8")
    write_calibration(run)
    page = write_report(run).read_text(encoding="utf-8")
    assert "Share of right words, dev (held out)" in page
    assert page.count('text-anchor="end">confidence</text>') == 1


def test_a_folder_without_a_calibration_has_no_plot_and_a_damaged_one_is_told(tmp_path):
    assert reliability_charts(tmp_path) == []
    (tmp_path / "calibration.json").write_text("{}")
    with pytest.raises(DataError, match=r"calibration\.json: the calibration is damaged: got Object missing"):
        reliability_charts(tmp_path)
