"""Runs that are killed again and again, half of the times into a save, go on and end as if nothing had been."""

from __future__ import annotations

import itertools
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from toys.faulty_run import EVERY, SEED, Fault, diary, lives, started
from toys.ranks import Finished

CHAINS, KILLS = 1, 12
MORE_CHAINS = 15  # 192 kills in all
STEPS = 50 * EVERY
LATEST_CALL = 70  # of the calls that change a file: about two saves


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The weights of a run that nobody killed."""
    end = lives(tmp_path_factory.mktemp("alone"), steps=STEPS)
    assert end.code == 0, end.err
    weights: dict[str, Any] = end.result[0]
    return weights


def killed(folder: Path, rng: random.Random, into_a_save: bool, twin: str = "") -> Finished:
    """A run that is killed at a call that changes a file, or when some time has passed; perhaps it ends before."""
    if into_a_save:
        return lives(folder, Fault(rng.randint(1, LATEST_CALL), "kill"), twin, steps=STEPS)
    told = len(diary(folder))
    run, seconds = started(folder, None, twin, steps=STEPS), rng.uniform(0, 0.2)
    while len(diary(folder)) == told and run.process.is_alive():
        time.sleep(0.005)
    time.sleep(seconds)
    run.process.kill()
    return run.wait(time.perf_counter() + 60)


def problems_of(folder: Path, end: Finished) -> list[str]:
    """What is wrong with a run that was killed or has ended."""
    if end.code not in (0, -signal.SIGKILL):
        return [f"ended with {end.code}: {end.err}"]
    steps, found = 0, []
    for word, number in diary(folder):
        if word == "resumed" and number < steps - EVERY:
            found.append(f"resumed at step {number} after step {steps}")
        steps = number
    return found


def chain(folder: Path, seed: int, kills: int, expected: dict[str, Any], twin: str = "") -> tuple[int, list[str]]:
    """Kill a run so often, and let it end; the kills, and what was wrong. A run that ends before begins anew."""
    rng, num_killed, found = random.Random(seed), 0, []
    for number in itertools.count():
        place = folder / str(number)
        place.mkdir()
        code = -signal.SIGKILL
        while code == -signal.SIGKILL and not found:
            is_left = num_killed < kills
            end = killed(place, rng, num_killed % 2 == 0, twin) if is_left else lives(place, None, twin, steps=STEPS)
            code = end.code
            num_killed += code == -signal.SIGKILL
            found += problems_of(place, end)
        if end.result and end.result[0] != expected:
            found.append("the weights differ from those of the run that nobody killed")
        if found or num_killed >= kills:
            return num_killed, found
    raise AssertionError


def seeds() -> Iterator[object]:
    for number in range(CHAINS + MORE_CHAINS):
        yield pytest.param(SEED + number, marks=[pytest.mark.soak] if number >= CHAINS else [])


@pytest.mark.parametrize("seed", seeds())
def test_a_run_that_is_killed_again_and_again_loses_an_interval_at_most_and_ends_the_same(
    tmp_path, uninterrupted, seed
):
    num_killed, found = chain(tmp_path, seed, KILLS, uninterrupted)
    assert found == [], f"seed {seed}, {num_killed} kills: {found}"
    assert num_killed == KILLS


@pytest.mark.parametrize(
    ("twin", "wrong"),
    [
        ("forgets the optimizers", "the weights differ"),
        ("forgets the position", r"resumed at step 0 after step \d+|the weights differ"),
    ],
)
def test_what_a_resumed_run_could_forget_is_seen(tmp_path, uninterrupted, twin, wrong):
    _, found = chain(tmp_path, SEED, 8, uninterrupted, twin)
    assert found
    assert re.search(wrong, found[0])
