"""A rank that is slow, or stopped for a moment: the others wait, and the run ends as one that nothing held up."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from toys.faulty_run import Mse, Net, Points, diary
from toys.ranks import Rank, start_ranks, wait_all

import nemo_lite as nemo

STEPS, TIMEOUT = 12, 30.0


class Held(nemo.NeMoCallback):
    """Tells each step; rank 1 takes its time."""

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__()
        self.file, self.seconds = folder / "diary", seconds

    def on_step_end(self, state: Any) -> None:
        if state.global_rank == 1:
            time.sleep(self.seconds)
            with self.file.open("a") as file:
                file.write(f"step {state.step + 1}\n")


def train(folder: Path, seconds: float) -> dict[str, Any]:
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=5, dist_timeout=TIMEOUT)
    net, (x, y) = Net(), Points(32)()
    params = {"lr": 0.05, "max_steps": STEPS}
    loss = Mse()(out=net(x=x), target=y)
    factory.train([loss], optimizer="adam_w", optimization_params=params, callbacks=[Held(folder, seconds)])
    return {name: value.tolist() for name, value in net.state_dict().items()}


def ends(ranks: list[Rank]) -> list[dict[str, Any]]:
    finished = wait_all(ranks, 60)
    assert [end.code for end in finished] == [0, 0], finished
    return [end.result for end in finished]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The weights of both ranks of a run that nothing held up."""
    return ends(start_ranks(2, train, tmp_path_factory.mktemp("undisturbed"), 0.0))


@pytest.mark.long
def test_a_slow_rank_is_waited_for(tmp_path, undisturbed):
    assert ends(start_ranks(2, train, tmp_path, 0.1)) == undisturbed


def test_a_rank_that_is_stopped_for_a_moment_goes_on_with_the_others(tmp_path, undisturbed):
    ranks = start_ranks(2, train, tmp_path, 0.02)
    deadline = time.monotonic() + 60
    while len(diary(tmp_path)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(ranks[1].pid, signal.SIGSTOP)
    steps = len(diary(tmp_path))
    time.sleep(1)
    assert len(diary(tmp_path)) <= steps + 1
    os.kill(ranks[1].pid, signal.SIGCONT)
    assert ends(ranks) == undisturbed
