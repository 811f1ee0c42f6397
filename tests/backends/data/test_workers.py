"""How many processes load batches, what they leave to the parent, and page-locked memory."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import weakref

import pytest
import torch
from torch.utils import data
from toys.interruptible import is_alive
from toys.nets import Net, Points, build, made_factory, train
from toys.ranks import Rank

import nemo_lite as nemo
from nemo_lite.backends.pytorch.data import workers
from nemo_lite.backends.pytorch.data.loaders import DatasetLoader
from nemo_lite.backends.pytorch.data.order import Batching, Shard, plans
from nemo_lite.backends.pytorch.data.workers import pins_memory_for, workers_for
from nemo_lite.base.errors import DataWorkerError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("cores", "gpus", "workers"), [(2, 1, 1), (1, 1, 1), (8, 1, 7), (64, 8, 7), (96, 8, 8), (128, 1, 8), (4, 8, 1)]
)
def test_a_gpu_gets_its_share_of_the_cores(monkeypatch, cores, gpus, workers):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert workers_for(GPU) == workers
    assert workers_for(CPU) == 0


def test_what_is_said_counts():
    assert (workers_for(GPU, 0), workers_for(CPU, 3)) == (0, 3)
    assert (pins_memory_for(GPU), pins_memory_for(CPU), pins_memory_for(GPU, False)) == (True, False, False)


@pytest.mark.parametrize(
    ("settings", "given"), [({}, (2, True)), ({"num_workers": 0, "pin_memory": False}, (0, False))]
)
def test_the_loaders_of_a_data_layer_follow_its_device(monkeypatch, settings, given):
    made = {}

    class Noted(data.DataLoader):
        def __init__(self, dataset, **options):
            made.update(options)
            none = {"num_workers": 0, "persistent_workers": False, "multiprocessing_context": None}
            super().__init__(dataset, **options | none | {"pin_memory": False})

    monkeypatch.setattr("nemo_lite.backends.pytorch.data.loaders.DataLoader", Noted)
    monkeypatch.setattr(
        "nemo_lite.backends.pytorch.data.loaders.workers_for", lambda device, chosen: 2 if chosen is None else chosen
    )
    layer = Points()
    layer._device = GPU
    for name, value in settings.items():
        setattr(layer, name, value)
    layer.loader(training=True, shard=Shard())
    assert (made["num_workers"], made["pin_memory"]) == given


def test_without_workers_the_iterator_of_torch_is_not_run(monkeypatch):
    loader = Points().loader(training=False, shard=Shard())
    expected = [batch.values for batch in loader.epoch(0)]
    monkeypatch.setattr(data.DataLoader, "__iter__", lambda self: pytest.fail("it costs 40 microseconds a batch"))
    for values, again in zip(expected, (batch.values for batch in loader.epoch(0)), strict=True):
        assert all(map(torch.equal, values, again))


class CollectsGarbage(data.Dataset):
    def __getitem__(self, index):
        return gc.collect()


class Cycle:
    def __init__(self):
        self.itself = self


@pytest.mark.slow
def test_garbage_of_the_parent_is_not_collected_in_its_workers(tmp_path):
    # Where garbage of the parent holds threads, as a session of ONNX Runtime does, its end in a fork hangs or crashes.
    gc.collect()
    gc.disable()
    try:
        weakref.finalize(Cycle(), lambda: (tmp_path / f"collected_by_{os.getpid()}").touch())
        plan_of = plans(1, Batching(1), Shard(), training=False)
        settings = {"num_workers": 1, "multiprocessing_context": "fork"}
        loader = DatasetLoader(CollectsGarbage(), plan_of, ["index"], Shard(), **settings)
        assert len(list(loader.epoch(0))) == 1
        assert list(tmp_path.iterdir()) == []
        gc.collect()
        assert [path.name for path in tmp_path.iterdir()] == [f"collected_by_{os.getpid()}"]
    finally:
        gc.enable()


class Hangs(data.Dataset):
    """The worker that reads item 2 hangs or is stopped, once the batches before have arrived."""

    def __init__(self, is_stopped, arrived):
        self.is_stopped, self.arrived = is_stopped, arrived

    def __getitem__(self, index):
        if index == 2:
            while not self.arrived.exists():
                time.sleep(0.01)
            if self.is_stopped:
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(3600)
        return index


def test_a_data_layer_says_how_long_its_workers_may_be_silent(monkeypatch):
    class Layer(nemo.DataLayerNM):
        dataset = [(0,)]
        output_ports = {"x": nemo.core.NeuralType(None)}

        def __len__(self):
            return 1

    def within(loader, seconds):
        limits.append(seconds)
        return iter(())

    limits, layer = [], Layer()
    monkeypatch.setattr("nemo_lite.backends.pytorch.data.loaders.within_silence", within)
    assert layer.worker_timeout == 600
    for layer.worker_timeout in (None, 0, 5.5):
        list(layer.loader(training=False, shard=Shard()).epoch(0))
    assert limits == [None, 0, 5.5]


@pytest.mark.slow
def test_workers_may_be_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(workers, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(workers, "SILENCE_SECONDS", 0.1)

    class Slow(data.Dataset):
        def __getitem__(self, index):
            time.sleep(0.3)
            return index

    loader = data.DataLoader(Slow(), None, sampler=[0], num_workers=1, multiprocessing_context="fork")
    assert list(workers.within_silence(loader, 0)) == [0]
    with pytest.raises(DataWorkerError, match=r"no batch for 0\.1 s"):
        list(workers.within_silence(loader))


@pytest.mark.slow
@pytest.mark.parametrize(("is_stopped", "doing"), [(True, "is stopped"), (False, "waits for something")])
def test_a_worker_that_hangs_is_named_and_none_of_them_is_left(monkeypatch, tmp_path, is_stopped, doing):
    monkeypatch.setattr(workers, "TICK_SECONDS", 0.2)
    plan_of, items = plans(4, Batching(1), Shard(), training=False), Hangs(is_stopped, tmp_path / "arrived")
    loader = DatasetLoader(items, plan_of, ["index"], Shard(), num_workers=2, worker_timeout=3)
    batches = loader.epoch(0)
    assert [int(next(batches).values[0]) for _ in range(2)] == [0, 1]
    items.arrived.touch()
    children = [child for child in multiprocessing.active_children() if child.daemon]  # not what another test left
    assert len(children) == 2
    pids = "|".join(str(child.pid) for child in children)
    told = rf"^a data worker \(pid ({pids})\) gave no batch for 3 s and {doing}; "
    what_to_do = r"where a batch takes so long, raise --worker_timeout .*; else check the disk .*num_workers=0"
    with pytest.raises(DataWorkerError, match=told + what_to_do):
        next(batches)
    assert [child for child in children if child.is_alive()] == []


@pytest.mark.slow
def test_a_worker_that_is_slow_is_waited_for(monkeypatch):
    monkeypatch.setattr(workers, "TICK_SECONDS", 0.1)

    class Slow(data.Dataset):
        def __getitem__(self, index):
            time.sleep(0.35)
            return index

    plan_of = plans(2, Batching(1), Shard(), training=False)
    loader = DatasetLoader(Slow(), plan_of, ["index"], Shard(), num_workers=1)
    assert [int(batch.values[0]) for batch in loader.epoch(0)] == [0, 1]


def hang_in_a_worker(folder):
    """A process whose worker hangs; it leaves the worker's process id."""
    multiprocessing.set_start_method("fork", force=True)
    plan_of, items = plans(3, Batching(1), Shard(), training=False), Hangs(False, folder)
    batches = DatasetLoader(items, plan_of, ["index"], Shard(), num_workers=1).epoch(0)
    next(batches)
    (folder / "worker").write_text(str(multiprocessing.active_children()[0].pid))
    next(batches)
    next(batches)


@pytest.mark.long
def test_a_worker_that_hangs_does_not_outlive_a_parent_that_is_killed(tmp_path):
    parent, deadline = Rank({}, hang_in_a_worker, (tmp_path,)), time.monotonic() + 60
    while not (tmp_path / "worker").exists() or not (tmp_path / "worker").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    worker = int((tmp_path / "worker").read_text())
    assert is_alive(worker)
    parent.process.kill()
    parent.wait(deadline)
    while is_alive(worker):
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Breaks(Net):
    def forward(self, x):
        raise ValueError("broken")


@pytest.mark.slow
@pytest.mark.parametrize("net", [Net, Breaks])
def test_workers_end_with_the_training_while_its_factory_and_its_error_live_on(net):
    factory, layer, before = made_factory(), Points(), set(multiprocessing.active_children())
    layer.num_workers = 1
    error = None
    try:
        train(factory, [build(layer, net())[1]])
    except ValueError as raised:
        error = raised
    assert (error is None) == (net is Net)
    assert set(multiprocessing.active_children()) <= before


FAILS_BESIDE_WORKERS = """
import os
import torch
from torch.utils import data
from nemo_lite.backends.pytorch.data.workers import within_silence
class Tensors(data.Dataset):
    def __getitem__(self, index):
        return torch.zeros(100)
batches = within_silence(data.DataLoader(Tensors(), None, sampler=range(1000), num_workers=2))
next(batches), next(batches)
print(sum(name.startswith("pymp-") for name in os.listdir(os.environ["TMPDIR"])))
1 / 0
"""


@pytest.mark.long
@pytest.mark.slow
def test_an_error_beside_data_workers_leaves_no_folder_of_their_sockets(tmp_path):
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", FAILS_BESIDE_WORKERS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)
    assert "ZeroDivisionError" in ended.stderr
    assert ended.stdout == "1\n"  # shared by this process and its workers
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("pymp-")] == []
