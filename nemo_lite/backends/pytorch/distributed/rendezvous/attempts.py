"""Attempt: one try of a run's ranks to come together, in a store that may still hold what earlier tries left there.

A launcher's store outlives the ranks, and nothing that a launcher counts is equal on all machines: torchrun's restart
counter goes up on the machine that failed only. So rank 0 draws an id for each attempt and publishes it; the others
join that one. They join only while its rank 0 is seen to go on, by a counter: what dead processes left is never taken.

An attempt has one outcome: its members, or why it is refused. Whoever writes first decides it for all.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass

from torch.distributed import PrefixStore, Store

from nemo_lite.backends.pytorch.distributed.rendezvous.members import Member
from nemo_lite.backends.pytorch.distributed.rendezvous.run_identity import RunIdentity
from nemo_lite.backends.pytorch.distributed.rendezvous.stores import POLL_SECONDS
from nemo_lite.errors import DistributedError

# How long those that know of a refusal stay for ranks that come later; they end at once when all know.
LATE_SECONDS = 5.0
_LAST_SECONDS = 0.5  # several polls
_ROOT = "nemo_lite"
_NEWEST = f"{_ROOT}/attempt"
_BEAT, _OUTCOME, _NUM_TOLD = "beat", "outcome", "num_told"


@dataclass(frozen=True)
class Refusal:
    """Why an attempt ends before its ranks have met."""

    problem: str
    remedy: str
    exit_code: int | None = None

    def error(self) -> DistributedError:
        """For each of the ranks."""
        return DistributedError(self.problem, remedy=self.remedy, exit_code=self.exit_code)


class Attempt:
    """One attempt in a store.

    Args:
        store: the ranks'.
        number: its id.
        first: its rank 0, in words.
        run: its run, as rank 0 knows it.
        world_size: number of ranks, as rank 0 was told it.
    """

    def __init__(self, store: Store, number: str, first: str, run: RunIdentity, world_size: int) -> None:
        self.number, self.first, self.run, self.world_size = number, first, run, world_size
        self.prefix = f"{_ROOT}/{number}"
        self.store = PrefixStore(self.prefix, store)

    @classmethod
    def open(cls, store: Store, me: Member, run: RunIdentity, world_size: int) -> Attempt:
        """Begin a new one, on rank 0."""
        attempt = cls(store, secrets.token_hex(4), str(me), run, world_size)
        store.set(_NEWEST, json.dumps([attempt.number, str(me), run, world_size]))
        return attempt

    @classmethod
    def newest(cls, store: Store) -> Attempt | None:
        """The one that was begun last; ``None`` if there is none. Its rank 0 may be gone."""
        if not store.check([_NEWEST]):
            return None
        number, first, run, world_size = json.loads(store.get(_NEWEST))
        return cls(store, number, first, RunIdentity(*run), world_size)

    def is_for(self, run: RunIdentity, world_size: int) -> bool:
        """Whether a process of that run belongs to it, as far as that is known before all have come."""
        return self.world_size == world_size and not self.is_other(run)

    def is_other(self, run: RunIdentity) -> bool:
        """Whether a launcher's id says that a process is of another run."""
        ours = self.run
        return (ours.is_launchers or run.is_launchers) and ours.run_id != run.run_id

    def beat(self) -> None:
        """Rank 0: show that it is there."""
        self.store.add(_BEAT, 1)

    def beats(self) -> int:
        """How often rank 0 has shown that."""
        return int(self.store.add(_BEAT, 0))

    def enter(self, me: Member, run: RunIdentity) -> Member | None:
        """Take part in it; the process that has the rank already, if there is one."""
        record = json.dumps([me, run])
        taken = self.store.compare_set(_key(me.rank), "", record).decode()
        return None if taken == record else _member(taken)

    def has_all(self) -> bool:
        """Whether every rank has entered."""
        return bool(self.store.check([_key(rank) for rank in range(self.world_size)]))

    def members(self) -> tuple[Member, ...]:
        """Those that have entered, in order."""
        there = [_key(rank) for rank in range(self.world_size) if self.store.check([_key(rank)])]
        return tuple(map(_member, self.store.multi_get(there))) if there else ()

    def runs(self) -> list[RunIdentity]:
        """The runs that the ranks belong to, each by its own knowledge, when all have entered."""
        records = self.store.multi_get([_key(rank) for rank in range(self.world_size)])
        return [RunIdentity(*json.loads(record)[1]) for record in records]

    def seal(self) -> None:
        """Rank 0: all are there, and belong together; unless it is refused already."""
        self.store.compare_set(_OUTCOME, "", json.dumps([None, self.members()]))

    def refuse(self, refusal: Refusal) -> None:
        """End it for all ranks; unless it has an outcome already."""
        self.store.compare_set(_OUTCOME, "", json.dumps([vars(refusal), []]))

    def outcome(self) -> Refusal | tuple[Member, ...] | None:
        """Its members, or why it was refused; ``None`` while neither is known."""
        if not self.store.check([_OUTCOME]):
            return None
        refusal, members = json.loads(self.store.get(_OUTCOME))
        return Refusal(**refusal) if refusal else tuple(Member(*each) for each in members)

    def hear(self, rank: int) -> None:
        """Note that a process of that rank knows of the refusal."""
        self.store.add(f"told/{rank}", 1)
        self.store.add(_NUM_TOLD, 1)

    def was_heard(self, rank: int) -> bool:
        """Whether a process of that rank knew of the refusal."""
        return bool(self.store.check([f"told/{rank}"]))

    def stay(self, num_processes: int, seconds: float, as_last: bool = False) -> None:
        """Keep a refused attempt alive until so many processes know why, those that are still to come too.

        Args:
            num_processes: how many.
            seconds: at most so long.
            as_last: this process serves the store: the others see that all know before it ends.
        """
        deadline = time.monotonic() + seconds
        while self.store.add(_NUM_TOLD, 0) < num_processes and time.monotonic() < deadline:
            self.beat()
            time.sleep(POLL_SECONDS / 2)
        if as_last:
            time.sleep(_LAST_SECONDS)


class AttemptWatch:
    """Finds the newest attempt whose rank 0 is there. Asked again and again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: tuple[str, int] | None = None

    def living(self) -> Attempt | None:
        """The newest attempt, if its rank 0 went on since this was asked before."""
        attempt = Attempt.newest(self._store)
        if attempt is None:
            return None
        before, self._seen = self._seen, (attempt.number, attempt.beats())
        is_same = before is not None and before[0] == attempt.number
        return attempt if is_same and before != self._seen else None


def _key(rank: int) -> str:
    return f"member/{rank}"


def _member(record: str | bytes) -> Member:
    return Member(*json.loads(record)[0])
