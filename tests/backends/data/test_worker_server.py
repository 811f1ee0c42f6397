"""Data workers that a server forks: no lock of this process, not its script, its environment, its end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
from torch.utils import data
from toys.interruptible import is_alive
from toys.nets import Points

from nemo_lite.backends.pytorch.data import workers
from nemo_lite.backends.pytorch.data.loaders import DatasetLoader, PlannedLoader
from nemo_lite.backends.pytorch.data.order import Batching, Shard, plans
from nemo_lite.base.errors import DataWorkerError
from nemo_lite.utils import logging

LOCK = threading.Lock()


def loader_of(dataset, num_items=2, **settings):
    plan_of = plans(num_items, Batching(1), Shard(), training=False)
    return DatasetLoader(dataset, plan_of, ["x"], Shard(), **{"num_workers": 1, "worker_timeout": 60, **settings})


class TakesLock(data.Dataset):
    def __getitem__(self, index):
        with LOCK:
            return index


@pytest.mark.long
@pytest.mark.slow
def test_a_lock_that_another_thread_holds_while_workers_start_does_not_hold_them_up():
    is_over = threading.Event()
    is_held = threading.Event()

    def hold():
        with LOCK:
            is_held.set()
            is_over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    try:
        assert [int(batch.values[0]) for batch in loader_of(TakesLock(), num_workers=2).epoch(0)] == [0, 1]
        with pytest.raises(DataWorkerError, match="gave no batch for 3 s"):  # a fork has the lock, and nobody frees it
            list(loader_of(TakesLock(), worker_timeout=3, multiprocessing_context="fork").epoch(0))
    finally:
        is_over.set()
        thread.join()


class Variables(data.Dataset):
    def __getitem__(self, index):
        return os.environ.get("SET_LATE", ""), os.getppid()


def facts_of(dataset, **settings):
    (batch,) = loader_of(dataset, 1, collate_fn=list, **settings).epoch(0)
    return batch.values[0]


@pytest.mark.slow
def test_workers_get_the_environment_that_this_process_has_when_they_start(monkeypatch):
    assert facts_of(Variables())[0] == ""
    monkeypatch.setenv("SET_LATE", "1")
    late, parent = facts_of(Variables())
    assert late == "1"
    assert parent != os.getpid()


@pytest.fixture
def warnings_of(monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(workers, "_reasons_of_forks", set())
    monkeypatch.setattr(logging, "warning", told.append)
    return told


@pytest.mark.slow
def test_a_data_set_that_only_this_process_has_goes_to_forks_and_the_log_says_why_once(warnings_of):
    class Local(data.Dataset):
        def __getitem__(self, index):
            return "", os.getppid()

    for _ in range(2):
        assert facts_of(Local())[1] == os.getpid()
    (told,) = warnings_of
    assert "Data workers are forked from this process" in told
    assert "Local" in told
    points = Points()
    points.num_workers = 1
    points.collate_fn = lambda items: data.default_collate(items)
    expected = Points().loader(training=False, shard=Shard()).epoch(0)
    for mine, theirs in zip(points.loader(training=False, shard=Shard()).epoch(0), expected, strict=True):
        assert all(map(torch.equal, mine.values, theirs.values))
    assert "lambda" in warnings_of[1]


class Large(Variables):
    def __init__(self):
        self.content = os.urandom(1000)


def test_a_large_data_set_is_shared_and_not_copied(warnings_of, monkeypatch):
    monkeypatch.setattr(workers, "MOST_BYTES", 500)
    assert facts_of(Large())[1] == os.getpid()
    assert "it is larger than" in warnings_of[0]


def test_who_chooses_a_start_method_gets_it(warnings_of):
    layer = Points()
    layer.num_workers, layer.multiprocessing_context = 1, "fork"
    loader = layer.loader(training=False, shard=Shard())
    assert isinstance(loader, PlannedLoader)
    assert loader._loader.multiprocessing_context is multiprocessing.get_context("fork")
    assert facts_of(Variables(), multiprocessing_context="fork")[1] == os.getpid()
    assert warnings_of == []


def test_a_stop_signal_for_all_processes_of_a_job_ends_neither_server_nor_workers():
    loader = loader_of(Variables(), 8, collate_fn=list)
    batches = loader.epoch(0)
    server = next(batches).values[0][1]
    (worker,) = [
        child.pid for child in multiprocessing.active_children() if child.daemon and child.pid in children_of(server)
    ]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        os.kill(server, number)
        if number != signal.SIGTERM:  # which a worker takes from the process of the run only
            os.kill(worker, number)
    assert len(list(batches)) == 7
    assert facts_of(Variables())[1] == server  # or another would have been started
    assert len(list(loader.epoch(1))) == 8


def children_of(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


SCRIPT = """
    import sys, time
    import nemo_lite as nemo
    from nemo_lite.backends.pytorch.data import DatasetLoader, Shard
    from nemo_lite.backends.pytorch.data.order import Batching, plans
    from test_worker_server import Variables, loader_of

    print("the script runs", flush=True)
    batches = loader_of(Variables(), 4, num_workers=2, collate_fn=list, worker_timeout=0).epoch(0)
    print("server", next(batches).values[0][1], flush=True)
    time.sleep(float(sys.argv[1]))
"""


def script(folder, seconds):
    path = folder / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    own = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    paths = os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, path, str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.long
@pytest.mark.slow
def test_a_script_without_a_main_block_runs_once(tmp_path):
    out, err = script(tmp_path, 0).communicate(timeout=120)
    assert out.count("the script runs") == 1
    assert err == ""


@pytest.mark.long
@pytest.mark.slow
def test_server_and_workers_end_with_a_process_that_is_killed(tmp_path):
    process = script(tmp_path, 600)
    assert process.stdout is not None
    server = int([process.stdout.readline() for _ in range(2)][1].split()[1])
    workers = children_of(server)
    assert len(workers) == 2
    process.kill()
    _, err = process.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while any(map(is_alive, [server, *workers])):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert err == ""


@pytest.mark.slow
def test_a_worker_that_hangs_between_two_epochs_is_named_as_well(monkeypatch):
    loader = loader_of(Variables(), collate_fn=list, worker_timeout=2)
    (_, server), _ = [batch.values[0] for batch in loader.epoch(0)]
    (worker,) = [
        child.pid for child in multiprocessing.active_children() if child.daemon and child.pid in children_of(server)
    ]
    os.kill(worker, signal.SIGSTOP)
    with pytest.raises(DataWorkerError, match="a data worker gave no batch for 2 s"):
        list(loader.epoch(1))
    assert not is_alive(worker)


@pytest.mark.slow
def test_a_minute_without_a_batch_is_told(monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(logging, "warning", told.append)
    monkeypatch.setattr(workers, "TICK_SECONDS", 0.2)
    monkeypatch.setattr(workers, "_WARNING_SECONDS", 0.5)

    class Slow(data.Dataset):
        def __getitem__(self, index):
            time.sleep(1.5)
            return index

    loader = data.DataLoader(Slow(), None, sampler=[0], num_workers=1, multiprocessing_context="fork")
    assert list(workers.within_silence(loader, 30)) == [0]
    assert len(told) == 1
    assert "Waiting for data: a data worker (pid" in told[0]
