"""Post: a rank's own line to the store, and what it sees of the others, in the store and in the list of processes.

Nothing is judged here.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from nemo_lite.backends.pytorch.distributed.health.diagnosis import (
    FAILED,
    RUNS,
    Sighting,
    Status,
    Verdict,
    status_of,
    verdict_of,
)
from nemo_lite.backends.pytorch.distributed.rendezvous import Meeting, Member
from nemo_lite.utils.launch import ProcessInfo

# This thread itself did not run for so long: others are not silent because nobody listened.
_OWN_SILENCE_SECONDS = 2.0


class Post:
    """This rank's own line to the store, and what it has seen of the others. Used by one thread."""

    def __init__(self, meeting: Meeting, info: ProcessInfo) -> None:
        self._store = meeting.connect()
        self._members, self._me = meeting.members, meeting.members[info.rank]
        self._watched = meeting.members if info.rank == 0 else meeting.members[:1]
        now = self._looked = time.monotonic()
        self._seen: dict[int, tuple[Status | None, float]] = {member.rank: (None, now) for member in meeting.members}
        self._processes: dict[int, str] = {}
        self._host = None if info.agent_hosts_store else meeting.members[0]
        self.address = f"{info.master[0]}:{info.master[1]}"
        self.failure: Verdict | None = None

    def say(self, status: Status) -> None:
        """Leave this rank's status, and why it failed if it did."""
        if status.state == FAILED and self.failure is not None:
            self.agreed(self.failure)
        self._store.set(f"beat/{self._me.rank}", status.encoded())

    def verdict(self) -> Verdict | None:
        """What is written, by whomever."""
        return verdict_of(self._store.get("verdict")) if self._store.check(["verdict"]) else None

    def agreed(self, verdict: Verdict) -> Verdict:
        """Write a verdict; the first one that was written."""
        return verdict_of(self._store.compare_set("verdict", "", verdict.encoded()))

    def look_at_processes(self) -> None:
        """Which of the processes on this machine exist."""
        for member in self._members:
            if member != self._me:
                self._processes[member.rank] = process_of(member, self._me)

    def look_at_ranks(self) -> None:
        """Read what the watched ranks left, and the last words of those whose process is gone.

        A rank that has not spoken yet is asked for alone: reading would wait.
        """
        now = time.monotonic()
        if now - self._looked > _OWN_SILENCE_SECONDS:
            self._seen = {rank: (status, since + now - self._looked) for rank, (status, since) in self._seen.items()}
        self._looked = now
        gone = [member for member in self._members if self._processes.get(member.rank) == "gone"]
        keys = {member.rank: f"beat/{member.rank}" for member in (*self._watched, *gone) if member != self._me}
        ready = [rank for rank, key in keys.items() if self._seen[rank][0] or self._store.check([key])]
        if not ready:
            return
        for rank, encoded in zip(ready, self._store.multi_get([keys[rank] for rank in ready]), strict=True):
            status, before = status_of(encoded), self._seen[rank][0]
            if before is None or status.count != before.count:
                self._seen[rank] = (status, time.monotonic())

    def sightings(self, own: Status) -> list[Sighting]:
        """Of all ranks; of those that are not watched only whether their process exists."""
        now, watched = time.monotonic(), {member.rank for member in self._watched}
        found = []
        for member in self._members:
            status, since = self._seen[member.rank]
            if member == self._me:
                status, since = own, now
            silent = now - since if member.rank in watched else 0.0
            found.append(Sighting(member, status, silent, self._processes.get(member.rank, "")))
        return found

    def sighting_of_host(self) -> Sighting | None:
        """Of the rank that serves the store, its process as it is now; ``None`` if the launcher serves it."""
        if self._host is None:
            return None
        return Sighting(self._host, self._seen[self._host.rank][0], 0.0, process_of(self._host, self._me))

    def others_ended(self) -> bool:
        """All others said that they end, or are gone."""
        return all(
            (status is not None and status.state != RUNS) or self._processes.get(rank) == "gone"
            for rank, (status, _) in self._seen.items()
            if rank != self._me.rank
        )


def process_of(member: Member, me: Member) -> str:
    """``gone``, ``stopped`` or ``alive``; "" if it cannot be seen from here."""
    if member.machine != me.machine:
        return ""
    try:
        stat = Path(f"/proc/{member.pid}/stat").read_text()
    except FileNotFoundError:
        return "gone" if Path("/proc/self/stat").exists() else _process_elsewhere(member.pid)
    except OSError:
        return "gone"  # it ended between the opening and the reading
    state = stat.rpartition(")")[2].split()[0]
    return {"Z": "gone", "X": "gone", "T": "stopped", "t": "stopped"}.get(state, "alive")


def _process_elsewhere(pid: int) -> str:
    """The same on systems without /proc."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "gone"
    except OSError:
        return "alive"
    return "alive"
