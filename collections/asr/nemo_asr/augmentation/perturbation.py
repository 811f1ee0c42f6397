"""Perturbation, the base; and those that need no files: gain, shift, trimmed tails, white and coloured noise.

A perturbation takes (samples, sample rate, generator) and gives new samples. All draws come from the caller's
generator, so they do not depend on worker processes. NeMo's ``perturb`` changes an `AudioSegment` in place, with a
generator of its own, which a data layer seeds for each utterance.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nemo_asr.augmentation.segment import AudioSegment
from nemo_asr.rng import NumbersRng, generator_from, generators_of, seeded_from
from nemo_asr.run.audio.files import Samples
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import PositiveInt


class Perturbation:
    """Base: subclasses implement :meth:`perturbed`, or as in NeMo :meth:`perturb`.

    Those that lengthen or shorten audio also implement :meth:`max_augmentation_length` and
    :meth:`min_augmentation_length`; those that read files, :meth:`check_files`.

    Args:
        rng: generator of the draws of :meth:`perturb`, Python's or NumPy's; by default one of its own. A data layer
            draws from its own generators: those of a subclass get a seed of the epoch and the utterance from it, for
            as long as they draw for it.
    """

    # Subclasses may set another one, Python's or NumPy's.
    _rng: Any = None

    def __init__(self, rng: NumbersRng | None = None) -> None:
        self._rng = generator_from(rng) or np.random.default_rng()

    def perturb(self, data: AudioSegment) -> None:
        """Change a segment in place."""
        if self._rng is None:
            self._rng = np.random.default_rng()
        data._samples = self.perturbed(data._samples, data.sample_rate, self._rng)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        """New samples (T',) float32 from samples (T,), full scale 1, which stay as they are."""
        if type(self).perturb is Perturbation.perturb:
            raise NotImplementedError(f"{type(self).__name__} has neither perturbed nor perturb")
        if self._rng is None:  # of a subclass that does not call this constructor
            self._rng = np.random.default_rng()
        segment = AudioSegment(samples, sample_rate)
        with seeded_from(rng, generators_of(self)):
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
        self._limits = ordered("gain", min_gain_dbfs=min_gain_dbfs, max_gain_dbfs=max_gain_dbfs)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        return samples * np.float32(amplitude(rng.uniform(*self._limits)))


class ShiftPerturbation(Perturbation):
    """Earlier (above 0) or later (below 0) by some milliseconds, silence in the gap; not if nothing would be left.

    By default each place within a hop of 10 ms comes: frames of other programs may begin elsewhere in it.

    Args:
        min_shift_ms: least shift in milliseconds.
        max_shift_ms: greatest shift in milliseconds.
    """

    def __init__(self, min_shift_ms: float = -5.0, max_shift_ms: float = 5.0, rng: NumbersRng | None = None) -> None:
        super().__init__(rng)
        self._limits = ordered("shift", min_shift_ms=min_shift_ms, max_shift_ms=max_shift_ms)

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


class TrimTailPerturbation(Perturbation):
    """Leave out the last frames of 10 ms, a drawn number of them; not if half of the audio or more would go.

    A model that streams learns to write a text earlier. Source: Song et al., "TrimTail", 2022; WeNet's ``spec_trim``.

    Args:
        max_frames: most frames that are left out; the least is 1.
    """

    def __init__(self, max_frames: PositiveInt = 20, rng: NumbersRng | None = None) -> None:
        super().__init__(rng)
        self._max_frames = max_frames

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        kept = len(samples) - int(rng.integers(1, self._max_frames + 1)) * sample_rate // 100
        return samples[:kept] if 2 * kept > len(samples) else samples

    def min_augmentation_length(self, length: float) -> float:
        return length / 2


class WhiteNoisePerturbation(Perturbation):
    """White noise of a level drawn evenly between two levels in dB of full scale.

    Args:
        min_level: lowest level in dB of full scale.
        max_level: highest level in dB of full scale.
    """

    def __init__(self, min_level: float = -90, max_level: float = -46, rng: NumbersRng | None = None) -> None:
        super().__init__(rng)
        self._limits = ordered("white_noise", min_level=min_level, max_level=max_level)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        level = np.float32(amplitude(rng.uniform(*self._limits)))
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
        self._limits = ordered("coloured_noise", min_snr_db=min_snr_db, max_snr_db=max_snr_db)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        return with_noise(samples, coloured_noise(len(samples), 1.0, rng), rng.uniform(*self._limits))


def coloured_noise(num_samples: int, level: float, rng: np.random.Generator) -> Samples:
    """Noise of an RMS ``level`` whose power falls with frequency: from not at all (white) to 6 dB an octave (brown)."""
    n_fft = 1 << max(num_samples - 1, 1).bit_length()
    real, imaginary = rng.standard_normal((2, n_fft // 2 + 1), dtype=np.float32)
    # Frequencies below a hundredth of the highest keep one level: rooms do not rumble without end.
    positions = np.linspace(0.01, 1.0, n_fft // 2 + 1, dtype=np.float32)
    shape = positions ** np.float32(-rng.uniform(0.0, 1.0))
    noise = np.fft.irfft((real + 1j * imaginary) * shape, n_fft)[:num_samples].astype(np.float32)
    return noise * np.float32(level / max(rms(noise), 1e-12))


def with_noise(samples: Samples, noise: Samples, snr_db: float) -> Samples:
    """The noise added at a ratio of the mean powers; if either is silent, nothing is."""
    level, noise_level = rms(samples), rms(noise)
    if level == 0.0 or noise_level == 0.0:
        return samples
    return samples + noise * np.float32(level / noise_level * amplitude(-snr_db))


def amplitude(decibels: float) -> float:
    """The factor of samples that is so many dB."""
    return float(10.0 ** (decibels / 20.0))


def rms(samples: Samples) -> float:
    """The root of the mean power of (T,); 0 where there are no samples."""
    return math.sqrt(float(np.mean(np.square(samples, dtype=np.float64)))) if len(samples) else 0.0


def ordered(place: str, **limits: float) -> tuple[float, float]:
    """The least and the most; UsageError when they are the wrong way round."""
    (least_name, least), (most_name, most) = limits.items()
    if least > most:
        raise UsageError(f"{least_name} is above {most_name}", place=place, got=f"{least} and {most}")
    return float(least), float(most)
