"""Signal processing behind the preprocessors: power spectra in cache-sized blocks, mel and DCT matrices, normalising.

Plain functions on tensors, vectorised over the batch. No modules, no ports, no files in this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from nemo_lite.errors import UnknownNameError

MelScale = Literal["slaney", "htk"]
Count = TypeVar("Count", int, torch.Tensor)
BandBlocks: TypeAlias = tuple[tuple[slice, slice], ...]

STD_FLOOR = 1e-5
"""Added to every standard deviation, as in NeMo: the scale that silence is divided by."""

# On CPU, how many windowed samples are transformed at once (512 frames of 512: they and their spectrum stay in the
# cache, and in memory that is used again instead of being handed out anew by the system, page by page), and how many
# belong to the utterances that go through all steps together (enough for the cost of the calls to vanish). Measured on
# utterances of 0.44, 3, 12 and 16 s.
SPECTRUM_VALUES = 2**18
ROWS_VALUES = 2**22
# The bands of the highest frequencies that are computed apart, and how many together: see `band_blocks`.
_BLOCKS_APART, _BANDS_APART = 2, 16

_WINDOWS: dict[str, Callable[..., torch.Tensor]] = {
    "hann": torch.hann_window,
    "hamming": torch.hamming_window,
    "blackman": torch.blackman_window,
    "bartlett": torch.bartlett_window,
}
_NO_WINDOW = ("ones", "none", "null")

# Slaney's scale (Auditory Toolbox, 1998): linear up to 1 kHz, 3 mels in 200 Hz; above it 27 mels for a factor of 6.4.
_LINEAR_HZ_PER_MEL = 200.0 / 3
_BREAK_HZ = 1000.0
_LOG_STEP = math.log(6.4) / 27


def window_function(name: str | None, length: int, *, periodic: bool) -> torch.Tensor:
    """A window by name: hann, hamming, blackman, bartlett; ``None``, "ones" or "none" weight all samples alike.

    Args:
        name: the window.
        length: its samples.
        periodic: the periodic form (one period of ``length`` samples) instead of the symmetric one.

    Raises:
        UnknownNameError: another name.
    """
    if name is None or name in _NO_WINDOW:
        return torch.ones(length)
    if name not in _WINDOWS:
        raise UnknownNameError("window", name, [*_WINDOWS, *_NO_WINDOW])
    return _WINDOWS[name](length, periodic=periodic, dtype=torch.float64).float()


def centred(window: torch.Tensor, n_fft: int) -> torch.Tensor:
    """The window with zeros on both sides, ``n_fft`` samples in all, as ``torch.stft`` places a shorter window."""
    left = (n_fft - window.numel()) // 2
    return F.pad(window, (left, n_fft - window.numel() - left))


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


def frame_count(num_samples: Count, hop: int) -> Count:
    """Frames of so many samples: one at the beginning and one after each further hop, ceil(samples / hop)."""
    return (num_samples + hop - 1) // hop


def reads_sizes(device: torch.device) -> bool:
    """Whether sizes may follow from the values of tensors: on a CPU, and not in a graph that is exported."""
    return device.type == "cpu" and not torch.compiler.is_exporting()


def shortest(length: torch.Tensor) -> int:
    """A length that no row falls short of: the smallest one, where reading it costs nothing, else 0 (on a GPU)."""
    return int(length.min()) if reads_sizes(length.device) else 0


def longest(length: torch.Tensor, limit: int) -> int:
    """A length that no row exceeds: the largest one, where reading it costs nothing, else ``limit`` (on a GPU)."""
    return min(limit, int(length.max())) if reads_sizes(length.device) else limit


def fill_beyond_(values: torch.Tensor, length: torch.Tensor, fill: float) -> torch.Tensor:
    """Set what lies beyond each row's length to ``fill``, in place: (B, ..., T), lengths (B,) along the last axis."""
    first, num_columns = shortest(length), values.shape[-1]
    if first < num_columns:
        columns = torch.arange(first, num_columns, device=values.device)
        last_columns = values[..., first:] if first else values
        last_columns.masked_fill_(columns >= length.view(-1, *[1] * (values.dim() - 1)), fill)
    return values


def own_samples(signal: torch.Tensor, length: torch.Tensor, *, dither: float = 0.0) -> torch.Tensor:
    """A float32 copy of each utterance's samples, with zeros instead of what is behind them.

    Args:
        signal: (B, T) samples of any type and scale. Not modified.
        length: (B,) samples that belong to each utterance.
        dither: standard deviation of the white noise added to them.

    Returns:
        (B, T) or, on CPU, (B, longest length).
    """
    samples = signal[:, : longest(length, signal.shape[1])].to(torch.float32, copy=True)
    if dither:
        samples.add_(torch.randn_like(samples), alpha=dither)
    return fill_beyond_(samples, length, 0.0)


def extended_signal(signal: torch.Tensor, n_fft: int, preemph: float | None = None) -> torch.Tensor:
    """Pre-emphasised utterances, each mirrored at its beginning and followed by silence, ready to be cut into frames.

    ``torch.stft`` with ``center=True`` mirrors at the end of the batch too, so that the last frames of its longest
    utterance see their own past and those of the others see zeros. Here every utterance sees zeros, so its features do
    not depend on its neighbours; they are those that NeMo computes for all but the longest. Without gradients.

    Args:
        signal: (B, T) from :func:`own_samples`.
        n_fft: samples of a frame. Frame t is centred at sample t * hop.
        preemph: ``a`` of y[t] = x[t] - a x[t - 1], y[0] = x[0]; or ``None``.

    Returns:
        (B, n_fft // 2 + T + n_fft); frame t begins at column t * hop.
    """
    num_rows, num_samples = signal.shape
    margin = n_fft // 2
    extended = signal.new_empty(num_rows, margin + num_samples + n_fft)
    body = extended[:, margin:]
    body[:, num_samples:] = 0.0
    if preemph and num_samples:
        body[:, :1] = signal[:, :1]
        torch.sub(signal[:, 1:], signal[:, :-1], alpha=preemph, out=body[:, 1:num_samples])
        body[:, num_samples : num_samples + 1].sub_(signal[:, -1:], alpha=preemph)
    else:
        body[:, :num_samples] = signal
    extended[:, :margin] = body[:, 1 : margin + 1].flip(1)
    return extended


def power_spectra(
    extended: torch.Tensor, window: torch.Tensor, hop: int, num_frames: int
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Squared magnitudes of the short-time Fourier transform, one block of frames after the other.

    Args:
        extended: (B, samples) from :func:`extended_signal`.
        window: (n_fft,) weights of a frame's samples.
        hop: samples from frame to frame.
        num_frames: frames to compute.

    Yields:
        Which frames, and their power (B, frames of the block, n_fft // 2 + 1).
    """
    frames = extended.unfold(1, window.numel(), hop)
    for block in blocks(num_frames, extended.shape[0] * window.numel(), SPECTRUM_VALUES, extended.device):
        # Real and imaginary parts alternate in memory: squaring all at once is faster than one kind after the other.
        squares = torch.view_as_real(torch.fft.rfft(frames[:, block] * window)).square_()
        yield block, squares[..., 0] + squares[..., 1]


def exported_power_spectra(
    signal: torch.Tensor, window: torch.Tensor, hop: int, num_frames: int, preemph: float | None = None
) -> torch.Tensor:
    """Power (B, frames, n_fft // 2 + 1) of :func:`own_samples`, in operations that an exported graph runs fast.

    The same as :func:`extended_signal` and :func:`power_spectra`, but nothing is written into parts of a tensor, and
    the transform is a convolution with its cosines and sines: runtimes have no fast Fourier transform.
    """
    n_fft, margin = window.numel(), window.numel() // 2
    body = F.pad(signal, (0, n_fft))
    if preemph:
        body = body - preemph * F.pad(signal, (1, n_fft - 1))
    # Exactly the samples of the frames: of a slice that may be cut short, exporters get later sizes wrong.
    num_samples = (num_frames - 1) * hop + n_fft - margin
    exact = F.pad(body, (0, num_samples - body.shape[1]))
    extended = torch.cat([body[:, 1 : margin + 1].flip(1), exact], dim=1)
    samples, bins = (torch.arange(size, device=signal.device) for size in (n_fft, margin + 1))
    # In float64, or the basis would be further from the truth than the transform's own rounding.
    angles = (bins[:, None] * samples % n_fft).double() * (2 * math.pi / n_fft)
    basis = torch.cat([angles.cos(), angles.sin()]).float() * window
    parts = F.conv1d(extended.unsqueeze(1), basis.unsqueeze(1), stride=hop).square()
    return (parts[:, : margin + 1] + parts[:, margin + 1 :]).mT


def blocks(number: int, num_values: int, limit: int, device: torch.device) -> Iterator[slice]:
    """Cut ``number`` things of ``num_values`` values each into blocks of ``limit`` values; on a GPU into one block."""
    step = max(1, limit // max(1, num_values)) if device.type == "cpu" else max(1, number)
    return (slice(first, min(first + step, number)) for first in range(0, number, step))


def normalize_(
    features: torch.Tensor, num_valid: torch.Tensor, over: tuple[int, ...], least: float = 0.0
) -> torch.Tensor:
    """Bring the valid frames of each utterance to mean 0 and standard deviation 1, in place; the others become 0.

    The deviation is the unbiased one plus 1e-5. A single frame becomes 0, and so does a feature that never changes: the
    first frame is subtracted before anything is averaged, or the division would blow up the rounding of the mean.

    Args:
        features: (B, D, T).
        num_valid: (B,) valid frames.
        over: the axes that share mean and deviation: ``(2,)`` for each feature, ``(1, 2)`` for a whole utterance.
        least: a smaller deviation counts as this one, so that what hardly changes stays small.
    """
    shared_features = features.shape[1] if 1 in over else 1
    count = num_valid[:, None, None] * shared_features
    if features.shape[2]:
        # By its number: the slice ``:1`` has min(1, T) frames, which an exporter cannot broadcast.
        features -= features[:, : features.shape[1] // shared_features, 0].unsqueeze(2).clone()
    fill_beyond_(features, num_valid, 0.0)
    features -= features.sum(over, keepdim=True) / count
    fill_beyond_(features, num_valid, 0.0)
    deviation = torch.linalg.vector_norm(features, dim=over, keepdim=True) / (count - 1).clamp(min=1).sqrt()
    features /= (deviation + STD_FLOOR).clamp(min=least)
    return features


def splice_frames(features: torch.Tensor, factor: int) -> torch.Tensor:
    """Stack each ``factor`` neighbouring frames into one: (B, D, T) -> (B, factor * D, T / factor).

    Row j * D + d of output frame t is feature d of frame t * factor + j.

    Args:
        features: T is a multiple of ``factor``.
        factor: frames in one.
    """
    num_rows, num_features, num_frames = features.shape
    grouped = features.view(num_rows, num_features, num_frames // factor, factor)
    return grouped.permute(0, 3, 1, 2).reshape(num_rows, factor * num_features, num_frames // factor)
