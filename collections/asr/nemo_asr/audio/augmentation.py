"""TimeStretchAugmentation: stretches a batch of waveforms. Perturbations of single utterances: `perturbation`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from nemo_asr.arguments import FrameSamples, Rates, SampleRate, Share, SpeedRate
from nemo_asr.audio.time_stretch import time_stretched
from nemo_lite import NonTrainableNM
from nemo_lite.core.neural_types import AudioSignal, LengthsType, NeuralType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol
from nemo_lite.errors import UsageError


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
