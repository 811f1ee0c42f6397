"""AudioToWaveformPreprocessor: the samples themselves, for encoders that hear waveforms. Spectra: `preprocessors`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch

from nemo_asr.run.arguments import SampleRate
from nemo_lite import NonTrainableNM
from nemo_lite.base.ranges import Between
from nemo_lite.core.neural_types import AudioSignal, AxisKind, AxisType, LengthsType, NeuralType, SpectrogramType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape


class AudioToWaveformPreprocessor(NonTrainableNM):
    """B utterances of T samples to B x 1 x T: a frame for each sample, with one feature.

    The samples of each utterance are brought to mean 0 and variance 1, of its own samples alone; behind an utterance
    they are 0. This is what Hugging Face's ``Wav2Vec2FeatureExtractor`` computes.

    No weights, no gradients, float32 throughout.

    Args:
        sample_rate: Hz.
        normalize: False: the samples stay as they are.
        variance_floor: is added to the variance.
        name: the module's name.
    """

    keep_float32 = True
    num_features = 1

    def __init__(
        self,
        sample_rate: SampleRate = 16000,
        normalize: bool = True,
        variance_floor: Annotated[float, Between(0, 1, above=True)] = 1e-7,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.sample_rate, self._normalize, self._variance_floor = sample_rate, normalize, variance_floor

    @property
    def input_ports(self) -> Ports:
        return {
            "input_signal": NeuralType("B T", AudioSignal(self.sample_rate)),
            "length": NeuralType("B", LengthsType()),
        }

    @property
    def output_ports(self) -> Ports:
        axes = AxisType(AxisKind.Batch), AxisType(AxisKind.Dimension, 1), AxisType(AxisKind.Time)
        return {
            "processed_signal": NeuralType(axes, SpectrogramType()),
            "processed_length": NeuralType("B", LengthsType()),
        }

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, samples = shapes["input_signal"]
        return {"processed_signal": (batch, 1, samples), "processed_length": (batch,)}

    @property
    def summary(self) -> str:
        """What the features are, in a line."""
        return f"samples of the waveform, {'of mean 0 and variance 1' if self._normalize else 'as they are'}"

    @torch.no_grad()
    def forward(self, input_signal: torch.Tensor, length: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Samples (B, 1, T) and how many each utterance has (B,), int64."""
        length = length.to(input_signal.device, torch.int64)
        is_own = torch.arange(input_signal.shape[1], device=input_signal.device) < length.unsqueeze(1)
        samples = torch.where(is_own, input_signal.to(torch.float32), 0.0)
        if self._normalize:
            count = length.clamp(min=1).unsqueeze(1)
            samples = torch.where(is_own, samples - samples.sum(1, keepdim=True) / count, 0.0)
            variance = samples.square().sum(1, keepdim=True) / count
            samples = samples * torch.rsqrt(variance + self._variance_floor)
        return samples.unsqueeze(1), length
