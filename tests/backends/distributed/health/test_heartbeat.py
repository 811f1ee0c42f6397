"""HeartbeatChannel: heartbeats through a store, and what is seen of the processes on this machine."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
import torch.distributed as dist

from nemo_lite.backends.pytorch.distributed import health as heartbeat
from nemo_lite.backends.pytorch.distributed.health import LEFT, Diagnosis, HeartbeatChannel, Status, process_state
from nemo_lite.backends.pytorch.distributed.rendezvous import Member
from nemo_lite.utils.launch import ProcessInfo

TIMEOUT = timedelta(seconds=10)


@dataclass
class OneStore:
    """A meeting of ranks in one process."""

    members: tuple[Member, ...]
    store: dist.TCPStore = field(default_factory=lambda: dist.TCPStore("127.0.0.1", 0, None, True, TIMEOUT))

    def connect(self):
        return self.store


def channels(world_size, pids=None):
    pids = pids or [os.getpid()] * world_size
    meeting = OneStore(tuple(Member(rank, "node", pids[rank], "lo", "", "one") for rank in range(world_size)))
    infos = [ProcessInfo(rank, world_size, rank, None, None, "pytorch", ("node", 1)) for rank in range(world_size)]
    return [HeartbeatChannel(meeting, info) for info in infos]


def test_rank_0_reads_all_ranks_and_the_others_read_rank_0():
    first, second, third = channels(3)
    for beat, channel in enumerate((first, second, third), 1):
        channel.publish(Status(beat))
    first.read_ranks()
    second.read_ranks()
    assert [seen.status.beat for seen in first.observations(Status(7))] == [7, 2, 3]
    assert [seen.status for seen in second.observations(Status(7))] == [Status(1), Status(7), None]


def test_a_rank_that_writes_no_new_heartbeat_is_silent_since_the_last_one():
    first, second = channels(2)
    second.publish(Status(1))
    first.read_ranks()
    time.sleep(0.1)
    first.read_ranks()
    assert first.observations(Status())[1].silent_seconds >= 0.1
    second.publish(Status(2))
    first.read_ranks()
    assert first.observations(Status())[1].silent_seconds < 0.1


def test_a_gap_in_which_the_reader_itself_stalled_is_not_the_others_silence(monkeypatch):
    monkeypatch.setattr(heartbeat, "_OWN_STALL_SECONDS", 0.05)
    first, second = channels(2)
    second.publish(Status(1))
    first.read_ranks()
    time.sleep(0.2)
    first.read_ranks()
    assert first.observations(Status())[1].silent_seconds < 0.2


def test_of_several_diagnoses_the_first_counts_for_all():
    first, second = channels(2)
    assert first.diagnosis() is None
    assert first.agree_on(Diagnosis("one", exit_code=2, blamed=[1])) == Diagnosis("one", exit_code=2, blamed=[1])
    assert second.agree_on(Diagnosis("two")) == second.diagnosis() == Diagnosis("one", exit_code=2, blamed=[1])


def test_the_others_have_ended_once_all_left_or_are_gone():
    gone = subprocess.run(
        [sys.executable, "-S", "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    first, second, _ = channels(3, [os.getpid(), os.getpid(), int(gone.stdout)])
    first.check_processes()
    assert not first.others_ended()
    second.publish(Status(1, state=LEFT))
    first.read_ranks()
    assert first.others_ended()


def test_a_process_of_this_machine_is_alive_stopped_or_gone_and_of_another_unknown():
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    member = Member(1, "node", process.pid, "lo", "", "one")
    me, elsewhere = Member(0, "node", os.getpid(), "lo", "", "one"), Member(0, "node", 1, "lo", "", "another")
    try:
        assert process_state(member, me) == "alive"
        assert process_state(member, elsewhere) == ""
        os.kill(process.pid, signal.SIGSTOP)
        deadline = time.perf_counter() + 10
        while process_state(member, me) == "alive" and time.perf_counter() < deadline:
            time.sleep(0.01)
        if sys.platform.startswith("linux"):
            assert process_state(member, me) == "stopped"
    finally:
        process.kill()
        process.communicate()
    assert process_state(member, me) == "gone"


@pytest.mark.parametrize("raised", [ProcessLookupError, PermissionError])
def test_where_there_is_no_proc_a_process_is_asked_with_a_signal(raised, monkeypatch):
    def kill(pid, number):
        raise raised

    monkeypatch.setattr(os, "kill", kill)
    assert heartbeat._state_without_proc(1) == {ProcessLookupError: "gone", PermissionError: "alive"}[raised]
