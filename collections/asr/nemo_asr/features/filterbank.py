"""Mel filters and the DCT behind them: from power spectra to bands and cepstral coefficients."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from nemo_asr.features.spectra import reads_sizes

MelScale = Literal["slaney", "htk"]
BandBlocks: TypeAlias = tuple[tuple[slice, slice], ...]
# The bands of the highest frequencies that are computed apart, and how many together: see `band_blocks`.
_BLOCKS_APART, _BANDS_APART = 2, 16

# Slaney's scale (Auditory Toolbox, 1998): linear up to 1 kHz, 3 mels in 200 Hz; above it 27 mels for a factor of 6.4.
_LINEAR_HZ_PER_MEL = 200.0 / 3
_BREAK_HZ = 1000.0
_LOG_STEP = math.log(6.4) / 27


def hz_to_mel(hz: npt.NDArray[np.float64], scale: MelScale) -> npt.NDArray[np.float64]:
    """Frequencies on Slaney's mel scale or on that of HTK, 2595 log10(1 + f / 700)."""
    if scale == "htk":
        return 2595.0 * np.log10(1.0 + hz / 700.0)
    above = _BREAK_HZ / _LINEAR_HZ_PER_MEL + np.log(np.maximum(hz, _BREAK_HZ) / _BREAK_HZ) / _LOG_STEP
    return np.where(hz < _BREAK_HZ, hz / _LINEAR_HZ_PER_MEL, above)


def mel_to_hz(mel: npt.NDArray[np.float64], scale: MelScale) -> npt.NDArray[np.float64]:
    """The inverse of :func:`hz_to_mel`."""
    if scale == "htk":
        return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)
    break_mel = _BREAK_HZ / _LINEAR_HZ_PER_MEL
    above = _BREAK_HZ * np.exp(_LOG_STEP * (np.maximum(mel, break_mel) - break_mel))
    return np.where(mel < break_mel, mel * _LINEAR_HZ_PER_MEL, above)


def mel_filterbank(
    sample_rate: int,
    n_fft: int,
    num_mels: int,
    low_hz: float,
    high_hz: float,
    *,
    scale: MelScale = "slaney",
    equal_area: bool = True,
) -> torch.Tensor:
    """Triangular filters, equally spaced on a mel scale: (num_mels, n_fft // 2 + 1), float32.

    The defaults are ``librosa.filters.mel``; ``scale="htk", equal_area=False`` is torchaudio's ``melscale_fbanks``.

    Args:
        sample_rate: Hz.
        n_fft: samples of a frame.
        num_mels: number of filters.
        low_hz: where the first filter begins.
        high_hz: where the last filter ends.
        scale: the mel scale.
        equal_area: scale each filter by 2 / its width in Hz, so that all have the same area.
    """
    bins = np.arange(n_fft // 2 + 1) * (sample_rate / n_fft)
    ends = hz_to_mel(np.array([low_hz, high_hz], dtype=np.float64), scale)
    corners = mel_to_hz(np.linspace(ends[0], ends[1], num_mels + 2), scale)
    left, middle, right = (corners[i : i + num_mels, None] for i in range(3))
    rising, falling = (bins - left) / (middle - left), (right - bins) / (right - middle)
    filters = np.maximum(0.0, np.minimum(rising, falling))
    if equal_area:
        filters *= 2.0 / (right - left)
    return torch.from_numpy(filters).float()


def band_blocks(filters: torch.Tensor) -> BandBlocks:
    """Which frequencies feed which bands, for :func:`into_bands`: (frequencies, bands) of each block.

    The filters of high bands are wide and few, those of low ones narrow and many. In one matrix product most factors
    are zeros: of 510 frames it took 210 us with one and 118 us with two times 16 high bands apart (64 bands, one core).

    Args:
        filters: (n_fft // 2 + 1, num_bands).
    """
    num_bands = filters.shape[1]
    low = max(0, num_bands - _BLOCKS_APART * _BANDS_APART)
    edges = [0, *range(low, num_bands, _BANDS_APART), num_bands] if low >= _BANDS_APART else [0, num_bands]
    blocks = []
    for first, end in pairwise(edges):
        used = filters[:, first:end].any(1).nonzero().flatten().tolist() or [0]
        blocks.append((slice(used[0], used[-1] + 1), slice(first, end)))
    return tuple(blocks)


def into_bands(power: torch.Tensor, filters: torch.Tensor, blocks: BandBlocks) -> torch.Tensor:
    """``power @ filters``: (B, frames, n_fft // 2 + 1) to (B, frames, num_bands); on CPU without most of the zeros.

    Without gradients.

    Args:
        power: contiguous.
        filters: (n_fft // 2 + 1, num_bands).
        blocks: from :func:`band_blocks`.
    """
    if not reads_sizes(power.device):
        return power @ filters
    rows = power.flatten(0, 1)
    bands = rows.new_empty(rows.shape[0], filters.shape[1])
    for frequencies, some in blocks:
        torch.mm(rows[:, frequencies], filters[frequencies, some], out=bands[:, some])
    return bands.view(*power.shape[:2], filters.shape[1])


def dct_matrix(num_coefficients: int, num_values: int, *, orthonormal: bool) -> torch.Tensor:
    """The DCT-II that takes ``num_values`` values to their first coefficients: (num_coefficients, num_values), float32.

    Orthonormal, or with the factor 2 that ``scipy.fft.dct(norm=None)`` has.
    """
    orders = np.arange(num_coefficients)[:, None]
    matrix = 2.0 * np.cos(math.pi / num_values * (np.arange(num_values) + 0.5) * orders)
    if orthonormal:
        matrix *= np.where(orders == 0, math.sqrt(0.25 / num_values), math.sqrt(0.5 / num_values))
    return torch.from_numpy(matrix).float()
