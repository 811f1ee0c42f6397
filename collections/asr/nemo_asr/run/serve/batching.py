"""Batches over requests: one thread owns a model, and takes rows of all requests in turn. No HTTP in here."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from nemo_asr.run.engines import BATCH_SECONDS, BATCH_SIZE
from nemo_asr.run.transcribe.inputs import Recording
from nemo_asr.run.transcribe.transcript import Transcribed, Transcript
from nemo_lite.base.nemo_logging import logging

# Any: which search, the model knows; a batcher hands it on.

_LIKE = 2.0  # rows of a batch are at most so many times as long as the first one, or as short: the rest is padding


class Compute(Protocol):
    """Transcribes rows, as they are and as one batch."""

    def __call__(self, rows: Sequence[Recording], search: Any) -> Transcribed:
        """A transcript for each row that can be read, and why others cannot, by position."""


@dataclass(eq=False)
class Job:
    """The rows of one request.

    Attributes:
        search: in the place of greedy decoding; rows with the same one may share a batch.
        on_row: called in the model's thread with each row's number and transcript.
        result: transcripts and faults by row; cancelled where nobody waits for it any more.
    """

    search: Any
    on_row: Callable[[int, Transcript], object] | None
    waiting: deque[tuple[int, Recording]]
    result: Future[tuple[dict[int, Transcript], dict[int, str]]] = field(default_factory=Future)
    num_open: int = 0
    transcripts: dict[int, Transcript] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)


Batch = list[tuple[Job, int, Recording]]


class Batcher:
    """Computes the rows of jobs in one thread.

    A batch begins with a row of the request whose turn it is, and takes rows of like length of all requests in turn: a
    request with one row waits for a batch or two, not for the hour in front of it. Where a batch fails, its rows are
    computed one by one: a row that makes the model fail ends its own request alone.

    Args:
        compute: runs the model; called in the thread alone.
        batch_size: most rows of a batch.
        batch_seconds: no batch of several rows is longer, padding included.
        wait: most seconds that a batch which is not full waits for requests that are about to come; see `expected`.
        observe: called after each batch with its rows, their seconds of audio and the seconds that it took.
    """

    def __init__(
        self,
        compute: Compute,
        batch_size: int = BATCH_SIZE,
        batch_seconds: float = BATCH_SECONDS,
        wait: float = 0.02,
        observe: Callable[[int, float, float], object] = lambda rows, audio, took: None,
    ) -> None:
        self._compute, self._batch_size, self._batch_seconds, self._wait = compute, batch_size, batch_seconds, wait
        self._observe = observe
        self._jobs: deque[Job] = deque()  # those with waiting rows, the one whose turn it is first
        self._changed = threading.Condition()
        self._num_expected = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self._thread.start()

    def submit(
        self, rows: Sequence[Recording], search: Any = None, on_row: Callable[[int, Transcript], object] | None = None
    ) -> Job:
        """Queue the rows of a request; ``job.result`` gets their transcripts, and its ``cancel()`` drops the rest."""
        job = Job(search, on_row, deque(enumerate(rows)), num_open=len(rows))
        with self._changed:
            if self._is_closed:
                job.result.cancel()
            elif rows:
                self._jobs.append(job)
                self._changed.notify()
            else:
                job.result.set_result(({}, {}))
        return job

    @contextmanager
    def expected(self) -> Iterator[Callable[[], None]]:
        """Inside, a request is about to be submitted: batches that are not full wait for it.

        Yields:
            what says that it has been submitted, in any thread; then nothing waits for it any more.
        """
        is_waited_for = True

        def has_come() -> None:
            nonlocal is_waited_for
            with self._changed:
                self._num_expected -= is_waited_for
                is_waited_for = False
                self._changed.notify()

        with self._changed:
            self._num_expected += 1
        try:
            yield has_come
        finally:
            has_come()

    @property
    def waiting_seconds(self) -> float:
        """Of audio that is queued."""
        with self._changed:
            return sum(row.seconds for job in self._jobs for _, row in job.waiting)

    def close(self) -> None:
        """Compute what is queued, then end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._is_closed)
                self._changed.wait_for(lambda: not self._num_expected or self._has_full_batch(), self._wait)
                self._jobs = deque(job for job in self._jobs if not job.result.cancelled())
                batch = self._taken() if self._jobs else []
                if not batch and self._is_closed:
                    return
            if batch:
                self._finish(batch)

    def _has_full_batch(self) -> bool:
        return sum(len(job.waiting) for job in self._jobs) >= self._batch_size

    def _taken(self) -> Batch:
        """The next batch, out of the queue; the turn goes to the next request."""
        leader = self._jobs[0]
        first = leader.waiting[0][1].seconds
        batch: Batch = []
        longest = 0.0
        has_grown = True
        while has_grown and len(batch) < self._batch_size:
            has_grown = False
            for job in self._jobs:
                if job.search is not leader.search or not job.waiting or len(batch) == self._batch_size:
                    continue
                seconds = job.waiting[0][1].seconds
                new_longest = max(longest, seconds)
                is_like = first / _LIKE <= seconds <= first * _LIKE
                if batch and not (is_like and (len(batch) + 1) * new_longest <= self._batch_seconds):
                    continue
                batch.append((job, *job.waiting.popleft()))
                longest, has_grown = new_longest, True
        self._jobs.rotate(-1)
        self._jobs = deque(job for job in self._jobs if job.waiting)
        return batch

    def _finish(self, batch: Batch) -> None:
        started = time.monotonic()
        rows = [row for _, _, row in batch]
        try:
            found = self._compute(rows, batch[0][0].search)
        except Exception as error:  # of a model, or of its memory: the rows that can be computed alone are
            logging.error("A batch of %d rows failed: %s: %s", len(rows), type(error).__name__, error)
            if len(batch) > 1:
                for one in batch:
                    if not one[0].result.done():
                        self._finish([one])
            else:
                self._fail(batch[0][0], error)
            return
        self._observe(len(rows), sum(row.seconds for row in rows), time.monotonic() - started)
        readable = iter(found.transcripts)
        for position, (job, number, _) in enumerate(batch):
            if position in found.faults:
                job.faults[number] = found.faults[position]
            else:
                job.transcripts[number] = next(readable)
                if job.on_row is not None:
                    job.on_row(number, job.transcripts[number])
            job.num_open -= 1
            if not job.num_open and job.result.set_running_or_notify_cancel():
                job.result.set_result((job.transcripts, job.faults))

    def _fail(self, job: Job, error: Exception) -> None:
        with self._changed:
            job.waiting.clear()
            if job in self._jobs:
                self._jobs.remove(job)
        if not job.result.done() and job.result.set_running_or_notify_cancel():
            job.result.set_exception(error)
