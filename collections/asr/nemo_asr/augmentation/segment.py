"""AudioSegment: NeMo's waveform with a rate, which perturbations change in place. Files are read in `audio.reading`."""

from __future__ import annotations

import math
import os
import random
from typing import BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt
import soxr

from nemo_asr.run.audio.files import Samples, scaled
from nemo_asr.run.audio.reading import MAX_CONTENT_BYTES, read_audio, trimmed
from nemo_lite.base.errors import DataError, UsageError

AnyFile: TypeAlias = str | os.PathLike[str] | BinaryIO


class AudioSegment:
    """Mono samples and their rate.

    Args:
        samples: (T,), or (T, channels), which are averaged: floats of full scale 1, or whole numbers, which are scaled.
        sample_rate: Hz.
        target_sr: resample to this rate; None: keep it.
        trim: leave out what is quiet at both ends.
        trim_db: quiet is so many dB below the loudest part.

    Attributes:
        sample_rate: Hz.

    Raises:
        TypeError: samples that are no numbers.
    """

    def __init__(
        self,
        samples: npt.NDArray[np.generic],
        sample_rate: int,
        target_sr: int | None = None,
        trim: bool = False,
        trim_db: float = 60,
    ) -> None:
        samples = np.array(samples)  # a copy: perturbations act in place
        if samples.dtype.kind not in "fi":
            raise TypeError(f"AudioSegment: samples are {samples.dtype}, wanted floats or whole numbers")
        floats = scaled(samples)
        mono: Samples = floats if floats.ndim == 1 else floats.mean(axis=1)
        if target_sr is not None and target_sr != sample_rate:
            mono, sample_rate = soxr.resample(mono, sample_rate, target_sr), target_sr
        self._samples = trimmed(mono, trim_db) if trim else mono
        self.sample_rate = sample_rate

    @classmethod
    def from_file(
        cls,
        audio_file: AnyFile,
        target_sr: int | None = None,
        int_values: bool = False,
        offset: float = 0,
        duration: float = 0,
        trim: bool = False,
    ) -> AudioSegment:
        """A file, or a part of it.

        Args:
            audio_file: a path, or an open file.
            target_sr: resample to this rate.
            int_values: read through 32-bit integers.
            offset: seconds where to start.
            duration: most seconds to read; 0: to the end.
            trim: leave out what is quiet at both ends.

        Raises:
            DataError: a file that is missing, damaged or no audio, or an offset beyond its end.
        """
        audio = read_audio(
            _source(audio_file),
            sample_rate=target_sr,
            offset=float(offset),
            duration=float(duration) or None,
            int_values=int_values,
            strict=False,
        )
        return cls(audio.samples, target_sr or audio.source_rate, trim=trim)

    @classmethod
    def segment_from_file(
        cls, audio_file: AnyFile, target_sr: int | None = None, n_segments: int = 0, trim: bool = False
    ) -> AudioSegment:
        """``n_segments`` samples of a file at a place that Python's generator draws; with 0, or of no more, all."""
        segment = cls.from_file(audio_file, target_sr, trim=trim)
        spare = segment.num_samples - n_segments
        if n_segments > 0 and spare > 0:
            first = random.randint(0, spare)
            segment._samples = segment._samples[first : first + n_segments]
        return segment

    @property
    def samples(self) -> Samples:
        """(T,) a copy; ``_samples`` is what perturbations change."""
        return self._samples.copy()

    @property
    def num_samples(self) -> int:
        """How many samples there are."""
        return len(self._samples)

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.num_samples / self.sample_rate

    @property
    def rms_db(self) -> float:
        """The mean power in dB of full scale; minus infinity for silence."""
        power = float(np.mean(np.square(self._samples, dtype=np.float64))) if self.num_samples else 0.0
        return 10 * math.log10(power) if power else -math.inf

    def gain_db(self, gain: float) -> None:
        """Make it louder by ``gain`` dB, in place."""
        self._samples = self._samples * np.float32(10.0 ** (gain / 20.0))

    def pad(self, pad_size: int, symmetric: bool = False) -> None:
        """Add ``pad_size`` zeros behind it, or on both sides, in place."""
        self._samples = np.pad(self._samples, (pad_size if symmetric else 0, pad_size))

    def subsegment(self, start_time: float | None = None, end_time: float | None = None) -> None:
        """Keep a part, in place.

        Args:
            start_time: seconds; below 0: from the end. None: the beginning.
            end_time: seconds; below 0: from the end. None: the end.

        Raises:
            UsageError: nothing is between the two, or one is outside.
        """
        start, end = (0.0 if start_time is None else start_time), (self.duration if end_time is None else end_time)
        start, end = (time + self.duration if time < 0 else time for time in (start, end))
        if not 0 <= start < end <= self.duration:
            got, wanted = f"{start:g} s to {end:g} s", f"a part of 0 to {self.duration:g} s"
            raise UsageError("the subsegment is not usable", place="AudioSegment", got=got, wanted=wanted)
        self._samples = self._samples[round(start * self.sample_rate) : round(end * self.sample_rate)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AudioSegment):
            return NotImplemented
        return self.sample_rate == other.sample_rate and np.array_equal(self._samples, other._samples)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __str__(self) -> str:
        text = f"num_samples={self.num_samples}, sample_rate={self.sample_rate}, duration={self.duration:.2f}sec"
        return f"{type(self).__name__}: {text}, rms={self.rms_db:.2f}dB"


def _source(audio_file: AnyFile) -> str | bytes:
    """A path with its home folder, or the content of an open file."""
    if isinstance(audio_file, (str, os.PathLike)):
        return os.path.expanduser(os.fspath(audio_file))
    content = audio_file.read(MAX_CONTENT_BYTES + 1)
    if len(content) > MAX_CONTENT_BYTES:
        problem, wanted = "the file is too large to be read at once", f"at most {MAX_CONTENT_BYTES} bytes"
        raise DataError(problem, place="AudioSegment", wanted=wanted, remedy="give its path")
    return content
