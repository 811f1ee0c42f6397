"""Diagnosis: which rank is to blame when ranks cannot go on, from what is known of each. No store, clock or threads.

The causes, in the order in which they are looked for: processes that ended, ranks that left while others wait for them,
ranks that hang.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nemo_lite.backends.pytorch.distributed.rank_table import aligned, grouped
from nemo_lite.backends.pytorch.distributed.rendezvous import Member
from nemo_lite.errors import DistributedError

_NETWORK = (
    "the network between them does not carry it: look at the interfaces (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, "
    "NCCL_DEBUG=INFO) and firewalls"
)
_KILLED = "see the end of its output; a system short of memory kills processes without a word (dmesg)"
# On another machine there are more reasons.
_LOST = "its machine or the network to it failed, or its process was ended: see the end of its output"
_SEE_OUTPUT = "see the end of that process' own output"
# Texts of gloo, its barrier that names ranks, and nccl when a collective took too long.
_TIMED_OUT = re.compile(r"timed out|time-?out|monitoredBarrier", re.IGNORECASE)
_TRANSFER = re.compile(r"rank (\d+) to rank (\d+)")

RUNS, LEFT, FAILED, TOLD = "runs", "left", "failed", "told"


class Status(NamedTuple):
    """What a rank says about itself with each heartbeat.

    Attributes:
        beat: number of the heartbeat.
        step: the training step, ``None`` before the first.
        activity: what it does, in a user's words.
        waits: it may wait for other ranks there.
        seconds: how long it has been doing that.
        num_collectives: how many collectives of all ranks it has begun.
        collective: the name of the one it is in, "" outside.
        network_error: what went wrong in that collective, "" while nothing did.
        state: it runs, has left in order, has failed, or was told that another one failed.
    """

    beat: int = 0
    step: int | None = None
    activity: str = "the start"
    waits: bool = False
    seconds: float = 0.0
    num_collectives: int = 0
    collective: str = ""
    network_error: str = ""
    state: str = RUNS

    @property
    def at_step(self) -> str:
        """``at step 12 in forward of encoder``."""
        return f"{'before the first step' if self.step is None else f'at step {self.step}'} in {self.where}"

    @property
    def where(self) -> str:
        """The collective it is in, or else its activity."""
        if not self.collective:
            return self.activity
        is_transfer = transfer_of(self.collective)
        return self.collective if is_transfer else f"collective {self.num_collectives} ({self.collective})"


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
        return self.status is None or self.status.state == RUNS

    @property
    def stopped(self) -> str:
        """A remark for messages."""
        return " (its process is stopped)" if self.process == "stopped" else ""


class Diagnosis(NamedTuple):
    """Why the run ends.

    Attributes:
        problem: one line that names the ranks to blame.
        remedy: what to look at.
        table: all ranks with their activity and for how long; "" where the reason is plain.
        exit_code: of all ranks; ``None`` for the usual one.
        by_silence: a timeout passed without a heartbeat.
    """

    problem: str
    remedy: str = ""
    table: str = ""
    exit_code: int | None = None
    by_silence: bool = False

    def error(self) -> DistributedError:
        """For the main thread."""
        return DistributedError(self.problem, remedy=self.remedy, exit_code=self.exit_code)

    def report(self) -> str:
        """For stderr."""
        return "\n".join(part for part in (f"{self.problem}; {self.remedy}", self.table) if part)


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


def transfer_of(label: str) -> tuple[int, int] | None:
    """The two ranks that take part in something called ``gather: rank 1 to rank 0``; ``None`` for collectives."""
    found = _TRANSFER.search(label)
    return (int(found[1]), int(found[2])) if found else None


def diagnose_error(member: Member, status: Status, error: BaseException) -> Diagnosis:
    """A rank ends with an error of its own."""
    lines = str(error).splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0]}" if lines[0] else type(error).__name__
    step = "" if status.step is None else f" at step {status.step}"
    problem = f"{member} stopped{step}: {text}{' ...' if len(lines) > 1 else ''}"
    return Diagnosis(problem, _SEE_OUTPUT, exit_code=_exit_code(error))


def diagnose_lost_store(host: Observation | None, address: str, silent_seconds: float) -> Diagnosis:
    """The store does not answer any more.

    Args:
        host: the rank that serves it; ``None`` for the launcher.
        address: of the store.
        silent_seconds: how long it has not answered; 0 if it closed its connections.
    """
    sign = f"at {address} {f'does not answer for {silent_seconds:.0f} s' if silent_seconds else 'was closed'}"
    by_silence = bool(silent_seconds)
    if host is None:
        problem = f"the launcher of the first machine is gone: its store {sign}"
        return Diagnosis(problem, _LOST, by_silence=by_silence)
    if host.process == "gone":
        return _gone(host, "its process has ended")
    return _gone(host, f"the store that it serves {sign}{host.stopped}", by_silence)


def diagnose(observations: Sequence[Observation], timeouts: Timeouts, sees_all: bool) -> Diagnosis | None:
    """Why the ranks cannot go on; ``None`` while they can.

    Args:
        observations: in order of the ranks, this one included.
        timeouts: when to give up.
        sees_all: these are all ranks. If not, only rank 0 decides who hangs, as long as its heartbeat comes.
    """
    found = _find_gone(observations, timeouts) or _find_ended(observations)
    if found is None and (sees_all or _is_stale(observations[0], timeouts)):
        found = _find_hung(observations, timeouts)
    return found


def _find_gone(observations: Sequence[Observation], timeouts: Timeouts) -> Diagnosis | None:
    has_error = any(seen.status and seen.status.network_error for seen in observations)
    allowed = timeouts.silence_after_error if has_error else timeouts.silence
    for seen in (each for each in observations if each.runs):
        if seen.process == "gone":
            return _gone(seen, "its process has ended")
        # A process that is alive but silent is waited for as for one that hangs: something blocks its threads.
        limit = allowed if seen.status else timeouts.collective
        if seen.process != "alive" and seen.silent_seconds >= limit:
            return _gone(seen, f"no sign of life for {seen.silent_seconds:.0f} s{seen.stopped}", by_silence=True)
    return None


def _gone(seen: Observation, sign: str, by_silence: bool = False) -> Diagnosis:
    last = f", last seen {seen.status.at_step}" if seen.status else ""
    remedy = _KILLED if seen.process else _LOST
    return Diagnosis(f"{seen.member} is gone: {sign}{last}", remedy, by_silence=by_silence)


def _find_ended(observations: Sequence[Observation]) -> Diagnosis | None:
    """A rank that left in order before a collective that another one is in."""
    for seen in observations:
        if seen.status is None or seen.status.state != LEFT:
            continue
        for other in observations:
            status = other.status
            if other.runs and status and status.collective and status.num_collectives > seen.status.num_collectives:
                problem = f"{seen.member} has ended while rank {other.member.rank} waits for it {status.at_step}"
                return Diagnosis(problem, _SEE_OUTPUT)
    return None


def _find_hung(observations: Sequence[Observation], timeouts: Timeouts) -> Diagnosis | None:
    running = {seen.member.rank: seen.status for seen in observations if seen.runs and seen.status}
    stale = {seen.member.rank for seen in observations if _is_stale(seen, timeouts)}
    waiting = {rank: status for rank, status in running.items() if status.waits and rank not in stale}
    if not any(_waits_too_long(status, timeouts) for status in waiting.values()):
        return None
    table = as_table(observations)
    late = {rank: status for rank, status in running.items() if rank not in waiting}
    waiter = max(waiting, key=lambda rank: waiting[rank].seconds)
    if not late:
        waiter = max(
            waiting, key=lambda rank: (transfer_of(waiting[rank].collective) is not None, waiting[rank].seconds)
        )
    pair = transfer_of(waiting[waiter].collective)
    if pair:
        other = pair[0] if pair[1] == waiter else pair[1]
        status = running.get(other)
        if status is None or status.collective == running[waiter].collective:
            problem = f"{running[waiter].collective} does not end although both ranks are in it"
            return Diagnosis(problem, _NETWORK, table)
        return _hung(observations, [other], waiter, running[waiter], table)
    if not late:
        return _uneven({rank: status.where for rank, status in waiting.items()}, table)
    fewest = min(status.num_collectives for status in late.values())
    blamed = [rank for rank, status in late.items() if status.num_collectives == fewest]
    return _hung(observations, blamed, waiter, waiting[waiter], table)


def _hung(
    observations: Sequence[Observation], blamed: Sequence[int], waiter: int, waiting: Status, table: str
) -> Diagnosis:
    who = ", ".join(
        f"{seen.member} hangs {seen.status.at_step} for {_seconds(seen.status.seconds + seen.silent_seconds)}"
        for seen in observations
        if seen.member.rank in blamed and seen.status
    )
    them = "it" if len(blamed) == 1 else "them"
    problem = f"{who}, while rank {waiter} waits for {them} in {waiting.where}"
    return Diagnosis(problem, "if it only needed longer there, let the ranks wait longer for each other", table)


def _is_stale(seen: Observation, timeouts: Timeouts) -> bool:
    """Its last heartbeat is too old to say what it does."""
    return seen.silent_seconds >= timeouts.silence


def _waits_too_long(status: Status, timeouts: Timeouts) -> bool:
    return status.seconds >= timeouts.collective or bool(_TIMED_OUT.search(status.network_error))


def _uneven(where: Mapping[int, str], table: str) -> Diagnosis:
    """All wait: for different things, or for the network."""
    common, count = Counter(where.values()).most_common(1)[0]
    if count == len(where):
        return Diagnosis(f"{common} does not end although all ranks are in it", _NETWORK, table)
    who = ", ".join(
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} {'are' if len(ranks) > 1 else 'is'} in {there}"
        for there, ranks in grouped((there, str(rank)) for rank, there in where.items())
    )
    remedy = (
        "every rank has to make the same calls in the same order: look for one that depends on the rank or its data"
    )
    return Diagnosis(f"uneven collectives: {who}", remedy, table)


def as_table(observations: Sequence[Observation]) -> str:
    """All ranks: host, process, step, activity, for how long."""
    rows = [("rank", "host", "pid", "step", "where", "for")]
    for seen in observations:
        member, status = seen.member, seen.status or Status(activity="unknown")
        step = "-" if status.step is None else str(status.step)
        where = status.where if status.state == RUNS else f"ended ({status.state})"
        since = _seconds(status.seconds + seen.silent_seconds)
        rows.append((str(member.rank), member.host, str(member.pid), step, where, since))
    return "\n".join(f"  {line}" for line in aligned(rows))


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _exit_code(error: BaseException) -> int | None:
    if isinstance(error, KeyboardInterrupt):
        return 130  # what a shell gives for SIGINT
    code = getattr(error, "code" if isinstance(error, SystemExit) else "exit_code", 1)
    return code if isinstance(code, int) and code else 1
