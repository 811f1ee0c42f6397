"""Two machines on one, for tests: network namespaces joined by a virtual link. Needs Linux and root.

Each machine has a name that both can look up, an interface of its own name on the link, the loopback, and a second
interface that leads nowhere, as Docker's does. What runs on them is the tests' business.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCKER = "docker0"
_TOOLS = ("ip", "tc", "ss", "unshare")
# A process of a machine starts with the machine's name; namespaces of names are given by unshare only.
_NAMED = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
_LISTENER = re.compile(r"LISTEN\s+\d+\s+\d+\s+(?P<address>\S+):(?P<port>\d+)\s+\S+\s*(?P<users>.*)")


class Listener(NamedTuple):
    """A port that someone waits at; an address of ``*`` or ``0.0.0.0`` means all interfaces."""

    address: str
    port: int
    pids: frozenset[int]


@dataclass
class Started:
    """A command that runs on a machine, with what it prints in a file."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, deadline: float) -> int | None:
        """Its exit code; None if it has none by then (of ``time.monotonic``)."""
        try:
            return self.process.wait(max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            return None


@dataclass
class Machine:
    """One machine.

    Attributes:
        name: by which both machines know it.
        address: on the link.
        interface: of the link, on this machine.
        namespace: what the kernel calls it.
    """

    name: str
    address: str
    interface: str
    namespace: str
    started: list[Started] = field(default_factory=list)

    def start(self, command: Sequence[object], log: Path, env: Mapping[str, str] | None = None) -> Started:
        """Run a command there; ``env`` on top of this process's environment."""
        words = [*map(str, command)]
        wrapped = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", _NAMED, self.name, *words]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'collections/asr'}"}
        with log.open("wb") as out:
            process = subprocess.Popen(
                wrapped, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env={**environ, **(env or {})}
            )
        self.started.append(Started(process, log))
        return self.started[-1]

    def listeners(self) -> list[Listener]:
        """The TCP ports of this machine."""
        lines = _run("ip", "netns", "exec", self.namespace, "ss", "-tlnpH").splitlines()
        found = [match for match in map(_LISTENER.match, lines) if match]
        return [
            Listener(match["address"].strip("[]"), int(match["port"]), frozenset(_pids(match["users"])))
            for match in found
        ]

    def pids(self) -> list[int]:
        """The processes that run there."""
        return [int(pid) for pid in _run("ip", "netns", "pids", self.namespace).split()]


@dataclass
class Lan:
    """Two machines and the link between them."""

    machines: tuple[Machine, Machine]

    @property
    def master(self) -> Machine:
        return self.machines[0]

    def cut(self) -> None:
        """From now on no packet passes; nobody is told."""
        self._link("set", "down")

    def repair(self) -> None:
        """Packets pass again."""
        self._link("set", "up")

    def limit(self, megabits_per_second: float) -> None:
        """Let no more than that pass in each direction."""
        for machine in self.machines:
            _run(
                *("tc", "-netns", machine.namespace, "qdisc", "add", "dev", machine.interface, "root", "tbf"),
                *("rate", f"{megabits_per_second}mbit", "burst", "16kb", "latency", "400ms"),
            )

    def _link(self, verb: str, state: str) -> None:
        _run("ip", "-n", self.master.namespace, "link", verb, self.master.interface, state)


@contextmanager
def two_machines(own_name_is_loopback: bool = False, in_ipv6: bool = False) -> Iterator[Lan]:
    """They exist inside; afterwards neither they nor what ran on them do.

    Args:
        own_name_is_loopback: each looks its own name up as 127.0.1.1, as Debian writes it into /etc/hosts.
        in_ipv6: the link has addresses of IPv6 only.
    """
    names = [f"nemo{os.getpid()}{side}" for side in "ab"]
    network = "fd99::" if in_ipv6 else "10.99.0."
    first = Machine("node1", f"{network}1", "ens1f0", names[0])
    second = Machine("node2", f"{network}2", "enp3s0", names[1])
    try:
        for machine, other in ((first, second), (second, first)):
            own = "127.0.1.1" if own_name_is_loopback else machine.address
            _add(machine.namespace, f"127.0.0.1 localhost\n{own} {machine.name}\n{other.address} {other.name}\n")
        _connect(first, second)
        yield Lan((first, second))
    finally:
        for machine in (first, second):
            _remove(machine)


@cache
def why_impossible() -> str | None:
    """Why this machine has no such namespaces; None if it has."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing:
        return f"{', '.join(missing)} not found (Debian: iproute2, util-linux)"
    try:
        with two_machines() as lan:
            lan.limit(1)
            lan.master.start(["true"], Path(os.devnull)).process.wait(10)
            return None
    except (subprocess.SubprocessError, OSError) as error:
        return f"this machine forbids network namespaces: {getattr(error, 'stderr', '') or error}".strip()


def _add(namespace: str, hosts: str) -> None:
    _run("ip", "netns", "add", namespace)
    _run("ip", "-n", namespace, "link", "set", "lo", "up")
    folder = Path("/etc/netns", namespace)  # `ip netns exec` shows its files as those of /etc
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hosts").write_text(hosts)


def _connect(first: Machine, second: Machine) -> None:
    _run(
        *("ip", "-n", first.namespace, "link", "add", first.interface, "type", "veth"),
        *("peer", "name", second.interface, "netns", second.namespace),
    )
    for machine in (first, second):
        inside = ("ip", "-n", machine.namespace)
        # The name of Docker's bridge sorts before those of network cards, and its address is the same everywhere.
        _run(*inside, "link", "add", DOCKER, "type", "veth", "peer", "name", "docker1")
        own = [f"{machine.address}/64", "nodad"] if ":" in machine.address else [f"{machine.address}/24"]
        for interface, address in ((machine.interface, own), (DOCKER, ["172.17.0.1/16"])):
            _run(*inside, "addr", "add", *address, "dev", interface)
            _run(*inside, "link", "set", interface, "up")
        _run(*inside, "link", "set", "docker1", "up")


def _remove(machine: Machine) -> None:
    """Whatever is there of it: this also runs after a failure half-way."""
    listed = subprocess.run(["ip", "netns", "pids", machine.namespace], capture_output=True, text=True, check=False)
    for pid in listed.stdout.split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue  # ended in the meantime
    for started in machine.started:
        started.process.kill()
        started.process.wait()
    subprocess.run(["ip", "netns", "del", machine.namespace], capture_output=True, check=False)
    shutil.rmtree(Path("/etc/netns", machine.namespace), ignore_errors=True)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout


def _pids(users: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"pid=(\d+)", users)]
