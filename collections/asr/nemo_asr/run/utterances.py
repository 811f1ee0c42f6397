"""Utterances: what a speech data layer is made of, in files or in archives. Nothing is read here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from nemo_lite.base.errors import MAX_LISTED, DataError, UsageError, counted

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)
U = TypeVar("U", bound="Utterances[Any]")

Seconds: TypeAlias = "npt.NDArray[np.float32]"
Integers: TypeAlias = "npt.NDArray[np.integer[Any]]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"

ROWS_AT_ONCE = 1 << 16


class ByteRange(NamedTuple):
    """A stretch of bytes: in which file, from which byte, how many."""

    file: int
    first: int
    size: int


@dataclass(frozen=True)
class Utterance:
    """One utterance, without its audio.

    Attributes:
        place: where it comes from, for messages: ``manifest:line``.
        audio_path: a file ready to open, or a name in an archive.
        text: the words as written; empty where there are none.
        duration: seconds; None: the audio is read to its end.
        offset: seconds into the audio; None: the utterance is the whole audio.
        channel: of the audio, from 0; None: the average of all.
        speaker: as written, a value of any type; or None.
        note: what is unusual about it and no fault, to complete "12 utterances ...".
        span: where its audio is in a large file, such as a tar shard; None: it is a file of its own.
    """

    place: str
    audio_path: str
    text: str
    duration: float | None = None
    offset: float | None = None
    speaker: object = None
    note: str = ""
    span: ByteRange | None = None
    channel: int | None = None


class UtteranceReader(Protocol[R_contra]):
    """Finds utterances by a reference each. A worker process gets it, so it must be small and picklable."""

    def place(self, ref: R_contra) -> str:
        """Where the utterance comes from."""

    def utterance(self, ref: R_contra) -> Utterance:
        """The utterance.

        Raises:
            DataError: it cannot be used.
            DataChangedError: the source is not what it was when it was opened.
        """

    def check_audio(self, utterance: Utterance) -> None:
        """Raise DataError if its audio is not there. Does not read it."""

    def audio(self, utterance: Utterance) -> str | bytes:
        """The path of its audio file, or the content of one."""


@dataclass(frozen=True)
class Dropped:
    """Utterances left out for one reason."""

    reason: str
    count: int
    seconds: float
    places: tuple[str, ...]

    def __str__(self) -> str:
        dots = ", ..." if self.count > len(self.places) else ""
        return f"{self.count} {self.reason} ({self.seconds / 3600:.2f} h: {', '.join(self.places)}{dots})"


@dataclass(frozen=True, kw_only=True)
class Utterances(ABC, Generic[R]):
    """The utterances of one or more files that passed the filters, in order. A row is a position among them.

    Attributes:
        paths: the files.
        reader: finds one utterance.
        durations: (N,) seconds, perhaps estimated.
        dropped: what the filters left out.
    """

    paths: tuple[str, ...]
    reader: UtteranceReader[R]
    durations: Seconds
    dropped: tuple[Dropped, ...] = ()

    @abstractmethod
    def refs(self, rows: Integers | Sequence[int]) -> list[R]:
        """References by which the reader finds the utterances at these rows."""

    @abstractmethod
    def only(self: U, keep: Mask) -> U:
        """Those rows where ``keep`` is true."""

    def __len__(self) -> int:
        return len(self.durations)

    @property
    def name(self) -> str:
        """The files, for messages."""
        return ",".join(self.paths)

    @property
    def weighted_sets(self) -> tuple[Integers, Sequence[float]] | None:
        """The first row of each set and the number of all rows, and the weights of the sets; None: they have none."""
        return None

    @property
    def seconds(self) -> float:
        """Seconds of audio in all."""
        return float(self.durations.sum(dtype=np.float64))

    def place(self, row: int) -> str:
        """Where the utterance at ``row`` comes from."""
        return self.reader.place(self.refs([row])[0])

    def utterance(self, row: int) -> Utterance:
        """The utterance at ``row``."""
        return self.reader.utterance(self.refs([row])[0])

    def texts(self, rows: range | None = None) -> Iterator[str]:
        """The text of each of these rows, of all by default, as it is written.

        Raises:
            DataError: as the reader's ``utterance``.
        """
        rows = range(len(self)) if rows is None else rows
        for first in range(rows.start, rows.stop, ROWS_AT_ONCE):
            for ref in self.refs(range(first, min(first + ROWS_AT_ONCE, rows.stop))):
                yield self.reader.utterance(ref).text

    def between(self: U, min_duration: float | None, max_duration: float | None) -> U:
        """Those whose duration is within the limits in seconds, inclusive; None for no limit.

        Raises:
            UsageError: contradictory limits.
            DataError: nothing would be left.
        """
        check_limits(min_duration, max_duration)
        kept = self
        if min_duration is not None:
            short = kept.durations < np.float32(min_duration)
            kept = kept.without(short, f"shorter than min_duration {min_duration:g} s")
        if max_duration is not None:
            long = kept.durations > np.float32(max_duration)
            kept = kept.without(long, f"longer than max_duration {max_duration:g} s")
        return kept

    def without(self: U, mask: Mask, reason: str) -> U:
        """Those rows where ``mask`` is false; ``reason`` completes "12 ...".

        Raises:
            DataError: nothing would be left.
        """
        rows = np.flatnonzero(mask)
        if len(rows) == 0:
            return self
        places = tuple(self.place(int(row)) for row in rows[:MAX_LISTED])
        left_out = Dropped(reason, len(rows), float(self.durations[rows].sum(dtype=np.float64)), places)
        dropped = (*self.dropped, left_out)
        if len(rows) == len(self):
            raise DataError(f"no utterance is left: {'; '.join(map(str, dropped))}", place=self.name)
        return replace(self.only(~mask), dropped=dropped)

    def summary(self) -> str:
        """How many utterances were kept and dropped, and why: one line for each."""
        kept = f"{self.name}: {counted(len(self), 'utterance')} kept ({self.seconds / 3600:.2f} h)"
        return "\n".join([kept, *(f"  dropped {dropped}" for dropped in self.dropped)])


def check_limits(min_duration: float | None, max_duration: float | None) -> None:
    """UsageError if no duration can be within the limits."""
    if min_duration is not None and max_duration is not None and min_duration > max_duration:
        raise UsageError(f"min_duration {min_duration:g} s is above max_duration {max_duration:g} s")
