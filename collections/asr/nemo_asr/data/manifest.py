"""Manifests: which audio holds which words, over one or more JSON-lines files, filtered by duration.

A manifest keeps three numbers a line (where the line starts, its number, its duration) and parses a line again when it
is asked for. No audio is opened and no text is turned into labels in this file; what a line holds: `manifest_lines`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_asr.data.manifest_lines import LISTED, Integers, LineRef, Reader, Seconds, Source, Utterance, scan
from nemo_lite.errors import DataError, UsageError, did_you_mean

Mask: TypeAlias = "npt.NDArray[np.bool_]"


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


@dataclass(frozen=True)
class Manifest:
    """The utterances of one or more manifest files that passed the filters, in the order of the files.

    Attributes:
        reader: reads one line again.
        offsets: (N,) byte where each line starts.
        lines: (N,) line number in its file, from 1.
        durations: (N,) seconds.
        starts: (files + 1,) the first row of each file.
        dropped: what the filters left out.
    """

    reader: Reader
    offsets: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int32]
    durations: Seconds
    starts: npt.NDArray[np.int64]
    dropped: tuple[Dropped, ...] = ()

    @classmethod
    def open(
        cls, paths: str | Sequence[str], *, min_duration: float | None = None, max_duration: float | None = None
    ) -> Manifest:
        """Read and check every line of the manifests, then keep those whose duration is within the limits.

        Args:
            paths: one path, several separated by commas, or a sequence of paths.
            min_duration: seconds, inclusive; None for no limit.
            max_duration: seconds, inclusive; None for no limit.

        Raises:
            UsageError: contradictory limits.
            DataError: an empty part in the list of paths; a file that is missing, empty, or has lines that are not
                valid; or nothing is left.
        """
        if min_duration is not None and max_duration is not None and min_duration > max_duration:
            raise UsageError(f"min_duration {min_duration:g} s is above max_duration {max_duration:g} s")
        scans = [scan(Source(path)) for path in _checked_paths(paths)]
        manifest = cls(
            reader=Reader([scan.source for scan in scans]),
            offsets=np.concatenate([scan.offsets for scan in scans]),
            lines=np.concatenate([scan.lines for scan in scans]),
            durations=np.concatenate([scan.durations for scan in scans]),
            starts=np.cumsum([0, *(len(scan.offsets) for scan in scans)], dtype=np.int64),
        )
        if min_duration is not None:
            short = manifest.durations < np.float32(min_duration)
            manifest = manifest.without(short, f"shorter than min_duration {min_duration:g} s")
        if max_duration is not None:
            long = manifest.durations > np.float32(max_duration)
            manifest = manifest.without(long, f"longer than max_duration {max_duration:g} s")
        return manifest

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(source.path for source in self.reader.sources)

    @property
    def seconds(self) -> float:
        """Seconds of audio in all."""
        return float(self.durations.sum(dtype=np.float64))

    def refs(self, rows: Integers | Sequence[int]) -> list[LineRef]:
        """Where the utterances at these rows are written."""
        index = np.asarray(rows, dtype=np.int64)
        sources = np.searchsorted(self.starts, index, side="right") - 1
        columns = (index, sources, self.offsets[index], self.lines[index])
        return [LineRef(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]

    def place(self, row: int) -> str:
        """``manifest:line`` of the utterance at ``row``."""
        return self.reader.place(self.refs([row])[0])

    def utterance(self, row: int) -> Utterance:
        """Read the line of the utterance at ``row`` again."""
        return self.reader.utterance(self.refs([row])[0])

    def without(self, mask: Mask, reason: str) -> Manifest:
        """The manifest without the rows where ``mask`` is true; ``reason`` completes "12 ...".

        Raises:
            DataError: nothing would be left.
        """
        rows = np.flatnonzero(mask)
        if len(rows) == 0:
            return self
        places = tuple(self.place(int(row)) for row in rows[:LISTED])
        left_out = Dropped(reason, len(rows), float(self.durations[rows].sum(dtype=np.float64)), places)
        dropped = (*self.dropped, left_out)
        if len(rows) == len(self):
            raise DataError(f"no utterance is left: {'; '.join(map(str, dropped))}", place=",".join(self.paths))
        keep = ~mask
        kept_before = np.concatenate([[0], np.cumsum(keep)])
        return replace(
            self,
            offsets=self.offsets[keep],
            lines=self.lines[keep],
            durations=self.durations[keep],
            starts=kept_before[self.starts],
            dropped=dropped,
        )

    def summary(self) -> str:
        """What was kept and what was dropped, and why: one line for each."""
        kept = f"{','.join(self.paths)}: {len(self)} utterances kept ({self.seconds / 3600:.2f} h)"
        return "\n".join([kept, *(f"  dropped {dropped}" for dropped in self.dropped)])


def _checked_paths(paths: str | Sequence[str]) -> list[str]:
    """Every path of the list, each an existing file."""
    parts = paths.split(",") if isinstance(paths, str) else list(paths)
    parts = [os.path.expanduser(part.strip()) for part in parts]
    if not parts or not all(parts):
        problem = f'the list of manifests "{paths}" has an empty part'
        raise DataError(problem, remedy="write a.json,b.json with no comma at the end")
    missing = [part for part in parts if not os.path.isfile(part)]
    if missing:
        found = "is a folder" if os.path.isdir(missing[0]) else f"does not exist{_near(missing[0])}"
        remedy = _also_missing(missing[1:]) or "name a file with one JSON object a line"
        raise DataError(f"the manifest {found}", place=missing[0], remedy=remedy)
    return parts


def _also_missing(others: Sequence[str]) -> str:
    return f"missing as well: {', '.join(others)}" if others else ""


def _near(path: str) -> str:
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        return f" (there is no folder {folder})"
    return did_you_mean(os.path.basename(path), difflib.get_close_matches(os.path.basename(path), os.listdir(folder)))
