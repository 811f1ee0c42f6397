"""The work on recordings before the model has them: until when each may last, and whose turn it is. No HTTP in here."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from nemo_asr.run.serve.openai_api import ApiError
from nemo_lite.base.errors import DataError

_TURN_SECONDS = 0.05  # a turn lasts at least so long where somebody waits
_LOOK_SECONDS = 0.1  # who waits for its turn looks so often whether it still has to


class Turns:
    """Lets so many threads work at a time; of those that wait, who has worked least is next.

    A short recording has its turn at once, also beside many long ones.

    Args:
        num: threads that work at a time.
    """

    def __init__(self, num: int) -> None:
        self._num_free = num
        self._waiting: list[Watch] = []
        self._changed = threading.Condition()

    def take(self, watch: Watch) -> None:
        """Wait for a place. DataError where the watch has ended meanwhile."""
        with self._changed:
            self._waiting.append(watch)
            try:
                while not self._num_free or watch is not min(self._waiting, key=lambda other: other.seconds):
                    watch.check()
                    self._changed.wait(_LOOK_SECONDS)
                self._num_free -= 1
            finally:
                self._waiting.remove(watch)
                self._changed.notify_all()

    def give(self) -> None:
        """Leave the place to others."""
        with self._changed:
            self._num_free += 1
            self._changed.notify_all()

    @property
    def is_anybody_waiting(self) -> bool:
        """Whether somebody has no place."""
        return bool(self._waiting)


class Watch:
    """Bounds of the work on one recording; called while it is decoded, see `nemo_asr.run.audio.decoded.Watch`.

    Inside a ``with`` block the thread has a turn, which passes to others while it is called. Other threads may call it.

    Args:
        turns: of all recordings.
        most_values: samples of all channels that may be decoded.
        deadline: seconds of ``time.monotonic``.
        timed_out: the error behind the deadline.

    Attributes:
        problem: why the work ended; None: it did not.
        seconds: that the work took so far.
    """

    def __init__(self, turns: Turns, most_values: int, deadline: float, timed_out: ApiError) -> None:
        self._turns, self._most_values, self._deadline, self._timed_out = turns, most_values, deadline, timed_out
        self._worker, self._began = 0, 0.0  # the thread that has a turn, and since when
        self.problem: ApiError | None = None
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._take()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._worker:
            self._give()

    def __call__(self, num_values: int) -> None:
        """Go on with so many values. DataError where the work is too much, too late, or not wanted any more."""
        if num_values > self._most_values:
            wanted = f"wanted at most {self._most_values} of all channels"
            text = f"file: it has too many samples, {wanted}; resample it, or send a part of it"
            self.end(ApiError(413, text, param="file", code="file_too_large"))
        self.check()
        has_turn = self._worker == threading.get_ident()
        if has_turn and self._turns.is_anybody_waiting and time.monotonic() - self._began >= _TURN_SECONDS:
            self._give()
            self._take()

    def check(self) -> None:
        """DataError where the work has ended or is too late."""
        if time.monotonic() > self._deadline:
            self.end(self._timed_out)
        if self.problem is not None:
            raise DataError(self.problem.message)

    def end(self, problem: ApiError) -> None:
        """End the work, from any thread. The first problem counts."""
        self.problem = self.problem or problem

    def _take(self) -> None:
        self._turns.take(self)
        self._worker, self._began = threading.get_ident(), time.monotonic()

    def _give(self) -> None:
        self.seconds += time.monotonic() - self._began
        self._worker = 0
        self._turns.give()
