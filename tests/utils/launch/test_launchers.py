"""Which launcher started this process, where several could have; how a script is started on several processes."""

from __future__ import annotations

import argparse
import itertools
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys.launchers import SALLOC_STEP, hydra, openmpi, refusal, slurm_batch, slurm_task, torchrun, without

from nemo_lite.errors import UnknownNameError
from nemo_lite.utils.launch import as_typed, forget_launcher, launch_line, rank_in, respelled, who_am_i


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
