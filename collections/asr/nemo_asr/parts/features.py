"""NeMo's featurizers: `WaveformFeaturizer` of ``audio/``, and the mel preprocessor as a plain torch module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from nemo_asr.audio.augmentation import WaveformFeaturizer as WaveformFeaturizer
from nemo_asr.features import signal_processing
from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor

CONSTANT = signal_processing.STD_FLOOR
_OVER = {"per_feature": (2,), "all_features": (1, 2)}


class FeaturizerFactory:
    """Makes featurizers."""

    @classmethod
    def from_config(cls, featurizer_cfg: Mapping[str, Any], perturbation_configs: Any = None) -> WaveformFeaturizer:
        """See `WaveformFeaturizer.from_config`."""
        return WaveformFeaturizer.from_config(featurizer_cfg, perturbation_configs)


class FilterbankFeatures(nn.Module):
    """Log-mel features as a module that is no part of a DAG: see `AudioToMelSpectrogramPreprocessor`.

    Args:
        sample_rate: Hz.
        n_window_size: samples of a frame's window.
        n_window_stride: samples from frame to frame.
        nfilt: mel bands.
        max_duration: taken for NeMo's sake.
        settings: as those of `AudioToMelSpectrogramPreprocessor`.
    """

    def __init__(
        self,
        sample_rate: int = 16000,
        n_window_size: int = 320,
        n_window_stride: int = 160,
        window: str | None = "hann",
        normalize: Any = "per_feature",
        n_fft: int | None = None,
        preemph: float | None = 0.97,
        nfilt: int = 64,
        max_duration: float = 16.7,
        **settings: Any,
    ) -> None:
        super().__init__()
        frames: dict[str, Any] = {"window_size": None, "n_window_size": n_window_size}
        frames |= {"window_stride": None, "n_window_stride": n_window_stride, "n_fft": n_fft}
        settings = {"std_floor": 0.0, **settings}  # NeMo's numbers
        settings |= {"window": window, "normalize": normalize, "preemph": preemph, "features": nfilt}
        self.preprocessor = AudioToMelSpectrogramPreprocessor(sample_rate, **frames, **settings)

    @property
    def filter_banks(self) -> torch.Tensor:
        """(1, nfilt, n_fft / 2 + 1)."""
        return self.preprocessor.filter_banks

    def get_seq_len(self, seq_len: torch.Tensor) -> torch.Tensor:
        """(B,) frames of so many samples, int64."""
        return signal_processing.frame_count(seq_len.long(), self.preprocessor.hop_length)

    def forward(self, x: torch.Tensor, seq_len: torch.Tensor) -> torch.Tensor:
        """(B, T) samples and how many are valid (B,) -> (B, D, U) features."""
        features: torch.Tensor = self.preprocessor(x, seq_len)[0]
        return features


def normalize_batch(x: torch.Tensor, seq_len: torch.Tensor, normalize_type: Any) -> torch.Tensor:
    """Features (B, D, T) with mean 0 and deviation 1 over the valid frames (B,); zeros behind them.

    Args:
        x: the features; they stay as they are.
        seq_len: how many frames are valid.
        normalize_type: per_feature, all_features, or ``{"fixed_mean": [...], "fixed_std": [...]}``; any other leaves
            the features as they are.
    """
    if isinstance(normalize_type, Mapping):
        mean, deviation = (_column(normalize_type[key], x) for key in ("fixed_mean", "fixed_std"))
        return (x - mean) / deviation
    return signal_processing.normalize_(x.clone(), seq_len, _OVER[normalize_type]) if normalize_type in _OVER else x


def splice_frames(x: torch.Tensor, frame_splicing: int) -> torch.Tensor:
    """Each ``frame_splicing`` neighbouring frames as one: (B, D, T) -> (B, n D, ceil(T / n))."""
    missing = -x.shape[2] % frame_splicing
    return signal_processing.splice_frames(nn.functional.pad(x, (0, missing)), frame_splicing)


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(list(values), device=like.device, dtype=like.dtype)[:, None]
