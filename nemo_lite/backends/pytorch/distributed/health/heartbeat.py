"""HeartbeatChannel: writes this rank's heartbeats to the store, reads the others', and looks at their processes.

Which rank is to blame is decided in diagnosis.py.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch.distributed as dist

from nemo_lite.backends.pytorch.distributed.health.diagnosis import RUNS, Diagnosis, Observation, Status
from nemo_lite.backends.pytorch.distributed.health.launcher import diagnose_lost_launcher, launcher_of_this_process
from nemo_lite.backends.pytorch.distributed.rendezvous import Meeting, Member
from nemo_lite.utils.launch import ProcessInfo

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
