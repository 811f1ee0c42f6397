"""Ranks that were killed, stopped, hang or failed are named by the others in time, and all ranks end."""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from toys.ranks import free_port, on_ranks, start_ranks, wait_all

from nemo_lite.backends.pytorch.distributed import health
from nemo_lite.backends.pytorch.distributed.health import (
    ABORTED,
    LEFT,
    RULES,
    RUNS,
    Diagnosis,
    HealthMonitor,
    HeartbeatChannel,
    Observation,
    Round,
    Status,
    diagnose,
    launcher_of_this_process,
    state_of_process,
)
from nemo_lite.backends.pytorch.distributed.rendezvous import RankIdentity, meet
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.base.errors import DataError
from nemo_lite.base.interruption import Interrupted
from nemo_lite.base.launch import ProcessInfo, who_am_i

# Who is to blame, from what is known of each rank


def seen(rank, status=None, silent=0.0, process=""):
    return Observation(
        RankIdentity(rank, f"node{rank}", 100 + rank, "eth0", "", f"machine{rank}"), status, silent, process
    )


def found(observations, has_all_heartbeats=True, **events):
    ranks = list(observations)
    return diagnose(Round(ranks, ranks[-1].member, 60.0, 6.0, has_all_heartbeats, **events))


def test_the_table_at_the_head_of_the_file_has_the_rules_in_their_order():
    """Who reads the code finds each event there."""
    _, head, body, _ = re.split(r"^=[ =]+=\n", health.__doc__.split("The events", 1)[1], flags=re.MULTILINE)
    assert head.split()[0] == "rule"
    rules = [line.split()[0] for line in body.splitlines() if line[0] not in " " and not line.startswith("no rule")]
    assert list(dict.fromkeys(rules)) == [rule.__name__ for rule in RULES]


def test_of_several_events_the_first_rule_counts():
    lost = {"launcher": 7, "store": "node0:29500"}
    ranks = [seen(0, waiting(61.0)), seen(1, None, process="gone")]
    assert found(ranks, error=ValueError("bad"), **lost).problem == "rank 1 (node1, pid 101) stopped: ValueError: bad"
    assert found(ranks, **lost).problem.startswith("the launcher of rank 1 (node1, pid 101) is gone: process 7 was ")
    assert found(ranks, store="node0:29500").problem.startswith("rank 0 (node0, pid 100) is gone: the store that it")
    assert found(ranks).problem == "rank 1 (node1, pid 101) is gone: its process has ended"
    assert found([seen(0, None, process="gone")], store="node0:29500").problem.endswith("gone: its process has ended")


def blamed(observations, has_all_heartbeats=True):
    return int(found(observations, has_all_heartbeats).problem.split()[1])


def waiting(seconds=1.0, num_collectives=7, label="vote", **kwargs):
    return Status(5, 12, "a collective", True, seconds, num_collectives, label, **kwargs)


def test_on_another_machine_a_rank_is_gone_when_it_is_silent_and_sooner_once_a_connection_broke():
    encoder = Status(5, 12, "forward of encoder")
    assert found([seen(0, waiting()), seen(1, encoder, 5.0)]) is None
    diagnosis = found([seen(0, waiting()), seen(1, encoder, 6.2)])
    assert diagnosis.problem == (
        "rank 1 (node1, pid 101) is gone: no sign of life for 6 s, last seen at step 12 in forward of encoder"
    )
    assert diagnosis.remedy.startswith("its machine or the network to it failed, or its process was ended")
    assert blamed([seen(0, waiting(network_failed=True)), seen(1, encoder, 2.5)]) == 1


def test_a_rank_that_lives_but_is_silent_hangs_and_is_not_gone():
    observations = [seen(0, waiting()), seen(1, waiting(), 50.0, "alive")]
    assert found(observations) is None
    diagnosis = found([seen(0, waiting(61.0)), *observations[1:]])
    assert diagnosis.problem.startswith("rank 1 (node1, pid 101) hangs at step 12")


def test_a_stopped_rank_is_named_with_how_to_continue_it():
    assert found([seen(0, waiting()), seen(1, Status(5, 12, "evaluation"), 5.0, "stopped")]) is None
    assert found([seen(0, waiting()), seen(1, Status(5, 12, "evaluation"), 6.0, "stopped")]).report() == (
        "rank 1 (node1, pid 101) is stopped (SIGSTOP, Ctrl-Z or a debugger), last seen at step 12 in evaluation; "
        "continue it with kill -CONT 101: it ends then, as the others do; start the run again"
    )


def test_a_rank_outside_of_training_steps_has_no_step():
    status = Status(5, None, "evaluation")
    assert status.at_step == "outside of training steps in evaluation"
    assert "last seen outside of training steps in evaluation" in found([seen(0, status, process="gone")]).problem


def test_a_rank_still_starting_is_no_alarm():
    assert found([seen(0, waiting()), seen(1, None, 30.0)]) is None
    assert blamed([seen(0, waiting()), seen(1, None, 60.0)]) == 1


def test_a_rank_that_computes_is_no_alarm_while_nobody_waits_too_long_for_it():
    alone = Status(5, 12, "writing a checkpoint", False, 5000.0)
    assert found([seen(0, alone), seen(1, waiting(59.0))]) is None
    assert blamed([seen(0, alone), seen(1, waiting(60.0))]) == 0


def test_waiting_for_gradients_counts_as_waiting():
    diagnosis = found([seen(0, Status(5, 12, "backward", True, 61.0)), seen(1, Status(5, 12, "waiting for data"))])
    assert diagnosis.problem.startswith("rank 1 (")
    assert diagnosis.problem.endswith("while rank 0 waits for it in backward for 61 s")


def test_a_rank_that_computes_without_end_in_its_own_backward_cannot_be_told_from_one_that_waits():
    diagnosis = found([seen(rank, Status(5, 12, "backward", True, 61.0 + rank)) for rank in range(2)])
    assert diagnosis.problem == "backward does not end although all ranks are in it"
    assert diagnosis.remedy.startswith(
        "either one of them computes there without end, or the data does not get from one rank to the other: check "
    )


def test_of_several_late_ranks_the_one_that_is_farthest_behind_is_named():
    late = [
        seen(1, Status(5, 12, "forward of x", False, 61.0, 7)),
        seen(2, Status(5, 12, "evaluation", False, 61.0, 6)),
    ]
    assert blamed([seen(0, waiting(61.0)), *late]) == 2


def test_the_odd_ones_out_are_named_and_all_in_one_collective_is_the_networks_fault():
    three = [seen(0, waiting(61.0)), seen(1, waiting(61.0, label="gather")), seen(2, waiting(61.0))]
    diagnosis = found(three)
    assert diagnosis.problem == (
        "mismatched collectives: ranks 0, 2 are in collective 7 (vote), rank 1 is in collective 7 (gather)"
    )
    same = found([three[0], three[2]])
    assert same.problem == "collective 7 (vote) does not end although all ranks are in it"
    assert same.remedy.startswith("the data does not get from one rank to the other: check the interfaces (GLOO_SOCKET")


def test_the_table_tells_where_each_rank_is_and_for_how_long():
    observations = [
        seen(0, waiting(61.0)),
        seen(1, Status(5, 11, "forward of encoder", False, 62.0)),
        seen(2, None, 3.0),
    ]
    diagnosis = found(observations)
    assert diagnosis.table.splitlines() == [
        "  rank  host   pid  step  where                since",
        "  0     node0  100  12    collective 7 (vote)  61 s",
        "  1     node1  101  11    forward of encoder   62 s",
        "  2     node2  102  -     unknown              3.0 s",
    ]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_guide_shows_a_report_as_it_is_printed(language):
    members = [RankIdentity(rank, "node1", 6363 + rank, "lo", "", "one") for rank in range(2)]
    statuses = Status(5, 11, "backward", True, 600.0), Status(5, 11, "forward of jasper_encoder", False, 599.0)
    diagnosis = found(list(map(Observation, members, statuses)))
    guide = Path(__file__).parents[3] / "docs" / language / "fast_training.md"
    assert f"```text\n[rank 0] {diagnosis.report()}\n```" in guide.read_text()
    assert diagnosis.problem in guide.read_text().replace(diagnosis.report(), "")  # in the list of failures


def test_only_rank_0_decides_who_hangs_unless_it_is_silent_itself():
    both = [seen(0, Status(5, 12, "evaluation"), 0.0, "alive"), seen(1, waiting(61.0))]
    assert found(both, False) is None
    assert blamed([seen(0, Status(5, 12, "evaluation"), 7.0, "alive"), both[1]], False) == 0


def test_ranks_that_left_in_order_are_no_alarm():
    assert found([seen(0, waiting()), seen(1, Status(9, 12, num_collectives=7, state=LEFT), 99.0, "gone")]) is None


def test_a_rank_that_waits_for_one_other_blames_that_one():
    transfer = waiting(61.0, label="gather: rank 2 to rank 0", partner=2)
    ahead, behind = (
        Status(5, 13, "forward of encoder", num_collectives=7),
        Status(5, 12, "evaluation", num_collectives=7),
    )
    assert blamed([seen(0, transfer), seen(1, ahead), seen(2, behind)]) == 2
    voting = waiting(62.0, 8)
    diagnosis = found([seen(0, transfer), seen(1, voting), seen(2, transfer._replace(partner=0))])
    assert diagnosis.problem == "gather: rank 2 to rank 0 does not end although both ranks are in it"


def test_a_hung_rank_of_several_is_told_with_who_waits_for_it():
    hung = Status(5, 11, "train.py:12 in main", False, 0.3)  # in a loop: the line was another one before
    diagnosis = found([seen(0, waiting(61.0)), seen(1, hung)])
    assert diagnosis.problem == (
        "rank 1 (node1, pid 101) hangs at step 11 in train.py:12 in main, "
        "while rank 0 waits for it in collective 7 (vote) for 61 s"
    )
    assert diagnosis.remedy == (
        "see the output of rank 1; if it was only slow there, raise --dist_timeout (dist_timeout=)"
    )
    several = found([seen(0, waiting(61.0)), seen(1, hung), seen(2, hung)])
    assert several.problem.endswith("while rank 0 waits for them in collective 7 (vote) for 61 s")
    assert several.remedy.startswith("see the output of ranks 1, 2; if they were only slow there, raise ")


def test_a_lost_store_is_told_with_who_served_it():
    server = seen(0, Status(5, 12, "evaluation"))
    silent, by_launcher = {"store": "node0:29500", "store_silence": 6.0}, {"rank_serves_store": False}
    assert found([server], **silent).problem == (
        "rank 0 (node0, pid 100) cannot be reached: the store that it serves at node0:29500 has not answered for 6 s, "
        "last seen at step 12 in evaluation"
    )
    assert found([server._replace(process="stopped")], **silent).problem == (
        "rank 0 (node0, pid 100) is stopped (SIGSTOP, Ctrl-Z or a debugger), last seen at step 12 in evaluation"
    )
    assert found([server], **silent, **by_launcher).problem == (
        "the launcher of the first machine cannot be reached: its store at node0:29500 has not answered for 6 s"
    )
    assert found([server], store="node0:29500", **by_launcher).problem == (
        "the launcher of the first machine is gone: its store at node0:29500 was closed"
    )


def test_of_an_error_the_first_line_and_the_exit_code_are_kept():
    failure = found([seen(1)], error=DataError("no\nlines", place="a.json:1"), step=3)
    assert failure.problem == "rank 1 (node1, pid 101) stopped at step 3: DataError: a.json:1: no ..."
    assert (failure.exit_code, failure.error().exit_code) == (2, 2)
    ends = ValueError(), KeyboardInterrupt(), SystemExit(7), Interrupted(signal.SIGTERM), Interrupted(signal.SIGINT)
    assert [found([seen(1)], error=error).exit_code for error in ends] == [1, 130, 7, 75, 130]
    stopped = found([seen(1)], error=Interrupted(signal.SIGTERM), step=3)
    assert stopped.problem == "rank 1 (node1, pid 101) was stopped by SIGTERM at step 3"


def test_what_lies_in_the_store_comes_back_as_it_was():
    status, diagnosis = waiting(network_failed=True), found([seen(0, process="gone")])
    assert Status(*json.loads(json.dumps(status))) == status
    assert Diagnosis(*json.loads(json.dumps(diagnosis))) == diagnosis


# nccl exchanges gradients in the background


def on_nccl(step, activity, num_sent, seconds=61.0):
    return Status(5, step, activity, False, seconds, num_sent=num_sent, sent_step=num_sent - 1)


def test_a_rank_that_waits_for_gradients_in_a_later_call_is_not_said_to_hang_in_a_forward():
    diagnosis = found([seen(0, on_nccl(12, "forward of encoder", 12)), seen(1, on_nccl(11, "forward of decoder", 11))])
    assert diagnosis.blamed == [1]
    assert diagnosis.problem == (
        "rank 1 (node1, pid 101) hangs at step 11 in forward of decoder, while rank 0 waits for it in the exchange of "
        "gradients of step 11, in the background (itself at step 12 in forward of encoder), for 61 s"
    )
    rows = diagnosis.table.splitlines()
    assert "forward of encoder, gradients of step 11 sent" in rows[1]
    assert "forward of decoder, gradients of step 10 sent" in rows[2]


def test_ranks_that_have_sent_the_same_gradients_wait_for_none():
    same = [seen(rank, on_nccl(12, "forward of encoder", 12, 5000.0)) for rank in range(2)]
    assert found(same) is None
    assert found([seen(0, on_nccl(12, "train.py:1 in main", 12, 59.0)), seen(1, on_nccl(11, "evaluation", 11))]) is None


def test_a_cpp_error_while_ranks_are_at_different_places_is_a_mismatch_and_else_that_ranks():
    aborted = waiting(2.0, label="sum", state=ABORTED)
    other = waiting(2.0, label="gather")
    diagnosis = found([seen(0, other), seen(1, aborted)])
    places = "rank 0 is at step 12 in collective 7 (gather), rank 1 is at step 12 in collective 7 (sum)"
    assert diagnosis.problem == f"mismatched collectives: {places}"
    diagnosis = found([seen(0, Status(5, 12, "evaluation")), seen(1, aborted)])
    assert diagnosis.problem == "a C++ error stopped rank 1 (node1, pid 101) at step 12 in collective 7 (sum)"
    assert diagnosis.blamed == [1]
    assert found([seen(0, other), seen(1, aborted._replace(seconds=1.0))]) is None  # the others may be on their way


# Heartbeats through a store; processes of this machine


TIMEOUT = timedelta(seconds=10)


@dataclass
class OneStore:
    """A meeting of ranks in one process."""

    members: tuple[RankIdentity, ...]
    store: dist.TCPStore = field(default_factory=lambda: dist.TCPStore("127.0.0.1", 0, None, True, TIMEOUT))

    def connect(self):
        return self.store


def channels(world_size, pids=None):
    pids = pids or [os.getpid()] * world_size
    meeting = OneStore(tuple(RankIdentity(rank, "node", pids[rank], "lo", "", "one") for rank in range(world_size)))
    infos = [ProcessInfo(rank, world_size, rank, None, None, "pytorch", ("node", 1)) for rank in range(world_size)]
    return [HeartbeatChannel(meeting, info) for info in infos]


def test_a_gap_in_which_the_reader_itself_stalled_is_not_the_others_silence(monkeypatch):
    monkeypatch.setattr(health, "_OWN_STALL_SECONDS", 0.05)
    first, second = channels(2)
    second.publish(Status(1))
    first.observe(Status())
    time.sleep(0.2)
    assert first.observe(Status())[1].silent_seconds < 0.2


def test_of_several_diagnoses_the_first_counts_for_all():
    first, second = channels(2)
    assert first.diagnosis() is None
    one = Diagnosis("one", exit_code=2, blamed=[1])
    assert first.agree_on(one) == (one, True)
    assert second.agree_on(Diagnosis("two")) == (one, False)
    assert second.diagnosis() == one


def test_a_process_is_alive_stopped_or_gone():
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert state_of_process(process.pid) == "alive"
        os.kill(process.pid, signal.SIGSTOP)
        deadline = time.perf_counter() + 10
        while state_of_process(process.pid) == "alive" and time.perf_counter() < deadline:
            time.sleep(0.01)
        assert state_of_process(process.pid) == "stopped"
    finally:
        process.kill()
        process.communicate()
    assert state_of_process(process.pid) == "gone"


# Real ranks


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


def fail_when_rank_0_is_done():
    with group(timeout=20.0, grace=20.0) as (monitor, rank):
        steps(monitor, 3)
        if rank == 1:
            time.sleep(0.7)
            raise DataError("duration is negative")
        if rank == 2:
            time.sleep(1.4)
            monitor.check()


def test_rank_0_waits_for_the_others_when_it_leaves_and_ends_with_the_error_of_one_that_fails_meanwhile():
    """It serves the store: if it left at once, ranks 0 and 2 would not know that the run failed."""
    ends = on_ranks(3, fail_when_rank_0_is_done)
    assert [end.code for end in ends] == [2, 2, 2]
    text = printed([ends[0], ends[2]])
    assert text.count(" stopped at step 2: DataError: duration is negative") == 1
    assert text.count("ends because of rank 1; another rank of this machine prints the report") == 1


def fail_on_rank_0_while_another_computes():
    with group(timeout=20.0, grace=4.0) as (monitor, rank):
        vote(monitor)
        if rank == 0:
            try:
                raise DataError("duration is negative")
            except DataError as error:
                monitor.report_own_error(error)
            began = time.perf_counter()
            monitor.leave()
            print(time.perf_counter() - began, flush=True)
            os._exit(2)
        time.sleep(60)


@pytest.mark.long
def test_rank_0_does_not_stay_for_a_rank_that_knows_that_the_run_ends():
    """Only such a rank's own process stays while it cleans up, however long it computes."""
    failed, computing = on_ranks(2, fail_on_rank_0_while_another_computes)
    assert float(failed.out) < 2.0
    assert (failed.code, computing.code) == (2, 2)


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
    assert f"pid {pid}) is gone: its process has ended, last seen at step 2 in test_health.py:" in report
    assert short.endswith(f"] ends because of rank {victim}; another rank of this machine prints the report")


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.long)])
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
    _, *ends = wait_all([launcher, *ranks], 10)
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


@pytest.mark.long
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
    monitor._me, monitor.step, monitor._state = RankIdentity(1, "node1", 7, "", "", ""), None, RUNS
    monitor._telling, monitor._has_told = threading.Lock(), False
    monitor._round = Round([seen(1)], monitor._me, 60.0, 6.0, sees_all=False)
    monitor._diagnosis, monitor._diagnosis_known = None, threading.Event()
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


# The launcher


OF_WORKERS = {"TORCHELASTIC_RESTART_COUNT": "0"}


def test_only_what_torchrun_started_has_a_launcher():
    assert launcher_of_this_process({"TORCHELASTIC_RUN_ID": "set by hand", "RANK": "0", "SLURM_PROCID": "0"}) is None
    assert launcher_of_this_process(OF_WORKERS) == os.getppid()


def test_the_launcher_is_found_through_a_shell_between(tmp_path):
    processes = {os.getppid(): (b"A=1\0TORCHELASTIC_RESTART_COUNT=0\0", 77), 77: (b"A=1\0", 1)}
    for pid, (environ, parent) in processes.items():
        (tmp_path / f"{pid}").mkdir()
        (tmp_path / f"{pid}/environ").write_bytes(environ)
        (tmp_path / f"{pid}/stat").write_text(f"{pid} (bash) -c) S {parent} 12")
    assert launcher_of_this_process(OF_WORKERS, tmp_path) == 77
    (tmp_path / "77/environ").unlink()
    assert launcher_of_this_process(OF_WORKERS, tmp_path) is None


def run_under_a_launcher(folder):
    """The process of this rank is its launcher: it starts the one that works and waits for it, as torchrun does."""
    worker = os.fork()
    if worker:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
    os.environ.update(OF_WORKERS)
    info = who_am_i()
    meeting = meet(info, 20.0)  # with the store: kept
    HealthMonitor(meeting, info, 60.0, beat_seconds=0.1, grace_seconds=2.0)
    (folder / f"worker{info.rank}").write_text(str(os.getpid()))
    time.sleep(60)
    os._exit(0)


def has_ended(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.long)])
def test_all_ranks_end_when_the_launcher_of_one_is_killed_and_it_is_named(victim, tmp_path):
    ranks = start_ranks(2, run_under_a_launcher, tmp_path)
    workers = [tmp_path / "worker0", tmp_path / "worker1"]
    deadline = time.monotonic() + 60
    while not all(file.exists() and file.read_text() for file in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.3)
    os.kill(ranks[victim].pid, signal.SIGKILL)
    ends = wait_all(ranks, 30)
    while not all(has_ended(int(file.read_text())) for file in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    told = [(rank.folder / "err").read_text() for rank in ranks]
    pid = int(workers[victim].read_text())
    reason = f"pid {pid}) is gone: process {ranks[victim].pid} was killed or has ended; nothing would end its ranks"
    assert sum(reason in text for text in told) == 1, told
    assert [text.count("\n") for text in told] == [1, 1], told
    assert [end.code for end in ends] == [-9 if rank == victim else 3 for rank in (0, 1)]
