"""Runs that a signal ends, in real processes; runs with nothing left to train."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toys.interruptible import is_alive, started, stopped, wait_for
from toys.launched import warm_commands
from toys.nets import build
from toys.ranks import free_port, wait_all

import nemo_lite as nemo
from nemo_lite.backends.pytorch.checkpoint.folder import read_checkpoint
from nemo_lite.backends.pytorch.engine.training import how_to_go_on, interruption_text
from nemo_lite.base.errors import UsageError

SCRIPT = Path(__file__).parents[2] / "toys" / "interruptible.py"


def train(factory, folder, *, total, load_from=None, policy=None, **saving):
    _, loss = build()
    saving = saving or {"epoch_freq": 1}
    factory.train(
        [loss],
        optimizer="sgd",
        callbacks=[nemo.CheckpointCallback(folder, load_from, **saving)],
        optimization_params={"lr": 0.1, "momentum": 0.0, **total},
        lr_policy=policy,
    )


# A signal


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        *(pytest.param(number, 75, marks=pytest.mark.long) for number in (signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_a_signal_to_all_processes_ends_the_run_after_its_step_and_saves(tmp_path, number, code):
    ranks = started(tmp_path, "--folder", "--workers", 2, "--step", 0.2)
    (end,) = stopped(ranks, "STEP 2", number, group=True)
    assert end.code == code, end.err
    name = signal.Signals(number).name
    step = read_checkpoint(tmp_path / "checkpoints").step
    assert f"{name}: stopping after this step; a second signal leaves at once" in end.out
    saved = f"{tmp_path}/checkpoints/checkpoint-STEP-{step}"
    assert f"{name}: stopped after {step} steps; saved {saved}. To go on" in end.out
    assert step % 7 == 0 or f"To go on in epoch {1 + step // 7} after {step % 7} batch" in end.out
    assert (Path(saved).is_dir(), "warning: " in end.err) == (True, False)
    assert f"STEP {step - 1}\n" in end.out
    assert f"STEP {step}\n" not in end.out
    assert "Traceback" not in end.out + end.err
    workers = [int(pid) for pid in wait_for(ranks[0], "WORKERS")[1:]]
    assert len(workers) == 2
    assert not any(map(is_alive, workers))


@pytest.mark.long
@pytest.mark.slow
def test_a_run_whose_terminal_is_closed_saves_although_nothing_can_be_printed(tmp_path):
    root = SCRIPT.parents[2]
    paths = ":".join(map(str, [root, root / "collections" / "asr", root / "tests"]))
    run, keyboard = pty.fork()
    if run == 0:
        os.environ["PYTHONPATH"] = paths
        os.execv(sys.executable, [sys.executable, str(SCRIPT), str(tmp_path), "--folder", "--step", "0.5"])
    printed, deadline = b"", time.monotonic() + 120
    while b"STEP 2\r\n" not in printed and time.monotonic() < deadline:
        printed += os.read(keyboard, 1000)
    time.sleep(0.1)  # the step has begun: a print between the closing and the signal would end the run with an error
    os.close(keyboard)
    assert os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]) == 75
    assert read_checkpoint(tmp_path / "checkpoints").step in (3, 4)


def test_a_run_goes_on_where_a_signal_ended_it(tmp_path):
    stopped(started(tmp_path, "--folder", "--step", 0.2), "STEP 2", signal.SIGTERM)
    step = read_checkpoint(tmp_path / "checkpoints").step
    (end,) = stopped(started(tmp_path, "--folder", "--step", 0.2), f"STEP {step}", signal.SIGTERM)
    place = f"in epoch 1 after {step} batch" if step < 7 else "at the start of epoch 2"
    assert f"going on at step {step}, {place}" in end.out
    assert end.code == 75


def test_a_signal_before_training_says_that_nothing_was_saved(tmp_path):
    (end,) = stopped(started(tmp_path, "--folder", "--prepare", 60), "PREPARING", signal.SIGTERM)
    assert (end.code, end.seconds < 30) == (75, True)
    assert end.err == "SIGTERM: stopped; nothing had to be saved\n"


def test_a_signal_without_a_folder_says_that_nothing_was_saved(tmp_path):
    (end,) = stopped(started(tmp_path, "--step", 0.2), "STEP 1", signal.SIGTERM)
    assert end.code == 75
    assert "nothing was saved: there is no CheckpointCallback that saves" in end.out


def test_a_signal_in_an_evaluation_ends_it_and_saves(tmp_path):
    (end,) = stopped(started(tmp_path, "--folder", "--evaluate", 0.5), "EVALUATING", signal.SIGUSR1)
    assert end.code == 75
    assert end.out.count("EVALUATING") in (1, 2)  # of 10 batches
    assert "EVALUATED" not in end.out
    assert "stopped after 4 steps; saved" in end.out
    assert read_checkpoint(tmp_path / "checkpoints").step == 4


def test_a_signal_while_saving_lets_it_finish(tmp_path):
    (end,) = stopped(started(tmp_path, "--folder", "--save", 0.5, "--epochs", 1), "SAVING", signal.SIGINT)
    assert end.code == 130
    assert read_checkpoint(tmp_path / "checkpoints").step == 7
    assert "stopped after 7 steps; saved" in end.out


def test_a_second_signal_leaves_at_once_and_takes_the_workers_along(tmp_path):
    ranks = started(tmp_path, "--folder", "--workers", 1, "--step", 20)
    workers = wait_for(ranks[0], "WORKERS")[1:]
    os.kill(ranks[0].pid, signal.SIGTERM)
    time.sleep(1.3)
    os.kill(ranks[0].pid, signal.SIGTERM)
    (end,) = wait_all(ranks)
    assert (end.code, end.seconds < 40) == (128 + signal.SIGTERM, True)
    assert "SIGTERM again: left at once, nothing more was saved" in end.err
    deadline = time.monotonic() + 20  # they were killed; the system may need a moment for it
    while any(is_alive(int(pid)) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(is_alive(int(pid)) for pid in workers)


def test_two_signals_of_one_moment_are_one(tmp_path):
    ranks = started(tmp_path, "--folder", "--step", 0.5)
    wait_for(ranks[0], "STEP 1")
    for _ in range(2):
        os.kill(ranks[0].pid, signal.SIGTERM)
        time.sleep(0.1)
    (end,) = wait_all(ranks)
    assert end.code == 75
    assert "To go on" in end.out


@pytest.mark.parametrize("at", ["STEP 2", pytest.param("EVALUATING", marks=pytest.mark.long)])
def test_a_signal_to_one_rank_ends_all_after_the_same_step(tmp_path, at):
    ranks = started(tmp_path, "--folder", "--workers", 1, "--step", 0.1, "--evaluate", 0.1, world_size=2)
    ends = stopped(ranks, at, signal.SIGUSR1, only=1)
    assert [end.code for end in ends] == [75, 75], ends[0].err + ends[1].err
    last = [[line for line in end.out.splitlines() if line.startswith("STEP")][-1] for end in ends]
    assert last[0] == last[1]
    assert read_checkpoint(tmp_path / "checkpoints").step == int(last[0].split()[1]) + 1
    assert ends[0].out.count("SIGUSR1: stopped after") == 1
    assert "Traceback" not in ends[0].err + ends[1].err
    assert "SIGUSR1" not in ends[1].out + ends[1].err


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_torchrun_hands_the_signals_on_that_it_is_told_to(tmp_path, name):
    root, out = SCRIPT.parents[2], tmp_path / "out"
    paths = [root, root / "collections" / "asr", root / "tests"]
    env = {**os.environ, "PYTHONPATH": ":".join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    with out.open("w") as file, warm_commands() as folder:
        env["PYTHON_EXEC"] = str(folder / "python")
        command = [env["PYTHON_EXEC"], "-m", "torch.distributed.run", "--nproc-per-node=2"]
        command.append(f"--master-port={free_port()}")
        command.append("--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1")  # as the guide says
        words = [*command, str(SCRIPT), str(tmp_path), "--folder", "--workers", "1", "--step", "0.2"]
        torchrun = subprocess.Popen(words, env=env, stdout=file, stderr=file)
        deadline = time.monotonic() + 120
        while "STEP 2" not in out.read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
        torchrun.send_signal(signal.Signals[name])
        torchrun.wait(60)
    text = out.read_text()
    assert text.count(f"{name}: stopped after") == 1, text
    assert read_checkpoint(tmp_path / "checkpoints").step > 2
    assert "KeyboardInterrupt" not in text


# Nothing left


def test_a_loaded_run_that_is_over_says_how_to_go_on(factory, tmp_path):
    train(factory, tmp_path / "a", total={"num_epochs": 2})
    with pytest.raises(UsageError) as caught:
        train(factory, tmp_path / "b", total={"num_epochs": 2}, load_from=tmp_path / "a")
    assert str(caught.value) == (
        "there is nothing left to train: got 6 steps (2 epochs) done before, wanted a larger --num_epochs than 2; "
        "--num_epochs is a total; use --num_epochs 4, --init_from or another --exp_name"
    )
    with pytest.raises(
        UsageError, match="--max_steps is a total; use --max_steps 9, --init_from or another --exp_name"
    ):
        train(factory, tmp_path / "b", total={"max_steps": 3}, load_from=tmp_path / "a")


def test_a_run_that_is_started_again_in_its_own_folder_ends_well(factory, tmp_path, capsys):
    for _ in range(2):
        train(factory, tmp_path, total={"num_epochs": 2})
    told = capsys.readouterr()
    assert "There is nothing left to train: got 6 steps (2 epochs) done before" in told.err
    assert "going on at" not in told.out, "it does not"


def test_a_schedule_that_is_over_is_refused(factory, tmp_path, capsys):
    def policy(initial_lr, step, epoch):
        return 0.0 if step > 4 else initial_lr

    train(factory, tmp_path / "a", total={"num_epochs": 2})
    with pytest.raises(UsageError, match="the schedule is over: the learning rate would be 0 for the rest: got 6"):
        train(factory, tmp_path / "b", total={"num_epochs": 3}, load_from=tmp_path / "a", policy=policy)
    train(factory, tmp_path / "a", total={"num_epochs": 3}, policy=policy)
    assert "The schedule is over" in capsys.readouterr().err
    train(factory, tmp_path / "c", total={"num_epochs": 4}, load_from=tmp_path / "a", policy=lambda lr, *_: lr)


@pytest.mark.parametrize(
    ("argv", "world_size", "told"),
    [
        (["nemo-lite train", "--max_steps", "9"], 1, "nemo-lite train --max_steps 9"),
        ([__file__, "--max_steps", "9"], 1, shlex.join(sys.orig_argv)),
        ([__file__, "--max_steps", "9"], 2, "the same command"),
    ],
)
def test_the_command_that_goes_on_is_the_one_that_was_typed(argv, world_size, told, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", argv)
    assert how_to_go_on(str(tmp_path / "checkpoint-STEP-3"), str(tmp_path), world_size) == told


def test_one_step_is_told_as_one():
    text = interruption_text(signal.SIGINT, 1, 0, "", "", "the same command")
    assert text.startswith("SIGINT: stopped after 1 step; nothing was saved")
