"""Perturbations of waveforms: speed, time stretching, level, shift, noise, room. Which of them act: `augmentor`.

Each takes (samples, sample rate, generator) and gives new samples. All draws come from the caller's generator, so they
do not depend on worker processes. NeMo's ``perturb`` changes an `AudioSegment` in place, with a generator of its own.
"""

from __future__ import annotations

import math
from typing import Annotated, TypeAlias

import numpy as np
import soxr

from nemo_asr.arguments import (
    Decibels,
    FilePath,
    FrameSamples,
    NumbersRng,
    Rates,
    SampleRate,
    SpeedRate,
    Word,
    generator_from,
    look_up,
)
from nemo_asr.audio.reading import Samples
from nemo_asr.audio.recordings import check_recordings, read_recordings
from nemo_asr.audio.segment import AudioSegment
from nemo_asr.audio.time_stretch import time_stretched
from nemo_lite.config.ranges import Between, within_ranges
from nemo_lite.errors import DataError, UsageError

_MAX_RESPONSE_SECONDS = 60.0  # cathedrals echo for ten; the transform's memory grows with it
# NeMo's names of resamplers, and the quality of soxr that replaces each: 16 bits for the fast one.
_SOXR_QUALITY = {"kaiser_fast": "LQ", "kaiser_best": "HQ", "fft": "HQ", "scipy": "HQ"}


Milliseconds: TypeAlias = Annotated[float, Between(-60_000, 60_000)]  # a minute


class Perturbation:
    """Base: subclasses implement :meth:`perturbed`, or as in NeMo :meth:`perturb`.

    Those that lengthen or shorten audio also implement :meth:`max_augmentation_length` and
    :meth:`min_augmentation_length`; those that read files, :meth:`check_files`.

    Args:
        rng: generator of the draws of :meth:`perturb`, Python's or NumPy's; by default one of its own. A data layer
            draws from its own generators.
    """

    _rng: np.random.Generator | None = None

    def __init_subclass__(cls) -> None:
        """Arguments outside of the ranges beside their parameters are refused."""
        if "__init__" in vars(cls):
            cls.__init__ = within_ranges(cls.__init__)  # type: ignore[method-assign]

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
        resample_type: Word = "kaiser_fast",
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
        self, min_gain_dbfs: Decibels = -10.0, max_gain_dbfs: Decibels = 10.0, rng: NumbersRng | None = None
    ) -> None:
        super().__init__(rng)
        self._limits = _ordered("gain", min_gain_dbfs=min_gain_dbfs, max_gain_dbfs=max_gain_dbfs)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        return samples * np.float32(_amplitude(rng.uniform(*self._limits)))


class ShiftPerturbation(Perturbation):
    """Earlier (above 0) or later (below 0) by some milliseconds, silence in the gap; not if nothing would be left.

    Args:
        min_shift_ms: least shift in milliseconds.
        max_shift_ms: greatest shift in milliseconds.
    """

    def __init__(
        self, min_shift_ms: Milliseconds = -5.0, max_shift_ms: Milliseconds = 5.0, rng: NumbersRng | None = None
    ) -> None:
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

    def __init__(self, min_level: Decibels = -90, max_level: Decibels = -46, rng: NumbersRng | None = None) -> None:
        super().__init__(rng)
        self._limits = _ordered("white_noise", min_level=min_level, max_level=max_level)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        level = np.float32(_amplitude(rng.uniform(*self._limits)))
        return samples + level * rng.standard_normal(len(samples), dtype=np.float32)


class NoisePerturbation(Perturbation):
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
        manifest_path: FilePath,
        min_snr_db: Decibels = 40.0,
        max_snr_db: Decibels = 50.0,
        max_gain_db: Decibels = 300.0,
        rng: NumbersRng | None = None,
    ) -> None:
        super().__init__(rng)
        self._limits = _ordered("noise", min_snr_db=min_snr_db, max_snr_db=max_snr_db)
        self._max_gain_db, self._recordings = max_gain_db, read_recordings(manifest_path)

    def check_files(self) -> None:
        """See that each recording is there, can be read, and holds the seconds that its line says."""
        check_recordings(self._recordings)

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


class ImpulsePerturbation(Perturbation):
    """Play in the room of a random impulse response of a manifest.

    The response's peak is the direct sound: nothing is delayed, nothing is lengthened, and the mean power stays.

    Args:
        manifest_path: JSON lines with audio_filepath and duration (at most a minute), optionally offset; text is not
            needed.

    Raises:
        DataError: a manifest or a recording that cannot be read, or a response of more than a minute.
    """

    def __init__(self, manifest_path: FilePath, rng: NumbersRng | None = None) -> None:
        super().__init__(rng)
        self._recordings = read_recordings(manifest_path)
        for recording in self._recordings:
            if recording.duration > _MAX_RESPONSE_SECONDS:
                got, wanted = f"{recording.duration:g} s", f"at most {_MAX_RESPONSE_SECONDS:g} s"
                raise DataError("the impulse response is too long", place=recording.place, got=got, wanted=wanted)

    def check_files(self) -> None:
        """See that each recording is there, can be read, and holds the seconds that its line says."""
        check_recordings(self._recordings)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        recording = self._recordings[rng.integers(len(self._recordings))]
        response = recording.read(sample_rate, 0.0, recording.duration)
        n_fft = 1 << (len(samples) + len(response) - 1).bit_length()
        convolved = np.fft.irfft(np.fft.rfft(samples, n_fft) * np.fft.rfft(response, n_fft), n_fft)
        peak = int(np.argmax(np.abs(response)))
        heard = convolved[peak : peak + len(samples)].astype(np.float32)
        level = _rms(heard)
        return heard * np.float32(_rms(samples) / level) if level else samples


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
