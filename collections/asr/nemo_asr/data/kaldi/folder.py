"""KaldiUtterances: a Kaldi data folder. ``feats.scp`` says where each utterance's features are, ``text`` what it says.

No features are decoded in this file; their headers are read when the folder is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nemo_asr.data.file_spans import FileSpans, Span
from nemo_asr.data.kaldi.matrices import HEADER_BYTES, Header, header_of
from nemo_asr.data.utterances import Integers, Mask, Utterance, Utterances
from nemo_lite.backends.pytorch.data import MAX_LISTED, listed
from nemo_lite.errors import DataError, UsageError
from nemo_lite.untrusted import FileKind, decode_text, numbered_lines, open_descriptor
from nemo_lite.utils import logging

FRAME_SECONDS = 0.01  # Kaldi's usual frame shift, for a folder without utt2dur
_LIST = FileKind("the file", 1 << 40)  # read line by line
_MOST_ARK_BYTES = 1 << 44
_MOST_SECONDS = 1e7  # four months
_BYTE = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"\[[0-9:,]*\]")


class KaldiRef(NamedTuple):
    """One utterance: all that a worker needs to read it."""

    line: int
    utterance: str
    text: str
    duration: float
    span: Span


@dataclass(frozen=True, kw_only=True)
class KaldiUtterance(Utterance):
    """An utterance whose features are in an ark file; its ``audio_path`` is ``file:byte``, as in ``feats.scp``."""

    span: Span


class KaldiReader:
    """Reads utterances of a folder by reference."""

    def __init__(self, scp: str, arks: FileSpans) -> None:
        self.scp, self.arks = scp, arks

    def place(self, ref: KaldiRef) -> str:
        """``feats.scp:line``."""
        return f"{self.scp}:{ref.line}"

    def utterance(self, ref: KaldiRef) -> KaldiUtterance:
        """The utterance."""
        path = f"{self.arks.paths[ref.span.file]}:{ref.span.first}"
        return KaldiUtterance(self.place(ref), path, ref.text, ref.duration, span=ref.span)

    def check_audio(self, utterance: Utterance) -> None:
        """Nothing is left to check: the headers were read when the folder was opened."""

    def audio(self, utterance: Utterance) -> bytes:
        """The matrix as the ark file has it."""
        assert isinstance(utterance, KaldiUtterance), utterance
        return self.arks.read(utterance.span)


@dataclass(frozen=True, kw_only=True)
class KaldiUtterances(Utterances[KaldiRef]):
    """The utterances of a Kaldi folder, in the order of ``feats.scp``.

    Attributes:
        entries: of each utterance what a worker needs.
        num_frames: (N,) frames of each.
        num_features: features of a frame, the same for all.
    """

    entries: tuple[KaldiRef, ...]
    num_frames: npt.NDArray[np.int64]
    num_features: int

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, with_durations: bool = False) -> KaldiUtterances:
        """Read ``feats.scp``, ``text``, ``utt2dur`` if it is there, and the headers of the features.

        Paths are taken as they are written; one that leads nowhere starts at the folder. An utterance without a line in
        ``text`` has an empty text. Without ``utt2dur`` a frame is taken for 10 ms.

        Args:
            folder: the Kaldi data folder.
            with_durations: ``utt2dur`` must be there and have all utterances.

        Raises:
            UsageError: it is not there, and ``with_durations`` asks for it.
            DataError: a file is missing or has lines that are not valid; features are missing, damaged or no binary
                matrices, or have different numbers of features; or the list holds commands, which are not run.
        """
        root = Path(folder).expanduser()
        scp, text, durations = (root / name for name in ("feats.scp", "text", "utt2dur"))
        if with_durations and not durations.is_file():
            remedy = "write it (utils/data/get_utt2dur.sh), or give no limit"
            raise UsageError("min_duration and max_duration need the durations", place=str(durations), remedy=remedy)
        texts, found = _words(text), _Features(scp)
        seconds = _seconds(durations) if durations.is_file() else {}
        if missing := [name for name in found.names if with_durations and name not in seconds]:
            raise DataError(f"{missing[0]} has no duration", place=str(durations), wanted="one for each utterance")
        if unused := len(texts.keys() - set(found.names)):
            logging.warning(f"{text}: {unused} of {len(texts)} texts belong to no utterance of {scp}: not used")
        frames = np.array([header.num_rows for header in found.headers], np.int64)
        times = [seconds.get(name, count * FRAME_SECONDS) for name, count in zip(found.names, frames, strict=True)]
        columns = zip(found.lines, found.names, times, found.spans(), strict=True)
        paths = [str(path) for path in (scp, text, durations) if path.is_file()]
        return cls(
            paths=tuple(paths),
            reader=KaldiReader(str(scp), FileSpans(found.arks, "ark file")),
            durations=np.array(times, np.float32),
            entries=tuple(KaldiRef(line, name, texts.get(name, ""), time, span) for line, name, time, span in columns),
            num_frames=frames,
            num_features=found.headers[0].num_columns,
        )

    @property
    def name(self) -> str:
        """The list, for messages."""
        return self.paths[0]

    def refs(self, rows: Integers | Sequence[int]) -> list[KaldiRef]:
        """What the reader needs to find the utterances at these rows."""
        return [self.entries[row] for row in rows]

    def only(self, keep: Mask) -> KaldiUtterances:
        """Those rows where ``keep`` is true."""
        entries = tuple(entry for entry, kept in zip(self.entries, keep, strict=True) if kept)
        return replace(self, durations=self.durations[keep], entries=entries, num_frames=self.num_frames[keep])


def _lines(path: Path) -> Iterator[tuple[int, str, str]]:
    """Of each line its number, its first word, and what follows it.

    Raises:
        DataError: the file cannot be read, is empty, or a first word comes twice.
    """
    numbers: dict[str, int] = {}
    for place, raw in numbered_lines(path, _LIST):
        number = int(place.rpartition(":")[2])
        name, *rest = decode_text(raw, place, _LIST).split(maxsplit=1)
        if numbers.setdefault(name, number) != number:
            raise DataError(f"{name} occurs a second time, after line {numbers[name]}", place=place)
        yield number, name, "".join(rest).strip()
    if not numbers:
        raise DataError("the file is empty", place=str(path), remedy="it needs a line for each utterance")


def _words(path: Path) -> dict[str, str]:
    return {name: words for _, name, words in _lines(path)}


def _seconds(path: Path) -> dict[str, float]:
    found = {}
    for number, name, value in _lines(path):
        try:
            found[name] = float(value)
            if not 0.0 < found[name] <= _MOST_SECONDS:
                raise ValueError
        except ValueError:
            problem = f"the duration of {name} is no number of seconds"
            raise DataError(problem, place=f"{path}:{number}", got=value, wanted="seconds") from None
    return found


class _Features:
    """Where the features of each line of ``feats.scp`` are, and their headers.

    Attributes:
        lines: the line numbers.
        names: of the utterances.
        headers: of their matrices.
        arks: the files, in the order of their first lines.
    """

    def __init__(self, scp: Path) -> None:
        self.lines, self.names, self.headers = list[int](), list[str](), list[Header]()
        self._places: list[tuple[str, int]] = []
        problems: list[str] = []
        with _Headers(scp.parent) as headers:
            for line, name, written in _lines(scp):
                try:
                    path, first, header = headers.at(*_parsed(written))
                except DataError as error:
                    about = {"got": error.got, "wanted": error.wanted, "remedy": error.remedy}
                    problems.append(str(DataError(error.problem, place=f"{scp}:{line}", **about)))
                    continue
                self._places.append((path, first))
                self.lines.append(line)
                self.names.append(name)
                self.headers.append(header)
        if problems:
            raise DataError(listed(problems[:MAX_LISTED], len(problems)))
        self.arks = list(dict.fromkeys(path for path, _ in self._places))
        self._check_widths(scp)

    def _check_widths(self, scp: Path) -> None:
        wanted = self.headers[0].num_columns
        for line, header in zip(self.lines, self.headers, strict=True):
            if header.num_columns != wanted:
                got = f"{header.num_columns} features a frame"
                raise DataError("frames differ in size", place=f"{scp}:{line}", got=got, wanted=f"{wanted}, as before")

    def spans(self) -> list[Span]:
        """The bytes of each matrix."""
        numbers = {path: number for number, path in enumerate(self.arks)}
        both = zip(self._places, self.headers, strict=True)
        return [Span(numbers[path], first, header.size) for (path, first), header in both]


def _parsed(written: str) -> tuple[str, int]:
    """The file that an entry of ``feats.scp`` names, and the byte at which the matrix starts."""
    if written.endswith("|") or written.startswith("|"):
        remedy = "write the features to an ark file (copy-feats)"
        raise DataError("the features are a command's output, and no command is run", got=written, remedy=remedy)
    if _RANGE.search(written):
        raise DataError("parts of matrices are not read", got=written, remedy="write them to an ark file (copy-feats)")
    path, _, first = written.rpartition(":")
    if not path or not _BYTE.fullmatch(first):
        path, first = written, "0"
    if not path:
        raise DataError("no file is named", wanted="NAME FILE:BYTE")
    return path, int(first)


class _Headers:
    """Reads headers of matrices. The file that was read last stays open: neighbours mostly share one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready: dict[str, str] = {}
        self._path, self._file = "", -1

    def __enter__(self) -> _Headers:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._path, self._file = "", -1

    def at(self, written: str, first: int) -> tuple[str, int, Header]:
        """The path ready to open, the byte, and the header there. DataError if there is no whole matrix."""
        if written not in self._ready:
            self._ready[written] = _ready(written, self._folder)
        path = self._ready[written]
        try:
            if path != self._path:
                self.__exit__()
                self._path, self._file = path, open_descriptor(path, FileKind(f"the ark file {path}", _MOST_ARK_BYTES))
            header = header_of(os.pread(self._file, HEADER_BYTES, first))
            held = os.fstat(self._file).st_size - first
        except OSError as error:
            raise DataError(f"the ark file {path} cannot be read ({error.strerror})") from None
        if held < header.size:
            got, wanted = f"{held} bytes from byte {first}", str(header.size)
            raise DataError(f"the ark file {path} ends early", got=got, wanted=wanted)
        return path, first, header


def _ready(path: str, folder: Path) -> str:
    path = os.path.expanduser(path)
    beside = os.path.join(folder, path)
    return beside if not os.path.exists(path) and os.path.exists(beside) else path
