"""Verdict: who is to blame when ranks cannot go on, judged from what is known of each. No store, no clock, no thread.

The order of suspicion: processes that are gone, ranks that ended while others wait for them, ranks that hang.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from nemo_lite.backends.pytorch.distributed.rendezvous import Member
from nemo_lite.errors import DistributedError

_NETWORK = (
    "the network between them does not carry it: look at the interfaces (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, "
    "NCCL_DEBUG=INFO) and firewalls"
)
_KILLED = "see the end of its output; a system short of memory kills processes without a word (dmesg)"
# On another machine there are more reasons.
_LOST = "its machine or the network to it failed, or its process was ended: see the end of its output"
# What gloo, its barrier that names ranks, and nccl say when a collective took too long.
_TIMED_OUT = re.compile(r"timed out|time-?out|monitoredBarrier", re.IGNORECASE)

_TRANSFER = re.compile(r"rank (\d+) to rank (\d+)")

RUNS, LEFT, FAILED, TOLD = "runs", "left", "failed", "told"


@dataclass(frozen=True)
class Status:
    """What a rank says of itself, with each beat.

    Attributes:
        count: of its beats.
        step: the training step it makes, ``None`` before the first.
        where: in the words of a user.
        waits: others may be waited for there.
        seconds: for how long it has been there.
        exchange: how many collectives of all ranks it has begun.
        label: of the collective it is in, "" outside.
        trouble: what went wrong in that collective, "" while nothing did.
        state: it runs, has left in order, has failed, or was told that another one failed.
    """

    count: int = 0
    step: int | None = None
    where: str = "the start"
    waits: bool = False
    seconds: float = 0.0
    exchange: int = 0
    label: str = ""
    trouble: str = ""
    state: str = RUNS

    @property
    def place(self) -> str:
        """``at step 12 in forward of encoder``."""
        return f"{'before the first step' if self.step is None else f'at step {self.step}'} in {self.where_exactly}"

    @property
    def where_exactly(self) -> str:
        """The collective it is in, or else where it is."""
        if not self.label:
            return self.where
        return self.label if transfer_of(self.label) else f"collective {self.exchange} ({self.label})"

    def encoded(self) -> str:
        """As it lies in the store."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Sighting:
    """What one rank knows of another.

    Attributes:
        member: which one.
        status: the last that was seen of it; ``None``: nothing yet.
        silent_seconds: since then.
        process: ``gone``, ``stopped`` or ``alive`` if it runs on this machine, else "".
    """

    member: Member
    status: Status | None
    silent_seconds: float = 0.0
    process: str = ""

    @property
    def runs(self) -> bool:
        """It has not ended, as far as it said."""
        return self.status is None or self.status.state == RUNS


@dataclass(frozen=True)
class Verdict:
    """Why the run ends.

    Attributes:
        problem: one line that names who is to blame.
        ranks: they.
        remedy: what to look at.
        table: all ranks, where they are and for how long; "" where the reason is plain.
        exit_code: of all ranks; ``None`` for the usual one.
        by_silence: found by waiting for a sign of life.
    """

    problem: str
    ranks: tuple[int, ...] = ()
    remedy: str = ""
    table: str = ""
    exit_code: int | None = None
    by_silence: bool = False

    def encoded(self) -> str:
        """As it lies in the store."""
        return json.dumps(asdict(self))

    def error(self) -> DistributedError:
        """For the main thread."""
        return DistributedError(self.problem, remedy=self.remedy, exit_code=self.exit_code)

    def report(self) -> str:
        """For stderr."""
        return "\n".join(part for part in (f"{self.problem}; {self.remedy}", self.table) if part)


@dataclass(frozen=True)
class Limits:
    """How long what is borne.

    Attributes:
        timeout_seconds: waiting in a collective.
        silence_seconds: no sign of life.
        troubled_silence_seconds: the same, once a connection has broken somewhere.
    """

    timeout_seconds: float
    silence_seconds: float
    troubled_silence_seconds: float


def transfer_of(label: str) -> tuple[int, int] | None:
    """The two ranks that alone take part in something called ``gather: rank 1 to rank 0``; ``None`` for collectives."""
    found = _TRANSFER.search(label)
    return (int(found[1]), int(found[2])) if found else None


def status_of(encoded: bytes) -> Status:
    """What :meth:`Status.encoded` gave."""
    return Status(**json.loads(encoded))


def verdict_of(encoded: bytes) -> Verdict:
    """What :meth:`Verdict.encoded` gave."""
    fields = json.loads(encoded)
    return Verdict(**{**fields, "ranks": tuple(fields["ranks"])})


def of_failure(member: Member, status: Status, error: BaseException) -> Verdict:
    """A rank that ends with an error of its own."""
    lines = str(error).splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0]}" if lines[0] else type(error).__name__
    step = "" if status.step is None else f" at step {status.step}"
    return Verdict(
        f"{member} stopped{step}: {text}{' ...' if len(lines) > 1 else ''}",
        (member.rank,),
        "see the end of that process' own output",
        exit_code=_exit_code(error),
    )


def of_lost_store(host: Sighting | None, address: str, silent_seconds: float) -> Verdict:
    """The store does not answer any more.

    Args:
        host: the rank that serves it; ``None`` for the launcher.
        address: where it was.
        silent_seconds: for how long it has been silent; 0 if its connections were closed.
    """
    sign = f"at {address} {f'does not answer for {silent_seconds:.0f} s' if silent_seconds else 'was closed'}"
    if host is None:
        problem = f"the launcher of the first machine is gone: its store {sign}"
        return Verdict(problem, (), _LOST, by_silence=bool(silent_seconds))
    if host.process == "gone":
        return _of_gone(host, "its process has ended")
    stopped = " (its process is stopped)" if host.process == "stopped" else ""
    return replace(_of_gone(host, f"the store that it serves {sign}{stopped}"), by_silence=bool(silent_seconds))


def judge(sightings: Sequence[Sighting], limits: Limits, sees_all: bool) -> Verdict | None:
    """Whether the ranks that are seen can go on; ``None`` while nothing speaks against it.

    Args:
        sightings: in order of the ranks, this one included.
        limits: what is borne.
        sees_all: these are all ranks. If not, the first rank judges who hangs, as long as it shows signs of life.
    """
    verdict = _gone(sightings, limits) or _ended(sightings)
    if verdict is None and (sees_all or _is_stale(sightings[0], limits)):
        verdict = _hanging(sightings, limits)
    return verdict


def _gone(sightings: Sequence[Sighting], limits: Limits) -> Verdict | None:
    is_troubled = any(s.status and s.status.trouble for s in sightings)
    bearable = limits.troubled_silence_seconds if is_troubled else limits.silence_seconds
    for seen in (s for s in sightings if s.runs):
        if seen.process == "gone":
            return _of_gone(seen, "its process has ended")
        if _is_silent(seen, bearable, limits):
            stopped = " (its process is stopped)" if seen.process == "stopped" else ""
            gone = _of_gone(seen, f"no sign of life for {seen.silent_seconds:.0f} s{stopped}")
            return replace(gone, by_silence=True)
    return None


def _of_gone(seen: Sighting, sign: str) -> Verdict:
    last = f", last seen {seen.status.place}" if seen.status else ""
    remedy = _KILLED if seen.process else _LOST
    return Verdict(f"{seen.member} is gone: {sign}{last}", (seen.member.rank,), remedy)


def _is_silent(seen: Sighting, bearable: float, limits: Limits) -> bool:
    if seen.process == "alive":
        return False  # something keeps its threads from running; it is waited for as for one that hangs
    if seen.status is None:
        return seen.silent_seconds >= limits.timeout_seconds
    return seen.silent_seconds >= bearable


def _ended(sightings: Sequence[Sighting]) -> Verdict | None:
    """Ranks that left in order before a collective that another one is in."""
    waiting = [s for s in sightings if s.runs and s.status and s.status.label]
    for seen in sightings:
        status = seen.status
        if status is None or status.state != LEFT:
            continue
        for other in waiting:
            if other.status and other.status.exchange > status.exchange:
                return Verdict(
                    f"{seen.member} has ended while rank {other.member.rank} waits for it {other.status.place}",
                    (seen.member.rank,),
                    "see the end of that process' own output",
                )
    return None


def _hanging(sightings: Sequence[Sighting], limits: Limits) -> Verdict | None:
    running = {s.member.rank: s.status for s in sightings if s.runs and s.status}
    stale = {s.member.rank for s in sightings if _is_stale(s, limits)}
    waiting = {rank: status for rank, status in running.items() if status.waits and rank not in stale}
    if not any(_waits_too_long(status, limits) for status in waiting.values()):
        return None
    table = as_table(sightings)
    late = {rank: status for rank, status in running.items() if rank not in waiting}
    waiter = max(waiting, key=lambda rank: waiting[rank].seconds)
    if not late:
        waiter = max(waiting, key=lambda rank: (transfer_of(waiting[rank].label) is not None, waiting[rank].seconds))
    pair = transfer_of(waiting[waiter].label)
    if pair:
        return _transfer(sightings, running, waiter, pair, table)
    if not late:
        return _uneven({rank: status.where_exactly for rank, status in waiting.items()}, table)
    fewest = min(status.exchange for status in late.values())
    blamed = [rank for rank, status in late.items() if status.exchange == fewest]
    return _of_hung(sightings, blamed, waiter, waiting[waiter], table)


def _transfer(
    sightings: Sequence[Sighting], running: Mapping[int, Status], waiter: int, pair: tuple[int, int], table: str
) -> Verdict:
    """A rank waits for one other rank only."""
    other = pair[0] if pair[1] == waiter else pair[1]
    status = running.get(other)
    if status is None or status.label == running[waiter].label:
        return Verdict(f"{running[waiter].label} does not end although both ranks are in it", (), _NETWORK, table)
    return _of_hung(sightings, [other], waiter, running[waiter], table)


def _of_hung(sightings: Sequence[Sighting], blamed: Sequence[int], waiter: int, waiting: Status, table: str) -> Verdict:
    who = ", ".join(
        f"{seen.member} hangs {seen.status.place} for {_seconds(seen.status.seconds + seen.silent_seconds)}"
        for seen in sightings
        if seen.member.rank in blamed and seen.status
    )
    them = "it" if len(blamed) == 1 else "them"
    problem = f"{who}, while rank {waiter} waits for {them} in {waiting.where_exactly}"
    remedy = "if it only needed longer there, let the ranks wait longer for each other"
    return Verdict(problem, tuple(blamed), remedy, table)


def _is_stale(seen: Sighting, limits: Limits) -> bool:
    """Its last words are too old to say where it is."""
    return seen.silent_seconds >= limits.silence_seconds


def _waits_too_long(status: Status, limits: Limits) -> bool:
    return status.seconds >= limits.timeout_seconds or bool(_TIMED_OUT.search(status.trouble))


def _uneven(places: Mapping[int, str], table: str) -> Verdict:
    """All wait: for different things, or for the network."""
    common, count = Counter(places.values()).most_common(1)[0]
    if count == len(places):
        return Verdict(f"{common} does not end although all ranks are in it", (), _NETWORK, table)
    odd = tuple(rank for rank, place in places.items() if place != common)
    by_place = {place: [str(r) for r, p in places.items() if p == place] for place in dict.fromkeys(places.values())}
    who = ", ".join(
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} {'are' if len(ranks) > 1 else 'is'} in {place}"
        for place, ranks in by_place.items()
    )
    remedy = (
        "every rank has to make the same calls in the same order: look for one that depends on the rank or its data"
    )
    return Verdict(f"uneven collectives: {who}", odd, remedy, table)


def as_table(sightings: Sequence[Sighting]) -> str:
    """All ranks: host, process, step, where, for how long."""
    rows = [("rank", "host", "pid", "step", "where", "for")]
    for seen in sightings:
        member, status = seen.member, seen.status or Status()
        step = "-" if status.step is None else str(status.step)
        where = status.where_exactly if status.state == RUNS else f"ended ({status.state})"
        where = where if seen.status else "unknown"
        since = _seconds(status.seconds + seen.silent_seconds)
        rows.append((str(member.rank), member.host, str(member.pid), step, where, since))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"  {line.rstrip()}" for line in lines)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _exit_code(error: BaseException) -> int | None:
    if isinstance(error, KeyboardInterrupt):
        return 130  # what a shell gives for SIGINT
    code = getattr(error, "code" if isinstance(error, SystemExit) else "exit_code", 1)
    return code if isinstance(code, int) and code else 1
