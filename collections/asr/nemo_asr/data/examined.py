"""Sets of utterances, examined: every utterance of some manifests is read and measured; figures of a set."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from tqdm import tqdm

from nemo_asr.run.audio.files import Samples
from nemo_asr.run.audio.reading import open_part
from nemo_asr.run.audio.segments import LONG_PAUSE, ChannelEnergies, frame_levels, frame_samples, pauses
from nemo_asr.run.manifest import Manifest, Utterance
from nemo_lite.base.errors import DataError

_CHUNK_ROWS = 32
_DIGEST_BYTES = 16
SILENCE = 1e-4  # peak amplitude: 80 dB below full scale


@dataclass(frozen=True, slots=True)
class Examined:
    """One utterance as it is written, and what its audio is.

    Attributes:
        utterance: the manifest line.
        seconds: of its audio; as written, where the audio was not or could not be read.
        excess: see `nemo_asr.run.audio.reading.Audio`.
        sample_rate: samples a second in the file; 0 where it was not read.
        num_channels: of the file.
        digest: of its samples: equal for equal samples, also in another lossless format.
        peak: the largest amplitude; full scale is 1.
        lost_db: see `nemo_asr.run.audio.segments.ChannelEnergies`; 0 where one channel is read.
        pause: seconds of the longest part in which nobody speaks, by levels; 0 where nobody speaks at all.
        silent: seconds of all such parts that are long, as at both ends of what a phone records.
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
    lost_db: float = 0.0
    pause: float = 0.0
    silent: float = 0.0
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
    """The utterances of a set of manifests.

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
    items = []
    for row, ref in zip(rows, manifest.refs(rows), strict=True):
        try:
            utterance = manifest.reader.utterance(ref)
        except DataError as error:
            broken = Utterance(manifest.place(row), "", "", float(manifest.durations[row]))
            items.append(Examined(broken, broken.duration or 0.0, problem=str(error)))
            continue
        item = Examined(utterance, utterance.duration or 0.0)
        items.append(_with_audio(item, strict) if with_audio else item)
    return items


def _with_audio(item: Examined, strict: bool) -> Examined:
    utterance = item.utterance
    try:
        with open_part(
            utterance.audio_path,
            offset=utterance.offset,
            duration=utterance.duration,
            strict=strict,
            place=utterance.place,
            channel=utterance.channel,
        ) as audio:
            audio.check_size()  # training reads it into one array
            digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, salt=str(audio.source_rate).encode())
            channels, peaks = ChannelEnergies(), [0.0]
            averaged = audio.num_channels > 1 and audio.channel is None

            def pieces() -> Iterator[Samples]:
                for piece in audio.pieces(observe=channels.add if averaged else None):
                    digest.update(piece.tobytes())
                    peaks.append(float(np.abs(piece).max()))
                    yield piece

            frames = frame_levels(pieces(), audio.source_rate)
        quiet = pauses(frames, frame_samples(audio.source_rate) / audio.source_rate)
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
        peak=max(peaks),
        lost_db=channels.lost_db,
        pause=max(quiet, default=0.0),
        silent=sum(seconds for seconds in quiet if seconds >= LONG_PAUSE),
        file=(status.st_dev, status.st_ino),
    )


Statistics: TypeAlias = "dict[str, Any]"

_NUM_BINS = 20


def statistics_of(examined: ExaminedSet) -> Statistics:
    """The figures of a set; see docs/en/data.md for the keys. Utterances that cannot be read count as unusable."""
    items = examined.readable
    texts = [item.utterance.text for item in items]
    figures: Statistics = {
        "name": examined.name,
        "manifests": list(examined.paths),
        "utterances": len(items),
        "unusable": len(examined.items) - len(items),
        "hours": sum(item.seconds for item in items) / 3600,
        "seconds": distribution([item.seconds for item in items]),
        "words": sum(len(text.split()) for text in texts),
        "different_words": len({word for text in texts for word in text.split()}),
        "different_texts": len(set(texts)),
        "unit": unit_of(items),
        "units_per_second": distribution([rate_of(item, unit_of(items)) for item in items]),
        "characters_per_text": distribution([len(text) for text in texts]),
        "characters": _counted(character for text in texts for character in text),
        "speakers": _counted(str(item.utterance.speaker) for item in items if item.utterance.speaker is not None),
    }
    if examined.with_audio:
        figures["sample_rates"] = _counted(item.sample_rate for item in items)
        figures["channels"] = _counted(item.num_channels for item in items)
    return figures


def unit_of(items: Sequence[Examined]) -> str:
    """The unit for the speed of speech: words, or characters where no text has a space."""
    return "words" if any(" " in item.utterance.text.strip() for item in items) else "characters"


def rate_of(item: Examined, unit: str) -> float:
    """Words or characters a second; neither spaces nor long pauses count: a phone records some seconds of silence."""
    words = item.utterance.text.split()
    return (len(words) if unit == "words" else sum(map(len, words))) / max(item.seconds - item.silent, 1e-3)


def long_pause_of(item: Examined) -> float:
    """Seconds of its longest pause, where that is a long one."""
    return item.pause if item.pause >= LONG_PAUSE else 0.0


def distribution(values: Sequence[float]) -> Statistics:
    """Least, median, mean, 95 % and most, and a histogram: ``counts`` between ``edges``. Empty for no values."""
    if not values:
        return {}
    array = np.asarray(values, np.float64)
    least, most = float(array.min()), float(array.max())
    # Values that are equal but for rounding: 20 different edges may not fit between them.
    ends = (least - 0.5, most + 0.5) if np.isclose(least, most, rtol=1e-9, atol=0.0) else (least, most)
    counts, edges = np.histogram(array, bins=_NUM_BINS, range=ends)
    median, high = np.quantile(array, [0.5, 0.95])
    return {
        "least": least,
        "median": float(median),
        "mean": float(array.mean()),
        "p95": float(high),
        "most": most,
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
    }


def _counted(values: Iterable[object]) -> dict[str, int]:
    """How often each occurs, the most frequent first."""
    return {str(value): count for value, count in Counter(values).most_common()}
