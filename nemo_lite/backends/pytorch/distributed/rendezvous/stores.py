"""The store at which ranks meet, torch's TCPStore: serving it, and connecting to it within a time.

It has no authentication, so one that we serve listens on one address only: the loopback where all ranks are on one
machine. What is written into it is in other files.
"""

from __future__ import annotations

import errno
import queue
import socket
import threading
import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import TCPStore

from nemo_lite.errors import DistributedError
from nemo_lite.utils.launch import ProcessInfo

POLL_SECONDS = 0.1


def serve(address: tuple[str, int], timeout: timedelta) -> TCPStore:
    """Serve a store on that address only; by default it would listen on all interfaces.

    Raises:
        DistributedError: the address is not this machine's, or its port is in use.
    """
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
            problem = f"the ranks cannot meet at {written(address)}: {error.strerror or error}"
            remedy = "rank 0 has to run on the machine whose address is given as the first machine's"
        raise DistributedError(problem, remedy=remedy) from error
    host, port = address
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=listener.detach()
    )


def join(address: tuple[str, int], info: ProcessInfo, timeout_seconds: float) -> TCPStore:
    """Connect to the store as soon as it is served.

    Tried with plain sockets first: the store's own attempts fill stderr with traces.

    Raises:
        DistributedError: nothing answers there in time, or something that is no store.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            socket.create_connection(address, timeout=max(deadline - time.monotonic(), POLL_SECONDS)).close()
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise _unreachable(address, info, timeout_seconds, str(error.strerror or error)) from error
        time.sleep(POLL_SECONDS)
    left = max(deadline - time.monotonic(), POLL_SECONDS)
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
        f"rank {info.rank} on {socket.gethostname()} could not reach rank 0 at {written(address)} "
        f"within {timeout_seconds:g} s",
        got=got,
        remedy="was the command started on the first machine too, is that its address (MASTER_ADDR, --master_addr) and "
        f"port, and does its firewall let port {address[1]} through?",
    )


def written(address: tuple[str, int]) -> str:
    """``host:port``."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
