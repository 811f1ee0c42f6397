"""A rank that fails before the training: the others learn within seconds which one it was, where and why."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest
from torch.distributed import TCPStore
from toys.nets import Net, Points
from toys.rank_training import rank_factory, train_net
from toys.ranks import Rank, free_port, on_ranks, results_of, wait_all

from nemo_lite.backends.pytorch.distributed.rendezvous import meet, tell_others
from nemo_lite.errors import DataError, UsageError, reported_to_user
from nemo_lite.utils.argparse import LaunchedParser
from nemo_lite.utils.launch import who_am_i

# With the start of the processes, on a busy machine. Untold, the others would wait for 60 seconds.
SECONDS = 25


@pytest.fixture(scope="module", autouse=True)
def _warm():
    on_ranks(1, int)  # the server that ranks fork off is not part of what is measured


def script(kind, who, when):
    """A script that fails on one rank, before or after it has joined the others."""
    rank = int(os.environ["RANK"])
    if rank != who:
        time.sleep(1.0 if when == "early" else 0.0)
    with reported_to_user():
        if when == "joined":
            factory = rank_factory()
        if rank == who:
            fail(kind)
        if when != "joined":
            factory = rank_factory()
        train_net(factory, Net(), Points(n=8, batch_size=2), max_steps=2)


def fail(kind):
    if kind == "data":
        raise DataError("the manifest is empty", place="train.json")
    if kind == "options":
        LaunchedParser(prog="a.py").parse_args(["--no_such"])
    if kind == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
    if kind == "bug":
        sys.last_value = ValueError("a bug")  # as the interpreter notes it, when it has printed the traceback
        raise sys.last_value


@pytest.mark.parametrize(
    ("kind", "who", "when", "told", "code"),
    [
        ("data", 1, "early", "failed before the ranks had met: DataError: train.json: the manifest is empty;", 2),
        ("data", 0, "late", "failed before the ranks had met: DataError: train.json: the manifest is empty;", 2),
        ("options", 0, "early", "failed before the ranks had met: UsageError: unrecognized arguments: --no_such;", 2),
        ("bug", 1, "late", "failed before the ranks had met: ValueError: a bug; see the end of that", 1),
        ("data", 1, "joined", "stopped: DataError: train.json: the manifest is empty;", 2),
        ("options", 0, "joined", "stopped: UsageError: unrecognized arguments: --no_such;", 2),
        ("signal", 0, "joined", "was stopped by SIGTERM;", 75),
        ("signal", 1, "joined", "was stopped by SIGTERM;", 75),
    ],
)
def test_a_rank_that_fails_before_training_is_told_on_all_ranks(kind, who, when, told, code):
    ends = on_ranks(2, script, kind, who, when)
    assert [end.code for end in ends] == [code, code], ends
    other = ends[1 - who]
    assert f"rank {who} (" in other.err
    assert told in other.err
    assert max(end.seconds for end in ends) < SECONDS
    assert "before the ranks had met" not in ends[who].err
    assert "[rank " not in ends[who].err  # its own error is there, and no report beside it


def test_all_ranks_that_fail_alike_end_at_once_with_their_own_errors():
    ends = on_ranks(3, fail_in_script)
    assert [(end.code, end.err) for end in ends] == [(2, "a.py: error: no such file\n")] * 3
    assert max(end.seconds for end in ends) < SECONDS


def fail_in_script():
    with reported_to_user("a.py"):
        raise UsageError("no such file")


def fail_then_meet():
    """Two starts under one launcher: rank 0 fails in the first, and in the second the other rank comes first."""
    rank = int(os.environ["RANK"])
    try:
        with reported_to_user():
            if rank == 0:
                raise DataError("the disk is full")
            meet(who_am_i(), 20.0)
    except SystemExit as end:
        first = end.code
    if rank == 0:
        time.sleep(1.0)
    return first, len(meet(who_am_i(), 20.0).members)


def test_a_launchers_store_tells_of_a_failure_once_and_not_after_a_restart():
    port = free_port()
    agent = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    env = {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    ends = on_ranks(2, fail_then_meet, env=env)
    assert [end.result for end in ends] == [(2, 2), (2, 2)], ends
    assert "rank 0 (" in ends[1].err
    assert "DataError: the disk is full" in ends[1].err
    del agent


def meet_beside_a_failure():
    """The third process of two is rank 1 of another run, and fails."""
    rank = int(os.environ["RANK"])
    if rank < 2:
        time.sleep(rank)
        meeting = meet(who_am_i(), 20.0)
        time.sleep(1.0)
        return len(meeting.members)
    time.sleep(0.5)
    os.environ.update(RANK="1", LOCAL_RANK="1", TORCHELASTIC_RUN_ID="another")
    tell_others(DataError("no such file"), 1.0)
    return None


def test_the_failure_of_a_process_of_another_run_ends_nobody():
    env = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    assert results_of(3, meet_beside_a_failure, env=env) == [2, 2, None]


def test_a_single_process_tells_nobody():
    started = time.perf_counter()
    ends = on_ranks(1, fail_in_script)
    assert (ends[0].code, ends[0].err) == (2, "a.py: error: no such file\n")
    assert time.perf_counter() - started < SECONDS


def read_identity_and_meet():
    with reported_to_user():
        process = LaunchedParser(prog="a.py").process_of(LaunchedParser(prog="a.py").parse_args([]))
        meet(process, 30.0)


@pytest.mark.parametrize("own_world_size", [2, 1])
def test_a_rank_that_is_out_of_range_tells_those_that_would_wait_for_another(own_world_size):
    """Also where its machine alone was told another number of processes."""
    port = str(free_port())
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    numbers = [("0", "0", "2"), ("2", "1", str(own_world_size))]
    ranks = [
        Rank({"RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": size, **where}, read_identity_and_meet, ())
        for rank, local_rank, size in numbers
    ]
    first, wrong = wait_all(ranks)
    assert (first.code, wrong.code) == (2, 2)
    problem = f"the rank is not below the world size: got rank 2 of {own_world_size}"
    assert wrong.err == f"a.py: error: {problem}\n"
    assert f") failed before the ranks had met: UsageError: {problem};" in first.err
    assert first.seconds < SECONDS
