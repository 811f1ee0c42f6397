"""HealthMonitor: heartbeats between the ranks, and one reason with which all end when one of them cannot go on.

A thread writes a heartbeat to the store twice a second and reads the others': rank 0 all, the others rank 0's. Each
rank also sees whether the processes on its own machine exist. The first to find a problem stores the diagnosis (see
diagnosis.py); the others read it. A second thread notices when the store itself does not answer, prints the diagnosis
(one rank of each machine in full, the others a line), and ends the process if its main thread does not.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch.distributed as dist

from nemo_lite.backends.pytorch.distributed.health.activity import Activity, ActivityReader, last_write
from nemo_lite.backends.pytorch.distributed.health.diagnosis import (
    ABORTED,
    FAILED,
    LEFT,
    RUNNING,
    RUNS,
    TOLD,
    Diagnosis,
    Status,
    Timeouts,
    diagnose,
    diagnose_error,
    diagnose_lost_store,
)
from nemo_lite.backends.pytorch.distributed.health.endings import before_abort, end_process, mark_told, never_abort
from nemo_lite.backends.pytorch.distributed.health.heartbeat import HeartbeatChannel
from nemo_lite.backends.pytorch.distributed.health.origin import Origin, one_line, origin_of, remedy_of
from nemo_lite.backends.pytorch.distributed.rendezvous import Meeting
from nemo_lite.errors import DistributedError
from nemo_lite.utils.launch import ProcessInfo

# Main threads get less time to clean up where finding the reason took a timeout, so that all end within ten seconds.
_GRACE_AFTER_SILENCE_SECONDS = 1.5
# How long a main thread whose collective failed waits for the cause.
_CAUSE_SECONDS = 5.0
# A process that ends closes its connections; so once one has broken, this is enough, however long links may be down.
_SILENCE_AFTER_ERROR_SECONDS = 2.4


class HealthMonitor:
    """Heartbeats between the ranks of a run. Made and used by the thread that trains.

    Args:
        meeting: the ranks and their store.
        info: who this process is.
        timeout_seconds: how long a rank may keep another waiting in a collective.
        beat_seconds: between two heartbeats.
        silence_seconds: a rank on another machine without a heartbeat for so long is gone, and so is a store that does
            not answer.
        grace_seconds: from the diagnosis until the process is ended; main threads clean up in it.
    """

    step: int | None
    """The training step; set by whoever makes it."""
    is_asynchronous: bool
    """Gradients are exchanged while the main thread goes on, as nccl does; set by whoever joins the group."""

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
        self.step, self.is_asynchronous = None, False
        after_error = min(silence_seconds / 2.5, _SILENCE_AFTER_ERROR_SECONDS)
        self._timeouts = Timeouts(timeout_seconds, silence_seconds, after_error)
        self._beat_seconds, self._grace_seconds = beat_seconds, grace_seconds
        self._channel = HeartbeatChannel(meeting, info)
        self._me, self._is_first = meeting.members[info.rank], info.rank == 0
        self._reader = ActivityReader(threading.get_ident())
        self._error_before = getattr(sys, "last_value", None)
        # The main thread sets these, the heartbeat thread sends them, the exit thread reads the state. Number of
        # collectives begun, and label and partner of those that it is in: one attribute, so that they change together.
        self._collectives: tuple[int, tuple[tuple[str, int | None], ...]] = (0, ())
        self._network_error, self._state = "", RUNS
        self._sent: tuple[int, int | None] = (0, None)
        self._failed_in: Activity | None = None
        self._own_error: Diagnosis | None = None
        self._waits_anew = False  # the heartbeat thread takes it back
        # The main thread sets these, the other two read them.
        self._is_over = False
        self._beat_now = threading.Event()
        # The heartbeat thread sets these. It alone uses the last status and its time; the main thread waits for the
        # last beat; the exit thread sees from the number that the store still answers.
        self._status, self._status_since = Status(), time.monotonic()
        self._last_beat_written = threading.Event()
        self._num_beats, self._write_counted = 0, last_write()
        # The heartbeat thread or the exit thread sets these, once; all three read them.
        self._diagnosis: Diagnosis | None = None
        self._diagnosis_known = threading.Event()
        self._report, self._has_own_error, self._telling = "", False, threading.Lock()
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
        text = one_line(error)
        number, labels = self._collectives
        if labels:
            where = Status(num_collectives=number, collective=labels[-1][0], partner=labels[-1][1]).where
        else:
            # The main thread is no longer there; the others must still see that this rank waits.
            where = self._reader.of(error).text
            self._failed_in = Activity(where, waits=True)
        if self._state in RUNNING and not self._is_over:
            self._network_error = text
            self._beat_now.set()
            self._diagnosis_known.wait(_CAUSE_SECONDS)
        if self._diagnosis is not None:
            return self._error_of(self._diagnosis)
        if origin is Origin.BACKWARD:
            return error
        step = "" if self.step is None else f" of step {self.step}"
        return DistributedError(
            f"an exchange between the ranks failed on {self._me}, {where}{step}",
            got=text,
            remedy=remedy_of(text),
        )

    def _error_of(self, diagnosis: Diagnosis) -> DistributedError:
        """For the main thread; the report is printed before."""
        self._tell()
        error = diagnosis.error()
        mark_told(error)
        return error

    def report_own_error(self, error: BaseException) -> None:
        """Tell the others that this rank ends with that error. Only the first of all ranks' errors counts."""
        if self._state not in RUNNING:
            return
        with self._telling:
            # The user reads this error; another rank's, which may be the same, adds nothing, also if it comes later.
            self._report, self._has_own_error = "", True
        if self._diagnosis is None:
            self._own_error = diagnose_error(self._me, self._status._replace(step=self.step), error)
        tells_others = self._diagnosis is None and not getattr(error, "is_common", False)
        self._end(FAILED if tells_others else TOLD)

    def leave(self) -> None:
        """Tell the others that this rank ends in order. Rank 0, which serves the store, leaves last."""
        if self._is_over:
            return
        error = getattr(sys, "last_value", None)
        if error is not None and error is not self._error_before:
            self.report_own_error(error)  # the interpreter is ending with an error that nobody caught
        is_orderly = self._state == RUNS
        if is_orderly:
            self._end(LEFT)
        if self._is_first:
            self._await_others(self._timeouts.collective if is_orderly else self._grace_seconds)
        if is_orderly and self._diagnosis is not None:
            self._exit_thread.join()  # the run failed after this rank's part: the process ends with the reason
        self._tell()
        self._is_over = True
        self._beat_now.set()
        self._heartbeat_thread.join(self._beat_seconds)
        never_abort()

    @property
    def exit_code(self) -> int:
        """With which this process ends, where the run failed."""
        failure = self._own_error or self._diagnosis
        return 1 if failure is None else failure.error().exit_code

    def _end(self, state: str) -> None:
        self._last_beat_written.clear()
        self._state = state
        self._beat_now.set()
        deadline = time.monotonic() + _CAUSE_SECONDS
        while self._heartbeat_thread.is_alive() and time.monotonic() < deadline:
            if self._last_beat_written.wait(self._beat_seconds / 10):
                return

    def _await_others(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._channel.others_ended():
            if self._state == LEFT and self._diagnosis_known.wait(self._beat_seconds):
                return
            time.sleep(self._beat_seconds / 10)

    # Called by the heartbeat thread, which alone uses the store

    def _beat(self) -> None:
        while True:
            state, is_known = self._state, self._diagnosis is not None
            try:
                self._beat_once(state)
            except dist.DistError:
                self._lose_store(closed=True)
                self._last_beat_written.set()
                return
            self._num_beats += 1
            if state not in RUNNING:
                self._last_beat_written.set()
            if self._is_over or ((state not in RUNNING or is_known) and not self._is_first):
                return
            is_hurried = self._network_error or state != RUNS or self._diagnosis is not None
            self._beat_now.wait(self._beat_seconds / 4 if is_hurried else self._beat_seconds)
            self._beat_now.clear()

    def _beat_once(self, state: str) -> None:
        # Processes first: one that left in order says so before it ends.
        self._channel.check_processes()
        server = self._channel.store_server()
        if server is not None and server.process == "gone":
            self._lose_store()  # its store is not asked: torch would fill stderr with traces
            return
        if (lost := self._channel.lost_launcher()) is not None:
            self._accept(*lost)
            return
        self._status = self._status_now(state)
        if state == FAILED and self._own_error is not None:
            self._channel.agree_on(self._own_error)
        self._channel.publish(self._status)
        if last_write() != self._write_counted:
            self._write_counted = last_write()
            self._channel.count_write()
        if not self._is_first and (self._diagnosis is not None or state == FAILED):
            return  # nothing more to learn; and torch prints a trace if the rank that serves the store ends meanwhile
        found = self._channel.diagnosis()
        self._channel.read_ranks()
        if found is None and self._diagnosis is None and state in (*RUNNING, LEFT):
            found = diagnose(self._channel.observations(self._status), self._timeouts, self._is_first)
            found = self._channel.agree_on(found) if found else None
        if found is not None and state != FAILED and self._diagnosis is None:
            self._accept(found, self._claim_report(found))

    def _claim_report(self, found: Diagnosis) -> bool:
        try:
            return self._channel.claim_report()
        except dist.DistError:
            return self._channel.is_lowest_but(found.blamed)

    def _status_now(self, state: str) -> Status:
        before, (number, labels) = self._status, self._collectives
        activity = Activity("a collective", waits=True) if labels else self._failed_in or self._reader.now()
        label, partner = labels[-1] if labels else ("", None)
        if state in RUNNING and self._diagnosis is not None:
            state = TOLD  # so that the rank that serves the store need not stay for this one
        now = Status(before.beat + 1, self.step, *activity, 0.0, number, label, partner, self._network_error, state)
        num_sent, sent_step = self._sent
        now = now._replace(num_sent=num_sent, sent_step=sent_step)
        if now._replace(beat=before.beat, seconds=before.seconds, network_error=before.network_error) != before:
            self._waits_anew = True
        if self._waits_anew:
            self._waits_anew, self._status_since = False, time.monotonic()
        return now._replace(seconds=time.monotonic() - self._status_since)

    def _lose_store(self, closed: bool = False) -> None:
        """The store is lost. That is in order where the rank that served it left in order, or this one is leaving."""
        server = self._channel.store_server()
        if self._state in RUNNING and (server is None or server.runs):
            silent = 0.0 if closed else self._timeouts.silence
            diagnosis = diagnose_lost_store(server, self._channel.address, silent)
            self._accept(diagnosis, self._channel.is_lowest_but(diagnosis.blamed))

    def _accept(self, diagnosis: Diagnosis, prints_all: bool) -> None:
        if self._diagnosis is None:
            with self._telling:
                report = diagnosis.report() if prints_all else diagnosis.short_report()
                self._report = "" if self._has_own_error else report
            self._diagnosis = diagnosis
            self._diagnosis_known.set()

    # Called by any thread

    def _tell(self) -> None:
        """Print this rank's part of the report, once."""
        with self._telling:
            report, self._report = self._report, ""
            if report:
                with suppress(OSError, ValueError):  # stderr is closed; there is nobody to tell
                    print(f"[rank {self._me.rank}] {report}", file=sys.stderr, flush=True)

    def _note_abort(self) -> None:
        if self._state == RUNS:
            self._state = ABORTED
        self._beat_now.set()

    # Called by the exit thread

    def _exit_if_stuck(self) -> None:
        idle, num_beats = 0, 0
        while not self._diagnosis_known.wait(self._beat_seconds):
            if self._is_over or self._state == FAILED:
                return
            idle, num_beats = (idle + 1 if self._num_beats == num_beats else 0), self._num_beats
            server = self._channel.store_server() if idle > 2 else None
            is_dead = server is not None and server.process == "gone"
            # Counted in turns of this loop: a process that was stopped itself makes none.
            if is_dead or idle * self._beat_seconds >= self._timeouts.silence:
                self._lose_store()
                idle = 0
        diagnosis = self._diagnosis
        if diagnosis is None or self._state == FAILED or self._is_over:
            return
        self._tell()
        grace = min(self._grace_seconds, _GRACE_AFTER_SILENCE_SECONDS) if diagnosis.by_silence else self._grace_seconds
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and self._state != LEFT:
            if self._is_over:
                return
            time.sleep(self._beat_seconds / 10)
        end_process(self.exit_code)
