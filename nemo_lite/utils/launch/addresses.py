"""Hosts and ports as texts: Slurm's node lists and counts of tasks, ``tcp://`` addresses, loopback, derived ports.

No environment is read here, and no name is looked up.
"""

from __future__ import annotations

import ipaddress
import re
import zlib
from urllib.parse import urlsplit

from nemo_lite.errors import UsageError

# Above the services' ports and below those that Linux gives to outgoing connections (from 32768).
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000
_LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost")
# Commas inside brackets belong to the group.
_ENTRY = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_GROUPED = re.compile(r"(?P<head>[^\[\]]*)\[(?P<ranges>[^\[\]]*)\](?P<tail>[^\[\]]*)")
_RANGE = re.compile(r"(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?")
_TASKS = re.compile(r"(?P<tasks>[0-9]{1,9})(?:\(x(?P<nodes>[0-9]{1,9})\))?")


def host_names(nodelist: str) -> list[str]:
    """The hosts of a list such as ``node[01-03,07],gpu5``, in its order; numbers keep the width they are written with.

    Raises:
        UsageError: a list that is not well formed, or a name with several bracket groups.
    """
    entries = _ENTRY.findall(nodelist)
    if not entries or ",".join(entries) != nodelist:
        raise _unreadable(nodelist)
    return [host for entry in entries for host in _hosts_of(entry, nodelist)]


def tasks_of_node(tasks_per_node: str, node: int | None) -> int | None:
    """How many tasks run on a node; ``None`` where the text does not say.

    Args:
        tasks_per_node: ``4(x2),3``: two nodes with four tasks and one with three; ``4``: as many on each.
        node: index from 0 into the hosts of the step, where it is known.
    """
    entries = [_TASKS.fullmatch(entry) for entry in tasks_per_node.split(",")]
    counts = [(int(entry["tasks"]), int(entry["nodes"] or 1)) for entry in entries if entry]
    if len(counts) != len(entries):
        return None
    if node is None or len(counts) == 1:
        return counts[0][0] if len(counts) == 1 else None
    for tasks, nodes in counts:
        if node < nodes:
            return tasks
        node -= nodes
    return None


def tcp_address(init_method: str) -> tuple[str, int]:
    """Host and port of ``tcp://host:port``.

    Raises:
        UsageError: anything else.
    """
    try:
        url = urlsplit(init_method)
        host, port, rest = url.hostname, url.port, url.path + url.query + url.fragment
    except ValueError:
        host, port, rest = None, None, ""
    if not host or not port or rest or url.scheme != "tcp":
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
    number = int(run_id) if re.fullmatch("[0-9]{1,18}", run_id) else zlib.crc32(run_id.encode())
    return _FIRST_PORT + (number * 101 + step) % _NUM_PORTS


def _hosts_of(entry: str, nodelist: str) -> list[str]:
    if "[" not in entry:
        return [entry]
    match = _GROUPED.fullmatch(entry)
    if match is None:
        raise UsageError(
            "a host name with several bracket groups is not taken apart here",
            place=f"node list {nodelist}",
            got=entry,
            remedy="set MASTER_ADDR to the host of the first task",
        )
    return [
        f"{match['head']}{number}{match['tail']}"
        for piece in match["ranges"].split(",")
        for number in _expand_range(piece, nodelist)
    ]


def _expand_range(piece: str, nodelist: str) -> list[str]:
    match = _RANGE.fullmatch(piece)
    first = match["first"] if match else ""
    last = match["last"] or first if match else ""
    if not first or int(last) < int(first):
        raise _unreadable(nodelist)
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def _unreadable(nodelist: str) -> UsageError:
    return UsageError(
        "the node list cannot be read",
        got=repr(nodelist),
        wanted="hosts such as node[01-03,07],gpu5",
        remedy="set MASTER_ADDR to the host of the first task",
    )
