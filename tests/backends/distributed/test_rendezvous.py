"""Rendezvous: ranks find each other on the loopback alone, and those that do not come are named."""

import os
import socket
import sys
import time
from pathlib import Path

import pytest
from toys.ranks import free_port, on_ranks, results_of

from nemo_lite.backends.pytorch.distributed.rendezvous import meet
from nemo_lite.errors import DistributedError, reported_to_user
from nemo_lite.utils.launch import ProcessInfo


def process(rank, world_size, port, **kwargs):
    given = {"local_world_size": world_size, "num_nodes": 1, "launcher": "pytorch", "master": ("127.0.0.1", port)}
    return ProcessInfo(rank, world_size, rank, **{**given, **kwargs})


def me(port=None, ranks=None, world_sizes=None, **kwargs):
    """The ProcessInfo of this process of ``start_ranks``; the n-th process may be told to be another rank."""
    n = int(os.environ["RANK"])
    world_size = world_sizes[n] if world_sizes else int(os.environ["WORLD_SIZE"])
    return process(ranks[n] if ranks else n, world_size, port or int(os.environ["MASTER_PORT"]), **kwargs)


def listeners(port):
    """The addresses on which that port is listened on, as they stand in /proc."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [row[1].rsplit(":", 1)[0] for row in rows if row[3] == "0A" and int(row[1].rsplit(":", 1)[1], 16) == port]


def meet_and_tell(seconds, **kwargs):
    meeting = meet(me(**kwargs), seconds)
    meeting.store.set(f"saw/{os.environ['RANK']}", "x")
    meeting.connect().wait(["saw/0", "saw/1"])
    found = listeners(meeting.address[1]) if Path("/proc/net/tcp").exists() else []
    # The rank that serves the store may only leave when the others are through.
    meeting.store.add("done", 1)
    while meeting.serves_store and meeting.store.add("done", 0) < 2:
        time.sleep(0.02)
    env = {name: os.environ.get(name) for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
    return [(m.rank, m.pid, m.interface, m.address) for m in meeting.members], os.getpid(), env, found


def meet_as(seconds, ranks=None, world_sizes=None):
    meet(me(ranks=ranks, world_sizes=world_sizes), seconds)


def test_ranks_meet_know_each_other_and_open_ports_on_the_loopback_alone():
    (members, pid0, env, listening), (members1, pid1, *_) = results_of(2, meet_and_tell, 20.0)
    assert members == members1
    assert [(rank, pid, address) for rank, pid, _, address in members] == [
        (0, pid0, "127.0.0.1"),
        (1, pid1, "127.0.0.1"),
    ]
    interface = members[0][2]
    assert env == {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    if Path("/proc/net/tcp").exists():
        assert interface == "lo"
        assert listening == ["0100007F"]  # 127.0.0.1 and nothing beside it


def test_a_name_of_this_machine_as_master_still_keeps_the_store_on_the_loopback():
    (members, _, _, listening), _ = results_of(2, meet_under_own_name)
    assert members[0][3] == "127.0.0.1"
    assert listening in ([], ["0100007F"])


def meet_under_own_name():
    return meet_and_tell(20.0, master=(socket.gethostname(), int(os.environ["MASTER_PORT"])))


def meet_with_patience_by_rank():
    meet(me(), [2.0, 30.0][int(os.environ["RANK"])])


def test_a_rank_that_does_not_come_is_named_to_all_who_came_when_the_first_of_them_gives_up():
    started = time.perf_counter()
    ends = on_ranks(2, meet_with_patience_by_rank, env={"WORLD_SIZE": "3"})
    assert time.perf_counter() - started < 10
    for end in ends:
        assert end.code == 3
        assert "2 of 3 processes came together" in end.err
        assert "within 2 s" in end.err
        assert "missing: rank 2;" in end.err
        assert "rank 0 (" in end.err
        assert "rank 1 (" in end.err
        assert "--nnodes" in end.err
        assert "node_rank" in end.err


def test_a_master_whose_name_nobody_knows_is_an_error_that_says_so():
    with pytest.raises(DistributedError, match=r"no-such-host\.invalid, is not known on .*MASTER_ADDR"):
        meet(process(1, 2, 29999, num_nodes=2, local_world_size=1, master=("no-such-host.invalid", 29999)), 0.5)


def test_a_loopback_master_with_several_machines_is_refused_at_once():
    started = time.perf_counter()
    with pytest.raises(DistributedError, match=r"localhost, is the loopback .*2 machines take part"):
        meet(process(1, 2, 29999, num_nodes=2, local_world_size=1, master=("localhost", 29999)), 30.0)
    assert time.perf_counter() - started < 5


def test_two_processes_of_the_same_rank_are_both_named():
    ends = on_ranks(3, meet_as, 10.0, [0, 1, 1], [3, 3, 3])
    assert [end.code for end in ends] == [3, 3, 3]
    pids = {
        line.split("pid ")[1].split(" ")[0] for end in ends for line in end.err.splitlines() if "are rank 1" in line
    }
    for end in ends:
        assert "two processes are rank 1: pid " in end.err
        assert end.seconds < 8
    assert len(pids) == 1


def test_ranks_that_differ_on_how_many_they_are_are_told_both_numbers():
    ends = on_ranks(2, meet_as, 10.0, [0, 1], [3, 4])
    for end in ends:
        assert end.code == 3
        assert "3 processes take part" in end.err or "3 do" in end.err
        assert "4 processes take part" in end.err or "4 do" in end.err


def meet_after_a_restart():
    """Both attempts use one store, as under a launcher whose agent serves it."""
    port = int(os.environ["AGENT_PORT"])
    first = meet(me(port, agent_hosts_store=True), 20.0)
    first.store.set("left behind", "x")
    second = meet(me(port, agent_hosts_store=True), 20.0)
    is_new = first.attempt_id != second.attempt_id and first.run_id == second.run_id
    return second.store.check(["left behind"]), first.serves_store or second.serves_store, is_new


def serve_a_store(port):
    from torch.distributed import TCPStore

    return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)


def test_a_restarted_attempt_does_not_read_what_the_last_one_left_and_nobody_serves_one_beside_an_agent():
    port = free_port()
    agent = serve_a_store(port)
    assert results_of(2, meet_after_a_restart, env={"AGENT_PORT": str(port)}) == [(False, False, True)] * 2
    del agent


def meet_as_run(names, arguments=None):
    n = int(os.environ["RANK"])
    sys.argv = ["train.py", *(arguments[n] if arguments else [])]
    with reported_to_user():
        meeting = meet(me(run_id=names[n]), 20.0)
        time.sleep(1.0 if meeting.serves_store else 0.0)


def test_processes_of_two_runs_at_one_port_are_refused_on_both_sides():
    ends = on_ranks(2, meet_as_run, ["A", "B"])
    for end in ends:
        assert end.code == 2
        assert len(end.err.splitlines()) == 1
        assert "processes of two runs came to 127.0.0.1:" in end.err
        assert "rank 0 (" in end.err
        assert ") is of run pytorch A, rank 1 (" in end.err
        assert ") of run pytorch B; give each run a port of its own (--master_port" in end.err


def test_runs_without_an_id_are_told_apart_by_their_command_lines():
    ends = on_ranks(3, meet_as_run, ["", "", ""], [["--exp_name", "A"], ["--exp_name", "A"], ["--exp_name=B"]])
    for end in ends:
        assert end.code == 2
        assert "the processes seem to be of two runs: --exp_name: rank 0 has A, rank 2 has B; give each" in end.err
    assert [end.code for end in on_ranks(2, meet_as_run, ["A", "A"], [["--exp_name", "A"], ["--exp_name=B"]])] == [0, 0]


def come_late():
    n = int(os.environ["RANK"])
    if n < 2:
        meeting = meet(me(world_sizes=[2, 2, 2], ranks=[0, 1, 1]), 20.0)
        time.sleep(3.0)
        return len(meeting.members)
    time.sleep(1.5)
    return meet(me(world_sizes=[2, 2, 2], ranks=[0, 1, 1]), 20.0)


def test_a_process_that_comes_to_a_run_under_way_is_refused_alone():
    first, second, late = on_ranks(3, come_late)
    assert (first.result, second.result) == (2, 2)
    assert late.code == 3
    assert "two processes are rank 1: pid" in late.err
