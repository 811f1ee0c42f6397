"""Signals that end a program in order: SIGINT, SIGTERM, SIGUSR1 and SIGHUP. Who saves is elsewhere.

Slurm sends SIGUSR1 ahead where it is asked to; a terminal that is closed sends SIGHUP, unless ``nohup`` has it ignored.


A program takes them over with :func:`stop_signals`. The first raises :class:`Interrupted` in the main thread, or, while
:meth:`StopSignals.deferred` is open, is only noted: training ends after its step then. A second one, a second later or
more, ends the process at once; some senders send each signal twice.

Only handlers that Python or the system installed are replaced, and they are put back. A handler of the user's stays, so
that signal does what the user's handler does. Outside of the main thread nothing is taken over.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

# Any: what signal.getsignal gives.

STOP_SIGNALS: tuple[int, ...] = tuple(
    int(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)
)
# A launcher that signals a process and its group, as timeout(1) does, makes two of one.
_ONE_SIGNAL_SECONDS = 1.0
_HANGUP = getattr(signal, "SIGHUP", None)
_INTERRUPTED, _CAN_GO_ON = 130, 75  # what a shell makes of SIGINT; EX_TEMPFAIL of sysexits.h
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class Interrupted(KeyboardInterrupt):
    """A signal ended the program. Not an ``Exception``, so that nothing takes it for an error and goes on.

    Args:
        number: the signal.
        is_told: the user has read why already.

    Attributes:
        exit_code: 130 for SIGINT; 75 for the others: preempted, can go on.
        kept: what the user will read of what was done, unless it was told.
    """

    kept = "nothing had to be saved"

    def __init__(self, number: int, is_told: bool = False) -> None:
        self.number, self.is_told = number, is_told
        self.exit_code = _INTERRUPTED if number == signal.SIGINT else _CAN_GO_ON
        super().__init__(f"stopped by {name_of(number)}")


class StopSignals:
    """The stop signals of this process. Made by :func:`stop_signals`.

    Attributes:
        received: the first that came, 0 before.
    """

    current: ClassVar[StopSignals | None] = None

    def __init__(self) -> None:
        self.received = 0
        self._received_at = 0.0
        self._is_deferred = self._has_raised = False
        self._say: Callable[[str], object] = lambda text: None
        self._replaced: dict[int, Any] = {}
        self._terminals: list[int] = []  # standard streams that go to one
        self._ends: tuple[socket.socket, socket.socket] | None = None
        self._thread = threading.Thread(target=self._listen, name="stop signals", daemon=True)

    @contextmanager
    def deferred(self, say: Callable[[str], object]) -> Iterator[None]:
        """Inside, the first signal is noted in ``received`` and told; whoever runs here looks at it.

        Args:
            say: called with a line for the user, in another thread.
        """
        before = self._is_deferred, self._say
        self._is_deferred, self._say = True, say
        try:
            yield
        finally:
            self._is_deferred, self._say = before

    def take_over(self) -> None:
        """Replace the handlers that are not the user's."""
        for number in STOP_SIGNALS:
            if signal.getsignal(number) in _DEFAULTS:
                self._replaced[number] = signal.signal(number, self._handle)
        if not self._replaced:
            return
        StopSignals.current = self
        self._terminals = [stream for stream in range(3) if os.isatty(stream)]
        # The interpreter calls handlers between two instructions of the main thread, so not while that thread waits
        # for another rank. It writes the signal's number at once, and the thread that reads it can end the process.
        reading, writing = socket.socketpair()
        writing.setblocking(False)
        before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        if before == -1:
            self._ends = reading, writing
            self._thread.start()
        else:  # an event loop uses it
            signal.set_wakeup_fd(before)
            reading.close()
            writing.close()

    def give_back(self) -> None:
        """Put the handlers back."""
        for number, handler in self._replaced.items():
            if signal.getsignal(number) == self._handle:  # else the user has installed one meanwhile
                signal.signal(number, handler)
        if self._replaced:
            StopSignals.current = None
        if self._ends is not None:
            signal.set_wakeup_fd(-1)
            reading, writing = self._ends
            writing.send(b"\0")
            self._thread.join()
            reading.close()
            writing.close()
            self._ends = None
        self._replaced.clear()

    def forget_in_child(self) -> None:
        """In a forked process: the handlers are its parent's."""
        for number, handler in self._replaced.items():
            signal.signal(number, handler)
        if self._ends is not None:
            signal.set_wakeup_fd(-1)
        StopSignals.current = None

    def _handle(self, number: int, frame: object) -> None:
        if self._ends is None:
            self._note(number)
        if not self._is_deferred and not self._has_raised:
            self._has_raised = True
            raise Interrupted(number)

    def _listen(self) -> None:
        assert self._ends is not None
        reading, _ = self._ends
        while True:
            for number in reading.recv(16):
                if number == 0:
                    return
                if number in self._replaced:
                    self._note(number)

    def _note(self, number: int) -> None:
        if number == _HANGUP:
            _let_go_of(self._terminals)
        now = time.monotonic()
        if not self.received:
            self.received, self._received_at = number, now
            if self._is_deferred:
                self._say(f"{name_of(number)}: stopping after this step; a second signal leaves at once")
        elif now - self._received_at >= _ONE_SIGNAL_SECONDS:
            _leave(number)


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Take over the stop signals; inside another ``stop_signals`` of this process, that one is given."""
    if StopSignals.current is not None:
        yield StopSignals.current
        return
    signals = StopSignals()
    if threading.current_thread() is threading.main_thread():
        signals.take_over()
    try:
        yield signals
    finally:
        signals.give_back()


def leave_signals_to_parent(*_: object) -> None:
    """In a process that works for this one: ignore stop signals but the SIGTERM of the parent, which ends it.

    Terminals, launchers and Slurm send them to all processes of a program, and the parent still needs this one.
    """
    for number in STOP_SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    import multiprocessing

    parent = multiprocessing.parent_process()  # which os.getppid() is not, where a server forks
    if parent is not None and hasattr(signal, "sigwaitinfo"):  # handlers are not told who sent a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        threading.Thread(target=_end_with_parent, args=(parent.pid,), name="SIGTERM", daemon=True).start()


def _end_with_parent(parent: int | None) -> None:
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent:
        pass
    os._exit(0)


def name_of(number: int) -> str:
    """``SIGTERM``."""
    return signal.Signals(number).name


def flags_of(number: int) -> list[float]:
    """A stop signal, or 0 for none, as numbers that ranks can add up."""
    return [float(number == stop_signal) for stop_signal in STOP_SIGNALS]


def signal_in(flags: Sequence[float]) -> int:
    """The first stop signal in a sum of :func:`flags_of`; 0 for none."""
    return next((number for number, count in zip(STOP_SIGNALS, flags, strict=True) if count), 0)


def _let_go_of(terminals: Sequence[int]) -> None:
    """Let what is written to a terminal that was closed go nowhere: an error of a ``print`` would end the run."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in terminals:
            os.dup2(nowhere, stream)
        os.close(nowhere)


def _leave(number: int) -> None:
    with suppress(OSError):
        os.write(2, f"{name_of(number)} again: left at once, nothing more was saved\n".encode())
    import multiprocessing

    for child in multiprocessing.active_children():
        child.kill()
    os._exit(128 + number)


def _forget_in_child() -> None:
    if StopSignals.current is not None:
        StopSignals.current.forget_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
