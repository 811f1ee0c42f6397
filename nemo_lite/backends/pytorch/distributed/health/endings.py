"""How a rank's process ends once it cannot go on: what is printed, in which order, and with which exit code.

Which rank is to blame is decided in diagnosis.py.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from nemo_lite.errors import NemoLiteError

# Any: functions of ctypes, which keep the callbacks that they were given alive.
_HANDLER = ctypes.CFUNCTYPE(None)
_kept: list[Any] = []


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
    # In a thread: a main thread that hangs while it prints holds the locks of the streams.
    flushing = threading.Thread(target=lambda: [stream.flush() for stream in (sys.stdout, sys.stderr)], daemon=True)
    flushing.start()
    flushing.join(0.5)
    os._exit(exit_code)


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
