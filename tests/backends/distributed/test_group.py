"""ProcessGroup in a training run: when a rank dies, fails or hangs, the others end soon and name it."""

from __future__ import annotations

import os
import signal
import time

import pytest
from toys.nets import BD, Mse, Net, Points
from toys.ranks import on_ranks

import nemo_lite as nemo
from nemo_lite.errors import DataError


class Trouble(nemo.NonTrainableNM):
    """Gives what it gets, but for one rank at one call."""

    input_ports = {"x": BD}
    output_ports = {"out": BD}

    def __init__(self, kind, on_rank):
        super().__init__(name="trouble")
        self.kind, self.on_rank, self.calls = kind, on_rank, 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 4 and os.environ["RANK"] == str(self.on_rank):
            if self.kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.kind == "hangs":
                time.sleep(60)
            elif self.kind == "fails":
                raise DataError("the file is damaged", place="train.json:17")
            elif self.kind == "crashes":
                raise ValueError("a bug")
        return x


def train(kind, on_rank, timeout):
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1, dist_timeout=timeout)
    x, y = Points(n=64, batch_size=2)()
    loss = Mse()(out=Net(name="net")(x=Trouble(kind, on_rank)(x=x)), target=y)
    factory.train([loss], optimizer="sgd", optimization_params={"lr": 0.1, "max_steps": 100})


@pytest.mark.parametrize("dead", [0, 1])
def test_a_killed_rank_is_named_by_the_others_within_10_seconds(dead):
    ends = on_ranks(3, train, "killed", dead, 30.0)
    assert ends[dead].code == -signal.SIGKILL
    for rank, end in enumerate(ends):
        if rank != dead:
            assert end.code == 3
            assert end.seconds < 15  # the start included
            assert f"rank {dead} (" in end.err
            assert "is gone" in end.err
            assert "Traceback" not in end.err


def test_an_error_of_one_rank_ends_all_with_its_exit_code_and_its_text():
    first, second = on_ranks(2, train, "fails", 1, 30.0)
    assert (first.code, second.code) == (2, 2)
    assert "DataError: train.json:17: the file is damaged" in second.err
    assert "stopped at step 3: DataError: train.json:17: the file is damaged" in first.err


def test_a_bug_on_one_rank_ends_the_others_too():
    first, second = on_ranks(2, train, "crashes", 1, 30.0)
    assert second.code == 1
    assert first.code == 1
    assert "stopped at step 3: ValueError: a bug" in first.err


def test_a_rank_that_hangs_is_named_with_its_step_and_node_within_the_timeout_and_10_seconds():
    started = time.perf_counter()
    ends = on_ranks(2, train, "hangs", 1, 3.0)
    assert time.perf_counter() - started < 3 + 10 + 5  # five for the start on a busy machine
    assert all(end.code not in (0, None) for end in ends)
    told = ends[0].err
    assert "hangs at step 3 in forward of trouble" in told
    assert "rank 1 (" in told
