"""From a fault to its report: seconds, and the words, of our training and of a plain DDP loop under torchrun.

    python tests/faults/report_times.py [--only killed,stopped,...]

Two machines (network namespaces, so it needs root), one rank each, started by ``torchrun`` with a c10d rendezvous. Both
loops get the same time-out. The line is the first that names a cause: of our training the first of its own, of the
plain loop the first of all, torchrun's table included. It is run by hand: the figures are in docs/en/fast_training.md.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from toys.interruptible import is_alive
from toys.machines import ROOT, Lan, Started, two_machines

TIMEOUT = 10  # seconds
LONGEST = 90  # seconds after the fault: then it is given up
OURS = Path(__file__).parents[1] / "toys" / "small_training.py"
_CAUSE = {
    "ours": re.compile(r"\[rank \d\] (rank|the launcher|[A-Z])|small_training.py: error"),
    "plain": re.compile(r"Error|Signal \d+|exitcode|terminate called|timed out", re.IGNORECASE),
}


def plain(out: Path) -> None:
    """The loop that torch's tutorials have."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
    model = DistributedDataParallel(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10**6):
        optimizer.zero_grad()
        model(torch.rand(4, 6)).sum().backward()
        optimizer.step()
        with (out / f"steps{dist.get_rank()}").open("a") as file:
            file.write(f"{step} {time.monotonic()}\n")
        time.sleep(0.05)


def ranks_of(lan: Lan, sides: tuple[Started, Started]) -> list[int]:
    """The process of the rank on each machine: the child of its launcher."""
    found = []
    for machine, side in zip(lan.machines, sides, strict=True):
        children = [pid for pid in machine.pids() if parent_of(pid) == side.process.pid]
        found.append(children[0])
    return found


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


Fault = Callable[[Lan, tuple[Started, Started]], object]
FAULTS: dict[str, Fault] = {
    "killed": lambda lan, sides: os.kill(ranks_of(lan, sides)[1], signal.SIGKILL),
    "stopped": lambda lan, sides: os.kill(ranks_of(lan, sides)[1], signal.SIGSTOP),
    "launcher killed": lambda lan, sides: sides[1].process.kill(),
    "link cut": lambda lan, sides: lan.cut(),
}


def measure(name: str, kind: str, words: list[str], folder: Path) -> str:
    """One line of the table."""
    with two_machines() as lan:
        launcher = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node=1", "--nnodes=2"]
        launcher += ["--rdzv-backend=c10d", f"--rdzv-endpoint={lan.master.address}:29500", "--rdzv-id=1"]
        # A plain loop needs to be told which network it is; ours finds out.
        paths = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "collections/asr", ROOT / "tests")))}
        first, second = (
            machine.start(
                [*launcher, *words], folder / machine.name, {**paths, "GLOO_SOCKET_IFNAME": machine.interface}
            )
            for machine in lan.machines
        )
        sides = (first, second)
        while not all((folder / f"steps{rank}").exists() for rank in (0, 1)):
            time.sleep(0.1)
            if any(side.process.poll() is not None for side in sides):
                raise SystemExit(first.text + second.text)
        time.sleep(1)
        said_before = [len(side.text) for side in sides]
        ranks = ranks_of(lan, sides)
        FAULTS[name](lan, sides)
        start = time.monotonic()
        first_seconds, first_line, ended = 0.0, "", 0.0
        while time.monotonic() - start < LONGEST and not ended:
            for side, before in zip(sides, said_before, strict=True):
                lines = [line for line in side.text[before:].splitlines() if _CAUSE[kind].search(line)]
                if lines and not first_line:
                    first_seconds, first_line = time.monotonic() - start, lines[0].strip()
            if not any(map(is_alive, ranks)):
                ended = time.monotonic() - start
            time.sleep(0.05)
    told = f"{first_seconds:.1f} s: {first_line[:160]}" if first_line else "nothing"
    return f"{told} | ranks ended after {f'{ended:.1f} s' if ended else f'more than {LONGEST} s'}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plain", type=Path, help="be one rank of the plain loop")
    parser.add_argument("--only", default=",".join(FAULTS))
    args = parser.parse_args()
    if args.plain:
        plain(args.plain)
        return
    for name in args.only.split(","):
        for kind in ("ours", "plain"):
            with tempfile.TemporaryDirectory() as folder:
                ours = [str(OURS), folder, "--steps=1000000", "--pause=0.05", f"--dist_timeout={TIMEOUT}"]
                words = ours if kind == "ours" else [__file__, "--plain", folder]
                print(f"{name} | {kind} | {measure(name, kind, words, Path(folder))}", flush=True)


if __name__ == "__main__":
    main()
