"""The processes that load batches: their number, their start, their silence, pinned memory.

A process that has threads must not fork: a lock that another thread holds at that moment stays locked in the child for
ever. A training has threads (signals, TensorBoard, heartbeats, the queues of other workers). So workers are forked by
Python's ``forkserver``: one new process imports torch and the modules of :func:`preload_in_workers`, and forks each
worker. It differs from that of :mod:`multiprocessing`:

- The user's script does not run again in the workers, so it needs no ``if __name__ == "__main__"``.
- The data set is pickled once. One that cannot be pickled, is made of classes that only this process has, or is large
  is shared with workers that this process forks; a line of the log says so.
- Stop signals for all processes of a job do not end the server. It ends with this process.
- Workers get the environment variables that this process has at their start.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import inspect
import io
import math
import multiprocessing
import multiprocessing.queues
import multiprocessing.util
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import context, forkserver, popen_forkserver, reduction, resource_tracker, spawn, util
from pathlib import Path
from types import FunctionType
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from nemo_lite.backends.pytorch.distributed.failures import MEMORY_CHECKS
from nemo_lite.base.errors import DataWorkerError, more_open_files
from nemo_lite.base.interruption import STOP_SIGNALS, leave_signals_to_parent
from nemo_lite.utils import logging

# Any: torch's DataLoader takes the name of a start method or a context.

T = TypeVar("T")

MOST_BYTES = 64 * 2**20
"""Every worker has a copy of what is sent to it. A larger data set is shared by forking."""
_PRELOADED = ["nemo_lite.backends.pytorch.data.loaders"]


def preload_in_workers(module: str) -> None:
    """Let the server import a module, which the workers then need not import one by one."""
    _PRELOADED.append(module)


def for_workers(dataset: Dataset[T], start_method: str | None = None) -> tuple[Dataset[T], Any]:
    """A data set in the form in which workers get it, and what starts them: ``multiprocessing_context`` of DataLoader.

    Args:
        dataset: what they are asked for.
        start_method: ``fork``, ``spawn`` or ``forkserver`` of `multiprocessing`, where the user has chosen.
    """
    has_server = "forkserver" in multiprocessing.get_all_start_methods()
    if start_method is not None or not has_server or multiprocessing.get_start_method(allow_none=True) == "spawn":
        return dataset, start_method
    stream = _Bounded()
    try:
        _Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL).dump(dataset)
    except Exception as error:  # a data set of the user's may raise anything
        _tell_of_forks(str(error).splitlines()[0] if str(error) else type(error).__name__)
        return dataset, "fork" if sys.platform.startswith("linux") else None
    _server().ensure_running()  # imports while this process goes on
    return _Received(stream.getvalue()), _CONTEXT


def content_of(dataset: object) -> bytes | None:
    """The bytes of a data set of :func:`for_workers`, equal for equal data sets. None: it was forked."""
    return dataset.content if isinstance(dataset, _Received) else None


class _Received(Dataset[T], Generic[T]):
    """A data set that is unpickled by the first request."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self._dataset: Dataset[T] | None = None

    def __getitem__(self, request: object) -> T:
        if self._dataset is None:
            self._dataset = pickle.loads(self.content)  # noqa: S301  # this process's own, or its parent's
            self.content = b""
        assert self._dataset is not None
        return self._dataset[request]


class _NotSentError(Exception):
    """Why a data set is not sent to workers."""


class _Bounded(io.BytesIO):
    def write(self, content: Any) -> int:
        if self.tell() + len(content) > MOST_BYTES:
            raise _NotSentError(f"it is larger than {MOST_BYTES / 2**20:g} MiB")
        return super().write(content)


class _Pickler(pickle.Pickler):
    """Refuses classes and functions that a new process cannot import."""

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, (type, FunctionType)) and not _can_be_imported(value.__module__):
            raise _NotSentError(f"{value.__qualname__} is in {value.__module__}, which a new process cannot import")
        return NotImplemented


def _can_be_imported(module: str) -> bool:
    """Whether an import in another process gives the module that this one has."""
    top = module.partition(".")[0]
    if top == "__main__":
        return False
    origin = getattr(getattr(sys.modules.get(top), "__spec__", None), "origin", None)
    for finder in sys.meta_path:
        spec = finder.find_spec(top, None) if hasattr(finder, "find_spec") else None
        if spec is not None:
            return origin is None or spec.origin is None or os.path.realpath(origin) == os.path.realpath(spec.origin)
    return False


_reasons_of_forks: set[str] = set()


def _tell_of_forks(reason: str) -> None:
    if reason not in _reasons_of_forks:
        _reasons_of_forks.add(reason)
        logging.warning(
            f"Data workers are forked from this process, because the data set is not sent to new ones: {reason}. "
            "A fork of a process with threads may hang; a data set and a collate_fn of a module's top level, without "
            "lambdas, can be sent"
        )


class _Popen(popen_forkserver.Popen):
    """Starts a worker as its base does, but by a server of this file, and without the user's script."""

    _fds: list[int]

    def _launch(self, process_obj: _Process) -> None:
        prepared = spawn.get_preparation_data(process_obj._name)  # type: ignore[attr-defined]  # not in its stub
        stream = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump({key: value for key, value in prepared.items() if "main" not in key}, stream)
            reduction.dump(process_obj, stream)
        finally:
            context.set_spawning_popen(None)
        self.sentinel, to_child = _server().connect_to_new_process(self._fds)
        while_parent_lives = os.dup(to_child)
        closing = util.close_fds  # type: ignore[attr-defined]  # not in its stub
        self.finalizer = util.Finalize(self, closing, (while_parent_lives, self.sentinel))
        try:
            with open(to_child, "wb") as pipe:
                pipe.write(stream.getbuffer())
            self.pid = forkserver.read_signed(self.sentinel)
        except (EOFError, OSError) as error:
            raise DataWorkerError(
                "the server that starts data workers has ended",
                remedy="check memory (free -h, dmesg); with num_workers=0 (--num_workers 0) the data is read without "
                "workers",
            ) from error


class _Process(context.ForkServerProcess):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._environ = dict(os.environ)

    @staticmethod
    def _Popen(process_obj: Any) -> _Popen:  # noqa: N802  # multiprocessing's name
        return _Popen(process_obj)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environ)
        super().run()


class _Context(context.ForkServerContext):
    Process = _Process


_CONTEXT = _Context()


class _WorkerServer(forkserver.ForkServer):
    def __init__(self) -> None:
        super().__init__()
        self.set_forkserver_preload(list(dict.fromkeys(_PRELOADED)))
        self.owner = os.getpid()

    def ensure_running(self) -> None:
        """Start the server if it does not run; it is ready when its imports are done."""
        # What the tracker says of semaphores after a killed process is of no use to users; it removes them.
        sys.warnoptions.append("ignore:resource_tracker:UserWarning")
        try:
            resource_tracker.ensure_running()
        finally:
            sys.warnoptions.remove("ignore:resource_tracker:UserWarning")
        # The server inherits what is blocked; a worker unblocks nothing, see leave_signals_to_parent.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            super().ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


_servers: list[_WorkerServer] = []


def _server() -> _WorkerServer:
    """That of this process: a fork of it needs one of its own."""
    if not _servers or _servers[-1].owner != os.getpid():
        _servers[:] = [_WorkerServer()]
    return _servers[-1]


SILENCE_SECONDS = 600.0
"""How long the run waits for a batch of its workers, unless ``worker_timeout`` is given."""
TICK_SECONDS = 1.0
"""After so long torch looks whether workers are alive. Time in which this process is stopped counts as one tick."""
_WARNING_SECONDS = 60.0
_TIMED_OUT = "DataLoader timed out"  # torch's words
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
_MOST_WORKERS = 8  # more of them decode audio faster than a GPU trains on it
# The state of a process, as /proc has it.
_STATES = {
    "T": "is stopped",
    "t": "is stopped",
    "D": "waits for a disk or a network drive",
    "R": "computes",
}


def workers_for(device: torch.device, chosen: int | None = None) -> int:
    """The number of processes that load batches for a device.

    Args:
        device: where the batches go. For a CPU it is 0: it has the loading and the training to do either way. For a GPU
            it is this GPU's share of the cores without one, from 1 to 8.
        chosen: what the user wants; ``None``: the number above.
    """
    if chosen is not None:
        return chosen
    if device.type == "cpu":
        return 0
    # What this process may use: a scheduler often gives a job some of a machine's cores.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_MOST_WORKERS, cores // max(torch.cuda.device_count(), 1) - 1))


def pins_memory_for(device: torch.device, chosen: bool | None = None) -> bool:
    """Whether batches are put into page-locked memory: for a GPU, which fetches them from there by itself.

    Args:
        device: where the batches go.
        chosen: what the user wants; ``None``: what suits the device.
    """
    return device.type == "cuda" if chosen is None else chosen


def start_work(_worker: int = 0) -> None:
    """Prepare a process that loads batches: leave signals and the parent's objects to the parent.

    Where it is a fork of the run's process, that one's garbage is garbage here as well, and to collect it would end
    things whose threads the fork does not have (a session of ONNX Runtime then waits for ever or crashes). Frozen,
    those objects are never collected here, and the collector does not write to pages that both share.

    It ends with the run, also where that is killed while this one hangs: only the kernel sees to that, and on Linux.
    """
    gc.freeze()
    alive = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)
    if alive is not None:  # let the server end when the process of the run does, and this worker with it
        os.close(alive)
        forkserver._forkserver._forkserver_alive_fd = None  # type: ignore[attr-defined]  # not in its stub
    _start_sending()
    leave_signals_to_parent()
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():  # it ended before the kernel knew
            os._exit(1)


def _start_sending() -> None:
    """Start the thread that sends this worker's batches before anything is read.

    Its queue would start it for the first batch. Where memory has ended by then, that may wait for ever, and no error
    arrives either.
    """
    frame = inspect.currentframe()
    while frame is not None and not isinstance(frame.f_locals.get("data_queue"), multiprocessing.queues.Queue):
        frame = frame.f_back
    if frame is not None:  # torch's loop of a worker, which hands its queue to nobody
        queue: Any = frame.f_locals["data_queue"]
        with queue._notempty:
            if queue._thread is None:
                queue._start_thread()


def within_silence(loader: DataLoader[T], seconds: float | None = None) -> Iterator[T]:
    """The batches of a loader, unless its workers are silent for too long; after a minute a line of the log names one.

    Args:
        loader: with workers; without them nothing is watched.
        seconds: how long is too long; 0: never. None: `SILENCE_SECONDS`.

    Raises:
        DataWorkerError: they were; it names the one that is waited for. None of them is alive then: one that is stopped
            would otherwise keep this process from ending.
    """
    if not (loader.num_workers or loader.pin_memory):
        # Here torch's iterator would only add 40 microseconds a batch, most of them for its profiler.
        return map(loader.dataset.__getitem__, loader.sampler)
    return _watched(loader, (SILENCE_SECONDS if seconds is None else seconds) or math.inf)


def _watched(loader: DataLoader[T], limit: float) -> Iterator[T]:
    loader.timeout = TICK_SECONDS if loader.num_workers else 0
    if loader.num_workers:
        # Made here, the folder of sockets (pymp-*) is shared with the workers, and removed when this process ends. A
        # worker that makes its own leaves it in TMPDIR where it is ended, as all are after an error of this process.
        multiprocessing.util.get_temp_dir()
    iterator, num_ticks = _started(loader, limit), 0
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            return
        except RuntimeError as error:
            num_ticks += 1
            if not str(error).startswith(_TIMED_OUT):
                raise
            if num_ticks * TICK_SECONDS >= limit:
                raise _ended(iterator, limit) from None
            if (num_ticks - 1) * TICK_SECONDS < _WARNING_SECONDS <= num_ticks * TICK_SECONDS:
                logging.warning(f"Waiting for data: {_waited_for(iterator, _WARNING_SECONDS)}")
            continue
        num_ticks = 0
        yield batch


def _started(loader: DataLoader[T], limit: float) -> Iterator[T]:
    """The loader's iterator for a new epoch: of workers that live since an earlier one, each has to answer first."""
    earlier: Any = loader._iterator  # Any: torch's iterator is not typed
    if earlier is None:
        try:
            return iter(loader)
        except OSError as error:
            raise _not_started(error) from None
    if all(worker.is_alive() for worker in getattr(earlier, "_workers", ())):
        earlier._timeout = min(limit, 1e6)  # days: this wait cannot be taken up again after a tick
    try:
        return iter(loader)
    except RuntimeError as error:
        if str(error).startswith(_TIMED_OUT):
            raise _ended(earlier, limit) from None
        raise
    finally:
        earlier._timeout = loader.timeout


def _not_started(error: OSError) -> OSError | DataWorkerError:
    """The error for workers that cannot be started: their queues are in shared memory, and take descriptors."""
    at = error.__traceback__
    while at is not None:
        iterator: Any = at.tb_frame.f_locals.get("self")
        if hasattr(iterator, "_worker_init_fn") and not hasattr(iterator, "_shutdown"):
            iterator._shutdown = True  # half made, it would complain where it is let go
        at = at.tb_next
    problem, got = "data workers cannot be started", error.strerror or str(error)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return DataWorkerError(problem, got=got, remedy=more_open_files())
    if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EAGAIN):
        return DataWorkerError(problem, got=got, remedy=MEMORY_CHECKS)
    return error


def _ended(iterator: object, seconds: float) -> DataWorkerError:
    """The error for workers that gave nothing for so long; they are ended."""
    error = DataWorkerError(
        _waited_for(iterator, seconds),
        remedy="where a batch takes so long, raise --worker_timeout (worker_timeout=); else check the disk or the "
        "network drive that holds the data; py-spy dump --pid PID shows where a worker hangs; with num_workers=0 "
        "(--num_workers 0) the data is read without them",
    )
    for worker in getattr(iterator, "_workers", ()):
        while worker.is_alive():
            with suppress(RuntimeError):  # of torch's handler of SIGCHLD, which tells of each worker that was killed
                worker.kill()
                worker.join(1)
    return error


def _waited_for(iterator: Any, seconds: float) -> str:
    # Any: torch's iterator, whose notes on which worker has which task are its own.
    try:
        worker, *_ = iterator._task_info[iterator._rcvd_idx]
        pid = iterator._workers[worker].pid
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        who, doing = f"a data worker (pid {pid})", f" and {_STATES.get(state, 'waits for something')}"
    except (AttributeError, LookupError, OSError):
        who, doing = "a data worker", ""
    return f"{who} gave no batch for {seconds:g} s{doing}"
