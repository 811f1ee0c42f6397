"""A disk that fills while a run saves, logs, draws curves or reports, or a corpus is made: what is lost and told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toys.faulty_run import CHECKPOINTS, Mse, Net, Points, lives, resumed_at, train
from toys.full_disks import fill, small_disk, why_impossible
from toys.ranks import Rank
from toys.run_folder import make_run

import nemo_lite as nemo
from nemo_asr.corpora import synth
from nemo_asr.scoring.report.page import try_report
from nemo_lite.base.errors import reported_to_user
from nemo_lite.core.callbacks import TrackingCallback
from nemo_lite.core.trackers import MetricsFile, TensorboardTracker, Trackers, read_metrics

pytestmark = pytest.mark.slow
LEVELS = (0, 4, 12)  # kilobytes that are left
STEPS, FULL_AT, FREE_AT = 12, 4, 8


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system."""
    if why_impossible():
        pytest.skip(str(why_impossible()))
    with small_disk(tmp_path / "disk", 512) as folder:
        yield folder


def save_on(disk: Path, left: int) -> None:
    """Train on a disk that is full after the first checkpoints; as a script does."""
    train(disk, steps=6)
    filling = fill(disk, left)
    try:
        with reported_to_user("train.py"):
            train(disk, steps=21, checkpoints_to_keep=100, tells=False)
    finally:
        filling.unlink()


@pytest.mark.parametrize("left", LEVELS)
def test_a_checkpoint_that_finds_no_room_is_one_line_and_the_one_before_is_intact(disk, tmp_path, left):
    end = Rank({}, save_on, (disk, left)).wait(time.perf_counter() + 60)
    assert end.code == 2, end
    assert end.err.startswith(f"train.py: error: {disk}/{CHECKPOINTS}"), end.err
    assert "disk is full" in end.err or "No space left on device" in end.err
    assert end.err.count("\n") == 1
    again, alone = lives(disk, steps=24), lives(_made(tmp_path / "alone"), steps=24)
    assert (again.code, resumed_at(disk) >= 6) == (0, True), again.err
    assert again.result[0] == alone.result[0]


class DiskFills(nemo.NeMoCallback):
    """The disk fills at one step, and has room again at another."""

    def __init__(self, disk: Path, left: int) -> None:
        super().__init__()
        self.disk, self.left = disk, left

    def on_step_end(self, state: Any) -> None:
        if state.step == FULL_AT:
            self.filling = fill(self.disk, self.left)
        if state.step == FREE_AT:
            self.filling.unlink()


def log_on(disk: Path, left: int, is_filled: bool) -> dict[str, Any]:
    """Train with a log, records and curves on this disk; the weights."""
    factory = nemo.NeuralModuleFactory(
        placement=nemo.DeviceType.CPU,
        random_seed=5,
        log_dir=disk / "run",
        create_tb_writer=True,
        add_time_to_log_dir=False,
    )
    trackers = Trackers([MetricsFile(disk / "run/metrics.jsonl"), TensorboardTracker(factory.tb_writer)])
    net, (x, y) = Net(), Points()()
    loss = Mse()(out=net(x=x), target=y)

    class Wordy(nemo.NeMoCallback):
        def on_step_end(self, state: Any) -> None:
            nemo.logging.info("step %d %s", state.step, "x" * 6000)
            factory.tb_writer.add_text("note", "y" * 6000, state.step)
            factory.tb_writer.flush()

    callbacks = [*([DiskFills(disk, left)] if is_filled else []), TrackingCallback(trackers, step_freq=1), Wordy()]
    params = {"lr": 0.05, "max_steps": STEPS}
    factory.train([loss], optimizer="adam_w", optimization_params=params, callbacks=callbacks)
    return {name: value.tolist() for name, value in net.state_dict().items()}


@pytest.mark.parametrize("left", LEVELS)
def test_a_log_records_and_curves_that_find_no_room_warn_once_and_go_on_when_there_is_some(disk, tmp_path, left):
    end = Rank({}, log_on, (disk, left, True)).wait(time.perf_counter() + 60)
    assert end.code == 0, end.err
    assert end.result == Rank({}, log_on, (_made(tmp_path / "free"), 0, False)).wait(time.perf_counter() + 60).result
    for name in ("log_globalrank", "metrics.jsonl", "tfevents"):
        assert end.err.count(name) <= 1, end.err
    assert "tfevents" in end.err
    assert "log_globalrank" in end.err
    assert "Traceback" not in end.err
    steps = [record["step"] for record in read_metrics(disk / "run/metrics.jsonl") if record["kind"] == "train"]
    assert {1, 2, 3, 4, STEPS - 1, STEPS} <= {*steps}
    curves = EventAccumulator(str(next((disk / "run/tensorboard").iterdir()))).Reload()
    assert {1, 2, 3, STEPS} <= {each.step for each in curves.Scalars("loss")}
    log = next((disk / "run").glob("log_*")).read_text()
    assert "step 2 x" in log
    assert f"step {STEPS - 1} x" in log


def test_a_report_that_finds_no_room_is_a_warning_and_the_one_before_stays(disk, capsys):
    run = make_run(disk / "run", num_rows=3)
    page = run / "report.html"
    page.write_text("the one before")
    fill(disk, 4)
    assert try_report(run) is None
    assert "No report was written" in capsys.readouterr().err
    assert page.read_text() == "the one before"


@pytest.mark.parametrize("kilobytes", [8, 64, 300])
def test_a_corpus_that_finds_no_room_is_one_line_and_nothing_is_left(disk, tmp_path, capsys, kilobytes):
    fill(disk, kilobytes)
    with pytest.raises(SystemExit) as stopped:
        synth.main([str(disk / "corpus"), "--train", "12", "--val1", "1", "--val2", "1"], "synth")
    told = capsys.readouterr().err
    assert stopped.value.code == 2
    assert told.startswith(f"synth: error: {disk}/")
    assert "the disk is full; free some space" in told
    assert told.count("\n") == 1
    assert [path.name for path in disk.iterdir()] == ["filling"]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
