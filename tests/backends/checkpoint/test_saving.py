"""Checkpoints that are written while training goes on: what is told when, errors, the lock of the folder."""

from __future__ import annotations

import errno
import gc
import math
import os
import signal
import sys
import threading
import time
import weakref
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from toys.fake_comm import FakeComm
from toys.lock_holders import held_elsewhere
from toys.nets import build

import nemo_lite as nemo
from nemo_lite.backends.pytorch.checkpoint import store as commit
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder, SavePlan, read_checkpoint
from nemo_lite.backends.pytorch.checkpoint.saving import BackgroundWriter, Saving, copied_to_host, num_bytes_of
from nemo_lite.backends.pytorch.checkpoint.storage import (
    ModuleWeights,
)
from nemo_lite.backends.pytorch.distributed.comm import SingleProcess
from nemo_lite.base.errors import UsageError
from nemo_lite.base.interruption import Interrupted
from nemo_lite.base.verified import write_verified
from nemo_lite.core.callbacks.action_state import Best


class Steps(nemo.NeMoCallback):
    """Runs a function at the start of each step."""

    def __init__(self, at_start=lambda step: None):
        super().__init__()
        self.at_start, self.num_started = at_start, 0

    def on_step_start(self, state):
        self.num_started = state.step + 1
        self.at_start(state.step)


def train(folder, callbacks=(), max_steps=6, **how):
    made = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
    net, loss = build()
    saves = nemo.CheckpointCallback(folder, step_freq=2, **how)
    made.train([loss], "sgd", {"lr": 0.02, "max_steps": max_steps}, callbacks=[*callbacks, saves])
    return net


@pytest.fixture
def in_background(monkeypatch):
    """As if the checkpoints of these tests were large."""
    monkeypatch.setattr("nemo_lite.backends.pytorch.checkpoint.saving.SMALL_BYTES", 0)


def blocked_until(event, monkeypatch):
    """Writing waits for the event."""
    write_set = commit.write_set

    def write(*args):
        assert event.wait(20)
        return write_set(*args)

    monkeypatch.setattr("nemo_lite.backends.pytorch.checkpoint.folder.write_set", write)


def test_training_goes_on_while_a_checkpoint_is_written_and_it_is_told_when_it_is_complete(
    tmp_path, monkeypatch, in_background
):
    may_write, told = threading.Event(), []
    blocked_until(may_write, monkeypatch)

    def at_start(step):
        if step == 3:  # two steps are saved, and one more is made
            assert (told, CheckpointFolder(tmp_path).sets()) == ([], [])
            may_write.set()

    train(tmp_path, [Steps(at_start)], max_steps=4, record=lambda kind, **about: told.append(about))
    assert [(each["step"], each["path"]) for each in told] == [
        (step, f"{tmp_path}/checkpoint-STEP-{step}") for step in (2, 4)
    ]
    assert [found.number for found in CheckpointFolder(tmp_path).sets()] == [2, 4]


def test_what_is_saved_is_what_it_was_when_training_went_on(tmp_path, monkeypatch, in_background):
    may_write = threading.Event()
    blocked_until(may_write, monkeypatch)
    train(tmp_path / "late", [Steps(lambda step: step == 3 and may_write.set())], max_steps=4)
    may_write.set()
    train(tmp_path / "early", max_steps=2)
    late, early = (read_checkpoint(tmp_path / name, "STEP-2").weights["Net"] for name in ("late", "early"))
    assert all(late[name].equal(early[name]) for name in early)


def test_a_checkpoint_that_cannot_be_written_ends_the_run_at_the_next_step(tmp_path, monkeypatch, in_background):
    steps, threads = Steps(), threading.active_count()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def at_start(step):
        if step == 4:  # STEP-4 was begun at the end of the step before
            for thread in threading.enumerate():
                if thread.name == "checkpoint writer":
                    thread.join()
        if step == 5:
            pytest.fail("a step too many")

    steps.at_start = at_start
    train(tmp_path, max_steps=2)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match=r"checkpoint-STEP-4: the disk is full; free some space"):
        train(tmp_path, [steps], max_steps=9)
    monkeypatch.undo()
    assert [found.number for found in CheckpointFolder(tmp_path).sets()] == [2]
    assert threading.active_count() == threads


def test_a_checkpoint_begins_when_the_one_before_is_on_the_disk(tmp_path, monkeypatch, in_background):
    """One is in flight: else host memory would hold copies of several."""
    may_write, complete = threading.Event(), list[int]()
    blocked_until(may_write, monkeypatch)

    def copied(tree):
        complete.append(len(CheckpointFolder(tmp_path).sets()))
        threading.Timer(0.1, may_write.set).start()
        return copied_to_host(tree)

    monkeypatch.setattr("nemo_lite.backends.pytorch.checkpoint.saving.copied_to_host", copied)
    saving = Saving(SingleProcess())
    for number in (2, 4, 6):
        saving.start(tmp_path, {"Net": ModuleWeights("Net", {"w": torch.ones(1)})}, {}, SavePlan("STEP", number, 9))
    saving.close()
    assert (complete, len(CheckpointFolder(tmp_path).sets())) == ([0, 1, 2], 3)


def test_nothing_of_a_copy_is_left_when_it_is_written(tmp_path, monkeypatch, in_background):
    """Python looks for garbage rarely where a program has many objects: each checkpoint would leave its tensors."""
    left = list[weakref.ref[torch.Tensor]]()

    def copied(tree):
        copies = copied_to_host(tree)
        left.append(weakref.ref(copies[0]["Net"].tensors["w"]))
        return copies

    monkeypatch.setattr("nemo_lite.backends.pytorch.checkpoint.saving.copied_to_host", copied)
    saving = Saving(SingleProcess())
    gc.disable()
    try:
        for number in (2, 4, 6):
            saving.start(tmp_path, {"Net": ModuleWeights("Net", {"w": torch.ones(9)})}, {}, SavePlan("STEP", number, 9))
            saving.done(tmp_path, wait=True)
        assert [copy() for copy in left] == [None, None, None]
    finally:
        gc.enable()
        saving.close()


def test_a_checkpoint_in_flight_counts_among_the_best(tmp_path, monkeypatch, in_background):
    may_write, best = threading.Event(), Best("dev", "wer", keep=1)
    blocked_until(may_write, monkeypatch)
    good, worse = ({"name": "dev", "step": step, "values": {"wer": wer}} for step, wer in ((2, 0.1), (4, 0.2)))
    saving = Saving(SingleProcess())
    saving.start(
        tmp_path,
        {"Net": ModuleWeights("Net", {"w": torch.ones(1)})},
        {"step": 2, "epoch": 0},
        SavePlan("STEP", 2, 9, best, None, [good]),
    )
    threading.Timer(0.1, may_write.set).start()
    assert not saving.is_among_best(tmp_path, worse, best)
    saving.close()


def test_a_small_checkpoint_is_complete_before_the_next_step(tmp_path):
    def at_start(step):
        assert len(CheckpointFolder(tmp_path).sets()) == step // 2

    train(tmp_path, [Steps(at_start)], max_steps=5)


def test_two_callbacks_may_save_in_folders_of_their_own(tmp_path, in_background):
    told = []
    other = nemo.CheckpointCallback(
        tmp_path / "b", step_freq=2, record=lambda kind, **about: told.append(about["path"])
    )
    train(tmp_path / "a", [other], max_steps=4, record=lambda kind, **about: told.append(about["path"]))
    assert sorted(told) == [f"{tmp_path}/{name}/checkpoint-STEP-{step}" for name in "ab" for step in (2, 4)]


@pytest.mark.parametrize("spelling", ["../a/checkpoints", "link"])
def test_a_folder_spelled_in_another_way_is_not_swept_while_the_same_process_writes_there(
    tmp_path, monkeypatch, in_background, spelling
):
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    (tmp_path / "a/link").symlink_to("checkpoints")
    begun, may_go_on, write = threading.Event(), threading.Event(), write_verified

    def slow(*args):
        begun.set()
        assert may_go_on.wait(20)
        return write(*args)

    monkeypatch.setattr(commit, "write_verified", slow)
    saving, weights = Saving(SingleProcess()), {"Net": ModuleWeights("Net", {"w": torch.ones(1)})}
    saving.open(tmp_path / "a/checkpoints")
    saving.start(tmp_path / "a/checkpoints", weights, {}, SavePlan("STEP", 2, 9))
    assert begun.wait(20)
    saving.open(spelling)
    may_go_on.set()
    saving.start(spelling, weights, {}, SavePlan("EPOCH", 2, 9))
    saving.close()
    assert [found.tag for found in CheckpointFolder("checkpoints").sets()] == ["STEP-2", "EPOCH-2"]


def test_two_callbacks_save_in_one_folder_and_each_tells_its_own(tmp_path):
    for order in (1, -1):
        told = []

        def tell(every, kind, step, told=told, **more):
            told.append((every, step))

        folder = tmp_path / str(order)
        callbacks = [nemo.CheckpointCallback(folder, step_freq=n, record=partial(tell, n)) for n in (2, 3)]
        made = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
        made.train([build()[1]], "sgd", {"lr": 0.02, "max_steps": 5}, callbacks=callbacks[::order])
        assert sorted(told) == [(2, 2), (2, 4), (2, 5), (3, 3), (3, 5)]


def test_a_script_and_a_folder_whose_names_are_no_utf_8_are_saved_and_restored(tmp_path, monkeypatch):
    script, folder = tmp_path / os.fsdecode(b"tr\xff.py"), tmp_path / os.fsdecode(b"runs\xfe")
    script.write_text("x = 1\n")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    train(folder, max_steps=2)
    script.write_text("x = 2\n")
    weights = train(folder, max_steps=4).fc.weight
    monkeypatch.undo()
    assert torch.equal(weights, train(tmp_path / "plain", max_steps=4).fc.weight)
    (found,) = [name for name in CheckpointFolder(folder).newest().contract["code"] if name.endswith(".py")]
    assert found == script.name


# Results of evaluations that are infinite or NaN: the run goes on, whatever saves.


class Results(nemo.EvaluatorCallback):
    """Gives one result after another, the last one again and again."""

    def __init__(self, wires, *results, **when):
        given = iter([*results[:-1], *[results[-1]] * 9])
        super().__init__(wires, lambda values, collected: None, lambda collected: next(given), name="dev", **when)


class Interrupts(nemo.NeMoCallback):
    def on_step_end(self, state):
        if state.step == 3:
            os.kill(os.getpid(), signal.SIGUSR1)


BAD = {"wer": math.nan, "loss": torch.tensor(math.inf), "cer": np.float64(-math.inf), "note": "nan"}
SAVES = {
    "steps": ({"step_freq": 2}, []),
    "epochs": ({"epoch_freq": 1}, []),
    "minutes": ({"minutes": 1e-9}, []),
    "end": ({"step_freq": 100}, []),
    "best": ({"step_freq": 100, "best_of": "dev"}, []),
    "signal": ({"step_freq": 100}, [Interrupts()]),
    "torch's files": ({"step_freq": 2, "format": "pt"}, []),
}


@pytest.mark.parametrize(("how", "others"), SAVES.values(), ids=SAVES)
def test_a_result_that_is_not_finite_keeps_no_checkpoint_from_being_written(tmp_path, how, others):
    def run(max_steps):
        made = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
        _, loss = build()
        callbacks = [*others, nemo.CheckpointCallback(tmp_path, **how), Results([loss], BAD, eval_step=1)]
        with suppress(Interrupted):
            made.train([loss], "sgd", {"lr": 0.02, "max_steps": max_steps}, callbacks=callbacks)

    run(4)
    run(6)  # goes on from them
    sets = CheckpointFolder(tmp_path).sets()
    assert sets[-1].step == 6
    wanted = {"wer": None, "loss": None, "cer": None, "note": "nan"}
    assert all(found["values"] == wanted for stored in sets for found in stored.evaluations)
    assert sets[-1].evaluations or "best" in how


def test_a_result_that_is_not_finite_is_never_the_best(tmp_path):
    made = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
    _, loss = build()
    values = ({"wer": value} for value in (math.nan, math.inf, 0.5, math.nan, -math.inf, 0.4, 0.6, math.nan))
    saves = nemo.CheckpointCallback(tmp_path, step_freq=100, checkpoints_to_keep=1, best_of="dev")
    made.train([loss], "sgd", {"lr": 0.02, "max_steps": 7}, callbacks=[saves, Results([loss], *values, eval_step=1)])
    assert [found.step for found in CheckpointFolder(tmp_path).sets()] == [2, 5, 7]


def test_a_run_holds_its_folder_from_before_it_reads_it_until_its_end(tmp_path):
    train(tmp_path, max_steps=2)
    steps = Steps()
    with (
        held_elsewhere(CheckpointFolder(tmp_path).open) as child,
        pytest.raises(UsageError, match=rf"saves checkpoints in this folder: got process {child} on"),
    ):
        train(tmp_path, [steps], max_steps=4)
    assert steps.num_started == 0
    train(tmp_path, [steps], max_steps=4)
    child = os.fork()  # free after the run, though this process lives on
    if not child:
        CheckpointFolder(tmp_path).open()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


class OnAnotherMachine(FakeComm):
    """Rank 0, beside one that sees no folder of this machine."""

    def gather(self, value):
        lacking = {"kind": "", "problem": "the folder of the checkpoints is not there", "place": "/mine"}
        return [value, lacking if isinstance(value, dict) else value]


def test_a_folder_that_another_rank_cannot_see_is_refused_when_parts_will_be_written_there(tmp_path):
    Saving(FakeComm(0, 2)).open(tmp_path / "a", in_parts=True)
    assert [path.name for path in (tmp_path / "a").iterdir()] == [".lock"]
    with pytest.raises(UsageError, match="rank 1: /mine: the folder of the checkpoints is not there"):
        Saving(OnAnotherMachine(0, 2)).open(tmp_path / "b", in_parts=True)
    assert [path.name for path in (tmp_path / "b").iterdir()] == [".lock"]


def test_jobs_run_one_after_the_other_while_the_caller_goes_on():
    writer, may_end, done = BackgroundWriter(), threading.Event(), []
    writer.start(lambda: (may_end.wait(10), done.append(1)))
    writer.start(lambda: done.append(2))
    assert (writer.is_idle(), done) == (False, [])
    may_end.set()
    writer.finish()
    assert (writer.is_idle(), done) == (True, [1, 2])


def test_an_error_is_raised_once_and_what_came_after_it_is_dropped():
    writer, done = BackgroundWriter(), []
    writer.start(lambda: 1 / 0)
    writer.start(lambda: done.append(1))
    with pytest.raises(ZeroDivisionError):
        writer.finish()
    assert (writer.is_idle(), done) == (True, [])
    writer.start(lambda: done.append(2))
    writer.finish()
    assert done == [2]


def test_a_process_forked_meanwhile_ends_as_usual_and_has_no_thread():
    writer, may_end = BackgroundWriter(), threading.Event()
    writer.start(lambda: may_end.wait(10))
    child = os.fork()
    if not child:
        code = 0
        try:
            vars(threading)["_shutdown"]()  # waits for all threads, as a worker does that ends
            writer.finish()
        except BaseException:
            code = 1
        os._exit(code)
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    may_end.set()
    writer.finish()
    assert ended == (child, 0)


def test_a_copy_stays_as_it_was_and_tied_tensors_stay_one():
    weight = torch.arange(4.0)
    tree = {"a": [weight, (weight[:2], 3)], "b": ModuleWeights("E", {"one": weight, "two": weight})}
    copy: Any = copied_to_host(tree)
    assert num_bytes_of(copy) == 16 + 8 + 2 * 16
    weight.add_(1)
    whole, (part, number) = copy["a"]
    assert (whole.tolist(), part.tolist(), number) == ([0, 1, 2, 3], [0, 1], 3)
    assert isinstance(copy["b"], ModuleWeights)
    assert len({*map(id, copy["b"].tensors.values())}) == 1
