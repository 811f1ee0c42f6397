"""How ranks find each other: stores, members, attempts of a run, failures before the meeting."""

from __future__ import annotations

import atexit
import errno
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

from nemo_lite.backends.pytorch.distributed.failures import summary
from nemo_lite.backends.pytorch.distributed.network_interface import numeric_address, route_to, unused_master, use_route
from nemo_lite.base.errors import DistributedError, NemoLiteError, when_failing
from nemo_lite.base.files import digest_of
from nemo_lite.base.launch import ProcessInfo, who_am_i
from nemo_lite.utils import logging


class RankIdentity(NamedTuple):
    """One rank.

    Attributes:
        rank: its index.
        host: name of its machine.
        pid: its process there.
        interface: by which it reaches the others; "" where that is not known.
        address: its address on that interface.
        process_space: equal for two ranks only if each can see whether the other's process exists.
        problems: what it found wrong with the user's choice of interfaces.
    """

    rank: int
    host: str
    pid: int
    interface: str
    address: str
    process_space: str
    problems: Sequence[str] = ()

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host}, pid {self.pid})"


def this_member(info: ProcessInfo, address: tuple[str, int]) -> RankIdentity:
    """This process; gloo and nccl get the interface that leads to that address, where the user chose none."""
    route = route_to(*address)
    problems = use_route(route)
    return RankIdentity(
        info.rank, socket.gethostname(), os.getpid(), route.interface, route.address, _process_space(), problems
    )


def _process_space() -> str:
    """A text that is equal for processes that see each other and share a network; it differs between containers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return "/".join([boot, *(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net"))])
    except OSError:  # not Linux
        return socket.gethostname()


# Options that name a run or where its results go, here and in the scripts of other toolkits.
_NAMES = {
    *("exp_name", "experiment_name", "run_name", "run_id", "job_id", "name"),
    *("work_dir", "log_dir", "output_dir", "out", "checkpoint_dir", "model_dir", "save_dir"),
}
_SHOWN_DIGITS = 8


class RunIdentity(NamedTuple):
    """The run that a process belongs to.

    A launcher's id decides where there is one: torchrun's ``--rdzv-id``, the numbers of a Slurm job and step, the
    namespace of mpirun. The address is no sign: whoever meets has the same. Processes that were started by hand, or by
    ``torch.distributed.launch``, which calls every run "none", have only their command lines: the script, and the
    options that name a run or its folders. These are compared when the ranks have met, and other options by what they
    lead to: one run may well differ in them (``--gpu``).

    Attributes:
        run_id: of the launcher, with its name; or else made of the command line.
        is_launchers: a launcher gave the id: all processes of the run have the same.
    """

    run_id: str
    is_launchers: bool


def identity_of(info: ProcessInfo, argv: Sequence[str] | None = None) -> RunIdentity:
    """The run of a process with that command line, by default this one's."""
    if info.run_id:
        return RunIdentity(f"{info.launcher} {info.run_id}", True)
    script, options = _command(argv)
    return RunIdentity(f"{script} {digest_of(options)[:_SHOWN_DIGITS]}", False)


def names_of_run(info: ProcessInfo, argv: Sequence[str] | None = None) -> dict[str, str]:
    """What names the run of a process: its script, and options by name; empty where a launcher's id does."""
    if info.run_id:
        return {}
    script, options = _command(argv)
    return {"script": script, **{name: value for name, value in options.items() if name in _NAMES}}


def _command(argv: Sequence[str] | None) -> tuple[str, dict[str, str]]:
    """The script and its options, without folders: machines may keep the same files in other places."""
    path, *words = sys.argv if argv is None else argv
    values = {name: " ".join(Path(word).name for word in words) for name, words in options_in(words).items()}
    return Path(path).name, values


def options_in(words: Sequence[str]) -> dict[str, list[str]]:
    """The options of a command line with their values, names with ``_`` inside; under "" what is before the first."""
    options: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit():
            option, has_value, value = word.partition("=")
            name = option.lstrip("-").replace("-", "_")
            options.setdefault(name, []).extend([value] if has_value else [])
        else:
            options.setdefault(name, []).append(word)
    return options


POLL_SECONDS = 0.1


def serve(address: tuple[str, int], timeout: timedelta) -> TCPStore:
    """Serve a store on that address only; by default it would listen on all interfaces.

    A store has no authentication, so one that we serve is the loopback's where all ranks are on one machine.

    Raises:
        DistributedError: the address is not this machine's, or its port is in use.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
    # The port of a run that just ended may be used again at once; one in use is still refused.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            problem = f"port {address[1]} of {address[0]} is in use"
            remedy = "another run uses it (choose another port), or two commands were started with the same node_rank"
        else:
            problem = f"the ranks cannot meet at {written(address)}: {error.strerror or error}"
            remedy = "rank 0 has to run on the machine whose address is given as the first machine's"
        raise DistributedError(problem, remedy=remedy) from error
    host, port = address
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=listener.detach()
    )


def join(address: tuple[str, int], info: ProcessInfo, timeout_seconds: float) -> TCPStore:
    """Connect to the store as soon as it is served.

    Tried with plain sockets first: the store's own attempts fill stderr with traces.

    Raises:
        DistributedError: nothing answers there in time, or something that is no store.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            socket.create_connection(address, timeout=max(deadline - time.monotonic(), POLL_SECONDS)).close()
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise _unreachable(address, info, timeout_seconds, str(error.strerror or error)) from error
        time.sleep(POLL_SECONDS)
    clients: list[TCPStore] = []

    def connect() -> None:
        with suppress(dist.DistError):
            clients.append(
                TCPStore(address[0], address[1], is_master=False, timeout=timedelta(seconds=timeout_seconds))
            )

    # In a thread: torch would wait for ever for a server that sends nothing.
    connecting = threading.Thread(target=connect, daemon=True, name="connect to the store")
    connecting.start()
    connecting.join(max(deadline - time.monotonic(), POLL_SECONDS))
    if not clients:
        raise _unreachable(address, info, timeout_seconds, "what listens there is no store")
    return clients[0]


def _unreachable(address: tuple[str, int], info: ProcessInfo, timeout_seconds: float, got: str) -> DistributedError:
    return DistributedError(
        f"rank {info.rank} on {socket.gethostname()} could not reach rank 0 at {written(address)} "
        f"within {timeout_seconds:g} s",
        got=got,
        remedy="was the command started on the first machine too, is that its address (MASTER_ADDR, --master_addr) and "
        f"port, and does its firewall let port {address[1]} through?",
    )


def written(address: tuple[str, int]) -> str:
    """``host:port``."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# How long those that know of a refusal stay for ranks that come later; they end at once when all know.
LATE_SECONDS = 5.0
_LAST_SECONDS = 0.5  # several polls
_ROOT = "nemo_lite"
_NEWEST = f"{_ROOT}/attempt"
_BEAT, _OUTCOME, _NUM_TOLD = "beat", "outcome", "num_told"


class Refusal(NamedTuple):
    """Why an attempt ends before its ranks have met."""

    problem: str
    remedy: str
    exit_code: int | None = None

    def error(self) -> DistributedError:
        """For each of the ranks."""
        return DistributedError(self.problem, remedy=self.remedy, exit_code=self.exit_code)


class Attempt:
    """One attempt in a store.

    A launcher's store outlives the ranks, and nothing that a launcher counts is equal on all machines: torchrun's
    restart counter goes up on the machine that failed only. So rank 0 draws an id for each attempt and publishes it;
    the others join that one. They join only while its rank 0 is seen to go on, by a counter: what dead processes left
    is never taken. An attempt has one outcome: its members, or why it is refused. Whoever writes first decides it for
    all.

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
    def open(cls, store: Store, me: RankIdentity, run: RunIdentity, world_size: int) -> Attempt:
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

    def is_other(self, run: RunIdentity) -> bool:
        """Whether a launcher's id says that a process is of another run."""
        return (self.run.is_launchers or run.is_launchers) and self.run.run_id != run.run_id

    def beat(self) -> None:
        """Rank 0: show that it is there."""
        self.store.add(_BEAT, 1)

    def beats(self) -> int:
        """How often rank 0 has shown that."""
        return int(self.store.add(_BEAT, 0))

    def enter(self, me: RankIdentity) -> RankIdentity | None:
        """Take part in it; the process that has the rank already, if there is one."""
        record = json.dumps(me)
        taken = self.store.compare_set(_key(me.rank), "", record).decode()
        return None if taken == record else RankIdentity(*json.loads(taken))

    def has_all(self) -> bool:
        """Whether every rank has entered."""
        return bool(self.store.check([_key(rank) for rank in range(self.world_size)]))

    def members(self) -> tuple[RankIdentity, ...]:
        """Those that have entered, in order."""
        keys = [_key(rank) for rank in range(self.world_size) if self.store.check([_key(rank)])]
        return tuple(RankIdentity(*json.loads(record)) for record in self.store.multi_get(keys)) if keys else ()

    def seal(self) -> None:
        """Rank 0: all are there; unless it is refused already."""
        self.store.compare_set(_OUTCOME, "", json.dumps([None, self.members()]))

    def refuse(self, refusal: Refusal) -> None:
        """End it for all ranks; unless it has an outcome already."""
        self.store.compare_set(_OUTCOME, "", json.dumps([refusal, []]))

    def outcome(self) -> Refusal | tuple[RankIdentity, ...] | None:
        """Its members, or why it was refused; ``None`` while neither is known."""
        if not self.store.check([_OUTCOME]):
            return None
        refusal, members = json.loads(self.store.get(_OUTCOME))
        return Refusal(*refusal) if refusal else tuple(RankIdentity(*member) for member in members)

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
    members: tuple[RankIdentity, ...]
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
    if info.launcher == "slurm" and info.world_size > 1 and os.environ.get("SLURM_PTY_PORT"):
        logging.warning(
            f"Slurm's variables say that {info.world_size} processes take part: waiting for them. In a shell of srun "
            "--pty a command runs once: --launcher none is for one process"
        )
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

    def __init__(
        self, store: Store, info: ProcessInfo, me: RankIdentity, deadline: float, timeout_seconds: float
    ) -> None:
        self._store, self._info, self._me = store, info, me
        self._deadline, self._timeout_seconds = deadline, timeout_seconds
        self._run = identity_of(info)

    def gather(self) -> tuple[Attempt, tuple[RankIdentity, ...]]:
        """On rank 0: begin an attempt, and wait until all are in it."""
        attempt = Attempt.open(self._store, self._me, self._run, self._info.world_size)
        attempt.enter(self._me)
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
                attempt.seal()
            elif time.monotonic() > self._deadline:
                attempt.refuse(self._incomplete(attempt))
            else:
                time.sleep(POLL_SECONDS)

    def follow(self) -> tuple[Attempt, tuple[RankIdentity, ...]]:
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
                raise Refusal(
                    f"{self._me} waited for rank 0 at {written(self._info.master)}, which did not come within "
                    f"{self._timeout_seconds:g} s",
                    "see the output of rank 0; if the launcher did not start it, look for another run at this port",
                ).error()
            else:
                attempt.refuse(self._incomplete(attempt))

    def _enter(self, attempt: Attempt) -> Attempt | None:
        """Enter it, unless it ended for this rank already; refuse it if this process does not belong there."""
        if attempt.was_heard(self._me.rank):
            return None  # an earlier process of this rank was told; the launcher is about to start rank 0 anew, too
        if refusal := self._objection(attempt):
            attempt.refuse(refusal)
        elif taken := attempt.enter(self._me):
            attempt.refuse(self._taken(taken))
        return attempt

    def _accepted(self, attempt: Attempt, outcome: Refusal | tuple[RankIdentity, ...]) -> tuple[RankIdentity, ...]:
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

    def _taken(self, taken: RankIdentity) -> Refusal:
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
            f"{self._started_how()}, does a firewall close port {port}, and can every machine reach {host}?",
        )

    def _started_how(self) -> str:
        if self._info.launcher == "slurm":
            return (
                f"SLURM_PROCID and SLURM_STEP_NUM_TASKS say that srun started {self._info.world_size} tasks; the shell "
                "of srun --pty has them too, where a command runs once: there give --launcher none for one process "
                "(launcher='none'), or start all with srun; else was the command started by srun"
            )
        return (
            "was the command started on every machine, each with its own node_rank and all with the right number of "
            "machines (--nnodes)"
        )


# Ranks start at different speeds: so long does one that failed wait for those that are to be told.
_SECONDS = 30.0
# Launchers take the process that ends first for the cause: the others stay this much longer.
_LATER_SECONDS = 1.0
_OF_LAUNCH = ("local_rank", "launcher", "init_method", "rank", "world_size")


def announce_failures() -> None:
    """From now on tell the other ranks if this process ends with an error before they have met.

    Where the process does not come as far as the meeting (a missing file, an empty manifest), it goes to the store only
    to refuse the attempt. Rank 0 serves the store for that, if nobody else does. After the meeting, heartbeats report.
    """
    when_failing(tell_others)
    atexit.register(_tell_at_exit)


def announce_failures_by(report: Callable[[BaseException], object]) -> None:
    """The ranks have met: errors go there instead; those that nobody catches are reported by others."""
    when_failing(report)
    atexit.unregister(_tell_at_exit)


def tell_others(error: BaseException, seconds: float = _SECONDS) -> None:
    """Let the ranks that wait for this one end with the reason. Nothing happens where there are no others.

    Args:
        error: with which this process ends. One of the meeting itself is known to the others, or was theirs. A signal,
            which most launchers send to all, is not told: who sends it does not wait.
        seconds: how long to wait for ranks that have not come so far.
    """
    info = _this_process()
    if info is None or isinstance(error, KeyboardInterrupt) or (info.world_size == 1 and info.is_first):
        return
    if isinstance(error, DistributedError):
        if "exit_code" in vars(error):  # that of a process that failed, which is about to end
            time.sleep(_LATER_SECONDS)
        return
    me = RankIdentity(info.rank, socket.gethostname(), os.getpid(), "", "", "")
    refusal = Refusal(
        f"{me} failed before the ranks had met: {summary(error)}",
        "see the end of that process' own output",
        getattr(error, "exit_code", 1),
    )
    # What goes wrong here is no news: the user has read why this process ends, the others end after their timeout.
    with suppress(DistributedError, dist.DistError, OSError):
        if not info.is_first:
            _tell_first(info, me, refusal, seconds)
            return
        # Begin an attempt that is refused, and stay for those that come to it.
        attempt = Attempt.open(_store(info, seconds), me, identity_of(info), info.world_size)
        attempt.refuse(refusal)
        attempt.hear(me.rank)
        attempt.stay(info.world_size, seconds, as_last=True)


def _tell_first(info: ProcessInfo, me: RankIdentity, refusal: Refusal, seconds: float) -> None:
    """Another rank: refuse the attempt that rank 0 begins, and wait until all have seen it.

    An attempt of another run, or one that has this rank already, is not this process's to refuse. One of another size
    is where this rank is out of range: its own world size may be the wrong one.
    """
    deadline = time.monotonic() + seconds
    watch, run = AttemptWatch(_store(info, seconds)), identity_of(info)
    is_out_of_range = info.rank >= info.world_size
    while time.monotonic() < deadline:
        attempt = watch.living()
        has_size = attempt and (is_out_of_range or attempt.world_size == info.world_size)
        if attempt and has_size and not attempt.is_other(run) and not attempt.was_heard(me.rank):
            if me.rank not in [member.rank for member in attempt.members()]:
                attempt.refuse(refusal)
                attempt.hear(me.rank)
                # A launcher ends the others as soon as this process has ended.
                attempt.stay(info.world_size, LATE_SECONDS)
            return
        time.sleep(POLL_SECONDS)


def _store(info: ProcessInfo, seconds: float) -> Store:
    address, timeout = (numeric_address(info), info.master[1]), timedelta(seconds=seconds)
    return serve(address, timeout) if info.is_first and not info.agent_hosts_store else join(address, info, seconds)


def _this_process() -> ProcessInfo | None:
    """By the launcher's variables and the options on the command line, as far as they make sense."""
    said = {name.removeprefix("ddp."): values for name, values in options_in(sys.argv[1:]).items()}  # WeNet's
    options = {name: said[name][0] for name in _OF_LAUNCH if said.get(name)}
    with suppress(NemoLiteError):
        return who_am_i(
            options.get("local_rank"),
            launcher=options.get("launcher", "auto"),
            init_method=options.get("init_method"),
            rank=options.get("rank"),
            world_size=options.get("world_size"),
            checks=False,  # a rank that is out of range is what the others wait for
        )
    return None


def _tell_at_exit() -> None:
    """The interpreter ends: was it with an error that nobody caught, whose traceback it has printed?"""
    error = getattr(sys, "last_value", None)
    if error is not None:
        tell_others(error)
