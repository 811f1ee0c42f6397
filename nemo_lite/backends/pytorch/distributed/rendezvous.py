"""Rendezvous: how the ranks of a run find each other within a timeout, and the errors when some do not come.

The store is torch's TCPStore. It has no authentication, so one that we serve listens on one address only: the loopback
where all ranks are on one machine. What happens after the rendezvous is in other files.
"""

from __future__ import annotations

import errno
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

from nemo_lite.backends.pytorch.distributed.network_interface import numeric_address, route_to, use_route
from nemo_lite.errors import DistributedError
from nemo_lite.utils import logging
from nemo_lite.utils.launch import ProcessInfo

_POLL_SECONDS = 0.1
# How long the rank that serves the store stays after a refusal, so that waiting ranks read it: several polls.
_LINGER_SECONDS = 0.5


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


@dataclass(frozen=True)
class Meeting:
    """The result of a rendezvous.

    Attributes:
        store: shared by the ranks; keys of other attempts are not seen.
        members: all ranks, in order.
        serves_store: this process serves the store.
        address: of the store.
        prefix: before all keys of this attempt.
        timeout: for calls that wait.
    """

    store: Store
    members: tuple[Member, ...]
    serves_store: bool
    address: tuple[str, int]
    prefix: str
    timeout: timedelta

    def connect(self) -> Store:
        """The same store for another thread: calls of one client wait for each other."""
        host, port = self.address
        return PrefixStore(self.prefix, TCPStore(host, port, is_master=False, timeout=self.timeout))


def meet(info: ProcessInfo, timeout_seconds: float) -> Meeting:
    """Wait until all ranks are there, and choose the interface for gloo and nccl where the user chose none.

    Args:
        info: who this process is, and where to meet.
        timeout_seconds: how long to wait for the others.

    Raises:
        DistributedError: not all came, the address cannot be reached or is in use, two processes have the same rank, or
            ranks differ on the world size. Every rank that came gets the same text.
    """
    deadline = time.monotonic() + timeout_seconds
    address = (numeric_address(info), info.master[1])
    serves_store = info.rank == 0 and not info.agent_hosts_store
    timeout = timedelta(seconds=timeout_seconds)
    client = _serve(address, timeout) if serves_store else _join(address, info, timeout_seconds)
    prefix = f"nemo_lite/{info.restart_count}"
    store = PrefixStore(prefix, client)
    me = _own_record(info, address)
    try:
        _write_record(store, me, info.world_size)
        members = _all_members(store, info, deadline, timeout_seconds)
    except dist.DistError as error:
        raise DistributedError(
            f"the store at {_written(address)} was closed while the ranks were meeting",
            remedy="the process that served it has ended: see the messages of rank 0 and of its launcher",
        ) from error
    except DistributedError:
        if serves_store:
            time.sleep(_LINGER_SECONDS)
        raise
    for problem in sorted({f"{member.host}: {line}" for member in members for line in member.problems}):
        logging.warning("%s", problem)
    return Meeting(store, members, serves_store, address, prefix, timeout)


def _serve(address: tuple[str, int], timeout: timedelta) -> TCPStore:
    """Serve a store on that address only; by default it would listen on all interfaces."""
    listener = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
    # The port of a run that just ended may be used again at once; one in use is still refused.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            problem = f"port {address[1]} of {address[0]} is in use"
            remedy = "another run uses it (choose another port), or two commands were started with the same node_rank"
        else:
            problem = f"the ranks cannot meet at {_written(address)}: {error.strerror or error}"
            remedy = "rank 0 has to run on the machine whose address is given as the first machine's"
        raise DistributedError(problem, remedy=remedy) from error
    host, port = address
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=listener.detach()
    )


def _join(address: tuple[str, int], info: ProcessInfo, timeout_seconds: float) -> TCPStore:
    """Connect to the store as soon as it is served.

    Tried with plain sockets first: the store's own attempts fill stderr with traces.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            socket.create_connection(address, timeout=max(deadline - time.monotonic(), _POLL_SECONDS)).close()
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise _unreachable(address, info, timeout_seconds, str(error.strerror or error)) from error
        time.sleep(_POLL_SECONDS)
    left = max(deadline - time.monotonic(), _POLL_SECONDS)
    client = _connected(address, left, timedelta(seconds=timeout_seconds))
    if client is None:
        raise _unreachable(address, info, timeout_seconds, "what listens there is no store")
    return client


def _connected(address: tuple[str, int], seconds: float, timeout: timedelta) -> TCPStore | None:
    """A client, or ``None`` if no store answers: torch would wait for ever for a server that sends nothing."""
    clients: queue.Queue[TCPStore | None] = queue.Queue()

    def connect() -> None:
        try:
            clients.put(TCPStore(address[0], address[1], is_master=False, timeout=timeout))
        except dist.DistError:
            clients.put(None)

    threading.Thread(target=connect, daemon=True, name="connect to the store").start()
    try:
        return clients.get(timeout=seconds)
    except queue.Empty:
        return None


def _unreachable(address: tuple[str, int], info: ProcessInfo, timeout_seconds: float, got: str) -> DistributedError:
    return DistributedError(
        f"rank {info.rank} on {socket.gethostname()} could not reach rank 0 at {_written(address)} "
        f"within {timeout_seconds:g} s",
        got=got,
        remedy="was the command started on the first machine too, is that its address (MASTER_ADDR, --master_addr) and "
        f"port, and does its firewall let port {address[1]} through?",
    )


def _own_record(info: ProcessInfo, address: tuple[str, int]) -> Member:
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


def _write_record(store: Store, me: Member, world_size: int) -> None:
    """Write this rank's record. A second process with the same rank, or another world size, ends the rendezvous."""
    said = store.compare_set("world_size", "", json.dumps([world_size, str(me)]))
    wanted, who = json.loads(said)
    if wanted != world_size:
        _refuse(
            store,
            f"{who} was told that {wanted} processes take part, {me} that {world_size} do",
            "start every machine's command with the same numbers of machines and processes",
        )
    record = json.dumps(me)
    taken = store.compare_set(_key(me.rank), "", record)
    if taken.decode() != record:
        _refuse(
            store,
            f"two processes are rank {me.rank}: pid {_member(taken).pid} on {_member(taken).host} and pid {me.pid} on "
            f"{me.host}",
            "give each machine's command its own node_rank, and look for processes of an earlier run",
        )
    store.add("joined", 1)


def _all_members(store: Store, info: ProcessInfo, deadline: float, timeout_seconds: float) -> tuple[Member, ...]:
    keys = [_key(rank) for rank in range(info.world_size)]
    while store.add("joined", 0) < info.world_size:
        if store.check(["refused"]):
            raise DistributedError(**json.loads(store.get("refused")))
        if time.monotonic() > deadline:
            _refuse_incomplete(store, info, timeout_seconds)
        time.sleep(_POLL_SECONDS)
    return tuple(_member(record) for record in store.multi_get(keys))


def _refuse_incomplete(store: Store, info: ProcessInfo, timeout_seconds: float) -> None:
    ranks = range(info.world_size)
    there = [_member(store.get(_key(rank))) for rank in ranks if store.check([_key(rank)])]
    missing = sorted(set(ranks) - {member.rank for member in there})
    _refuse(
        store,
        f"{len(there)} of {info.world_size} processes came together at {_written(info.master)} within "
        f"{timeout_seconds:g} s; there: {', '.join(map(str, there))}; missing: rank {', '.join(map(str, missing))}",
        "was the command started on every machine, each with its own node_rank and all with the right number of "
        f"machines (--nnodes), does a firewall close port {info.master[1]}, and can every machine reach "
        f"{info.master[0]}?",
    )


def _refuse(store: Store, problem: str, remedy: str) -> None:
    """End the rendezvous for all ranks; of several reasons the first one counts.

    Raises:
        DistributedError: always.
    """
    said = store.compare_set("refused", "", json.dumps({"problem": problem, "remedy": remedy}))
    raise DistributedError(**json.loads(said))


def _key(rank: int) -> str:
    return f"member/{rank}"


def _member(record: bytes) -> Member:
    return Member(*json.loads(record))


def _written(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
