"""NeMo's waveform, perturbations of it, the augmentor that draws them, and the featurizer around all."""

from __future__ import annotations

import inspect
import io
import math
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import soundfile
import soxr
import torch

from nemo_asr.arguments import (
    Duration,
    FrameSamples,
    Rates,
    SampleRate,
    Share,
    SpeedRate,
    look_up,
)
from nemo_asr.audio.containers import has_av
from nemo_asr.audio.reading import MAX_CONTENT_BYTES, Samples, audio_seconds, excess_of, read_audio, scaled, trimmed
from nemo_asr.data.manifest import read_lines
from nemo_asr.rng import NumbersRng, generator_from
from nemo_lite import NonTrainableNM
from nemo_lite.config import Between, Checked, Config, check_call, refuse_out_of_range, unknown_key
from nemo_lite.core.neural_types import AudioSignal, LengthsType, NeuralType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol
from nemo_lite.errors import DataError, UnknownNameError, UsageError, did_you_mean, listed

# AudioSegment: NeMo's waveform with a rate, which perturbations change in place. Files are read in `reading`.


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
        """``n_segments`` samples of a file at a random place; all of them where it has no more, or with 0."""
        segment = cls.from_file(audio_file, target_sr, trim=trim)
        spare = segment.num_samples - n_segments
        if n_segments > 0 and spare > 0:
            first = int(np.random.default_rng().integers(spare + 1))
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


# Time stretching of a waveform at constant pitch: a phase vocoder.


_OVERLAP = 4  # frames that cover each sample


def time_stretched(samples: Samples, rate: float, n_fft: int) -> Samples:
    """The same sounds in 1 / rate of the time.

    Source: Flanagan and Golden, "Phase Vocoder", Bell System Technical Journal 45, 1966; Dolson, "The Phase Vocoder: A
    Tutorial", Computer Music Journal 10, 1986.

    Args:
        samples: (T,).
        rate: above 1 for shorter, below for longer.
        n_fft: samples of a frame, a multiple of 4.

    Returns:
        (round(T / rate),) float32.
    """
    hop = n_fft // _OVERLAP
    window = np.hanning(n_fft + 1)[:-1]
    num_samples = round(len(samples) / rate)
    padded = np.pad(samples.astype(np.float64), (n_fft // 2, n_fft + hop))
    frames = np.lib.stride_tricks.sliding_window_view(padded, n_fft)[::hop]
    spectra = _interpolated(np.fft.rfft(frames * window), rate, hop, math.ceil(num_samples / hop) + _OVERLAP)
    stretched = _overlapped(np.fft.irfft(spectra, n_fft) * window, hop)
    weights = _overlapped(np.broadcast_to(window**2, (len(spectra), n_fft)), hop)
    body = slice(n_fft // 2, n_fft // 2 + num_samples)
    result: Samples = (stretched[body] / weights[body]).astype(np.float32)
    return result


def _interpolated(
    spectra: npt.NDArray[np.complex128], rate: float, hop: int, num_frames: int
) -> npt.NDArray[np.complex128]:
    """Frames (num_frames, bins) taken every ``rate`` of the given ones: magnitudes in between, phases that run on."""
    times = np.minimum(np.arange(num_frames) * rate, len(spectra) - 2)
    before = times.astype(np.int64)
    share = (times - before)[:, None]
    magnitudes = np.abs(spectra)
    magnitude = (1.0 - share) * magnitudes[before] + share * magnitudes[before + 1]
    phases = np.angle(spectra)
    expected = 2.0 * np.pi * hop * np.arange(spectra.shape[1]) / (2 * (spectra.shape[1] - 1))
    surplus = phases[before + 1] - phases[before] - expected
    advance = expected + surplus - 2.0 * np.pi * np.round(surplus / (2.0 * np.pi))
    phase = phases[0] + np.concatenate([np.zeros((1, spectra.shape[1])), np.cumsum(advance[:-1], axis=0)])
    interpolated: npt.NDArray[np.complex128] = magnitude * np.exp(1j * phase)
    return interpolated


def _overlapped(frames: npt.NDArray[np.float64], hop: int) -> npt.NDArray[np.float64]:
    """The sum of frames (U, n) laid ``hop`` apart: (U * hop + n - hop,)."""
    num_frames, n_fft = frames.shape
    parts = frames.reshape(num_frames, n_fft // hop, hop)
    total = np.zeros((num_frames + n_fft // hop - 1, hop))
    for index in range(n_fft // hop):
        total[index : index + num_frames] += parts[:, index]
    return total.ravel()


# Recordings of noise and of rooms: the lines of a manifest, and the seconds that a perturbation wants.


_CHECKED = 20_000


class Recording(NamedTuple):
    """One line of a manifest of noises or impulse responses: the file, and which seconds of it."""

    place: str
    path: str
    offset: float
    duration: float
    channel: int | None = None

    def read(self, sample_rate: int, first: float, seconds: float) -> Samples:
        """(T,) samples at ``sample_rate``: ``seconds`` from second ``first`` of this part of the file."""
        offset = self.offset + first
        audio = read_audio(
            self.path,
            sample_rate=sample_rate,
            offset=offset,
            duration=seconds,
            channel=self.channel,
            strict=False,
            place=self.place,
        )
        return audio.samples

    def check(self) -> None:
        """Look at the file's header.

        Raises:
            DataError: no audio, or shorter than the line says.
        """
        seconds = audio_seconds(self.path, place=self.place)
        if excess_of(seconds - self.offset, self.duration) < 0:
            raise DataError(
                f"{self.path} is shorter than its line says",
                place=self.place,
                got=f"{seconds:.3f} s",
                wanted=f"{self.offset + self.duration:.3f} s (offset + duration)",
                remedy="correct the line, or delete it",
            )


def read_recordings(manifest_path: str) -> list[Recording]:
    """The recordings of a manifest: lines with a duration; a text is not needed.

    Raises:
        DataError: a manifest that cannot be read, or a line that names no recording.
    """
    source, lines = read_lines(os.path.expanduser(manifest_path), "audio")
    recordings = []
    for place, line in lines:
        if line.duration is None:
            raise DataError("no duration; write the seconds of audio", place=place)
        path, start = source.resolve(line.path), line.start or 0.0
        recordings.append(Recording(place, path, start, line.duration, line.channel_number))
    return recordings


# Perturbations of waveforms: speed, time stretching, level, shift, noise, room.
# Each takes (samples, sample rate, generator) and gives new samples. All draws come from the caller's generator, so
# they do not depend on worker processes. NeMo's ``perturb`` changes an `AudioSegment` in place, with a generator of
# its own.


PauseSeconds: TypeAlias = Annotated[float, Between(0, 60)]
Voices: TypeAlias = Annotated[int, Between(1, 100)]
Hertz: TypeAlias = Annotated[float, Between(1, 384_000)]

# Where a pause may be put: at least 8 frames of 10 ms in a row that are 35 dB below the loudest. Closures of plosives
# inside words are mostly shorter.
_LEVEL_SECONDS, _QUIET_DB, _QUIET_FRAMES = 0.01, 35.0, 8
_MAX_RESPONSE_SECONDS = 60.0  # cathedrals echo for ten; the transform's memory grows with it
# NeMo's names of resamplers, and the quality of soxr that replaces each: 16 bits for the fast one.
_SOXR_QUALITY = {"kaiser_fast": "LQ", "kaiser_best": "HQ", "fft": "HQ", "scipy": "HQ"}


class Perturbation:
    """Base: subclasses implement :meth:`perturbed`, or as in NeMo :meth:`perturb`.

    Those that lengthen or shorten audio also implement :meth:`max_augmentation_length` and
    :meth:`min_augmentation_length`; those that read files, :meth:`check_files`.

    Args:
        rng: generator of the draws of :meth:`perturb`, Python's or NumPy's; by default one of its own. A data layer
            draws from its own generators.
    """

    _rng: np.random.Generator | None = None

    def __init__(self, rng: NumbersRng | None = None) -> None:
        self._rng = generator_from(rng)

    def perturb(self, data: AudioSegment) -> None:
        """Change a segment in place."""
        if self._rng is None:
            self._rng = np.random.default_rng()
        data._samples = self.perturbed(data._samples, data.sample_rate, self._rng)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        """New samples (T',) float32 from samples (T,), full scale 1, which stay as they are."""
        if type(self).perturb is Perturbation.perturb:
            raise NotImplementedError(f"{type(self).__name__} has neither perturbed nor perturb")
        segment = AudioSegment(samples, sample_rate)
        self.perturb(segment)
        return np.asarray(segment._samples, np.float32)

    def max_augmentation_length(self, length: float) -> float:
        """The longest that audio of this length can become, in the same unit."""
        return length

    def min_augmentation_length(self, length: float) -> float:
        """The shortest that audio of this length can become, in the same unit."""
        return length

    def check_files(self) -> None:
        """See that what it reads later is there, before training.

        Raises:
            DataError: files that cannot be used.
        """


class _RatePerturbation(Perturbation):
    """Base of those that draw a rate: one of ``num_rates`` evenly spaced ones, or any if that is 0 or negative."""

    def __init__(self, place: str, least: float, most: float, num_rates: int, rng: NumbersRng | None) -> None:
        super().__init__(rng)
        if least > most:
            got, wanted = f"min_speed_rate {least} and max_speed_rate {most}", "min_speed_rate <= max_speed_rate"
            raise UsageError("the speed rates are not usable", place=place, got=got, wanted=wanted)
        self._least, self._most = least, most
        self._choices = np.linspace(least, most, num_rates) if num_rates > 0 else None

    def _draw(self, rng: np.random.Generator) -> float:
        return float(rng.uniform(self._least, self._most) if self._choices is None else rng.choice(self._choices))

    def max_augmentation_length(self, length: float) -> float:
        """At the slowest rate."""
        return length / self._least

    def min_augmentation_length(self, length: float) -> float:
        """At the fastest rate."""
        return length / self._most


class SpeedPerturbation(_RatePerturbation):
    """Play faster or slower, which changes the pitch: at rate r, T samples become T / r.

    (NeMo turns T samples into T r under the same name; the rates of a symmetric range come out in the opposite order.)

    Args:
        sr: sample rate of the audio in Hz.
        resample_type: kaiser_fast, kaiser_best, fft or scipy.
        min_speed_rate: slowest rate.
        max_speed_rate: fastest rate.
        num_rates: how many evenly spaced rates to choose from; 0 or less for any rate.

    Raises:
        UsageError: rates out of order, or audio of another sample rate.
        UnknownNameError: another resample_type.
    """

    def __init__(
        self,
        sr: SampleRate,
        resample_type: str = "kaiser_fast",
        min_speed_rate: SpeedRate = 0.9,
        max_speed_rate: SpeedRate = 1.1,
        num_rates: Rates = 5,
        rng: NumbersRng | None = None,
    ) -> None:
        super().__init__("speed", min_speed_rate, max_speed_rate, num_rates, rng)
        self._sample_rate, self._quality = sr, look_up("resample_type", resample_type, _SOXR_QUALITY, "speed")

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        if sample_rate != self._sample_rate:
            problem = "the audio has another sample rate"
            raise UsageError(problem, place="speed.sr", got=str(sample_rate), wanted=str(self._sample_rate))
        rate = self._draw(rng)
        if rate == 1.0:
            return samples
        faster: Samples = soxr.resample(samples, sample_rate * rate, sample_rate, quality=self._quality)
        return faster


class TimeStretchPerturbation(_RatePerturbation):
    """Speak faster or slower at the same pitch, by a phase vocoder: at rate r, T samples become T / r.

    Args:
        min_speed_rate: slowest rate.
        max_speed_rate: fastest rate.
        num_rates: how many evenly spaced rates to choose from; 0 or less for any rate.
        n_fft: samples of the vocoder's frames.

    Raises:
        UsageError: rates out of order, or an n_fft that is not a multiple of 4.
    """

    def __init__(
        self,
        min_speed_rate: SpeedRate = 0.9,
        max_speed_rate: SpeedRate = 1.1,
        num_rates: Rates = 5,
        n_fft: FrameSamples = 512,
        rng: NumbersRng | None = None,
    ) -> None:
        if n_fft % 4:
            raise UsageError("n_fft must be a multiple of 4", place="time_stretch", got=str(n_fft))
        super().__init__("time_stretch", min_speed_rate, max_speed_rate, num_rates, rng)
        self._n_fft = n_fft

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        rate = self._draw(rng)
        return samples if rate == 1.0 else time_stretched(samples, rate, self._n_fft)


class GainPerturbation(Perturbation):
    """Louder or softer by a gain drawn evenly between two levels in dB.

    Args:
        min_gain_dbfs: lowest gain in dB.
        max_gain_dbfs: highest gain in dB.
    """

    def __init__(
        self, min_gain_dbfs: float = -10.0, max_gain_dbfs: float = 10.0, rng: NumbersRng | None = None
    ) -> None:
        super().__init__(rng)
        self._limits = _ordered("gain", min_gain_dbfs=min_gain_dbfs, max_gain_dbfs=max_gain_dbfs)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        return samples * np.float32(_amplitude(rng.uniform(*self._limits)))


class ShiftPerturbation(Perturbation):
    """Earlier (above 0) or later (below 0) by some milliseconds, silence in the gap; not if nothing would be left.

    By default each place within a hop of 10 ms comes: frames of other programs may begin elsewhere in it.

    Args:
        min_shift_ms: least shift in milliseconds.
        max_shift_ms: greatest shift in milliseconds.
    """

    def __init__(self, min_shift_ms: float = -5.0, max_shift_ms: float = 5.0, rng: NumbersRng | None = None) -> None:
        super().__init__(rng)
        self._limits = _ordered("shift", min_shift_ms=min_shift_ms, max_shift_ms=max_shift_ms)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        earlier = round(rng.uniform(*self._limits) * sample_rate / 1000)
        if abs(earlier) >= len(samples):
            return samples
        shifted = np.zeros_like(samples)
        if earlier >= 0:
            shifted[: len(samples) - earlier] = samples[earlier:]
        else:
            shifted[-earlier:] = samples[:earlier]
        return shifted


class WhiteNoisePerturbation(Perturbation):
    """White noise of a level drawn evenly between two levels in dB of full scale.

    Args:
        min_level: lowest level in dB of full scale.
        max_level: highest level in dB of full scale.
    """

    def __init__(self, min_level: float = -90, max_level: float = -46, rng: NumbersRng | None = None) -> None:
        super().__init__(rng)
        self._limits = _ordered("white_noise", min_level=min_level, max_level=max_level)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        level = np.float32(_amplitude(rng.uniform(*self._limits)))
        return samples + level * rng.standard_normal(len(samples), dtype=np.float32)


class ColouredNoisePerturbation(Perturbation):
    """Noise under all of the recording at a drawn signal-to-noise ratio, without any files: a fan, hiss, a street.

    Its colour is drawn anew: power falls with frequency from not at all (white) to 6 dB an octave (brown). The ratio is
    that of the mean powers. Digital silence stays silent.

    Args:
        min_snr_db: lowest ratio in dB.
        max_snr_db: highest ratio in dB.
    """

    def __init__(self, min_snr_db: float = 0.0, max_snr_db: float = 40.0, rng: NumbersRng | None = None) -> None:
        super().__init__(rng)
        self._limits = _ordered("coloured_noise", min_snr_db=min_snr_db, max_snr_db=max_snr_db)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        return _with_noise(samples, _coloured_noise(len(samples), 1.0, rng), rng.uniform(*self._limits))


class _PausePerturbation(Perturbation):
    """Base of those that make pauses: digital silence, or noise of a random level and colour."""

    def __init__(self, place: str, min_level: float, max_level: float, digital: float, rng: NumbersRng | None) -> None:
        super().__init__(rng)
        self._limits = _ordered(place, min_level=min_level, max_level=max_level)
        self._digital = digital

    def _paused(self, parts: Sequence[Samples], gaps: Sequence[int], rng: np.random.Generator) -> Samples:
        """The parts with gaps of so many samples before, between and behind them: there is one gap more."""
        silences = [np.zeros(gap, np.float32) for gap in gaps]
        paused = np.concatenate([*_alternating(silences, parts), silences[-1]])
        if rng.random() < self._digital:
            return paused
        noise = _coloured_noise(len(paused), _amplitude(rng.uniform(*self._limits)), rng)
        if rng.random() < 0.5:
            first = 0
            for gap, part in zip(gaps, parts, strict=False):
                noise[first + gap : first + gap + len(part)] = 0.0
                first += gap + len(part)
        return paused + noise


class SilencePerturbation(_PausePerturbation):
    """Pauses before and after the speech, and inside it at its quiet stretches: digital silence, or noise.

    Recordings of users begin and end in silence, and have pauses; recordings of corpora are cut at the speech. The
    noise of a recording has one level and one colour, drawn anew; half of the time it also lies below the speech.

    Args:
        max_seconds: longest pause at either end; its length is drawn evenly from 0.
        max_inside_seconds: longest pause that is put into a quiet stretch inside; 0: none.
        max_inside: most pauses that are put inside.
        min_level: lowest level of the noise in dB of full scale.
        max_level: highest level of the noise in dB of full scale.
        digital: how often pauses are digital silence in the place of noise.
    """

    def __init__(
        self,
        max_seconds: PauseSeconds = 1.0,
        max_inside_seconds: PauseSeconds = 0.5,
        max_inside: Annotated[int, Between(0, 100)] = 1,
        min_level: float = -80.0,
        max_level: float = -40.0,
        digital: Share = 0.3,
        rng: NumbersRng | None = None,
    ) -> None:
        super().__init__("silence", min_level, max_level, digital, rng)
        self._max_seconds, self._max_inside_seconds = max_seconds, max_inside_seconds
        self._max_inside = max_inside

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        num_inside = int(rng.integers(self._max_inside + 1)) if self._max_inside_seconds else 0
        starts = _pause_places(samples, sample_rate)
        starts = np.sort(rng.choice(starts, min(num_inside, len(starts)), replace=False))
        before, after = rng.uniform(0.0, self._max_seconds, 2)
        seconds = [before, *rng.uniform(0.0, self._max_inside_seconds, len(starts)), after]
        return self._paused(np.split(samples, starts), [round(length * sample_rate) for length in seconds], rng)

    def max_augmentation_length(self, length: float) -> float:
        """Of seconds: pauses are in seconds, whatever the audio's length is."""
        return length + 2 * self._max_seconds + self._max_inside * self._max_inside_seconds


class JoinPerturbation(_PausePerturbation):
    """Utterances of the training set in a row, with pauses between them, and their texts joined.

    A data layer of transcribed speech does it, before all other perturbations and whatever its place among them. The
    first utterance is the epoch's next one; those behind it are drawn from the whole set (in tar shards, from the
    256 behind it). So an epoch has its number of steps, each utterance in its turn, and more audio than the set.

    Args:
        max_utterances: most utterances in a row; their number is drawn evenly from 2.
        max_duration: seconds that no row exceeds, pauses included; utterances that would are not joined.
        min_gap: shortest pause between two, in seconds.
        max_gap: longest pause between two, in seconds.
        min_level: lowest level of the noise in pauses in dB of full scale.
        max_level: highest level of the noise in pauses in dB of full scale.
        digital: how often pauses are digital silence in the place of noise.
    """

    def __init__(
        self,
        max_utterances: Annotated[int, Between(2, 100)] = 3,
        max_duration: Duration = 16.7,
        min_gap: PauseSeconds = 0.2,
        max_gap: PauseSeconds = 1.0,
        min_level: float = -80.0,
        max_level: float = -40.0,
        digital: Share = 0.3,
        rng: NumbersRng | None = None,
    ) -> None:
        super().__init__("join", min_level, max_level, digital, rng)
        self._gaps = _ordered("join", min_gap=min_gap, max_gap=max_gap)
        self.max_utterances, self.max_duration, self.max_gap = max_utterances, float(max_duration), float(max_gap)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        """One waveform has no others to be joined with.

        Raises:
            UsageError: always.
        """
        problem, wanted = "join needs other utterances and texts", "a data layer of transcribed speech"
        raise UsageError(problem, place="augmentor.join", got="one waveform", wanted=wanted)

    def joined(self, parts: Sequence[Samples], sample_rate: int, rng: np.random.Generator) -> Samples:
        """(T,) float32: the utterances in a row, with pauses between them."""
        seconds = rng.uniform(*self._gaps, len(parts) - 1)
        return self._paused(parts, [0, *(round(gap * sample_rate) for gap in seconds), 0], rng)


def _alternating(gaps: Sequence[Samples], parts: Sequence[Samples]) -> list[Samples]:
    return [piece for pair in zip(gaps, parts, strict=False) for piece in pair]


def _pause_places(samples: Samples, sample_rate: int) -> npt.NDArray[np.int64]:
    """The middles of the stretches inside that are quiet for long enough to lie between words."""
    size = max(round(_LEVEL_SECONDS * sample_rate), 1)
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    powers = np.square(frames, dtype=np.float64).mean(axis=1)
    loud = np.flatnonzero(powers > powers.max(initial=0.0) * 10.0 ** (-_QUIET_DB / 10))
    lengths = np.diff(loud) - 1
    wide = lengths >= _QUIET_FRAMES
    middles: npt.NDArray[np.int64] = (loud[:-1][wide] + 1 + lengths[wide] // 2) * size
    return middles


def _coloured_noise(num_samples: int, level: float, rng: np.random.Generator) -> Samples:
    """Noise of an RMS ``level`` whose power falls with frequency: from not at all (white) to 6 dB an octave (brown)."""
    n_fft = 1 << max(num_samples - 1, 1).bit_length()
    real, imaginary = rng.standard_normal((2, n_fft // 2 + 1), dtype=np.float32)
    # Frequencies below a hundredth of the highest keep one level: rooms do not rumble without end.
    positions = np.linspace(0.01, 1.0, n_fft // 2 + 1, dtype=np.float32)
    shape = positions ** np.float32(-rng.uniform(0.0, 1.0))
    noise = np.fft.irfft((real + 1j * imaginary) * shape, n_fft)[:num_samples].astype(np.float32)
    return noise * np.float32(level / max(_rms(noise), 1e-12))


class _RecordingPerturbation(Perturbation):
    """Base of those that take recordings from a manifest."""

    def __init__(self, manifest_path: str, rng: NumbersRng | None) -> None:
        super().__init__(rng)
        self._recordings = read_recordings(manifest_path)

    def stretch(self, num_samples: int, sample_rate: int, rng: np.random.Generator) -> Samples:
        """(num_samples,) of a random place of a random recording; zeros around a shorter one."""
        recording = self._recordings[rng.integers(len(self._recordings))]
        seconds = num_samples / sample_rate
        first = rng.uniform(0.0, max(0.0, recording.duration - seconds))
        found = recording.read(sample_rate, first, min(seconds, recording.duration))[:num_samples]
        before = int(rng.integers(num_samples - len(found) + 1))
        return np.pad(found, (before, num_samples - len(found) - before))

    def check_files(self) -> None:
        """See that each recording is there, can be read, and holds the seconds that its line says.

        Of more than 20,000 recordings so many are looked at, evenly spread.

        Raises:
            DataError: some cannot be used: the first few, and how many.
        """
        problems = []
        step = -(-len(self._recordings) // _CHECKED)
        for recording in self._recordings[::step]:
            try:
                recording.check()
            except DataError as error:
                problems.append(str(error))
        if problems:
            raise DataError(listed(problems, len(problems)))


class NoisePerturbation(_RecordingPerturbation):
    """Add a random stretch of a random recording of a manifest, at a signal-to-noise ratio drawn evenly.

    A recording longer than the audio is cut at a random position, a shorter one is put at a random position. The ratio
    is that of the mean powers of the audio and of the stretch. If either is silent, nothing is added.

    Args:
        manifest_path: JSON lines with audio_filepath and duration, optionally offset; text is not needed.
        min_snr_db: lowest ratio in dB.
        max_snr_db: highest ratio in dB.
        max_gain_db: no recording is raised by more.

    Raises:
        DataError: a manifest or a recording that cannot be read.
    """

    def __init__(
        self,
        manifest_path: str,
        min_snr_db: float = 40.0,
        max_snr_db: float = 50.0,
        max_gain_db: float = 300.0,
        rng: NumbersRng | None = None,
    ) -> None:
        super().__init__(manifest_path, rng)
        self._limits = _ordered("noise", min_snr_db=min_snr_db, max_snr_db=max_snr_db)
        self._max_gain_db = max_gain_db

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        snr_db, seconds = rng.uniform(*self._limits), len(samples) / sample_rate
        recording = self._recordings[rng.integers(len(self._recordings))]
        first = rng.uniform(0.0, max(0.0, recording.duration - seconds))
        noise = recording.read(sample_rate, first, min(seconds, recording.duration))[: len(samples)]
        level, noise_level = _rms(samples), _rms(noise)
        if level == 0.0 or noise_level == 0.0:
            return samples
        gain = min(level / noise_level * _amplitude(-snr_db), _amplitude(self._max_gain_db))
        start = rng.integers(len(samples) - len(noise) + 1)
        noisy = samples.copy()
        noisy[start : start + len(noise)] += np.float32(gain) * noise
        return noisy


class ImpulsePerturbation(_RecordingPerturbation):
    """Play in the room of a random impulse response of a manifest.

    The response's peak is the direct sound: nothing is delayed, nothing is lengthened, and the mean power stays.

    Args:
        manifest_path: JSON lines with audio_filepath and duration (at most a minute), optionally offset; text is not
            needed.

    Raises:
        DataError: a manifest or a recording that cannot be read, or a response of more than a minute.
    """

    def __init__(self, manifest_path: str, rng: NumbersRng | None = None) -> None:
        super().__init__(manifest_path, rng)
        for recording in self._recordings:
            if recording.duration > _MAX_RESPONSE_SECONDS:
                got, wanted = f"{recording.duration:g} s", f"at most {_MAX_RESPONSE_SECONDS:g} s"
                raise DataError("the impulse response is too long", place=recording.place, got=got, wanted=wanted)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        recording = self._recordings[rng.integers(len(self._recordings))]
        return _in_room(samples, recording.read(sample_rate, 0.0, recording.duration))


class RirNoisePerturbation(Perturbation):
    """Speech and noise in one room: each is played through a random impulse response, and the noise is added.

    Args:
        rir_manifest_path: impulse responses, as of `impulse`.
        noise_manifest_path: noises, as of `noise`.
        min_snr_db: lowest ratio in dB.
        max_snr_db: highest ratio in dB.

    Raises:
        DataError: a manifest or a recording that cannot be read, or a response of more than a minute.
    """

    def __init__(
        self,
        rir_manifest_path: str,
        noise_manifest_path: str,
        min_snr_db: float = 5.0,
        max_snr_db: float = 30.0,
        rng: NumbersRng | None = None,
    ) -> None:
        super().__init__(rng)
        self._limits = _ordered("rir_noise", min_snr_db=min_snr_db, max_snr_db=max_snr_db)
        self._room = ImpulsePerturbation(rir_manifest_path)
        self._noise = NoisePerturbation(noise_manifest_path)

    def check_files(self) -> None:
        """See that the responses and the noises can be used.

        Raises:
            DataError: some cannot be used.
        """
        self._room.check_files()
        self._noise.check_files()

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        noise = self._noise.stretch(len(samples), sample_rate, rng)
        snr_db = rng.uniform(*self._limits)
        heard, noise = (self._room.perturbed(one, sample_rate, rng) for one in (samples, noise))
        return _with_noise(heard, noise, snr_db)


class BabblePerturbation(_RecordingPerturbation):
    """Other people speak in the background: random recordings of a manifest, of equal loudness, at a drawn ratio.

    Args:
        manifest_path: JSON lines with audio_filepath and duration, optionally offset; the training set's will do.
        min_voices: fewest recordings at a time.
        max_voices: most recordings at a time.
        min_snr_db: lowest ratio of the speech to all of them in dB.
        max_snr_db: highest ratio in dB.

    Raises:
        DataError: a manifest or a recording that cannot be read.
    """

    def __init__(
        self,
        manifest_path: str,
        min_voices: Voices = 3,
        max_voices: Voices = 8,
        min_snr_db: float = 10.0,
        max_snr_db: float = 30.0,
        rng: NumbersRng | None = None,
    ) -> None:
        super().__init__(manifest_path, rng)
        self._limits = _ordered("babble", min_snr_db=min_snr_db, max_snr_db=max_snr_db)
        self._voices = _ordered("babble", min_voices=min_voices, max_voices=max_voices)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        least, most = self._voices
        snr_db, babble = rng.uniform(*self._limits), np.zeros_like(samples)
        for _ in range(int(rng.integers(int(least), int(most) + 1))):
            voice = self.stretch(len(samples), sample_rate, rng)
            if level := _rms(voice):
                babble += voice / np.float32(level)
        return _with_noise(samples, babble, snr_db)


# Perturbations of the way that speech takes to the recording: codecs, filters, overload.


class _Codec(NamedTuple):
    """How libsndfile writes a codec, at which rate; ``rate`` 0: that of the audio, or the next that it has.

    Without a format it is one of PyAV.
    """

    format: str
    subtype: str
    rate: int


_CODECS = {
    "alaw": _Codec("WAV", "ALAW", 8000),
    "mulaw": _Codec("WAV", "ULAW", 8000),
    "gsm": _Codec("WAV", "GSM610", 8000),
    "g721": _Codec("AU", "G721_32", 8000),
    "g722": _Codec("", "", 16000),
    "mp3": _Codec("MP3", "MPEG_LAYER_III", 0),
    "vorbis": _Codec("OGG", "VORBIS", 0),
    "opus": _Codec("OGG", "OPUS", 0),
}
_CODEC_RATES: dict[str, tuple[int, ...]] = {
    "mp3": (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000),
    "opus": (8000, 12000, 16000, 24000, 48000),
}
_FLEXIBLE = ("mp3", "vorbis", "opus")
_G722_DELAY = 22  # samples: two filters of 24 taps, one for each way (ITU-T G.722, 3.1 and 4.4)


class CodecPerturbation(Perturbation):
    """Through a lossy codec and back, as on a telephone or in a compressed file. The length stays.

    alaw and mulaw are G.711, gsm is GSM 06.10, g721 is ADPCM: these are at 8 kHz, so frequencies above 4 kHz are lost.
    g722 is wideband telephony at 16 kHz and 64 kbit/s. mp3, vorbis and opus are at a strength of compression that is
    drawn evenly.

    Args:
        codecs: one of them is drawn: alaw, mulaw, gsm, g721, g722 (needs PyAV), mp3, vorbis, opus.

    Raises:
        UnknownNameError: another codec.
        UsageError: none, or one that is not installed.
    """

    def __init__(self, codecs: Sequence[str] = ("alaw", "mulaw", "mp3", "opus"), rng: NumbersRng | None = None) -> None:
        super().__init__(rng)
        names = [codecs] if isinstance(codecs, str) else list(codecs)
        if not names:
            raise UsageError("codecs is empty", place="augmentor.codec", wanted=f"some of {', '.join(_CODECS)}")
        for name in names:
            codec = look_up("codec", name, _CODECS, "augmentor.codec")
            if not codec.format:
                if not has_av():
                    remedy = "pip install av (the extra formats of nemo-lite), or leave it out"
                    raise UsageError(f"{name} needs PyAV", place="augmentor.codec", remedy=remedy)
            elif not soundfile.check_format(codec.format, codec.subtype):
                problem = f"the installed libsndfile {soundfile.__libsndfile_version__} has no {name}"
                raise UsageError(problem, place="augmentor.codec", remedy="leave it out, or upgrade soundfile")
        self._names = names

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        name = self._names[rng.integers(len(self._names))]
        codec, strength = _CODECS[name], rng.uniform()
        if not len(samples):
            return samples
        at_least = [rate for rate in _CODEC_RATES.get(name, ()) if rate >= sample_rate]
        rate = codec.rate or (at_least[0] if at_least else max(_CODEC_RATES.get(name, (sample_rate,))))
        sent: Samples = samples if rate == sample_rate else soxr.resample(samples, sample_rate, rate)
        # Codecs of whole numbers would fold what is beyond full scale.
        peak = max(1.0, float(np.abs(sent).max(initial=0.0)))
        loudest = sent / np.float32(peak)
        if codec.format:
            options = {"compression_level": strength} if name in _FLEXIBLE else {}
            received = _through_file(loudest, rate, codec, options)
        else:
            received = _through_g722(loudest)
        received = received if rate == sample_rate else soxr.resample(received, rate, sample_rate)
        received = received[: len(samples)] * np.float32(peak)
        return np.pad(received, (0, len(samples) - len(received)))


def _through_file(samples: Samples, rate: int, codec: _Codec, options: Mapping[str, Any]) -> Samples:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=codec.format, subtype=codec.subtype, **options)
    file.seek(0)
    received: Samples
    received, _ = soundfile.read(file, dtype="float32")
    return received


def _through_g722(samples: Samples) -> Samples:
    """(T,) at 16 kHz -> (T,), without the delay. Not by the command ffmpeg: starting it takes longer than a step."""
    import av

    coder, decoder = (av.CodecContext.create("g722", mode) for mode in "wr")
    for context in (coder, decoder):
        context.sample_rate, context.layout = 16000, "mono"
    coder.format = "s16"
    num_padded = (len(samples) + _G722_DELAY + 1) // 2 * 2  # it codes pairs
    padded = np.pad(samples, (0, num_padded - len(samples)))
    frame = av.AudioFrame.from_ndarray(np.rint(padded * 32767.0).astype(np.int16)[None], "s16", "mono")
    frame.sample_rate = 16000
    packets = (*coder.encode(frame), *coder.encode(None))
    decoded = [one.to_ndarray() for packet in packets for one in decoder.decode(packet)]
    return scaled(np.concatenate(decoded, axis=1)[0, _G722_DELAY:][: len(samples)])


class LowPassPerturbation(Perturbation):
    """Without what is above a cutoff frequency, as by telephone, through a wall or a mask.

    A Butterworth filter without delay; the cutoff, 3 dB down, is drawn evenly on a logarithmic scale.

    Args:
        min_hz: lowest cutoff in Hz.
        max_hz: highest cutoff in Hz.
        order: of the filter: it falls by so many times 6 dB an octave.
    """

    def __init__(
        self,
        min_hz: Hertz = 2000.0,
        max_hz: Hertz = 7000.0,
        order: Annotated[int, Between(1, 100)] = 8,
        rng: NumbersRng | None = None,
    ) -> None:
        super().__init__(rng)
        self._limits, self._order = _ordered("low_pass", min_hz=min_hz, max_hz=max_hz), order

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        least, most = self._limits
        cutoff = least * (most / least) ** rng.uniform()
        # Zeros behind it: what the filter spreads over the end must not return at the beginning.
        num_padded = len(samples) + sample_rate // 10
        frequencies = np.fft.rfftfreq(num_padded, 1 / sample_rate)
        gains = 1.0 / np.sqrt(1.0 + (frequencies / cutoff) ** (2 * self._order))
        filtered = np.fft.irfft(np.fft.rfft(samples, num_padded) * gains, num_padded)
        return filtered[: len(samples)].astype(np.float32)


class ClipPerturbation(Perturbation):
    """The loudest samples cut off at one level, as by an overloaded microphone; all others stay as they are.

    Args:
        min_share: least share of the samples that are cut off.
        max_share: largest share of them.
    """

    def __init__(self, min_share: Share = 0.0, max_share: Share = 0.1, rng: NumbersRng | None = None) -> None:
        super().__init__(rng)
        self._limits = _ordered("clip", min_share=min_share, max_share=max_share)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        share = rng.uniform(*self._limits)
        if not len(samples):
            return samples
        level = np.float32(np.quantile(np.abs(samples), 1.0 - share))
        return np.clip(samples, -level, level)


def _in_room(samples: Samples, response: Samples) -> Samples:
    """The samples convolved with the response, its peak as the direct sound, at their mean power."""
    n_fft = 1 << (len(samples) + len(response) - 1).bit_length()
    convolved = np.fft.irfft(np.fft.rfft(samples, n_fft) * np.fft.rfft(response, n_fft), n_fft)
    peak = int(np.argmax(np.abs(response)))
    heard = convolved[peak : peak + len(samples)].astype(np.float32)
    level = _rms(heard)
    return heard * np.float32(_rms(samples) / level) if level else samples


def _with_noise(samples: Samples, noise: Samples, snr_db: float) -> Samples:
    """The noise added at a ratio of the mean powers; if either is silent, nothing is."""
    level, noise_level = _rms(samples), _rms(noise)
    if level == 0.0 or noise_level == 0.0:
        return samples
    return samples + noise * np.float32(level / noise_level * _amplitude(-snr_db))


def _amplitude(decibels: float) -> float:
    return float(10.0 ** (decibels / 20.0))


def _rms(samples: Samples) -> float:
    return math.sqrt(float(np.mean(np.square(samples, dtype=np.float64)))) if len(samples) else 0.0


def _ordered(place: str, **limits: float) -> tuple[float, float]:
    """The least and the most; UsageError when they are the wrong way round."""
    (least_name, least), (most_name, most) = limits.items()
    if least > most:
        raise UsageError(f"{least_name} is above {most_name}", place=place, got=f"{least} and {most}")
    return float(least), float(most)


# TimeStretchAugmentation: stretches a batch of waveforms.


class TimeStretchAugmentation(NonTrainableNM):
    """Speak faster or slower at the same pitch, by one rate for a whole batch, before the preprocessor. Training only.

    The phase vocoder runs on the host, utterance by utterance: the ``time_stretch`` of a data layer's augmentor does
    the same in the processes that load data, with a rate for each utterance.

    Args:
        sample_rate: Hz.
        probability: how often a batch is stretched, from 0 to 1.
        min_speed_rate: slowest rate.
        max_speed_rate: fastest rate.
        num_rates: how many evenly spaced rates to choose from; 0 or less for any rate.
        n_fft: samples of the vocoder's frames, a multiple of 4.

    Raises:
        UsageError: a probability outside 0 to 1, rates out of order, or another n_fft.
    """

    training_only = True

    def __init__(
        self,
        sample_rate: SampleRate,
        probability: Share,
        min_speed_rate: SpeedRate = 0.9,
        max_speed_rate: SpeedRate = 1.1,
        num_rates: Rates = 5,
        n_fft: FrameSamples = 512,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        place = type(self).__name__
        if min_speed_rate > max_speed_rate or n_fft % 4:
            got = f"{min_speed_rate}, {max_speed_rate} and n_fft {n_fft}"
            wanted = "min_speed_rate <= max_speed_rate, and a multiple of 4"
            raise UsageError("rates or n_fft are not usable", place=place, got=got, wanted=wanted)
        self.sample_rate, self.probability, self.n_fft = sample_rate, probability, n_fft
        self._rates = np.linspace(min_speed_rate, max_speed_rate, num_rates) if num_rates > 0 else None
        self._limits = (min_speed_rate, max_speed_rate)

    @property
    def input_ports(self) -> Ports:
        return {
            "input_signal": NeuralType("B T", AudioSignal(self.sample_rate)),
            "length": NeuralType("B", LengthsType()),
        }

    @property
    def output_ports(self) -> Ports:
        return {
            "processed_signal": NeuralType("B T", AudioSignal(self.sample_rate)),
            "processed_length": NeuralType("B", LengthsType()),
        }

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """Samples, in training of another number than before."""
        batch, _ = shapes["input_signal"]
        return {"processed_signal": (batch, symbol("samples")), "processed_length": (batch,)}

    @torch.no_grad()
    def forward(self, input_signal: torch.Tensor, length: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, T) samples and how many are valid (B,) -> the same, with about T / rate samples."""
        if not self.training or torch.rand(()).item() >= self.probability:
            return input_signal, length
        share = torch.rand(()).item()
        low, high = self._limits
        rate = low + share * (high - low)
        if self._rates is not None:
            rate = float(self._rates[min(int(share * len(self._rates)), len(self._rates) - 1)])
        if rate == 1.0:
            return input_signal, length
        rows = zip(input_signal.float().cpu().numpy(), length.tolist(), strict=True)
        stretched = [torch.from_numpy(time_stretched(samples[:count], rate, self.n_fft)) for samples, count in rows]
        lengths = torch.tensor([len(samples) for samples in stretched], device=length.device, dtype=length.dtype)
        padded = torch.nn.utils.rnn.pad_sequence(stretched, batch_first=True)
        return padded.to(input_signal.device, input_signal.dtype), lengths


# AudioAugmentor: which perturbations act on a waveform, each with its probability.


perturbation_types: dict[str, type[Perturbation]] = {
    "speed": SpeedPerturbation,
    "time_stretch": TimeStretchPerturbation,
    "gain": GainPerturbation,
    "impulse": ImpulsePerturbation,
    "shift": ShiftPerturbation,
    "noise": NoisePerturbation,
    "white_noise": WhiteNoisePerturbation,
    "coloured_noise": ColouredNoisePerturbation,
    "silence": SilencePerturbation,
    "join": JoinPerturbation,
    "rir_noise": RirNoisePerturbation,
    "babble": BabblePerturbation,
    "codec": CodecPerturbation,
    "low_pass": LowPassPerturbation,
    "clip": ClipPerturbation,
}
"""The perturbations that a configuration can name."""


def register_perturbation(name: str, perturbation: type[Perturbation]) -> None:
    """Let configurations use a class under ``name``.

    Raises:
        UsageError: the name is taken.
    """
    if name in perturbation_types:
        wanted = f"a name other than {perturbation_types[name].__name__}'s"
        raise UsageError(f'perturbation "{name}" exists', got=__name__, wanted=wanted)
    perturbation_types[name] = perturbation


class UnknownPerturbationError(UnknownNameError, KeyError):
    """A perturbation that is not registered."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would quote it


class MissingProbabilityError(UsageError, KeyError):
    """A perturbation without its probability."""

    def __str__(self) -> str:
        return str(self.args[0])


def perturbation_problems(section: Config) -> list[str]:
    """One line for each problem with the keys of ``augmentor`` in a file: names, probabilities, arguments."""
    problems = []
    for name, arguments in section.items():
        if name not in perturbation_types:
            problems.append(f"{unknown_key(section, name, perturbation_types)}; one of your own needs --import FILE")
        elif not isinstance(arguments, Config):
            problems.append(f"{section.place(name)}: {section.path_of(name)} holds no mapping of arguments")
        else:
            settings = arguments.without("prob")
            problems += check_call(arguments.without(*settings), _act)
            problems += check_call(settings, perturbation_types[name])
    return problems


def _act(prob: Share) -> None:
    """The key that all perturbations have."""


Perturbations: TypeAlias = Annotated[Mapping[str, Any], Checked(perturbation_problems)]


class AudioAugmentor:
    """Perturbations, each applied with its own probability, one after the other.

    Args:
        perturbations: (probability, perturbation) pairs.
        rng: generator of the draws of :meth:`perturb`, Python's or NumPy's; by default one of its own.

    Attributes:
        join: how often utterances are joined, and how, which a data layer does; None: never.

    Raises:
        UsageError: a probability outside 0 to 1, or two that join.
    """

    def __init__(
        self, perturbations: Sequence[tuple[float, Perturbation]] | None = None, rng: NumbersRng | None = None
    ) -> None:
        self._rng = generator_from(rng) or np.random.default_rng()
        self._pipeline: list[tuple[float, Perturbation]] = []
        self.join: tuple[float, JoinPerturbation] | None = None
        for probability, one in perturbations or []:
            if not 0.0 <= probability <= 1.0:
                place = type(one).__name__
                raise UsageError("prob is no probability", place=place, got=str(probability), wanted="0 to 1")
            if not isinstance(one, JoinPerturbation):
                self._pipeline.append((probability, one))
            elif self.join is not None:
                raise UsageError("join is given twice", place="augmentor.join", remedy="raise max_utterances of one")
            else:
                self.join = (probability, one)

    def perturb(self, segment: AudioSegment) -> None:
        """Change a segment in place.

        Raises:
            UsageError: it joins utterances, and here is one waveform only.
        """
        if self.join is not None:
            self.join[1].perturb(segment)
        for probability, one in self._pipeline:
            if self._rng.random() < probability:
                one.perturb(segment)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        """Perturbed samples (T',) float32; the given (T,) stay as they are. All draws come from ``rng``."""
        for probability, one in self._pipeline:
            if rng.random() < probability:
                samples = one.perturbed(samples, sample_rate, rng)
        return samples

    def max_augmentation_length(self, length: float) -> float:
        """The longest that audio of this length can become, in the same unit."""
        for _, one in self._pipeline:
            length = one.max_augmentation_length(length)
        return length

    def min_augmentation_length(self, length: float) -> float:
        """The shortest that audio of this length can become, in the same unit."""
        for probability, one in self._pipeline:
            if probability:
                length = one.min_augmentation_length(length)
        return length

    def check_files(self) -> None:
        """See that the files which the perturbations read are there, before training.

        Raises:
            DataError: files that cannot be used.
        """
        for probability, one in self._pipeline:
            if probability:
                one.check_files()

    @classmethod
    def from_config(cls, config: Mapping[str, Mapping[str, Any]] | Sequence[Mapping[str, Any]]) -> AudioAugmentor:
        """An augmentor from ``{name: {prob: ..., argument: ...}}`` or ``[{aug_type: name, prob: ..., cfg: {...}}]``.

        Raises:
            UnknownPerturbationError: a perturbation that is not registered.
            MissingProbabilityError: no probability.
            UsageError: an impossible probability, or unknown or missing arguments.
        """
        if isinstance(config, Mapping):
            sections = [(name, {**arguments}) for name, arguments in config.items()]
        else:
            sections = [(entry.get("aug_type", ""), {**entry.get("cfg", {}), **_prob_of(entry)}) for entry in config]
        return cls([_from_section(name, arguments) for name, arguments in sections])


def augmentor_of(setting: Mapping[str, Mapping[str, Any]] | AudioAugmentor | None) -> AudioAugmentor | None:
    """The augmentor of a data layer, perhaps described by a configuration.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(setting, Mapping):
        return AudioAugmentor.from_config(setting)
    if setting is not None and not isinstance(setting, AudioAugmentor):
        wanted = "a dictionary or an AudioAugmentor"
        raise UsageError("augmentor is not usable", got=type(setting).__name__, wanted=wanted)
    return setting


def _prob_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: entry[key] for key in ("prob",) if key in entry}


def _from_section(name: str, arguments: dict[str, Any]) -> tuple[float, Perturbation]:
    place = f"augmentor.{name}"
    if name not in perturbation_types:
        raise UnknownPerturbationError("perturbation", name, perturbation_types, place="augmentor")
    perturbation_class = perturbation_types[name]
    if "prob" not in arguments:
        raise MissingProbabilityError("prob is missing", place=place, remedy="say how often it acts, from 0 to 1")
    probability = arguments.pop("prob")
    parameters = inspect.signature(perturbation_class).parameters
    for key in arguments.keys() - parameters.keys():
        raise UsageError(f"{key} is not an argument{did_you_mean(key, parameters)}", place=place)
    for parameter in parameters.values():
        if parameter.default is parameter.empty and parameter.name not in arguments:
            raise UsageError(f"{parameter.name} is missing", place=place)
    refuse_out_of_range(perturbation_class.__init__, arguments, perturbation_class.__name__)
    return probability, perturbation_class(**arguments)


# WaveformFeaturizer: NeMo's way from a file to samples, perturbed on the way. No network sees anything here.


class WaveformFeaturizer:
    """Reads files as samples at one rate.

    Args:
        sample_rate: Hz.
        int_values: read through 32-bit integers.
        augmentor: perturbs what is read; None: nothing does.
    """

    def __init__(
        self, sample_rate: int = 16000, int_values: bool = False, augmentor: AudioAugmentor | None = None
    ) -> None:
        self.sample_rate, self.int_values = sample_rate, int_values
        self.augmentor = AudioAugmentor() if augmentor is None else augmentor

    def max_augmentation_length(self, length: float) -> float:
        """The longest that audio of this length can become, in the same unit."""
        return self.augmentor.max_augmentation_length(length)

    def process(self, file_path: AnyFile, offset: float = 0, duration: float = 0, trim: bool = False) -> torch.Tensor:
        """(T,) float32 samples of a path or an open file; see `AudioSegment.from_file`."""
        segment = AudioSegment.from_file(file_path, self.sample_rate, self.int_values, offset, duration, trim)
        return self.process_segment(segment)

    def process_segment(self, audio_segment: AudioSegment) -> torch.Tensor:
        """(T,) float32 samples of a segment, which is perturbed in place."""
        self.augmentor.perturb(audio_segment)
        return torch.tensor(audio_segment.samples, dtype=torch.float)

    @classmethod
    def from_config(
        cls,
        input_config: Mapping[str, Any],
        perturbation_configs: Mapping[str, Mapping[str, Any]] | Sequence[Mapping[str, Any]] | None = None,
    ) -> WaveformFeaturizer:
        """Made from ``sample_rate`` and ``int_values``, and from perturbations as `AudioAugmentor.from_config`."""
        augmentor = None if perturbation_configs is None else AudioAugmentor.from_config(perturbation_configs)
        return cls(input_config.get("sample_rate", 16000), input_config.get("int_values", False), augmentor)
