"""NeMo's SpecAugment and SpecCutout as torch modules; see `SpectrogramAugmentation`, which is both."""

from __future__ import annotations

import torch
from torch import nn

from nemo_asr.features.augmentation import Rng, SpectrogramAugmentation


class SpecAugment(nn.Module):
    """Bands and stretches of zeros; acts whenever it is called, in evaluation too, as in NeMo.

    Args:
        freq_masks, time_masks: how many.
        freq_width: features of the widest band.
        time_width: frames of the widest stretch, or their share of all.
        rng: generator of the draws.
    """

    def __init__(
        self,
        freq_masks: int = 0,
        time_masks: int = 0,
        freq_width: int = 10,
        time_width: int | float = 10,
        rng: Rng | None = None,
    ) -> None:
        super().__init__()
        self._masks = SpectrogramAugmentation(freq_masks, time_masks, freq_width, time_width, rng=rng)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, D, T) with masked parts 0."""
        return _masked(self._masks, x)


class SpecCutout(nn.Module):
    """Rectangles of zeros; acts whenever it is called, in evaluation too, as in NeMo.

    Args:
        rect_masks: how many.
        rect_time: frames of the widest.
        rect_freq: features of the widest.
        rng: generator of the draws.
    """

    def __init__(self, rect_masks: int = 0, rect_time: int = 5, rect_freq: int = 20, rng: Rng | None = None) -> None:
        super().__init__()
        self._masks = SpectrogramAugmentation(rect_masks=rect_masks, rect_time=rect_time, rect_freq=rect_freq, rng=rng)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, D, T) with masked parts 0."""
        return _masked(self._masks, x)


def _masked(masks: SpectrogramAugmentation, x: torch.Tensor) -> torch.Tensor:
    spectrogram: torch.Tensor = masks.train()(x)
    return spectrogram
