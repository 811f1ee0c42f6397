"""A data worker that died is named as such, with what to check: wherever the main process was, with one rank or two."""

import errno
import gc
import multiprocessing
import multiprocessing.queues
import os
import resource
import signal
import sys
import threading
import time

import numpy as np
import pytest
import torch
from toys.nets import BD, Mse, Net, Points
from toys.ranks import on_ranks

import nemo_lite as nemo
from nemo_lite.backends.pytorch.distributed import failures
from nemo_lite.backends.pytorch.distributed.failures import torch_errors_named
from nemo_lite.base.errors import DataWorkerError


class Deadly(torch.utils.data.Dataset):
    """An item of it ends the process that reads it."""

    def __init__(self, number, on_rank):
        self.number, self.on_rank, self.main = number, on_rank, os.getpid()

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == 9 and os.getpid() != self.main and os.environ.get("RANK") == self.on_rank:
            os.kill(os.getpid(), self.number)
        return torch.rand(3), torch.rand(1)


class FromWorkers(Points):
    def __init__(self, number, on_rank):
        super().__init__(n=16, batch_size=2)
        self.num_workers, self.items = 1, Deadly(number, on_rank)

    @property
    def dataset(self):
        return self.items


class Slow(nemo.NonTrainableNM):
    """A worker dies while the main process is here."""

    input_ports = {"x": BD}
    output_ports = {"out": BD}

    def forward(self, x):
        time.sleep(0.05)
        return x


def train(number, on_rank=None):
    train_on(FromWorkers(number, on_rank))


def train_on(layer):
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
    x, y = layer()
    loss = Mse()(out=Net(name="net")(x=Slow()(x=x)), target=y)
    factory.train([loss], optimizer="sgd", optimization_params={"lr": 0.1, "max_steps": 100})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "text"),
    [
        (signal.SIGKILL, r"was killed by SIGKILL; the system was probably short of memory: check memory \(free -h"),
        (signal.SIGBUS, r"was killed by SIGBUS; shared memory was probably full: check memory .*df -h /dev/shm"),
    ],
)
def test_a_killed_data_worker_is_named_with_what_to_check(number, text):
    with pytest.raises(DataWorkerError, match=rf"^a data worker \(pid \d+\) {text}.*--num_workers"):
        train(number)


class Greedy(Deadly):
    """An item of it needs more memory than there is."""

    def __init__(self, make):
        super().__init__(0, None)
        self.make = make

    def __getitem__(self, index):
        if index == 9:
            self.make()
        return torch.rand(3), torch.rand(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: bytearray(1 << 60), "MemoryError"),
        (lambda: np.ones(1 << 58), r"numpy.*MemoryError: Unable to allocate .* for an array with shape"),
    ],
    ids=["python", "numpy"],
)
def test_a_worker_that_gets_no_memory_is_named_with_what_to_check(make, said):
    layer = FromWorkers(0, None)
    layer.items = Greedy(make)
    with pytest.raises(
        DataWorkerError, match=rf"^a data worker ran out of memory: got .*{said}.*; check memory"
    ) as told:
        train_on(layer)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, r"got No space left on device; check memory .* shared memory \(df -h /dev/shm; in a container"),
        (errno.EMFILE, r"got Too many open files; raise the limit of open files, \d+ now \(ulimit -n; in a container"),
    ],
)
def test_workers_that_cannot_be_started_are_told_in_one_line(number, remedy, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    monkeypatch.setattr(multiprocessing.queues.Queue, "__init__", refuse)
    with pytest.raises(DataWorkerError, match=rf"^data workers cannot be started: {remedy}") as told:
        train(0)
    assert "\n" not in str(told.value)
    assert told.value.exit_code == 2
    del told
    gc.collect()
    assert not ignored, "a loader that is half made says nothing more"


class Limited(Deadly):
    """The first item of a worker takes all further memory away and asks for some; there the others tell threads."""

    def __init__(self):
        super().__init__(0, None)

    def __getitem__(self, index):
        if not any("QueueFeeder" in thread.name for thread in threading.enumerate()):
            raise LookupError("no thread sends what this worker gives")
        resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
        return torch.from_numpy(np.zeros(1 << 28)), torch.rand(1)


@pytest.mark.slow
def test_a_worker_whose_memory_ends_with_its_first_item_is_told_at_once():
    layer = FromWorkers(0, None)
    layer.items = Limited()
    started = time.monotonic()
    with pytest.raises(DataWorkerError, match=r"^a data worker ran out of memory: got .*MemoryError.*; check memory"):
        train_on(layer)
    assert time.monotonic() - started < 30.0


def train_as_rank(*args):
    multiprocessing.set_start_method("fork", force=True)  # the forkserver of a rank would import torch anew
    train(*args)


def test_a_killed_data_worker_of_one_rank_is_named_on_both_and_nobody_looks_at_the_network():
    first, second = on_ranks(2, train_as_rank, signal.SIGKILL, "1")
    assert (first.code, second.code) == (2, 2)
    assert second.err.startswith("DataWorkerError: a data worker (pid ")
    assert "stopped" in first.err
    assert ": DataWorkerError: a data worker (pid " in first.err
    assert "network" not in first.err + second.err


def test_a_worker_whose_exit_code_was_lost_is_named_too(monkeypatch):
    ended = multiprocessing.get_context("fork").Process(target=int, daemon=True)
    ended.start()
    ended.join()
    monkeypatch.setattr(type(ended), "exitcode", None)
    monkeypatch.setattr(failures, "_workers", lambda error: [ended])
    with (
        pytest.raises(DataWorkerError, match=rf"a data worker \(pid {ended.pid}\) died; check memory"),
        torch_errors_named(),
    ):
        raise RuntimeError("DataLoader worker is killed by signal")


def die_soon(connection):
    connection.close()
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def dying(monkeypatch):
    """The other end of a connection to a worker that has closed its own, as a killed process does, and then dies."""
    here, there = multiprocessing.Pipe()
    worker = multiprocessing.get_context("fork").Process(target=die_soon, args=(there,), daemon=True)
    worker.start()
    there.close()
    monkeypatch.setattr(failures, "_workers", lambda error: [worker])
    yield here
    worker.join()


def test_a_worker_whose_connection_is_lost_before_it_has_ended_is_named(dying):
    text = r"^a data worker \(pid \d+\) was killed by SIGKILL; the system was probably short of memory"
    with pytest.raises(DataWorkerError, match=text), torch_errors_named():
        dying.recv()


def test_a_connection_that_a_worker_itself_lost_is_told_at_once(dying, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waited for a worker to end"))
    with pytest.raises(ConnectionResetError, match="of the dataset"), torch_errors_named():
        raise ConnectionResetError("Caught ConnectionResetError in DataLoader worker process 0: of the dataset")


def test_an_error_that_does_not_come_from_loaders_stays_as_it_is():
    with pytest.raises(RuntimeError, match="DataLoader worker is killed") as caught, torch_errors_named():
        raise RuntimeError("DataLoader worker is killed")
    assert not isinstance(caught.value, DataWorkerError)
