"""A training run for tests that stop it by a signal. It prints where it is: ``PREPARING STEP EVALUATING SAVING DONE``.

    python interruptible.py OUT [--folder] [--workers N] [--prepare S] [--step S] [--evaluate S] [--save S]

The numbers are the seconds that each part takes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import nemo_lite as nemo
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.base.errors import reported_to_user
from toys.ranks import Finished, Rank, start_ranks, wait_all
from toys.small_training import Mse, Net, Points


class Slow(torch.utils.data.Dataset[Any]):
    """Items that take a while, so that a signal meets the workers at work."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01)
        return self.inner[index]


class SlowPoints(Points):
    def __init__(self, num_items: int, shuffle: bool, workers: int = 0) -> None:
        super().__init__(num_items, shuffle)
        self.num_workers = workers

    @property
    def dataset(self) -> Any:
        return Slow(super().dataset)


class Tell(nemo.NeMoCallback):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_step_end(self, state: Any) -> None:
        if state.step == 0:
            say(f"WORKERS {' '.join(str(process.pid) for process in multiprocessing.active_children())}")
        say(f"STEP {state.step}")
        time.sleep(self.seconds)


def say(text: str) -> None:
    print(text, flush=True)


def slowly(save: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def save_slowly(*args: Any, **kwargs: Any) -> Any:
        say("SAVING")
        time.sleep(seconds)
        return save(*args, **kwargs)

    return save_slowly


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--folder", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1000)
    for part in ("prepare", "step", "evaluate", "save"):
        parser.add_argument(f"--{part}", type=float, default=0.0)
    args = parser.parse_args(arguments)
    say("PREPARING")
    time.sleep(args.prepare)
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=5, dist_timeout=60)
    net = Net(8)
    x, y = SlowPoints(26, True, args.workers)()
    loss = Mse()(out=net(x=x), target=y)
    dev_x, _ = SlowPoints(40, False)()
    dev_out = net(x=dev_x)

    def evaluate(*_: Any) -> None:
        say("EVALUATING")
        time.sleep(args.evaluate)

    def finish(_: Any) -> None:
        say("EVALUATED")

    callbacks: list[Any] = [Tell(args.step)]
    if args.evaluate:  # before the checkpoints, so that a final evaluation could keep them from being saved
        callbacks.append(nemo.EvaluatorCallback([dev_out], evaluate, finish, eval_step=4, eval_at_start=False))
    if args.folder:
        callbacks.append(nemo.CheckpointCallback(args.out / "checkpoints", epoch_freq=10**6))
    if args.save:
        CheckpointFolder.prepare = slowly(CheckpointFolder.prepare, args.save)  # type: ignore[method-assign]
    params = {"lr": 0.1, "momentum": 0.9, "num_epochs": args.epochs}
    factory.train([loss], optimizer="sgd", optimization_params=params, callbacks=callbacks)
    say("DONE")


def run(*words: str) -> None:
    """The script, in a process group of its own, which can be signalled as a terminal does."""
    os.setpgid(0, 0)
    multiprocessing.set_start_method("fork", force=True)  # as in a script; a rank of these tests has the server's
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored in what runs in the background
    with reported_to_user():
        main(words)


def started(out: Path, *words: object, world_size: int = 1) -> list[Rank]:
    """The script on one rank or several."""
    args = [str(word) for word in (out, *words)]
    return start_ranks(world_size, run, *args) if world_size > 1 else [Rank({}, run, tuple(args))]


def wait_for(rank: Rank, line: str, seconds: float = 60.0) -> list[str]:
    """Wait until the rank has printed a line that starts so; the words of the line."""
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        for found in rank.out().rpartition("\n")[0].splitlines():
            if found.startswith(line):
                return found.split()
        time.sleep(0.02)
    raise AssertionError(f"no {line}: {rank.out()}")


def stopped(ranks: list[Rank], at: str, number: int, *, only: int | None = None, group: bool = False) -> list[Finished]:
    """Signal the ranks, or one of them, when the first has printed a line; how all ended.

    Args:
        ranks: they.
        at: how the line begins.
        number: the signal.
        only: the one.
        group: signal the processes that load data for them, too.
    """
    wait_for(ranks[0], at)
    for rank in ranks if only is None else [ranks[only]]:
        (os.killpg if group else os.kill)(rank.pid, number)
    return wait_all(ranks)


def is_alive(pid: int) -> bool:
    """Whether a process runs (one that ended and was not yet collected does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


if __name__ == "__main__":
    with reported_to_user():
        main()
