"""Two machines whose ranks, launchers and link fail again and again: the run ends as one that nothing disturbs."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from toys.faulty_run import SEED
from toys.machines import Lan, Started, two_machines, why_impossible
from toys.ranks import on_ranks
from toys.small_training import train

pytestmark = [pytest.mark.netns, pytest.mark.soak, pytest.mark.slow, pytest.mark.xdist_group("machines")]

SCRIPT = Path(__file__).parents[1] / "toys" / "small_training.py"
STEPS, PAUSE, FAULTS = 300, 0.05, 5
LONGEST = 900  # seconds
ALONE = 20  # seconds that one launcher may run without the other


def launch(lan: Lan, node: int, out: Path) -> Started:
    """torchrun on one machine."""
    words = "--nproc-per-node=1 --nnodes=2 --max-restarts=100 --rdzv-backend=c10d --rdzv-id=1"
    command = [Path(sys.executable).with_name("torchrun"), *words.split(), "--rdzv-conf=join_timeout=300"]
    command += [f"--rdzv-endpoint={lan.master.address}:29500", SCRIPT, out, "--checkpoints"]
    number = len(list(out.glob("log*")))
    return lan.machines[node].start(
        [*command, f"--steps={STEPS}", f"--pause={PAUSE}", "--dist_timeout=10"], out / f"log{number}"
    )


def steps_of(out: Path) -> int:
    file = out / "steps0"
    return len(file.read_text().splitlines()) if file.exists() else 0


def a_rank_of(lan: Lan, node: int) -> int | None:
    """A process of the script on this machine."""
    for pid in lan.machines[node].pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(SCRIPT).encode() in words and not any(b"torchrun" in word for word in words):
            return pid
    return None


def disturb(lan: Lan, out: Path, rng: random.Random) -> str:
    """One fault; what it was."""
    what = rng.choice(["kill a rank", "stop a rank", "cut the link", "slow link", "kill a launcher"])
    node = rng.randrange(2)
    pid = a_rank_of(lan, node)
    if what == "kill a rank" and pid:
        os.kill(pid, signal.SIGKILL)
    elif what == "stop a rank" and pid:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(pid, signal.SIGCONT)
    elif what == "cut the link":
        lan.cut()
        time.sleep(3)
        lan.repair()
    elif what == "slow link" and not (out / "slow").exists():
        (out / "slow").touch()
        lan.limit(2)
    elif what == "kill a launcher":  # and its rank
        for each in lan.machines[node].pids():
            os.kill(each, signal.SIGKILL)
    return f"{what} on machine {node}"


def run_once(lan: Lan, out: Path, rng: random.Random, happened: list[str]) -> list[int]:
    """Both launchers up to their ends, with faults on the way; their exit codes."""
    sides, before, ended_at = [launch(lan, node, out) for node in (0, 1)], steps_of(out), 0.0
    while any(side.process.poll() is None for side in sides):
        if len(happened) < FAULTS and steps_of(out) >= before + 20:
            happened.append(disturb(lan, out, rng))
            before = steps_of(out)
        if any(side.process.poll() is not None for side in sides):
            ended_at = ended_at or time.monotonic()
            if time.monotonic() > ended_at + ALONE:  # a launcher waits for one that is no more: somebody ends it
                for machine in lan.machines:
                    for pid in machine.pids():
                        os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    return [side.process.wait() for side in sides]


def test_two_machines_in_chaos_end_as_two_that_nothing_disturbs(tmp_path):
    if why_impossible():
        pytest.skip(str(why_impossible()))
    undisturbed, out, rng = tmp_path / "undisturbed", tmp_path / "chaos", random.Random(SEED)
    undisturbed.mkdir()
    out.mkdir()
    assert [end.code for end in on_ranks(2, partial(train, undisturbed, steps=STEPS))] == [0, 0]
    happened: list[str] = []
    with two_machines() as lan:
        deadline, codes = time.monotonic() + LONGEST, [1, 1]
        while codes != [0, 0]:  # as a scheduler that starts the job again
            assert time.monotonic() < deadline, (SEED, happened)
            codes = run_once(lan, out, rng, happened)
    assert len(happened) == FAULTS
    for rank in (0, 1):
        weights, wanted = (json.loads((folder / f"weights{rank}").read_text()) for folder in (out, undisturbed))
        assert weights == wanted, (SEED, happened)
