"""Calls in a process of their own, one after the other, each with its exit code, lines, processor time and memory."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from nemo_lite.base.errors import reported_to_user

SECONDS = 10.0  # on the clock, for a call that waits


class Outcome(NamedTuple):
    """How a call ended: exit code (0: it returned), what it said, seconds of the processor, growth of its memory."""

    code: int
    told: str
    cpu_seconds: float
    num_bytes: int


def outcomes(calls: Mapping[str, Callable[[], object]]) -> dict[str, Outcome]:
    """Make the calls in a fork of this process, as the ``main`` of a script would."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        os.close(read_end)
        with open(write_end, "w") as out:
            for name, call in calls.items():
                out.write(json.dumps([name, *_outcome(call)]) + "\n")
                out.flush()
        os._exit(0)
    os.close(write_end)
    with open(read_end) as lines:
        found = {name: Outcome(*rest) for name, *rest in map(json.loads, lines)}
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the process died after {list(found)[-1:]}"
    return found


def _outcome(call: Callable[[], object]) -> Outcome:
    told, code = io.StringIO(), 0
    signal.signal(signal.SIGALRM, _hung)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    _forget_peak()
    before, started = _resident_bytes("VmRSS"), time.process_time()
    try:
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(told), reported_to_user("hostile"):
            call()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException as error:
        code, told = 1, io.StringIO(f"{type(error).__name__}: {error}"[:300])
    signal.setitimer(signal.ITIMER_REAL, 0)
    grown = _resident_bytes("VmHWM") - before
    return Outcome(code, told.getvalue()[:2000], time.process_time() - started, grown)


class HungError(BaseException):
    """No error of the system: a reader would take that for one of its file."""


def _hung(number: int, frame: object) -> None:
    raise HungError("it hangs")


def _forget_peak() -> None:
    """The peak of memory starts at what is used now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _resident_bytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    line = next((line for line in status.splitlines() if line.startswith(name)), "")
    return int(line.split()[1]) * 1024 if line else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
