"""Which rank this process is, from its launcher's variables and the script's options. No network calls.

The variables' names are in launchers.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nemo_lite.errors import UnknownNameError, UsageError
from nemo_lite.utils.launch.addresses import derived_port, host_names, is_loopback, tasks_of_node, tcp_address
from nemo_lite.utils.launch.launchers import (
    LAUNCHERS,
    NUMBERS,
    SLURM,
    SLURM_NODELIST,
    SLURM_STEP_ID,
    TORCH,
    Launcher,
    find_launcher,
    first_set,
    number_in,
    parse_number,
)

_START = "start the script with torchrun, which sets RANK, WORLD_SIZE and LOCAL_RANK"


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
    found = find_launcher(launcher, is_distributed, environ)
    if found is None:
        return None
    given_address = None if init_method in (None, "env://") else tcp_address(str(init_method))
    numbers = _rank_numbers(found, options, given_address, environ, checks)
    local_world_size, num_nodes = _machines(found, numbers["world_size"], environ)
    if checks:
        _check_ranges(numbers, local_world_size)
    several = _are_several_machines(numbers["world_size"], local_world_size, num_nodes)
    return ProcessInfo(
        numbers["rank"],
        numbers["world_size"],
        numbers["local_rank"],
        local_world_size,
        num_nodes,
        found.name,
        _master(found, given_address, several, environ),
        agent_hosts_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        run_id=_run_id(found, environ),
    )


def _run_id(launcher: Launcher, environ: Mapping[str, str]) -> str:
    found = environ.get(first_set(launcher.run_id, environ) or "", "")
    step = environ.get(first_set(SLURM_STEP_ID, environ) or "") if launcher is SLURM else None
    # torchrun calls each run "none" that was given no --rdzv-id.
    return "" if found == "none" else f"{found}.{step}" if found and step else found


def _check_alone(options: Mapping[str, int | str | None], init_method: str | None, environ: Mapping[str, str]) -> None:
    """With launcher none: neither the environment nor the options may say that there are other processes."""
    found = find_launcher("auto", False, environ)
    variable = first_set(found.world_size, environ) if found else None
    if variable and parse_number(variable, environ[variable]) > 1:
        raise UsageError(
            f"the launcher is none, and a launcher started {environ[variable]} processes",
            got=f"{variable}={environ[variable]}",
            remedy="leave --launcher out, or start the script once, without a launcher",
        )
    said = [f"--{name} {value}" for name, value in options.items() if value is not None and str(value) != "0"]
    said += [f"--init_method {init_method}"] if init_method is not None else []
    if said:
        raise UsageError("the launcher is none", got=" ".join(said), remedy="leave one of them out")


def _rank_numbers(
    launcher: Launcher,
    options: Mapping[str, int | str | None],
    given_address: tuple[str, int] | None,
    environ: Mapping[str, str],
    checks: bool,
) -> dict[str, int]:
    """Rank, world size and local rank; all sources must agree on them, unless nothing is checked."""
    claims = {name: _claims(name, launcher, options[name], environ) for name in NUMBERS}
    for said in claims.values():
        if checks and len(set(said.values())) > 1:
            raise UsageError(
                f"{' and '.join(said)} contradict each other", remedy="remove the one that was set by hand"
            )
    numbers = {name: next(iter(said.values())) for name, said in claims.items() if said}
    on_one_machine = numbers.get("world_size") == 1 or (given_address is not None and is_loopback(given_address[0]))
    if on_one_machine and "rank" in numbers and (given_address or launcher is not TORCH):
        numbers.setdefault("local_rank", numbers["rank"])
    missing = [name for name in NUMBERS if name not in numbers]
    if missing:
        said_texts = " ".join(text for said in claims.values() for text in said)
        raise _missing(missing, said_texts, launcher, given_address is not None or launcher is not TORCH)
    return numbers


def _claims(name: str, launcher: Launcher, option: int | str | None, environ: Mapping[str, str]) -> dict[str, int]:
    """What the option and the variables say about one of `NUMBERS`: the setting, as a text -> the number."""
    least = 1 if name == "world_size" else 0
    claims = {} if option is None else {f"--{name} {option}": parse_number(f"--{name}", str(option), least)}
    # torch's names are often set by hand in a job's script, beside a launcher that does not use them.
    for source in (launcher, TORCH):
        variable = first_set(source.variables_for(name), environ)
        if variable:
            claims[f"{variable}={environ[variable]}"] = parse_number(variable, environ[variable], least)
    return claims


def _missing(names: Sequence[str], said: str, launcher: Launcher, takes_options: bool) -> UsageError:
    variables = " and ".join(launcher.variables_for(name)[0] for name in names)
    options = " and ".join(f"--{name}" for name in names)
    return UsageError(
        f"{variables} {'is' if len(names) == 1 else 'are'} missing",
        got=said,
        remedy=f"give {options}, or {_START}" if takes_options else f"{_START}, or leave all out to run one process",
    )


def _machines(launcher: Launcher, world_size: int, environ: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Number of processes on this machine and number of machines, as far as the launcher says it."""
    num_nodes = number_in(launcher.num_nodes, environ, least=1)
    if launcher is SLURM:
        nodes = first_set(SLURM_NODELIST, environ)
        if num_nodes is None and nodes:
            num_nodes = len(host_names(environ[nodes]))
        tasks = environ.get(first_set(launcher.local_world_size, environ) or "", "")
        count = tasks_of_node(tasks, number_in(("SLURM_NODEID",), environ))
        # What the whole job asked for may be more than this step has.
        return count if count and count <= world_size else None, num_nodes
    local_world_size = number_in(launcher.local_world_size, environ, least=1)
    if num_nodes is None and local_world_size == world_size:
        num_nodes = 1
    if num_nodes is None and launcher is TORCH and local_world_size and world_size % local_world_size == 0:
        num_nodes = world_size // local_world_size
    return local_world_size, num_nodes


def _are_several_machines(world_size: int, local_world_size: int | None, num_nodes: int | None) -> bool | None:
    """Whether the ranks are on several machines; ``None`` if that is not known."""
    if local_world_size is not None and local_world_size < world_size:
        return True
    if num_nodes is not None:
        return num_nodes > 1
    return False if local_world_size == world_size else None


def _check_ranges(numbers: Mapping[str, int], local_world_size: int | None) -> None:
    rank, world_size, local_rank = (numbers[name] for name in NUMBERS)
    size = world_size if local_world_size is None else local_world_size
    for is_wrong, problem, got in (
        (rank >= world_size, "the rank is not below the world size", f"rank {rank} of {world_size}"),
        (size > world_size, "a machine has more processes than all have together", f"{size} > {world_size}"),
        (
            local_rank >= size,
            "the local rank is not below the number of processes",
            f"local rank {local_rank} of {size}",
        ),
    ):
        if is_wrong:
            raise UsageError(problem, got=got)


def _master(
    launcher: Launcher, given_address: tuple[str, int] | None, several: bool | None, environ: Mapping[str, str]
) -> tuple[str, int]:
    """Host and port where ranks meet: as asked, MASTER_ADDR and MASTER_PORT, or what can be derived."""
    set_host, set_port = environ.get("MASTER_ADDR"), number_in(("MASTER_PORT",), environ, least=1)
    if set_port is not None and set_port >= 2**16:
        raise UsageError("is not a port", place="MASTER_PORT", got=str(set_port), wanted="a number below 65536")
    unset = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if given_address is not None:
        _check_same_address(given_address, set_host or given_address[0], set_port or given_address[1])
        host, port = given_address
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


def _check_same_address(given_address: tuple[str, int], host: str, port: int) -> None:
    is_same = host.lower() == given_address[0].lower() or (is_loopback(host) and is_loopback(given_address[0]))
    if not is_same or port != given_address[1]:
        raise UsageError(
            f"--init_method tcp://{given_address[0]}:{given_address[1]} and MASTER_ADDR={host} MASTER_PORT={port} "
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
    return host_names(environ[nodes])[0]


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
