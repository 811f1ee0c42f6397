"""WaveformFeaturizer: NeMo's way from a file to samples, perturbed on the way. No network sees anything here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from nemo_asr.audio.augmentor import AudioAugmentor
from nemo_asr.audio.segment import AudioFile, AudioSegment


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

    def process(self, file_path: AudioFile, offset: float = 0, duration: float = 0, trim: bool = False) -> torch.Tensor:
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
