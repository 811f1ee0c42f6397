"""Heartbeats of ranks, and reports about ranks that hang, fail or die, with step and DAG call."""

from __future__ import annotations

import ctypes
import faulthandler
import inspect
import json
import multiprocessing.util
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum, auto
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from nemo_lite.backends.pytorch.distributed.contract import aligned, grouped
from nemo_lite.backends.pytorch.distributed.rendezvous import Meeting, Member
from nemo_lite.core.neural_module import NeuralModule, subclasses
from nemo_lite.errors import DistributedError, NemoLiteError
from nemo_lite.interruption import Interrupted
from nemo_lite.utils.launch import ProcessInfo

# Where an error comes from: an exchange between ranks, or not. Decided by the frame that raised it and by its type.
# The words of an error's text do not decide this: a path with "gloo" in it is not an error of the network. They
# decide only what a user is told to look at.


_TORCH = os.path.dirname(torch.__file__) + os.sep
# The files of torch whose functions call collectives. The rest of torch/distributed also runs where nothing is sent.
COLLECTIVES = tuple(
    os.path.join(_TORCH, "distributed", name)
    for name in ("distributed_c10d.py", "_functional_collectives.py", "c10d_logger.py", "utils.py", "fsdp/")
)
_AUTOGRAD = (os.path.join(_TORCH, "autograd", ""), os.path.join(_TORCH, "_tensor.py"))


# What gloo, nccl and torch's store say of sockets and addresses.
_NETWORK_WORDS = re.compile(
    r"socket|connect|address|interface|network|peer|timed? ?out|refused|broken pipe|reset|unreachable|route|\bEOF\b",
    re.IGNORECASE,
)


class Origin(Enum):
    """Where an error comes from."""

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
    if type(error) is not RuntimeError:
        return Origin.ELSEWHERE
    frame = innermost(error)
    file = frame.f_code.co_filename if frame is not None else ""
    if file.startswith(COLLECTIVES):
        return Origin.EXCHANGE
    return Origin.BACKWARD if file.startswith(_AUTOGRAD) else Origin.ELSEWHERE


def innermost(error: BaseException) -> FrameType | None:
    """The frame that raised an error; ``None`` if it was not raised."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return None if traceback is None else traceback.tb_frame


def one_line(error: BaseException) -> str:
    """The first line of an error's text."""
    lines = str(error).splitlines() or [type(error).__name__]
    # "[/path/of/gloo/pair.cc:525] Connection closed": where in gloo is of no use to a reader.
    return re.sub(r"^\[[^\]]*\]\s*", "", lines[0])[:300]


def remedy_of(text: str) -> str:
    """What to look at where an exchange failed while all ranks still send heartbeats."""
    if _NETWORK_WORDS.search(text):
        return "all ranks still send heartbeats: check the network between them"
    return (
        "all ranks still send heartbeats, so they reach each other: see that every rank makes the same modules, "
        "freezes the same weights, and calls the same in the same order"
    )


# Diagnosis: which rank is to blame when ranks cannot go on, from what is known of each. No store, clock or threads.
# The causes, in the order in which they are looked for: processes that ended, ranks that left while others wait for
# them, ranks that hang.


_NETWORK = (
    "the data does not get from one rank to the other: check the interfaces (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, "
    "NCCL_DEBUG=INFO) and firewalls"
)
_ENDED = "see the end of its output; if it says nothing, the system may have been short of memory (dmesg)"
# On another machine there are more reasons.
_LOST = "its machine or the network to it failed, or its process was ended: see the end of its output"
_SEE_OUTPUT = "see the end of that process' own output"
# After a C++ error: until the heartbeats of all ranks say where they are now.
_SETTLED_SECONDS = 1.5

RUNS, LEFT, FAILED, TOLD, ABORTED = "runs", "left", "failed", "told", "aborted"
RUNNING = (RUNS, ABORTED)


class Status(NamedTuple):
    """What a rank says about itself with each heartbeat.

    Attributes:
        beat: number of the heartbeat.
        step: the training step, ``None`` outside of training steps.
        activity: what it does, in a user's words.
        waits: it may wait for other ranks there.
        seconds: since when step, activity and collective are the same. An activity in user code names its line, so
            these are few in a loop there.
        num_collectives: how many collectives of all ranks it has begun.
        collective: the label of the one it is in, or of the transfer between two ranks; "" outside.
        partner: the other rank of that transfer; ``None`` in a collective and outside.
        network_error: what went wrong in that collective, "" while nothing did.
        state: it runs, has left in order, has failed, was told that another one failed, or is kept from being ended by
            a C++ error.
        num_sent: how many exchanges of gradients it has handed to a backend that makes them while the rank goes on
            (nccl).
        sent_step: the step of the last of them; ``None`` where the backend is not of this kind, and before the first.
    """

    beat: int = 0
    step: int | None = None
    activity: str = "the start"
    waits: bool = False
    seconds: float = 0.0
    num_collectives: int = 0
    collective: str = ""
    partner: int | None = None
    network_error: str = ""
    state: str = RUNS
    num_sent: int = 0
    sent_step: int | None = None

    @property
    def at_step(self) -> str:
        """``at step 12 in forward of encoder``."""
        return f"{'outside of training steps' if self.step is None else f'at step {self.step}'} in {self.where}"

    @property
    def where(self) -> str:
        """The collective or the transfer it is in, or else its activity."""
        if not self.collective or self.partner is not None:
            return self.collective or self.activity
        return f"collective {self.num_collectives} ({self.collective})"


class Observation(NamedTuple):
    """What one rank knows of another.

    Attributes:
        member: which one.
        status: its last heartbeat; ``None``: none yet.
        silent_seconds: time since then.
        process: ``gone``, ``stopped`` or ``alive`` if it is on this machine, else "".
    """

    member: Member
    status: Status | None
    silent_seconds: float = 0.0
    process: str = ""

    @property
    def runs(self) -> bool:
        """It has not said that it ended."""
        return self.status is None or self.status.state in RUNNING


class Diagnosis(NamedTuple):
    """Why the run ends.

    Attributes:
        problem: one line that names the ranks to blame.
        remedy: what to look at.
        table: all ranks with their activity and for how long; "" where the reason is plain.
        exit_code: of all ranks; ``None`` for the usual one.
        by_silence: a timeout passed without a heartbeat.
        blamed: the ranks to blame.
    """

    problem: str
    remedy: str = ""
    table: str = ""
    exit_code: int | None = None
    by_silence: bool = False
    blamed: Sequence[int] = ()

    def error(self) -> DistributedError:
        """For the main thread."""
        return DistributedError(self.problem, remedy=self.remedy, exit_code=self.exit_code)

    def report(self) -> str:
        """For stderr."""
        return "\n".join(part for part in (f"{self.problem}; {self.remedy}", self.table) if part)

    def short_report(self) -> str:
        """For stderr of a rank beside which another one prints the report."""
        why = f"because of {_named(self.blamed)}" if self.blamed else "with all ranks"
        return f"ends {why}; another rank of this machine prints the report"


class Timeouts(NamedTuple):
    """Timeouts.

    Attributes:
        collective: seconds that a rank may wait in a collective.
        silence: seconds without a heartbeat.
        silence_after_error: the same, once a connection has broken somewhere.
    """

    collective: float
    silence: float
    silence_after_error: float


def diagnose_error(member: Member, status: Status, error: BaseException) -> Diagnosis:
    """A rank ends with an error of its own."""
    step = "" if status.step is None else f" at step {status.step}"
    if isinstance(error, Interrupted):
        return Diagnosis(f"{member} was {error}{step}", _SEE_OUTPUT, exit_code=error.exit_code, blamed=[member.rank])
    lines = str(error).splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0]}" if lines[0] else type(error).__name__
    problem = f"{member} stopped{step}: {text}{' ...' if len(lines) > 1 else ''}"
    return Diagnosis(problem, _SEE_OUTPUT, exit_code=exit_code_of(error), blamed=[member.rank])


def diagnose_lost_store(server: Observation | None, address: str, silent_seconds: float) -> Diagnosis:
    """The store does not answer any more.

    Args:
        server: the rank that serves it; ``None`` for the launcher.
        address: of the store.
        silent_seconds: how long it has not answered; 0 if it closed its connections.
    """
    sign = f"at {address} {f'has not answered for {silent_seconds:.0f} s' if silent_seconds else 'was closed'}"
    verb, by_silence = "cannot be reached" if silent_seconds else "is gone", bool(silent_seconds)
    if server is None:
        return Diagnosis(f"the launcher of the first machine {verb}: its store {sign}", _LOST, by_silence=by_silence)
    if server.process == "gone":
        return _gone(server, "is gone: its process has ended")
    return _gone(server, f"{verb}: the store that it serves {sign}", by_silence)


def diagnose(observations: Sequence[Observation], timeouts: Timeouts, has_all_heartbeats: bool) -> Diagnosis | None:
    """Why the ranks cannot go on; ``None`` while they can.

    Args:
        observations: in order of the ranks, this one included.
        timeouts: when to give up.
        has_all_heartbeats: true on rank 0. Other ranks only know rank 0's status; they judge hangs only when rank 0 is
            silent.
    """
    found = _find_gone(observations, timeouts) or _find_ended(observations)
    if found is None and (has_all_heartbeats or _is_stale(observations[0], timeouts)):
        found = _find_aborted(observations) or _find_hung(observations, timeouts)
    return found


def _find_gone(observations: Sequence[Observation], timeouts: Timeouts) -> Diagnosis | None:
    """The first running rank whose process has ended, or that is silent for too long and is not known to be alive.

    Too long is ``timeouts.silence``, or ``timeouts.silence_after_error`` once a rank reports an error of the network.
    """
    has_error = any(seen.status and seen.status.network_error for seen in observations)
    allowed = timeouts.silence_after_error if has_error else timeouts.silence
    for seen in (each for each in observations if each.runs):
        if seen.process == "gone":
            return _gone(seen, "is gone: its process has ended")
        # Before its first heartbeat a rank may be busy, as in a slow start of its GPU: it gets as long as a collective.
        limit = allowed if seen.status else timeouts.collective
        # A process that is alive but silent is waited for as for one that hangs: something blocks its threads.
        if seen.process != "alive" and seen.silent_seconds >= limit:
            return _gone(seen, f"is gone: no sign of life for {seen.silent_seconds:.0f} s", by_silence=True)
    return None


def _gone(seen: Observation, sign: str, by_silence: bool = False) -> Diagnosis:
    last = f", last seen {seen.status.at_step}" if seen.status else ""
    if seen.process == "stopped":
        remedy = f"continue it with kill -CONT {seen.member.pid}: it ends then, as the others do; start the run again"
        problem = f"{seen.member} is stopped (SIGSTOP, Ctrl-Z or a debugger){last}"
        return Diagnosis(problem, remedy, by_silence=by_silence, blamed=[seen.member.rank])
    remedy = _ENDED if seen.process else _LOST
    return Diagnosis(f"{seen.member} {sign}{last}", remedy, by_silence=by_silence, blamed=[seen.member.rank])


def _find_aborted(observations: Sequence[Observation]) -> Diagnosis | None:
    """A rank that a C++ error would have ended: because the ranks sent each other different things, or by itself."""
    for seen in observations:
        status = seen.status
        if status is None or status.state != ABORTED or status.seconds < _SETTLED_SECONDS:
            continue
        running = {each.member.rank: each.status for each in observations if each.runs and each.status}
        places = grouped((each.at_step, rank) for rank, each in running.items() if each.waits)
        if status.waits and len(places) > 1:
            return _mismatched(places, as_table(observations))
        problem = f"a C++ error stopped {seen.member} {status.at_step}"
        remedy = f"rank {seen.member.rank} printed it: see what stands after its line with `terminate called`"
        return Diagnosis(problem, remedy, as_table(observations), blamed=[seen.member.rank])
    return None


def _find_ended(observations: Sequence[Observation]) -> Diagnosis | None:
    """A rank that left in order before a collective that another one is in."""
    for seen in observations:
        if seen.status is None or seen.status.state != LEFT:
            continue
        for other in observations:
            status = other.status
            if other.runs and status and status.collective and status.num_collectives > seen.status.num_collectives:
                problem = f"{seen.member} has ended while rank {other.member.rank} waits for it {status.at_step}"
                return Diagnosis(problem, _SEE_OUTPUT, blamed=[seen.member.rank])
    return None


def _find_hung(observations: Sequence[Observation], timeouts: Timeouts) -> Diagnosis | None:
    """The ranks to blame when one that waits has waited for ``timeouts.collective``.

    A rank waits in a labelled collective and in BACKWARD; and wherever it is, once it has sent more gradients than
    another one: nccl exchanges them in the background, and any later call may wait for the GPU. In a transfer between
    two ranks, its partner is blamed. Otherwise those ranks are blamed that run, do not wait, and have begun the fewest
    exchanges. If all ranks wait, their collectives do not match, or the network fails.

    Limit: a rank that computes without end in its own backward counts as waiting, and is never blamed.
    """
    running = {seen.member.rank: seen.status for seen in observations if seen.runs and seen.status}
    stale = {seen.member.rank for seen in observations if _is_stale(seen, timeouts)}
    fewest_sent = min((status.num_sent for status in running.values()), default=0)
    waiting = {
        rank: status
        for rank, status in running.items()
        if (status.waits or status.num_sent > fewest_sent) and rank not in stale
    }
    overdue = {rank: status for rank, status in waiting.items() if status.seconds >= timeouts.collective}
    if not overdue:
        return None
    # A transfer first: two ranks that are stuck in one keep all others waiting.
    waiter = max(overdue, key=lambda rank: (overdue[rank].partner is not None, overdue[rank].seconds))
    status, table = overdue[waiter], as_table(observations)
    if status.partner is not None:
        partner = running.get(status.partner)
        if partner is None or partner.collective == status.collective:
            return Diagnosis(f"{status.collective} does not end although both ranks are in it", _NETWORK, table)
        return _hung(observations, [status.partner], waiter, status, table)
    not_waiting = {rank: status for rank, status in running.items() if rank not in waiting}
    if not not_waiting:
        return _all_wait(waiting, table)
    fewest_begun = min((status.num_sent, status.num_collectives) for status in not_waiting.values())
    blamed = [rank for rank, status in not_waiting.items() if (status.num_sent, status.num_collectives) == fewest_begun]
    return _hung(observations, blamed, waiter, status, table)


def _hung(
    observations: Sequence[Observation], blamed: Sequence[int], waiter: int, waiting: Status, table: str
) -> Diagnosis:
    who = [(seen.member, seen.status) for seen in observations if seen.member.rank in blamed and seen.status]
    hangs = ", ".join(f"{member} hangs {status.at_step}" for member, status in who)
    it, it_was = ("it", "it was") if len(blamed) == 1 else ("them", "they were")
    # The seconds of the rank that waits: those of the other one start again with each line that it reaches.
    place = waiting.where if waiting.waits else _in_background(waiting)
    problem = f"{hangs}, while rank {waiter} waits for {it} in {place} for {_seconds(waiting.seconds)}"
    remedy = f"see the output of {_named(blamed)}; if {it_was} only slow there, raise --dist_timeout (dist_timeout=)"
    return Diagnosis(problem, remedy, table, blamed=list(blamed))


def _in_background(status: Status) -> str:
    return f"the exchange of gradients of step {status.sent_step}, in the background (itself {status.at_step}),"


def _is_stale(seen: Observation, timeouts: Timeouts) -> bool:
    """Its last heartbeat is too old to say what it does."""
    return seen.silent_seconds >= timeouts.silence


def _all_wait(waiting: Mapping[int, Status], table: str) -> Diagnosis:
    """All wait: for different things, or for the network, or one of them computes without end in its backward."""
    by_place = grouped((f"in {status.where}", rank) for rank, status in waiting.items())
    if len(by_place) == 1:
        where, ranks = by_place[0][0].removeprefix("in "), by_place[0][1]
        # The backward pass is not a collective alone: it computes, too.
        computes = "" if waiting[ranks[0]].collective else "either one of them computes there without end, or "
        return Diagnosis(f"{where} does not end although all ranks are in it", computes + _NETWORK, table)
    return _mismatched(by_place, table)


def _mismatched(by_place: Sequence[tuple[str, Sequence[int]]], table: str) -> Diagnosis:
    who = ", ".join(f"{_named(ranks)} {'are' if len(ranks) > 1 else 'is'} {place}" for place, ranks in by_place)
    remedy = (
        "every rank has to make the same calls in the same order: look for one that depends on the rank or its data"
    )
    return Diagnosis(f"mismatched collectives: {who}", remedy, table)


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def as_table(observations: Sequence[Observation]) -> str:
    """All ranks: host, process, step, where they are, and how long they have been there."""
    rows = [("rank", "host", "pid", "step", "where", "since")]
    for seen in observations:
        member, status = seen.member, seen.status or Status(activity="unknown")
        step = "-" if status.step is None else str(status.step)
        where = status.where if seen.runs else f"ended ({status.state})"
        if status.sent_step is not None:
            where += f", gradients of step {status.sent_step} sent"
        since = _seconds(status.seconds + seen.silent_seconds)
        rows.append((str(member.rank), member.host, str(member.pid), step, where, since))
    return "\n".join(f"  {line}" for line in aligned(rows))


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def exit_code_of(error: BaseException) -> int:
    """With which a process ends that does not catch this error."""
    if isinstance(error, KeyboardInterrupt):
        return 130  # what a shell gives for SIGINT
    code = getattr(error, "code" if isinstance(error, SystemExit) else "exit_code", 1)
    return code if isinstance(code, int) and code else 1


# How a rank's process ends once it cannot go on: what is printed, in which order, and with which exit code.
# Which rank is to blame is decided by ``diagnose``.


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


# The launcher of this process, where its end can be known: torchrun's process, found among the parents.
# Only torchrun (also as ``torch.distributed.launch``) is looked for: its ranks have no use without it, as it alone
# ends and restarts them. A process that ``nohup``, ``setsid``, Slurm or MPI started may outlive its parent; Slurm and
# MPI end their processes themselves. Processes are found in ``/proc``, so on Linux only.


# torchrun sets it for its workers, and nobody sets it by hand.
_OF_WORKERS = "TORCHELASTIC_RESTART_COUNT"
_INIT = 1


def launcher_of_this_process(environ: Mapping[str, str] = os.environ, proc: Path = Path("/proc")) -> int | None:
    """The process id of the torchrun that started this process, also through a shell; None where there is none.

    In a container whose first process is torchrun there is nothing to watch: the system ends all with that process.
    """
    if _OF_WORKERS not in environ:
        return None
    pid = os.getppid()
    try:
        while pid > _INIT:
            if f"{_OF_WORKERS}=".encode() not in (proc / f"{pid}/environ").read_bytes():
                return pid
            pid = int((proc / f"{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # not Linux, another user's process, or it has just ended
        pass
    return None


def diagnose_lost_launcher(member: Member, pid: int) -> Diagnosis:
    """A rank runs on without the process that started it."""
    problem = f"the launcher of {member} is gone: process {pid} was killed or has ended; nothing would end its ranks"
    return Diagnosis(problem, "start this machine's command again: the run goes on from its newest checkpoint")


# What the training thread is doing, in a user's words, for reports about ranks that hang.
# The loop marks what it does (``with BACKWARD: ...``). Which neural module runs is read from the thread's stack,
# which costs that thread nothing. This file knows no file or function of the loop: code may move, its mark moves with
# it.


T = TypeVar("T")

_NEMO_LITE = str(Path(__file__).parents[3]) + os.sep
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_PACKAGES = "site-packages"


class Activity(NamedTuple):
    """What the training thread does. ``with EVALUATION: ...`` marks it; a mark costs about 0.1 microseconds.

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
        if error is not None:
            vars(error).setdefault("activity", self)  # read by ActivityReader.of, when the mark is gone

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

_last_write = [0.0]  # of time.monotonic


def note_write() -> None:
    """Bytes of a checkpoint have been written, or have reached the disk: a rank that waits for this one may wait on."""
    _last_write[0] = time.monotonic()


def last_write() -> float:
    """When that was last noted, by ``time.monotonic``."""
    return _last_write[0]


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

    def _activity(self, innermost: FrameType | None, marked: Activity | None) -> Activity:
        """The first of these that there is:

        1. the method of a neural module that runs: ``forward of encoder``;
        2. the innermost mark: ``evaluation``;
        3. file, line and function of the innermost frame of user code: ``train.py:12 in main``.

        If a collective of torch runs there, its name comes first: ``all_reduce in forward of encoder``.
        """
        module = user_code = collective = ""
        for frame in _outward(innermost):
            code = frame.f_code
            module = self._module(frame)
            if module:
                break
            # By torch's files: forward hooks of FSDP2 and synchronised layers call collectives where nothing is marked.
            if not collective and code.co_filename.startswith(COLLECTIVES):
                collective = code.co_name
            if not user_code and _is_user_code(code.co_filename):
                user_code = f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
        found = Activity(module) if module else marked or Activity(user_code or "an unknown place")
        return Activity(f"{collective} in {found.text}", True) if collective else found

    def _module(self, frame: FrameType) -> str:
        """``<method> of <module>`` if a method of a neural module runs in the frame."""
        code = frame.f_code
        if not self._belongs_to_module(code):
            return ""
        # Before Python 3.13 this makes a copy of the frame's variables that lives as long as the call does. Only
        # frames of modules are asked, not those of loops, which would keep the tensors of a whole epoch.
        module = frame.f_locals.get(code.co_varnames[0])
        return f"{code.co_name} of {module.label}" if isinstance(module, NeuralModule) else ""

    def _belongs_to_module(self, code: CodeType) -> bool:
        if code.co_argcount == 0 or code.co_filename.startswith(_TORCH):
            return False
        if code not in self._is_module_code:
            self._is_module_code[code] = any(code is method for method in _methods(code.co_name))
        return self._is_module_code[code]


def _methods(name: str) -> Iterator[CodeType]:
    """The code of every method of that name that a neural module has, under its decorators."""
    for cls in subclasses(NeuralModule):
        for base in cls.__mro__:
            function = inspect.unwrap(vars(base)[name]) if callable(vars(base).get(name)) else None
            if inspect.isfunction(function):
                yield function.__code__


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_user_code(path: str) -> bool:
    """Neither torch's, nor of this package, nor generated, nor the standard library's."""
    is_standard = path.startswith(_STANDARD_LIBRARY) and _PACKAGES not in path
    return not is_standard and not path.startswith((_TORCH, _NEMO_LITE, "<"))


# HeartbeatChannel: writes this rank's heartbeats to the store, reads the others', and looks at their processes.
# Which rank is to blame is decided by ``diagnose``.


WRITES = "writes"
"""The key under which ranks count their writes."""

# If this thread itself stalled for longer, do not count the gap as the others' silence.
_OWN_STALL_SECONDS = 2.0


class HeartbeatChannel:
    """This rank's heartbeats in the store, and what it has seen of the others. Used by one thread.

    Rank 0 reads all ranks' heartbeats, the others read rank 0's.
    """

    def __init__(self, meeting: Meeting, info: ProcessInfo) -> None:
        self._store = meeting.connect()
        self._members, self._me = meeting.members, meeting.members[info.rank]
        self._watched = meeting.members if info.rank == 0 else meeting.members[:1]
        now = self._last_read = time.monotonic()
        self._seen: dict[int, tuple[Status | None, float]] = {member.rank: (None, now) for member in meeting.members}
        self._processes: dict[int, str] = {}
        self._server = None if info.agent_hosts_store else meeting.members[0]
        self._launcher = launcher_of_this_process()
        self.address = f"{info.master[0]}:{info.master[1]}"

    def publish(self, status: Status) -> None:
        """Write this rank's status."""
        self._store.set(f"beat/{self._me.rank}", json.dumps(status))

    def count_write(self) -> None:
        """Let ranks that wait for a checkpoint know that more of it has been written."""
        self._store.add(WRITES, 1)

    def diagnosis(self) -> Diagnosis | None:
        """The stored diagnosis, or None."""
        return Diagnosis(*json.loads(self._store.get("diagnosis"))) if self._store.check(["diagnosis"]) else None

    def agree_on(self, diagnosis: Diagnosis) -> Diagnosis:
        """Store a diagnosis, if there is none; the stored one."""
        return Diagnosis(*json.loads(self._store.compare_set("diagnosis", "", json.dumps(diagnosis))))

    def claim_report(self) -> bool:
        """Whether this rank is the first of its machine that asks: it prints the report.

        Raises:
            DistError: the store is lost.
        """
        me = str(self._me.rank)
        return self._store.compare_set(f"report/{self._me.process_space}", "", me).decode() == me

    def is_lowest_but(self, ranks: Sequence[int]) -> bool:
        """Whether this is the lowest rank of its machine, those ranks aside: the rule where the store is lost."""
        here = {member.rank for member in self._members if member.process_space == self._me.process_space}
        return self._me.rank == min(here - set(ranks) or here)

    def check_processes(self) -> None:
        """See which processes on this machine exist."""
        for member in self._members:
            if member != self._me:
                self._processes[member.rank] = process_state(member, self._me)

    def lost_launcher(self) -> tuple[Diagnosis, bool] | None:
        """Why this rank cannot go on if its launcher has ended, and whether it prints the report; else None.

        The others are told through the store, unless that has ended with the launcher.
        """
        if self._launcher is None or _state_of(self._launcher) != "gone":
            return None
        found = diagnose_lost_launcher(self._me, self._launcher)
        # A store that has ended is not asked: torch would fill stderr with traces.
        if self._server is not None or self._members[0].process_space != self._me.process_space:
            with suppress(dist.DistError):
                return self.agree_on(found), self.claim_report()
        return found, self.is_lowest_but(())

    def read_ranks(self) -> None:
        """Read the heartbeats of the watched ranks, and the last ones of those whose process is gone.

        ``multi_get`` blocks on a missing key, so check first whether a rank has written its first one.
        """
        now = time.monotonic()
        if now - self._last_read > _OWN_STALL_SECONDS:
            stall = now - self._last_read
            self._seen = {rank: (status, since + stall) for rank, (status, since) in self._seen.items()}
        self._last_read = now
        gone = [member for member in self._members if self._processes.get(member.rank) == "gone"]
        keys = {member.rank: f"beat/{member.rank}" for member in (*self._watched, *gone) if member != self._me}
        ready = [rank for rank, key in keys.items() if self._seen[rank][0] or self._store.check([key])]
        if not ready:
            return
        for rank, encoded in zip(ready, self._store.multi_get([keys[rank] for rank in ready]), strict=True):
            status, before = Status(*json.loads(encoded)), self._seen[rank][0]
            if before is None or status.beat != before.beat:
                self._seen[rank] = (status, time.monotonic())

    def observations(self, own: Status) -> list[Observation]:
        """All ranks; of those that are not watched only whether their process exists."""
        now, found = time.monotonic(), []
        for member in self._members:
            status, since = (own, now) if member == self._me else self._seen[member.rank]
            silent = now - since if member in self._watched else 0.0
            found.append(Observation(member, status, silent, self._processes.get(member.rank, "")))
        return found

    def store_server(self) -> Observation | None:
        """The rank that serves the store, its process as it is now; ``None`` if the launcher serves it."""
        if self._server is None:
            return None
        return Observation(self._server, self._seen[self._server.rank][0], 0.0, process_state(self._server, self._me))

    def others_ended(self) -> bool:
        """All others said that they end, or are gone."""
        return all(
            (status is not None and status.state != RUNS) or self._processes.get(rank) == "gone"
            for rank, (status, _) in self._seen.items()
            if rank != self._me.rank
        )


def process_state(member: Member, me: Member) -> str:
    """``gone``, ``stopped`` or ``alive``; "" if it cannot be seen from here."""
    return _state_of(member.pid) if member.process_space == me.process_space else ""


def _state_of(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return "gone" if Path("/proc/self/stat").exists() else _state_without_proc(pid)
    except OSError:
        return "gone"  # it ended between the opening and the reading
    state = stat.rpartition(")")[2].split()[0]
    return {"Z": "gone", "X": "gone", "T": "stopped", "t": "stopped"}.get(state, "alive")


def _state_without_proc(pid: int) -> str:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "gone"
    except OSError:
        return "alive"
    return "alive"


# HealthMonitor: heartbeats between the ranks, and one reason with which all end when one of them cannot go on.
# A thread writes a heartbeat to the store twice a second and reads the others': rank 0 all, the others rank 0's. Each
# rank also sees whether the processes on its own machine exist. The first to find a problem stores the diagnosis (see
# ``diagnose``); the others read it. A second thread notices when the store itself does not answer, prints the
# diagnosis (one rank of each machine in full, the others a line), and ends the process if its main thread does not.


# Main threads get less time to clean up where finding the reason took a timeout, so that all end within ten seconds.
_GRACE_AFTER_SILENCE_SECONDS = 1.5
# How long a main thread whose collective failed waits for the cause.
_CAUSE_SECONDS = 5.0
# A process that ends closes its connections; so once one has broken, this is enough, however long links may be down.
_SILENCE_AFTER_ERROR_SECONDS = 2.4


class HealthMonitor:
    """Heartbeats between the ranks of a run. Made and used by the thread that trains.

    Args:
        meeting: the ranks and their store.
        info: who this process is.
        timeout_seconds: how long a rank may keep another waiting in a collective.
        beat_seconds: between two heartbeats.
        silence_seconds: a rank on another machine without a heartbeat for so long is gone, and so is a store that does
            not answer.
        grace_seconds: from the diagnosis until the process is ended; main threads clean up in it.
    """

    step: int | None
    """The training step; set by whoever makes it."""
    is_asynchronous: bool
    """Gradients are exchanged while the main thread goes on, as nccl does; set by whoever joins the group."""

    def __init__(
        self,
        meeting: Meeting,
        info: ProcessInfo,
        timeout_seconds: float,
        *,
        beat_seconds: float = 0.5,
        silence_seconds: float = 6.0,
        grace_seconds: float = 5.0,
    ) -> None:
        self.step, self.is_asynchronous = None, False
        after_error = min(silence_seconds / 2.5, _SILENCE_AFTER_ERROR_SECONDS)
        self._timeouts = Timeouts(timeout_seconds, silence_seconds, after_error)
        self._beat_seconds, self._grace_seconds = beat_seconds, grace_seconds
        self._channel = HeartbeatChannel(meeting, info)
        self._me, self._is_first = meeting.members[info.rank], info.rank == 0
        self._reader = ActivityReader(threading.get_ident())
        self._error_before = getattr(sys, "last_value", None)
        # The main thread sets these, the heartbeat thread sends them, the exit thread reads the state. Number of
        # collectives begun, and label and partner of those that it is in: one attribute, so that they change together.
        self._collectives: tuple[int, tuple[tuple[str, int | None], ...]] = (0, ())
        self._network_error, self._state = "", RUNS
        self._sent: tuple[int, int | None] = (0, None)
        self._failed_in: Activity | None = None
        self._own_error: Diagnosis | None = None
        self._waits_anew = False  # the heartbeat thread takes it back
        # The main thread sets these, the other two read them.
        self._is_over = False
        self._beat_now = threading.Event()
        # The heartbeat thread sets these. It alone uses the last status and its time; the main thread waits for the
        # last beat; the exit thread sees from the number that the store still answers.
        self._status, self._status_since = Status(), time.monotonic()
        self._last_beat_written = threading.Event()
        self._num_beats, self._write_counted = 0, last_write()
        # The heartbeat thread or the exit thread sets these, once; all three read them.
        self._diagnosis: Diagnosis | None = None
        self._diagnosis_known = threading.Event()
        self._report, self._has_own_error, self._telling = "", False, threading.Lock()
        self._heartbeat_thread = threading.Thread(target=self._beat, daemon=True, name="heartbeat")
        self._exit_thread = threading.Thread(target=self._exit_if_stuck, daemon=True, name="exit")
        self._heartbeat_thread.start()
        self._exit_thread.start()
        before_abort(self._note_abort)

    # Called by the main thread

    @contextmanager
    def collective(self, label: str, partner: int | None = None) -> Iterator[None]:
        """Around a collective of all ranks, or around a transfer between this rank and a partner.

        Args:
            label: in a user's words; the same on all ranks that take part.
            partner: the other rank of a transfer.

        Raises:
            DistributedError: it failed, with the reason; or the run is known to end.
        """
        self.check()
        number, outer = self._collectives
        self._collectives = (number + (partner is None), (*outer, (label, partner)))
        try:
            yield
        except BaseException as error:
            cause = self.wait_for_cause(error)
            if cause is error:
                raise
            raise cause from error
        finally:
            self._collectives = (self._collectives[0], outer)

    def check(self) -> None:
        """Raise DistributedError if the run is known to end."""
        if self._diagnosis is not None:
            raise self._error_of(self._diagnosis)

    def beat_soon(self) -> None:
        """Tell the others now where this rank is, not with the next heartbeat."""
        self._beat_now.set()

    def wait_anew(self) -> None:
        """What this rank waits for has made progress: its timeout begins anew."""
        self._waits_anew = True

    def gradients_sent(self) -> None:
        """This rank has handed the gradients of the step to the backend."""
        if self.is_asynchronous:
            self._sent = (self._sent[0] + 1, self.step)

    def wait_for_cause(self, error: BaseException) -> BaseException:
        """The error of the rank that caused this one, if this comes from an exchange; other errors as they are.

        Waits up to five seconds until that rank is known. If none is, gives a DistributedError that says so; where the
        error may also be this rank's own, the error itself.
        """
        origin = origin_of(error)
        if origin is Origin.ELSEWHERE:
            return error
        text = one_line(error)
        number, labels = self._collectives
        if labels:
            where = Status(num_collectives=number, collective=labels[-1][0], partner=labels[-1][1]).where
        else:
            # The main thread is no longer there; the others must still see that this rank waits.
            where = self._reader.of(error).text
            self._failed_in = Activity(where, waits=True)
        if self._state in RUNNING and not self._is_over:
            self._network_error = text
            self._beat_now.set()
            self._diagnosis_known.wait(_CAUSE_SECONDS)
        if self._diagnosis is not None:
            return self._error_of(self._diagnosis)
        if origin is Origin.BACKWARD:
            return error
        step = "" if self.step is None else f" of step {self.step}"
        return DistributedError(
            f"an exchange between the ranks failed on {self._me}, {where}{step}",
            got=text,
            remedy=remedy_of(text),
        )

    def _error_of(self, diagnosis: Diagnosis) -> DistributedError:
        """For the main thread; the report is printed before."""
        self._tell()
        error = diagnosis.error()
        mark_told(error)
        return error

    def report_own_error(self, error: BaseException) -> None:
        """Tell the others that this rank ends with that error. Only the first of all ranks' errors counts."""
        if self._state not in RUNNING:
            return
        with self._telling:
            # The user reads this error; another rank's, which may be the same, adds nothing, also if it comes later.
            self._report, self._has_own_error = "", True
        if self._diagnosis is None:
            self._own_error = diagnose_error(self._me, self._status._replace(step=self.step), error)
        tells_others = self._diagnosis is None and not getattr(error, "is_common", False)
        self._end(FAILED if tells_others else TOLD)

    def leave(self) -> None:
        """Tell the others that this rank ends in order. Rank 0, which serves the store, leaves last."""
        if self._is_over:
            return
        error = getattr(sys, "last_value", None)
        if error is not None and error is not self._error_before:
            self.report_own_error(error)  # the interpreter is ending with an error that nobody caught
        is_orderly = self._state == RUNS
        if is_orderly:
            self._end(LEFT)
        if self._is_first:
            self._await_others(self._timeouts.collective if is_orderly else self._grace_seconds)
        if is_orderly and self._diagnosis is not None:
            self._exit_thread.join()  # the run failed after this rank's part: the process ends with the reason
        self._tell()
        self._is_over = True
        self._beat_now.set()
        self._heartbeat_thread.join(self._beat_seconds)
        never_abort()

    @property
    def exit_code(self) -> int:
        """With which this process ends, where the run failed."""
        failure = self._own_error or self._diagnosis
        return 1 if failure is None else failure.error().exit_code

    def _end(self, state: str) -> None:
        self._last_beat_written.clear()
        self._state = state
        self._beat_now.set()
        deadline = time.monotonic() + _CAUSE_SECONDS
        while self._heartbeat_thread.is_alive() and time.monotonic() < deadline:
            if self._last_beat_written.wait(self._beat_seconds / 10):
                return

    def _await_others(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._channel.others_ended():
            if self._state == LEFT and self._diagnosis_known.wait(self._beat_seconds):
                return
            time.sleep(self._beat_seconds / 10)

    # Called by the heartbeat thread, which alone uses the store

    def _beat(self) -> None:
        while True:
            state, is_known = self._state, self._diagnosis is not None
            try:
                self._beat_once(state)
            except dist.DistError:
                self._lose_store(closed=True)
                self._last_beat_written.set()
                return
            self._num_beats += 1
            if state not in RUNNING:
                self._last_beat_written.set()
            if self._is_over or ((state not in RUNNING or is_known) and not self._is_first):
                return
            is_hurried = self._network_error or state != RUNS or self._diagnosis is not None
            self._beat_now.wait(self._beat_seconds / 4 if is_hurried else self._beat_seconds)
            self._beat_now.clear()

    def _beat_once(self, state: str) -> None:
        # Processes first: one that left in order says so before it ends.
        self._channel.check_processes()
        server = self._channel.store_server()
        if server is not None and server.process == "gone":
            self._lose_store()  # its store is not asked: torch would fill stderr with traces
            return
        if (lost := self._channel.lost_launcher()) is not None:
            self._accept(*lost)
            return
        self._status = self._status_now(state)
        if state == FAILED and self._own_error is not None:
            self._channel.agree_on(self._own_error)
        self._channel.publish(self._status)
        if last_write() != self._write_counted:
            self._write_counted = last_write()
            self._channel.count_write()
        if not self._is_first and (self._diagnosis is not None or state == FAILED):
            return  # nothing more to learn; and torch prints a trace if the rank that serves the store ends meanwhile
        found = self._channel.diagnosis()
        self._channel.read_ranks()
        if found is None and self._diagnosis is None and state in (*RUNNING, LEFT):
            found = diagnose(self._channel.observations(self._status), self._timeouts, self._is_first)
            found = self._channel.agree_on(found) if found else None
        if found is not None and state != FAILED and self._diagnosis is None:
            self._accept(found, self._claim_report(found))

    def _claim_report(self, found: Diagnosis) -> bool:
        try:
            return self._channel.claim_report()
        except dist.DistError:
            return self._channel.is_lowest_but(found.blamed)

    def _status_now(self, state: str) -> Status:
        before, (number, labels) = self._status, self._collectives
        activity = Activity("a collective", waits=True) if labels else self._failed_in or self._reader.now()
        label, partner = labels[-1] if labels else ("", None)
        if state in RUNNING and self._diagnosis is not None:
            state = TOLD  # so that the rank that serves the store need not stay for this one
        now = Status(before.beat + 1, self.step, *activity, 0.0, number, label, partner, self._network_error, state)
        num_sent, sent_step = self._sent
        now = now._replace(num_sent=num_sent, sent_step=sent_step)
        if now._replace(beat=before.beat, seconds=before.seconds, network_error=before.network_error) != before:
            self._waits_anew = True
        if self._waits_anew:
            self._waits_anew, self._status_since = False, time.monotonic()
        return now._replace(seconds=time.monotonic() - self._status_since)

    def _lose_store(self, closed: bool = False) -> None:
        """The store is lost. That is in order where the rank that served it left in order, or this one is leaving."""
        server = self._channel.store_server()
        if self._state in RUNNING and (server is None or server.runs):
            silent = 0.0 if closed else self._timeouts.silence
            diagnosis = diagnose_lost_store(server, self._channel.address, silent)
            self._accept(diagnosis, self._channel.is_lowest_but(diagnosis.blamed))

    def _accept(self, diagnosis: Diagnosis, prints_all: bool) -> None:
        if self._diagnosis is None:
            with self._telling:
                report = diagnosis.report() if prints_all else diagnosis.short_report()
                self._report = "" if self._has_own_error else report
            self._diagnosis = diagnosis
            self._diagnosis_known.set()

    # Called by any thread

    def _tell(self) -> None:
        """Print this rank's part of the report, once."""
        with self._telling:
            report, self._report = self._report, ""
            if report:
                with suppress(OSError, ValueError):  # stderr is closed; there is nobody to tell
                    print(f"[rank {self._me.rank}] {report}", file=sys.stderr, flush=True)

    def _note_abort(self) -> None:
        if self._state == RUNS:
            self._state = ABORTED
        self._beat_now.set()

    # Called by the exit thread

    def _exit_if_stuck(self) -> None:
        idle, num_beats = 0, 0
        while not self._diagnosis_known.wait(self._beat_seconds):
            if self._is_over or self._state == FAILED:
                return
            idle, num_beats = (idle + 1 if self._num_beats == num_beats else 0), self._num_beats
            server = self._channel.store_server() if idle > 2 else None
            is_dead = server is not None and server.process == "gone"
            # Counted in turns of this loop: a process that was stopped itself makes none.
            if is_dead or idle * self._beat_seconds >= self._timeouts.silence:
                self._lose_store()
                idle = 0
        diagnosis = self._diagnosis
        if diagnosis is None or self._state == FAILED or self._is_over:
            return
        self._tell()
        grace = min(self._grace_seconds, _GRACE_AFTER_SILENCE_SECONDS) if diagnosis.by_silence else self._grace_seconds
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and self._state != LEFT:
            if self._is_over:
                return
            time.sleep(self._beat_seconds / 10)
        end_process(self.exit_code)
