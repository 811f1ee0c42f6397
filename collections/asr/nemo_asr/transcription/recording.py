"""Recording: audio to be transcribed, measured and read; which ones go together. No torch in this file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import soxr

from nemo_asr.audio.reading import Audio, Samples, loud_part, open_part, read_audio

BATCH_SIZE = 16
BATCH_SECONDS = 240.0


@dataclass(frozen=True)
class Recording:
    """Audio to be transcribed.

    Attributes:
        source: what it is called in transcripts and messages.
        audio: the path or the content of an audio file, or samples (T,) with full scale 1.
        sample_rate: of samples, in Hz.
        offset: seconds into the audio where it begins; None: at the beginning.
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
        with open_part(self.audio, offset=self.offset, duration=self.duration, strict=False) as part:
            return replace(self, seconds=part.seconds)

    def read(self, sample_rate: int, *, trim_silence: bool = False, int_values: bool = False) -> Audio:
        """Mono samples at a rate, read as a data layer reads an utterance of this offset and duration.

        Args:
            sample_rate: samples a second.
            trim_silence: leave out quiet ends; see `read_audio`.
            int_values: read a file through 32-bit integers; see `read_audio`.

        Raises:
            DataError: it cannot be read.
        """
        if isinstance(self.audio, np.ndarray):
            assert self.sample_rate is not None
            same = self.sample_rate == sample_rate
            samples: Samples = self.audio if same else soxr.resample(self.audio, self.sample_rate, sample_rate)
            loud = loud_part(samples) if trim_silence else slice(0, len(samples))
            return Audio(samples[loud], self.sample_rate, 1, start=loud.start)
        return read_audio(
            self.audio,
            sample_rate=sample_rate,
            offset=self.offset,
            duration=self.duration,
            int_values=int_values,
            trim_silence=trim_silence,
            strict=False,
        )


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
