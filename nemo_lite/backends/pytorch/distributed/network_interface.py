"""Which network interface leads from this machine to rank 0, and setting it for gloo and nccl. Sends nothing."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from nemo_lite.base.errors import DistributedError
from nemo_lite.base.launch import ProcessInfo, is_loopback

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
# The IPv6 addresses of all interfaces: 32 hexadecimal digits, index, prefix, scope, flags, name of the interface.
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
# Of the block for documentation, so never this machine's: only the way out of the machine is asked for.
_ELSEWHERE = "198.51.100.1"


class Route(NamedTuple):
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

    Debian's hosts file says 127.0.1.1 for a machine's own name. Where the first machine is asked for by its name, its
    own ranks take its address in the network then, as the others do.

    Raises:
        DistributedError: this machine cannot look the name up, or finds the loopback while other machines take part.
    """
    host, port = info.master
    if is_on_one_machine(info) and not info.agent_hosts_store:
        return LOOPBACK
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DistributedError(
            f"the address of the first machine, {host}, is not known on {socket.gethostname()}",
            got=str(error),
            remedy="give its IP address (--master_addr, MASTER_ADDR or the rendezvous endpoint)",
        ) from error
    addresses = [str(entry[4][0]) for entry in sorted(entries, key=lambda entry: entry[0] != socket.AF_INET)]
    if is_on_one_machine(info) or not is_loopback(addresses[0]):
        return addresses[0]
    is_here = info.is_first or host.partition(".")[0] == socket.gethostname().partition(".")[0]
    in_network = address_in_network() if is_here else ""
    if not in_network:
        raise DistributedError(
            f"the address of the first machine, {host}, is the loopback ({addresses[0]}) on {socket.gethostname()}",
            remedy=f"{info.num_nodes or 'several'} machines take part and others cannot reach it: give an IP address "
            "of the first machine's network interface",
        )
    return in_network


def unused_master(info: ProcessInfo) -> str:
    """A line where an address of another machine is not used, since all ranks are on this one; "" elsewhere."""
    host = info.master[0]
    if not is_on_one_machine(info) or info.agent_hosts_store or is_loopback(host):
        return ""
    here = {address for addresses in interfaces().values() for address in addresses}
    # Nothing is looked up: a name server that does not answer would keep a run on one machine waiting.
    if host in here or host.partition(".")[0] == socket.gethostname().partition(".")[0]:
        return ""
    return f"The address of the first machine, {host}, is not used: all {info.world_size} ranks are on this machine"


def address_in_network() -> str:
    """The address by which others reach this machine; "" where that is not plain.

    It is that of the interface which leads out of the machine, or else of the only one: a card, where there are any,
    and no container's bridge.
    """
    if address := route_to(_ELSEWHERE, 9).address:
        return address
    bridges = (*_LAST_FOR_NCCL, "br-")
    usable = {name: addresses for name, addresses in interfaces().items() if addresses and not name.startswith(bridges)}
    candidates = {name: addresses for name, addresses in usable.items() if is_card(name)} or usable
    return next(iter(candidates.values()))[0] if len(candidates) == 1 else ""


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
    return Route(next((name for name, addresses in interfaces().items() if local in addresses), ""), local)


def interfaces() -> dict[str, Sequence[str]]:
    """The interfaces of this machine with their addresses: that of IPv4, and those of IPv6 that are not link-local."""
    in_ipv6 = _ipv6_addresses()
    return {name: [*_ipv4_address(name), *in_ipv6.get(name, ())] for _, name in socket.if_nameindex()}


def _ipv4_address(name: str) -> list[str]:
    if fcntl is None:
        return []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return []
    return [socket.inet_ntoa(answer[20:24])]


def _ipv6_addresses() -> dict[str, list[str]]:
    """By interface; none where the system does not list them."""
    addresses: dict[str, list[str]] = {}
    with suppress(OSError):
        for line in _IPV6_ADDRESSES.read_text().splitlines():
            digits, *_, name = line.split()
            address = ipaddress.IPv6Address(int(digits, 16))
            if not address.is_link_local:  # each interface has one, and it leads to no other network
                addresses.setdefault(name, []).append(str(address))
    return addresses


def use_route(route: Route, environ: MutableMapping[str, str] = os.environ) -> list[str]:
    """Make gloo and nccl use that interface, unless the user chose one.

    gloo takes one interface, so it is told which. nccl takes all cards that it finds, and its choice is left to it. Two
    exceptions: on a single machine nothing may be reached from outside; and where it would start with another interface
    than the one that leads to rank 0, or also take one without a card (a bridge, a tunnel). Then it is given that one,
    by its whole name (``=eth0``; ``eth0`` would also mean ``eth01``).

    Returns:
        A line for each choice of the user's that this machine does not have.
    """
    problems = []
    for variable in (_GLOO, _NCCL):
        chosen = environ.get(variable)
        if chosen and not any(_is_meant(variable, chosen, name) for name in interfaces()):
            existing = ", ".join(interfaces())
            problems.append(f"{variable}={chosen}: this machine has no such interface (it has {existing})")
        elif chosen is None and route.interface and (variable == _GLOO or not nccl_finds(route)):
            environ[variable] = route.interface if variable == _GLOO else f"={route.interface}"
    return problems


def nccl_finds(route: Route) -> bool:
    """Whether nccl by itself starts with the interface of the route, and takes beside it interfaces of cards only."""
    if is_loopback(route.address):
        return False
    names = [name for name, addresses in interfaces().items() if addresses]
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


def _is_meant(variable: str, chosen: str, name: str) -> bool:
    """Whether a setting selects an interface: for nccl prefixes, ``=`` for whole names, ``^`` for all others."""
    if variable == _GLOO:
        return name in chosen.split(",")
    is_exact, entries = "=" in chosen[:2], chosen.lstrip("^=").split(",")
    is_listed = any(name == entry if is_exact else name.startswith(entry) for entry in entries)
    return is_listed != chosen.startswith("^")
