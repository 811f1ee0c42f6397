"""Errors of one rank: where they come from, torch's raised as what they are, each printed at once, whole, and once."""

from __future__ import annotations

import errno
import multiprocessing
import multiprocessing.util
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from multiprocessing.process import BaseProcess
from types import FrameType, TracebackType

import torch
import torch.distributed as dist
import torch.utils.data

from nemo_lite.backends.pytorch.distributed.process import AUTOGRAD, COLLECTIVES, NEMO_LITE, innermost
from nemo_lite.base.errors import DataWorkerError, NemoLiteError, NeuralTypeError, UsageError, more_open_files
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.utils import logging

# What gloo, nccl and torch's store say of sockets and addresses.
_NETWORK_WORDS = re.compile(
    r"socket|connect|address|interface|network|peer|timed? ?out|refused|broken pipe|reset|unreachable|route|\bEOF\b",
    re.IGNORECASE,
)


class Origin(Enum):
    """Where an error comes from.

    The frame that raised it and its type decide, not its words: a path with "gloo" in it is no error of the network.
    Words decide only what a user is told to look at.
    """

    EXCHANGE = auto()
    """An exchange between ranks."""
    BACKWARD = auto()
    """Torch's C++ in a backward pass: an exchange of gradients, or something that concerns this rank alone."""
    ELSEWHERE = auto()
    """Something that concerns this rank alone."""


def origin_of(error: BaseException) -> Origin:
    """Where an error comes from."""
    if isinstance(error, dist.DistError):
        return Origin.EXCHANGE
    # gloo's errors have no type of their own. Its subclasses do: those of data, of memory, of this package.
    frame = innermost(error) if type(error) is RuntimeError else None
    file = frame.f_code.co_filename if frame is not None else ""
    if file.startswith(COLLECTIVES):
        return Origin.EXCHANGE
    return Origin.BACKWARD if file.startswith(AUTOGRAD) else Origin.ELSEWHERE


def one_line(error: BaseException) -> str:
    """The first line of an error's text."""
    lines = str(error).splitlines() or [type(error).__name__]
    # "[/path/of/gloo/pair.cc:525] Connection closed": where in gloo is of no use to a reader.
    return re.sub(r"^\[[^\]]*\]\s*", "", lines[0])[:300]


def summary(error: BaseException) -> str:
    """``DataError: train.json:17: duration is negative``: the class and the first line."""
    lines = str(error).splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0]}" if lines[0] else type(error).__name__
    return f"{text} ..." if len(lines) > 1 else text


def remedy_of(text: str) -> str:
    """What to look at where an exchange failed while all ranks still send heartbeats."""
    if _NO_DESCRIPTORS.search(text):
        return more_open_files()
    if _NETWORK_WORDS.search(text):
        return "all ranks still send heartbeats: check the network between them"
    return (
        "all ranks still send heartbeats, so they reach each other: see that every rank makes the same modules, "
        "freezes the same weights, and calls the same in the same order"
    )


_LOADERS = os.path.dirname(torch.utils.data.__file__) + os.sep
_MULTIPROCESSING = os.path.dirname(multiprocessing.__file__) + os.sep
_LIKELY = {
    "SIGKILL": "the system was probably short of memory",
    "SIGBUS": "shared memory was probably full",
    "SIGSEGV": "a library probably crashed in it",
}
# A process that is killed closes its sockets before others can see that it has ended; how long that may take.
_ENDING_SECONDS = 5.0
_NO_MEMORY = re.compile(
    r"MemoryError|can't allocate memory|Cannot allocate memory|can't start new thread|"
    r"unable to \w+(?: to)? (?:shared memory|file </torch_)"
)
_NO_DESCRIPTORS = re.compile(r"Too many open files|received 0 items of ancdata")
_MOST_DESCRIPTORS = 1 << 20
# Of rank 0 where it serves the store: two groups of gloo, and two connections of each rank. Of others it is half.
_DESCRIPTORS_OF_A_RANK, _DESCRIPTORS_ANYWAY = 4, 24
MEMORY_CHECKS = (
    "check memory (free -h, dmesg) and shared memory (df -h /dev/shm; in a container docker run --shm-size), and take "
    "fewer --num_workers (num_workers=); with 0 the data is read without them"
)


@contextmanager
def torch_errors_named(label: str = "") -> Iterator[None]:
    """Inside, some of torch's errors are raised as what they are.

    Args:
        label: what messages call this rank; "" for a single process.

    Raises:
        DataWorkerError: a process of torch's DataLoader died, or got no memory. torch raises its own error for that
            wherever the main process happens to be, in the forward of a module, too.
        UsageError: no more files can be opened, memory lacks, or a batch of one item, or what is left of it, came to a
            batch normalisation that trains.
        NeuralTypeError: a module failed on values of another shape than its port says.
    """
    try:
        yield
    except Exception as error:
        named = (
            _dead_worker(error)
            or _no_descriptors(error, label)
            or _no_memory(error, label)
            or _single_value(error, label)
            or _other_shape(error)
        )
        if named is None:
            raise
        raise named from error


def _dead_worker(error: Exception) -> DataWorkerError | None:
    """The error that says so if a data worker died or got no memory: by the error's frames and by the exit code."""
    workers = [] if isinstance(error, DataWorkerError) else _workers(error)
    # Tensors of a worker that died are asked for at its socket: a process at the other end of a connection is gone, or
    # about to be. An error that a worker sends, which may be of such a class, has no frames.
    is_lost = workers and isinstance(error, (ConnectionError, EOFError)) and any(_frames(error, _MULTIPROCESSING))
    until = time.monotonic() + (_ENDING_SECONDS if is_lost else 0.0)
    while (dead := next(filter(_is_dead, workers), None)) is None and time.monotonic() < until:
        time.sleep(0.01)
    if dead is None:
        lack = _lack_of_memory(error) if workers else ""
        return DataWorkerError("a data worker ran out of memory", got=lack, remedy=MEMORY_CHECKS) if lack else None
    code, likely = dead.exitcode, ""
    if code is None:
        end = "died"
    elif code > 0:
        end = f"ended with exit code {code}"
    else:
        name = signal.Signals(-code).name
        end, likely = f"was killed by {name}", f"{_LIKELY[name]}: " if name in _LIKELY else ""
    return DataWorkerError(f"a data worker (pid {dead.pid}) {end}", remedy=f"{likely}{MEMORY_CHECKS}")


def _workers(error: Exception) -> list[BaseProcess]:
    """The processes that load data for this one, if a frame of torch's loaders is in the traceback.

    Such a frame may also be that of torch's handler of the signal that a child died.
    """
    workers: list[BaseProcess] = []
    for frame in _frames(error, _LOADERS):
        workers += getattr(frame.f_locals.get("self"), "_workers", ())
        # Not `active_children`: it leaves out those that ended.
        workers += [child for child in getattr(multiprocessing.process, "_children", ()) if child.daemon]
    return workers


def _frames(error: Exception, folder: str) -> Iterator[FrameType]:
    """The frames of the error's traceback whose code is in a folder."""
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.startswith(folder):
            yield traceback.tb_frame
        traceback = traceback.tb_next


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


def _lack_of_memory(error: Exception) -> str:
    """What a worker said when it got no memory; "" for another error.

    An error of a worker has the worker's traceback as its text. Where its class cannot be made of a text, as NumPy's
    MemoryError, torch makes a RuntimeError of it; torch's own lack of memory is one.
    """
    *_, last = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    is_lack = isinstance(error, MemoryError) or _NO_MEMORY.search(last) is not None
    return last.partition("[enforce fail")[0] + last.rpartition("] ")[2] if is_lack else ""


def _no_descriptors(error: Exception, label: str) -> UsageError | None:
    """The error that says so if this process, or a data worker that sent it, can open no more files."""
    *_, last = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    is_it = getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE) or _NO_DESCRIPTORS.search(last)
    if not is_it or isinstance(error, NemoLiteError):
        return None
    return UsageError("no more files can be opened", place=label, got=one_line(error), remedy=more_open_files())


def raise_descriptor_limit(world_size: int) -> None:
    """Let this process open as many files as the system allows, and warn where that may be too few for the ranks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if 0 <= soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    needed = _DESCRIPTORS_OF_A_RANK * world_size + _DESCRIPTORS_ANYWAY
    if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] < needed:
        logging.warning(f"{world_size} ranks need up to {needed} open files each: {more_open_files()}")


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether a device or the host had no more memory for a tensor, or oneDNN for the code of a kernel."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return "can't allocate memory" in str(error) or str(error) == "could not create a primitive"


def _no_memory(error: Exception, label: str) -> UsageError | None:
    if isinstance(error, NemoLiteError) or not is_lack_of_memory(error):
        return None
    remedy = "lower --batch_size, in an evaluation --eval_batch_size (nemo-lite plan --find_batch says which fit)"
    return UsageError("memory lacks", place=label, got=one_line(error), remedy=remedy)


def _single_value(error: Exception, label: str) -> UsageError | None:
    before, _, size = str(error).partition("got input size ")
    if type(error) is not ValueError or not before.startswith("Expected more than 1 value per channel when training"):
        return None
    return UsageError(
        "batch normalisation cannot train on one value per channel",
        place=label,
        got=f"a batch of {size}",
        remedy="the last batch of an epoch may have a single item: choose another batch_size, leave that batch out "
        "(drop_last=True), or on several ranks take statistics over all (synced_batchnorm=True)",
    )


def _other_shape(error: Exception) -> NeuralTypeError | None:
    """The error that says so if the innermost module that ran got a tensor of another shape than its port says."""
    if type(error) not in (RuntimeError, ValueError, IndexError, TypeError, AssertionError):
        return None
    calls = [frame.f_locals for frame in _frames(error, NEMO_LITE) if frame.f_code.co_name == "on_values"]
    if not calls or not isinstance(calls[-1].get("self"), NeuralModule):
        return None
    module, values = calls[-1]["self"], calls[-1].get("kwargs", {})
    for port, ntype in module.input_ports.items():
        value, sizes = values.get(port), [axis.size for axis in ntype.axes or ()]
        if not isinstance(value, torch.Tensor) or not any(sizes):
            continue
        shape = tuple(value.shape)
        if len(shape) != len(sizes) or any(size not in (None, got) for size, got in zip(sizes, shape, strict=True)):
            return NeuralTypeError(
                "the values are not of the port's type",
                place=f"{module.label}.{port}",
                got=str(shape),
                wanted=ntype.brief,
                remedy="the output port in front says other sizes than its module gives",
            )
    return None


def tell_now(error: BaseException) -> None:
    """Print an error that the caller has caught, with its traceback, and not when it leaves the script.

    Until then the process may be ended: a launcher ends all once one has ended, and leaving a group may not return.
    User's mistakes are left to ``reported_to_user``: one line says them.
    """
    if is_told(error) or isinstance(error, NemoLiteError) or not isinstance(error, Exception):
        return
    before = error.__traceback__
    error.__traceback__ = _whole_traceback(error)  # the hook prints this one, whatever it is given
    with suppress(OSError, ValueError):  # stderr is closed; there is nobody to tell
        sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
    error.__traceback__ = before
    error.is_told = True  # type: ignore[attr-defined]  # as DistributedError declares it


def _whole_traceback(error: BaseException) -> TracebackType | None:
    """That of an error which a guard has caught: without the guard, and with the callers of the guarded block."""
    at = error.__traceback__ and error.__traceback__.tb_next
    frame: FrameType | None = at.tb_frame.f_back if at else None
    while frame is not None:
        at = TracebackType(at, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return at or error.__traceback__


def is_told(error: BaseException) -> bool:
    """Whether the user has read this error already."""
    return bool(getattr(error, "is_told", False))


def print_each_once() -> None:
    """From now on, what was told is not printed again when it leaves the script, and our errors give its exit code."""
    show = sys.excepthook

    def show_untold(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
        if not is_told(error):
            show(kind, error, at)
        if isinstance(error, NemoLiteError):
            raise SystemExit(error.exit_code)  # the interpreter takes it from this hook

    sys.excepthook = show_untold


def exit_code_of(error: BaseException) -> int:
    """With which a process ends that does not catch this error."""
    if isinstance(error, KeyboardInterrupt):
        return 130  # what a shell gives for SIGINT
    code = getattr(error, "code" if isinstance(error, SystemExit) else "exit_code", 1)
    return code if isinstance(code, int) and code else 1
