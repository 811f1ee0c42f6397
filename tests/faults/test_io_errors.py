"""Each call of a save that changes the disk fails in turn: one line, exit code 2, the checkpoint before is intact."""

from __future__ import annotations

import errno
import itertools
import os
import random
import re
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from toys.faulty_run import CHECKPOINTS, EVERY, NO_FAULT, SEED, Calls, Fault, lives, resumed_at, train
from toys.ranks import Finished, Rank

from nemo_lite.base.errors import NemoLiteError, reported_to_user


class Failed(NamedTuple):
    """What came of one fault.

    Attributes:
        happened: the call that failed.
        error: what the run ended with; nothing where it went on.
        resumed: the step at which the next run began.
        weights: with which the next run ended.
    """

    happened: str
    error: str
    resumed: int
    weights: dict[str, Any]


def fail_each(folder: Path, effect: str, lasting: bool) -> list[Failed]:
    """In one process: a good checkpoint, then a save whose n-th call fails, then a run that goes on; for every n."""
    calls, found = Calls(folder), list[Failed]()
    first = folder / "first"
    first.mkdir()
    train(first, steps=EVERY)
    for number in itertools.count(1):
        place = folder / str(number)
        shutil.copytree(first, place)
        calls.expect(Fault(number, effect, lasting))
        error = ""
        try:
            train(place, steps=2 * EVERY)
        except NemoLiteError as told:
            error = str(told)
        except BaseException as raw:
            error = f"{type(raw).__name__}, not an error of ours: {raw}"
        happened = calls.happened
        calls.expect(NO_FAULT)
        if not happened:
            return found
        weights = train(place, steps=3 * EVERY)
        found.append(Failed(happened, error, resumed_at(place), weights))
        shutil.rmtree(place)
    raise AssertionError


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The weights of a run in which nothing failed."""
    end = lives(tmp_path_factory.mktemp("alone"), steps=3 * EVERY)
    assert end.code == 0, end.err
    weights: dict[str, Any] = end.result[0]
    return weights


@pytest.mark.parametrize(("effect", "lasting"), [("EIO", False), ("ENOSPC", True)])
def test_each_call_of_a_save_that_fails_leaves_the_checkpoint_before_and_is_one_line(
    tmp_path, uninterrupted, effect, lasting
):
    end = Rank({}, fail_each, (tmp_path, effect, lasting)).wait(time.perf_counter() + 300)
    assert end.code == 0, end.err
    assert len(end.result) > 10
    wrong = [each for each in end.result if each.weights != uninterrupted or each.resumed not in (EVERY, 2 * EVERY)]
    assert wrong == []
    reason = "the disk is full" if effect == "ENOSPC" else os.strerror(errno.EIO)
    assert [each for each in end.result if each.error and not is_clear(each.error, reason, tmp_path)] == []


def is_clear(error: str, reason: str, folder: Path) -> bool:
    """Whether it is one line that names the place and the reason."""
    return "\n" not in error and error.startswith(str(folder)) and (reason in error or "No space left" in error)


# The same from outside: each system call of a save, whoever makes it. strace counts each kind for itself.
KINDS = "openat,write,pwrite64,fsync,fdatasync,rename,renameat,mkdir,unlink,unlinkat,rmdir,ftruncate,fallocate"


def save_once(folder: Path) -> None:
    """Wait to be traced; then resume, train for an interval and save."""
    (folder / "ready").touch()
    while not (folder / "go").exists():
        time.sleep(0.002)
    with reported_to_user():
        train(folder, steps=2 * EVERY, tells=False)


def traced(folder: Path, first: Path, *options: str) -> tuple[Finished, str]:
    """A save under strace; how it ended, and the log."""
    shutil.copytree(first, folder)
    rank = Rank({}, save_once, (folder,))
    while not (folder / "ready").exists():
        time.sleep(0.002)
    log = folder / "strace"
    with log.open("wb") as out:
        words = [
            "strace",
            "-f",
            "-q",
            "-s",
            "200",
            "-e",
            f"trace={KINDS}",
            *options,
            "-p",
            str(rank.pid),
            "-o",
            str(log),
        ]
        tracer = subprocess.Popen(words, stdout=out, stderr=out)
        while f"\nTracerPid:\t{tracer.pid}" not in Path(f"/proc/{rank.pid}/status").read_text():
            assert tracer.poll() is None, log.read_text()
            time.sleep(0.002)
        (folder / "go").touch()
        end = rank.wait(time.perf_counter() + 60)
        tracer.wait(10)
    return end, log.read_text()


def calls_of_a_save(log: str) -> list[tuple[str, int]]:
    """(kind, number of its kind) of the calls that change checkpoints."""
    counts: Counter[str] = Counter()
    found, descriptors = [], set[str]()
    for line in log.splitlines():
        match = re.match(r"\d+ +(?P<kind>\w+)\((?P<first>[^,)]*)(?P<rest>.*?)(?:\) += (?P<result>-?\d+).*)?$", line)
        if match is None:
            continue
        kind = match["kind"]
        counts[kind] += 1
        is_ours = f"/{CHECKPOINTS}" in match["first"] + match["rest"] or match["first"] in descriptors
        if kind == "openat" and f"/{CHECKPOINTS}" in match["rest"]:
            descriptors.add(match["result"])
        elif kind == "openat":
            descriptors.discard(match["result"])
        if is_ours and not (kind == "openat" and "O_WRONLY" not in line and "O_RDWR" not in line):
            found.append((kind, counts[kind]))
    return found


@pytest.fixture(scope="module")
def first_save(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one good checkpoint."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed (Debian: strace)")
    folder = tmp_path_factory.mktemp("first")
    assert lives(folder, steps=EVERY).code == 0
    return folder


@pytest.mark.parametrize("num_calls", [12, pytest.param(10**6, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "effect", [*(pytest.param(f"error={name}", marks=pytest.mark.long) for name in ("EIO", "ENOSPC")), "signal=KILL"]
)
def test_each_system_call_of_a_save_may_fail_or_end_the_run(tmp_path, first_save, uninterrupted, effect, num_calls):
    end, log = traced(tmp_path / "all", first_save)
    assert end.code == 0, end.err
    calls = calls_of_a_save(log)
    assert {kind for kind, _ in calls} >= {"openat", "fsync", "mkdir"}, log
    rng = random.Random(SEED)
    for kind, number in rng.sample(calls, min(num_calls // 3, len(calls))):
        place = tmp_path / f"{kind}{number}"
        end, log = traced(place, first_save, "-e", f"inject={kind}:{effect}:when={number}")
        what = f"seed {SEED}: {effect} at {kind} number {number}: {end}\n{log[-2000:]}"
        assert end.code in ((-9,) if effect == "signal=KILL" else (0, 2)), what
        assert "Traceback" not in end.err, what
        assert end.err.count("\n") <= 1 or end.code == 0, what
        again = lives(place, steps=3 * EVERY)
        assert again.code == 0, f"{what}\n{again.err}"
        assert again.result[0] == uninterrupted, what
        assert resumed_at(place) in (EVERY, 2 * EVERY), what
        shutil.rmtree(place)
