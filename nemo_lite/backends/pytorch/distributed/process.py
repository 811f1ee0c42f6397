"""This process: where its training thread is, and how it ends.

Which rank is to blame where several cannot go on is decided in ``health``.
Any: functions of ctypes, which keep the callbacks that they were given alive.
"""

from __future__ import annotations

import ctypes
import faulthandler
import inspect
import multiprocessing
import multiprocessing.util
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple, TypeVar

import torch
import torch.utils.data

from nemo_lite.core.neural_module import NeuralModule, subclasses

T = TypeVar("T")

_TORCH = os.path.dirname(torch.__file__) + os.sep
# The files of torch whose functions call collectives. The rest of torch/distributed also runs where nothing is sent.
COLLECTIVES = tuple(
    os.path.join(_TORCH, "distributed", name)
    for name in ("distributed_c10d.py", "_functional_collectives.py", "c10d_logger.py", "utils.py", "fsdp/")
)
AUTOGRAD = (os.path.join(_TORCH, "autograd", ""), os.path.join(_TORCH, "_tensor.py"))

NEMO_LITE = str(Path(__file__).parents[3]) + os.sep
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_PACKAGES = "site-packages"


class Activity(NamedTuple):
    """What the training thread does. ``with EVALUATION: ...`` marks it; a mark costs about 0.1 microseconds.

    Where a rank is, in a user's words, for reports about ranks that hang: ``forward of encoder``, ``backward``. The
    training loop marks what it does (``with BACKWARD: ...``). Which neural module runs is read from the stack of the
    training thread, which costs that thread nothing. No file or function of the loop is named here: code may move, its
    mark moves with it.

    Put marks around calls, not around ``yield``: a generator that is not run to its end would keep its mark.

    Attributes:
        text: in a user's words.
        waits: this rank may wait for other ranks there: in a collective, or in backward, which averages gradients.
    """

    text: str
    waits: bool = False

    def __enter__(self) -> None:
        _marks.append(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _marks.pop()
        if error is not None and not hasattr(error, "activity"):  # of marks inside each other the inner one counts
            error.activity = self  # type: ignore[attr-defined]  # for ActivityReader.of, when the mark is gone

    def around(self, items: Iterable[T]) -> Iterator[T]:
        """The items; the mark is set while the next one is made, not while the caller uses it."""
        source = iter(items)
        while True:
            with self:
                try:
                    item = next(source)
                except StopIteration:
                    return
            yield item


# The marks of the one thread that trains, the innermost last. A list: other threads read it while it changes.
_marks: list[Activity] = []

BACKWARD = Activity("backward", waits=True)
EVALUATION = Activity("evaluation")
COMPILING = Activity("compiling")
WAITING_FOR_DATA = Activity("waiting for data")
READING_CHECKPOINT = Activity("reading a checkpoint")
WRITING_CHECKPOINT = Activity("writing a checkpoint")

_has_written = threading.Event()


def note_write() -> None:
    """Bytes of a checkpoint have been written, or have reached the disk: a rank that waits for this one may wait on."""
    _has_written.set()


def take_write() -> bool:
    """Whether a write was noted since this was last asked."""
    if not _has_written.is_set():
        return False
    _has_written.clear()
    return True


class ActivityReader:
    """Reads from another thread what the training thread is doing.

    Args:
        thread_id: of the training thread, as ``threading.get_ident`` gives it.
    """

    def __init__(self, thread_id: int) -> None:
        self._thread_id = thread_id
        self._is_module_code: dict[CodeType, bool] = {}

    def now(self) -> Activity:
        """What it is doing."""
        return self._activity(sys._current_frames().get(self._thread_id), next(iter(_marks[-1:]), None))

    def of(self, error: BaseException) -> Activity:
        """What it was doing when an error was raised."""
        return self._activity(innermost(error), getattr(error, "activity", None))

    def _activity(self, frame: FrameType | None, marked: Activity | None) -> Activity:
        """The first of these that there is, from the innermost frame outward:

        1. the method of a neural module that runs: ``forward of encoder``;
        2. the innermost mark: ``evaluation``;
        3. file, line and function of the innermost frame of user code: ``train.py:12 in main``.

        If a collective of torch runs there, its name comes first: ``all_reduce in forward of encoder``.
        """
        module = user_code = collective = ""
        while frame is not None and not module:
            code = frame.f_code
            module = self._module(frame)
            # By torch's files: forward hooks of FSDP2 and synchronised layers call collectives where nothing is marked.
            if not module and not collective and code.co_filename.startswith(COLLECTIVES):
                collective = code.co_name
            if not user_code and _is_user_code(code.co_filename):
                user_code = f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
            frame = frame.f_back
        activity = Activity(module) if module else marked or Activity(user_code or "an unknown place")
        return Activity(f"{collective} in {activity.text}", True) if collective else activity

    def _module(self, frame: FrameType) -> str:
        """``<method> of <module>`` if a method of a neural module runs in the frame, else ""."""
        code = frame.f_code
        if code.co_argcount == 0 or code.co_filename.startswith(_TORCH):
            return ""
        if code not in self._is_module_code:
            self._is_module_code[code] = any(code is method for method in _methods(code.co_name))
        if not self._is_module_code[code]:
            return ""
        # Before Python 3.13 this makes a copy of the frame's variables that lives as long as the call does. Only
        # frames of modules are asked, not those of loops, which would keep the tensors of a whole epoch.
        module = frame.f_locals.get(code.co_varnames[0])
        return f"{code.co_name} of {module.label}" if isinstance(module, NeuralModule) else ""


def innermost(error: BaseException) -> FrameType | None:
    """The frame that raised an error; ``None`` if it was not raised."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return None if traceback is None else traceback.tb_frame


def _methods(name: str) -> Iterator[CodeType]:
    """The code of every method of that name that a neural module has, under its decorators."""
    for cls in subclasses(NeuralModule):
        for base in cls.__mro__:
            function = inspect.unwrap(vars(base)[name]) if callable(vars(base).get(name)) else None
            if inspect.isfunction(function):
                yield function.__code__


def _is_user_code(path: str) -> bool:
    """Neither torch's, nor of this package, nor generated, nor the standard library's."""
    is_standard = path.startswith(_STANDARD_LIBRARY) and _PACKAGES not in path
    return not is_standard and not path.startswith((_TORCH, NEMO_LITE, "<"))


_HANDLER = ctypes.CFUNCTYPE(None)
_kept: list[Any] = []
_ERROR = 2  # c10/util/logging_is_not_google_glog.h: GLOG_ERROR


def end_process(exit_code: int) -> None:
    """End it and its children at once, whatever its threads do."""
    for child in multiprocessing.active_children():
        child.kill()
    # In threads: a main thread that hangs while it prints holds the locks of the streams, and a disk may not answer.
    for tidy in (lambda: [stream.flush() for stream in (sys.stdout, sys.stderr)], _remove_temporary_folder):
        thread = threading.Thread(target=tidy, daemon=True)
        thread.start()
        thread.join(0.5)
    os._exit(exit_code)


def _remove_temporary_folder() -> None:
    """Remove the folder of sockets (pymp-*) that this process shares with its data workers."""
    if multiprocessing.parent_process() is None:  # else it may be the parent's, which goes on
        shutil.rmtree(multiprocessing.util.get_temp_dir(), ignore_errors=True)


def print_stack_of_crash() -> None:
    """Let a process that SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT ends print first where it was, unless it does."""
    if not faulthandler.is_enabled():
        with suppress(AttributeError, OSError, ValueError):  # stderr is closed, or is no file, as in a notebook
            faulthandler.enable()


def log_cpp_errors_only(environ: Mapping[str, str] = os.environ) -> None:
    """From now on torch's C++ logs errors and no warnings, unless the user has set its level.

    Where the rank that serves the store dies, torch warns of each broken connection on every other rank, with a stack
    of 12 to 20 lines; our own report says which rank died. torch reads TORCH_CPP_LOG_LEVEL once, when it is imported,
    which a script may have done before it imported this package: so the level itself is set.
    """
    if "TORCH_CPP_LOG_LEVEL" in environ:
        return
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    with suppress(OSError, ValueError):  # another system, or a torch built with another logger
        level = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level")
        level.value = max(level.value, _ERROR)


def before_abort(note: Callable[[], None]) -> None:
    """Call ``note`` where a C++ thread is about to end the process, and keep the process for the report.

    gloo does this where ranks send each other different things, and nccl's watchdog after an error. The thread prints
    its error as always ("terminate called after throwing ...") and then waits for ever.

    Args:
        note: called in that thread; it must see to it that the process ends.
    """

    def called() -> None:
        note()
        libc = ctypes.CDLL(None)
        libc.signal(ctypes.c_int(signal.SIGABRT), ctypes.cast(libc.pause, ctypes.c_void_p))
        before()

    handler = _HANDLER(called)
    address = _set_terminate(ctypes.cast(handler, ctypes.c_void_p))
    before = _HANDLER(address) if address else lambda: None
    _kept.append(handler)


def never_abort() -> None:
    """From now on a C++ thread that would end the process waits for ever, and says nothing.

    For the end of a script: there, before Python 3.14, Python stops threads in a way that C++ takes for an error
    ("terminate called without an active exception", https://github.com/python/cpython/issues/87135).
    """
    with suppress(AttributeError):  # there is no such function on Windows
        _set_terminate(ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p))


def _set_terminate(handler: ctypes.c_void_p) -> int | None:
    """C++'s ``std::set_terminate``: the handler before, or ``None`` where the library is not known."""
    try:
        set_terminate = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE
    except (OSError, AttributeError):  # another system, or another C++
        return None
    set_terminate.restype, set_terminate.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    address: int | None = set_terminate(handler)
    return address
