"""The meeting of the ranks: all come within a timeout, or those that came get the same error. No training here."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

from nemo_lite.backends.pytorch.distributed.network_interface import numeric_address, unused_master
from nemo_lite.backends.pytorch.distributed.rendezvous.attempts import LATE_SECONDS, Attempt, AttemptWatch, Refusal
from nemo_lite.backends.pytorch.distributed.rendezvous.members import Member, this_member
from nemo_lite.backends.pytorch.distributed.rendezvous.run_identity import differences, identity_of
from nemo_lite.backends.pytorch.distributed.rendezvous.stores import POLL_SECONDS, join, serve, written
from nemo_lite.errors import DistributedError
from nemo_lite.utils import logging
from nemo_lite.utils.launch import ProcessInfo

_MISTAKE = 2  # the exit code of what a user can correct


@dataclass(frozen=True)
class Meeting:
    """The result of a rendezvous.

    Attributes:
        store: shared by the ranks; keys of other attempts are not seen.
        members: all ranks, in order.
        serves_store: this process serves the store.
        address: of the store.
        prefix: before all keys of this attempt.
        timeout: for calls that wait.
        run_id: rank 0's name for the run: the same after a restart, where the launcher gives an id or the command line
            is the same.
        attempt_id: rank 0 drew it for this attempt; another one after a restart.
    """

    store: Store
    members: tuple[Member, ...]
    serves_store: bool
    address: tuple[str, int]
    prefix: str
    timeout: timedelta
    run_id: str
    attempt_id: str

    def connect(self) -> Store:
        """The same store for another thread: calls of one client wait for each other."""
        host, port = self.address
        return PrefixStore(self.prefix, TCPStore(host, port, is_master=False, timeout=self.timeout))


def meet(info: ProcessInfo, timeout_seconds: float) -> Meeting:
    """Wait until all ranks are there, and choose the interface for gloo and nccl where the user chose none.

    Args:
        info: who this process is, and where to meet.
        timeout_seconds: how long to wait for the others.

    Raises:
        DistributedError: not all came, the address cannot be reached or is in use, two processes have the same rank,
            ranks differ on the world size, belong to two runs, or one of them failed before it came. Every rank that
            came gets the same text.
    """
    deadline = time.monotonic() + timeout_seconds
    address = (numeric_address(info), info.master[1])
    serves_store = info.rank == 0 and not info.agent_hosts_store
    timeout = timedelta(seconds=timeout_seconds)
    client = serve(address, timeout) if serves_store else join(address, info, timeout_seconds)
    entrance = _Entrance(client, info, this_member(info, address), deadline, timeout_seconds)
    try:
        attempt, members = entrance.gather() if info.rank == 0 else entrance.follow()
    except dist.DistError as error:
        raise DistributedError(
            f"the store at {written(address)} was closed while the ranks were meeting",
            remedy="the process that served it has ended: see the messages of rank 0 and of its launcher",
        ) from error
    for problem in sorted({f"{member.host}: {line}" for member in members for line in member.problems}):
        logging.warning("%s", problem)
    if info.is_first and (line := unused_master(info)):
        logging.info("%s", line)
    run_id = attempt.run.run_id
    return Meeting(attempt.store, members, serves_store, address, attempt.prefix, timeout, run_id, attempt.number)


class _Entrance:
    """How one rank gets into an attempt, or learns why it does not.

    Args:
        store: of the ranks; a launcher's may hold other attempts.
        info: who this process is.
        me: the same, for the others.
        deadline: of ``time.monotonic``.
        timeout_seconds: how long that is in all, for the error.
    """

    def __init__(self, store: Store, info: ProcessInfo, me: Member, deadline: float, timeout_seconds: float) -> None:
        self._store, self._info, self._me = store, info, me
        self._deadline, self._timeout_seconds = deadline, timeout_seconds
        self._run = identity_of(info)

    def gather(self) -> tuple[Attempt, tuple[Member, ...]]:
        """On rank 0: begin an attempt, and wait until all are in it."""
        attempt = Attempt.open(self._store, self._me, self._run, self._info.world_size)
        attempt.enter(self._me, self._run)
        while True:
            attempt.beat()
            outcome = attempt.outcome()
            if isinstance(outcome, Refusal):
                attempt.hear(self._me.rank)
                is_late = time.monotonic() > self._deadline
                expected = len(attempt.members()) if is_late else attempt.world_size
                attempt.stay(expected, LATE_SECONDS, as_last=True)
                raise outcome.error()
            if outcome is not None:
                return attempt, outcome
            if attempt.has_all():
                difference = differences(attempt.runs())
                attempt.refuse(_of_two_runs(difference)) if difference else attempt.seal()
            elif time.monotonic() > self._deadline:
                attempt.refuse(self._incomplete(attempt))
            else:
                time.sleep(POLL_SECONDS)

    def follow(self) -> tuple[Attempt, tuple[Member, ...]]:
        """On another rank: enter the attempt that rank 0 keeps alive, the newest one after a restart."""
        watch, attempt = AttemptWatch(self._store), None
        while True:
            living = watch.living()
            if living is not None and (attempt is None or living.number != attempt.number):
                attempt = self._enter(living)
            if attempt is None:
                self._check_not_under_way()
            elif outcome := attempt.outcome():
                return attempt, self._accepted(attempt, outcome)
            if time.monotonic() <= self._deadline:
                time.sleep(POLL_SECONDS)
            elif attempt is None:
                raise self._nobody().error()
            else:
                attempt.refuse(self._incomplete(attempt))

    def _enter(self, attempt: Attempt) -> Attempt | None:
        """Enter it, unless it ended for this rank already; refuse it if this process does not belong there."""
        if attempt.was_heard(self._me.rank):
            return None  # an earlier process of this rank was told; the launcher is about to start rank 0 anew, too
        if refusal := self._objection(attempt):
            attempt.refuse(refusal)
        elif taken := attempt.enter(self._me, self._run):
            attempt.refuse(self._taken(taken))
        return attempt

    def _accepted(self, attempt: Attempt, outcome: Refusal | tuple[Member, ...]) -> tuple[Member, ...]:
        """The members, of which this process is one."""
        if isinstance(outcome, Refusal):
            attempt.hear(self._me.rank)
            raise outcome.error()
        if outcome[self._me.rank] != self._me:
            raise self._taken(outcome[self._me.rank]).error()
        return outcome

    def _check_not_under_way(self) -> None:
        """A store that rank 0 serves is for one attempt: if that has its members, there will be no other."""
        attempt = None if self._info.agent_hosts_store else Attempt.newest(self._store)
        outcome = attempt.outcome() if attempt else None
        if attempt and outcome and not isinstance(outcome, Refusal):
            raise (self._objection(attempt) or self._taken(outcome[self._me.rank])).error()

    def _objection(self, attempt: Attempt) -> Refusal | None:
        """Why this process does not belong to that attempt."""
        if attempt.world_size != self._info.world_size:
            return Refusal(
                f"{attempt.first} was told that {attempt.world_size} processes take part, {self._me} that "
                f"{self._info.world_size} do",
                "start every machine's command with the same numbers of machines and processes",
            )
        if attempt.is_other(self._run):
            return Refusal(
                f"processes of two runs came to {written(self._info.master)}: {attempt.first} is of run "
                f"{attempt.run.run_id}, {self._me} of run {self._run.run_id}",
                "give each run a port of its own (--master_port, MASTER_PORT or the endpoint)",
                _MISTAKE,
            )
        return None

    def _taken(self, taken: Member) -> Refusal:
        return Refusal(
            f"two processes are rank {self._me.rank}: pid {taken.pid} on {taken.host} and pid {self._me.pid} on "
            f"{self._me.host}",
            "give each machine's command its own node_rank, each run a port of its own, and look for processes of an "
            "earlier run",
        )

    def _incomplete(self, attempt: Attempt) -> Refusal:
        there = attempt.members()
        missing = sorted(set(range(attempt.world_size)) - {member.rank for member in there})
        host, port = self._info.master
        return Refusal(
            f"{len(there)} of {attempt.world_size} processes came together at {written(self._info.master)} within "
            f"{self._timeout_seconds:g} s; there: {', '.join(map(str, there))}; missing: rank "
            f"{', '.join(map(str, missing))}",
            "was the command started on every machine, each with its own node_rank and all with the right number of "
            f"machines (--nnodes), does a firewall close port {port}, and can every machine reach {host}?",
        )

    def _nobody(self) -> Refusal:
        return Refusal(
            f"{self._me} waited for rank 0 at {written(self._info.master)}, which did not come within "
            f"{self._timeout_seconds:g} s",
            "see the output of rank 0; if the launcher did not start it, look for another run at this port",
        )


def _of_two_runs(difference: str) -> Refusal:
    return Refusal(
        f"the processes seem to be of two runs: {difference}",
        "give each run a port of its own; if it is one run, give it the same names everywhere, or an id that counts "
        "instead (--rdzv-id; TORCHELASTIC_RUN_ID for processes started by hand)",
        _MISTAKE,
    )
