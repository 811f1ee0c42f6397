"""examine: every utterance of some manifests read and measured, by several threads. Nothing is judged in this file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from tqdm import tqdm

from nemo_asr.audio.reading import open_part
from nemo_asr.data.manifest import Manifest
from nemo_asr.data.utterances import Utterance
from nemo_lite.errors import DataError

_CHUNK_ROWS = 32
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Examined:
    """One utterance as it is written, and what its audio is.

    Attributes:
        utterance: the manifest line.
        seconds: of its audio; as written, where the audio was not or could not be read.
        excess: see `nemo_asr.audio.reading.Audio`.
        sample_rate: samples a second in the file; 0 where it was not read.
        num_channels: of the file.
        digest: of its samples: equal for equal samples, also in another lossless format.
        peak: the largest amplitude; full scale is 1.
        file: the file's identity in the file system, whatever its path is.
        problem: why it cannot be read, or nothing.
    """

    utterance: Utterance
    seconds: float
    excess: float = 0.0
    sample_rate: int = 0
    num_channels: int = 0
    digest: bytes = b""
    peak: float = 0.0
    file: tuple[int, int] = (0, 0)
    problem: str = ""

    @property
    def place(self) -> str:
        """``manifest:line``."""
        return self.utterance.place

    @property
    def span(self) -> tuple[float, float]:
        """First and last second in its file."""
        start = self.utterance.offset or 0.0
        return start, start + self.seconds


@dataclass(frozen=True)
class ExaminedSet:
    """What a set of manifests holds.

    Attributes:
        name: of the set.
        paths: its manifests.
        items: the utterances, in order.
        invalid: what is wrong with the first few lines that are not valid.
        with_audio: whether the audio was read.
    """

    name: str
    paths: tuple[str, ...]
    items: Sequence[Examined]
    invalid: Sequence[str] = ()
    with_audio: bool = True

    @property
    def readable(self) -> list[Examined]:
        """Those without a problem."""
        return [item for item in self.items if not item.problem]


def examine(
    manifests: str | Sequence[str],
    *,
    with_audio: bool = True,
    strict: bool = False,
    num_workers: int | None = None,
    show_progress: bool = False,
) -> ExaminedSet:
    """Read all lines of some manifests, and the audio of each.

    Args:
        manifests: one path, several separated by commas, or a sequence of paths: one set.
        with_audio: read the audio files, or only the lines.
        strict: a duration that is not its file's is a problem, and paths start at the manifest's folder only.
        num_workers: threads that read; None: one for each core.
        show_progress: show a bar on stderr, if it is a terminal.

    Raises:
        DataError: a manifest that is missing, empty or without one valid line.
    """
    invalid: list[str] = []
    manifest = Manifest.open(manifests, strict=strict, invalid=invalid)
    rows = range(len(manifest))
    chunks = [rows[first : first + _CHUNK_ROWS] for first in range(0, len(rows), _CHUNK_ROWS)]
    examine_some = partial(_examined, manifest, with_audio, strict)
    items: list[Examined] = []
    with (
        ThreadPoolExecutor(num_workers or os.cpu_count() or 1) as pool,
        tqdm(total=len(rows), desc=manifest.name, unit=" utterances", disable=None if show_progress else True) as bar,
    ):
        for some in pool.map(examine_some, chunks):
            items += some
            bar.update(len(some))
    return ExaminedSet(manifest.name, manifest.paths, items, invalid, with_audio)


def _examined(manifest: Manifest, with_audio: bool, strict: bool, rows: Sequence[int]) -> list[Examined]:
    found = []
    for row, ref in zip(rows, manifest.refs(rows), strict=True):
        try:
            utterance = manifest.reader.utterance(ref)
        except DataError as error:
            broken = Utterance(manifest.place(row), "", "", float(manifest.durations[row]))
            found.append(Examined(broken, broken.duration or 0.0, problem=str(error)))
            continue
        item = Examined(utterance, utterance.duration or 0.0)
        found.append(_with_audio(item, strict) if with_audio else item)
    return found


def _with_audio(item: Examined, strict: bool) -> Examined:
    utterance = item.utterance
    try:
        with open_part(
            utterance.audio_path,
            offset=utterance.offset,
            duration=utterance.duration,
            strict=strict,
            place=utterance.place,
        ) as audio:
            digest, peak = hashlib.blake2b(digest_size=_DIGEST_BYTES, salt=str(audio.source_rate).encode()), 0.0
            for piece in audio.pieces():
                digest.update(piece.tobytes())
                peak = max(peak, float(np.abs(piece).max()))
        status = os.stat(utterance.audio_path)
    except (DataError, OSError) as error:
        return replace(item, problem=str(error))
    return replace(
        item,
        seconds=audio.seconds,
        excess=audio.excess,
        sample_rate=audio.source_rate,
        num_channels=audio.num_channels,
        digest=digest.digest(),
        peak=peak,
        file=(status.st_dev, status.st_ino),
    )
