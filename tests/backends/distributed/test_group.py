"""ProcessGroup in a training run: when a rank dies, fails or hangs, the others end soon and name it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from toys.nets import BD, Mse, Net, Points
from toys.ranks import on_ranks

import nemo_lite as nemo
from nemo_lite.backends.pytorch.distributed import group
from nemo_lite.base.errors import DataError, UsageError, reported_to_user


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
            elif self.kind == "reads":
                raise RuntimeError("Error opening '/data/gloo/a.wav': connection reset")
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
    others = [end for rank, end in enumerate(ends) if rank != dead]
    assert [end.code for end in others] == [3, 3]
    assert max(end.seconds for end in others) < 15  # the start included
    # One report for the run, and a line from each other rank: no more, also where the server died within a request.
    report, short = sorted((line for end in others for line in end.err.splitlines()), key=len, reverse=True)
    assert f"] rank {dead} (" in report
    assert "is gone: its process has ended" in report
    assert short.endswith(f"] ends because of rank {dead}; another rank of this machine prints the report")


def test_an_error_of_one_rank_ends_all_with_its_exit_code_and_its_text():
    first, second = on_ranks(2, train, "fails", 1, 30.0)
    assert (first.code, second.code) == (2, 2)
    assert "DataError: train.json:17: the file is damaged" in second.err
    assert "stopped at step 3: DataError: train.json:17: the file is damaged" in first.err


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("crashes", "ValueError: a bug"),
        # Words of networks in it change nothing.
        ("reads", "RuntimeError: Error opening '/data/gloo/a.wav': connection reset"),
    ],
)
def test_a_bug_on_one_rank_prints_its_whole_traceback_there_once_and_ends_the_others_with_one_line(kind, text):
    ends = on_ranks(3, train, kind, 1, 30.0)
    assert [end.code for end in ends] == [1, 1, 1]
    first, second, third = (end.err for end in ends)
    assert second.count("Traceback (most recent call last)") == second.count(text) == 1
    assert second.index(", in train") < second.index(", in forward") < second.index(text)
    report, short = sorted((first, third), key=len, reverse=True)
    assert report.endswith(f"stopped at step 3: {text}; see the end of that process' own output\n")
    assert short.endswith("] ends because of rank 1; another rank of this machine prints the report\n")
    assert report.count("\n") == short.count("\n") == 1


def test_a_rank_that_hangs_is_named_with_its_step_and_node_within_the_timeout_and_10_seconds():
    started = time.perf_counter()
    ends = on_ranks(2, train, "hangs", 1, 3.0)
    assert time.perf_counter() - started < 3 + 10 + 5  # five for the start on a busy machine
    assert all(end.code not in (0, None) for end in ends)
    told = ends[0].err + ends[1].err
    assert told.count("hangs at step 3 in forward of trouble") == 1
    assert "] rank 1 (" in told


def save_on_a_slow_disk(folder, seconds):
    """Each fsync takes so long on rank 0; a checkpoint makes several."""
    fsync = os.fsync
    if os.environ["RANK"] == "0":
        os.fsync = lambda file: (time.sleep(seconds), fsync(file))
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1, dist_timeout=3.0)
    x, y = Points(n=64, batch_size=2)()
    loss = Mse()(out=Net(name="net")(x=x), target=y)
    saves = nemo.CheckpointCallback(folder, step_freq=2)
    started = time.monotonic()
    factory.train([loss], optimizer="sgd", optimization_params={"lr": 0.1, "max_steps": 3}, callbacks=[saves])
    return time.monotonic() - started


@pytest.mark.long
def test_a_checkpoint_may_take_longer_than_the_timeout_while_it_is_being_written(tmp_path):
    ends = on_ranks(2, save_on_a_slow_disk, tmp_path, 1.0)
    assert [end.code for end in ends] == [0, 0], ends[0].err + ends[1].err
    assert min(end.result for end in ends) > 4.0  # longer than the timeout, so that this test can fail


@pytest.mark.long
def test_a_checkpoint_of_which_nothing_is_written_any_more_is_a_hang(tmp_path):
    ends = on_ranks(2, save_on_a_slow_disk, tmp_path, 60.0)
    assert [end.code for end in ends] == [3, 3]
    assert "rank 0 (" in ends[0].err + ends[1].err
    told = "in writing a checkpoint, while rank 1 waits for it in collective"
    assert (ends[0].err + ends[1].err).count(told) == 1


def join_by(backend):
    with reported_to_user("own.py"):
        nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, dist_backend=backend)


@pytest.mark.skipif(dist.is_nccl_available(), reason="this torch has nccl")
def test_nccl_where_torch_has_none_is_one_line_on_each_rank_and_exit_code_2():
    ends = on_ranks(2, join_by, "nccl")
    line = (
        "own.py: error: dist_backend=nccl: this torch has no nccl; use gloo (--dist_backend gloo, dist_backend='gloo')"
    )
    assert [(end.code, end.err) for end in ends] == [(2, f"{line}\n")] * 2


def test_nccl_on_a_cpu_and_names_that_no_backend_has_are_refused(monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    with pytest.raises(UsageError, match=r"dist_backend=nccl: nccl works between GPUs, and this rank runs on the cpu"):
        group.usable_backend("nccl", torch.device("cpu"))
    with pytest.raises(UsageError, match=r"dist_backend=glou: this torch has no glou; use gloo"):
        group.usable_backend("glou", torch.device("cpu"))
    assert group.usable_backend(None, torch.device("cpu")) == "gloo"
    assert group.usable_backend(None, torch.device("cuda", 0)) == "nccl"
    assert group.usable_backend("cpu:gloo,cuda:nccl", torch.device("cpu")) == "cpu:gloo,cuda:nccl"


def test_groups_of_synced_batchnorm_wait_as_long_as_the_group_of_gradients(monkeypatch):
    """On nccl ten seconds more, so that our report comes first. With stand-ins for torch's groups."""
    waits = {}
    monkeypatch.setattr(dist, "init_process_group", lambda *args, **kwargs: waits.update(gradients=kwargs["timeout"]))
    monkeypatch.setattr(dist, "new_group", lambda *args, **kwargs: None)
    monkeypatch.setattr(group, "print_each_once", lambda: None)
    monkeypatch.setattr(group, "make_groups", lambda size, of, timeout: waits.update(batchnorm=timeout))
    ranks = group.ProcessGroup.__new__(group.ProcessGroup)
    ranks.rank, ranks.world_size, ranks.device, ranks._groups = 0, 4, torch.device("cpu"), {}
    ranks._monitor = SimpleNamespace(collective=lambda name: nullcontext(), is_asynchronous=False)
    ranks._store, ranks.backend, ranks._timeout = None, "nccl", timedelta(seconds=60)
    ranks._join()
    monkeypatch.setattr(group, "synced_batchnorm", lambda modules, of: None)
    ranks.synced_batchnorm([], 2)
    assert waits == dict.fromkeys(("gradients", "batchnorm"), timedelta(seconds=70))
    assert ranks._monitor.is_asynchronous


@pytest.mark.parametrize(
    ("timeout", "silence"), [(1.0, 6.0), (60.0, 6.0), (300.0, 30.0), (600.0, 60.0), (3600.0, 60.0)]
)
def test_the_limit_of_silence_follows_the_timeout(timeout, silence):
    assert group.Patience(timeout_seconds=timeout).silence == silence
    assert group.Patience(timeout_seconds=timeout, silence_seconds=9.0).silence == 9.0
