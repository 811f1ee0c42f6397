"""The variables that launchers set: torchrun, Slurm's srun, OpenMPI's mpirun, mpiexec of MPICH and Intel MPI.

Also: which launcher started this process, and how a script is started on several. identity.py reads the numbers.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shlex
import sys
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_lite.errors import UsageError

LAUNCHERS = ("auto", "pytorch", "slurm", "mpi", "none")
# What a process has to know about itself.
NUMBERS = ("rank", "world_size", "local_rank")

# Slurm's numbers of steps that are not srun's own: the batch script, the shell of salloc, prolog and epilog.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
_NUMBER = re.compile(r"[0-9]{1,18}")
# How torch.distributed.launch passes the rank to a script: with an underscore before torch 2.0, since then with a dash.
_SPELLINGS = ("--local_rank", "--local-rank")


@dataclass(frozen=True)
class Launcher:
    """The names of one launcher's variables. Where several names mean the same, the first that is set counts.

    Attributes:
        name: ``pytorch``, ``slurm`` or ``mpi``.
        run_id: the same on all ranks of a run, and different for other runs on the machine.
    """

    name: str
    rank: tuple[str, ...]
    world_size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_world_size: tuple[str, ...]
    num_nodes: tuple[str, ...] = ()
    run_id: tuple[str, ...] = ()

    def variables_for(self, number: str) -> tuple[str, ...]:
        """The names of the variables that may hold one of `NUMBERS`."""
        names: tuple[str, ...] = getattr(self, number)
        return names


TORCH = Launcher(
    "pytorch",
    ("RANK",),
    ("WORLD_SIZE",),
    ("LOCAL_RANK",),
    ("LOCAL_WORLD_SIZE",),
    ("GROUP_WORLD_SIZE",),
    ("TORCHELASTIC_RUN_ID",),
)
SLURM = Launcher(
    "slurm",
    ("SLURM_PROCID",),
    ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    ("SLURM_LOCALID",),
    ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"),
    ("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
    ("SLURM_JOB_ID", "SLURM_JOBID"),
)
OPENMPI = Launcher(
    "mpi",
    ("OMPI_COMM_WORLD_RANK",),
    ("OMPI_COMM_WORLD_SIZE",),
    ("OMPI_COMM_WORLD_LOCAL_RANK",),
    ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    run_id=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
)
# MPICH and Intel MPI.
HYDRA = Launcher("mpi", ("PMI_RANK",), ("PMI_SIZE",), ("MPI_LOCALRANKID",), ("MPI_LOCALNRANKS",))
SLURM_NODELIST = ("SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST")
SLURM_STEP_ID = ("SLURM_STEP_ID", "SLURM_STEPID")


def find_launcher(wanted: str, is_distributed: bool, environ: Mapping[str, str]) -> Launcher | None:
    """The launcher that started this process; ``None`` if none did and nothing says that there are other processes.

    Of nested launchers the innermost counts: ``srun`` often starts torchrun's agents or ``mpirun``'s daemons.

    Args:
        wanted: one of `LAUNCHERS` but ``none``; ``auto`` looks at the variables.
        is_distributed: the script's options say that there are several processes.
        environ: the environment.

    Raises:
        UsageError: the wanted launcher did not start this process.
    """
    if wanted == "pytorch":
        return TORCH
    step = SLURM if _is_task_of_step(environ) else None
    mpi = _find_mpi(step is not None, environ)
    if wanted != "auto":
        found, command = (step, "srun") if wanted == "slurm" else (mpi, "mpirun")
        if found is None:
            raise UsageError(
                f"the launcher is {wanted}, and this process was not started by {command}",
                remedy=f"start the script with {command}, or leave --launcher out",
            )
        return found
    variables = [first_set(TORCH.variables_for(number), environ) for number in NUMBERS]
    if all(variables):
        return TORCH
    return mpi or step or (TORCH if is_distributed or any(variables) else None)


def _is_task_of_step(environ: Mapping[str, str]) -> bool:
    """Whether ``srun`` started this process, or one of its ancestors.

    A batch script has SLURM_PROCID=0 and the job's SLURM_NTASKS as well, but no step number, or one of those that Slurm
    reserves for batch scripts and interactive shells.
    """
    task, step = environ.get("SLURM_PROCID"), environ.get(first_set(SLURM_STEP_ID, environ) or "", "")
    return bool(task) and (int(step) < _FIRST_SPECIAL_STEP if _NUMBER.fullmatch(step) else task != "0")


def _find_mpi(in_step: bool, environ: Mapping[str, str]) -> Launcher | None:
    if any(first_set(OPENMPI.variables_for(number), environ) for number in NUMBERS):
        return OPENMPI
    # srun sets PMI_RANK for its tasks too, but not MPI_LOCALRANKID.
    return HYDRA if environ.get("MPI_LOCALRANKID") or (environ.get("PMI_RANK") and not in_step) else None


def rank_in(environ: Mapping[str, str]) -> int:
    """This process's rank from the environment alone, 0 where it does not say. Never raises."""
    for name in (*TORCH.rank, *OPENMPI.rank, *HYDRA.rank, *SLURM.rank):
        text = environ.get(name, "")
        if _NUMBER.fullmatch(text):
            return int(text)
    return 0


def forget_launcher(environ: MutableMapping[str, str] = os.environ) -> str | None:
    """For ``--launcher none``: take the rank out of the environment, which the log and other packages read, too.

    Returns:
        A line that says what is ignored; ``None`` where there is nothing.
    """
    launchers = [TORCH, OPENMPI, HYDRA, *([SLURM] if _is_task_of_step(environ) else [])]
    names = [name for launcher in launchers for number in NUMBERS for name in launcher.variables_for(number)]
    said = " ".join(f"{name}={environ.pop(name)}" for name in names if environ.get(name))
    return f"--launcher none: this process runs alone and ignores {said}" if said else None


def accept_both_spellings() -> None:
    """Let a script's own parser that knows one of ``--local_rank`` and ``--local-rank`` take the other from a launcher.

    NeMo's guides tell users to give their parser an argument ``--local_rank``, and since torch 2.0
    ``python -m torch.distributed.launch`` passes ``--local-rank=0``: argparse ends the script with "unrecognized
    arguments". ``sys.argv`` stays as it is, because a parser may know either spelling and other code may read it. So
    argparse itself is changed, at the one method by which all words come to a parser.
    """
    parse = argparse.ArgumentParser.parse_known_args

    @functools.wraps(parse)
    def parse_launched(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
        words = sys.argv[1:] if args is None else args
        return parse(self, respelled(words, self._option_string_actions, os.environ), namespace)

    argparse.ArgumentParser.parse_known_args = parse_launched  # type: ignore[method-assign]


def respelled(words: Sequence[str], options: Collection[str], environ: Mapping[str, str]) -> list[str]:
    """A command line in which a launcher's ``--local-rank=0`` has the spelling that a parser knows.

    Nothing changes without a launcher's LOCAL_RANK of the same number, nor for a parser that knows both or none.
    """
    spelled = [spelling for spelling in _SPELLINGS if spelling in options]
    passed = _passed_ranks(environ)
    if len(spelled) != 1:
        return list(words)
    return [f"{spelled[0]}={environ['LOCAL_RANK']}" if word in passed else word for word in words]


def without_passed_rank(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """A command line without the ``--local-rank=0`` that ``torch.distributed.launch -m nemo_lite`` puts first.

    Only where LOCAL_RANK, which is read anyway, says the same.
    """
    return list(words[1:] if words and words[0] in _passed_ranks(environ) else words)


def _passed_ranks(environ: Mapping[str, str]) -> list[str]:
    """The words by which a launcher that set LOCAL_RANK may pass it to a script."""
    rank = environ.get("LOCAL_RANK")
    return [f"{spelling}={rank}" for spelling in _SPELLINGS] if rank else []


def launch_line(num_processes: int, argv: Sequence[str]) -> str:
    """The shell command that starts a script (``argv``, with the script first) on so many processes."""
    program = as_typed(argv)
    if program[0] == "nemo-lite":
        program[:1] = ["-m", "nemo_lite"]
    return shlex.join(["torchrun", f"--nproc-per-node={num_processes}", *program])


def as_typed(argv: Sequence[str]) -> list[str]:
    """The words of a command line; a script that a subcommand runs has ``nemo-lite SUBCOMMAND`` as its name."""
    program, *arguments = argv
    return [*(program.split(" ") if program.startswith("nemo-lite ") else [program]), *arguments]


def first_set(names: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """The name of the first of these variables that is set, or ``None``."""
    return next((name for name in names if environ.get(name)), None)


def number_in(names: Sequence[str], environ: Mapping[str, str], least: int = 0) -> int | None:
    """The number in the first of the variables that is set. Raises UsageError for a text that is no such number."""
    variable = first_set(names, environ)
    return None if variable is None else parse_number(variable, environ[variable], least)


def parse_number(name: str, text: str, least: int = 0) -> int:
    """The number that an option or variable holds. Raises UsageError for a text that is no such number."""
    if not _NUMBER.fullmatch(text) or int(text) < least:
        raise UsageError(f"is not a whole number from {least}", place=name, got=repr(text))
    return int(text)
