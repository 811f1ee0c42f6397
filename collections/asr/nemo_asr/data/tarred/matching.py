"""Which recording in the tar shards belongs to which line of a manifest. No audio, no durations.

A member belongs to the lines whose audio path has its name, without folders and without the ending.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from nemo_asr.data.manifest import Manifest
from nemo_asr.data.tarred.members import Member, members_of
from nemo_lite.backends.pytorch.data import MAX_LISTED
from nemo_lite.errors import DataError, counted
from nemo_lite.utils import logging

IN_NO_SHARD = "whose recording is in no tar shard"
_COLUMNS = ("rows", "shards", "firsts", "sizes")
# What lies beside recordings in shards that other tools made, under the same names.
_NO_RECORDINGS = frozenset({".txt", ".json", ".jsonl", ".lab", ".trn", ".cls", ".csv", ".tsv", ".npy", ".md"})


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
        DataError: see `members_of`; two recordings have one name; or with ``strict`` as said there.
    """
    matching = _Matching(manifest)
    for number, path in enumerate(paths):
        for member in members_of(path):
            matching.enter(number, path, member)
    matching.tell(strict)
    return {name: np.array(column, np.int64) for name, column in matching.columns.items()}


class _Matching:
    def __init__(self, manifest: Manifest) -> None:
        self.columns = {name: array("q") for name in _COLUMNS}
        self._manifest = manifest
        self._written = list(manifest.written_paths())
        self._first: dict[str, int] = {}
        self._others: dict[str, list[int]] = {}  # further lines: parts of one recording, or files of other folders
        for row, path in enumerate(self._written):
            stem = _stem(path)
            if self._first.setdefault(stem, row) != row:
                self._others.setdefault(stem, []).append(row)
        self._found: dict[int, tuple[str, int]] = {}  # by row: the member's place and size
        self._without_line, self._repeated = _Noted(), _Noted()

    def enter(self, shard: int, path: str, member: Member) -> None:
        """Take a member that the shard of this number and path has."""
        if os.path.splitext(member.name)[1].lower() in _NO_RECORDINGS:
            return
        place, rows = f"{path}:{member.name}", self._rows_of(member)
        if not rows:
            self._without_line.add(place)
            return
        before, size = self._found.get(rows[0], ("", 0))
        if before and size != member.size:
            problem, remedy = (
                f"{before} has the same name",
                "give recordings different names, as nemo-lite data tar does",
            )
            raise DataError(f"two recordings cannot be told apart: {problem}", place=place, remedy=remedy)
        if before:
            self._repeated.add(place)
            return
        for row in rows:
            self._found[row] = place, member.size
            for column, value in zip(self.columns.values(), (row, shard, member.first, member.size), strict=True):
                column.append(value)

    def _rows_of(self, member: Member) -> list[int]:
        """The lines with its name; where files of several folders have this name, those with its whole path."""
        stem = _stem(member.name)
        if stem not in self._first:
            return []
        rows = [self._first[stem], *self._others.get(stem, ())]
        if len({self._written[row] for row in rows}) == 1:
            return rows
        return [row for row in rows if os.path.normpath(self._written[row]) == os.path.normpath(member.name)]

    def tell(self, strict: bool) -> None:
        """Warn of what is not used, or raise it."""
        name, num_lost = self._manifest.name, len(self._manifest) - len(self._found)
        problems = []
        if num_lost:
            lost = [row for row in range(len(self._manifest)) if row not in self._found][:MAX_LISTED]
            places = ", ".join(self._manifest.place(row) for row in lost)
            problems.append(f"{num_lost} of {len(self._manifest)} lines {IN_NO_SHARD} ({_shortened(places, num_lost)})")
        if self._without_line.count:
            problems.append(f"{self._without_line} in the tar shards without a manifest line")
        if self._repeated.count:
            problems.append(f"{self._repeated} in the tar shards with the name and size of another one")
        if problems and strict:
            remedy = "make the tar shards again (nemo-lite data tar), or leave out strict_data"
            raise DataError("; ".join(problems), place=name, remedy=remedy)
        for problem in problems:
            logging.warning(f"{name}: {problem}: not used")


class _Noted:
    """How many members, and where the first few are."""

    def __init__(self) -> None:
        self.count = 0
        self._places: list[str] = []

    def add(self, place: str) -> None:
        self.count += 1
        if len(self._places) < MAX_LISTED:
            self._places.append(place)

    def __str__(self) -> str:
        return f"{counted(self.count, 'recording')} ({_shortened(', '.join(self._places), self.count)})"


def _shortened(places: str, count: int) -> str:
    return f"{places}, ..." if count > MAX_LISTED else places


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]
