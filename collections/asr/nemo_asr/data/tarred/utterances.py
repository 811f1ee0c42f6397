"""TarredUtterances: the lines of a manifest whose recordings are in tar shards, in the order of the shards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nemo_asr.audio.reading import MAX_CONTENT_BYTES
from nemo_asr.data.file_spans import FileSpans, Span
from nemo_asr.data.manifest import Manifest, ManifestPaths
from nemo_asr.data.manifest_lines import LineReader, LineRef
from nemo_asr.data.tarred.matching import IN_NO_SHARD, match
from nemo_asr.data.tarred.shards import ShardPaths, expanded
from nemo_asr.data.utterances import Integers, Mask, Utterance, Utterances
from nemo_lite.errors import DataError

_MOST_BYTES = MAX_CONTENT_BYTES


class TarRef(NamedTuple):
    """Where one utterance is: its line, and its recording's bytes."""

    line: LineRef
    span: Span


@dataclass(frozen=True, kw_only=True)
class TarredUtterance(Utterance):
    """An utterance whose recording is in a tar shard; its ``audio_path`` is ``shard:member``."""

    span: Span


class TarredReader:
    """Reads lines of manifests and members of tar shards."""

    def __init__(self, lines: LineReader, shards: FileSpans) -> None:
        self.lines, self.shards = lines, shards

    def place(self, ref: TarRef) -> str:
        """``manifest:line``."""
        return self.lines.place(ref.line)

    def utterance(self, ref: TarRef) -> TarredUtterance:
        """Read one line again; see `LineReader.utterance`."""
        line = self.lines.utterance(ref.line)
        path = f"{self.shards.paths[ref.span.file]}:{os.path.basename(line.audio_path)}"
        about = (line.text, line.duration, line.offset, line.speaker, line.note)
        return TarredUtterance(line.place, path, *about, span=ref.span)

    def check_audio(self, utterance: Utterance) -> None:
        """Raise DataError if its member is empty, or too large to be read at once."""
        size = self._span(utterance).size
        if not 0 < size <= _MOST_BYTES:
            problem = "is empty (0 bytes)" if size == 0 else f"has {size} bytes, more than {_MOST_BYTES}"
            remedy = "make the tar shard again, or delete the line"
            raise DataError(f"{utterance.audio_path} {problem}", place=utterance.place, remedy=remedy)

    def audio(self, utterance: Utterance) -> bytes:
        """The member's content."""
        self.check_audio(utterance)
        return self.shards.read(self._span(utterance))

    def _span(self, utterance: Utterance) -> Span:
        assert isinstance(utterance, TarredUtterance), utterance
        return utterance.span


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
            DataError: a manifest or a shard that cannot be used, two recordings of one name, or no recording that is in
                both.
        """
        paths = expanded(shards)
        manifest = Manifest.open(
            manifests, strict=True, lenient=not strict
        )  # its paths lead nowhere: do not look for the files
        lines = manifest.reader
        assert isinstance(lines, LineReader)
        found = match(manifest, paths, strict=strict)
        rows = found["rows"]
        lost = np.ones(len(manifest), bool)
        lost[rows] = False
        return cls(
            paths=manifest.paths,
            reader=TarredReader(lines, FileSpans(paths, "tar shard")),
            durations=manifest.durations[rows],
            dropped=manifest.without(lost, IN_NO_SHARD).dropped,
            manifest=manifest,
            num_shards=len(paths),
            **found,
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

    def only(self, keep: Mask) -> TarredUtterances:
        """Those rows where ``keep`` is true."""
        columns = {name: getattr(self, name)[keep] for name in ("durations", "rows", "shards", "firsts", "sizes")}
        return replace(self, **columns)
