"""A process that holds something while a test tries to get it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def held_elsewhere(take: Callable[[], object], then: Callable[[], object] = signal.pause) -> Iterator[int]:
    """Fork a process that calls ``take``, then ``then``; its id. It has taken in the block and is killed at its end."""
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        take()
        os.write(told, b"x")
        then()
        os._exit(0)
    os.read(ready, 1)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
