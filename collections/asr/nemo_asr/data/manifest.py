"""Manifests: lines with place and duration, read when they are needed."""

from __future__ import annotations

import mmap
import os
import re
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType

from nemo_asr.arguments import ManyPaths
from nemo_asr.audio.reading import audio_seconds, excess_of
from nemo_asr.data.utterances import Integers, Mask, Seconds, Utterance, Utterances, check_limits
from nemo_lite.backends.pytorch.data.loaders import MAX_LISTED, listed
from nemo_lite.backends.pytorch.data.order import DataChangedError
from nemo_lite.errors import DataError, did_you_mean
from nemo_lite.files import (
    FileKind,
    JsonLimits,
    kind_unless_file,
    may_be_deeper,
    open_descriptor,
    open_file,
    path_in_list,
    problem_of_json,
    read_text,
)
from nemo_lite.utils import logging

# One manifest file: checking all of its lines in one pass, and reading one line again later.
# A line: ``audio_filepath`` (or ``audio_filename``), ``duration`` in seconds, ``text`` (or ``text_filepath``, or
# ``normalized_text``), optionally ``offset`` in seconds and ``speaker``, of any type. Relative paths start at the
# manifest's folder, or else at the working directory. Filters, and sets of several manifests: `manifest`.


MAX_LINE_BYTES = 1 << 20
FROM_WORKING_DIRECTORY = "with a path that starts at the working directory, not at the manifest's folder"
_BLOCK_BYTES = 1 << 20  # stays in the second-level cache: scanning whole files at once is bound by memory
_GUESSED_LINE_BYTES = 1 << 12
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NEWLINE, _BRACE = ord("\n"), ord("{")
# The only character that no path can have, and letters of keys, as JSON may spell them: then a key may be there twice.
_NULL_OR_KEY_LETTER = re.compile(rb"\\u00(?:00|5[fF]|[67][0-9a-fA-F])")
_MOST_FOLDERS = 1 << 12
_MOST_SECONDS = 1e7  # four months
_LIMITS = JsonLimits(depth=32, values=10_000)
MANIFEST = FileKind("the manifest", 1 << 40, remedy="a manifest has one JSON object a line")  # read in blocks
_TRANSCRIPT = FileKind("the text file", MAX_LINE_BYTES)
# All but the characters that are counted: quotes, opening brackets, ends of lines.
_NO_MARKS = bytes(set(range(256)) - set(b'"[{\n'))


class Line(msgspec.Struct):
    """The keys of a manifest line that are read; others are allowed and ignored."""

    duration: float
    audio_filepath: str | None = None
    audio_filename: str | UnsetType | None = UNSET
    text: str | None = None
    text_filepath: str | UnsetType | None = UNSET
    normalized_text: str | UnsetType | None = UNSET
    offset: float | UnsetType | None = UNSET
    speaker: object = UNSET


_decoder = msgspec.json.Decoder(Line)


class LineRef(NamedTuple):
    """Where one utterance is written: all that a worker needs to read it."""

    source: int
    offset: int
    line: int


class Source:
    """One manifest file, and what it was when it was opened. Can be sent to another process, which opens it anew.

    Args:
        path: the file.
        strict: relative paths in it start at its folder only.
    """

    def __init__(self, path: str, strict: bool = False) -> None:
        self.path = path
        self.folder = os.path.dirname(path)
        self._only_beside = strict or not self.folder or os.path.abspath(self.folder) == os.getcwd()
        self._are_here: dict[str, bool] = {}
        self._descriptor: int | None = None
        self._identity: tuple[int, int] | None = None
        self._identity = self._seen(self._open())

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

    def line_at(self, offset: int) -> bytes:
        """The bytes from ``offset`` to the end of the line."""
        descriptor, size = self.descriptor(), _GUESSED_LINE_BYTES
        while True:
            data = os.pread(descriptor, size, offset)
            end = data.find(b"\n")
            if end >= 0 or len(data) < size:
                return data[:end] if end >= 0 else data
            size *= 4

    def resolve(self, path: str) -> str:
        """A path written in this manifest, ready to open."""
        path = os.path.expanduser(path)
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


class LineReader:
    """Reads utterances of some manifests by reference. Small: this is what a worker process gets."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = tuple(sources)

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
        line = _decoder.decode(source.line_at(ref.offset))
        written = os.path.expanduser(line.audio_filepath or line.audio_filename or "")
        audio_path = source.resolve(written)
        elsewhere = bool(source.folder) and audio_path == written and not os.path.isabs(written)
        return Utterance(
            place=place,
            audio_path=audio_path,
            duration=line.duration,
            offset=None if line.offset is UNSET else line.offset,
            text=_text_of(line, source, place),
            speaker=None if line.speaker is UNSET else line.speaker,
            note=FROM_WORKING_DIRECTORY if elsewhere else "",
        )

    def check_audio(self, utterance: Utterance) -> None:
        """Raise DataError if the audio file is missing or empty."""
        try:
            status = os.stat(utterance.audio_path)
        except OSError as error:
            problem, remedy = f"cannot be opened ({error.strerror})", "mend the path, or delete the line"
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


class Scan(NamedTuple):
    """What is known of the lines of one file."""

    offsets: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int32]
    durations: Seconds


def scan(source: Source, invalid: list[str] | None = None, lenient: bool = False) -> Scan:
    """Read a manifest from end to end. DataError with the first few lines that are not valid.

    Where ``invalid`` is given, it takes them, and the other lines are used. ``lenient``: a line may lack the text, and
    its duration may be 0 or less.
    """
    offsets, lines, durations = [], [], []
    problems: list[str] = []
    num_problems = num_lines = 0
    for block_offset, block in _blocks(source):
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE)
        starts = np.concatenate([[0], ends[:-1] + 1])
        numbers = np.arange(num_lines + 1, num_lines + 1 + len(starts), dtype=np.int32)
        seconds = _durations_if_all_valid(block, starts, lenient)
        if seconds is None:
            good, seconds, found = _line_by_line(block, starts, ends, lenient)
            num_problems += len(found)
            problems += [f"{source.path}:{numbers[index]}: {text}" for index, text in found[:MAX_LISTED]]
            starts, numbers = starts[good], numbers[good]
        num_lines += len(ends)
        offsets.append(starts.astype(np.int64) + block_offset)
        lines.append(numbers)
        durations.append(seconds)
    if num_problems and invalid is not None and sum(map(len, lines)):
        invalid += listed(problems, num_problems).splitlines()
    elif num_problems:
        raise DataError(listed(problems, num_problems))
    if not sum(map(len, lines)):
        raise DataError("the manifest is empty", place=source.path, remedy="it needs one JSON object a line")
    return Scan(np.concatenate(offsets), np.concatenate(lines), np.concatenate(durations))


def _blocks(source: Source) -> Iterator[tuple[int, bytes]]:
    """Whole lines, about a block of them at a time, each with the byte where it starts."""
    descriptor, offset, pending = source.descriptor(), 0, b""
    while chunk := os.read(descriptor, _BLOCK_BYTES):
        if offset == 0 and not pending and chunk.startswith(_BYTE_ORDER_MARK):
            offset, chunk = len(_BYTE_ORDER_MARK), chunk[len(_BYTE_ORDER_MARK) :]
        data = pending + chunk
        end = data.rfind(b"\n") + 1
        if end:
            yield offset, data[:end]
        pending, offset = data[end:], offset + end
        if len(pending) > MAX_LINE_BYTES:
            problem = f"a line of more than {MAX_LINE_BYTES} bytes starts at byte {offset}"
            raise DataError(problem, place=source.path, remedy="a manifest has one JSON object a line")
    if pending:
        yield offset, pending + b"\n"


def _durations_if_all_valid(block: bytes, starts: Integers, lenient: bool) -> Seconds | None:
    """Seconds of each line, or None where some line needs a closer look. Nearly every block ends here."""
    try:
        lines = _decoder.decode_lines(block)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    # Objects spread over several lines decode too; then the lines and the objects do not correspond.
    if len(lines) != len(starts) or (np.frombuffer(block, np.uint8)[starts] != _BRACE).any():
        return None
    usable = [
        line.duration
        for line in lines
        if (line.audio_filepath or line.audio_filename)
        and (lenient or (line.text or line.text_filepath or line.normalized_text or "").strip())
        and not (line.offset and not 0.0 <= line.offset <= _MOST_SECONDS)
    ]
    with np.errstate(over="ignore"):
        seconds = np.array(usable, np.float32)
    if len(usable) != len(lines) or not ((seconds > 0.0) | lenient).all() or not (abs(seconds) <= _MOST_SECONDS).all():
        return None
    if b"\\" in block and _NULL_OR_KEY_LETTER.search(block):
        return None
    marks = block.translate(None, _NO_MARKS)
    return None if _may_repeat_keys(block, marks, lines) or may_be_deeper(_LIMITS.depth, marks) else seconds


def _may_repeat_keys(block: bytes, marks: bytes, lines: list[Line]) -> bool:
    """Does a key occur more often than lines have it? (A value may be spelled like a key, hence "may".)"""
    num_texts = len(lines) - [line.text for line in lines].count(None)
    num_paths = len(lines) - [line.audio_filepath for line in lines].count(None)
    num_quotes = marks.count(b'"') - 2 * len(lines) - 4 * (num_texts + num_paths)
    num_offsets = len(lines) - [line.offset for line in lines].count(UNSET)
    speakers = [line.speaker for line in lines if line.speaker is not UNSET]
    if num_quotes == 2 * (num_offsets + len(speakers) + sum(isinstance(each, str) for each in speakers)):
        return False  # there are no other keys than those that the lines have, and none twice
    counts = {"duration": len(lines), "text": num_texts, "audio_filepath": num_paths}
    counts |= {"offset": num_offsets, "speaker": len(speakers)}
    for key in ("audio_filename", "text_filepath", "normalized_text"):
        counts[key] = len(lines) - [getattr(line, key) for line in lines].count(UNSET)
    return any(block.count(b'"%b"' % key.encode()) > count for key, count in counts.items() if count)


def _line_by_line(
    block: bytes, starts: Integers, ends: Integers, lenient: bool
) -> tuple[npt.NDArray[np.int64], Seconds, list[tuple[int, str]]]:
    """Indices and seconds of the valid lines, and (index, problem) of the others. Blank lines are passed over."""
    good, seconds, problems = [], [], []
    for index, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        line = block[start:end].strip()
        if not line:
            continue
        problem, duration = _examine(line, lenient)
        if problem:
            problems.append((index, problem))
        else:
            good.append(index)
            seconds.append(duration)
    return np.array(good, np.int64), np.array(seconds, np.float32), problems


def _examine(raw: bytes, lenient: bool) -> tuple[str, float]:
    """(problem, 0) of a line that is not valid, ("", seconds) of one that is."""
    if problem := problem_of_json(raw, _LIMITS):
        return f"{problem}; a manifest has one JSON object a line, each key once", 0.0
    try:
        line = _decoder.decode(raw)
    except msgspec.ValidationError as error:
        return _in_words(str(error)), 0.0
    except (msgspec.DecodeError, ValueError) as error:
        return f"invalid JSON ({error}); a manifest has one JSON object a line", 0.0
    if not (line.audio_filepath or line.audio_filename):
        return "no audio_filepath (or audio_filename); name the audio file", 0.0
    if "\0" in (line.audio_filepath or line.audio_filename or "") + (line.text_filepath or ""):
        return "a path has a null character in it; mend the path, or delete the line", 0.0
    if not (line.duration > 0.0 or lenient) or abs(line.duration) > _MOST_SECONDS:
        return f"duration {line.duration:g} s; write the seconds of audio, above 0", 0.0
    if line.offset and not 0.0 <= line.offset <= _MOST_SECONDS:
        return f"offset {line.offset:g} s; write the seconds from the start of the file, 0 or more", 0.0
    if not lenient and not (line.text or line.text_filepath or line.normalized_text or "").strip():
        return "text is missing or empty; write the words, or delete the line", 0.0
    return "", line.duration


def _in_words(problem: str) -> str:
    """The decoder's finding about a value as a user's sentence."""
    if problem.startswith("Object missing required field"):
        return "no duration; write the seconds of audio"
    expected, _, key = problem.partition(" - at `$.")
    found = expected.replace("`", "").replace("Expected ", "expected ")
    return f"{key.rstrip('`')}: {found}" if key else f"{found}; a manifest has one JSON object a line"


def _text_of(line: Line, source: Source, place: str) -> str:
    if line.text or not line.text_filepath:
        return line.text or line.normalized_text or ""
    path = source.resolve(line.text_filepath)
    text = read_text(path, _TRANSCRIPT, place=f"{place}: {path}").strip()
    if not text:
        raise DataError(f"the text file {path} is empty", place=place)
    return text


# Manifest: the utterances of one or more JSON-lines files, filtered by duration.
# A manifest keeps three numbers a line (where the line starts, its number, its duration) and parses a line again when
# it is asked for. No audio is opened and no text is turned into labels here; what a line holds is above.


# One path, several separated by commas, or a sequence of paths.
ManifestPaths: TypeAlias = ManyPaths


class _Path(msgspec.Struct):
    """The keys of a manifest line that say where the audio is."""

    audio_filepath: str | None = None
    audio_filename: str | None = None


_path_decoder = msgspec.json.Decoder(_Path)


@dataclass(frozen=True, kw_only=True)
class Manifest(Utterances[LineRef]):
    """The utterances of one or more manifest files that passed the filters, in the order of the files.

    Attributes:
        offsets: (N,) byte where each line starts.
        lines: (N,) line number in its file, from 1.
        starts: (files + 1,) the first row of each file.
    """

    offsets: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]

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
            paths: one path, several separated by commas, or a sequence of paths.
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
        sources = [Source(path, strict) for path in _checked_paths(paths)]
        scans = [scan(source, invalid, lenient) for source in sources]
        manifest = cls(
            paths=tuple(source.path for source in sources),
            reader=LineReader(sources),
            offsets=np.concatenate([scan.offsets for scan in scans]),
            lines=np.concatenate([scan.lines for scan in scans]),
            durations=np.concatenate([scan.durations for scan in scans]),
            starts=np.cumsum([0, *(len(scan.offsets) for scan in scans)], dtype=np.int64),
        )
        manifest = manifest.without(manifest.durations <= 0.0, "with a duration of 0 s or less")
        return manifest.between(min_duration, max_duration)

    def refs(self, rows: Integers | Sequence[int]) -> list[LineRef]:
        """Where the utterances at these rows are written."""
        index = np.asarray(rows, dtype=np.int64)
        sources = np.searchsorted(self.starts, index, side="right") - 1
        columns = (sources, self.offsets[index], self.lines[index])
        return [LineRef(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]

    def raw_lines(self) -> Iterator[bytes]:
        """The line of each row, as it is written."""
        for path, first, last in zip(self.paths, self.starts, self.starts[1:], strict=False):
            with open_file(path, MANIFEST) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                for offset in self.offsets[first:last].tolist():
                    end = content.find(b"\n", offset)
                    yield content[offset : end if end >= 0 else len(content)]

    def written_paths(self) -> Iterator[str]:
        """The audio path of each row as its line has it: much faster than `utterance`, which also finds the file."""
        for raw in self.raw_lines():
            line = _path_decoder.decode(raw)
            yield line.audio_filepath or line.audio_filename or ""

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


def _checked_paths(paths: ManifestPaths) -> list[str]:
    """Every path of the list, each an existing file."""
    given = os.fspath(paths).split(",") if isinstance(paths, (str, os.PathLike)) else paths
    parts = [os.path.expanduser(os.fspath(part).strip()) for part in given]
    if not parts or not all(parts):
        problem = f'the list of manifests "{paths}" has an empty part'
        raise DataError(problem, remedy="write a.json,b.json with no comma at the end")
    missing = [part for part in parts if not os.path.isfile(part)]
    if missing:
        is_there = os.path.exists(missing[0])
        found = f"is {kind_unless_file(os.stat(missing[0]))}" if is_there else f"does not exist{_near(missing[0])}"
        others = f"missing as well: {', '.join(missing[1:])}" if missing[1:] else ""
        remedy = others or "name a file with one JSON object a line"
        raise DataError(f"the manifest {found}", place=missing[0], remedy=remedy)
    return parts


def _near(path: str) -> str:
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        return f" (there is no folder {folder})"
    return did_you_mean(os.path.basename(path), os.listdir(folder))


# How long audio files are, where a manifest says something else. Reads headers; no sample is decoded in this file.


CHECKED_FILES = 1000
_CHUNK_ROWS = 256
# More than there are cores: on a network file system most of the time is waiting.
_NUM_THREADS = min(32, 4 + (os.cpu_count() or 1))


def with_file_durations(manifest: Manifest, limit: int = CHECKED_FILES) -> Manifest:
    """The manifest with what its files hold, where that is less than stated by more than 0.1 s and 1 %.

    Filters by duration, batches of equal cost and the check that a text fits its frames need true durations. The
    headers of ``limit`` files, evenly spread, are read; those of all files only if one of these differs. Of a longer
    file only the stated duration is read, so that stays; this is told as well. Files that cannot be read are found
    elsewhere.
    """
    total = len(manifest)
    rows = np.unique(np.linspace(0, total - 1, min(limit, total)).astype(np.int64)).tolist()
    found = _differing(manifest, rows)
    if found and len(rows) < total:
        logging.info(
            f"{manifest.name}: {len(found)} of {len(rows)} durations, evenly spread, differ from their files: reading "
            f"the headers of all {total} files"
        )
        found = _differing(manifest, range(total))
    if not found:
        return manifest
    durations = manifest.durations.copy()
    for row, seconds in found.items():
        durations[row] = min(seconds, float(durations[row]))
    num_cut = sum(seconds > manifest.durations[row] for row, seconds in found.items())
    cut = f" (of {num_cut} longer files the rest is not read)" if num_cut else ""
    worst = max(found, key=lambda row: abs(found[row] - float(manifest.durations[row])))
    logging.warning(
        f"{manifest.name}: {len(found)} of {total} durations differ from their files by more than 0.1 s and 1 %: "
        f"what a file has of its duration is read{cut}. "
        f"The largest difference: {manifest.place(worst)} says {manifest.durations[worst]:.3f} s, "
        f"the file has {found[worst]:.3f} s"
    )
    return replace(manifest, durations=durations)


def _differing(manifest: Manifest, rows: Sequence[int]) -> dict[int, float]:
    """The seconds that the file has from the offset, for each of these rows where its line says others; in order."""
    chunks = [rows[first : first + _CHUNK_ROWS] for first in range(0, len(rows), _CHUNK_ROWS)]
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        parts = list(pool.map(partial(_differing_among, manifest), chunks))
    return {row: seconds for part in parts for row, seconds in part.items()}


def _differing_among(manifest: Manifest, rows: Sequence[int]) -> dict[int, float]:
    found = {}
    for row, ref in zip(rows, manifest.refs(rows), strict=True):
        utterance = manifest.reader.utterance(ref)
        if utterance.duration is None:
            continue
        try:
            seconds = audio_seconds(utterance.audio_path, place=utterance.place) - (utterance.offset or 0.0)
        except DataError:
            continue
        excess = excess_of(seconds, utterance.duration)
        if seconds > 0 and (excess < 0 or (excess and utterance.offset is None)):
            found[row] = seconds
    return found
