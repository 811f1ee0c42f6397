"""Diagnosis: which rank is to blame when ranks cannot go on, from what is known of each. No store, clock or threads.

The causes, in the order in which they are looked for: processes that ended, ranks that left while others wait for them,
ranks that hang.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nemo_lite.backends.pytorch.distributed.rank_table import aligned, grouped
from nemo_lite.backends.pytorch.distributed.rendezvous import Member
from nemo_lite.errors import DistributedError
from nemo_lite.interruption import Interrupted

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
