"""Tar shards: their paths, their members by the headers, and which member is the recording of which manifest line.

Of a line and its member paths decide: they are the same, or one is the end of the other. Endings of names do not count,
for shards may hold the recordings in another format. Contents are not read, and nothing is unpacked to disk.
"""

from __future__ import annotations

import os
import re
import tarfile
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple, TypeAlias, cast

import bracex
import numpy as np
import numpy.typing as npt

from nemo_asr.run.arguments import ManyPaths
from nemo_asr.run.manifest import Manifest
from nemo_asr.run.manifest_kinds import Problems
from nemo_lite.base.errors import MAX_LISTED, DataError, UsageError, counted
from nemo_lite.base.files import FileKind, kind_unless_file, open_file
from nemo_lite.base.tar_files import TarGuard, TarHeader, TarLimits
from nemo_lite.utils import logging

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


SHARD = FileKind("the tar shard", 1 << 42)
_LIMITS = TarLimits(members=1 << 22, expanded_bytes=1 << 42)  # it is not compressed: the file's size bounds it
_BLOCK = 512  # bytes: the unit of tar files
CHUNK_BYTES = 1 << 20
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
    with open_file(path, SHARD) as file:
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
        guard = TarGuard(file, path, SHARD, _LIMITS)
        with tarfile.TarFile(fileobj=cast("BinaryIO", guard), tarinfo=TarHeader) as archive:
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
        problem = (
            f"the tar shard is damaged at byte {end}, after {name}" if name else "this is no tar file, or a damaged one"
        )
        raise DataError(f"{problem} ({error})", place=path, remedy=_AGAIN) from None
    # tarfile takes the end of the file for the end of the archive.
    last = os.pread(file.fileno(), _BLOCK, end)
    if len(last) < _BLOCK:
        after = f", after {name}" if name else ""
        problem, got = f"the tar shard ends early{after}, without the blocks of zeros that end it", f"{size} bytes"
        raise DataError(problem, place=path, got=got, remedy=_AGAIN)


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
    with open_file(paths[one.shard], SHARD) as its_file, open_file(paths[other.shard], SHARD) as other_file:
        for first in range(0, one.member.size, CHUNK_BYTES):
            size = min(CHUNK_BYTES, one.member.size - first)
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
