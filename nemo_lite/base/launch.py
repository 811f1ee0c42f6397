"""Which rank this process is: flags, torchrun, torch.distributed.launch, Slurm and MPI give one answer.

:func:`who_am_i` reads it from the launcher's variables and the script's options. No network calls: no name is
looked up.
"""

from __future__ import annotations

import argparse
import functools
import ipaddress
import os
import re
import shlex
import sys
import zlib
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from nemo_lite.base.errors import UnknownNameError, UsageError

# The variables that launchers set: torchrun, Slurm's srun, OpenMPI's mpirun, mpiexec of MPICH and Intel MPI.

LAUNCHERS = ("auto", "pytorch", "slurm", "mpi", "none")
# What a process has to know about itself, and the attributes of a Launcher that say which variables hold it.
NUMBERS = ("rank", "world_size", "local_rank")

# Slurm's numbers of steps that are not srun's own: the batch script, the shell of salloc, prolog and epilog.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
_NUMBER = re.compile(r"[0-9]{1,18}")
_START = "start the script with torchrun, which sets RANK, WORLD_SIZE and LOCAL_RANK"


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
    local_world_size: tuple[str, ...] = ()
    num_nodes: tuple[str, ...] = ()
    run_id: tuple[str, ...] = ()


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
    num_nodes=("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
    run_id=("SLURM_JOB_ID", "SLURM_JOBID"),
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


def find_launcher(name: str, is_distributed: bool, environ: Mapping[str, str]) -> Launcher | None:
    """The launcher that started this process; ``None`` if none did and nothing says that there are other processes.

    Of nested launchers the innermost counts: ``srun`` often starts torchrun's agents or ``mpirun``'s daemons.

    Args:
        name: one of `LAUNCHERS` but ``none``; ``auto`` looks at the variables.
        is_distributed: the script's options say that there are several processes.
        environ: the environment.

    Raises:
        UsageError: the launcher of that name did not start this process.
    """
    if name == "pytorch":
        return TORCH
    step = SLURM if _is_task_of_step(environ) else None
    mpi = _find_mpi(step is not None, environ)
    if name != "auto":
        launcher, command = (step, "srun") if name == "slurm" else (mpi, "mpirun")
        if launcher is None:
            raise UsageError(
                f"the launcher is {name}, and this process was not started by {command}",
                remedy=f"start the script with {command}, or leave --launcher out",
            )
        return launcher
    variables = [first_set(getattr(TORCH, number), environ) for number in NUMBERS]
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
    if any(first_set(getattr(OPENMPI, number), environ) for number in NUMBERS):
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
    names = [name for launcher in launchers for number in NUMBERS for name in getattr(launcher, number)]
    ignored = " ".join(f"{name}={environ.pop(name)}" for name in names if environ.get(name))
    return f"--launcher none: this process runs alone and ignores {ignored}" if ignored else None


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


# Which rank this process is.


@dataclass(frozen=True)
class ProcessInfo:
    """This process among all that were started together.

    Attributes:
        rank: its index among all.
        world_size: how many there are.
        local_rank: its index on its machine.
        local_world_size: how many are on its machine, where the launcher says it.
        num_nodes: number of machines, where the launcher says it.
        launcher: whose variables were read: ``pytorch``, ``slurm`` or ``mpi``.
        master: host and port where the ranks meet.
        agent_hosts_store: the launcher's agent serves the store there; else rank 0 has to.
        run_id: what the launcher calls the run: the same for all of its processes, and after a restart; "" if it does
            not say.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int | None
    num_nodes: int | None
    launcher: str
    master: tuple[str, int]
    agent_hosts_store: bool = False
    run_id: str = ""

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0


def who_am_i(
    local_rank: int | str | None = None,
    *,
    launcher: str = "auto",
    init_method: str | None = None,
    rank: int | str | None = None,
    world_size: int | str | None = None,
    environ: Mapping[str, str] = os.environ,
    checks: bool = True,
) -> ProcessInfo | None:
    """Who this process is and where the ranks meet; ``None`` for a single process that no launcher started.

    A script that runs in a Slurm allocation without ``srun`` is a single process.

    Args:
        local_rank: what the script was given as ``--local_rank``.
        launcher: one of `LAUNCHERS`; ``auto`` takes the innermost launcher whose variables are there.
        init_method: ``tcp://host:port`` where the ranks meet, or ``env://``: as the launcher says.
        rank, world_size: what the launcher does not say, with ``init_method``.
        environ: the environment.
        checks: without, numbers may contradict each other (the option counts) or be out of range: for a process that
            only tells the others why it cannot take part.

    Raises:
        UnknownNameError: no such launcher.
        UsageError: options and variables that contradict each other, numbers that are missing or out of range, a
            master that other machines cannot reach.
    """
    if launcher not in LAUNCHERS:
        raise UnknownNameError("launcher", str(launcher), LAUNCHERS)
    options = {"rank": rank, "world_size": world_size, "local_rank": local_rank}
    if launcher == "none":
        _check_alone(options, init_method, environ)
        return None
    is_distributed = init_method is not None or any(value is not None for value in options.values())
    started_by = find_launcher(launcher, is_distributed, environ)
    if started_by is None:
        return None
    address = None if init_method in (None, "env://") else tcp_address(str(init_method))
    numbers = _rank_numbers(started_by, options, address, environ, checks)
    local_world_size = number_in(started_by.local_world_size, environ, least=1)
    num_nodes = number_in(started_by.num_nodes, environ, least=1)
    if checks:
        _check_ranges(**numbers, local_world_size=local_world_size)
    if num_nodes is None and local_world_size:
        machines, rest = divmod(numbers["world_size"], local_world_size)
        if rest == 0 and (machines == 1 or started_by is TORCH):
            num_nodes = machines
    several = None if num_nodes is None else num_nodes > 1
    if local_world_size and local_world_size < numbers["world_size"]:
        several = True
    return ProcessInfo(
        **numbers,
        local_world_size=local_world_size,
        num_nodes=num_nodes,
        launcher=started_by.name,
        master=_master(started_by, address, several, environ),
        agent_hosts_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        run_id=_run_id(started_by, environ),
    )


def _run_id(launcher: Launcher, environ: Mapping[str, str]) -> str:
    run_id = environ.get(first_set(launcher.run_id, environ) or "", "")
    step = environ.get(first_set(SLURM_STEP_ID, environ) or "") if launcher is SLURM else None
    # torchrun calls each run "none" that was given no --rdzv-id.
    return "" if run_id == "none" else f"{run_id}.{step}" if run_id and step else run_id


def _check_alone(options: Mapping[str, int | str | None], init_method: str | None, environ: Mapping[str, str]) -> None:
    """With launcher none: neither the environment nor the options may say that there are other processes."""
    launcher = find_launcher("auto", False, environ)
    variable = first_set(launcher.world_size, environ) if launcher else None
    if variable and parse_number(variable, environ[variable]) > 1:
        raise UsageError(
            f"the launcher is none, and a launcher started {environ[variable]} processes",
            got=f"{variable}={environ[variable]}",
            remedy="leave --launcher out, or start the script once, without a launcher",
        )
    spelled = [f"--{name} {value}" for name, value in options.items() if value is not None and str(value) != "0"]
    spelled += [f"--init_method {init_method}"] if init_method is not None else []
    if spelled:
        raise UsageError("the launcher is none", got=" ".join(spelled), remedy="leave one of them out")


def _rank_numbers(
    launcher: Launcher,
    options: Mapping[str, int | str | None],
    address: tuple[str, int] | None,
    environ: Mapping[str, str],
    checks: bool,
) -> dict[str, int]:
    """Rank, world size and local rank; all sources must agree on them, unless nothing is checked."""
    claims = {name: _claims(name, launcher, options[name], environ) for name in NUMBERS}
    for sources in claims.values():
        if checks and len(set(sources.values())) > 1:
            raise UsageError(
                f"{' and '.join(sources)} contradict each other", remedy="remove the one that was set by hand"
            )
    numbers = {name: next(iter(sources.values())) for name, sources in claims.items() if sources}
    on_one_machine = numbers.get("world_size") == 1 or (address is not None and is_loopback(address[0]))
    if on_one_machine and "rank" in numbers and (address or launcher is not TORCH):
        numbers.setdefault("local_rank", numbers["rank"])
    missing = [name for name in NUMBERS if name not in numbers]
    if missing:
        variables = " and ".join(getattr(launcher, name)[0] for name in missing)
        remedy = f"{_START}, or leave all out to run one process"
        if address is not None or launcher is not TORCH:
            remedy = f"give {' and '.join(f'--{name}' for name in missing)}, or {_START}"
        raise UsageError(
            f"{variables} {'is' if len(missing) == 1 else 'are'} missing",
            got=" ".join(source for sources in claims.values() for source in sources),
            remedy=remedy,
        )
    return numbers


def _claims(name: str, launcher: Launcher, option: int | str | None, environ: Mapping[str, str]) -> dict[str, int]:
    """What the option and the variables say about one of `NUMBERS`: the setting, as a text -> the number."""
    least = 1 if name == "world_size" else 0
    claims = {} if option is None else {f"--{name} {option}": parse_number(f"--{name}", str(option), least)}
    # torch's names are often set by hand in a job's script, beside a launcher that does not use them.
    for source in (launcher, TORCH):
        variable = first_set(getattr(source, name), environ)
        if variable:
            claims[f"{variable}={environ[variable]}"] = parse_number(variable, environ[variable], least)
    return claims


def _check_ranges(rank: int, world_size: int, local_rank: int, local_world_size: int | None) -> None:
    size = world_size if local_world_size is None else local_world_size
    if rank >= world_size:
        raise UsageError("the rank is not below the world size", got=f"rank {rank} of {world_size}")
    if size > world_size:
        raise UsageError("a machine has more processes than all have together", got=f"{size} > {world_size}")
    if local_rank >= size:
        problem = "the local rank is not below the number of processes"
        raise UsageError(problem, got=f"local rank {local_rank} of {size}")


# Where the ranks meet.

# Above the services' ports and below those that Linux gives to outgoing connections (from 32768).
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000
_LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost")
_FIRST_HOST = re.compile(r"(?P<head>[^\[\],]+)(\[(?P<number>[0-9]+)[0-9,-]*\](?P<tail>[^\[\],]*))?(?=,|$)")


def first_host(nodelist: str) -> str:
    """``node01``, the first host of a list such as ``node[01-03,07],gpu5``.

    Raises:
        UsageError: a list that is not well formed at its beginning, or a name with several bracket groups.
    """
    match = _FIRST_HOST.match(nodelist)
    if match is None:
        raise UsageError(
            "the node list cannot be read",
            got=repr(nodelist),
            wanted="hosts such as node[01-03,07],gpu5",
            remedy="set MASTER_ADDR to the host of the first task",
        )
    return f"{match['head']}{match['number'] or ''}{match['tail'] or ''}"


def tcp_address(init_method: str) -> tuple[str, int]:
    """Host and port of ``tcp://host:port``.

    Raises:
        UsageError: anything else.
    """
    try:
        url = urlsplit(init_method)
        host, port, more = url.hostname, url.port, url.path + url.query + url.fragment
    except ValueError:
        host, port, more = None, None, ""
    if not host or not port or more or url.scheme != "tcp":
        raise UsageError("cannot be used", place=f"--init_method {init_method}", wanted="tcp://host:port or env://")
    return host, port


def is_loopback(host: str) -> bool:
    """Whether this address or name means, on every machine, the machine itself."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.startswith("127.") or host.lower() in _LOOPBACK_NAMES
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def derived_port(run_id: str, step: int = 0) -> int:
    """A port from 20000 to 29999 for a run's number or name: the same wherever it is derived.

    The first steps of runs whose numbers are less than 10000 apart get different ones; so do steps of one run.
    """
    number = int(run_id) if _NUMBER.fullmatch(run_id) else zlib.crc32(run_id.encode())
    return _FIRST_PORT + (number * 101 + step) % _NUM_PORTS


def _master(
    launcher: Launcher, address: tuple[str, int] | None, several: bool | None, environ: Mapping[str, str]
) -> tuple[str, int]:
    """Host and port where ranks meet: of the option, MASTER_ADDR and MASTER_PORT, or what can be derived."""
    set_host, set_port = environ.get("MASTER_ADDR"), number_in(("MASTER_PORT",), environ, least=1)
    if set_port is not None and set_port >= 2**16:
        raise UsageError("is not a port", place="MASTER_PORT", got=str(set_port), wanted="a number below 65536")
    unset = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if address is not None:
        _check_same_address(address, set_host or address[0], set_port or address[1])
        host, port = address
    elif launcher is TORCH and unset:
        raise UsageError(
            f"{' and '.join(unset)} {'is' if len(unset) == 1 else 'are'} missing: ranks do not know where to meet",
            remedy="start the script with torchrun, which sets them, or give --init_method tcp://host:port",
        )
    else:
        host = set_host or _host_of_rank_0(launcher, several, environ)
        port = set_port or _port(launcher, environ)
    if several and is_loopback(host):
        raise UsageError(
            "other machines cannot reach a loopback address",
            place=f"master {host}:{port}",
            wanted="an address of the first machine that the others reach",
            remedy="give it as --master_addr (with --rdzv-backend=c10d: as --local-addr on the first machine), in "
            "MASTER_ADDR, or in --init_method",
        )
    return host, port


def _check_same_address(address: tuple[str, int], host: str, port: int) -> None:
    is_same = host.lower() == address[0].lower() or (is_loopback(host) and is_loopback(address[0]))
    if not is_same or port != address[1]:
        raise UsageError(
            f"--init_method tcp://{address[0]}:{address[1]} and MASTER_ADDR={host} MASTER_PORT={port} "
            "contradict each other",
            remedy="remove --init_method",
        )


def _host_of_rank_0(launcher: Launcher, several: bool | None, environ: Mapping[str, str]) -> str:
    if several is False:
        return "127.0.0.1"
    nodes = first_set(SLURM_NODELIST, environ) if launcher is SLURM else None
    if nodes is None:
        raise UsageError(
            f"{launcher.name}'s variables do not say on which machine rank 0 is",
            remedy="set MASTER_ADDR to it, or give --init_method tcp://host:port",
        )
    return first_host(environ[nodes])


def _port(launcher: Launcher, environ: Mapping[str, str]) -> int:
    """A port that all ranks of a run derive alike, and other runs on the machine differently."""
    variable = first_set(launcher.run_id, environ)
    if variable is None:
        raise UsageError(
            f"{launcher.name}'s variables do not say at which port ranks meet",
            remedy="set MASTER_PORT to a free port of the first machine, or give --init_method tcp://host:port",
        )
    # A job may run several steps at once.
    return derived_port(environ[variable], (number_in(SLURM_STEP_ID, environ) or 0) if launcher is SLURM else 0)


# Command lines that launchers start.

# How torch.distributed.launch passes the rank to a script: with an underscore before torch 2.0, since then with a dash.
_SPELLINGS = ("--local_rank", "--local-rank")


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
    spellings = [spelling for spelling in _SPELLINGS if spelling in options]
    passed = _passed_ranks(environ)
    if len(spellings) != 1:
        return list(words)
    return [f"{spellings[0]}={environ['LOCAL_RANK']}" if word in passed else word for word in words]


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
