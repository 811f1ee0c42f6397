"""Member: what the ranks of a run know of each other. No store and no waiting here."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nemo_lite.backends.pytorch.distributed.network_interface import route_to, use_route
from nemo_lite.utils.launch import ProcessInfo


class Member(NamedTuple):
    """One rank.

    Attributes:
        rank: its index.
        host: name of its machine.
        pid: its process there.
        interface: by which it reaches the others; "" where that is not known.
        address: its address on that interface.
        process_space: equal for two ranks only if each can see whether the other's process exists.
        problems: what it found wrong with the user's choice of interfaces.
    """

    rank: int
    host: str
    pid: int
    interface: str
    address: str
    process_space: str
    problems: Sequence[str] = ()

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host}, pid {self.pid})"


def this_member(info: ProcessInfo, address: tuple[str, int]) -> Member:
    """This process; gloo and nccl get the interface that leads to that address, where the user chose none."""
    route = route_to(*address)
    problems = use_route(route, address)
    return Member(
        info.rank, socket.gethostname(), os.getpid(), route.interface, route.address, _process_space(), problems
    )


def _process_space() -> str:
    """A text that is equal for processes that see each other and share a network; it differs between containers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return "/".join([boot, *(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net"))])
    except OSError:  # not Linux
        return socket.gethostname()
