"""Who am I: one answer from what launchers put into the environment and what a script was told. Nobody is spoken to.

The only file that reads the variables of launchers: torchrun and ``torch.distributed.launch``, Slurm's ``srun``,
OpenMPI's ``mpirun``, and ``mpiexec`` of MPICH and Intel MPI. Of nested launchers the innermost speaks: ``srun`` often
starts torchrun's agents or ``mpirun``'s daemons, and Slurm counts those.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nemo_lite.errors import UnknownNameError, UsageError
from nemo_lite.utils.launch.addresses import derived_port, host_names, is_loopback, tasks_of_node, tcp_address

LAUNCHERS = ("auto", "pytorch", "slurm", "mpi", "none")

_ROLES = ("rank", "world_size", "local_rank")
# Slurm's numbers of steps that are not srun's own: the batch script, the shell of salloc, prolog and epilog.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
_NUMBER = re.compile(r"[0-9]{1,18}")
_START = "start the script with torchrun, which sets all three"


@dataclass(frozen=True)
class Place:
    """Where this process stands among all that were started together.

    Attributes:
        rank: its index among all.
        world_size: how many there are.
        local_rank: its index on its machine.
        local_world_size: how many are on its machine, where the launcher says it.
        num_nodes: machines, where the launcher says it.
        launcher: whose variables gave the answer: ``pytorch``, ``slurm`` or ``mpi``.
        master: host and port where the ranks meet.
        agent_hosts_store: the launcher's agent serves the store there; else the first rank has to.
        restart_count: how often the launcher has started all anew.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int | None
    num_nodes: int | None
    launcher: str
    master: tuple[str, int]
    agent_hosts_store: bool = False
    restart_count: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this is the process that reads and writes what all have in common."""
        return self.rank == 0


@dataclass(frozen=True)
class _Names:
    """What one launcher calls its answers. Of several names for the same, the first that is set speaks."""

    launcher: str
    rank: tuple[str, ...]
    world_size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_world_size: tuple[str, ...]
    num_nodes: tuple[str, ...] = ()
    # What all ranks of a run have in common and no other run on the machine has.
    run_id: tuple[str, ...] = ()

    def of(self, role: str) -> tuple[str, ...]:
        names: tuple[str, ...] = getattr(self, role)
        return names


_TORCH = _Names("pytorch", ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",), ("GROUP_WORLD_SIZE",))
_SLURM = _Names(
    "slurm",
    ("SLURM_PROCID",),
    ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    ("SLURM_LOCALID",),
    ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"),
    ("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
    ("SLURM_JOB_ID", "SLURM_JOBID"),
)
_OPENMPI = _Names(
    "mpi",
    ("OMPI_COMM_WORLD_RANK",),
    ("OMPI_COMM_WORLD_SIZE",),
    ("OMPI_COMM_WORLD_LOCAL_RANK",),
    ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    run_id=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
)
_HYDRA = _Names("mpi", ("PMI_RANK",), ("PMI_SIZE",), ("MPI_LOCALRANKID",), ("MPI_LOCALNRANKS",))
_NODELIST = ("SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST")
_STEP_ID = ("SLURM_STEP_ID", "SLURM_STEPID")


def who_am_i(
    local_rank: int | str | None = None,
    *,
    launcher: str = "auto",
    init_method: str | None = None,
    rank: int | str | None = None,
    world_size: int | str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Place | None:
    """This process's place, or ``None`` for a single process that no launcher started.

    A script that runs in a Slurm allocation without ``srun`` is a single process: only a task of a step of its own has
    siblings.

    Args:
        local_rank: what the script was given as ``--local_rank``.
        launcher: one of `LAUNCHERS`; ``auto`` takes the innermost launcher whose variables are there.
        init_method: ``tcp://host:port`` where the ranks meet, or ``env://``: as the launcher says.
        rank, world_size: what the launcher does not say, with ``init_method``.
        environ: the environment.

    Raises:
        UnknownNameError: no such launcher.
        UsageError: sources that disagree, answers that are missing or out of range, a master that other machines
            cannot reach.
    """
    if launcher not in LAUNCHERS:
        raise UnknownNameError("launcher", str(launcher), LAUNCHERS)
    given = {"rank": rank, "world_size": world_size, "local_rank": local_rank}
    if launcher == "none":
        _check_alone(given, init_method, environ)
        return None
    is_asked = init_method is not None or any(value is not None for value in given.values())
    names = _speaker(launcher, is_asked, environ)
    if names is None:
        return None
    meeting = None if init_method in (None, "env://") else tcp_address(str(init_method))
    found = _answers(names, given, meeting, environ)
    local_world_size, num_nodes = _machines(names, found["world_size"], environ)
    _check_ranges(found, local_world_size)
    return Place(
        found["rank"],
        found["world_size"],
        found["local_rank"],
        local_world_size,
        num_nodes,
        names.launcher,
        _master(names, meeting, _are_several(found["world_size"], local_world_size, num_nodes), environ),
        agent_hosts_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        restart_count=_number_of(("TORCHELASTIC_RESTART_COUNT",), environ) or 0,
    )


def rank_in(environ: Mapping[str, str]) -> int:
    """This process's rank by a look at the environment alone, 0 if it does not say. Never raises."""
    for name in (*_TORCH.rank, *_OPENMPI.rank, *_HYDRA.rank, *_SLURM.rank):
        text = environ.get(name, "")
        if _NUMBER.fullmatch(text):
            return int(text)
    return 0


def restart_warning(environ: Mapping[str, str] = os.environ) -> str | None:
    """What to tell a user whose torchrun line is known not to restart; ``None`` if it is not one of those.

    Restarted ranks must not find what the failed ones left in the store. With the static and ``--standalone``
    rendezvous, and with c10d by default, the agent's store outlives them.
    """
    restarts = environ.get("TORCHELASTIC_MAX_RESTARTS", "")
    if not _NUMBER.fullmatch(restarts) or not int(restarts) or environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    return (
        f"--max-restarts={restarts} is not reliable as this run was started: restarted ranks meet in the store of the "
        "failed ones. Start it with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --rdzv-backend=c10d "
        f"--rdzv-endpoint=HOST:PORT --max-restarts={restarts}, HOST:PORT being the first machine and a free port of it"
    )


def launch_line(num_processes: int, argv: Sequence[str]) -> str:
    """The command, quoted for a shell, that starts a script (``argv`` with the script first) on so many processes."""
    return shlex.join(["torchrun", f"--nproc-per-node={num_processes}", *argv])


def _speaker(launcher: str, is_asked: bool, environ: Mapping[str, str]) -> _Names | None:
    """Whose variables are read; ``None`` if there are none and nothing was asked for."""
    if launcher == "pytorch":
        return _TORCH
    step = _SLURM if _is_task_of_step(environ) else None
    mpi = _mpi(step is not None, environ)
    if launcher != "auto":
        names, start = (step, "srun") if launcher == "slurm" else (mpi, "mpirun")
        if names is None:
            raise UsageError(
                f"the launcher is {launcher}, and this process was not started by {start}",
                remedy=f"start the script with {start}, or leave --launcher out",
            )
        return names
    variables = [_first_set(_TORCH.of(role), environ) for role in _ROLES]
    if all(variables):
        return _TORCH
    return mpi or step or (_TORCH if is_asked or any(variables) else None)


def _is_task_of_step(environ: Mapping[str, str]) -> bool:
    """Whether ``srun`` started this process, or one that it descends from.

    A batch script has SLURM_PROCID=0 and the job's SLURM_NTASKS as well; what it lacks is the number of a step, or it
    has one of those that Slurm keeps for such scripts and for interactive shells.
    """
    task, step = environ.get("SLURM_PROCID"), environ.get(_first_set(_STEP_ID, environ) or "", "")
    return bool(task) and (int(step) < _FIRST_SPECIAL_STEP if _NUMBER.fullmatch(step) else task != "0")


def _mpi(in_step: bool, environ: Mapping[str, str]) -> _Names | None:
    if any(_first_set(_OPENMPI.of(role), environ) for role in _ROLES):
        return _OPENMPI
    # srun sets PMI_RANK for its tasks too, but leaves their numbers on a machine to its own variable.
    has_own = bool(environ.get("MPI_LOCALRANKID"))
    return _HYDRA if has_own or (environ.get("PMI_RANK") and not in_step) else None


def _check_alone(given: Mapping[str, int | str | None], init_method: str | None, environ: Mapping[str, str]) -> None:
    """With launcher none: nothing may say that there are others."""
    names = _speaker("auto", False, environ)
    variable = _first_set(names.world_size, environ) if names else None
    if variable and _number(variable, environ[variable]) > 1:
        raise UsageError(
            f"the launcher is none, and a launcher started {environ[variable]} processes",
            got=f"{variable}={environ[variable]}",
            remedy="leave --launcher out, or start the script once, without a launcher",
        )
    said = [f"--{role} {value}" for role, value in given.items() if value is not None and str(value) != "0"]
    said += [f"--init_method {init_method}"] if init_method is not None else []
    if said:
        raise UsageError("the launcher is none", got=" ".join(said), remedy="leave one of them out")


def _answers(
    names: _Names,
    given: Mapping[str, int | str | None],
    meeting: tuple[str, int] | None,
    environ: Mapping[str, str],
) -> dict[str, int]:
    """Rank, world size and local rank, on which all that speak about them agree."""
    claims = {role: _claims(role, names, given[role], environ) for role in _ROLES}
    for role, said in claims.items():
        if len(set(said.values())) > 1:
            raise UsageError(
                f"sources disagree about the {role.replace('_', ' ')}",
                got=" and ".join(said),
                remedy="leave out what was set by hand",
            )
    found = {role: next(iter(said.values())) for role, said in claims.items() if said}
    is_certain = found.get("world_size") == 1 or (meeting is not None and is_loopback(meeting[0]))
    if is_certain and "rank" in found and (meeting or names is not _TORCH):
        found.setdefault("local_rank", found["rank"])
    missing = [names.of(role)[0] for role in _ROLES if role not in found]
    if missing:
        raise _missing(missing, [text for said in claims.values() for text in said], names, meeting is not None)
    return found


def _claims(role: str, names: _Names, given: int | str | None, environ: Mapping[str, str]) -> dict[str, int]:
    """What is said about one role: the words it is said in -> the number."""
    claims = {} if given is None else {f"--{role} {given}": _number(f"--{role}", str(given))}
    # torch's names are often set by hand in a job's script, beside a launcher that does not use them.
    for source in (names, _TORCH):
        variable = _first_set(source.of(role), environ)
        if variable:
            claims[f"{variable}={environ[variable]}"] = _number(variable, environ[variable])
    return claims


def _missing(missing: Sequence[str], said: Sequence[str], names: _Names, by_hand: bool) -> UsageError:
    options = " and ".join(f"--{role}" for role in _ROLES if names.of(role)[0] in missing)
    by_hand = by_hand or names is not _TORCH
    return UsageError(
        f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing",
        got=" ".join(said),
        remedy=f"give {options}, or {_START}" if by_hand else f"{_START}, or leave all out to run one process",
    )


def _machines(names: _Names, world_size: int, environ: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Processes on this machine, and machines, as far as the launcher says it."""
    num_nodes = _number_of(names.num_nodes, environ, least=1)
    if names is _SLURM:
        nodes = _first_set(_NODELIST, environ)
        if num_nodes is None and nodes:
            num_nodes = len(host_names(environ[nodes]))
        tasks = environ.get(_first_set(names.local_world_size, environ) or "", "")
        count = tasks_of_node(tasks, _number_of(("SLURM_NODEID",), environ))
        # What the whole job asked for may be more than this step has.
        return count if count and count <= world_size else None, num_nodes
    local_world_size = _number_of(names.local_world_size, environ, least=1)
    if num_nodes is None and local_world_size == world_size:
        num_nodes = 1
    if num_nodes is None and names is _TORCH and local_world_size and world_size % local_world_size == 0:
        num_nodes = world_size // local_world_size
    return local_world_size, num_nodes


def _are_several(world_size: int, local_world_size: int | None, num_nodes: int | None) -> bool | None:
    """Whether the ranks are on several machines; ``None`` if that is not known."""
    if local_world_size is not None and local_world_size < world_size:
        return True
    if num_nodes is not None:
        return num_nodes > 1
    return False if local_world_size == world_size else None


def _check_ranges(found: Mapping[str, int], local_world_size: int | None) -> None:
    rank, world_size, local_rank = (found[role] for role in _ROLES)
    if rank >= world_size:
        raise UsageError("the rank is not below the world size", got=f"rank {rank} of {world_size}")
    if local_world_size is not None and local_world_size > world_size:
        raise UsageError(
            "a machine has more processes than all have together", got=f"{local_world_size} > {world_size}"
        )
    size = world_size if local_world_size is None else local_world_size
    if local_rank >= size:
        raise UsageError(
            "the local rank is not below the number of processes", got=f"local rank {local_rank} of {size}"
        )


def _master(
    names: _Names, meeting: tuple[str, int] | None, several: bool | None, environ: Mapping[str, str]
) -> tuple[str, int]:
    """Host and port where ranks meet: as asked, MASTER_ADDR and MASTER_PORT, or what can be derived."""
    set_host, set_port = environ.get("MASTER_ADDR"), _number_of(("MASTER_PORT",), environ, least=1)
    if set_port is not None and set_port >= 2**16:
        raise UsageError("is not a port", place="MASTER_PORT", got=str(set_port), wanted="a number below 65536")
    unset = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if meeting is not None:
        _check_same_place(meeting, set_host or meeting[0], set_port or meeting[1])
        host, port = meeting
    elif names is _TORCH and unset:
        raise UsageError(
            f"{' and '.join(unset)} {'is' if len(unset) == 1 else 'are'} missing: ranks do not know where to meet",
            remedy="start the script with torchrun, which sets them, or give --init_method tcp://host:port",
        )
    else:
        host, port = set_host or _first_host(names, several, environ), set_port or _port(names, environ)
    if several and is_loopback(host):
        raise UsageError(
            "other machines cannot reach a loopback address",
            place=f"master {host}:{port}",
            wanted="an address of the first machine that the others reach",
            remedy="give it as --master_addr (with --rdzv-backend=c10d: as --local-addr on the first machine), in "
            "MASTER_ADDR, or in --init_method",
        )
    return host, port


def _check_same_place(meeting: tuple[str, int], host: str, port: int) -> None:
    is_same = host.lower() == meeting[0].lower() or (is_loopback(host) and is_loopback(meeting[0]))
    if not is_same or port != meeting[1]:
        raise UsageError(
            "sources disagree about where ranks meet",
            got=f"--init_method tcp://{meeting[0]}:{meeting[1]} and MASTER_ADDR={host} MASTER_PORT={port}",
            remedy="leave --init_method out",
        )


def _first_host(names: _Names, several: bool | None, environ: Mapping[str, str]) -> str:
    if several is False:
        return "127.0.0.1"
    nodes = _first_set(_NODELIST, environ) if names is _SLURM else None
    if nodes is None:
        raise UsageError(
            f"{names.launcher}'s variables do not say on which machine the first rank is",
            remedy="set MASTER_ADDR to it, or give --init_method tcp://host:port",
        )
    return host_names(environ[nodes])[0]


def _port(names: _Names, environ: Mapping[str, str]) -> int:
    """A port that all ranks of a run derive alike, and runs beside it differently."""
    variable = _first_set(names.run_id, environ)
    if variable is None:
        raise UsageError(
            f"{names.launcher}'s variables do not say at which port ranks meet",
            remedy="set MASTER_PORT to a free port of the first machine, or give --init_method tcp://host:port",
        )
    # A job may run several steps at once.
    return derived_port(environ[variable], (_number_of(_STEP_ID, environ) or 0) if names is _SLURM else 0)


def _first_set(names: Sequence[str], environ: Mapping[str, str]) -> str | None:
    return next((name for name in names if environ.get(name)), None)


def _number_of(names: Sequence[str], environ: Mapping[str, str], least: int = 0) -> int | None:
    variable = _first_set(names, environ)
    return None if variable is None else _number(variable, environ[variable], least)


def _number(name: str, text: str, least: int = 0) -> int:
    if not _NUMBER.fullmatch(text) or int(text) < least:
        raise UsageError(f"is not a whole number from {least}", place=name, got=repr(text))
    return int(text)
