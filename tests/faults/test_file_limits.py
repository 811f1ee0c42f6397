"""The promises of test_full_disks.py on machines without root: the system refuses to let files grow (RLIMIT_FSIZE).

Each write beyond the limit fails with EFBIG, in whatever library makes it. A file that is small enough still fits.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from toys.faulty_run import CHECKPOINTS, Mse, Net, Points, lives, resumed_at, train
from toys.ranks import Finished, Rank
from toys.run_folder import make_run

import nemo_lite as nemo
from nemo_asr.corpora import synth
from nemo_asr.scoring.report.page import try_report
from nemo_lite.base.errors import reported_to_user
from nemo_lite.core.callbacks import TrackingCallback
from nemo_lite.core.trackers import MetricsFile, TensorboardTracker, Trackers, read_metrics

STEPS, FULL_AT, FREE_AT = 12, 4, 8


@contextmanager
def files_of(num_bytes: int) -> Iterator[None]:
    """Inside, no file of this process grows beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def in_process(function: Any, *args: Any) -> Finished:
    return Rank({}, function, args).wait(time.perf_counter() + 60)


def save(folder: Path) -> None:
    train(folder, steps=6)
    with reported_to_user("train.py"), files_of(2500):
        train(folder, steps=21, checkpoints_to_keep=100, tells=False)


def test_a_checkpoint_that_does_not_fit_is_one_line_and_the_one_before_is_intact(tmp_path):
    end = in_process(save, tmp_path)
    assert (end.code, end.err.count("\n")) == (2, 1), end.err
    assert end.err.startswith(f"train.py: error: {tmp_path}/{CHECKPOINTS}")
    assert "File too large" in end.err
    again = lives(tmp_path, steps=9)
    assert (again.code, resumed_at(tmp_path)) == (0, 6), again.err


class FilesAreLimited(nemo.NeMoCallback):
    """From one step on files do not grow, from another on they do."""

    def on_step_end(self, state: Any) -> None:
        if state.step == FULL_AT:
            self.limit = files_of(1000)
            self.limit.__enter__()
        if state.step == FREE_AT:
            self.limit.__exit__(None, None, None)


def log(folder: Path, limited: bool) -> dict[str, Any]:
    where = {"log_dir": folder / "run", "create_tb_writer": True, "add_time_to_log_dir": False}
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=5, **where)
    trackers = Trackers([MetricsFile(folder / "run/metrics.jsonl"), TensorboardTracker(factory.tb_writer)])
    net, (x, y) = Net(), Points()()

    class Wordy(nemo.NeMoCallback):
        def on_step_end(self, state: Any) -> None:
            nemo.logging.info("step %d %s", state.step, "x" * 600)
            factory.tb_writer.add_text("note", "y" * 600, state.step)
            factory.tb_writer.flush()

    callbacks = [*([FilesAreLimited()] if limited else []), TrackingCallback(trackers, step_freq=1), Wordy()]
    params = {"lr": 0.05, "max_steps": STEPS}
    factory.train([Mse()(out=net(x=x), target=y)], "adam_w", params, callbacks=callbacks)
    return {name: value.tolist() for name, value in net.state_dict().items()}


def test_a_log_records_and_curves_that_cannot_grow_warn_once_and_go_on_when_they_can(tmp_path):
    folders = [tmp_path / name for name in ("limited", "free")]
    for folder in folders:
        folder.mkdir()
    limited, free = in_process(log, folders[0], True), in_process(log, folders[1], False)
    assert (limited.code, free.code, limited.result) == (0, 0, free.result), limited.err
    assert [limited.err.count(name) for name in ("log_globalrank", "metrics.jsonl", "tfevents")] == [1, 1, 1]
    assert "Traceback" not in limited.err
    steps = {record["step"] for record in read_metrics(folders[0] / "run/metrics.jsonl") if record["kind"] == "train"}
    assert {1, 2, 3, STEPS - 1, STEPS} <= steps
    text = next((folders[0] / "run").glob("log_*")).read_text()
    assert "step 2 x" in text
    assert f"step {STEPS - 1} x" in text


def report(run: Path) -> str:
    with files_of(4096):
        return str(try_report(run))


def test_a_report_that_does_not_fit_is_a_warning_and_the_one_before_stays(tmp_path):
    run = make_run(tmp_path / "run", num_rows=3)
    (run / "report.html").write_text("the one before")
    end = in_process(report, run)
    assert (end.code, end.result) == (0, "None")
    assert "No report was written" in end.err
    assert (run / "report.html").read_text() == "the one before"


def make_corpus(folder: Path, num_bytes: int) -> None:
    with files_of(num_bytes):
        synth.main([str(folder), "--train", "12", "--val1", "1", "--val2", "1"], "synth")


@pytest.mark.parametrize("num_bytes", [2_000, 10_000])
def test_a_corpus_that_does_not_fit_is_one_line_and_nothing_is_left(tmp_path, num_bytes):
    end = in_process(make_corpus, tmp_path / "corpus", num_bytes)
    assert (end.code, end.err.count("\n")) == (2, 1), end.err
    assert end.err.startswith(f"synth: error: {tmp_path}/")
    assert list(tmp_path.iterdir()) == []
