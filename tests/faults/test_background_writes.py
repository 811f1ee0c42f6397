"""The thread that writes a large checkpoint fails, or its process is killed: it is told, and nothing is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from toys.faulty_run import CHECKPOINTS, EVERY, NO_FAULT, Calls, Fault, Mse, Net, Points, lives, resumed_at
from toys.ranks import Rank, on_ranks

import nemo_lite as nemo
from nemo_lite.backends.pytorch.checkpoint import saving
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.base.errors import NemoLiteError

AT_LEAST = 10  # calls of a save that change the disk
MANY = 100_000  # steps; a run that does not notice goes on for ever


class FailsInThread(nemo.NeMoCallback):
    """The first checkpoint is complete, then a call of the next one fails. Notes which thread it was, and each step."""

    def __init__(self, folder: Path, fault: Fault) -> None:
        super().__init__()
        self.calls, self.fault = Calls(folder / CHECKPOINTS), fault
        self.steps, self.threads = 0, set[str]()
        note = self.calls._note

        def note_thread(*args: Any) -> None:
            try:
                note(*args)
            except OSError:
                self.threads.add(threading.current_thread().name)
                raise

        self.calls._note = note_thread  # type: ignore[method-assign]  # of this object alone

    def on_step_start(self, state: Any) -> None:
        self.steps = state.step
        if state.step == EVERY + 1:
            for thread in threading.enumerate():
                if thread.name == "checkpoint writer":
                    thread.join()
            self.calls.expect(self.fault)


def train(folder: Path, fault: Fault) -> tuple[str, int, set[str]]:
    """On a rank: train until the fault ends the run. Its error, the steps that were made, the threads that failed."""
    saving.SMALL_BYTES = 0
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=5, dist_timeout=30.0)
    net, (x, y) = Net(), Points(32)()
    fails = FailsInThread(folder, fault if (factory.global_rank or 0) == 0 else NO_FAULT)
    callbacks = [fails, nemo.CheckpointCallback(folder / CHECKPOINTS, step_freq=EVERY)]
    params = {"lr": 0.05, "max_steps": MANY}
    try:
        factory.train([Mse()(out=net(x=x), target=y)], "adam_w", params, callbacks=callbacks)
    except NemoLiteError as error:
        if fails.threads:
            (folder / "told").write_text(f"{error}\n{fails.steps}\n{' '.join(fails.threads)}")
        raise
    raise AssertionError("the run did not notice")


def test_a_write_that_fails_in_the_thread_ends_all_ranks_with_its_cause(tmp_path):
    first, second = on_ranks(2, train, tmp_path, Fault(3, "EIO"), timeout=60)
    error, step, threads = (tmp_path / "told").read_text().splitlines()
    assert (first.code, second.code) == (2, 2), (first, second)
    assert threads == "checkpoint writer"
    assert error.startswith(f"{tmp_path}/{CHECKPOINTS}")
    assert "Input/output error" in error
    assert int(step) <= 3 * EVERY  # at the next steps, not when the run ends
    assert f"rank 0 ({os.uname().nodename}, pid " in second.err
    assert error in second.err
    assert "Traceback" not in first.err + second.err
    assert [found.number for found in CheckpointFolder(tmp_path / CHECKPOINTS).sets()] == [EVERY]
    assert CheckpointFolder(tmp_path / CHECKPOINTS).newest().problem(contents=True) == ""


def live_with_a_thread(folder: Path, call: int) -> None:
    """The process is killed at a call of the thread."""
    train(folder, Fault(call, "kill"))


@pytest.mark.parametrize("call", [1, AT_LEAST // 2, AT_LEAST])
def test_a_process_that_is_killed_while_its_thread_writes_goes_on_from_the_checkpoint_before(tmp_path, call):
    end = Rank({}, live_with_a_thread, (tmp_path, call)).wait(time.perf_counter() + 60)
    assert end.code == -signal.SIGKILL, end
    again = lives(tmp_path, steps=4 * EVERY)
    assert again.code == 0, again.err
    assert resumed_at(tmp_path) in (EVERY, 2 * EVERY)
