"""HealthMonitor: a rank that was killed, stopped, hangs or failed is named by the others in time; nobody waits on."""

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from toys.ranks import free_port, on_ranks, start_ranks, wait_all

from nemo_lite.backends.pytorch.distributed.health import RUNS, Diagnosis, HealthMonitor, Status
from nemo_lite.backends.pytorch.distributed.rendezvous import Member, meet
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.errors import DataError
from nemo_lite.utils.launch import who_am_i


class Sleeper(TrainableNM):
    """Sleeps on one rank."""

    def forward(self, seconds=60.0):
        time.sleep(seconds)


@contextmanager
def group(timeout=1.0, gloo_timeout=60.0, grace=0.5, **kwargs):
    """What a run does around its work, with heartbeats five times as fast."""
    info = who_am_i()
    meeting = meet(info, 20.0)
    monitor = HealthMonitor(meeting, info, timeout, beat_seconds=0.1, grace_seconds=grace, **kwargs)
    dist.init_process_group(
        "gloo",
        store=meeting.store,
        rank=info.rank,
        world_size=info.world_size,
        timeout=timedelta(seconds=gloo_timeout),
    )
    try:
        yield monitor, info.rank
    except BaseException as error:
        monitor.report_own_error(error)
        raise
    finally:
        monitor.leave()
        dist.destroy_process_group()


def vote(monitor, label="vote"):
    with monitor.collective(label):
        dist.all_reduce(torch.zeros(1))


def steps(monitor, number):
    for step in range(number):
        monitor.step = step
        vote(monitor)


def end_in_order():
    with group() as (monitor, rank):
        steps(monitor, 3)
        time.sleep(0.7 if rank == 2 else 0.0)  # rank 0 waits for the others, because it serves the store
        return monitor.step


def test_a_run_whose_ranks_end_in_order_one_after_the_other_says_nothing():
    ends = on_ranks(3, end_in_order)
    assert [(end.code, end.err, end.result) for end in ends] == [(0, "", 2)] * 3


def be_ready():
    """Ready to be killed: the others have seen where this rank is."""
    time.sleep(0.4)
    print("ready", flush=True)


def wait_for_a_killed_one(victim, silence=6.0):
    with group(timeout=60.0, silence_seconds=silence) as (monitor, rank):
        steps(monitor, 3)
        if rank == victim:
            if os.fork() == 0:  # like a data loader's worker, it keeps the connections open when its parent is killed
                time.sleep(5)
                os._exit(0)
            be_ready()
        if rank in (victim, 2):
            time.sleep(60)  # rank 2 computes on its own and asks nobody
        vote(monitor)


def struck(victim, strike, function, *args, world_size=3):
    """Start ranks, send one of them a signal when it is ready; how the others ended, how long that took, its pid."""
    ranks = start_ranks(world_size, function, *args)
    deadline = time.perf_counter() + 30
    while "ready" not in ranks[victim].out() and time.perf_counter() < deadline:
        time.sleep(0.05)
    os.kill(ranks[victim].pid, strike)
    killed = time.perf_counter()
    others = wait_all([rank for number, rank in enumerate(ranks) if number != victim], 30)
    seconds = time.perf_counter() - killed
    ranks[victim].process.kill()
    ranks[victim].process.join()
    return others, seconds, ranks[victim].pid


def printed(ends):
    """What several ranks print, as on one terminal."""
    return "".join(end.err for end in ends)


@pytest.mark.parametrize("victim", [1, 0])
def test_a_killed_rank_is_named_by_one_of_the_others_within_ten_seconds(victim):
    others, seconds, pid = struck(victim, signal.SIGKILL, wait_for_a_killed_one, victim)
    assert seconds < 10
    assert [end.code for end in others] == [3, 3]
    report, short = sorted(printed(others).splitlines(), key=len, reverse=True)
    assert f"] rank {victim} (" in report
    assert f"pid {pid}) is gone: its process has ended, last seen at step 2 in test_monitor.py:" in report
    assert short.endswith(f"] ends because of rank {victim}; another rank of this machine prints the report")


@pytest.mark.parametrize("victim", [1, 0])
def test_a_stopped_rank_is_named_once_it_was_silent(victim):
    others, seconds, pid = struck(victim, signal.SIGSTOP, wait_for_a_killed_one, victim, 1.5, world_size=2)
    assert seconds < 1.5 + 4
    (end,) = others
    assert end.code == 3
    assert f"pid {pid}) is stopped (SIGSTOP, Ctrl-Z or a debugger), last seen at step 2 in" in end.err
    assert f"continue it with kill -CONT {pid}" in end.err


def serve_a_store(port):
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    time.sleep(60)
    return store


def compute_until_told():
    with group() as (monitor, _):
        vote(monitor)
        print("ready", flush=True)
        time.sleep(60)


def test_a_launcher_whose_store_is_gone_is_named():
    port = free_port()
    (launcher,) = start_ranks(1, serve_a_store, port)
    ranks = start_ranks(2, compute_until_told, env={"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"})
    deadline = time.perf_counter() + 30
    while not all("ready" in rank.out() for rank in ranks) and time.perf_counter() < deadline:
        time.sleep(0.05)
    launcher.process.kill()
    ends = wait_all(ranks, 10)
    assert [end.code for end in ends] == [3, 3]
    told = f"[rank 0] the launcher of the first machine is gone: its store at 127.0.0.1:{port} was closed"
    assert told in ends[0].err
    assert ends[1].err.endswith("[rank 1] ends with all ranks; another rank of this machine prints the report\n")


def hang_in_forward(gloo_timeout):
    net = Sleeper(name="encoder")
    with group(gloo_timeout=gloo_timeout) as (monitor, rank):
        steps(monitor, 3)
        if rank == 1:
            net.forward()
        vote(monitor)


@pytest.mark.parametrize("gloo_timeout", [60.0, 0.8])
def test_a_hung_rank_is_named_with_its_step_and_module(gloo_timeout):
    """Whether the backend's timeout comes first or ours."""
    ends = on_ranks(2, hang_in_forward, gloo_timeout)
    assert [end.code for end in ends] == [3, 3]
    assert max(end.seconds for end in ends) < 2 + 10
    text = printed(ends)
    assert (
        text.count(" hangs at step 2 in forward of encoder, while rank 0 waits for it in collective 4 (vote) for ") == 1
    )
    assert text.count("rank  host") == 1
    assert text.count("ends because of rank 1; another rank of this machine prints the report\n") == 1


def transfer(monitor, rank):
    with monitor.collective("gather: rank 1 to rank 0", 1 - rank):
        dist.send(torch.ones(1), 0) if rank == 1 else dist.recv(torch.zeros(1), 1)


def hang_before(call):
    net = Sleeper(name="encoder")
    with group() as (monitor, rank):
        transfer(monitor, rank)
        if rank == 1:
            net.forward()
        transfer(monitor, rank) if call == "transfer" else vote(monitor)


@pytest.mark.parametrize(("call", "where"), [("transfer", "gather: rank 1 to rank 0"), ("vote", "collective 1 (vote)")])
def test_a_transfer_between_two_ranks_is_not_counted_as_a_collective_of_all(call, where):
    text = printed(on_ranks(2, hang_before, call))
    assert text.count(f"in forward of encoder, while rank 0 waits for it in {where} for ") == 1


def raise_on_one_rank():
    with group() as (monitor, rank):
        steps(monitor, 3)
        if rank == 1:
            raise DataError("duration is negative", place="train.json:17")
        vote(monitor)


def test_a_rank_that_raises_ends_all_with_its_error_and_its_exit_code():
    ends = on_ranks(2, raise_on_one_rank)
    assert [end.code for end in ends] == [2, 2]
    assert "stopped at step 2: DataError: train.json:17: duration is negative" in ends[0].err
    assert ends[1].err == "DataError: train.json:17: duration is negative\n"
    assert max(end.seconds for end in ends) < 10


def compute_until_the_heartbeat_ends():
    with group(grace=3.0) as (monitor, rank):
        vote(monitor)
        if rank == 2:
            raise DataError("duration is negative")
        (heartbeat,) = [thread for thread in threading.enumerate() if thread.name == "heartbeat"]
        heartbeat.join(2.0)
        print(heartbeat.is_alive(), flush=True)
        time.sleep(60)


def test_ranks_that_said_that_they_end_leave_the_store_alone():
    """Rank 0 serves it and may end first; torch prints the trace of what a rank asks just then."""
    ends = on_ranks(3, compute_until_the_heartbeat_ends)
    assert [end.out for end in ends] == ["True\n", "False\n", ""]


def go_separate_ways(second):
    with group() as (monitor, rank):
        steps(monitor, 2)
        if rank == 0:
            vote(monitor)
        elif second == "gather":
            with monitor.collective("gather"):
                dist.broadcast(torch.zeros(1), src=0)
                dist.broadcast(torch.zeros(1), src=0)


def test_ranks_in_different_collectives_are_told_which():
    ends = on_ranks(2, go_separate_ways, "gather")
    assert [end.code for end in ends] == [3, 3]
    told = "mismatched collectives: rank 0 is in collective 3 (vote), rank 1 is in collective 3 (gather)"
    assert printed(ends).count(told) == 1


def send_different_things():
    with group(timeout=20.0) as (monitor, rank):
        steps(monitor, 2)
        monitor.step = 1 + rank
        with monitor.collective("sum"):
            dist.all_reduce(torch.zeros(1 + 29 * rank))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C++ library has this name on Linux")
def test_what_gloo_ends_a_process_for_is_reported_after_its_own_words():
    ends = on_ranks(2, send_different_things)
    assert [end.code for end in ends] == [3, 3]
    text = printed(ends)
    told = (
        "mismatched collectives: rank 0 is at step 1 in collective 3 (sum), rank 1 is at step 2 in collective 3 (sum)"
    )
    assert text.count(told) == 1
    assert text.count("Received data size doesn't match expected size") == 1
    assert ends[0].err.startswith("terminate called after throwing")
    assert all("terminate called" not in end.err.splitlines()[-1] for end in ends)


def test_a_rank_that_ends_while_another_waits_for_it_is_named():
    ends = on_ranks(2, go_separate_ways, "nothing")
    assert ends[0].code == 3
    assert " has ended while rank 0 waits for it at step 1 in collective 3 (vote)" in ends[0].err
    assert (ends[1].code, ends[1].err) == (0, "")


def keep_others_waiting():
    with group(timeout=20.0, silence_seconds=0.5) as (monitor, rank):
        if rank == 1:
            ctypes.PyDLL(None).usleep(1_500_000)  # keeps the interpreter's lock
        vote(monitor)
        return rank


def test_a_rank_that_computes_long_without_signs_of_life_is_no_alarm_while_its_process_lives():
    ends = on_ranks(2, keep_others_waiting)
    assert [(end.code, end.err, end.result) for end in ends] == [(0, "", 0), (0, "", 1)]
    assert ends[0].seconds > 1.5


def test_a_rank_with_an_error_of_its_own_does_not_print_the_report_that_comes_to_it_later(monkeypatch, capsys):
    monitor = HealthMonitor.__new__(HealthMonitor)
    monitor._me, monitor.step, monitor._state = Member(1, "node1", 7, "", "", ""), None, RUNS
    monitor._report, monitor._has_own_error, monitor._telling = "", False, threading.Lock()
    monitor._status, monitor._diagnosis, monitor._diagnosis_known = Status(), None, threading.Event()
    monkeypatch.setattr(monitor, "_end", lambda state: monitor._accept(Diagnosis("rank 0 stopped", blamed=[0]), True))
    monitor.report_own_error(DataError("no audio"))
    monitor._tell()
    assert capsys.readouterr().err == ""
    assert monitor._diagnosis is not None


def test_gradients_that_nccl_exchanges_in_the_background_are_counted_with_their_step():
    monitor = HealthMonitor.__new__(HealthMonitor)
    monitor.step, monitor._sent, seen = 4, (0, None), []
    for monitor.is_asynchronous in (False, True):  # gloo's are exchanged when backward ends
        monitor.gradients_sent()
        seen.append(monitor._sent)
    assert seen == [(0, None), (1, 4)]
