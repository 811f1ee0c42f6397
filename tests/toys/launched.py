"""Command lines that start several processes, as guides show them, run on this machine with two processes in all.

Launchers of torch run themselves, every machine's line at once. ``srun`` and ``mpirun`` are not needed: what they would
start is started with the environment that they would give. What the processes print is for tests to judge.
"""

from __future__ import annotations

import importlib
import os
import re
import runpy
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from toys.launchers import openmpi, slurm_task
from toys.ranks import Rank, free_port
from toys.warm_python import listen, serve, serve_warm_python

# torchrun is a script of torch.distributed.run.
_TORCH = {"torchrun": "torch.distributed.run", "launch": "torch.distributed.launch"}
# What the guides use, as the manuals of srun, sbatch and OpenMPI's mpirun have it.
_SLURM_OPTIONS = {"job_name", "nodes", "ntasks_per_node", "gpus_per_node", "cpus_per_task", "kill_on_bad_exit"}
_MPI_OPTIONS = {"np", "hostfile", "x"}
_SETTING = re.compile(r"[A-Z][A-Z0-9_]*=.*")


@dataclass(frozen=True)
class Launch:
    """A line that starts several processes, taken apart.

    Attributes:
        launcher: ``torchrun``, ``launch``, ``srun`` or ``mpirun``.
        env: what is set for it.
        options: of the launcher, as written, with their values.
        script: what it starts, and its arguments.
    """

    launcher: str
    env: dict[str, str]
    options: tuple[tuple[str, str], ...]
    script: str
    args: list[str] = field(default_factory=list)

    def option(self, *names: str) -> str | None:
        """The value of an option by any of its names: without dashes before it, and with ``_`` inside."""
        return next((value for option, value in self.options if _plain(option) in names), None)

    @property
    def num_machines(self) -> int:
        """How many take part."""
        return 2 if self.option("nnodes", "nodes") not in (None, "1") or self.option("hostfile") else 1

    @property
    def is_for_one_machine_of_several(self) -> bool:
        """Whether the line is this machine's own, and the others have one of theirs."""
        return self.option("node_rank") is not None

    def start(self, machine: int, address: str, port: int, script: str, args: Sequence[str]) -> list[Rank]:
        """Start it on one machine, ``machine``, of those that meet at an address; with other arguments.

        Lines of Slurm and MPI, which are given once, start all machines' processes.
        """
        if self.launcher in _TORCH:
            if self.is_for_one_machine_of_several:
                machine = int(self.option("node_rank") or 0)
            words = [*self._small(machine, address, port), script, *args]
            return [Rank({"OMP_NUM_THREADS": "1", **self.env}, _launch, (_TORCH[self.launcher], words))]
        if machine:
            return []
        environs = self._slurm(address) if self.launcher == "srun" else self._mpi(address, port)
        return [start_script(script, args, {**self.env, **env}) for env in environs]

    def _small(self, machine: int, address: str, port: int) -> Iterator[str]:
        """The options of a launcher of torch, with two processes in all, at that address."""
        instead = {
            "nproc_per_node": str(2 // self.num_machines),
            "master_addr": address,
            "master_port": str(port),
            "rdzv_endpoint": f"{address}:{port}",
        }
        for option, value in self.options:
            new = instead.get(_plain(option), value)
            yield f"{option}={new}" if value else option
        if self.num_machines > 1 and self.option("rdzv_backend") == "c10d":
            # This one machine is both, and may know its own name by the loopback's address only.
            yield f"--local-addr={address}"
            yield f"--rdzv-conf={self.option('rdzv_conf')},is_host={int(machine == 0)}"

    def _slurm(self, address: str) -> Iterator[dict[str, str]]:
        self._check(_SLURM_OPTIONS, "nodes", "ntasks_per_node")
        nodes, per_node = ",".join([address] * self.num_machines), 2 // self.num_machines
        job = str(free_port())  # ports are made from its number
        for rank in range(2):
            yield slurm_task(rank, nodes, self.num_machines, per_node, SLURM_JOB_ID=job)

    def _mpi(self, address: str, port: int) -> Iterator[dict[str, str]]:
        self._check(_MPI_OPTIONS, "np")
        passed = dict(value.split("=", 1) for option, value in self.options if _plain(option) == "x")
        meeting = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
        passed.update((name, meeting[name]) for name in passed.keys() & meeting)
        for rank in range(2):
            yield openmpi(rank, 2, 2 // self.num_machines, **{"PMIX_NAMESPACE": str(port), **passed})

    def _check(self, known: set[str], *needed: str) -> None:
        named = [_plain(option) for option, _ in self.options]
        assert set(needed) <= set(named) <= known, f"{self.launcher} {named}: known are {sorted(known)}"


def launch_of(words: Sequence[str], header: Sequence[tuple[str, str]] = ()) -> Launch | None:
    """The line, taken apart; ``None`` if it starts no launcher.

    Args:
        header: options of the batch script that the line is in.
    """
    words, env = [*words], {}
    for command in (["-m", "nemo_lite", "train"], ["nemo-lite", "train"]):  # they run this script
        place = next((n for n in range(len(words)) if words[n : n + len(command)] == command), None)
        if place:
            words[place : place + len(command)] = ["examples/asr/jasper.py"]
    while words and _SETTING.fullmatch(words[0]):
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    launcher = "launch" if words[:3] == ["python", "-m", "torch.distributed.launch"] else words[0]
    if launcher not in (*_TORCH, "srun", "mpirun"):
        return None
    start = next(index for index, word in enumerate(words) if word.endswith(".py"))
    own = words[3 if launcher == "launch" else 1 : start]
    return Launch(launcher, env, (*header, *_options(own)), words[start], words[start + 1 :])


def header_of(script: str) -> list[tuple[str, str]]:
    """The options in the ``#SBATCH`` lines of a batch script."""
    found = re.findall(r"^#SBATCH (.*)$", script, re.MULTILINE)
    return [option for line in found for option in _options(shlex.split(line, comments=True))]


def own_address() -> str | None:
    """This machine's address for others; ``None`` if it has none but the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # of a datagram socket: only the route is looked up
        except OSError:
            return None
        return str(probe.getsockname()[0])


def start_script(script: str, args: Sequence[str], env: Mapping[str, str]) -> Rank:
    """``python script args`` with that on top of the environment."""
    return Rank({"OMP_NUM_THREADS": "1", **env}, run_as_script, (script, list(args)))


def run_as_script(script: str, args: Sequence[str]) -> None:
    """``python script args``, in this process: for ``on_ranks``. Losses are logged with all digits."""
    os.environ.setdefault("NEMO_LITE_LOG_STYLE", "nemo")
    sys.argv = [script, *args]
    runpy.run_path(script, run_name="__main__")


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    left = [word for word in words if word != "python"]
    while left:
        option, _, value = left.pop(0).partition("=")
        assert option.startswith("-"), f"{option}: neither an option nor its value"
        if not value and left and not left[0].startswith("-"):
            value = left.pop(0)
        yield option, value


def _plain(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


@contextmanager
def warm_commands() -> Iterator[Path]:
    """A folder for ``PATH`` with a ``python`` and a ``nemo-lite`` that start at once."""
    with tempfile.TemporaryDirectory(prefix="warm-") as name:
        folder = Path(name)
        server = Rank({"OMP_NUM_THREADS": "1"}, _serve_in, (folder,))
        try:
            while not os.access(folder / "python", os.X_OK):
                assert server.process.is_alive(), server.wait(0.0).err
                time.sleep(0.01)
            yield folder
        finally:
            server.process.kill()
            server.process.join()


def _serve_in(folder: Path) -> None:
    serve(listen(folder))


def _launch(module: str, words: list[str]) -> None:
    with serve_warm_python() as python:
        os.environ["PYTHON_EXEC"] = python
        importlib.import_module(module).main(words)
