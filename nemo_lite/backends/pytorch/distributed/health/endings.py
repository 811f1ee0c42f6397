"""How a rank's process ends once it cannot go on: what is printed, in which order, and with which exit code.

Which rank is to blame is decided in diagnosis.py.
"""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing.util
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from nemo_lite.errors import NemoLiteError

# Any: functions of ctypes, which keep the callbacks that they were given alive.
_HANDLER = ctypes.CFUNCTYPE(None)
_kept: list[Any] = []
_ERROR = 2  # c10/util/logging_is_not_google_glog.h: GLOG_ERROR


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
    mark_told(error)


def _whole_traceback(error: BaseException) -> TracebackType | None:
    """That of an error which a guard has caught: without the guard, and with the callers of the guarded block."""
    at = error.__traceback__ and error.__traceback__.tb_next
    frame = at.tb_frame.f_back if at else None
    while frame is not None:
        at, frame = TracebackType(at, frame, frame.f_lasti, frame.f_lineno), frame.f_back
    return at or error.__traceback__


def mark_told(error: BaseException) -> None:
    """The user has read this error already."""
    vars(error)["is_told"] = True


def is_told(error: BaseException) -> bool:
    """Whether the user has read this error already."""
    return bool(getattr(error, "is_told", False))


def print_each_once() -> None:
    """From now on, what was told is not printed again when it leaves the script."""
    show = sys.excepthook

    def show_untold(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
        if not is_told(error):
            show(kind, error, at)

    sys.excepthook = show_untold


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
