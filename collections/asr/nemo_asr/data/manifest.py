"""Manifest: the utterances of one or more JSON-lines files, filtered by duration.

A manifest keeps three numbers a line (where the line starts, its number, its duration) and parses a line again when it
is asked for. No audio is opened and no text is turned into labels in this file; what a line holds: `manifest_lines`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from nemo_asr.arguments import ManyPaths
from nemo_asr.data.manifest_lines import MANIFEST, LineReader, LineRef, Source, scan
from nemo_asr.data.utterances import Integers, Mask, Utterances, check_limits
from nemo_lite.errors import DataError, did_you_mean
from nemo_lite.untrusted import kind_unless_file, open_file

# One path, several separated by commas, or a sequence of paths.
ManifestPaths: TypeAlias = ManyPaths


class _Path(msgspec.Struct):
    """The keys of a manifest line that say where the audio is."""

    audio_filepath: str | None = None
    audio_filename: str | None = None


_decoder = msgspec.json.Decoder(_Path)


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
            line = _decoder.decode(raw)
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
