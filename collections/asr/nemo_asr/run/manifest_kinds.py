"""Kinds of manifests: JSON lines, the usual one; and what people give in place of it.

A new kind is a subclass of `Source` in a file of its own, under `register_manifest`. Then all commands and data layers
read it. A line has ``audio_filepath`` (or ``audio_filename``), ``duration`` in seconds, ``text`` (or ``text_filepath``,
or ``normalized_text``), perhaps ``offset`` in seconds, ``channel``, ``speaker`` of any type, and a class. Relative
paths start at the manifest's folder, or else at the working directory.
"""

from __future__ import annotations

import os
import re
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType

from nemo_lite.base.errors import MAX_LISTED, DataChangedError, DataError, listed
from nemo_lite.base.files import (
    FileKind,
    JsonLimits,
    is_address,
    may_be_deeper,
    open_descriptor,
    path_in_list,
    problem_of_json,
    read_text,
)

Seconds: TypeAlias = "npt.NDArray[np.float32]"
Integers: TypeAlias = "npt.NDArray[np.integer[Any]]"

MAX_LINE_BYTES = 1 << 20
FROM_WORKING_DIRECTORY = "with a path that starts at the working directory, not at the manifest's folder"
MIX = "mix"  # the average of all channels
CLASS_KEYS = ("command", "target", "label")
MOST_SECONDS = 1e7  # four months
_MOST_CHANNELS = 1024  # of libsndfile
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
        if duration is not None and not (LEAST_SECONDS[needs] < duration <= MOST_SECONDS):
            return f"duration {duration:g} s; write the seconds of audio, above 0"
        if self.offset and not 0.0 <= self.offset <= MOST_SECONDS:
            return f"offset {self.offset:g} s; write the seconds from the start of the file, 0 or more"
        if not self.has_usable_channel:
            return f"channel {self.channel!r}; write 0 for the first, 1 for the second, or {MIX} for the average of all"
        if needs == "text" and not (self.text or self.text_filepath or self.normalized_text or "").strip():
            return "text is missing or empty; write the words, or delete the line"
        return ""


LEAST_SECONDS: dict[str, float] = {"text": 0.0, "duration": -MOST_SECONDS, "audio": 0.0}


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
        and not (line.offset and not 0.0 <= line.offset <= MOST_SECONDS)
        and (line.channel is UNSET or line.has_usable_channel)
    ]
    with np.errstate(over="ignore"):
        seconds = np.array(usable, np.float32)  # NaN where there is none
    if len(usable) != len(lines) or not ((seconds > LEAST_SECONDS[needs]) & (seconds <= MOST_SECONDS)).all():
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
