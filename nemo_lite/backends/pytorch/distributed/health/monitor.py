"""Watch: each rank tells the others where it is, and all end with one reason when one of them cannot go on.

A thread leaves a sign of life in the store twice a second and reads what the others leave: the first rank all of them,
the others the first one's. Each also sees whether the processes on its own machine exist. The first to find out writes
the verdict (see verdict.py for how it is judged); the others read it. A second thread sees when the store itself is
silent, prints the verdict, and ends a process whose main thread cannot. Collectives are made elsewhere.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch.distributed as dist

from nemo_lite.backends.pytorch.distributed.health import diagnosis as verdicts
from nemo_lite.backends.pytorch.distributed.health.activity import Spot, Whereabouts
from nemo_lite.backends.pytorch.distributed.health.diagnosis import (
    FAILED,
    LEFT,
    RUNS,
    TOLD,
    Limits,
    Status,
    Verdict,
    transfer_of,
)
from nemo_lite.backends.pytorch.distributed.health.heartbeat import Post
from nemo_lite.backends.pytorch.distributed.rendezvous import Meeting
from nemo_lite.errors import DistributedError
from nemo_lite.utils.launch import ProcessInfo

# Main threads get less time to clean up where the verdict itself took a silence: all stays within ten seconds.
_GRACE_AFTER_SILENCE_SECONDS = 1.5
# How long a main thread whose collective failed waits for the reason.
_EXPLANATION_SECONDS = 5.0
_NETWORK = re.compile(r"gloo|nccl|monitoredBarrier|connection (closed|reset|refused)|broken pipe", re.IGNORECASE)


class Watch:
    """Signs of life between the ranks of a run. Made and used by the thread that trains.

    Args:
        meeting: the ranks and their store.
        info: who this process is.
        timeout_seconds: how long a rank may keep another waiting in a collective.
        beat_seconds: between two signs of life.
        silence_seconds: a rank on another machine that gives none for so long is gone.
        grace_seconds: from the verdict until the process is ended; main threads clean up in it.
    """

    step: int | None
    """The training step that is being made; set by whoever makes it."""

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
        self._limits = Limits(timeout_seconds, silence_seconds, silence_seconds / 2.5)
        self._beat_seconds, self._grace_seconds = beat_seconds, grace_seconds
        self._post = Post(meeting, info)
        self._me = meeting.members[info.rank]
        self._is_first = info.rank == 0
        self._status = Status()
        self._changed = time.monotonic()
        # One attribute: the other threads see number and labels change together.
        self._collectives: tuple[int, tuple[str, ...]] = (0, ())
        self._trouble, self._state = "", RUNS
        self._stuck: Spot | None = None
        self._verdict: Verdict | None = None
        self._known, self._wake, self._published = threading.Event(), threading.Event(), threading.Event()
        self._is_over = False
        self._rounds = 0
        self._whereabouts = Whereabouts(threading.get_ident())
        self._error_before = getattr(sys, "last_value", None)
        self._threads = [
            threading.Thread(target=target, daemon=True, name=name)
            for target, name in ((self._beat, "signs of life"), (self._guard, "end of the run"))
        ]
        for thread in self._threads:
            thread.start()

    # What the main thread says

    @contextmanager
    def collective(self, label: str) -> Iterator[None]:
        """Around something that all ranks do together, or two of them where the label names both.

        Args:
            label: the same on all ranks that take part; ``gather: rank 1 to rank 0`` if only these two do.

        Raises:
            DistributedError: it failed, with the reason; or the run is known to end.
        """
        if self._verdict is not None:
            raise self._verdict.error()
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
        """The reason behind an error of the network, waiting a few seconds for it to be known; others as they are."""
        if not _is_of_network(error):
            return error
        text = _one_line(error)
        number, labels = self._collectives
        if labels:
            where = f"collective {number} ({labels[-1]})"
        else:
            # The main thread is no longer there; the others must still see that this rank waits.
            where = self._whereabouts.of(error).text
            self._stuck = Spot(where, True)
        if self._state == RUNS and not self._is_over:
            self._trouble = text
            self._wake.set()
            self._known.wait(_EXPLANATION_SECONDS)
        if self._verdict is not None:
            return self._verdict.error()
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
        if self._verdict is None:
            self._post.failure = verdicts.of_failure(self._me, replace(self._status, step=self.step), error)
        self._end(FAILED if self._verdict is None else TOLD)

    def leave(self) -> None:
        """Tell the others that this rank ends in order. The first rank, which serves the store, leaves last."""
        if self._is_over:
            return
        error = getattr(sys, "last_value", None)
        if error is not None and error is not self._error_before:
            self.fail(error)  # the interpreter is ending with an error that nobody caught
        is_orderly = self._state == RUNS
        if is_orderly:
            self._end(LEFT)
        if self._is_first:
            self._await_others(self._limits.timeout_seconds if is_orderly else self._grace_seconds)
        if is_orderly and self._verdict is not None:
            self._threads[1].join()  # the run failed after this rank's part: the process ends with the reason
        self._is_over = True
        self._wake.set()
        self._threads[0].join(self._beat_seconds)

    def _end(self, state: str) -> None:
        self._published.clear()
        self._state = state
        self._wake.set()
        deadline = time.monotonic() + _EXPLANATION_SECONDS
        while self._threads[0].is_alive() and time.monotonic() < deadline:
            if self._published.wait(self._beat_seconds / 10):
                return

    def _await_others(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._post.others_ended():
            if self._state == LEFT and self._known.wait(self._beat_seconds):
                return
            time.sleep(self._beat_seconds / 10)

    # The thread that speaks with the store

    def _beat(self) -> None:
        while True:
            state = self._state
            try:
                self._round(state)
            except dist.DistError:
                self._lost(closed=True)
                self._published.set()
                return
            self._rounds += 1
            if state != RUNS:
                self._published.set()
            if self._is_over or (state != RUNS and not self._is_first):
                return
            is_hurried = self._trouble or state != RUNS or self._verdict is not None
            self._wake.wait(self._beat_seconds / 4 if is_hurried else self._beat_seconds)
            self._wake.clear()

    def _round(self, state: str) -> None:
        # Processes first: one that left in order says so before it ends.
        self._post.look_at_processes()
        host = self._post.sighting_of_host()
        if host is not None and host.process == "gone":
            self._lost()  # known without asking its store, which fills stderr with traces
            return
        self._status = self._now(state)
        self._post.say(self._status)
        verdict = self._post.verdict()
        self._post.look_at_ranks()
        if verdict is None and self._verdict is None and state in (RUNS, LEFT):
            verdict = verdicts.judge(self._post.sightings(self._status), self._limits, self._is_first)
            verdict = self._post.agreed(verdict) if verdict else None
        if verdict is not None and self._verdict is None and state != FAILED:
            self._know(verdict)

    def _now(self, state: str) -> Status:
        before, (number, labels) = self._status, self._collectives
        spot = Spot("a collective", True) if labels else self._stuck or self._whereabouts.now()
        label = labels[-1] if labels else ""
        if state == RUNS and self._verdict is not None:
            state = TOLD  # so that the rank that serves the store need not stay for this one
        now = Status(before.count + 1, self.step, *spot, 0.0, number, label, self._trouble, state)
        if replace(now, count=before.count, seconds=before.seconds, trouble=before.trouble) != before:
            self._changed = time.monotonic()
        return replace(now, seconds=time.monotonic() - self._changed)

    def _lost(self, closed: bool = False) -> None:
        """The store is lost. That is in order where the rank that served it left in order, or this one is leaving."""
        host = self._post.sighting_of_host()
        if self._state == RUNS and (host is None or host.runs):
            silent = 0.0 if closed else self._limits.silence_seconds
            self._know(verdicts.of_lost_store(host, self._post.address, silent))

    def _know(self, verdict: Verdict) -> None:
        if self._verdict is None:
            self._verdict = verdict
            self._known.set()

    # The thread that ends what cannot end by itself

    def _guard(self) -> None:
        idle, rounds = 0, 0
        while not self._known.wait(self._beat_seconds):
            if self._is_over or self._state == FAILED:
                return
            idle, rounds = (idle + 1 if self._rounds == rounds else 0), self._rounds
            host = self._post.sighting_of_host() if idle > 2 else None
            is_dead = host is not None and host.process == "gone"
            # Counted in turns of this thread: a process that was stopped itself makes none.
            if is_dead or idle * self._beat_seconds >= self._limits.silence_seconds:
                self._lost()
                idle = 0
        verdict = self._verdict
        if verdict is None or self._state == FAILED or self._is_over:
            return
        self._report(verdict)
        grace = min(self._grace_seconds, _GRACE_AFTER_SILENCE_SECONDS) if verdict.by_silence else self._grace_seconds
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and self._state != LEFT:
            if self._is_over:
                return
            time.sleep(self._beat_seconds / 10)
        _end_process(verdict)

    def _report(self, verdict: Verdict) -> None:
        with suppress(OSError, ValueError):  # stderr is closed; there is nobody to tell
            print(f"[rank {self._me.rank}] {verdict.report()}", file=sys.stderr, flush=True)


def _is_of_network(error: BaseException) -> bool:
    if isinstance(error, DistributedError):
        return False
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and bool(_NETWORK.search(str(error))))


def _one_line(error: BaseException) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    # "[/path/of/gloo/pair.cc:525] Connection closed": where in gloo is of no use to a reader.
    return re.sub(r"^\[[^\]]*\]\s*", "", lines[0])[:300]


def _end_process(verdict: Verdict) -> None:
    # In a thread: a main thread that hangs while it prints holds the locks of the streams.
    flushing = threading.Thread(target=lambda: [stream.flush() for stream in (sys.stdout, sys.stderr)], daemon=True)
    flushing.start()
    flushing.join(0.5)
    os._exit(verdict.error().exit_code)
