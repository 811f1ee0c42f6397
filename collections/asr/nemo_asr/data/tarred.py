"""Recordings in tar shards: members and their lines, the data layer, `nemo-lite data tar`."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, NamedTuple, TypeAlias, cast

import bracex
import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.data import Dataset

from nemo_asr.audio.augmentation import AudioAugmentor, Perturbations
from nemo_asr.data.dataset import ItemTensors, JoinedRows, Reading, collate
from nemo_asr.data.file_spans import FileSpans
from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.run.arguments import BatchSize, Duration, ManyPaths, SampleRate, Unusable, Workers
from nemo_asr.run.audio.reading import MAX_CONTENT_BYTES, audio_seconds, excess_of
from nemo_asr.run.manifest import LineReader, LineRef, Manifest, ManifestPaths
from nemo_asr.run.manifest_kinds import Problems
from nemo_asr.run.text.parser import parser_maker
from nemo_asr.run.utterances import Integers, Mask, Span, Utterance, Utterances, check_limits
from nemo_lite.backends.pytorch.data.order import Batching, Plan, Shard, WeightedSets, sequential_plans
from nemo_lite.base.errors import MAX_LISTED, DataError, UsageError, counted, listed
from nemo_lite.base.files import (
    Content,
    FileKind,
    TarGuard,
    TarLimits,
    digest_of,
    kind_unless_file,
    make_writable_folder,
    open_file,
    read_bytes,
    unused_name,
    write_atomically,
)
from nemo_lite.base.ranges import Between, NotNegativeInt, PositiveInt, numbers_checked
from nemo_lite.utils import logging

# The paths of tar shards: a pattern with braces, or a list.


# One path, perhaps with braces, or a sequence of such paths.
ShardPaths: TypeAlias = ManyPaths

_MOST_SHARDS = 100_000  # of one pattern: a typing error must not fill the memory
# NeMo's spellings of a range for shells that expand braces themselves.
_OTHER_BRACES = re.compile(r"[(\[<](\d+\.\.\d+)[)\]>]")


def expanded(paths: ShardPaths) -> list[str]:
    """The paths of the shards, in order: ``audio_{0..63}.tar``, or NeMo's ``audio__OP_0..63_CL_.tar``, are 64.

    Braces mean what they mean in bash (``{00..63}``, ``{a,b}``). A path that exists as it is written stays as it is.

    Raises:
        DataError: there is no path, one is given twice, or a shard is missing or no file: the first one, and how many.
        UsageError: a pattern of more than 100,000 shards.
    """
    patterns = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    if not patterns or not all(map(os.fspath, patterns)):
        raise DataError("the list of tar shards is empty or has an empty part", remedy="name tar files")
    shards = [path for pattern in patterns for path in _expanded(os.path.expanduser(os.fspath(pattern)))]
    for path, count in Counter(shards).items():
        if count > 1:
            raise DataError(f"the tar shard is given {count} times", place=path, remedy="name it once")
    missing = [path for path in shards if not os.path.exists(path)]
    if missing:
        share = f" ({len(missing)} of {len(shards)} are missing)" if len(missing) > 1 else ""
        raise DataError(f"the tar shard does not exist{share}", place=missing[0], remedy="mend the list of tar shards")
    for path in shards:
        if kind := kind_unless_file(os.stat(path)):
            raise DataError(f"the tar shard is {kind}", place=path, wanted="a tar file")
    return shards


def _expanded(pattern: str) -> list[str]:
    if os.path.exists(pattern):
        return [pattern]
    with_braces = _OTHER_BRACES.sub(r"{\1}", pattern.replace("_OP_", "{").replace("_CL_", "}"))
    try:
        return bracex.expand(with_braces, limit=_MOST_SHARDS)
    except bracex.ExpansionLimitException:
        raise UsageError(
            "the pattern has too many tar shards", got=pattern, wanted=f"{_MOST_SHARDS} or fewer"
        ) from None


# What is in a tar shard, by the headers of its members. Contents are not read, and nothing is unpacked to disk.


_SHARD = FileKind("the tar shard", 1 << 42)
_LIMITS = TarLimits(members=1 << 22, expanded_bytes=1 << 42)  # it is not compressed: the file's size bounds it
_BLOCK = 512  # bytes: the unit of tar files
_CHUNK_BYTES = 1 << 20
_AGAIN = "copy it or make it again"
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
# Places in a header, see the POSIX description of ustar.
_NAME, _SIZE, _CHECKSUM = slice(0, 100), slice(124, 136), slice(148, 156)
_KIND, _MAGIC, _PREFIX = 156, slice(257, 263), slice(345, 500)
_OCTAL = re.compile(rb"[0-7]{1,12}")
_REGULAR_FILE = b"0\0"


class Member(NamedTuple):
    """A file in a shard.

    Attributes:
        name: its path in the tar file.
        first: byte of the tar file at which its content starts.
        size: bytes of its content.
    """

    name: str
    first: int
    size: int

    @property
    def end(self) -> int:
        """Where the next header starts: contents are filled up to whole blocks."""
        return self.first + -(-self.size // _BLOCK) * _BLOCK


def members_of(path: str) -> Iterator[Member]:
    """The files in a shard, in order. Only their headers are read.

    Raises:
        DataError: it cannot be opened, is empty, compressed or damaged, or ends early: within a member, or without the
            blocks of zeros that end a tar file.
    """
    with open_file(path, _SHARD) as file:
        try:
            start = file.read(8)
            if not start:
                raise DataError("the tar shard is empty (0 bytes)", place=path, remedy=_AGAIN)
            for magic, kind in _COMPRESSED.items():
                if start.startswith(magic):
                    problem = f"the tar shard is compressed ({kind})"
                    remedy = "decompress it, and compress the recordings"
                    raise DataError(problem, place=path, wanted="a plain tar file", remedy=remedy)
            file.seek(0)
            yield from _regular_members(file, path)
        except OSError as error:
            raise DataError(f"the tar shard cannot be read ({error.strerror})", place=path) from None


def _regular_members(file: BinaryIO, path: str) -> Iterator[Member]:
    end, name = 0, ""
    size = os.fstat(file.fileno()).st_size
    # Nearly all shards have plain headers only. Reading them here takes a quarter of tarfile's time.
    while (plain := _plain_member(os.pread(file.fileno(), _BLOCK, end), end)) is not None:
        if plain.end > size:
            break
        yield plain
        end, name = plain.end, plain.name
    file.seek(end)
    try:
        guard = TarGuard(file, path, _SHARD, _LIMITS)
        with tarfile.TarFile(fileobj=cast("BinaryIO", guard)) as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # it would keep all of them
                content = Member(member.name, member.offset_data, member.size)
                end, name = content.end, content.name
                if member.isreg() and not member.issparse():
                    yield content
            end = archive.offset
    except (tarfile.TarError, ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        if end > size:
            problem, got = f"the tar shard ends early, within {name}", f"{size} bytes"
            raise DataError(problem, place=path, got=got, wanted=f"at least {end}", remedy=_AGAIN) from None
        raise DataError(f"this is no tar file, or a damaged one ({error})", place=path, remedy=_AGAIN) from None
    # tarfile takes the end of the file, and a header that is damaged, for the end of the archive.
    last = os.pread(file.fileno(), _BLOCK, end)
    if len(last) < _BLOCK:
        after = f", after {name}" if name else ""
        problem, got = f"the tar shard ends early{after}, without the blocks of zeros that end it", f"{size} bytes"
        raise DataError(problem, place=path, got=got, remedy=_AGAIN)
    if any(last):
        raise DataError(f"the tar shard is damaged at byte {end}, after {name}", place=path, remedy=_AGAIN)


def _plain_member(header: bytes, start: int) -> Member | None:
    """The file that a header describes; None where tarfile has to look at it: another kind, long names, damage."""
    if len(header) < _BLOCK or header[_KIND] not in _REGULAR_FILE:
        return None
    texts = [header[place].strip(b" \0") for place in (_SIZE, _CHECKSUM)]
    if not all(map(_OCTAL.fullmatch, texts)):  # int() takes a sign and underscores as well
        return None
    size, checksum = (int(text, 8) for text in texts)
    # The sum of all bytes, in which its own eight count as blanks.
    if sum(header) - sum(header[_CHECKSUM]) + 8 * ord(" ") != checksum:
        return None
    name, _, _ = header[_NAME].partition(b"\0")
    prefix, _, _ = header[_PREFIX].partition(b"\0") if header[_MAGIC] == b"ustar\0" else (b"", b"", b"")
    if not name or name.endswith(b"/"):
        return None
    whole = b"/".join([prefix, name]) if prefix else name
    return Member(whole.decode("utf-8", "surrogateescape"), start + _BLOCK, size)


# Which recording in the tar shards belongs to which line of a manifest. No audio, no durations.
# Paths decide: the path of a line and that of its member are the same, or one is the end of the other. Endings of names
# do not count, for shards may hold the recordings in another format.


IN_NO_SHARD = "whose recording is in no tar shard"
_COLUMNS = ("rows", "shards", "firsts", "sizes")
# What lies beside recordings in shards that other tools made, under the same names.
_NO_RECORDINGS = frozenset({".txt", ".json", ".jsonl", ".lab", ".trn", ".cls", ".csv", ".tsv", ".npy", ".md"})
_MOST_FOLDERS = 32  # of a path that count
_AS_IN_SHARDS = "write the paths of the manifest as the tar shards have them"


class _Found(NamedTuple):
    """A member, and the number of its shard."""

    member: Member
    shard: int


def match(manifest: Manifest, paths: Sequence[str], *, strict: bool = False) -> Mapping[str, npt.NDArray[np.int64]]:
    """Read the headers in the shards, find the lines of each member, and warn of what is only in one of them.

    Args:
        manifest: the lines.
        paths: of the shards.
        strict: a line whose recording is in no shard, and a recording without a line, are errors.

    Returns:
        Of each utterance in the order of the shards: its row in the manifest (``rows``), the number of its shard
        (``shards``), the byte at which its recording starts there (``firsts``), and how many bytes it has (``sizes``).

    Raises:
        DataError: see `members_of`; a line that two recordings may belong to, or a recording that two lines of
            different paths may mean; or with ``strict`` as said there.
    """
    written = list(manifest.written_paths())
    rows_by_stem: dict[str, list[int]] = defaultdict(list)
    for row, path in enumerate(written):
        rows_by_stem[_stem(path)].append(row)
    members_by_stem: dict[str, list[_Found]] = defaultdict(list)
    without_line, repeated, elsewhere = Problems(), Problems(), Problems()
    for shard, path in enumerate(paths):
        for member in members_of(path):
            stem, ending = os.path.splitext(os.path.basename(member.name))
            if ending.lower() in _NO_RECORDINGS:
                continue
            if stem in rows_by_stem:
                members_by_stem[stem].append(_Found(member, shard))
            else:
                without_line.add(f"{path}:{member.name}")
    columns = {name: array("q") for name in _COLUMNS}
    lost: list[int] = []
    for stem, rows in rows_by_stem.items():
        if stem not in members_by_stem:
            lost += rows
            continue
        members = _without_repeated(members_by_stem[stem], paths, repeated)
        by_paths = _ByPaths(members) if len(members) > 1 else None
        rows_of_member: dict[str, list[int]] = {}
        for row in rows:
            if by_paths is None:
                found = members[0] if _may_be_one(written[row], members[0].member.name) else None
            else:
                found = _nearest(written[row], by_paths, paths, manifest, row)
            if found is None:
                lost.append(row)
                elsewhere.add(f"{_place(members[0], paths)}, not {written[row]}")
                continue
            others = rows_of_member.setdefault(found.member.name, [])
            if others and not _may_be_one(written[others[0]], written[row]):
                problem = f"two lines mean one recording, {_place(found, paths)}"
                got = f"{written[row]}, and {written[others[0]]} in {manifest.place(others[0])}"
                raise DataError(problem, place=manifest.place(row), got=got, remedy=_AS_IN_SHARDS)
            others.append(row)
            for column, value in zip(columns.values(), (row, found.shard, *found.member[1:]), strict=True):
                column.append(value)
        if len(rows_of_member) < len(members):
            for found in members:
                if found.member.name not in rows_of_member:
                    without_line.add(_place(found, paths))
    _tell_unused(manifest, sorted(lost), without_line, repeated, elsewhere, strict)
    matched = {name: np.array(column, np.int64) for name, column in columns.items()}
    order = np.lexsort([matched[name] for name in ("rows", "firsts", "shards")])
    return {name: column[order] for name, column in matched.items()}


class _ByPaths:
    """Members of one name by their whole paths, and by each end of them.

    Where each recording has a folder of its own, all may have one name, so that lines cannot be compared with all.
    """

    def __init__(self, members: Sequence[_Found]) -> None:
        self._wholes: dict[str, list[_Found]] = defaultdict(list)
        self._ends: dict[str, list[_Found]] = defaultdict(list)
        for found in members:
            ends = _ends_of(found.member.name)
            self._wholes[ends[0]].append(found)
            for end in ends:
                self._ends[end].append(found)

    def nearest(self, path: str) -> list[_Found]:
        """Those with the path, or that end with it, or else those that are the longest end of it."""
        whole, *ends = _ends_of(path)
        known = self._wholes.get(whole) or self._ends.get(whole)
        return known or next((self._wholes[end] for end in ends if end in self._wholes), [])


def _nearest(path: str, by_paths: _ByPaths, paths: Sequence[str], manifest: Manifest, row: int) -> _Found | None:
    """The member that a line means: the one of the nearest path, of several the one of the same ending.

    Raises:
        DataError: there are two such.
    """
    nearest, ending = by_paths.nearest(path), os.path.splitext(path)[1]
    same = [found for found in nearest if os.path.splitext(found.member.name)[1] == ending] or nearest
    if len(same) > 1:
        problem, got = (
            f"two recordings may be meant by {path}",
            f"{_place(same[0], paths)} and {_place(same[1], paths)}",
        )
        remedy = f"{_AS_IN_SHARDS}, folders included"
        raise DataError(problem, place=manifest.place(row), got=got, remedy=remedy)
    return same[0] if same else None


def _without_repeated(members: list[_Found], paths: Sequence[str], repeated: Problems) -> list[_Found]:
    """The members without those of the very path and content of another one, which are counted.

    Raises:
        DataError: two of one path have different contents.
    """
    if len(members) < 2:
        return members
    first: dict[str, _Found] = {}
    for found in members:
        name = os.path.normpath(found.member.name)
        before = first.setdefault(name, found)
        if before is found:
            continue
        if not _have_one_content(before, found, paths):
            problem = f"two recordings have one name: the other is {_place(before, paths)}"
            remedy = "give recordings different names, as nemo-lite data tar does"
            raise DataError(problem, place=_place(found, paths), remedy=remedy)
        repeated.add(_place(found, paths))
    return list(first.values())


def _have_one_content(one: _Found, other: _Found, paths: Sequence[str]) -> bool:
    if one.member.size != other.member.size:
        return False
    with open_file(paths[one.shard], _SHARD) as its_file, open_file(paths[other.shard], _SHARD) as other_file:
        for first in range(0, one.member.size, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, one.member.size - first)
            content = os.pread(its_file.fileno(), size, one.member.first + first)
            if content != os.pread(other_file.fileno(), size, other.member.first + first):
                return False
    return True


def _may_be_one(one: str, other: str) -> bool:
    """Whether two paths may be those of one recording. Nearly all that are can be told without taking them apart."""
    if one == other or one.endswith(f"/{other}") or other.endswith(f"/{one}"):
        return True
    ends, its_ends = _ends_of(one), _ends_of(other)
    return its_ends[0] in ends or ends[0] in its_ends


def _ends_of(path: str) -> list[str]:
    """A path without what leads to its first folder and without the ending, and each end of it, the longest first."""
    folder, name = os.path.split(os.path.normpath(path))
    parts = [part for part in folder.split(os.sep) if part not in ("", os.curdir, os.pardir)][-_MOST_FOLDERS:]
    return ["/".join([*parts[first:], _stem(name)]) for first in range(len(parts) + 1)]


def _place(found: _Found, paths: Sequence[str]) -> str:
    return f"{paths[found.shard]}:{found.member.name}"


def _tell_unused(
    manifest: Manifest,
    lost: Sequence[int],
    without_line: Problems,
    repeated: Problems,
    elsewhere: Problems,
    strict: bool,
) -> None:
    """Warn of what is not used, or raise it."""
    problems = []
    if lost:
        places = _shortened(", ".join(manifest.place(row) for row in lost[:MAX_LISTED]), len(lost))
        named = f"; of another folder is {elsewhere.first[0]}" if elsewhere.count else ""
        problems.append(f"{len(lost)} of {len(manifest)} lines {IN_NO_SHARD} ({places}{named})")
    if without_line.count:
        problems.append(f"{_recordings_at(without_line)} in the tar shards without a manifest line")
    if repeated.count:
        problems.append(f"{_recordings_at(repeated)} in the tar shards with the name and content of another one")
    if problems and strict:
        remedy = "make the tar shards again (nemo-lite data tar), or leave out strict_data"
        raise DataError("; ".join(problems), place=manifest.name, remedy=remedy)
    for problem in problems:
        logging.warning(f"{manifest.name}: {problem}: not used")


def _recordings_at(places: Problems) -> str:
    return f"{counted(places.count, 'recording')} ({_shortened(', '.join(places.first), places.count)})"


def _shortened(places: str, count: int) -> str:
    return f"{places}, ..." if count > MAX_LISTED else places


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


# TarredUtterances: the lines of a manifest whose recordings are in tar shards, in the order of the shards.


class TarRef(NamedTuple):
    """Where one utterance is: its line, and its recording's bytes."""

    line: LineRef
    span: Span


class TarredReader:
    """Reads lines of manifests and members of tar shards."""

    def __init__(self, lines: LineReader, shards: FileSpans) -> None:
        self.lines, self.shards = lines, shards

    def place(self, ref: TarRef) -> str:
        """``manifest:line``."""
        return self.lines.place(ref.line)

    def utterance(self, ref: TarRef) -> Utterance:
        """Read one line again, see `LineReader.utterance`; its ``audio_path`` is ``shard:member``."""
        line = self.lines.utterance(ref.line)
        path = f"{self.shards.paths[ref.span.file]}:{os.path.basename(line.audio_path)}"
        return replace(line, audio_path=path, span=ref.span)

    def check_audio(self, utterance: Utterance) -> None:
        """Raise DataError if its member is empty, or too large to be read at once."""
        assert utterance.span is not None, utterance
        size = utterance.span.size
        if not 0 < size <= MAX_CONTENT_BYTES:
            problem = "is empty (0 bytes)" if size == 0 else f"has {size} bytes, more than {MAX_CONTENT_BYTES}"
            remedy = "make the tar shard again, or delete the line"
            raise DataError(f"{utterance.audio_path} {problem}", place=utterance.place, remedy=remedy)

    def audio(self, utterance: Utterance) -> bytes:
        """The member's content."""
        self.check_audio(utterance)
        assert utterance.span is not None, utterance
        return self.shards.read(utterance.span)


@dataclass(frozen=True, kw_only=True)
class TarredUtterances(Utterances[TarRef]):
    """The utterances of some manifests whose recordings are in tar shards, in the order of the shards' members.

    Attributes:
        manifest: the lines.
        rows: (N,) position of each utterance in the manifest.
        shards: (N,) number of the shard of each utterance, ascending.
        firsts: (N,) byte of the shard at which its recording starts.
        sizes: (N,) bytes of its recording.
        num_shards: how many shards there are.
    """

    manifest: Manifest
    rows: npt.NDArray[np.int64]
    shards: npt.NDArray[np.int64]
    firsts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    num_shards: int

    @classmethod
    def open(cls, shards: ShardPaths, manifests: ManifestPaths, *, strict: bool = False) -> TarredUtterances:
        """Read the manifests, and the headers in the shards; log what is only in one of them.

        Args:
            shards: see `expanded`.
            manifests: see `Manifest.open`.
            strict: a line whose recording is in no shard, a recording without a line, and a line without a text or with
                a duration of 0 or less, are errors.

        Raises:
            DataError: a manifest or a shard that cannot be used, a line that two recordings fit, lines of two paths
                that mean one, or no recording that is in both.
        """
        paths = expanded(shards)
        manifest = Manifest.open(
            manifests, strict=True, lenient=not strict
        )  # its paths lead nowhere: do not look for the files
        if manifest.weights:
            problem, remedy = "sets in tar shards have no weights", "leave them out, or train on the files themselves"
            raise UsageError(problem, place=manifest.name, remedy=remedy)
        columns = match(manifest, paths, strict=strict)
        rows = columns["rows"]
        lost = np.ones(len(manifest), bool)
        lost[rows] = False
        return cls(
            paths=manifest.paths,
            reader=TarredReader(LineReader(manifest.sources), FileSpans(paths, "tar shard")),
            durations=manifest.durations[rows],
            dropped=manifest.without(lost, IN_NO_SHARD).dropped,
            manifest=manifest,
            num_shards=len(paths),
            **columns,
        )

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """(shards + 1,) the first utterance of each shard, and the number of all."""
        starts: npt.NDArray[np.int64] = np.searchsorted(self.shards, np.arange(self.num_shards + 1))
        return starts

    def refs(self, rows: Integers | Sequence[int]) -> list[TarRef]:
        """Where the utterances at these rows are."""
        index = np.asarray(rows, np.int64)
        columns = (self.shards[index], self.firsts[index], self.sizes[index])
        spans = (Span(*values) for values in zip(*(column.tolist() for column in columns), strict=True))
        return [TarRef(*both) for both in zip(self.manifest.refs(self.rows[index]), spans, strict=True)]

    def texts(self, rows: range | None = None) -> Iterator[str]:
        """The text of each of these rows, of all by default, as its line has it."""
        return self.manifest.texts_at(self.rows if rows is None else self.rows[rows.start : rows.stop])

    def only(self, keep: Mask) -> TarredUtterances:
        """Those rows where ``keep`` is true."""
        columns = {name: getattr(self, name)[keep] for name in ("durations", "rows", "shards", "firsts", "sizes")}
        return replace(self, **columns)


# TarredAudioToTextDataLayer: transcribed speech from tar shards.


class TarredAudioToTextDataLayer(SpeechDataLayer):
    """Utterances of tar shards: audio (B, T) at ``sample_rate``, label ids (B, U), and their lengths (B,).

    A recording in a shard belongs to the manifest line whose audio path, without its ending, is the same, or the end of
    the recording's, or ends with it.
    Recordings without a line, and lines without a recording, are counted, warned of and not used; the others are
    ``len(layer)``. Recordings are read from the shards; nothing is unpacked to disk.

    In training the shards come in another order in each epoch. Laid end to end they are cut into one stretch for each
    rank, of equal numbers of utterances but for one. A rank reads its stretch from front to back, so any number of
    shards suits any number of ranks, and each utterance comes once. The order is a pure function of (shards, seed,
    epoch, rank, world size): the number of workers does not matter. In evaluation the order is that of the shards.

    The arguments that are not explained here are those of `SpeechDataLayer`.

    Args:
        audio_tar_filepaths: the shards: a path, with braces for several (``audio_{0..63}.tar``, in shells that expand
            them ``audio__OP_0..63_CL_.tar``), or a list.
        manifest_filepath: one manifest, several separated by commas, or a list: the lines of all recordings.
        shuffle_n: in training this many neighbours are shuffled among themselves; they are read within this window. 0:
            utterances come in the order of their shard.
        shuffle: in training, another order of the shards in each epoch.
        strict_data: as of `AudioToTextDataLayer`; also a recording without a line, and a line whose recording is in no
            shard, are errors.

    Raises:
        UsageError: arguments that contradict each other.
        DataError: a shard that is missing, damaged, compressed or ends early; a manifest that is missing, empty or has
            lines that are not valid; a line that two recordings fit, or lines of two paths that mean one.
        ConfigError: labels that cannot be a vocabulary.
    """

    remedy: ClassVar[str] = "make the tar shards again without the damaged files, or raise max_corrupt"
    join_reach: ClassVar[int | None] = 256  # neighbours: shards are read from front to back

    def __init__(
        self,
        audio_tar_filepaths: ShardPaths,
        manifest_filepath: ManifestPaths,
        labels: Sequence[str],
        batch_size: BatchSize,
        sample_rate: SampleRate = 16000,
        int_values: bool = False,
        bos_id: int | None = None,
        eos_id: int | None = None,
        pad_id: int | None = None,
        min_duration: Duration | None = 0.1,
        max_duration: Duration | None = None,
        normalize_transcripts: bool = True,
        trim_silence: bool = False,
        shuffle_n: Annotated[int, Between(0, 1_000_000_000)] = 0,
        num_workers: Workers | None = None,
        augmentor: Perturbations | AudioAugmentor | None = None,
        drop_last: bool = False,
        shuffle: bool = True,
        max_corrupt: Unusable | None = None,
        parser: str = "auto",
        language: str | None = None,
        pin_memory: bool | None = None,
        strict_data: bool = False,
        name: str | None = None,
        strip_marks: bool | None = None,
    ) -> None:
        # What costs nothing to check comes before the shards are read.
        new_parser = parser_maker(labels, parser, normalize_transcripts, language, strip_marks)
        check_limits(min_duration, max_duration)
        batching = Batching(batch_size, shuffle, drop_last=drop_last)
        utterances = TarredUtterances.open(audio_tar_filepaths, manifest_filepath, strict=strict_data)
        super().__init__(
            utterances.between(min_duration, max_duration),
            new_parser,
            reading=Reading(sample_rate, int_values, trim_silence, True, bos_id, eos_id, pad_id, strict_data),
            batching=batching,
            augmentor=augmentor,
            max_corrupt=max_corrupt,
            num_workers=num_workers,
            pin_memory=pin_memory,
            name=name,
        )
        self._shuffle_n = shuffle_n

    @property
    def dataset(self) -> Dataset[tuple[Tensor, ...]]:
        """Single utterances in the order of the shards, for scripts that make batches with ``collate_fn``.

        Each is audio (T,), its length, label ids (U,) and their number, unperturbed.
        """
        return ItemTensors(self.utterances, self._new_dataset())

    def collate_fn(self, items: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """A batch of items of ``dataset``, in port order."""
        audio, labels = [item[0].numpy() for item in items], [item[2].tolist() for item in items]
        return collate(audio, labels, self._reading.pad_id or 0)

    def _plans(
        self, training: bool, shard: Shard, rows: JoinedRows | None, sets: WeightedSets | None
    ) -> Callable[[int], Plan]:
        if not training:
            return super()._plans(training, shard, rows, sets)
        assert sets is None, "shards are read from front to back"
        assert isinstance(self.utterances, TarredUtterances)
        starts, batching, window = self.utterances.starts, self._batching, self._shuffle_n
        return sequential_plans(starts, batching, shard, window)

    def fingerprint(self) -> Mapping[str, Any]:
        """The manifests' content, the names and sizes of the shards, where the recordings are; no folders."""
        fingerprint = dict(super().fingerprint())
        fingerprint.pop(f"{self.label}.manifest_filepath")  # its content counts
        utterances = self.utterances
        assert isinstance(utterances, TarredUtterances)
        assert isinstance(utterances.reader, TarredReader)
        shards = utterances.reader.shards
        names = [os.path.basename(path) for path in shards.paths]
        used = ~self._textless  # the same before and after training left the others out
        spans = [column[used].tobytes() for column in (utterances.rows, utterances.shards, utterances.firsts)]
        return {**fingerprint, f"tar shards of {self.label}": Content(digest_of([names, shards.sizes, *spans]))}


# make_shards: the recordings of manifests into tar shards, and a manifest of them.
# Names and layout are NeMo's: ``audio_0.tar``, ``audio_1.tar``, ... and ``tarred_audio_manifest.json``, whose lines
# have the member's name and ``shard_id``. Names have no folder, and one dot: WebDataset takes what is before the
# first dot.


MANIFEST_NAME = "tarred_audio_manifest.json"
_RECORDING = FileKind("the audio file", MAX_CONTENT_BYTES, remedy="cut it into shorter ones")  # as a reader of shards


@dataclass(frozen=True)
class MadeShards:
    """The tar shards and their manifest.

    Attributes:
        shards: the paths of the tar shards.
        manifest: the path of their manifest.
        num_lines: lines in it.
        num_recordings: recordings in the shards; a recording may have several lines with an ``offset`` each.
        seconds: of audio, all lines together.
        num_bytes: of the shards.
    """

    shards: tuple[Path, ...]
    manifest: Path
    num_lines: int
    num_recordings: int
    seconds: float
    num_bytes: int


@numbers_checked
def make_shards(
    manifests: ManifestPaths,
    folder: str | os.PathLike[str],
    *,
    num_shards: PositiveInt = 1,
    shuffle: bool = False,
    seed: NotNegativeInt = 0,
    min_duration: float | None = None,
    max_duration: float | None = None,
) -> MadeShards:
    """Write tar shards of equal numbers of recordings, but for one, and last their manifest.

    Recordings are taken over as they are. A line's other keys are kept, its text is written into it, and its duration
    is at most what the file has. Equal input gives equal files.

    Args:
        manifests: see `Manifest.open`.
        folder: made if it is not there; it must hold no tar shards yet.
        num_shards: how many.
        shuffle: put the recordings into a random order first; without it they keep the manifest's.
        seed: of that order.
        min_duration: seconds; shorter utterances are left out.
        max_duration: seconds; longer utterances are left out.

    Raises:
        UsageError: more shards than recordings, or a folder that cannot be written to or holds shards.
        DataError: a manifest that is not valid; recordings that are missing or damaged.
    """
    manifest = Manifest.open(manifests, min_duration=min_duration, max_duration=max_duration, lenient=True)
    recordings = _recordings(manifest)
    if num_shards > len(recordings):
        got, wanted = str(num_shards), f"at most {len(recordings)}, as many as there are recordings"
        raise UsageError("there are more shards than recordings", place=manifest.name, got=got, wanted=wanted)
    target = _new_folder(folder)
    order = np.random.default_rng(seed).permutation(len(recordings)) if shuffle else np.arange(len(recordings))
    audio_paths = list(recordings)
    names = _names(audio_paths)
    lines: list[dict[str, Any]] = []
    paths = []
    for number, part in enumerate(np.array_split(order, num_shards)):
        paths.append(target / f"audio_{number}.tar")
        rows_by_path = {audio_paths[index]: recordings[audio_paths[index]] for index in part.tolist()}
        lines += _write_shard(paths[-1], manifest, rows_by_path, names, number)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_atomically(target / MANIFEST_NAME, lambda path: path.write_text(text, encoding="utf-8"))
    seconds, num_bytes = sum(line["duration"] for line in lines), sum(path.stat().st_size for path in paths)
    return MadeShards(tuple(paths), target / MANIFEST_NAME, len(lines), len(recordings), seconds, num_bytes)


def _recordings(manifest: Manifest) -> dict[str, list[int]]:
    """The rows of each recording's path, in the order of first lines. DataError if some are missing or empty."""
    rows_of: dict[str, list[int]] = {}
    problems: list[str] = []
    for row in range(len(manifest)):
        utterance = manifest.utterance(row)
        if utterance.audio_path not in rows_of:
            try:
                manifest.reader.check_audio(utterance)
            except DataError as error:
                problems.append(str(error))
        rows_of.setdefault(utterance.audio_path, []).append(row)
    if problems:
        raise DataError(listed(problems[:MAX_LISTED], len(problems)))
    return rows_of


def _new_folder(folder: str | os.PathLike[str]) -> Path:
    target = make_writable_folder(os.fspath(folder))
    there = sorted(path.name for path in (*target.glob("audio_*.tar"), *target.glob(MANIFEST_NAME)))
    if there:
        remedy = "choose another folder, or remove these files"
        raise UsageError("the folder holds tar shards already", place=str(target), got=there[0], remedy=remedy)
    return target


def _names(paths: Sequence[str]) -> dict[str, str]:
    """The member's name of each path: the folders below the common one, and the file, joined by underscores."""
    full = [os.path.abspath(path) for path in paths]
    common = os.path.commonpath([os.path.dirname(path) for path in full])
    stems: dict[str, str] = {}
    names = {}
    for path, whole in zip(paths, full, strict=True):
        stem, ending = os.path.splitext(os.path.relpath(whole, common))
        stem = unused_name(stem.replace(os.sep, "_").replace(".", "_"), stems)
        stems[stem] = path
        names[path] = stem + ending
    return names


def _write_shard(
    path: Path, manifest: Manifest, recordings: Mapping[str, Sequence[int]], names: Mapping[str, str], number: int
) -> list[dict[str, Any]]:
    """Write one shard; the lines of its recordings."""
    lines: list[dict[str, Any]] = []

    def write(temporary: Path) -> None:
        with tarfile.open(temporary, "w") as archive:
            for recording, rows in recordings.items():
                content = read_bytes(recording, _RECORDING)
                member = tarfile.TarInfo(names[recording])  # no times, no owners: equal input, equal files
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
                for ref in manifest.refs(rows):
                    utterance = manifest.reader.utterance(ref)
                    line = {
                        "audio_filepath": names[recording],
                        "duration": _duration(utterance, content),
                        "text": utterance.text,
                    }
                    other_keys = manifest.sources[ref.source].other_keys(ref.offset)
                    lines.append({**line, **other_keys, "shard_id": number})

    write_atomically(path, write)
    return lines


def _duration(utterance: Utterance, content: bytes) -> float:
    """The seconds that its line says, or those that the file has where these are clearly fewer."""
    held = audio_seconds(content, name=utterance.audio_path, place=utterance.place) - (utterance.offset or 0.0)
    said = utterance.duration
    return round(held, 4) if said is None or excess_of(held, said) < 0.0 else said
