"""HealthMonitor: heartbeats between the ranks, and one reason with which all end when one of them cannot go on.

A thread writes a heartbeat to the store twice a second and reads the others': rank 0 all, the others rank 0's. Each
rank also sees whether the processes on its own machine exist. The first to find a problem stores the diagnosis (see
diagnosis.py); the others read it. A second thread notices when the store itself does not answer, prints the diagnosis,
and ends a process whose main thread cannot. Collectives are called elsewhere.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch.distributed as dist

from nemo_lite.backends.pytorch.distributed.health.activity import Activity, ActivityReader
from nemo_lite.backends.pytorch.distributed.health.diagnosis import (
    FAILED,
    LEFT,
    RUNS,
    TOLD,
    Diagnosis,
    Status,
    Timeouts,
    diagnose,
    diagnose_error,
    diagnose_lost_store,
    transfer_of,
)
from nemo_lite.backends.pytorch.distributed.health.heartbeat import HeartbeatChannel
from nemo_lite.backends.pytorch.distributed.rendezvous import Meeting
from nemo_lite.errors import DistributedError
from nemo_lite.utils.launch import ProcessInfo

# Main threads get less time to clean up where finding the reason took a timeout, so that all end within ten seconds.
_GRACE_AFTER_SILENCE_SECONDS = 1.5
# How long a main thread whose collective failed waits for the reason.
_EXPLANATION_SECONDS = 5.0
_NETWORK = re.compile(r"gloo|nccl|monitoredBarrier|connection (closed|reset|refused)|broken pipe", re.IGNORECASE)


class HealthMonitor:
    """Heartbeats between the ranks of a run. Made and used by the thread that trains.

    Args:
        meeting: the ranks and their store.
        info: who this process is.
        timeout_seconds: how long a rank may keep another waiting in a collective.
        beat_seconds: between two heartbeats.
        silence_seconds: a rank on another machine without a heartbeat for so long is gone.
        grace_seconds: from the diagnosis until the process is ended; main threads clean up in it.
    """

    step: int | None
    """The training step; set by whoever makes it."""

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
        self.step = None
        self._timeouts = Timeouts(timeout_seconds, silence_seconds, silence_seconds / 2.5)
        self._beat_seconds, self._grace_seconds = beat_seconds, grace_seconds
        self._channel = HeartbeatChannel(meeting, info)
        self._me, self._is_first = meeting.members[info.rank], info.rank == 0
        self._status, self._changed = Status(), time.monotonic()
        # One attribute: the other threads see number and names change together.
        self._collectives: tuple[int, tuple[str, ...]] = (0, ())
        self._network_error, self._state = "", RUNS
        self._stuck: Activity | None = None
        self._diagnosis: Diagnosis | None = None
        self._failure: Diagnosis | None = None
        self._known, self._wake, self._published = threading.Event(), threading.Event(), threading.Event()
        self._is_over = False
        self._num_beats = 0
        self._reader = ActivityReader(threading.get_ident())
        self._error_before = getattr(sys, "last_value", None)
        self._heart = threading.Thread(target=self._beat, daemon=True, name="heartbeat")
        self._ender = threading.Thread(target=self._end_when_stuck, daemon=True, name="end of the run")
        self._heart.start()
        self._ender.start()

    # Called by the main thread

    @contextmanager
    def collective(self, label: str) -> Iterator[None]:
        """Around a collective, or a transfer between two ranks where the label names both.

        Args:
            label: the same on all ranks that take part; ``gather: rank 1 to rank 0`` if only these two do.

        Raises:
            DistributedError: it failed, with the reason; or the run is known to end.
        """
        if self._diagnosis is not None:
            raise self._diagnosis.error()
        number, outer = self._collectives
        self._collectives = (number if transfer_of(label) else number + 1, (*outer, label))
        try:
            yield
        except BaseException as error:
            explained = self.explained(error)
            if explained is error:
                raise
            raise explained from error
        finally:
            self._collectives = (self._collectives[0], outer)

    def explained(self, error: BaseException) -> BaseException:
        """The reason behind an error of the network, for which it waits a few seconds; other errors as they are."""
        if not _is_of_network(error):
            return error
        text = _one_line(error)
        number, labels = self._collectives
        if labels:
            where = f"collective {number} ({labels[-1]})"
        else:
            # The main thread is no longer there; the others must still see that this rank waits.
            where = self._reader.of(error).text
            self._stuck = Activity(where, waits=True)
        if self._state == RUNS and not self._is_over:
            self._network_error = text
            self._wake.set()
            self._known.wait(_EXPLANATION_SECONDS)
        if self._diagnosis is not None:
            return self._diagnosis.error()
        step = "" if self.step is None else f" of step {self.step}"
        return DistributedError(
            f"an exchange between the ranks failed on {self._me}, {where}{step}",
            got=text,
            remedy="every rank shows signs of life: look at the network between them",
        )

    def fail(self, error: BaseException) -> None:
        """Tell the others that this rank ends with that error. Only the first of all ranks' errors counts."""
        if self._state != RUNS:
            return
        if self._diagnosis is None:
            self._failure = diagnose_error(self._me, self._status._replace(step=self.step), error)
        self._end(FAILED if self._diagnosis is None else TOLD)

    def leave(self) -> None:
        """Tell the others that this rank ends in order. Rank 0, which serves the store, leaves last."""
        if self._is_over:
            return
        error = getattr(sys, "last_value", None)
        if error is not None and error is not self._error_before:
            self.fail(error)  # the interpreter is ending with an error that nobody caught
        is_orderly = self._state == RUNS
        if is_orderly:
            self._end(LEFT)
        if self._is_first:
            self._await_others(self._timeouts.collective if is_orderly else self._grace_seconds)
        if is_orderly and self._diagnosis is not None:
            self._ender.join()  # the run failed after this rank's part: the process ends with the reason
        self._is_over = True
        self._wake.set()
        self._heart.join(self._beat_seconds)

    def _end(self, state: str) -> None:
        self._published.clear()
        self._state = state
        self._wake.set()
        deadline = time.monotonic() + _EXPLANATION_SECONDS
        while self._heart.is_alive() and time.monotonic() < deadline:
            if self._published.wait(self._beat_seconds / 10):
                return

    def _await_others(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._channel.others_ended():
            if self._state == LEFT and self._known.wait(self._beat_seconds):
                return
            time.sleep(self._beat_seconds / 10)

    # The thread that uses the store

    def _beat(self) -> None:
        while True:
            state = self._state
            try:
                self._beat_once(state)
            except dist.DistError:
                self._lose_store(closed=True)
                self._published.set()
                return
            self._num_beats += 1
            if state != RUNS:
                self._published.set()
            if self._is_over or (state != RUNS and not self._is_first):
                return
            is_hurried = self._network_error or state != RUNS or self._diagnosis is not None
            self._wake.wait(self._beat_seconds / 4 if is_hurried else self._beat_seconds)
            self._wake.clear()

    def _beat_once(self, state: str) -> None:
        # Processes first: one that left in order says so before it ends.
        self._channel.check_processes()
        host = self._channel.store_host()
        if host is not None and host.process == "gone":
            self._lose_store()  # known without asking its store, which fills stderr with traces
            return
        self._status = self._status_now(state)
        if state == FAILED and self._failure is not None:
            self._channel.agree_on(self._failure)
        self._channel.publish(self._status)
        found = self._channel.diagnosis()
        self._channel.read_ranks()
        if found is None and self._diagnosis is None and state in (RUNS, LEFT):
            found = diagnose(self._channel.observations(self._status), self._timeouts, self._is_first)
            found = self._channel.agree_on(found) if found else None
        if found is not None and state != FAILED:
            self._accept(found)

    def _status_now(self, state: str) -> Status:
        before, (number, labels) = self._status, self._collectives
        activity = Activity("a collective", waits=True) if labels else self._stuck or self._reader.now()
        label = labels[-1] if labels else ""
        if state == RUNS and self._diagnosis is not None:
            state = TOLD  # so that the rank that serves the store need not stay for this one
        now = Status(before.beat + 1, self.step, *activity, 0.0, number, label, self._network_error, state)
        if now._replace(beat=before.beat, seconds=before.seconds, network_error=before.network_error) != before:
            self._changed = time.monotonic()
        return now._replace(seconds=time.monotonic() - self._changed)

    def _lose_store(self, closed: bool = False) -> None:
        """The store is lost. That is in order where the rank that served it left in order, or this one is leaving."""
        host = self._channel.store_host()
        if self._state == RUNS and (host is None or host.runs):
            silent = 0.0 if closed else self._timeouts.silence
            self._accept(diagnose_lost_store(host, self._channel.address, silent))

    def _accept(self, diagnosis: Diagnosis) -> None:
        if self._diagnosis is None:
            self._diagnosis = diagnosis
            self._known.set()

    # The thread that ends a process whose main thread cannot

    def _end_when_stuck(self) -> None:
        idle, num_beats = 0, 0
        while not self._known.wait(self._beat_seconds):
            if self._is_over or self._state == FAILED:
                return
            idle, num_beats = (idle + 1 if self._num_beats == num_beats else 0), self._num_beats
            host = self._channel.store_host() if idle > 2 else None
            is_dead = host is not None and host.process == "gone"
            # Counted in turns of this loop: a process that was stopped itself makes none.
            if is_dead or idle * self._beat_seconds >= self._timeouts.silence:
                self._lose_store()
                idle = 0
        diagnosis = self._diagnosis
        if diagnosis is None or self._state == FAILED or self._is_over:
            return
        with suppress(OSError, ValueError):  # stderr is closed; there is nobody to tell
            print(f"[rank {self._me.rank}] {diagnosis.report()}", file=sys.stderr, flush=True)
        grace = min(self._grace_seconds, _GRACE_AFTER_SILENCE_SECONDS) if diagnosis.by_silence else self._grace_seconds
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and self._state != LEFT:
            if self._is_over:
                return
            time.sleep(self._beat_seconds / 10)
        _end_process(diagnosis)


def _is_of_network(error: BaseException) -> bool:
    if isinstance(error, DistributedError):
        return False
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and bool(_NETWORK.search(str(error))))


def _one_line(error: BaseException) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    # "[/path/of/gloo/pair.cc:525] Connection closed": where in gloo is of no use to a reader.
    return re.sub(r"^\[[^\]]*\]\s*", "", lines[0])[:300]


def _end_process(diagnosis: Diagnosis) -> None:
    # In a thread: a main thread that hangs while it prints holds the locks of the streams.
    flushing = threading.Thread(target=lambda: [stream.flush() for stream in (sys.stdout, sys.stderr)], daemon=True)
    flushing.start()
    flushing.join(0.5)
    os._exit(diagnosis.error().exit_code)
