"""Why a run of several ranks ends: heartbeats, and one reason that all ranks know, print and exit with.

How it works: events, a state, a report. Twice a second each rank writes a :class:`Status` to the store of the ranks,
reads those of the others (rank 0 of all, the others that of rank 0) and looks at the processes of its own machine. What
it has observed is a :class:`Round`. :func:`diagnose` gives the reason why the run cannot go on, by the first of RULES
that applies, and which rank is to blame. The first :class:`Diagnosis` in the store counts for all ranks, which print it
and end.

States of a rank, as its heartbeats tell them::

    RUNS --the script is over--> LEFT
      |---an error of its own--> FAILED   its error becomes the diagnosis, unless there is one
      |---knows a diagnosis----> TOLD     it ends because of another rank
      '---C++ ends the process-> ABORTED  kept from ending until there is a diagnosis, then as RUNS

The events, by the rule that finds each, in the order of RULES; who notices; what is printed (in full by one rank of
each machine, in a line by the others); the exit code. ``silence`` is ``--dist_silence_timeout``, ``collective`` is
``--dist_timeout``:

=============  ====================================  ==================================  ===============================
rule           event                                 noticed by, after                   printed; code
=============  ====================================  ==================================  ===============================
own_error      an error on one rank                  itself: it stores it                its own error; elsewhere: rank
                                                                                         1 ... stopped at step 11:
                                                                                         DataError: ...; that error's
own_error      a stop signal to one rank             itself, likewise                    rank 1 ... was stopped by
                                                                                         SIGTERM; 75
launcher_gone  a torchrun is killed                  its ranks, at the next beat         the launcher of rank 1 ... is
                                                                                         gone; 3
store_lost     the store of a launcher ends          all, at the next beat               the launcher of the first
                                                                                         machine is gone; 3
store_lost     the store does not answer             all, after ``silence``              rank 0 ... cannot be reached:
                                                                                         the store ... has not answered
                                                                                         for 6 s; 3
rank_gone      a process ends without a word         ranks of its machine, at the next   rank 1 ... is gone: its process
               (killed, out of memory)               beat; elsewhere after ``silence``,  has ended, last seen at step 11
                                                     or 2.4 s once a connection broke    in backward; 3
rank_gone      rank 0 ends, which serves the store   the others: its store is closed     rank 0 ... is gone; 3
                                                     (or store_lost); or it does not
                                                     answer for 3 beats, and its process
                                                     is gone
rank_gone      a machine or its link fails           the others, after ``silence``       rank 1 ... is gone: no sign of
                                                                                         life for 6 s; 3
rank_gone      a process is stopped                  the others, after ``silence``       rank 1 ... is stopped (SIGSTOP,
                                                                                         ...); 3
left_early     a rank left in order, another still   the rank that waits for it, at      rank 1 ... has ended while rank
               waits for it                          once                                0 waits for it; 3 (0 on the
                                                                                         rank that left)
aborted        C++ ends a process                    itself, by ``before_abort``         mismatched collectives or: a
                                                                                         C++ error stopped rank 1 ...; 3
hung           a rank hangs                          rank 0, when one that waits for it  rank 1 ... hangs at step 11 in
                                                     has waited for ``collective``; the  forward of encoder, while rank
                                                     others if rank 0 is silent itself   0 waits for it in backward, and
                                                                                         a table of all ranks; 3
hung           ranks make different calls            the same                            mismatched collectives: rank 0
                                                                                         is in ...; 3
hung           the network loses data                the same                            ... does not end although all
                                                                                         ranks are in it; 3
no rule        this rank itself stalls (a suspended  itself                              nothing: the others were not
               machine) for more than 2 s                                                silent for that long
no rule        an exchange fails                     the rank; it waits 5 s for the      the cause, if one of the above
                                                     cause                               is found; else an exchange
                                                                                         between the ranks failed ...; 3
=============  ====================================  ==================================  ===============================

What ranks that have not met yet are told is in ``rendezvous``; where a rank is, and how it prints and ends, in
``process``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist

from nemo_lite.backends.pytorch.distributed.contract import aligned, grouped, named_ranks
from nemo_lite.backends.pytorch.distributed.failures import (
    Origin,
    exit_code_of,
    one_line,
    origin_of,
    remedy_of,
    summary,
)
from nemo_lite.backends.pytorch.distributed.process import (
    Activity,
    ActivityReader,
    before_abort,
    end_process,
    never_abort,
    take_write,
)
from nemo_lite.backends.pytorch.distributed.rendezvous import Meeting, RankIdentity
from nemo_lite.base.errors import DistributedError
from nemo_lite.base.interruption import Interrupted
from nemo_lite.base.launch import ProcessInfo

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
# A process that ends closes its connections; so once one has broken, this is enough, however long links may be down.
_SILENCE_AFTER_ERROR_SECONDS = 2.4

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
        network_failed: an exchange failed on it, for a reason that it does not know.
        state: see the head of this file.
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
    network_failed: bool = False
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

    member: RankIdentity
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
        blamed: the ranks to blame.
    """

    problem: str
    remedy: str = ""
    table: str = ""
    exit_code: int | None = None
    blamed: Sequence[int] = ()

    def error(self) -> DistributedError:
        """For the main thread."""
        return DistributedError(self.problem, remedy=self.remedy, exit_code=self.exit_code)

    def report(self) -> str:
        """For stderr."""
        return "\n".join(part for part in (f"{self.problem}; {self.remedy}", self.table) if part)

    def short_report(self) -> str:
        """For stderr of a rank beside which another one prints the report."""
        why = f"because of {named_ranks(self.blamed)}" if self.blamed else "with all ranks"
        return f"ends {why}; another rank of this machine prints the report"


class Round(NamedTuple):
    """The events that a rank has observed in one round: all that a diagnosis follows from.

    Attributes:
        ranks: in order of the ranks, this one included.
        me: this rank.
        collective: seconds that a rank may wait in a collective.
        silence: seconds that it may be without a heartbeat.
        sees_all: true on rank 0. Other ranks only know rank 0's heartbeats.
        error: this rank ends with it.
        step: at which step that was.
        launcher: the torchrun that started this rank, where it has ended.
        store: the address of the store, where it does not answer.
        store_silence: seconds that it has not answered; 0 if it closed its connections.
        rank_serves_store: rank 0 does, and not a launcher.
    """

    ranks: Sequence[Observation]
    me: RankIdentity
    collective: float
    silence: float
    sees_all: bool
    error: BaseException | None = None
    step: int | None = None
    launcher: int | None = None
    store: str = ""
    store_silence: float = 0.0
    rank_serves_store: bool = True

    @property
    def running(self) -> dict[int, Status]:
        """The last heartbeats of the ranks that have not said that they ended."""
        return {rank.member.rank: rank.status for rank in self.ranks if rank.runs and rank.status}

    @property
    def judges_hangs(self) -> bool:
        """This rank says who hangs: rank 0, and the others when rank 0 is silent."""
        return self.sees_all or self.ranks[0].silent_seconds >= self.silence


def diagnose(seen: Round) -> Diagnosis | None:
    """Why the ranks cannot go on, by the first of RULES that applies; ``None`` while they can."""
    return next(filter(None, (rule(seen) for rule in RULES)), None)


def own_error(seen: Round) -> Diagnosis | None:
    """This rank ends with an error of its own, or because of a signal."""
    if seen.error is None:
        return None
    at_step = "" if seen.step is None else f" at step {seen.step}"
    if isinstance(seen.error, Interrupted):
        problem, exit_code = f"{seen.me} was {seen.error}{at_step}", seen.error.exit_code
    else:
        problem, exit_code = f"{seen.me} stopped{at_step}: {summary(seen.error)}", exit_code_of(seen.error)
    return Diagnosis(problem, _SEE_OUTPUT, exit_code=exit_code, blamed=[seen.me.rank])


def launcher_gone(seen: Round) -> Diagnosis | None:
    """The torchrun that started this rank has ended before it."""
    if seen.launcher is None:
        return None
    sign = f"is gone: process {seen.launcher} was killed or has ended; nothing would end its ranks"
    remedy = "start this machine's command again: the run goes on from its newest checkpoint"
    return Diagnosis(f"the launcher of {seen.me} {sign}", remedy)


def store_lost(seen: Round) -> Diagnosis | None:
    """The store does not answer any more, and the process that serves it is not known to have ended."""
    if not seen.store or (seen.rank_serves_store and seen.ranks[0].process == "gone"):
        return None
    verb = "cannot be reached" if seen.store_silence else "is gone"
    sign = f"has not answered for {seen.store_silence:.0f} s" if seen.store_silence else "was closed"
    if seen.rank_serves_store:
        return _gone(seen.ranks[0], f"{verb}: the store that it serves at {seen.store} {sign}")
    return Diagnosis(f"the launcher of the first machine {verb}: its store at {seen.store} {sign}", _LOST)


def rank_gone(seen: Round) -> Diagnosis | None:
    """The first running rank whose process has ended, or that is silent for too long and is not known to be alive."""
    is_broken = any(rank.status and rank.status.network_failed for rank in seen.ranks)
    allowed = min(seen.silence / 2.5, _SILENCE_AFTER_ERROR_SECONDS) if is_broken else seen.silence
    for rank in seen.ranks:
        # Before its first heartbeat a rank may be busy, as in a slow start of its GPU: it gets as long as a collective.
        limit = allowed if rank.status else seen.collective
        if rank.runs and rank.process == "gone":
            return _gone(rank, "is gone: its process has ended")
        # A process that is alive but silent is waited for as for one that hangs: something blocks its threads.
        if rank.runs and rank.process != "alive" and rank.silent_seconds >= limit:
            return _gone(rank, f"is gone: no sign of life for {rank.silent_seconds:.0f} s")
    return None


def _gone(rank: Observation, sign: str) -> Diagnosis:
    last = f", last seen {rank.status.at_step}" if rank.status else ""
    problem, remedy = f"{rank.member} {sign}{last}", _ENDED if rank.process else _LOST
    if rank.process == "stopped":
        problem = f"{rank.member} is stopped (SIGSTOP, Ctrl-Z or a debugger){last}"
        remedy = f"continue it with kill -CONT {rank.member.pid}: it ends then, as the others do; start the run again"
    return Diagnosis(problem, remedy, blamed=[rank.member.rank])


def left_early(seen: Round) -> Diagnosis | None:
    """A rank left in order before a collective that another one is in."""
    ended = [(rank.member, rank.status) for rank in seen.ranks if rank.status and rank.status.state == LEFT]
    for member, last in ended:
        for waiter, status in seen.running.items():
            if status.collective and status.num_collectives > last.num_collectives:
                problem = f"{member} has ended while rank {waiter} waits for it {status.at_step}"
                return Diagnosis(problem, _SEE_OUTPUT, blamed=[member.rank])
    return None


def aborted(seen: Round) -> Diagnosis | None:
    """C++ would have ended a rank: because the ranks sent each other different things, or for an error of its own."""
    for rank, status in seen.running.items():
        if not seen.judges_hangs or status.state != ABORTED or status.seconds < _SETTLED_SECONDS:
            continue
        places = grouped((other.at_step, waiter) for waiter, other in seen.running.items() if other.waits)
        if status.waits and len(places) > 1:
            return _mismatched(places, seen)
        problem = f"a C++ error stopped {seen.ranks[rank].member} {status.at_step}"
        remedy = f"rank {rank} printed it: see what stands after its line with `terminate called`"
        return Diagnosis(problem, remedy, as_table(seen.ranks), blamed=[rank])
    return None


def hung(seen: Round) -> Diagnosis | None:
    """A rank that waits has waited for ``collective``: for whom?

    A rank waits in a labelled collective and in BACKWARD; and wherever it is, once it has sent more gradients than
    another one: nccl exchanges them in the background, and any later call may wait for the GPU. In a transfer between
    two ranks, its partner is blamed. Otherwise those ranks are blamed that run, do not wait, and have begun the fewest
    exchanges. If all ranks wait, their collectives do not match, or the network fails.

    Limit: a rank that computes without end in its own backward counts as waiting, and is never blamed.
    """
    running = seen.running
    # The last heartbeat of a silent rank is too old to say what it does.
    silent = {rank.member.rank for rank in seen.ranks if rank.silent_seconds >= seen.silence}
    fewest_sent = min((status.num_sent for status in running.values()), default=0)
    waiting = {
        rank: status
        for rank, status in running.items()
        if (status.waits or status.num_sent > fewest_sent) and rank not in silent
    }
    overdue = {rank: status for rank, status in waiting.items() if status.seconds >= seen.collective}
    if not overdue or not seen.judges_hangs:
        return None
    # A transfer first: two ranks that are stuck in one keep all others waiting.
    waiter = max(overdue, key=lambda rank: (overdue[rank].partner is not None, overdue[rank].seconds))
    status = overdue[waiter]
    if status.partner is None:
        progress = {
            rank: (other.num_sent, other.num_collectives) for rank, other in running.items() if rank not in waiting
        }
        late = [rank for rank, done in progress.items() if done == min(progress.values())]
    else:
        partner = running.get(status.partner)
        late = [status.partner] if partner and partner.collective != status.collective else []
    if late:
        return _late(late, waiter, status, seen)
    if status.partner is not None:
        problem = f"{status.collective} does not end although both ranks are in it"
        return Diagnosis(problem, _NETWORK, as_table(seen.ranks))
    places = grouped((f"in {other.where}", rank) for rank, other in waiting.items())
    if len(places) > 1:
        return _mismatched(places, seen)
    # The backward pass is not a collective alone: it computes, too.
    computes = "" if status.collective else "either one of them computes there without end, or "
    problem = f"{status.where} does not end although all ranks are in it"
    return Diagnosis(problem, computes + _NETWORK, as_table(seen.ranks))


def _late(late: Sequence[int], waiter: int, waiting: Status, seen: Round) -> Diagnosis:
    statuses = [(rank.member, rank.status) for rank in seen.ranks if rank.member.rank in late and rank.status]
    hangs = ", ".join(f"{member} hangs {status.at_step}" for member, status in statuses)
    it, it_was = ("it", "it was") if len(late) == 1 else ("them", "they were")
    place = waiting.where
    if not waiting.waits:
        place = f"the exchange of gradients of step {waiting.sent_step}, in the background (itself {waiting.at_step}),"
    # The seconds of the rank that waits: those of the other one start again with each line that it reaches.
    problem = f"{hangs}, while rank {waiter} waits for {it} in {place} for {_seconds(waiting.seconds)}"
    remedy = f"see the output of {named_ranks(late)}; if {it_was} only slow there, raise --dist_timeout (dist_timeout=)"
    return Diagnosis(problem, remedy, as_table(seen.ranks), blamed=late)


def _mismatched(places: Sequence[tuple[str, Sequence[int]]], seen: Round) -> Diagnosis:
    ranks_at = ", ".join(f"{named_ranks(ranks)} {'are' if len(ranks) > 1 else 'is'} {place}" for place, ranks in places)
    remedy = (
        "every rank has to make the same calls in the same order: look for one that depends on the rank or its data"
    )
    return Diagnosis(f"mismatched collectives: {ranks_at}", remedy, as_table(seen.ranks))


RULES = (own_error, launcher_gone, store_lost, rank_gone, left_early, aborted, hung)
"""The first that applies counts. The head of this file has a table of them."""


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


# torchrun sets it for its workers, and nobody sets it by hand.
_OF_WORKERS = "TORCHELASTIC_RESTART_COUNT"
_INIT = 1


def state_of_process(pid: int) -> str:
    """``gone``, ``stopped`` or ``alive``; "" where there is no ``/proc``."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone" if Path("/proc/self/stat").exists() else ""
    return {"Z": "gone", "X": "gone", "T": "stopped", "t": "stopped"}.get(state, "alive")


def launcher_of_this_process(environ: Mapping[str, str] = os.environ, proc: Path = Path("/proc")) -> int | None:
    """The process id of the torchrun that started this process, also through a shell; None where there is none.

    Only torchrun (also as ``torch.distributed.launch``) is looked for: its ranks have no use without it, as it alone
    ends and restarts them. A process that ``nohup``, ``setsid``, Slurm or MPI started may outlive its parent; Slurm and
    MPI end their processes themselves. In a container whose first process is torchrun there is nothing to watch: the
    system ends all with that process.
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


WRITES = "writes"
"""The key under which ranks count their writes."""

# If this thread itself stalled for longer, do not count the gap as the others' silence.
_OWN_STALL_SECONDS = 2.0


class HeartbeatChannel:
    """This rank's heartbeats in the store, and its observations of the others. Used by the heartbeat thread.

    Rank 0 reads all ranks' heartbeats, the others read rank 0's.
    """

    def __init__(self, meeting: Meeting, info: ProcessInfo) -> None:
        self._store = meeting.connect()
        self._members, self._me = meeting.members, meeting.members[info.rank]
        self._watched = meeting.members if info.rank == 0 else meeting.members[:1]
        self._last_read = now = time.monotonic()
        self._heartbeats: dict[int, tuple[Status | None, float]] = {
            member.rank: (None, now) for member in self._members
        }

    def publish(self, status: Status) -> None:
        """Write this rank's status, and let ranks that wait for a checkpoint know that more of it has been written."""
        self._store.set(f"beat/{self._me.rank}", json.dumps(status))
        if take_write():
            self._store.add(WRITES, 1)

    def diagnosis(self) -> Diagnosis | None:
        """The stored diagnosis, or None."""
        return Diagnosis(*json.loads(self._store.get("diagnosis"))) if self._store.check(["diagnosis"]) else None

    def store(self, diagnosis: Diagnosis) -> Diagnosis:
        """Store a diagnosis, if there is none; the stored one."""
        return Diagnosis(*json.loads(self._store.compare_set("diagnosis", "", json.dumps(diagnosis))))

    def agree_on(self, diagnosis: Diagnosis) -> tuple[Diagnosis, bool]:
        """The stored diagnosis, which is this one if there is none yet; and whether this rank prints it in full.

        Of each machine the first rank that asks does. Where the store is lost, this diagnosis counts here.
        """
        me = str(self._me.rank)
        try:
            diagnosis = self.store(diagnosis)
            first = self._store.compare_set(f"report/{self._me.process_space}", "", me).decode()
        except dist.DistError:
            return diagnosis, self.is_lowest_but(diagnosis.blamed)
        return diagnosis, first == me

    def is_lowest_but(self, ranks: Sequence[int]) -> bool:
        """Whether this is the lowest rank of its machine, those ranks aside: it prints where the store is lost."""
        here = {member.rank for member in self._members if member.process_space == self._me.process_space}
        return self._me.rank == min(here - set(ranks) or here)

    def observe(self, own_status: Status) -> list[Observation]:
        """All ranks by their heartbeats, and by their processes; those that are not watched only by their processes.

        Of a rank whose process is gone the last heartbeat counts.
        """
        # Processes first: one that left in order says so before it ends.
        processes = [self.process_of(member) for member in self._members]
        now = time.monotonic()
        if now - self._last_read > _OWN_STALL_SECONDS:
            stall = now - self._last_read
            self._heartbeats = {rank: (status, since + stall) for rank, (status, since) in self._heartbeats.items()}
        self._last_read = now
        gone = [member for member, process in zip(self._members, processes, strict=True) if process == "gone"]
        ranks = dict.fromkeys(member.rank for member in (*self._watched, *gone) if member != self._me)
        # multi_get blocks on a missing key: whether a rank has written its first heartbeat is checked before.
        ready = [rank for rank in ranks if self._heartbeats[rank][0] or self._store.check([f"beat/{rank}"])]
        texts = self._store.multi_get([f"beat/{rank}" for rank in ready]) if ready else []
        now = time.monotonic()
        for rank, text in zip(ready, texts, strict=True):
            status, before = Status(*json.loads(text)), self._heartbeats[rank][0]
            if before is None or status.beat != before.beat:
                self._heartbeats[rank] = (status, now)
        self._heartbeats[self._me.rank] = (own_status, now)
        observations = []
        for member, process in zip(self._members, processes, strict=True):
            last, since = self._heartbeats[member.rank]
            observations.append(Observation(member, last, now - since if member in self._watched else 0.0, process))
        return observations

    def process_of(self, member: RankIdentity) -> str:
        """The state of another rank's process, "" where it is not on this machine."""
        is_here = member.process_space == self._me.process_space and member != self._me
        return state_of_process(member.pid) if is_here else ""


# From the diagnosis until the process is ended: main threads clean up in it.
_GRACE_SECONDS = 3.0
# How long a main thread whose collective failed waits for the cause.
_CAUSE_SECONDS = 5.0


class HealthMonitor:
    """Heartbeats between the ranks of a run. Made and used by the thread that trains.

    Beside the thread that trains, a rank has the heartbeat thread, which observes and decides, and the exit thread: a
    call of the heartbeat thread to a store whose machine is cut off may block for ever, as the main thread may in a
    collective, and the process must end all the same.

    Args:
        meeting: the ranks and their store.
        info: who this process is.
        timeout_seconds: how long a rank may keep another waiting in a collective.
        beat_seconds: between two heartbeats.
        silence_seconds: a rank on another machine without a heartbeat for so long is gone, and so is a store that does
            not answer.
        grace_seconds: from the diagnosis until the process is ended.

    Attributes:
        step: the training step; set by whoever makes it.
        is_asynchronous: gradients are exchanged while the main thread goes on, as nccl does; set by whoever joins the
            group.
    """

    def __init__(
        self,
        meeting: Meeting,
        info: ProcessInfo,
        timeout_seconds: float,
        *,
        beat_seconds: float = 0.5,
        silence_seconds: float = 6.0,
        grace_seconds: float = _GRACE_SECONDS,
    ) -> None:
        self.step: int | None = None
        self.is_asynchronous = False
        self._beat_seconds, self._grace_seconds = beat_seconds, grace_seconds
        self._channel = HeartbeatChannel(meeting, info)
        self._me, self._is_first = meeting.members[info.rank], info.rank == 0
        self._launcher = launcher_of_this_process()
        self._store_address = f"{info.master[0]}:{info.master[1]}"
        # The heartbeat thread makes it anew with each beat; the others read it.
        ranks = [Observation(member, None) for member in meeting.members]
        rank_serves_store = not info.agent_hosts_store
        self._round = Round(
            ranks, self._me, timeout_seconds, silence_seconds, self._is_first, rank_serves_store=rank_serves_store
        )
        self._reader = ActivityReader(threading.get_ident())
        self._error_before = getattr(sys, "last_value", None)
        # The main thread sets these, the heartbeat thread sends them, the exit thread reads the state. Number of
        # collectives begun, and label and partner of those that it is in: one attribute, so that they change together.
        self._collectives: tuple[int, tuple[tuple[str, int | None], ...]] = (0, ())
        self._state, self._network_failed = RUNS, False
        self._sent: tuple[int, int | None] = (0, None)
        self._failed_in: Activity | None = None
        self._own_error: Diagnosis | None = None
        self._waits_anew = False  # the heartbeat thread takes it back
        # The main thread sets these, the other two read them.
        self._is_over, self._beat_now = threading.Event(), threading.Event()
        # The heartbeat thread sets these: its last status and since when it is the same; the state that it has sent
        # last; a number from which the exit thread sees that the store still answers.
        self._status, self._status_since = Status(), time.monotonic()
        self._sent_state, self._num_beats = RUNS, 0
        # The heartbeat thread or the exit thread sets these, once and in this order; all three read them.
        self._prints_all = False
        self._diagnosis: Diagnosis | None = None
        self._diagnosis_known = threading.Event()
        # Whoever prints, or has an error of its own to print, says so.
        self._telling, self._has_told = threading.Lock(), False
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
        number, labels = self._collectives
        if labels:
            where = Status(num_collectives=number, collective=labels[-1][0], partner=labels[-1][1]).where
        else:
            # The main thread is no longer there; the others must still see that this rank waits.
            where = self._reader.of(error).text
            self._failed_in = Activity(where, waits=True)
        if self._state in RUNNING and not self._is_over.is_set():
            self._network_failed = True
            self._beat_now.set()
            self._diagnosis_known.wait(_CAUSE_SECONDS)
        if self._diagnosis is not None:
            return self._error_of(self._diagnosis)
        if origin is Origin.BACKWARD:
            return error
        step, text = "" if self.step is None else f" of step {self.step}", one_line(error)
        problem = f"an exchange between the ranks failed on {self._me}, {where}{step}"
        return DistributedError(problem, got=text, remedy=remedy_of(text))

    def _error_of(self, diagnosis: Diagnosis) -> DistributedError:
        """For the main thread; the report is printed before."""
        self._tell()
        error = diagnosis.error()
        error.is_told = True
        return error

    def report_own_error(self, error: BaseException) -> None:
        """Tell the others that this rank ends with that error. Only the first of all ranks' errors counts."""
        if self._state not in RUNNING:
            return
        with self._telling:
            # The user reads this error; another rank's, which may be the same, adds nothing, also if it comes later.
            self._has_told = True
        if self._diagnosis is None:
            self._own_error = diagnose(self._round._replace(error=error, step=self.step))
        tells_others = self._diagnosis is None and not getattr(error, "is_common", False)
        self._end(FAILED if tells_others else TOLD)

    def leave(self) -> None:
        """Tell the others that this rank ends in order. Rank 0, which serves the store, leaves last."""
        if self._is_over.is_set():
            return
        error = getattr(sys, "last_value", None)
        if error is not None and error is not self._error_before:
            self.report_own_error(error)  # the interpreter is ending with an error that nobody caught
        is_orderly = self._state == RUNS
        if is_orderly:
            self._end(LEFT)
        if self._is_first and is_orderly:
            self._await_others(self._round.collective, until_failure=True)
        if self._is_first and (not is_orderly or self._diagnosis is not None):
            self._await_others(self._grace_seconds, until_failure=False)  # they read the reason in the store
        self._tell()
        if is_orderly and self._diagnosis is not None:
            end_process(self.exit_code)  # the run failed after this rank's part
        self._is_over.set()
        self._beat_now.set()
        self._heartbeat_thread.join(self._beat_seconds)
        never_abort()

    @property
    def exit_code(self) -> int:
        """With which this process ends, where the run failed."""
        failure = self._own_error or self._diagnosis
        return 1 if failure is None else failure.error().exit_code

    def _end(self, state: str) -> None:
        """Set the last state, and wait until the others can read it."""
        self._state = state
        self._beat_now.set()
        deadline = time.monotonic() + _CAUSE_SECONDS
        while self._sent_state != state and self._heartbeat_thread.is_alive() and time.monotonic() < deadline:
            time.sleep(self._beat_seconds / 10)

    def _await_others(self, seconds: float, until_failure: bool) -> None:
        """Wait until no other rank runs, the store is lost, or one of them fails."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._heartbeat_thread.is_alive():
            others = [rank for rank in self._round.ranks if rank.member != self._me]
            has_failed = until_failure and self._diagnosis is not None
            if has_failed or not any(rank.runs and rank.process != "gone" for rank in others):
                return
            time.sleep(self._beat_seconds / 10)

    # Called by the heartbeat thread, which alone uses the store

    def _beat(self) -> None:
        """Beat until this rank's end is told; a store that is lost ends the thread, which the exit thread sees."""
        while True:
            state, is_known = self._state, self._diagnosis is not None
            try:
                self._beat_once(state)
            except dist.DistError:
                return
            self._num_beats += 1
            self._sent_state = state
            if self._is_over.is_set() or ((state not in RUNNING or is_known) and not self._is_first):
                return
            is_hurried = self._network_failed or state != RUNS or self._diagnosis is not None
            self._beat_now.wait(self._beat_seconds / 4 if is_hurried else self._beat_seconds)
            self._beat_now.clear()

    def _beat_once(self, state: str) -> None:
        self._status = self._status_now(state)
        if state == FAILED and self._own_error is not None:
            self._channel.store(self._own_error)
        self._channel.publish(self._status)
        is_settled = self._diagnosis is not None or state == FAILED
        if is_settled and not self._is_first:
            return  # nothing more to learn; and torch prints a trace if the rank that serves the store ends meanwhile
        diagnosis = self._channel.diagnosis()
        launcher_gone = self._launcher is not None and state_of_process(self._launcher) == "gone"
        launcher = self._launcher if launcher_gone else None
        self._round = self._round._replace(ranks=self._channel.observe(self._status), launcher=launcher)
        if is_settled:
            return
        if diagnosis is None and state != TOLD:
            diagnosis = diagnose(self._round)
        if diagnosis is not None:
            self._accept(*self._channel.agree_on(diagnosis))

    def _status_now(self, state: str) -> Status:
        number, labels = self._collectives
        activity = Activity("a collective", waits=True) if labels else self._failed_in or self._reader.now()
        label, partner = labels[-1] if labels else ("", None)
        if state in RUNNING and self._diagnosis is not None:
            state = TOLD  # so that the rank that serves the store need not stay for this one
        before = self._status
        now = before._replace(
            step=self.step,
            activity=activity.text,
            waits=activity.waits,
            num_collectives=number,
            collective=label,
            partner=partner,
            state=state,
            num_sent=self._sent[0],
            sent_step=self._sent[1],
        )
        if self._waits_anew or now != before:
            self._waits_anew, self._status_since = False, time.monotonic()
        seconds = time.monotonic() - self._status_since
        return now._replace(beat=before.beat + 1, seconds=seconds, network_failed=self._network_failed)

    def _accept(self, diagnosis: Diagnosis, prints_all: bool) -> None:
        if self._diagnosis is None:
            self._prints_all = prints_all
            self._diagnosis = diagnosis
            self._diagnosis_known.set()

    # Called by any thread

    def _tell(self) -> None:
        """Print this rank's part of the report, once."""
        with self._telling:
            if self._diagnosis is None or self._has_told:
                return
            self._has_told = True
            report = self._diagnosis.report() if self._prints_all else self._diagnosis.short_report()
            with suppress(OSError, ValueError):  # stderr is closed; there is nobody to tell
                print(f"[rank {self._me.rank}] {report}", file=sys.stderr, flush=True)

    def _note_abort(self) -> None:
        if self._state == RUNS:
            self._state = ABORTED
        self._beat_now.set()

    # Called by the exit thread

    def _exit_if_stuck(self) -> None:
        """End the process once there is a diagnosis, if the main thread does not. The store may be lost meanwhile."""
        idle, num_beats = 0, 0
        while not self._diagnosis_known.wait(self._beat_seconds):
            if self._is_over.is_set() or self._state == FAILED:
                return
            # Counted in turns of this loop: a process that was stopped itself makes none.
            idle, num_beats = (idle + 1 if self._num_beats == num_beats else 0), self._num_beats
            if not self._heartbeat_thread.is_alive() or (idle > 2 and self._server_process() == "gone"):
                self._lose_store(0.0)
            elif idle * self._beat_seconds >= self._round.silence:
                self._lose_store(self._round.silence)
                idle = 0
        if self._is_over.is_set() or self._state == FAILED:
            return
        self._tell()
        if not self._is_over.wait(self._grace_seconds):
            end_process(self.exit_code)

    def _server_process(self) -> str:
        """The process of the rank that serves the store, as it is now."""
        return self._channel.process_of(self._round.ranks[0].member) if self._round.rank_serves_store else ""

    def _lose_store(self, silence: float) -> None:
        """The store is lost. That is in order where the rank that served it left in order, or this one is leaving."""
        server = self._round.ranks[0]._replace(process=self._server_process())
        if self._state in RUNNING and (server.runs or not self._round.rank_serves_store):
            ranks = [server, *self._round.ranks[1:]]
            diagnosis = diagnose(self._round._replace(ranks=ranks, store=self._store_address, store_silence=silence))
            if diagnosis is not None:
                self._accept(diagnosis, self._channel.is_lowest_but(diagnosis.blamed))
