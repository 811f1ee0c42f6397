"""Utterances, of which speech data layers are made, and manifests of them: read, filtered by duration, written.

A `Manifest` keeps three numbers a line (where the line is, its number, its duration) and reads a line again when it is
asked for. No audio is opened here.
"""

from __future__ import annotations

import json
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from nemo_asr.run.arguments import ManyPaths, paths_in
from nemo_asr.run.manifest_kinds import (
    FROM_WORKING_DIRECTORY,
    Integers,
    JsonLines,
    Line,
    Needs,
    Problems,
    Seconds,
    Source,
    kind_of,
)
from nemo_lite.base.errors import MAX_LISTED, DataError, UsageError, counted, did_you_mean
from nemo_lite.base.files import DOWNLOAD, is_address, kind_unless_file, write_atomically

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)
U = TypeVar("U", bound="Utterances[Any]")

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


def evenly(number: int, most: int) -> npt.NDArray[np.int64]:
    """At most so many positions of a set of this number, evenly spread, in their order."""
    return np.linspace(0, number - 1, min(number, most)).astype(np.int64)


def check_limits(min_duration: float | None, max_duration: float | None) -> None:
    """UsageError if no duration can be within the limits."""
    if min_duration is not None and max_duration is not None and min_duration > max_duration:
        raise UsageError(f"min_duration {min_duration:g} s is above max_duration {max_duration:g} s")


_MOST_WEIGHT = 1e6
# One path, several separated by commas, or a sequence of paths.
ManifestPaths: TypeAlias = ManyPaths


class _RequiredKeys(TypedDict):
    audio_filepath: str
    duration: float
    text: str


class Entry(_RequiredKeys, total=False):
    """One manifest line: the audio's path relative to the manifest, seconds, the words.

    Perhaps the speaker, the part of the audio (seconds from its start, the channel from 0), and how well the text fits.
    """

    speaker: str
    offset: float
    channel: int
    score: float


def write_manifest(path: Path, entries: Iterable[Entry]) -> None:
    """Write one JSON object a line.

    Raises:
        UsageError: the file cannot be written; what was there before is untouched.
    """
    lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    write_atomically(path, lambda temporary: temporary.write_text(lines, encoding="utf-8"))


def open_manifest(path: str, strict: bool = False) -> Source:
    """A manifest of the kind of its name, or of JSON lines.

    Raises:
        DataError: it cannot be opened.
    """
    return (kind_of(path) or JsonLines)(path, strict)


def read_lines(path: str, needs: Needs) -> tuple[Source, list[tuple[str, Line]]]:
    """All lines of a manifest, each after its place: for short ones, of recordings to be transcribed or of noises.

    Raises:
        DataError: it cannot be opened, is empty, or has lines that are not valid: the first few, and how many.
    """
    source, problems = open_manifest(path), Problems()
    places_and_lines = [
        (f"{source.path}:{number}", line)
        for block in source.blocks(needs, problems)
        for number, line in zip(block.numbers.tolist(), block.lines, strict=True)
    ]
    if problems.count:
        raise DataError(str(problems))
    if not places_and_lines:
        raise _empty(path)
    return source, places_and_lines


def _empty(path: str) -> DataError:
    return DataError("the manifest is empty", place=path, remedy="it needs one JSON object a line")


class LineRef(NamedTuple):
    """Where one utterance is written: all that a worker needs to read it."""

    source: int
    offset: int
    line: int


class LineReader:
    """Reads utterances of some manifests by reference. Small: this is what a worker process gets.

    Args:
        sources: the manifests.
        labelled: the text of an utterance is the name of its class.
    """

    def __init__(self, sources: Sequence[Source], labelled: bool = False) -> None:
        self.sources, self.labelled = tuple(sources), labelled

    def place(self, ref: LineRef) -> str:
        """``manifest:line``."""
        return f"{self.sources[ref.source].path}:{ref.line}"

    def utterance(self, ref: LineRef) -> Utterance:
        """Read one line again.

        Raises:
            DataChangedError: the manifest is not the file any more that was opened.
            DataError: the file that ``text_filepath`` names cannot be read.
        """
        source, place = self.sources[ref.source], self.place(ref)
        line = source.line(ref.offset)
        written = os.path.expanduser(line.path)
        audio_path = source.resolve(written)
        elsewhere = bool(source.folder) and audio_path == written and not os.path.isabs(written)
        return Utterance(
            place=place,
            audio_path=audio_path,
            duration=line.duration,
            offset=line.start,
            channel=line.channel_number,
            text=class_of(line) if self.labelled else source.text_of(line, place),
            speaker=None if line.speaker is UNSET else line.speaker,
            note=FROM_WORKING_DIRECTORY if elsewhere else "",
        )

    def check_audio(self, utterance: Utterance) -> None:
        """Raise DataError if the audio file is missing or empty."""
        try:
            status = os.stat(utterance.audio_path)
        except OSError as error:
            problem, remedy = f"cannot be opened ({error.strerror})", "mend the path, or delete the line"
            if is_address(utterance.audio_path):
                problem, remedy = "is an address, no file", DOWNLOAD
        else:
            kind = kind_unless_file(status)
            if kind:
                problem, remedy = f"is {kind}", "mend the path, or delete the line"
            elif status.st_size == 0:
                problem, remedy = "is empty (0 bytes)", "make it again, or delete the line"
            else:
                return
        raise DataError(f"the audio file {utterance.audio_path} {problem}", place=utterance.place, remedy=remedy)

    def audio(self, utterance: Utterance) -> str:
        """The path."""
        return utterance.audio_path


def class_of(line: Line) -> str:
    """The class that a line names under one of ``CLASS_KEYS``; "" where there is none. A number is taken as text."""
    value = line.class_label
    return str(value) if isinstance(value, (str, int, float)) else ""


@dataclass(frozen=True, kw_only=True)
class Manifest(Utterances[LineRef]):
    """The utterances of one or more manifest files that passed the filters, in the order of the files.

    Attributes:
        offsets: (N,) where each line is in its file.
        lines: (N,) line number in its file, from 1.
        starts: (files + 1,) the first row of each file.
        weights: of the files, where one is given.
    """

    offsets: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    weights: tuple[float, ...] = ()

    @classmethod
    def open(
        cls,
        paths: ManifestPaths,
        *,
        min_duration: float | None = None,
        max_duration: float | None = None,
        strict: bool = False,
        invalid: list[str] | None = None,
        lenient: bool = False,
    ) -> Manifest:
        """Read and check every line of the manifests, then keep those whose duration is within the limits.

        Args:
            paths: one path, several separated by commas, or a sequence of paths. ``a.json:3`` has the weight 3 in
                training, where others have 1.
            min_duration: seconds, inclusive; None for no limit.
            max_duration: seconds, inclusive; None for no limit.
            strict: relative audio paths start at the manifest's folder only. Otherwise one that leads nowhere there
                starts at the working directory.
            invalid: takes what is wrong with the first few lines that are not valid, and the others are used; without
                it they are an error.
            lenient: lines without a text are used; those with a duration of 0 or less are left out and counted.

        Raises:
            UsageError: contradictory limits.
            DataError: an empty part in the list of paths; a file that is missing, empty, or has lines that are not
                valid; or nothing is left.
        """
        check_limits(min_duration, max_duration)
        parts_of_paths, weights = weighted_paths(paths)
        sources = [open_manifest(path, strict) for path in _checked_paths(parts_of_paths)]
        needs: Needs = "duration" if lenient else "text"
        parts = [_scan(source, needs, invalid) for source in sources]
        offsets, lines, durations = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        manifest = cls(
            paths=tuple(source.path for source in sources),
            reader=LineReader(sources),
            offsets=offsets,
            lines=lines,
            durations=durations,
            starts=np.cumsum([0, *(len(part[0]) for part in parts)], dtype=np.int64),
            weights=weights,
        )
        manifest = manifest.without(manifest.durations <= 0.0, "with a duration of 0 s or less")
        return manifest.between(min_duration, max_duration)

    def refs(self, rows: Integers | Sequence[int]) -> list[LineRef]:
        """Where the utterances at these rows are written."""
        index = np.asarray(rows, dtype=np.int64)
        sources = np.searchsorted(self.starts, index, side="right") - 1
        columns = (sources, self.offsets[index], self.lines[index])
        return [LineRef(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]

    @property
    def weighted_sets(self) -> tuple[Integers, Sequence[float]] | None:
        """The files, where one has a weight."""
        return (self.starts, self.weights) if self.weights else None

    @property
    def sources(self) -> tuple[Source, ...]:
        """The files."""
        assert isinstance(self.reader, LineReader)
        return self.reader.sources

    def written(self) -> Iterator[Line]:
        """The line of each row as it is: much faster than `utterance`, which also finds the audio file."""
        for source, first, last in zip(self.sources, self.starts, self.starts[1:], strict=False):
            yield from source.lines(self.offsets[first:last].tolist())

    def written_paths(self) -> Iterator[str]:
        """The audio path of each row as its line has it."""
        return (line.path for line in self.written())

    def texts(self, rows: range | None = None) -> Iterator[str]:
        """The text of each of these rows, of all by default, as it is written, perhaps in a file of its own.

        Where the reader gives classes, these. Much faster than `utterance`, which also finds the audio file.
        """
        rows = range(len(self)) if rows is None else rows
        if type(self.reader) is not LineReader:
            yield from super().texts(rows)
            return
        for first in range(rows.start, rows.stop, ROWS_AT_ONCE):
            yield from self.texts_at(np.arange(first, min(first + ROWS_AT_ONCE, rows.stop)))

    def texts_at(self, rows: Integers) -> Iterator[str]:
        """The texts of these rows, in any order."""
        assert isinstance(self.reader, LineReader)
        sources = np.searchsorted(self.starts, rows, side="right") - 1
        for part in np.split(rows, np.flatnonzero(np.diff(sources)) + 1):
            if not len(part):
                continue
            source, offsets = self.sources[np.searchsorted(self.starts, part[0], side="right") - 1], self.offsets[part]
            is_in_order = bool((np.diff(offsets) > 0).all())
            lines = source.lines(offsets.tolist()) if is_in_order else map(source.line, offsets.tolist())
            if self.reader.labelled:
                yield from map(class_of, lines)
                continue
            is_usual = type(source).text_of is Source.text_of  # then a text in the line is the text
            for number, line in zip(self.lines[part].tolist(), lines, strict=True):
                yield (is_usual and line.text) or source.text_of(line, f"{source.path}:{number}")

    def only(self, keep: Mask) -> Manifest:
        """Those rows where ``keep`` is true."""
        kept_before = np.concatenate([[0], np.cumsum(keep)])
        return replace(
            self,
            offsets=self.offsets[keep],
            lines=self.lines[keep],
            durations=self.durations[keep],
            starts=kept_before[self.starts],
        )


def _scan(source: Source, needs: Needs, invalid: list[str] | None) -> tuple[npt.NDArray[Any], ...]:
    """The offset, the number and the duration of each line of a manifest, see `Manifest.open`."""
    problems = Problems()
    columns = [(block.offsets, block.numbers, block.durations) for block in source.blocks(needs, problems)]
    num_lines = sum(len(offsets) for offsets, _, _ in columns)
    if problems.count and invalid is not None and num_lines:
        invalid += str(problems).splitlines()
    elif problems.count:
        raise DataError(str(problems))
    if not num_lines:
        raise _empty(source.path)
    return tuple(np.concatenate(column) for column in zip(*columns, strict=True))


_WEIGHT = re.compile(r"(.+):([^:/]*)")


def weighted_paths(paths: ManifestPaths) -> tuple[list[str], tuple[float, ...]]:
    """Every path of the list, and their weights; none where no path has one.

    Raises:
        UsageError: a weight is no number above 0.
    """
    named = paths_in(paths) if isinstance(paths, (str, os.PathLike)) else paths
    parts = [os.path.expanduser(os.fspath(part).strip()) for part in named]
    weights: dict[int, float] = {}
    for number, part in enumerate(parts):
        written = _WEIGHT.fullmatch(part)
        if written is None or os.path.exists(part):
            continue
        try:
            weights[number] = float(written[2])
        except ValueError:
            weights[number] = math.nan
        if not 0.0 < weights[number] <= _MOST_WEIGHT:
            wanted, remedy = f"a number above 0, at most {_MOST_WEIGHT:g}", "leave a set of no weight out"
            problem = "a set's weight, behind the colon, is out of range"
            raise UsageError(problem, place=part, got=repr(written[2]), wanted=wanted, remedy=remedy)
        parts[number] = written[1]
    return parts, tuple(weights.get(number, 1.0) for number in range(len(parts))) if weights else ()


def _checked_paths(parts: list[str]) -> list[str]:
    """Every path of the list: existing files, and what other kinds of manifests recognise."""
    if not parts or not all(parts):
        problem = f'the list of manifests "{",".join(parts)}" has an empty part'
        raise DataError(problem, remedy="write a.json,b.json with no comma at the end")
    missing = [part for part in parts if not os.path.isfile(part) and kind_of(part) in (None, JsonLines)]
    if missing:
        folder, name = os.path.split(missing[0])
        near = f" (there is no folder {folder})"
        if os.path.isdir(folder or os.curdir):
            near = did_you_mean(name, os.listdir(folder or os.curdir))
        is_there = os.path.exists(missing[0])
        problem = f"is {kind_unless_file(os.stat(missing[0]))}" if is_there else f"does not exist{near}"
        if is_address(missing[0]):
            raise DataError("the manifest is an address, no file", place=missing[0], remedy=DOWNLOAD)
        more = f"missing as well: {', '.join(missing[1:])}" if missing[1:] else ""
        made = f", or make one: nemo-lite data make {missing[0]}" if os.path.isdir(missing[0]) else ""
        remedy = more or f"name a file with one JSON object a line{made}"
        raise DataError(f"the manifest {problem}", place=missing[0], remedy=remedy)
    return parts
