"""A data worker that died or lacks memory: a process of torch's DataLoader. It has nothing to do with the ranks.

torch raises its error wherever the main process happens to be, in the forward of a module, too. Not decided by the
words of that error: by its frames, and by the worker's exit code.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from types import FrameType

import torch.utils.data

from nemo_lite.errors import DataWorkerError

_LOADERS = os.path.dirname(torch.utils.data.__file__) + os.sep
_LIKELY = {
    "SIGKILL": "the system was probably short of memory",
    "SIGBUS": "shared memory was probably full",
    "SIGSEGV": "a library probably crashed in it",
}
_NO_MEMORY = re.compile(r"MemoryError|can't allocate memory|Cannot allocate memory")
_CHECKS = (
    "check memory (free -h, dmesg) and shared memory (df -h /dev/shm; in a container docker run --shm-size), and take "
    "fewer --num_workers (num_workers=); with 0 the data is read without them"
)


@contextmanager
def dead_workers_named() -> Iterator[None]:
    """Inside, the death of a data worker, or its lack of memory, is raised as what it is.

    Raises:
        DataWorkerError: a data worker died, or got no memory.
    """
    try:
        yield
    except Exception as error:
        named = named_if_worker_died(error)
        if named is error:
            raise
        raise named from error


def named_if_worker_died(error: BaseException) -> BaseException:
    """The error that says so if a data worker died or got no memory; other errors as they are."""
    frames = [] if isinstance(error, DataWorkerError) else list(_frames_of_loaders(error))
    workers = list(_workers(frames))
    dead = next(filter(_is_dead, workers), None)
    if dead is None:
        lack = _lack_of_memory(error) if workers else ""
        return DataWorkerError("a data worker ran out of memory", got=lack, remedy=_CHECKS) if lack else error
    code, likely = dead.exitcode, ""
    if code is None:
        end = "died"
    elif code > 0:
        end = f"ended with exit code {code}"
    else:
        name = signal.Signals(-code).name
        end, likely = f"was killed by {name}", f"{_LIKELY[name]}: " if name in _LIKELY else ""
    return DataWorkerError(f"a data worker (pid {dead.pid}) {end}", remedy=f"{likely}{_CHECKS}")


def _lack_of_memory(error: BaseException) -> str:
    """What a worker said when it got no memory; "" for another error.

    An error of a worker has the worker's traceback as its text. Where its class cannot be made of a text, as NumPy's
    MemoryError, torch makes a RuntimeError of it; torch's own lack of memory is one.
    """
    *_, last = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    is_lack = isinstance(error, MemoryError) or _NO_MEMORY.search(last) is not None
    return last.partition("[enforce fail")[0] + last.rpartition("] ")[2] if is_lack else ""


def _is_dead(process: BaseProcess) -> bool:
    """Whether it ended, and not in order.

    torch's handler may raise while Python asks for the exit code: then the code is lost, and the process is no more.
    """
    if process.exitcode is not None or process.pid is None:
        return bool(process.exitcode)
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    return False


def _frames_of_loaders(error: BaseException) -> Iterator[FrameType]:
    """Those of torch's loaders, and of its handler of the signal that a child died, in the traceback."""
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.startswith(_LOADERS):
            yield traceback.tb_frame
        traceback = traceback.tb_next


def _workers(frames: Iterable[FrameType]) -> Iterator[BaseProcess]:
    """The workers of the loaders in these frames, and the other processes that work for this one."""
    for frame in frames:
        yield from getattr(frame.f_locals.get("self"), "_workers", ())
        # Not `active_children`: it leaves out those that ended.
        yield from (each for each in getattr(multiprocessing.process, "_children", ()) if each.daemon)
