"""Runs of a command that are killed at some step."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from toys.quick_run import script

from nemo_lite.base.errors import UsageError
from nemo_lite.cli.verify_resume import Run, descendants


def run_of(tmp_path: Path, *more: str) -> Run:
    return Run([sys.executable, str(script(tmp_path)), *more], tmp_path / "run")


@pytest.mark.slow
def test_a_run_that_ends_has_its_steps(tmp_path):
    run = run_of(tmp_path)
    assert run.finish() > 0
    assert run.steps() == list(range(1, 41))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_is_killed_after_the_step_and_goes_on(tmp_path, number):
    run = run_of(tmp_path)
    end = run.kill_at(4, number, delay=0.0)
    assert end == f"{signal.Signals(number).name}, exit code {75 if number == signal.SIGTERM else -signal.SIGKILL}"
    done = run.steps()
    assert 4 <= done[-1] < 40
    run.finish()
    assert run.steps()[len(done) :][-1] == 40


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_was_over_before_the_signal_was_not_killed(tmp_path):
    assert run_of(tmp_path).kill_at(40, signal.SIGTERM, delay=2.0) == "it ended before it was killed"


def test_what_a_failing_command_says_is_told(tmp_path):
    with pytest.raises(UsageError, match="ended with exit code 3; its last lines are\nno such corpus"):
        run_of(tmp_path, "--fail").finish()


def test_a_command_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match="No such file or directory: got torchrum; write its whole path, or"):
        Run(["torchrum"], tmp_path / "run").finish()


def test_processes_that_a_process_started_are_its_descendants():
    with subprocess.Popen(["sh", "-c", "sleep 30 & echo; wait"], stdout=subprocess.PIPE) as shell:
        shell.stdout.readline()
        (child,) = descendants(shell.pid)
        assert shell.pid in descendants(os.getpid())
        os.kill(child, signal.SIGKILL)
