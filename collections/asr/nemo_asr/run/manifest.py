"""Manifests: which kinds there are, the only reader of their lines, and the utterances that are kept of them.

No torch in this file: ``nemo-lite transcribe FILE.onnx`` reads manifests, too.
"""

from __future__ import annotations

import json
import math
import os
import re
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypedDict, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType

from nemo_asr.run.arguments import ManyPaths, paths_in
from nemo_lite.base.errors import MAX_LISTED, DataChangedError, DataError, UsageError, counted, did_you_mean, listed
from nemo_lite.base.files import (
    DOWNLOAD,
    FileKind,
    JsonLimits,
    is_address,
    kind_unless_file,
    may_be_deeper,
    open_descriptor,
    path_in_list,
    problem_of_json,
    read_text,
    write_atomically,
)

# Utterances: what a speech data layer is made of, in files or in archives. Nothing is read here.


R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)
U = TypeVar("U", bound="Utterances[Any]")

Seconds: TypeAlias = "npt.NDArray[np.float32]"
Integers: TypeAlias = "npt.NDArray[np.integer[Any]]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"

_ROWS_AT_ONCE = 1 << 16


class Span(NamedTuple):
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
    span: Span | None = None
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
        for first in range(rows.start, rows.stop, _ROWS_AT_ONCE):
            for ref in self.refs(range(first, min(first + _ROWS_AT_ONCE, rows.stop))):
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


# A line of a manifest: ``audio_filepath`` (or ``audio_filename``), ``duration`` in seconds, ``text`` (or
# ``text_filepath``, or ``normalized_text``), perhaps ``offset`` in seconds, ``channel``, ``speaker`` of any type,
# and a class.
# Relative paths start at the manifest's folder, or else at the working directory.


MAX_LINE_BYTES = 1 << 20
FROM_WORKING_DIRECTORY = "with a path that starts at the working directory, not at the manifest's folder"
MIX = "mix"  # the average of all channels
CLASS_KEYS = ("command", "target", "label")
_MOST_SECONDS = 1e7  # four months
_MOST_CHANNELS = 1024  # of libsndfile
_MOST_WEIGHT = 1e6
MANIFEST = FileKind("the manifest", 1 << 40, remedy="a manifest has one JSON object a line")  # read in blocks
_TRANSCRIPT = FileKind("the text file", MAX_LINE_BYTES)

# What a line must have. "text": a text, and a duration above 0. "duration": any duration; a text may be missing.
# "audio": the audio file; a duration may be missing.
Needs: TypeAlias = Literal["text", "duration", "audio"]


class Line(msgspec.Struct, gc=False):  # hundreds of thousands of them, and none in a cycle
    """The keys of a manifest line that are read; others are allowed and ignored."""

    duration: float | None = None
    audio_filepath: str | None = None
    audio_filename: str | UnsetType | None = UNSET
    text: str | None = None
    text_filepath: str | UnsetType | None = UNSET
    normalized_text: str | UnsetType | None = UNSET
    offset: float | UnsetType | None = UNSET
    channel: int | str | UnsetType | None = UNSET
    speaker: object = UNSET
    command: object = UNSET
    target: object = UNSET
    label: object = UNSET

    @property
    def path(self) -> str:
        """The audio file as it is written; "" where none is named."""
        return self.audio_filepath or self.audio_filename or ""

    @property
    def start(self) -> float | None:
        """The offset in seconds, or None."""
        return None if self.offset is UNSET else self.offset

    @property
    def channel_number(self) -> int | None:
        """The channel, from 0, or None for the average of all."""
        return self.channel if isinstance(self.channel, int) else None

    @property
    def class_label(self) -> object:
        """The value under the first of ``CLASS_KEYS`` that is there, or None."""
        values = (self.command, self.target, self.label)
        return next((value for value in values if value is not UNSET and value is not None), None)

    @property
    def has_usable_channel(self) -> bool:
        """Whether ``channel`` can be one, or is left out."""
        channel = self.channel
        return 0 <= channel < _MOST_CHANNELS if isinstance(channel, int) else channel in (UNSET, None, MIX)

    def problem(self, needs: Needs) -> str:
        """Why the line is not valid, or ""."""
        duration = self.duration
        if not self.path:
            return "no audio_filepath (or audio_filename); name the audio file"
        if "\0" in self.path + (self.text_filepath or ""):
            return "a path has a null character in it; mend the path, or delete the line"
        if duration is None and needs != "audio":
            return "no duration; write the seconds of audio"
        if duration is not None and not (_LEAST_SECONDS[needs] < duration <= _MOST_SECONDS):
            return f"duration {duration:g} s; write the seconds of audio, above 0"
        if self.offset and not 0.0 <= self.offset <= _MOST_SECONDS:
            return f"offset {self.offset:g} s; write the seconds from the start of the file, 0 or more"
        if not self.has_usable_channel:
            return f"channel {self.channel!r}; write 0 for the first, 1 for the second, or {MIX} for the average of all"
        if needs == "text" and not (self.text or self.text_filepath or self.normalized_text or "").strip():
            return "text is missing or empty; write the words, or delete the line"
        return ""


_LEAST_SECONDS: dict[str, float] = {"text": 0.0, "duration": -_MOST_SECONDS, "audio": 0.0}


@dataclass
class Problems:
    """How many there are, and the first few."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        """Count one more."""
        self.count += 1
        if len(self.first) < MAX_LISTED:
            self.first.append(problem)

    def __str__(self) -> str:
        return listed(self.first, self.count)


class Block(NamedTuple):
    """The valid ones among some lines that follow each other.

    Attributes:
        offsets: (N,) where each is: what its manifest needs to find it again.
        numbers: (N,) of the lines, from 1.
        lines: what each has.
        durations: (N,) seconds; NaN where a line has none.
    """

    offsets: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int32]
    lines: Sequence[Line]
    durations: Seconds


class _Entry(TypedDict):
    audio_filepath: str
    duration: float
    text: str


class Entry(_Entry, total=False):
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


# Kinds of manifests. A new kind is a subclass of `Source` in a file of its own, under `register_manifest`: then all
# commands and data layers read it.


S = TypeVar("S", bound="type[Source]")

_LINES_AT_ONCE = 4096
_MOST_FOLDERS = 1 << 12


class Source(ABC):
    """One manifest, and what its file was when it was opened. Can be sent to another process, which opens it anew.

    A subclass says which paths are of its kind (``suffixes``, or `recognises`), and reads `entries` and `line`. Where
    the path is a folder, its constructor hands on the list in it.

    Args:
        path: the file.
        strict: relative paths in it start at its folder only.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()
    """The ends of names of files of this kind, in small letters."""

    def __init__(self, path: str, strict: bool = False) -> None:
        self.path = path
        self.folder = os.path.dirname(path)
        self._only_beside = strict or not self.folder or os.path.abspath(self.folder) == os.getcwd()
        self._are_here: dict[str, bool] = {}
        self._descriptor: int | None = None
        self._identity: tuple[int, int] | None = None
        self._identity = self._seen(self._open())

    @classmethod
    def recognises(cls, path: str) -> bool:
        """Whether a path leads to a manifest of this kind, by its name."""
        return bool(cls.suffixes) and path.lower().endswith(cls.suffixes)

    def entries(self) -> Iterator[tuple[int, int, Line | str]]:
        """Of each line: where it is, its number from 1, and what it has, or in words why it cannot be read."""
        raise NotImplementedError(f"{type(self).__name__} has no entries")

    @abstractmethod
    def line(self, offset: int) -> Line:
        """Read one line again.

        Args:
            offset: as `entries` gave it.

        Raises:
            DataChangedError: the file is another one now, see `descriptor`.
        """

    def lines(self, offsets: Iterable[int]) -> Iterator[Line]:
        """Lines in the order of the file."""
        return map(self.line, offsets)

    def other_keys(self, offset: int) -> dict[str, Any]:
        """The keys of a line besides its audio, its duration and its text, to be copied."""
        return {}

    def blocks(self, needs: Needs, problems: Problems) -> Iterator[Block]:
        """The valid lines from end to end; what is wrong with the others goes to ``problems``."""
        entries = self.entries()
        while some := list(islice(entries, _LINES_AT_ONCE)):
            yield self._valid(some, needs, problems)

    def _valid(self, entries: Iterable[tuple[int, int, Line | str]], needs: Needs, problems: Problems) -> Block:
        offsets, numbers, lines = list[int](), list[int](), list[Line]()
        for offset, number, line in entries:
            problem = line if isinstance(line, str) else line.problem(needs)
            if isinstance(line, str) or problem:
                problems.add(f"{self.path}:{number}: {problem}")
                continue
            offsets.append(offset)
            numbers.append(number)
            lines.append(line)
        durations = np.array([line.duration for line in lines], np.float32)
        return Block(np.array(offsets, np.int64), np.array(numbers, np.int32), lines, durations)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_descriptor": None, "_are_here": {}}

    def _open(self) -> int:
        self._descriptor = open_descriptor(self.path, MANIFEST)
        weakref.finalize(self, os.close, self._descriptor)
        return self._descriptor

    def _seen(self, descriptor: int) -> tuple[int, int]:
        status = os.fstat(descriptor)
        return status.st_size, status.st_mtime_ns

    def descriptor(self) -> int:
        """An open descriptor of the file as it was at first.

        Raises:
            DataChangedError: its size or time of change is another one now.
        """
        descriptor = self._open() if self._descriptor is None else self._descriptor
        if self._seen(descriptor) != self._identity:
            problem = "the manifest changed while it was in use"
            raise DataChangedError(problem, place=self.path, remedy="start the run again")
        return descriptor

    def resolve(self, path: str) -> str:
        """A path written in this manifest, ready to open."""
        path = os.path.expanduser(path)
        if is_address(path):  # refused, with its whole name, where it is opened
            return path
        # Looking for a file costs more than parsing its line; a folder that is not there has none of them.
        if self._only_beside or os.path.isabs(path) or not self._is_here(os.path.dirname(path)):
            return os.path.join(self.folder, path)
        return path_in_list(path, self.folder)

    def _is_here(self, folder: str) -> bool:
        """Whether the working directory has such a folder; asked once for each."""
        if folder not in self._are_here:
            if len(self._are_here) >= _MOST_FOLDERS:
                self._are_here.clear()
            self._are_here[folder] = os.path.isdir(folder or os.curdir)
        return self._are_here[folder]

    def text_of(self, line: Line, place: str) -> str:
        """The words of a line as written, perhaps in a file of their own; "" where there are none.

        Raises:
            DataError: the file cannot be read, or is empty.
        """
        if line.text or not line.text_filepath:
            return line.text or line.normalized_text or ""
        path = self.resolve(line.text_filepath)
        text = read_text(path, _TRANSCRIPT, place=f"{place}: {path}").strip()
        if not text:
            raise DataError(f"the text file {path} is empty", place=place)
        return text


_kinds: list[type[Source]] = []


def register_manifest(kind: S) -> S:
    """Let all commands and data layers read a kind of manifest; a decorator. Later kinds are asked first."""
    _kinds.insert(0, kind)
    return kind


def kind_of(path: str) -> type[Source] | None:
    """The kind of manifest to which a path leads by its name."""
    return next((kind for kind in _kinds if kind.recognises(path)), None)


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


# JSON lines: one object a line.


_BLOCK_BYTES = 1 << 20  # stays in the second-level cache: scanning whole files at once is bound by memory
_GUESSED_LINE_BYTES = 1 << 12
_READ_AHEAD_BYTES = 1 << 16
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NEWLINE, _BRACE = ord("\n"), ord("{")
# The only character that no path can have, and letters of keys, as JSON may spell them: then a key may be there twice.
_NULL_OR_KEY_LETTER = re.compile(rb"\\u00(?:00|5[fF]|[67][0-9a-fA-F])")
_LIMITS = JsonLimits(depth=32, values=10_000)
# All but the characters that are counted: quotes, opening brackets, ends of lines.
_NO_MARKS = bytes(set(range(256)) - set(b'"[{\n'))
_COPIED_KEYS = ("audio_filepath", "audio_filename", "duration", "text", "text_filepath", "normalized_text")

_OBJECTS = re.compile(rb'\}[\s,]*\{\s*"')

_decoder = msgspec.json.Decoder(Line)


@register_manifest
class JsonLines(Source):
    """One JSON object a line, in UTF-8. Blank lines are passed over."""

    suffixes = (".json", ".jsonl")

    def line(self, offset: int) -> Line:
        """Read one line again."""
        return _decoder.decode(self._line_at(offset))

    def _line_at(self, offset: int) -> bytes:
        descriptor, size = self.descriptor(), _GUESSED_LINE_BYTES
        while True:
            data = os.pread(descriptor, size, offset)
            end = data.find(b"\n")
            if end >= 0 or len(data) < size:
                return data[:end] if end >= 0 else data
            size *= 4

    def lines(self, offsets: Iterable[int]) -> Iterator[Line]:
        """Lines in the order of the file.

        Raises:
            DataChangedError: the file is another one now, see `descriptor`.
        """
        if type(self).line is not JsonLines.line:  # a kind of one's own reads lines in its way
            yield from map(self.line, offsets)
            return
        first, data, size = 0, b"", _GUESSED_LINE_BYTES
        for offset in offsets:
            end = data.find(b"\n", offset - first) if first <= offset < first + len(data) else -1
            if end < 0:
                goes_on = first <= offset <= first + len(data)
                size = min(4 * size, _READ_AHEAD_BYTES) if goes_on else _GUESSED_LINE_BYTES
                first, data = offset, os.pread(self.descriptor(), size, offset)
                end = data.find(b"\n")
            if end < 0:  # a longer line, or the last one
                data = self._line_at(offset)
                end = len(data)
            yield _decoder.decode(data[offset - first : end])

    def other_keys(self, offset: int) -> dict[str, Any]:
        """The keys of a line besides its audio, its duration and its text."""
        fields: dict[str, Any] = msgspec.json.decode(self._line_at(offset))
        return {key: value for key, value in fields.items() if key not in _COPIED_KEYS}

    def blocks(self, needs: Needs, problems: Problems) -> Iterator[Block]:
        """The valid lines, about a megabyte of them at a time. Nearly all blocks are decoded in one call."""
        num_lines = 0
        for offset, block in self._whole_lines():
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE)
            starts = np.concatenate([[0], ends[:-1] + 1])
            lines_and_seconds = _lines_if_all_valid(block, starts, needs)
            if lines_and_seconds is None and num_lines == 0:
                self._refuse_other_kind()
            if lines_and_seconds is None:
                yield self._valid(_one_by_one(block, starts, ends, offset, num_lines), needs, problems)
            else:
                numbers = np.arange(num_lines + 1, num_lines + 1 + len(starts), dtype=np.int32)
                yield Block(starts.astype(np.int64) + offset, numbers, *lines_and_seconds)
            num_lines += len(ends)

    def _refuse_other_kind(self) -> None:
        _refuse_other_kind(self.path, os.pread(self.descriptor(), _LOOKED_AT, 0).removeprefix(_BYTE_ORDER_MARK))

    def _whole_lines(self) -> Iterator[tuple[int, bytes]]:
        """Whole lines, about a block of them at a time, each with the byte where it starts."""
        descriptor, offset, pending = self.descriptor(), 0, b""
        while chunk := os.read(descriptor, _BLOCK_BYTES):
            if offset == 0 and not pending and chunk.startswith(_BYTE_ORDER_MARK):
                offset, chunk = len(_BYTE_ORDER_MARK), chunk[len(_BYTE_ORDER_MARK) :]
            data = pending + chunk
            end = data.rfind(b"\n") + 1
            if end:
                yield offset, data[:end]
            pending, offset = data[end:], offset + end
            if len(pending) > MAX_LINE_BYTES and offset == 0:
                self._refuse_other_kind()
            if len(pending) > MAX_LINE_BYTES:
                problem = f"a line of more than {MAX_LINE_BYTES} bytes starts at byte {offset}"
                problem = f"{problem}, with several objects" if _OBJECTS.search(pending[:_LOOKED_AT]) else problem
                raise DataError(problem, place=self.path, remedy="a manifest has one JSON object a line")
        if pending:
            yield offset, pending + b"\n"


def _lines_if_all_valid(block: bytes, starts: Integers, needs: Needs) -> tuple[list[Line], Seconds] | None:
    """The lines and their durations, or None where some of them need a closer look. Nearly every block ends here."""
    try:
        lines = _decoder.decode_lines(block)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    # Objects spread over several lines decode too; then the lines and the objects do not correspond.
    if len(lines) != len(starts) or (np.frombuffer(block, np.uint8)[starts] != _BRACE).any():
        return None
    # As `Line.problem`, which takes three times as long.
    usable = [
        line.duration
        for line in lines
        if (line.audio_filepath or line.audio_filename)
        and (needs != "text" or (line.text or line.text_filepath or line.normalized_text or "").strip())
        and not (line.offset and not 0.0 <= line.offset <= _MOST_SECONDS)
        and (line.channel is UNSET or line.has_usable_channel)
    ]
    with np.errstate(over="ignore"):
        seconds = np.array(usable, np.float32)  # NaN where there is none
    if len(usable) != len(lines) or not ((seconds > _LEAST_SECONDS[needs]) & (seconds <= _MOST_SECONDS)).all():
        return None
    if b"\\" in block and _NULL_OR_KEY_LETTER.search(block):
        return None
    marks = block.translate(None, _NO_MARKS)
    if _may_repeat_keys(block, marks, lines) or may_be_deeper(_LIMITS.depth, marks):
        return None
    return lines, seconds


def _may_repeat_keys(block: bytes, marks: bytes, lines: list[Line]) -> bool:
    """Does a key occur more often than lines have it? (A value may be spelled like a key, hence "may".)"""
    num_texts = len(lines) - [line.text for line in lines].count(None)
    num_paths = len(lines) - [line.audio_filepath for line in lines].count(None)
    num_quotes = marks.count(b'"') - 2 * len(lines) - 4 * (num_texts + num_paths)
    num_offsets = len(lines) - [line.offset for line in lines].count(UNSET)
    speakers = [line.speaker for line in lines if line.speaker is not UNSET]
    channels = [line.channel for line in lines if line.channel is not UNSET]
    num_texts_in_them = sum(isinstance(value, str) for value in (*speakers, *channels))
    if num_quotes == 2 * (num_offsets + len(speakers) + len(channels) + num_texts_in_them):
        return False  # there are no other keys than those that the lines have, and none twice
    counts = {"duration": len(lines), "text": num_texts, "audio_filepath": num_paths}
    counts |= {"offset": num_offsets, "speaker": len(speakers), "channel": len(channels)}
    for key in ("audio_filename", "text_filepath", "normalized_text"):
        counts[key] = len(lines) - [getattr(line, key) for line in lines].count(UNSET)
    return any(block.count(b'"%b"' % key.encode()) > count for key, count in counts.items() if count)


def _one_by_one(
    block: bytes, starts: Integers, ends: Integers, offset: int, num_before: int
) -> Iterator[tuple[int, int, Line | str]]:
    """See `Source.entries`; ``offset`` and ``num_before`` are the bytes and lines before the block."""
    for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True), num_before + 1):
        if raw := block[start:end].strip():
            yield offset + start, number, _decoded(raw)


# What people give in place of JSON lines: how each kind of file begins, and what to do.
_MAKE = "nemo-lite data make {} writes a manifest of it"
_UNPACK = "unpack it first"
_BEGINNINGS = {
    b"\x1f\x8b": ("the manifest is compressed (gzip)", "unpack it first: gunzip -k {}"),
    b"BZh": ("the manifest is compressed (bzip2)", _UNPACK),
    b"\xfd7zXZ": ("the manifest is compressed (xz)", _UNPACK),
    b"\x28\xb5\x2f\xfd": ("the manifest is compressed (zstd)", _UNPACK),
    b"PK\x03\x04": (
        "the manifest is a ZIP archive or a spreadsheet",
        "save it as CSV, of which nemo-lite data make writes a manifest",
    ),
    b"\xff\xfe": ("the manifest is UTF-16", "save it as UTF-8: iconv -f UTF-16 -t UTF-8"),
    b"\xfe\xff": ("the manifest is UTF-16", "save it as UTF-8: iconv -f UTF-16 -t UTF-8"),
    **dict.fromkeys(
        (b"RIFF", b"RF64", b"fLaC", b"OggS", b"ID3", b"\xff\xfb", b"NIST_1A", b"FORM", b".snd", b"caff", b"#!AMR"),
        ("this is a recording, no manifest", "nemo-lite data make FOLDER writes a manifest of a folder of them"),
    ),
}
_LOOKED_AT = 1 << 16  # bytes
_TABLES = {"\t": "tabs (TSV)", "|": "bars", ";": "semicolons (CSV)", ",": "commas (CSV)"}
_SPREAD = re.compile(r"\{(?!.*\}\s*,?\s*$)")  # an object that does not end on its line
_LIST_OF_OBJECTS = re.compile(r"\[\s*\{")
_OBJECT_A_LINE = "write one object a line: jq -c {} OLD.json > NEW.json"


def _refuse_other_kind(path: str, start: bytes) -> None:
    """Raise DataError if a file is of another kind than JSON lines, as a whole, by its first bytes."""
    for beginning, (problem, remedy) in _BEGINNINGS.items():
        if start.startswith(beginning):
            raise DataError(problem, place=path, remedy=remedy.format(path))
    if b"\0" in start[:4]:
        raise DataError("the manifest is UTF-16 or no text", place=path, remedy="save it as UTF-8")
    text = start.decode("utf-8", "replace").lstrip()
    first, *others = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    wanted = "one JSON object a line"
    if _LIST_OF_OBJECTS.match(text):
        remedy = _OBJECT_A_LINE.format("'.[]'")
        raise DataError("the manifest is one JSON list", place=path, wanted=wanted, remedy=remedy)
    if first.startswith("{"):
        if others and _SPREAD.match(first) and not others[0].startswith("{"):
            problem, remedy = "the objects of the manifest have several lines each", _OBJECT_A_LINE.format(".")
            raise DataError(problem, place=path, wanted=wanted, remedy=remedy)
        return
    for delimiter, kind in _TABLES.items():
        if others and all(delimiter in line and not line.startswith("{") for line in (first, others[0])):
            problem = f"the manifest is a table by {kind}"
            is_named = path.lower().endswith((".csv", ".tsv"))
            remedy = _MAKE.format(path) if is_named else f"call it .csv or .tsv: then {_MAKE.format('FILE')}"
            raise DataError(problem, place=path, got=first[:60], wanted=wanted, remedy=remedy)


def _decoded(raw: bytes) -> Line | str:
    """The keys of a line, or in words why it cannot be read."""
    if problem := problem_of_json(raw, _LIMITS):
        return f"{_known_mistake(raw) or problem}; a manifest has one JSON object a line, each key once"
    try:
        return _decoder.decode(raw)
    except msgspec.ValidationError as error:
        expected, _, key = str(error).partition(" - at `$.")
        problem = expected.replace("`", "").replace("Expected ", "expected ")
        return f"{key.rstrip('`')}: {problem}" if key else f"{problem}; a manifest has one JSON object a line"
    except (msgspec.DecodeError, ValueError) as error:
        return f"invalid JSON ({error}); a manifest has one JSON object a line"


def _known_mistake(raw: bytes) -> str:
    """What is wrong with a line that is no JSON, in words that help; "" for what is not known."""
    if raw.endswith(b",") and not problem_of_json(raw[:-1], _LIMITS):
        return "there is a comma behind the object; leave it out"
    if _OBJECTS.search(raw):
        return "there are several objects on the line; write each on a line of its own"
    if raw.startswith(b"{'"):
        return "this is written as Python prints it; write it with json.dumps"
    return ""


# Manifest: the utterances of one or more manifests, filtered by duration. It keeps three numbers a line (where the line
# is, its number, its duration) and reads a line again when it is asked for. No audio is opened here.


# One path, several separated by commas, or a sequence of paths.
ManifestPaths: TypeAlias = ManyPaths


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
        for first in range(rows.start, rows.stop, _ROWS_AT_ONCE):
            yield from self.texts_at(np.arange(first, min(first + _ROWS_AT_ONCE, rows.stop)))

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
        is_there = os.path.exists(missing[0])
        problem = f"is {kind_unless_file(os.stat(missing[0]))}" if is_there else f"does not exist{_near(missing[0])}"
        if is_address(missing[0]):
            raise DataError("the manifest is an address, no file", place=missing[0], remedy=DOWNLOAD)
        more = f"missing as well: {', '.join(missing[1:])}" if missing[1:] else ""
        made = f", or make one: nemo-lite data make {missing[0]}" if os.path.isdir(missing[0]) else ""
        remedy = more or f"name a file with one JSON object a line{made}"
        raise DataError(f"the manifest {problem}", place=missing[0], remedy=remedy)
    return parts


def _near(path: str) -> str:
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        return f" (there is no folder {folder})"
    return did_you_mean(os.path.basename(path), os.listdir(folder))
