"""Recording: audio to be transcribed, measured and read; which ones go together. No torch in this file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import soxr

from nemo_asr.audio.reading import Samples, audio_seconds, read_audio

BATCH_SIZE = 16
BATCH_SECONDS = 240.0


@dataclass(frozen=True)
class Recording:
    """Audio to be transcribed.

    Attributes:
        source: what it is called in transcripts and messages.
        audio: the path or the content of an audio file, or samples (T,) with full scale 1.
        sample_rate: of samples, in Hz.
        offset: seconds into the audio where it begins.
        duration: seconds; None: to the end of the audio.
        seconds: its length; 0 until `measured` has looked at it.
    """

    source: str
    audio: str | bytes | Samples
    sample_rate: int | None = None
    offset: float | None = None
    duration: float | None = None
    seconds: float = 0.0

    def measured(self) -> Recording:
        """The same with its length, which the head of the file says.

        Raises:
            DataError: it cannot be read.
        """
        if isinstance(self.audio, np.ndarray):
            assert self.sample_rate is not None
            return replace(self, seconds=len(self.audio) / self.sample_rate)
        seconds = audio_seconds(self.audio) - (self.offset or 0.0)
        wanted = seconds if self.duration is None or self.offset is None else min(self.duration, seconds)
        return replace(self, seconds=max(wanted, 0.0))

    def samples(self, sample_rate: int) -> Samples:
        """Mono at a rate.

        Raises:
            DataError: it cannot be read.
        """
        if isinstance(self.audio, np.ndarray):
            assert self.sample_rate is not None
            same = self.sample_rate == sample_rate
            samples: Samples = self.audio if same else soxr.resample(self.audio, self.sample_rate, sample_rate)
            return samples
        # Without an offset the recording is the whole file, whatever duration a manifest says.
        duration = None if self.offset is None else self.duration
        audio = read_audio(self.audio, sample_rate=sample_rate, offset=self.offset, duration=duration, strict=False)
        return audio.samples


def named(recording: Recording, error: Exception | str) -> str:
    """Why a recording cannot be used, with its name before it unless it says it."""
    reason = str(error).removeprefix(f"{recording.source}: ")
    return reason if recording.source in reason else f"{recording.source}: {reason}"


def batches_by_length(seconds: Mapping[int, float], batch_size: int, batch_seconds: float) -> list[list[int]]:
    """Positions in batches of similar length, the longest first.

    Args:
        seconds: length of each recording by its position.
        batch_size: most recordings of a batch.
        batch_seconds: no batch of several recordings is longer, padding included.
    """
    batches: list[list[int]] = []
    for position in sorted(seconds, key=lambda position: -seconds[position]):
        longest = seconds[batches[-1][0]] if batches else 0.0
        if not batches or len(batches[-1]) == batch_size or (len(batches[-1]) + 1) * longest > batch_seconds:
            batches.append([])
        batches[-1].append(position)
    return batches
