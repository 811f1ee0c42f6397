"""Who this process is: recorded environments of launchers; errors where sources contradict or say too little."""

from __future__ import annotations

import argparse
import itertools
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys.launchers import SALLOC_STEP, hydra, openmpi, refusal, slurm_batch, slurm_task, torchrun, without

from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.base.launch import (
    ProcessInfo,
    as_typed,
    derived_port,
    first_host,
    forget_launcher,
    is_loopback,
    launch_line,
    rank_in,
    respelled,
    tcp_address,
    who_am_i,
)

# Recorded environments


def test_nothing_said_is_a_single_process():
    assert who_am_i(environ={"PATH": "/bin", "HOSTNAME": "laptop"}) is None


def test_torchrun_on_one_machine():
    expected = ProcessInfo(1, 2, 1, 2, 1, "pytorch", ("127.0.0.1", 29500), agent_hosts_store=True)
    assert who_am_i(environ=torchrun(1, 1)) == expected


def test_torchrun_on_two_machines():
    process = who_am_i(environ=torchrun(5, 1, local_world_size=4, num_nodes=2))
    assert process == ProcessInfo(5, 8, 1, 4, 2, "pytorch", ("10.0.0.1", 29500), agent_hosts_store=True)


def test_torch_distributed_launch_says_the_local_rank_twice():
    assert (
        who_am_i(1, environ=torchrun(1, 1)) == who_am_i("1", environ=torchrun(1, 1)) == who_am_i(environ=torchrun(1, 1))
    )


def test_a_worker_whose_agent_keeps_its_store_to_itself():
    process = who_am_i(environ=torchrun(0, 0, TORCHELASTIC_USE_AGENT_STORE="False"))
    assert not process.agent_hosts_store


def test_the_launchers_name_for_a_run():
    assert who_am_i(environ=torchrun(0, 0, TORCHELASTIC_RUN_ID="jasper-1")).run_id == "jasper-1"
    assert who_am_i(environ=torchrun(0, 0)).run_id == ""  # torchrun calls it "none"
    assert who_am_i(environ=slurm_task(1, SLURM_STEP_ID="3", SLURM_STEPID="3")).run_id == "200505.3"
    assert who_am_i(environ={**hydra(1), "MASTER_PORT": "1234"}).run_id == ""


def test_machines_with_different_numbers_of_processes():
    environ = torchrun(4, 0, GROUP_WORLD_SIZE="2", WORLD_SIZE="6", LOCAL_WORLD_SIZE="2", MASTER_ADDR="node1")
    assert (who_am_i(environ=environ).num_nodes, who_am_i(environ=environ).local_world_size) == (2, 2)
    odd = without({**environ, "LOCAL_WORLD_SIZE": "4"}, "GROUP_WORLD_SIZE")
    assert who_am_i(environ=odd).num_nodes is None


def test_machines_follow_from_the_numbers_of_processes_where_the_launcher_has_as_many_on_each():
    """Variables set by hand, or by an old launcher. torch's are alike on all machines, those of MPI may differ."""
    by_hand = without(torchrun(4, 0, WORLD_SIZE="6", LOCAL_WORLD_SIZE="2", MASTER_ADDR="node1"), "GROUP_WORLD_SIZE")
    assert who_am_i(environ=by_hand).num_nodes == 3
    assert who_am_i(environ={**by_hand, "WORLD_SIZE": "5"}).num_nodes is None
    assert who_am_i(environ={**openmpi(1, 4, 2), "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}).num_nodes is None
    assert who_am_i(environ=openmpi(1, 4, 4)).num_nodes == 1


def test_a_virtual_local_rank_is_zero_on_all():
    assert who_am_i(environ=torchrun(1, 0)).local_rank == 0


def test_slurm_on_one_machine():
    process = who_am_i(environ=slurm_task(3, "gpu08", 1))
    assert process == ProcessInfo(3, 4, 3, None, 1, "slurm", ("127.0.0.1", process.master[1]), run_id="200505.0")


def test_slurm_on_two_machines():
    process = who_am_i(environ=slurm_task(5))
    assert process == ProcessInfo(5, 8, 1, None, 2, "slurm", ("gpu08", process.master[1]), run_id="200505.0")


def test_a_slurm_step_smaller_than_its_job_counts_itself():
    environ = {**slurm_batch("gpu[08-09]", 2, 8), "SLURM_STEP_ID": "3", "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
    environ |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NUM_NODES": "1"}
    environ |= {"SLURM_STEP_NODELIST": "gpu09"}
    process = who_am_i(environ=environ)
    assert (process.world_size, process.num_nodes, process.master[0]) == (2, 1, "127.0.0.1")


def test_the_first_rank_of_a_slurm_step_is_on_the_steps_first_machine():
    environ = slurm_task(5, SLURM_STEP_NODELIST="gpu[10-11]", SLURM_JOB_NODELIST="gpu[08-11]")
    assert who_am_i(environ=environ).master[0] == "gpu10"


def test_slurm_with_the_fewest_variables_that_say_it():
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID")
    environ = {name: value for name, value in slurm_task(5).items() if name in names}
    process = who_am_i(environ=environ)
    assert (process.rank, process.world_size, process.local_rank) == (5, 8, 1)
    assert process.master[0] == "gpu08"


def test_all_tasks_of_a_slurm_step_meet_at_one_port_and_other_jobs_at_another():
    ports = {who_am_i(environ=slurm_task(rank)).master for rank in range(8)}
    assert len(ports) == 1
    others = [{"SLURM_JOB_ID": "200506", "SLURM_JOBID": "200506"}, {"SLURM_STEP_ID": "1", "SLURM_STEPID": "1"}]
    ports |= {who_am_i(environ=slurm_task(0, **other)).master for other in others}
    assert len(ports) == 3
    assert all(20_000 <= port < 30_000 for _, port in ports)


def test_a_master_that_is_set_overrides_what_is_derived():
    process = who_am_i(environ=slurm_task(5, MASTER_ADDR="10.1.1.1", MASTER_PORT="1234"))
    assert process.master == ("10.1.1.1", 1234)
    assert who_am_i(environ=slurm_task(5, MASTER_PORT="1234")).master == ("gpu08", 1234)
    assert who_am_i(environ=openmpi(1, MASTER_ADDR="node1", MASTER_PORT="1234")).master == ("node1", 1234)


def test_openmpi_on_one_machine():
    process = who_am_i(environ=openmpi(3))
    assert process == ProcessInfo(3, 4, 3, 4, 1, "mpi", ("127.0.0.1", process.master[1]), run_id="1234567890")
    assert {who_am_i(environ=openmpi(rank)).master for rank in range(4)} == {process.master}
    assert who_am_i(environ=openmpi(3, PMIX_NAMESPACE="prterun-node1-77@1")).master != process.master


def test_openmpi_on_two_machines_needs_the_master_only():
    told = refusal(openmpi(5, 8, 4))
    assert "mpi's variables do not say on which machine rank 0 is; set MASTER_ADDR to it, or give --init_" in told
    process = who_am_i(environ=openmpi(5, 8, 4, MASTER_ADDR="node1", MASTER_PORT="1234"))
    assert process == ProcessInfo(5, 8, 1, 4, None, "mpi", ("node1", 1234), run_id="1234567890")
    assert who_am_i(environ=openmpi(5, 8, 4), init_method="tcp://node1:99").master == ("node1", 99)


def test_openmpi_that_does_not_say_how_many_are_on_a_machine_needs_the_master():
    assert "set MASTER_ADDR" in refusal(without(openmpi(1), "OMPI_COMM_WORLD_LOCAL_SIZE"))


def test_an_mpi_run_without_a_name_asks_for_the_port():
    assert "set MASTER_PORT to a free port of the first machine" in refusal(hydra(1))
    process = who_am_i(environ={**hydra(1), "MASTER_PORT": "1234"})
    assert process == ProcessInfo(1, 4, 1, 4, 1, "mpi", ("127.0.0.1", 1234))


# Sources that contradict each other


@pytest.mark.parametrize(
    ("local_rank", "environ", "told"),
    [
        (
            1,
            torchrun(0, 0),
            "--local_rank 1 and LOCAL_RANK=0 contradict each other; remove the one that was set by hand",
        ),
        (0, slurm_task(1), "--local_rank 0 and SLURM_LOCALID=1 contradict"),
        (0, openmpi(1), "--local_rank 0 and OMPI_COMM_WORLD_LOCAL_RANK=1 contradict"),
        (None, slurm_task(1, WORLD_SIZE="2"), "SLURM_STEP_NUM_TASKS=8 and WORLD_SIZE=2 contradict"),
        (None, openmpi(1, RANK="0"), "OMPI_COMM_WORLD_RANK=1 and RANK=0 contradict"),
    ],
)
def test_sources_that_contradict_each_other_are_both_shown(local_rank, environ, told):
    assert refusal(environ, local_rank).startswith(told)


def test_a_named_launcher_that_torchruns_variables_contradict_is_an_error():
    environ = {**slurm_task(0, tasks_per_node=1), **torchrun(1, 1)}
    assert "SLURM_PROCID=0 and RANK=1 contradict" in refusal(environ, launcher="slurm")


def test_variables_set_by_hand_may_stand_beside_a_launcher_that_agrees():
    environ = slurm_task(5, WORLD_SIZE="8", RANK="5", MASTER_ADDR="gpu08", MASTER_PORT="1234")
    assert who_am_i(environ=environ).launcher == "slurm"
    assert who_am_i(1, rank=5, world_size=8, environ=slurm_task(5)).rank == 5


@pytest.mark.parametrize(
    ("init_method", "got"),
    [
        ("tcp://10.0.0.2:29500", "tcp://10.0.0.2:29500 and MASTER_ADDR=10.0.0.1 MASTER_PORT=29500"),
        ("tcp://10.0.0.1:29501", "tcp://10.0.0.1:29501 and MASTER_ADDR=10.0.0.1 MASTER_PORT=29500"),
    ],
)
def test_a_meeting_point_other_than_the_launchers_is_an_error(init_method, got):
    told = refusal(torchrun(3, 1, num_nodes=2), init_method=init_method)
    assert told == f"--init_method {got} contradict each other; remove --init_method"


def test_a_meeting_point_that_the_launcher_confirms_is_fine():
    environ = torchrun(3, 1, num_nodes=2)
    for init_method in ("tcp://10.0.0.1:29500", "env://"):
        assert who_am_i(init_method=init_method, environ=environ) == who_am_i(environ=environ)
    assert who_am_i(init_method="tcp://localhost:29500", environ=torchrun(1, 1)).world_size == 2


# Answers that are missing or out of range


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        (("RANK",), "RANK is missing: got WORLD_SIZE=2 LOCAL_RANK=1; start the script with torchrun, which sets RANK"),
        (("WORLD_SIZE",), "WORLD_SIZE is missing: got RANK=1 LOCAL_RANK=1; start"),
        (("LOCAL_RANK",), "LOCAL_RANK is missing: got RANK=1 WORLD_SIZE=2; start"),
        (("RANK", "WORLD_SIZE"), "RANK and WORLD_SIZE are missing: got LOCAL_RANK=1; start"),
        (("RANK", "LOCAL_RANK"), "RANK and LOCAL_RANK are missing: got WORLD_SIZE=2; start"),
    ],
)
def test_what_is_missing_of_the_three_is_named(missing, told):
    assert told in refusal(without(torchrun(1, 1), *missing))
    empty = {**torchrun(1, 1), **dict.fromkeys(missing, "")}
    assert told in refusal(empty)


def test_the_local_rank_is_missed_in_a_world_of_one_too():
    assert refusal(without(torchrun(0, 0, 1), "LOCAL_RANK")).startswith(
        "LOCAL_RANK is missing: got RANK=0 WORLD_SIZE=1"
    )


def test_a_local_rank_set_by_hand_without_a_launcher_is_an_error():
    told = "RANK and WORLD_SIZE are missing: got --local_rank 0; start the script with torchrun"
    assert told in refusal({}, 0)
    assert told in refusal(slurm_batch(), 0)
    assert "or leave all out to run one process" in refusal({}, 0)


def test_a_launcher_whose_variables_are_not_all_there_is_an_error():
    told = refusal(without(openmpi(1), "OMPI_COMM_WORLD_LOCAL_RANK"))
    assert told.startswith("OMPI_COMM_WORLD_LOCAL_RANK is missing: got OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4;")
    assert "SLURM_LOCALID is missing" in refusal(without(slurm_task(1), "SLURM_LOCALID"))
    assert "RANK and WORLD_SIZE and LOCAL_RANK are missing" in refusal({}, launcher="pytorch")
    assert "RANK and WORLD_SIZE and LOCAL_RANK are missing" in refusal({}, init_method="env://")


def test_a_master_that_is_missing_is_named():
    told = refusal(without(torchrun(1, 1), "MASTER_ADDR", "MASTER_PORT"))
    assert "MASTER_ADDR and MASTER_PORT are missing: ranks do not know where to meet; start" in told
    assert "MASTER_PORT is missing: " in refusal(without(torchrun(1, 1), "MASTER_PORT"))
    nodes = [name for name in slurm_task(0) if name.endswith("NODELIST")]
    assert "slurm's variables do not say on which machine" in refusal(without(slurm_task(0), *nodes))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"RANK": "2"}, "the rank is not below the world size: got rank 2 of 2"),
        ({"RANK": "-1"}, "RANK: is not a whole number from 0: got '-1'"),
        ({"RANK": "one"}, "RANK: is not a whole number from 0: got 'one'"),
        ({"RANK": "1.0"}, "RANK: is not a whole number from 0: got '1.0'"),
        ({"WORLD_SIZE": "2\n3"}, "WORLD_SIZE: is not a whole number from 1: got '2\\n3'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE: is not a whole number from 1: got '0'"),
        ({"LOCAL_RANK": "2"}, "the local rank is not below the number of processes: got local rank 2 of 2"),
        ({"LOCAL_WORLD_SIZE": "4"}, "a machine has more processes than all have together: got 4 > 2"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE: is not a whole number from 1: got '0'"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT: is not a whole number from 1: got 'http'"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT: is not a port: got 65536, wanted a number below 65536"),
    ],
)
def test_a_value_out_of_range_is_one_line(wrong, told):
    assert told in refusal({**torchrun(1, 1), **wrong})


def test_a_local_rank_argument_out_of_range_is_one_line():
    assert refusal(torchrun(1, 1), -1) == "--local_rank: is not a whole number from 0: got '-1'"


# Ranks started by hand


def test_ranks_started_by_hand_say_all_three():
    process = who_am_i(1, init_method="tcp://10.0.0.1:23456", rank=5, world_size=8, environ={})
    assert process == ProcessInfo(5, 8, 1, None, None, "pytorch", ("10.0.0.1", 23456))
    environ = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    assert who_am_i(init_method="tcp://10.0.0.1:23456", environ=environ) == process


def test_the_local_rank_follows_where_all_are_on_one_machine():
    assert who_am_i(init_method="tcp://127.0.0.1:9", rank=1, world_size=2, environ={}).local_rank == 1
    assert who_am_i(init_method="tcp://node1:9", rank=0, world_size=1, environ={}).local_rank == 0


def test_what_is_missing_of_ranks_started_by_hand_is_named_as_an_option():
    told = refusal({}, init_method="tcp://10.0.0.1:23456", rank=1)
    assert "WORLD_SIZE and LOCAL_RANK are missing: got --rank 1; give --world_size and --local_rank, or start" in told
    told = refusal({}, 0, rank=0, world_size=2)
    assert "MASTER_ADDR and MASTER_PORT are missing" in told
    assert "give --init_method tcp://host:port" in told


# A master that others cannot reach


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
@pytest.mark.parametrize("environ", [torchrun(3, 1, num_nodes=2), slurm_task(5), openmpi(5, 8, 4)])
def test_a_loopback_master_with_several_machines_is_an_error(host, environ):
    told = refusal({**environ, "MASTER_ADDR": host, "MASTER_PORT": "29500"})
    assert f"master {host}:29500: other machines cannot reach a loopback address: wanted an address of the" in told
    assert "--master_addr" in told


def test_a_loopback_meeting_point_with_several_machines_is_an_error():
    assert "cannot reach a loopback" in refusal(slurm_task(5), init_method="tcp://127.0.0.1:9")
    odd = without(torchrun(3, 1, MASTER_ADDR="localhost", WORLD_SIZE="5"), "GROUP_WORLD_SIZE")
    assert "cannot reach a loopback" in refusal(odd)


@given(st.dictionaries(st.sampled_from(sorted({**torchrun(0, 0), **slurm_task(0), **openmpi(0)})), st.text(max_size=3)))
def test_any_environment_gives_a_process_or_one_line(environ):
    try:
        process = who_am_i(environ=environ)
    except UsageError as error:
        told = str(error)
    else:
        told = "" if process is None or process.rank < process.world_size else "out of range"
    assert "\n" not in told
    assert told != "out of range"


# Which launcher, where several could have started this process


@pytest.mark.parametrize("outer", [slurm_task(1, tasks_per_node=1), slurm_batch(), openmpi(1, 2, 1), SALLOC_STEP])
def test_torchrun_counts_where_another_launcher_started_its_agents(outer):
    environ = {**outer, **torchrun(3, 1, num_nodes=2)}
    process = who_am_i(environ=environ)
    assert (process.launcher, process.rank, process.world_size, process.local_rank) == ("pytorch", 3, 4, 1)
    assert rank_in(environ) == 3


def test_mpirun_counts_where_srun_started_its_daemons():
    environ = {**slurm_task(0, "gpu08", 1, 1), **openmpi(3)}
    assert (who_am_i(environ=environ).launcher, who_am_i(environ=environ).rank, rank_in(environ)) == ("mpi", 3, 3)


def test_srun_counts_where_it_sets_mpis_ranks_too():
    environ = slurm_task(3, "gpu08", 1, PMI_RANK="3", PMI_SIZE="4")
    assert who_am_i(environ=environ).launcher == "slurm"


@pytest.mark.parametrize(
    "environ",
    [
        *(slurm_batch(), slurm_batch("gpu08", 1, 4), SALLOC_STEP),
        without(slurm_batch(), "SLURM_PROCID", "SLURM_LOCALID"),
        *({**slurm_batch(), "SLURM_STEP_ID": step} for step in ("4294967291", "batch")),
    ],
)
def test_a_script_in_a_slurm_allocation_without_srun_is_a_single_process(environ):
    assert who_am_i(environ=environ) is None
    assert rank_in(environ) == 0
    told = refusal(environ, launcher="slurm")
    assert told == (
        "the launcher is slurm, and this process was not started by srun; start the script with srun, "
        "or leave --launcher out"
    )


def test_srun_in_the_shell_of_salloc_is_a_step_of_its_own():
    step = {"SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "8"}
    environ = {**SALLOC_STEP, **step, "SLURM_PROCID": "7", "SLURM_LOCALID": "7"}
    assert (who_am_i(environ=environ).rank, who_am_i(environ=environ).world_size) == (7, 8)


@pytest.mark.parametrize(
    "environ", [torchrun(0, 0, 1), slurm_task(0, "gpu08", 1, 1), openmpi(0, 1, 1), {**hydra(0, 1), "MASTER_PORT": "9"}]
)
def test_one_process_with_a_launcher_is_a_world_of_one_rank(environ):
    process = who_am_i(environ=environ)
    assert (process.rank, process.world_size, process.local_rank, process.num_nodes) == (0, 1, 0, 1)


@pytest.mark.parametrize(
    ("launcher", "environ"),
    [("pytorch", torchrun(1, 1)), ("slurm", slurm_task(1)), ("mpi", openmpi(1)), ("auto", openmpi(1))],
)
def test_a_launcher_that_is_named_is_taken(launcher, environ):
    process = who_am_i(launcher=launcher, environ=environ)
    assert process == who_am_i(environ=environ)


def test_an_unknown_launcher_is_answered_with_the_list():
    with pytest.raises(UnknownNameError) as caught:
        who_am_i(launcher="slrum", environ={})
    told = 'launcher "slrum" is not known; known: auto, mpi, none, pytorch, slurm (did you mean slurm?)'
    assert str(caught.value) == told


@pytest.mark.parametrize(
    ("environ", "got"),
    [
        (torchrun(1, 1), "2 processes: got WORLD_SIZE=2; leave --launcher out"),
        (slurm_task(1), "8 processes: got SLURM_STEP_NUM_TASKS=8"),
        (openmpi(1), "4 processes: got OMPI_COMM_WORLD_SIZE=4"),
    ],
)
def test_no_launcher_where_one_started_several_is_an_error(environ, got):
    assert f"the launcher is none, and a launcher started {got}" in refusal(environ, launcher="none")


def test_no_launcher_where_there_is_one_process_is_a_single_process():
    for environ in ({}, slurm_batch(), torchrun(0, 0, 1)):
        assert who_am_i(launcher="none", environ=environ) is None
    assert who_am_i(0, launcher="none", environ=torchrun(0, 0, 1)) is None
    assert "the launcher is none: got --local_rank 1; leave" in refusal({}, 1, launcher="none")
    assert "none: got --init_method tcp://a:1" in refusal({}, launcher="none", init_method="tcp://a:1")


def test_what_no_launcher_ignores_is_said_with_its_values_and_gone():
    environ = {"RANK": "3", "LOCAL_RANK": "1", "PATH": "/bin"}
    assert forget_launcher(environ) == "--launcher none: this process runs alone and ignores RANK=3 LOCAL_RANK=1"
    assert environ == {"PATH": "/bin"}
    assert forget_launcher(environ) is None
    assert forget_launcher(slurm_task(0, "a", 1, 1)).endswith("SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=1 SLURM_LOCALID=0")
    # The variables of a batch script name no process of a step.
    assert forget_launcher(slurm_batch()) is None


@pytest.mark.parametrize(("launcher", "start"), [("mpi", "mpirun"), ("slurm", "srun")])
def test_a_launcher_that_did_not_start_this_process_is_an_error(launcher, start):
    told = refusal({}, launcher=launcher)
    assert told.startswith(f"the launcher is {launcher}, and this process was not started by {start}")


@pytest.mark.parametrize("environ", [torchrun(3, 1, num_nodes=2), slurm_task(3), openmpi(3), hydra(3)])
def test_the_rank_of_the_log_is_that_of_the_process(environ):
    assert rank_in(environ) == 3


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["RANK", "SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK"]), st.text()))
def test_the_rank_of_the_log_never_raises(environ):
    assert rank_in(environ) >= 0


def test_the_line_that_starts_all_is_quoted_for_a_shell():
    line = launch_line(8, ["examples/asr/jasper.py", "--exp_name", "my run", "--lr=0.1"])
    assert line == "torchrun --nproc-per-node=8 examples/asr/jasper.py --exp_name 'my run' --lr=0.1"


def test_a_subcommand_is_started_as_a_module():
    assert launch_line(2, ["nemo-lite train", "--lr=0.1"]) == (
        "torchrun --nproc-per-node=2 -m nemo_lite train --lr=0.1"
    )
    assert as_typed(["nemo-lite train", "a b"]) == ["nemo-lite", "train", "a b"]
    assert as_typed(["my scripts/jasper.py", "a b"]) == ["my scripts/jasper.py", "a b"]


def test_a_parser_that_knows_one_spelling_of_the_local_rank_takes_the_other_from_a_launcher(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    for known, passed in itertools.product(("--local_rank", "--local-rank"), repeat=2):
        parser = argparse.ArgumentParser()
        parser.add_argument(known, default=None, type=int)
        monkeypatch.setattr(sys, "argv", ["own.py", f"{passed}=3"])
        assert parser.parse_args().local_rank == 3
        assert parser.parse_known_args([f"{passed}=3", "--lr=1"])[1] == ["--lr=1"]
        assert sys.argv == ["own.py", f"{passed}=3"]


@pytest.mark.parametrize(
    ("options", "words", "environ"),
    [
        ((), ["--local-rank=3"], {"LOCAL_RANK": "3"}),
        (("--local_rank", "--local-rank"), ["--local-rank=3"], {"LOCAL_RANK": "3"}),
        (("--local_rank",), ["--local-rank=2", "--local-rank", "3"], {"LOCAL_RANK": "3"}),
        (("--local_rank",), ["--local-rank=3"], {}),
    ],
    ids=["none known", "both known", "another number", "no launcher"],
)
def test_other_command_lines_reach_a_parser_as_they_are(options, words, environ):
    assert respelled(words, options, environ) == words


def test_without_a_launcher_argparse_still_refuses_the_spelling_that_a_parser_lacks(monkeypatch, capsys):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int)
    with pytest.raises(SystemExit):
        parser.parse_args(["--local-rank=0"])
    assert "unrecognized arguments: --local-rank=0" in capsys.readouterr().err


# Where the ranks meet


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("node[01-03,07],gpu5", "node01"),
        ("gpu5", "gpu5"),
        ("a,b-1,c.example.org", "a"),
        ("nid[000998-001001]", "nid000998"),
        ("n[9-11]", "n9"),
        ("n[1-2]-ib", "n1-ib"),
    ],
)
def test_the_first_host_of_a_node_list_as_slurm_writes_it(nodelist, host):
    assert first_host(nodelist) == host


@pytest.mark.parametrize("nodelist", ["", ",", "n[1-2", "n1-2]", "n[]", "n[a-b]", "rack[1-2]n[0-3]"])
def test_a_list_whose_first_host_cannot_be_told_asks_for_the_master(nodelist):
    with pytest.raises(UsageError) as caught:
        first_host(nodelist)
    assert f"the node list cannot be read: got {nodelist!r}" in str(caught.value)
    assert str(caught.value).endswith("set MASTER_ADDR to the host of the first task")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://10.0.0.1:23456", ("10.0.0.1", 23456)),
        ("tcp://node1.example.org:1", ("node1.example.org", 1)),
        ("tcp://[fd00::1]:80", ("fd00::1", 80)),
    ],
)
def test_a_tcp_address_is_a_host_and_a_port(text, address):
    assert tcp_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        *("tcp://host", "tcp://:80", "tcp://host:0", "tcp://host:65536", "tcp://host:x", "tcp://host:80/x"),
        *("tcp://host:80?rank=0", "file:///tmp/x", "host:80", "tcp://[:1", ""),
    ],
)
def test_another_address_is_shown_with_what_is_wanted(text):
    with pytest.raises(UsageError) as caught:
        tcp_address(text)
    assert str(caught.value) == f"--init_method {text}: cannot be used: wanted tcp://host:port or env://"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "127.9.9.9", "localhost", "LOCALHOST", "::1", "0.0.0.0"])
def test_loopback_addresses(host):
    assert is_loopback(host)


def test_a_loopback_address_in_the_newer_form_is_one_too():
    assert is_loopback("::ffff:127.0.0.1")


@pytest.mark.parametrize("host", ["10.0.0.1", "node1", "fd00::1", "localhost1", "1.2.7.0"])
def test_other_addresses(host):
    assert not is_loopback(host)


@given(st.integers(0, 2**40), st.integers(1, 9999))
def test_runs_with_numbers_near_each_other_get_different_ports(job, apart):
    assert 20_000 <= derived_port(str(job)) < 30_000
    assert derived_port(str(job)) != derived_port(str(job + apart))
    assert derived_port(str(job), 0) != derived_port(str(job), 1)


def test_a_run_with_a_name_gets_the_same_port_everywhere():
    assert derived_port("prterun-node1-2233@1") == derived_port("prterun-node1-2233@1")
    assert 20_000 <= derived_port("prterun-node1-2233@1") < 30_000
