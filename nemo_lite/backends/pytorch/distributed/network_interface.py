"""Which network interface leads from this machine to rank 0, and setting it for gloo and nccl. Sends nothing."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from nemo_lite.errors import DistributedError
from nemo_lite.utils.launch import ProcessInfo
from nemo_lite.utils.launch.addresses import is_loopback

try:
    import fcntl
except ImportError:  # not on Windows: interfaces stay without a name there
    fcntl = None  # type: ignore[assignment]

LOOPBACK = "127.0.0.1"
_GLOO, _NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
# nccl looks for names that begin with "ib", then for others, then for these; it takes all of the first kind there is
# (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname).
_LAST_FOR_NCCL = ("docker", "lo", "virbr")
_SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface


@dataclass(frozen=True)
class Route:
    """How this machine reaches rank 0.

    Attributes:
        interface: name of the interface; "" where it is not known.
        address: this machine's address on it.
    """

    interface: str
    address: str


def is_on_one_machine(info: ProcessInfo) -> bool:
    """Whether all ranks are known to run on this machine."""
    if info.num_nodes is not None:
        return info.num_nodes == 1
    return info.local_world_size == info.world_size or is_loopback(info.master[0])


def numeric_address(info: ProcessInfo) -> str:
    """The IP address of the store; the loopback where our own store serves one machine only.

    Raises:
        DistributedError: this machine cannot look the name up, or finds the loopback while other machines take part.
    """
    host, port = info.master
    if is_on_one_machine(info) and not info.agent_hosts_store:
        return LOOPBACK
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DistributedError(
            f"the address of the first machine, {host}, is not known on {socket.gethostname()}",
            got=str(error),
            remedy="give its IP address (--master_addr, MASTER_ADDR or the rendezvous endpoint)",
        ) from error
    addresses = [str(entry[4][0]) for entry in sorted(found, key=lambda entry: entry[0] != socket.AF_INET)]
    if not is_on_one_machine(info) and is_loopback(addresses[0]):
        raise DistributedError(
            f"the address of the first machine, {host}, is the loopback ({addresses[0]}) on {socket.gethostname()}",
            remedy=f"{info.num_nodes or 'several'} machines take part and others cannot reach it: give an IP address "
            "of the first machine's network interface",
        )
    return addresses[0]


def route_to(address: str, port: int) -> Route:
    """The interface by which packets to that address would leave."""
    if is_loopback(address):
        return Route(next((name for name in interfaces() if name in ("lo", "lo0")), ""), address)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, port))  # of a datagram socket: only the route is looked up
        except OSError:
            return Route("", "")  # no route; connecting is about to say so
        local = str(probe.getsockname()[0])
    return Route(next((name for name, own in interfaces().items() if own == local), ""), local)


def interfaces() -> dict[str, str]:
    """The interfaces of this machine with their IPv4 addresses; "" for those without one."""
    return {name: _address_of(name) for _, name in socket.if_nameindex()}


def _address_of(name: str) -> str:
    if fcntl is None:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def use_route(route: Route, master: tuple[str, int], environ: MutableMapping[str, str] = os.environ) -> list[str]:
    """Make gloo and nccl use that interface, unless the user chose one.

    gloo takes one interface, so it is told which. nccl takes all cards that it finds, and its choice is left to it. Two
    exceptions: on a single machine nothing may be reached from outside; and where it would start with another interface
    than the one that leads to rank 0, or also take one without a card (a bridge, a tunnel). Then it is given that one,
    by its whole name (``=eth0``; ``eth0`` would also mean ``eth01``).

    Returns:
        The problems with the user's choice, one line each.
    """
    problems = []
    for variable in (_GLOO, _NCCL):
        chosen = environ.get(variable)
        if chosen:
            problems += _problems_of(variable, chosen, route, master)
        elif chosen is None and route.interface and (variable == _GLOO or not nccl_finds(route)):
            environ[variable] = route.interface if variable == _GLOO else f"={route.interface}"
    return problems


def nccl_finds(route: Route) -> bool:
    """Whether nccl by itself starts with the interface of the route, and takes beside it interfaces of cards only."""
    if is_loopback(route.address):
        return False
    names = [name for name, address in interfaces().items() if address]
    kinds = [
        [name for name in names if name.startswith("ib")],
        [name for name in names if not name.startswith(_LAST_FOR_NCCL)],
        *([name for name in names if name.startswith(kind)] for kind in _LAST_FOR_NCCL),
    ]
    taken = next(filter(None, kinds), [])
    return taken[:1] == [route.interface] and all(map(is_card, taken[1:]))


def is_card(interface: str) -> bool:
    """Whether a device belongs to the interface; bridges, tunnels and containers' interfaces have none."""
    return Path("/sys/class/net", interface, "device").exists()


def _problems_of(variable: str, chosen: str, route: Route, master: tuple[str, int]) -> list[str]:
    found = interfaces()
    names = [name for name in found if _is_meant(variable, chosen, name)]
    if not names:
        return [f"{variable}={chosen}: this machine has no such interface (it has {', '.join(found)})"]
    if route.interface in names or any(_reaches(found[name], master) for name in names):
        return []
    through = f", the way to it is {route.interface}" if route.interface else ""
    return [f"{variable}={chosen}: from there {master[0]} cannot be reached{through}"]


def _is_meant(variable: str, chosen: str, name: str) -> bool:
    """Whether a setting selects an interface: for nccl prefixes, ``=`` for whole names, ``^`` for all others."""
    if variable == "GLOO_SOCKET_IFNAME":
        return name in chosen.split(",")
    is_exact, entries = "=" in chosen[:2], chosen.lstrip("^=").split(",")
    is_listed = any(name == entry if is_exact else name.startswith(entry) for entry in entries)
    return is_listed != chosen.startswith("^")


def _reaches(address: str, master: tuple[str, int]) -> bool:
    """Whether a packet from that address would have a route to rank 0."""
    if not address or ":" in master[0]:
        return bool(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
            probe.connect(master)
        except OSError:
            return False
    return True
