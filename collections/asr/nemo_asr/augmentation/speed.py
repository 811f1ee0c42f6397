"""Speed: by resampling, or at constant pitch by a phase vocoder, which also stretches batches."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import soxr
import torch

from nemo_asr.augmentation.perturbation import Perturbation
from nemo_asr.rng import NumbersRng
from nemo_asr.run.arguments import FrameSamples, Rates, SampleRate, SpeedRate, look_up
from nemo_asr.run.audio.files import Samples
from nemo_lite import NonTrainableNM
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Share
from nemo_lite.core.neural_types import AudioSignal, LengthsType, NeuralType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol

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


# NeMo's names of resamplers, and the quality of soxr that replaces each: 16 bits for the fast one.
_SOXR_QUALITY = {"kaiser_fast": "LQ", "kaiser_best": "HQ", "fft": "HQ", "scipy": "HQ"}


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
