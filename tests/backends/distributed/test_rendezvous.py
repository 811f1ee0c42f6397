"""Rendezvous: ranks find each other on the loopback alone; those that fail or do not come are named to all."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import HashStore, TCPStore
from toys.launchers import openmpi, slurm_task, torchrun
from toys.nets import Net, Points
from toys.rank_training import rank_factory, train_net
from toys.ranks import Rank, free_port, on_ranks, results_of, wait_all

from nemo_lite.backends.pytorch.distributed.rendezvous import (
    Attempt,
    AttemptWatch,
    RankIdentity,
    Refusal,
    RunIdentity,
    identity_of,
    join,
    meet,
    names_of_run,
    options_in,
    serve,
    tell_others,
    this_member,
    written,
)
from nemo_lite.base.errors import DataError, DistributedError, UsageError, reported_to_user
from nemo_lite.base.launch import ProcessInfo, who_am_i
from nemo_lite.base.options import LaunchedParser

# Members, runs, stores and attempts


def test_this_process_is_described_for_the_others(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth77")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    me = this_member(ProcessInfo(1, 2, 1, 2, 1, "pytorch", ("127.0.0.1", 29500)), ("127.0.0.1", 29500))
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")  # set for this process: taken back at the end of the test
    assert str(me) == f"rank 1 ({socket.gethostname()}, pid {os.getpid()})"
    assert me.address == "127.0.0.1"
    assert [problem[:25] for problem in me.problems] == ["GLOO_SOCKET_IFNAME=eth77:"]
    assert RankIdentity(*json.loads(json.dumps(me))) == me


def run_of(line, environ=None):
    return identity_of(who_am_i(environ=environ or torchrun(0, 0)), line.split())


@pytest.mark.parametrize(
    ("environ", "run_id"),
    [
        (torchrun(1, 1, TORCHELASTIC_RUN_ID="jasper-1"), "pytorch jasper-1"),
        (slurm_task(3), "slurm 200505.0"),
        (openmpi(2), "mpi 1234567890"),
    ],
)
def test_a_launchers_id_names_the_run_whatever_the_command_line(environ, run_id):
    assert run_of("jasper.py --lr 0.1", environ).run_id == run_of("x.py", environ).run_id == run_id


def test_a_run_without_an_id_is_named_after_its_command_line():
    first, again, other = (run_of(f"{folder}/jasper.py --lr {lr}") for folder, lr in (("/a", 1), ("/b", 1), ("/a", 2)))
    assert first.run_id == again.run_id != other.run_id
    assert first.run_id.startswith("jasper.py ")


def test_what_names_a_run_leaves_out_folders_and_what_is_of_one_process():
    def names(line):
        return names_of_run(who_am_i(environ=torchrun(0, 0)), line.split())

    same = names("jasper.py --lr=0.02 --exp_name A --work_dir=/ssd0/runs --gpu 0")
    assert same == {"script": "jasper.py", "exp_name": "A", "work_dir": "runs"}
    assert names("/b/jasper.py --lr=2e-2 --exp-name=A --work_dir /ssd1/runs --gpu 1") == same
    assert names_of_run(who_am_i(environ=slurm_task(3)), ["jasper.py", "--exp_name", "A"]) == {}


def test_options_in_a_command_line():
    assert options_in(["a.wav", "-v", "--lr=1e-3", "--betas", "0.9", "-0.5", "--exp-name"]) == {
        "": ["a.wav"],
        "v": [],
        "lr": ["1e-3"],
        "betas": ["0.9", "-0.5"],
        "exp_name": [],
    }


RANK_1 = ProcessInfo(1, 2, 1, 2, 1, "pytorch", ("127.0.0.1", 1))


def test_a_store_that_is_served_is_joined():
    address = ("127.0.0.1", free_port())
    server = serve(address, timedelta(seconds=5))
    join(address, RANK_1, 5.0).set("a", "b")
    assert server.get("a") == b"b"


def test_a_master_that_nobody_serves_is_named_with_what_to_check():
    port = free_port()
    with pytest.raises(DistributedError, match=rf"rank 1 on .* could not reach rank 0 at 127\.0\.0\.1:{port} .*0\.5 s"):
        join(("127.0.0.1", port), RANK_1, 0.5)


def test_a_port_in_use_says_what_may_use_it():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(DistributedError, match=rf"port {port} of 127\.0\.0\.1 is in use; another run.*node_rank"):
            serve(("127.0.0.1", port), timedelta(seconds=1))


def test_a_port_of_something_else_than_a_store_is_an_error_of_ours():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(DistributedError, match="what listens there is no store"):
            join(other.getsockname(), RANK_1, 1.0)


def test_an_address_is_written_as_in_a_url():
    assert (written(("10.0.0.1", 80)), written(("::1", 80))) == ("10.0.0.1:80", "[::1]:80")


RUN = RunIdentity("a.py 1", False)
NO = Refusal("no", "try again", 2)


def member_of(rank, pid=1):
    return RankIdentity(rank, "node1", pid, "lo", "127.0.0.1", "", [])


@pytest.fixture
def store():
    return HashStore()


@pytest.fixture
def attempt(store):
    return Attempt.open(store, member_of(0), RUN, 2)


def test_an_attempt_is_found_as_it_was_begun(store, attempt):
    found = Attempt.newest(store)
    assert (found.number, found.prefix, found.run, found.world_size) == (attempt.number, attempt.prefix, RUN, 2)
    assert found.first == "rank 0 (node1, pid 1)"
    assert Attempt.newest(HashStore()) is None


def test_only_an_attempt_whose_rank_0_goes_on_is_living(store, attempt):
    watch = AttemptWatch(store)
    assert [watch.living() for _ in range(3)] == [None] * 3
    attempt.beat()
    assert watch.living().number == attempt.number
    assert watch.living() is None
    newer = Attempt.open(store, member_of(0, 2), RUN, 2)
    newer.beat()
    assert watch.living() is None  # seen once: it may be as dead as the other one
    newer.beat()
    assert watch.living().number == newer.number != attempt.number
    attempt.beat()
    assert watch.living() is None


def test_a_rank_is_taken_once(attempt):
    assert attempt.enter(member_of(0)) is None
    assert not attempt.has_all()
    assert attempt.enter(member_of(1, 5)) is None
    assert attempt.enter(member_of(1, 6)) == member_of(1, 5)
    assert attempt.has_all()
    assert attempt.members() == (member_of(0), member_of(1, 5))


def test_the_first_outcome_counts(attempt):
    assert attempt.outcome() is None
    attempt.enter(member_of(0))
    attempt.enter(member_of(1))
    attempt.seal()
    attempt.refuse(NO)
    assert attempt.outcome() == (member_of(0), member_of(1))


def test_what_was_refused_stays_refused(attempt):
    attempt.refuse(NO)
    attempt.refuse(Refusal("too late", ""))
    attempt.seal()
    assert attempt.outcome() == NO
    assert str(NO.error()) == "no; try again"
    assert NO.error().exit_code == 2


def test_rank_0_stays_until_all_know_and_no_longer(attempt):
    attempt.hear(0)
    started, before = time.perf_counter(), attempt.beats()
    attempt.stay(2, 0.2)
    assert time.perf_counter() - started >= 0.2
    assert attempt.beats() > before
    assert not attempt.was_heard(1)
    attempt.hear(1)
    assert attempt.was_heard(1)
    started = time.perf_counter()
    attempt.stay(2, 10.0)
    assert time.perf_counter() - started < 5


# Ranks that meet


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


def test_in_a_shell_of_srun_the_variables_of_slurm_are_named_at_once_and_at_the_end(monkeypatch, caplog):
    monkeypatch.setenv("SLURM_PTY_PORT", "40001")
    alone = process(0, 4, free_port(), launcher="slurm")
    told = r"SLURM_PROCID and SLURM_STEP_NUM_TASKS say that srun started 4 tasks; the shell of srun --pty .*"
    with pytest.raises(DistributedError, match=rf"1 of 4 processes came .* {told}--launcher none .*, does a firewall"):
        meet(alone, 0.5)
    assert caplog.messages[0].startswith("Slurm's variables say that 4 processes take part: waiting for them.")
    assert "--launcher none" in caplog.messages[0]


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


@pytest.mark.long
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
    return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)


def test_a_restarted_attempt_does_not_read_what_the_last_one_left_and_nobody_serves_one_beside_an_agent():
    port = free_port()
    agent = serve_a_store(port)
    assert results_of(2, meet_after_a_restart, env={"AGENT_PORT": str(port)}) == [(False, False, True)] * 2
    del agent


def meet_as_run(names):
    n = int(os.environ["RANK"])
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


def come_late():
    n = int(os.environ["RANK"])
    if n < 2:
        meeting = meet(me(world_sizes=[2, 2, 2], ranks=[0, 1, 1]), 20.0)
        time.sleep(3.0)
        return len(meeting.members)
    time.sleep(1.5)
    return meet(me(world_sizes=[2, 2, 2], ranks=[0, 1, 1]), 20.0)


@pytest.mark.long
def test_a_process_that_comes_to_a_run_under_way_is_refused_alone():
    first, second, late = on_ranks(3, come_late)
    assert (first.result, second.result) == (2, 2)
    assert late.code == 3
    assert "two processes are rank 1: pid" in late.err


# Ranks that fail before the training


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


@pytest.mark.long
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
