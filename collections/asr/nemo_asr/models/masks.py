"""What training hides of an utterance that an encoder hears: stretches of frames and of channels, and whole layers.

Of spectra before an encoder: `features.augmentation`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class Masks:
    """Random stretches, drawn on the device and without a look at any value.

    Args:
        share: of the positions, if no two stretches overlap.
        length: positions of a stretch.
        fewest: stretches.
    """

    def __init__(self, share: float, length: int, fewest: int) -> None:
        self.share, self.length, self.fewest = share, length, fewest

    def draw(self, sizes: Tensor, num_positions: int) -> Tensor:
        """(B, num_positions): True in the stretches, each within the first ``sizes`` (B,) positions.

        The number of stretches is rounded up or down at random, so that it is right on average. No two begin at the
        same place. In an utterance with fewer positions than a stretch there are none.
        """
        device = sizes.device
        places = (sizes - self.length + 1).clamp(min=0)
        chance = torch.rand((), device=device)
        wanted = (self.share * sizes / self.length + chance).long().clamp(min=self.fewest)
        wanted = wanted.minimum(sizes // self.length)
        positions = torch.arange(num_positions, device=device)
        ranks = torch.rand(len(sizes), num_positions, device=device)
        ranks = torch.where(positions < places.unsqueeze(1), ranks, 2.0).argsort(1).argsort(1)
        begins = (ranks < wanted.unsqueeze(1)).cumsum(1)
        return begins - F.pad(begins, (self.length, 0))[:, :num_positions] > 0


def masked(x: Tensor, lengths: Tensor, vector: Tensor | None, in_time: Masks, of_channels: Masks) -> Tensor:
    """(B, T, D) with a trained vector in stretches of frames, and 0 in stretches of channels.

    Source: Park et al., "SpecAugment", Interspeech 2019; Baevski et al., "wav2vec 2.0", NeurIPS 2020.

    Args:
        x: frames.
        lengths: (B,), valid frames.
        vector: (D,); None: no frame is masked.
        in_time: the stretches of frames of each utterance.
        of_channels: the stretches of channels, for all frames of an utterance.
    """
    if vector is not None:
        x = torch.where(in_time.draw(lengths, x.shape[1]).unsqueeze(2), vector.to(x.dtype), x)
    if of_channels.share > 0:
        channels = torch.full_like(lengths, x.shape[2])
        x = x.masked_fill(of_channels.draw(channels, x.shape[2]).unsqueeze(1), 0.0)
    return x


def perhaps_left_out(x: Tensor, out: Tensor, probability: float) -> Tensor:
    """What a layer gave, or with this probability what it took, drawn on the device."""
    return torch.where(torch.rand((), device=x.device) < probability, x, out) if probability > 0 else out
