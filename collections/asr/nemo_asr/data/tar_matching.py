"""Which recording in the tar shards belongs to which line of a manifest. No audio, no durations.

Paths decide: the path of a line and that of its member are the same, or one is the end of the other. Endings of names
do not count, for shards may hold the recordings in another format.
"""

from __future__ import annotations

import os
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nemo_asr.data.tar_shards import CHUNK_BYTES, SHARD, Member, members_of
from nemo_asr.run.manifest import Manifest
from nemo_asr.run.manifest_kinds import Problems
from nemo_lite.base.errors import MAX_LISTED, DataError, counted
from nemo_lite.base.files import (
    open_file,
)
from nemo_lite.utils import logging

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
