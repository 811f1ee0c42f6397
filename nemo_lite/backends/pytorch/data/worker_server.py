"""How data workers start: forked by a server that has no threads, not by this process. Nothing about batches here.

A process that has threads must not fork: a lock that another thread holds at that moment stays locked in the child for
ever. A training has threads (signals, TensorBoard, heartbeats, the queues of other workers). So Python's ``forkserver``
is used: one new process imports torch and the modules of :func:`preload_in_workers`, and forks each worker. It differs
from that of :mod:`multiprocessing`:

- The user's script does not run again in the workers, so it needs no ``if __name__ == "__main__"``.
- The data set is pickled once. One that cannot be pickled, is made of classes that only this process has, or is large
  is shared with workers that this process forks; a line of the log says so.
- Stop signals for all processes of a job do not end the server. It ends with this process.
- Workers get the environment variables that this process has at their start.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import sys
from multiprocessing import context, forkserver, popen_forkserver, reduction, resource_tracker, spawn, util
from types import FunctionType
from typing import Any, Generic, TypeVar

from torch.utils.data import Dataset

from nemo_lite.base.errors import DataWorkerError
from nemo_lite.base.interruption import STOP_SIGNALS
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


def start_of_worker() -> None:
    """In a worker of the server: let the server end when the process of the run does, and this worker with it."""
    alive = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)
    if alive is not None:
        os.close(alive)
        forkserver._forkserver._forkserver_alive_fd = None  # type: ignore[attr-defined]  # not in its stub


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
