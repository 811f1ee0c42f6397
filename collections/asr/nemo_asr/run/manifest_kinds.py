"""Kinds of manifests. A new kind is a subclass of `Source` in a file of its own, under `register_manifest`.

Then all commands and data layers read it. A line has ``audio_filepath`` (or ``audio_filename``), ``duration`` in
seconds, ``text`` (or ``text_filepath``, or ``normalized_text``), perhaps ``offset`` in seconds, ``channel``,
``speaker`` of any type, and a class. Relative paths start at the manifest's folder, or else at the working directory.
"""

from __future__ import annotations

import os
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

from nemo_asr.run.utterances import Seconds
from nemo_lite.base.errors import MAX_LISTED, DataChangedError, DataError, listed
from nemo_lite.base.files import FileKind, is_address, open_descriptor, path_in_list, read_text

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
