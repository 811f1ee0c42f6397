"""Watch: a rank that was killed, stopped, hangs or failed is named by the others, in time, and nobody waits on."""

import os
import signal
import time
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks, start_ranks, wait_all

from nemo_lite.backends.pytorch.distributed.rendezvous import meet
from nemo_lite.backends.pytorch.distributed.watch import Watch
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.utils.launch import who_am_i


class Sleeper(TrainableNM):
    """Sleeps on one rank."""

    def forward(self, seconds=60.0):
        time.sleep(seconds)


@contextmanager
def group(timeout=2.0, gloo_timeout=20.0, **kwargs):
    """What a run does around its work."""
    place = who_am_i()
    meeting = meet(place, 20.0)
    watch = Watch(meeting, place, timeout, **kwargs)
    dist.init_process_group(
        "gloo",
        store=meeting.store,
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=gloo_timeout),
    )
    try:
        yield watch, place.rank
    except BaseException as error:
        watch.fail(error)
        raise
    finally:
        watch.leave()
        dist.destroy_process_group()


def vote(watch, label="vote"):
    with watch.collective(label):
        dist.all_reduce(torch.zeros(1))


def steps(watch, number):
    for step in range(number):
        watch.step = step
        vote(watch)


def end_in_order():
    with group() as (watch, rank):
        steps(watch, 3)
        time.sleep(1.5 * rank)  # the first rank waits for the others, for it serves the store
        return watch.step


def test_a_run_that_ends_in_order_says_nothing():
    ends = on_ranks(2, end_in_order)
    assert [(end.code, end.err, end.result) for end in ends] == [(0, "", 2)] * 2


def wait_for_a_killed_one(victim):
    with group(timeout=60.0) as (watch, rank):
        steps(watch, 3)
        if rank == victim:
            be_ready()
            time.sleep(60)
        vote(watch)


def be_ready():
    """Ready to be killed: the others have seen where this rank is."""
    time.sleep(1.2)
    print("ready", flush=True)


def kill(victim, how, function, *args, world_size=3):
    """Start ranks, send one of them a signal when it is ready; how the others ended and how long that took."""
    ranks = start_ranks(world_size, function, *args)
    deadline = time.perf_counter() + 30
    while "ready" not in ranks[victim].out() and time.perf_counter() < deadline:
        time.sleep(0.05)
    os.kill(ranks[victim].pid, how)
    killed = time.perf_counter()
    others = wait_all([rank for number, rank in enumerate(ranks) if number != victim], 30)
    seconds = time.perf_counter() - killed
    ranks[victim].process.kill()
    ranks[victim].process.join()
    return others, seconds, ranks[victim].pid


@pytest.mark.parametrize("victim", [1, 0])
def test_a_killed_rank_is_named_by_all_others_within_ten_seconds(victim):
    others, seconds, pid = kill(victim, signal.SIGKILL, wait_for_a_killed_one, victim)
    assert seconds < 10
    for end in others:
        assert end.code == 3
        assert f"rank {victim} (" in end.err
        assert f"pid {pid}) is gone: its process has ended" in end.err
        assert "at step 2" in end.err
