"""Features: preprocessors from audio to spectrograms, mel spectrograms and MFCC, and the augmentation of spectrograms.

Augmentation of waveforms: `audio.augmentation`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from nemo_asr.arguments import Features, FrameSamples, FrameSeconds, SampleRate, Share, Splicing
from nemo_asr.rng import NumbersRng, seed_from
from nemo_lite import NonTrainableNM
from nemo_lite.backends.pytorch.streaming import Delay, SlidingWindow, State, num_new
from nemo_lite.config import Between
from nemo_lite.core.neural_types import (
    AudioSignal,
    AxisKind,
    AxisType,
    ChannelType,
    LabelsType,
    LengthsType,
    MelSpectrogramType,
    MFCCSpectrogramType,
    NeuralType,
    SpectrogramType,
)
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, ceil_div, named
from nemo_lite.errors import OutOfRangeError, UnknownFeatureTypeError, UnknownNameError, UsageError
from nemo_lite.utils import logging

# Signal processing behind the preprocessors: power spectra in cache-sized blocks, mel and DCT matrices, normalising.
# Plain functions on tensors, vectorised over the batch.


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
_NO_WINDOW = ("ones", "none", "null", "rectangular")
_POVEY_POWER = 0.85  # of Kaldi's window: like Hamming's, but 0 at its ends

# Slaney's scale (Auditory Toolbox, 1998): linear up to 1 kHz, 3 mels in 200 Hz; above it 27 mels for a factor of 6.4.
_LINEAR_HZ_PER_MEL = 200.0 / 3
_BREAK_HZ = 1000.0
_LOG_STEP = math.log(6.4) / 27


def window_function(name: str | None, length: int, *, periodic: bool) -> torch.Tensor:
    """A window by name: hann, hamming, blackman, bartlett, povey; ``None``, "ones", "none": all samples weigh alike.

    Args:
        name: the window.
        length: its samples.
        periodic: the periodic form (one period of ``length`` samples) instead of the symmetric one.

    Raises:
        UnknownNameError: another name.
    """
    if name is None or name in _NO_WINDOW:
        return torch.ones(length)
    if name == "povey":
        return torch.hann_window(length, periodic=periodic, dtype=torch.float64).pow(_POVEY_POWER).float()
    if name not in _WINDOWS:
        raise UnknownNameError("window", name, [*_WINDOWS, "povey", *_NO_WINDOW])
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


Generation: TypeAlias = Literal["nemo_lite", "nemo_0.11", "nemo_1.0", "nemo_2.5"]


class Framing(NamedTuple):
    """Which frames a generation of NeMo computes, and what they see beyond the ends of an utterance.

    Attributes:
        extra: frames of a whole number of hops beyond one for each hop.
        valid: the frames that count as the utterance's: ``ceil(samples / hop)``, ``floor(samples / hop)``, or
            ``floor + 1``.
        mirrors_start: the samples before the first are the first ones mirrored; else zeros.
        mirrors_end: those behind the last are the last ones mirrored; else zeros.
        is_masked: pre-emphasis leaves nothing behind the last sample.
        files: the versions of NeMo whose files were trained with it.
    """

    extra: int
    valid: Literal["ceil", "floor", "floor + 1"]
    mirrors_start: bool
    mirrors_end: bool
    is_masked: bool
    files: str

    def valid_frames(self, num_samples: Count, hop: int) -> Count:
        """The frames that belong to so many samples."""
        if self.valid == "ceil":
            return frame_count(num_samples, hop)
        floor = num_samples // hop
        return floor if self.valid == "floor" else (floor + 1) * (num_samples > 0)

    def num_frames(self, num_samples: int, hop: int) -> int:
        """The frames that are computed of so many samples."""
        return frame_count(num_samples + self.extra, hop)


# NeMo's changes of its featurizer: since 1.0 one frame more counts; since 2.5 (its pull request 13827) zeros stand at
# both ends, and the last frame does not count.
FRAMINGS: Mapping[Generation, Framing] = {
    "nemo_lite": Framing(0, "ceil", mirrors_start=True, mirrors_end=False, is_masked=False, files="nemo_lite"),
    "nemo_0.11": Framing(0, "ceil", mirrors_start=True, mirrors_end=True, is_masked=False, files="NeMo up to 0.11"),
    "nemo_1.0": Framing(1, "floor + 1", mirrors_start=True, mirrors_end=True, is_masked=False, files="NeMo 1.0 to 2.4"),
    "nemo_2.5": Framing(1, "floor", mirrors_start=False, mirrors_end=False, is_masked=True, files="NeMo 2.5 and later"),
}
OWN_FRAMING = FRAMINGS["nemo_lite"]


def generation_of(nemo_version: str) -> Generation:
    """The features with which files of a version of NeMo were trained; of no version, those of the first files.

    Raises:
        ValueError: it is no version.
    """
    major, minor = (int(number) for number in f"{nemo_version or '0.11'}.0".split(".")[:2])
    if major == 0:
        return "nemo_0.11"
    return "nemo_1.0" if (major, minor) < (2, 5) else "nemo_2.5"


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


def mirrored_ends(body: torch.Tensor, length: torch.Tensor, margin: int) -> torch.Tensor:
    """Utterances (B, T) of which each is followed by ``margin`` of its own samples, mirrored at the last, then zeros.

    An utterance that is shorter than the margin is followed by as many as it has.
    """
    first = shortest(length)
    positions = torch.arange(first, body.shape[1], device=body.device)
    behind = positions - length[:, None]  # 0 for the first position behind an utterance
    source = length[:, None] - 2 - behind
    mirrored = body.gather(1, source.clamp(0, body.shape[1] - 1)).masked_fill((source < 0) | (behind >= margin), 0.0)
    ends = torch.where(behind >= 0, mirrored, body[:, first:] if first else body)
    return torch.cat([body[:, :first], ends], dim=1) if first else ends


def extended_signal(
    signal: torch.Tensor,
    n_fft: int,
    preemph: float | None = None,
    *,
    length: torch.Tensor | None = None,
    framing: Framing = OWN_FRAMING,
) -> torch.Tensor:
    """Pre-emphasised utterances, each mirrored at its beginning and followed by silence, ready to be cut into frames.

    ``torch.stft`` with ``center=True`` mirrors at the end of the batch too, so that the last frames of its longest
    utterance see their own past and those of the others see zeros. Here every utterance sees zeros, so its features do
    not depend on its neighbours; they are those that NeMo computes for all but the longest. Without gradients.

    Args:
        signal: (B, T) from :func:`own_samples`.
        n_fft: samples of a frame. Frame t is centred at sample t * hop.
        preemph: ``a`` of y[t] = x[t] - a x[t - 1], y[0] = x[0]; or ``None``.
        length: (B,) samples of each utterance; needed where ``framing`` looks at their ends.
        framing: what stands at the ends, if not that.

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
    if framing.is_masked and length is not None:
        fill_beyond_(body, length, 0.0)
    if framing.mirrors_end and length is not None:
        body.copy_(mirrored_ends(body, length, margin))
    extended[:, :margin] = body[:, 1 : margin + 1].flip(1) if framing.mirrors_start else 0.0
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


def fourier_basis(n_fft: int, num_samples: int) -> npt.NDArray[np.float64]:
    """Cosines and, behind them, sines of all frequencies: (2 * (n_fft // 2 + 1), num_samples).

    Of NumPy: an exported graph holds it as it is, and not how to compute it. In float64, or it would be further from
    the truth than the transform's own rounding.
    """
    angles = np.outer(np.arange(n_fft // 2 + 1), np.arange(num_samples)) % n_fft * (2 * math.pi / n_fft)
    return np.concatenate([np.cos(angles), np.sin(angles)])


def exported_power_spectra(
    signal: torch.Tensor,
    window: torch.Tensor,
    win_length: int,
    hop: int,
    num_frames: int,
    preemph: float | None = None,
    *,
    length: torch.Tensor | None = None,
    framing: Framing = OWN_FRAMING,
) -> torch.Tensor:
    """Power (B, frames, n_fft // 2 + 1) of :func:`own_samples`, in operations that an exported graph runs fast.

    The same as :func:`extended_signal` and :func:`power_spectra`, but nothing is written into parts of a tensor, and
    the transform is a convolution with its cosines and sines: runtimes have no fast Fourier transform.
    """
    n_fft, margin = window.numel(), window.numel() // 2
    body = F.pad(signal, (0, n_fft))
    if preemph:
        body = body - preemph * F.pad(signal, (1, n_fft - 1))
    if framing.is_masked and length is not None:
        body = fill_beyond_(body, length, 0.0)
    if framing.mirrors_end and length is not None:
        body = mirrored_ends(body, length, margin)
    # Exactly the samples of the frames: of a slice that may be cut short, exporters get later sizes wrong.
    before = (n_fft - win_length) // 2  # samples of a frame that the window leaves out, as behind it
    num_samples = (num_frames - 1) * hop + before + win_length - margin
    exact = F.pad(body, (0, num_samples - body.shape[1]))
    start = body[:, 1 : margin + 1 - before].flip(1)
    extended = torch.cat([start if framing.mirrors_start else torch.zeros_like(start), exact], dim=1)
    weighted = slice(before, before + win_length)
    waves = fourier_basis(n_fft, n_fft)[:, weighted].astype(np.float32)
    basis = torch.from_numpy(waves).to(signal.device) * window[weighted]
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


def with_squares(features: torch.Tensor) -> torch.Tensor:
    """(B, D, T) of mean 0 and deviation 1 on average, and their squares less 1: (B, 2 * D, T), 0 on average."""
    return torch.cat([features, features.square() - 1.0], dim=1)


def normalized_by_window(seen: torch.Tensor, num_frames: int) -> torch.Tensor:
    """Features less the mean of the last frames, in units of their deviation.

    Sums are of float64, so that they are the same wherever a chunk begins.

    Args:
        seen: (B, 2 * D, num_frames - 1 + T): of :func:`with_squares`, with the frames before the first one.
        num_frames: of the window, the own frame included.

    Returns:
        (B, D, T). A deviation below a tenth of that on average counts as a tenth.
    """
    sums = F.pad(seen.double().cumsum(2), (1, 0))
    mean, square = ((sums[:, :, num_frames:] - sums[:, :, :-num_frames]) / num_frames).chunk(2, dim=1)
    values = seen[:, : mean.shape[1], num_frames - 1 :]
    return ((values - mean) / (1.0 + square - mean.square()).clamp_(min=0.01).sqrt()).float()


def normalize_by_speech_(
    features: torch.Tensor, num_valid: torch.Tensor, levels: torch.Tensor, least_share: float, least: float = 0.0
) -> torch.Tensor:
    """The same for each feature, with mean and deviation of the loud frames alone, in place: (B, D, T).

    So the silence around speech, however long, changes nothing in the features of the speech.

    Args:
        features: (B, D, T).
        num_valid: (B,) valid frames.
        levels: (B, T) of each frame, 0 or more; free to be changed.
        least_share: of the loudest frame's level; frames of this level or more are loud.
        least: a smaller deviation counts as this one.
    """
    fill_beyond_(levels, num_valid, -1.0)
    loudest = levels.amax(1, keepdim=True) if levels.shape[1] else levels.new_zeros(levels.shape[0], 1)
    is_loud = (levels >= loudest.clamp(min=0.0) * least_share).unsqueeze(1)
    count = is_loud.sum(2, keepdim=True)
    if features.shape[2]:
        features -= features[:, :, 0].unsqueeze(2).clone()  # see `normalize_`
    features -= (features * is_loud).sum(2, keepdim=True) / count.clamp(min=1)
    deviation = torch.linalg.vector_norm(features * is_loud, dim=2, keepdim=True) / (count - 1).clamp(min=1).sqrt()
    features /= (deviation + STD_FLOOR).clamp(min=least)
    return fill_beyond_(features, num_valid, 0.0)


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


# AudioPreprocessor: frame sizes, ports, blocks and padding, which all preprocessors share.


SecondsOrSamples: TypeAlias = tuple[FrameSeconds | None, FrameSamples | None]  # of which one is given

# With pad_to="max" batches are padded to the longest utterance of NeMo's LibriSpeech recipes.
MAX_SECONDS = 16.7
FRAMES_MULTIPLE = 16
_MOST_SAMPLES = 65_536
_MOST_SPECTRUM_VALUES = 2**24  # of a second; speech at 16 kHz has 100 frames of 512


class AudioPreprocessor(NonTrainableNM):
    """Base of the preprocessors: B utterances of T samples to B x D features x U frames.

    Frame t is centred at sample t * hop; n samples make ceil(n / hop) frames (with frame splicing, fewer), unless
    ``framing`` is that of an older or newer NeMo. Each
    utterance is treated as if it stood alone, mirrored at its beginning and followed by silence; NeMo mirrors the end
    of the batch's longest utterance as well. Frames beyond an utterance hold ``pad_value``. Samples may be of any scale
    and type, and are never modified.

    On CPU the work is done in blocks that fit the cache, up to the end of the longest utterance; sizes follow from the
    values of ``length`` there. An exporter (``torch.export``, and so ONNX) sees plain operations instead, with the same
    result, and the sizes of the batch.

    No weights, no gradients, float32 throughout; the window and the filters follow the module's device and are not part
    of its state.

    Subclasses set the class attributes and implement :meth:`_bands`, and :meth:`_finish` where bands are not the
    features yet.

    Args:
        sample_rate: Hz.
        window_size: a frame's window, as (seconds, samples) of which one is given.
        window_stride: from frame to frame, likewise.
        n_fft: samples of a frame; by default the next power of 2.
        window: see :func:`window_function`.
        periodic: the window in its periodic form.
        name: the module's name.

    Raises:
        UsageError: both or neither of a pair, nothing positive, or a window longer than ``n_fft``.
        UnknownNameError: another window.
    """

    keep_float32 = True
    spectrogram_type: ClassVar[type[ChannelType]] = SpectrogramType

    num_features: int
    num_bands: int
    dither: float = 0.0
    preemph: float | None = None
    pad_to: int | Literal["max"] = 0
    pad_value: float = 0.0
    frame_splicing: int = 1
    framing: Framing = OWN_FRAMING
    window: torch.Tensor

    def __init__(
        self,
        sample_rate: SampleRate,
        window_size: SecondsOrSamples,
        window_stride: SecondsOrSamples,
        n_fft: FrameSamples | None,
        window: str | None,
        *,
        periodic: bool,
        name: str | None,
    ) -> None:
        super().__init__(name)
        place = type(self).__name__
        self.sample_rate = sample_rate
        self.win_length = self._num_samples("window_size", *window_size)
        self.hop_length = self._num_samples("window_stride", *window_stride)
        if self.win_length > _MOST_SAMPLES:
            wanted = f"at most {_MOST_SAMPLES}"
            raise UsageError("the window is too long", place=place, got=f"{self.win_length} samples", wanted=wanted)
        self.n_fft = n_fft or 2 ** math.ceil(math.log2(self.win_length))
        if self.win_length > self.n_fft:
            got, remedy = f"{self.win_length} and {self.n_fft} samples", "raise n_fft, or leave it out"
            raise UsageError("the window is longer than n_fft", place=place, got=got, remedy=remedy)
        if (values := self.sample_rate // self.hop_length * self.n_fft) > _MOST_SPECTRUM_VALUES:
            got, wanted = f"{values} numbers (frames x n_fft)", f"at most {_MOST_SPECTRUM_VALUES}"
            problem, remedy = "the spectrum of a second of audio is too large", "raise window_stride, or lower n_fft"
            raise UsageError(problem, place=place, got=got, wanted=wanted, remedy=remedy)
        weights = window_function(window, self.win_length, periodic=periodic)
        self.register_buffer("window", centred(weights, self.n_fft), persistent=False)

    def compared_in_evaluation(self) -> Mapping[str, Any]:
        """All arguments but those that do not change what a feature means."""
        arguments = super().compared_in_evaluation()
        return {key: value for key, value in arguments.items() if key not in ("dither", "pad_to", "pad_value")}

    def _num_samples(self, argument: str, seconds: float | None, samples: int | None) -> int:
        place = type(self).__name__
        if bool(seconds) == bool(samples):
            got = "both" if seconds else "neither"
            remedy = f"pass {argument}=None as well" if seconds else ""
            raise UsageError(f"give one of {argument} and n_{argument}", place=place, got=got, remedy=remedy)
        # 0.29 * 100 is 28.999999999999996.
        number = int(seconds * self.sample_rate + 1e-6) if seconds else samples or 0
        if number < 1:
            got = f"{seconds} s at {self.sample_rate} Hz" if seconds else str(samples)
            raise UsageError(f"{argument} must be at least one sample", place=place, got=got)
        return number

    @property
    def input_ports(self) -> Ports:
        return {
            "input_signal": NeuralType("B T", AudioSignal(self.sample_rate)),
            "length": NeuralType("B", LengthsType()),
        }

    @property
    def output_ports(self) -> Ports:
        features = AxisType(AxisKind.Dimension, self.num_features * self.frame_splicing)
        axes = (AxisType(AxisKind.Batch), features, AxisType(AxisKind.Time))
        return {
            "processed_signal": NeuralType(axes, self.spectrogram_type()),
            "processed_length": NeuralType("B", LengthsType()),
        }

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """``B D T`` with T = ceil(samples / hop), or floor(samples / hop) + 1, as the generation of NeMo has it."""
        batch, samples = shapes["input_signal"]
        frames = named("T", ceil_div(samples + self._surplus_samples(), self.hop_length * self.frame_splicing))
        spectrogram = (batch, self.num_features * self.frame_splicing, frames)
        return {"processed_signal": spectrogram, "processed_length": (batch,)}

    @property
    def summary(self) -> str:
        """What the features are, in a line: how many, and whose."""
        return f"{self.num_features} a frame; frames of {self.framing.files}"

    @property
    def featurizer(self) -> Featurizer:
        """NeMo's inner part, as scripts call it and set its ``dither`` and ``pad_to``: this module itself."""
        return Featurizer(self)

    def get_features(self, signal: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        """Features (B, D, T) alone."""
        features: torch.Tensor = self(signal, length)[0]
        return features

    def get_seq_len(self, length: torch.Tensor) -> torch.Tensor:
        """(B,) frames of so many samples, int64."""
        return frame_count(self._valid_frames(length.long()), self.frame_splicing)

    @torch.no_grad()
    def forward(self, input_signal: torch.Tensor, length: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Features (B, D, T) and the valid frames of each utterance (B,)."""
        length = length.to(input_signal.device, torch.int64)
        if torch.compiler.is_exporting():
            return self._exported(input_signal, length)
        num_valid = self._valid_frames(length)
        num_frames = self._num_frames(input_signal.shape[1])
        shape = (input_signal.shape[0], self.num_features, self._padded(num_frames))
        features = torch.full(shape, self.pad_value, dtype=torch.float32, device=input_signal.device)
        cost, limit = num_frames * self.n_fft, ROWS_VALUES
        for rows in blocks(shape[0], cost, limit, input_signal.device):
            block = self._features(input_signal[rows], length[rows], num_valid[rows])
            features[rows, :, : block.shape[2]] = block
        return self._spliced(features, num_valid)

    def _exported(self, signal: torch.Tensor, length: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for exporters."""
        num_valid, num_frames = self._valid_frames(length), self._num_frames(signal.shape[1])
        power = self._exported_power(own_samples(signal, length), length, num_frames)
        return self._spliced(self.of_bands(self._bands(power).mT, num_valid), num_valid)

    def of_bands(self, bands: torch.Tensor, num_valid: torch.Tensor) -> torch.Tensor:
        """Features (B, D, T) of the powers (B, num_bands, U) of all bands; for exporters.

        Args:
            bands: free to be changed; another program may have computed them.
            num_valid: (B,) frames that belong to each utterance.
        """
        features = fill_beyond_(self._moved(self._finish(bands, num_valid)), num_valid, self.pad_value)
        return F.pad(features, (0, self._padded(bands.shape[2]) - bands.shape[2]), value=self.pad_value)

    def stream_problem(self) -> str:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        if not self._has_own("step") and not self._has_own("_step"):
            return f"the frames of {type(self).__name__} have no form in chunks"
        return ""

    def graph_problem(self) -> str:
        """Why it cannot run in chunks in an exported graph, where all sizes are fixed; empty if it can."""
        if not self._has_own("_framed"):
            return f"the frames of {type(self).__name__} have no form in chunks of a file"
        return self.stream_problem()

    def _has_own(self, method: str) -> bool:
        """Whether a method knows the frames of this class: one that frames the signal otherwise needs its own."""
        of_method, of_frames = (next(c for c in type(self).__mro__ if name in vars(c)) for name in (method, "_power"))
        return issubclass(of_method, of_frames)

    def stream_delay(self) -> Delay:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        return self._frame_delay().then(self._splices.delay)

    def _frame_delay(self) -> Delay:
        """When frames are there, before splicing."""
        return Delay(self.hop_length, self.n_fft - self.n_fft // 2 - 1)

    @property
    def _splices(self) -> SlidingWindow:
        """The frames that become one, those behind the last one included."""
        return SlidingWindow(self.frame_splicing, self.frame_splicing, 0, self.frame_splicing - 1)

    def initial_state(self, batch: int) -> State:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        state = dict(self._frame_state(batch))
        if self.frame_splicing != 1:
            state["splices"] = self._splices.initial((batch, self.num_features, 0), 2, self.window)
        return state

    def _frame_state(self, batch: int) -> State:
        zeros = torch.zeros(1, dtype=torch.int64, device=self.window.device)
        samples = self.window.new_zeros(batch, 0)
        # Samples after pre-emphasis: those from the start of the next frame on; and all before the first frame.
        return {"samples": samples, "previous": samples.new_zeros(batch, 1), "num_samples": zeros, "num_frames": zeros}

    @torch.no_grad()
    def step(
        self, input_signal: torch.Tensor, length: torch.Tensor, *, state: State, last: bool
    ) -> tuple[tuple[torch.Tensor, ...], State]:
        """The next samples (B, T) to the features (B, D, U) of the frames that they complete."""
        features, new_state = self._step(input_signal, state, last)
        if self.frame_splicing != 1:
            features, kept = self._splices.take(state["splices"], features, 2, last, self.pad_value)
            features = splice_frames(features, self.frame_splicing)
            new_state = {**new_state, "splices": kept}
        return (features, num_new(features, 2)), new_state

    def _step(self, input_signal: torch.Tensor, state: State, last: bool) -> tuple[torch.Tensor, State]:
        """The same before splicing."""
        signal = torch.cat([state["previous"], input_signal.to(torch.float32)], dim=1)
        body = signal[:, 1:]
        if self.preemph:
            body = torch.sub(body, signal[:, :-1], alpha=self.preemph)
        samples = torch.cat([state["samples"], body], dim=1)
        num_samples, num_frames = int(state["num_samples"]) + body.shape[1], int(state["num_frames"])
        margin = self.n_fft // 2
        if last:
            samples = torch.cat([samples, self._behind(samples, signal[:, -1:], margin)], dim=1)
        is_started = int(state["num_samples"]) > margin  # before, nobody knows what to mirror
        if not is_started and (last or num_samples > margin):
            start = samples[:, 1 : margin + 1].flip(1)
            samples = torch.cat([start if self.framing.mirrors_start else torch.zeros_like(start), samples], dim=1)
            is_started = True
        number = (samples.shape[1] - self.n_fft) // self.hop_length + 1 if is_started else 0
        number = max(min(number, self.framing.valid_frames(num_samples, self.hop_length) - num_frames), 0)
        features = samples.new_empty(samples.shape[0], self.num_bands, number)
        for frames, power in power_spectra(samples, self.window, self.hop_length, number) if number else ():
            features[:, :, frames] = self._bands(power).mT
        features = self._finish(features, num_new(features, 2))
        new_state = {
            "samples": samples[:, number * self.hop_length :],
            "previous": signal[:, -1:],
            "num_samples": torch.full_like(state["num_samples"], num_samples),
            "num_frames": torch.full_like(state["num_frames"], num_frames + number),
        }
        return features, new_state

    def graph_window(self, num_frames: int) -> tuple[int, int]:
        """Samples before the beginning of the recording and samples in all that so many first frames see."""
        return 1 + self.n_fft // 2, 1 + self.n_fft + (num_frames * self.frame_splicing - 1) * self.hop_length

    def graph_state(self, batch: int) -> State:
        """What is kept between chunks in a graph, all zeros at first."""
        return {}

    def of_window(
        self, signal: torch.Tensor, length: torch.Tensor, at_start: torch.Tensor, state: State
    ) -> tuple[torch.Tensor, torch.Tensor, State]:
        """Features (B, D, U) of a chunk of frames, how many there are from its first frame to the end, and what is kept
        for the next chunk; in a graph.

        Args:
            signal: (B, T): the samples of :meth:`graph_window`. Zeros stand before and behind the recording.
            length: (B,) samples from the first one that is not before the beginning to the end of the recording: below
                0 behind it, more than there are as long as the end is not known.
            at_start: (B,) whether the first frame is that of the recording.
            state: of :meth:`graph_state`, or what the chunk before kept.
        """
        power, num_valid = self._framed(signal, length, at_start)
        features, new_state = self._moved_on(self._finish(self._bands(power).mT, num_valid), state, last=False)
        if self.frame_splicing != 1:
            is_there = torch.arange(features.shape[2], device=features.device) < num_valid[:, None, None]
            features = splice_frames(torch.where(is_there, features, self.pad_value), self.frame_splicing)
            num_valid = frame_count(num_valid, self.frame_splicing)
        return features, num_valid, new_state

    def _framed(
        self, signal: torch.Tensor, length: torch.Tensor, at_start: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Power (B, U, n_fft // 2 + 1) of the frames of :meth:`of_window`, and how many there are to the end."""
        framing, margin = self.framing, self.n_fft // 2
        positions = torch.arange(signal.shape[1], device=signal.device) - 1 - margin
        ends, positions = length.unsqueeze(1), positions.unsqueeze(0)
        samples = torch.where(positions < ends, signal, 0.0)
        body, positions = samples[:, 1:], positions[:, 1:]
        if self.preemph:
            body = body - self.preemph * samples[:, :-1]
        if framing.is_masked:
            body = torch.where(positions < ends, body, 0.0)
        if framing.mirrors_end:
            behind = positions - ends
            source = ends - 2 - behind + margin
            is_known = (source >= 0) & (behind < margin)
            mirrored = body.gather(1, source.clamp(0, body.shape[1] - 1)).where(is_known, torch.zeros_like(body))
            body = torch.where(behind >= 0, mirrored, body)
        if framing.mirrors_start:
            start = body[:, margin + 1 : 2 * margin + 1].flip(1)
            start = torch.where(at_start.unsqueeze(1), start, body[:, :margin])
            body = torch.cat([start, body[:, margin:]], dim=1)
        basis = torch.from_numpy(fourier_basis(self.n_fft, self.n_fft)).float().to(signal.device) * self.window
        parts = F.conv1d(body.unsqueeze(1), basis.unsqueeze(1), stride=self.hop_length).square()
        power = (parts[:, : margin + 1] + parts[:, margin + 1 :]).mT
        # Not `valid_frames`, which counts from the start of the recording, where no samples have no frames.
        surplus = {"ceil": self.hop_length - 1, "floor": 0, "floor + 1": self.hop_length}[framing.valid]
        return power, (length + surplus) // self.hop_length

    def _behind(self, samples: torch.Tensor, last_sample: torch.Tensor, margin: int) -> torch.Tensor:
        """(B, n_fft): what frames see behind the last sample, which comes without pre-emphasis."""
        behind = samples.new_zeros(samples.shape[0], self.n_fft)
        if self.framing.mirrors_end:
            mirrored = samples[:, max(samples.shape[1] - 1 - margin, 0) : max(samples.shape[1] - 1, 0)].flip(1)
            behind[:, : mirrored.shape[1]] = mirrored
        elif self.preemph and not self.framing.is_masked:
            behind[:, :1] = -self.preemph * last_sample
        return behind

    def _spliced(self, features: torch.Tensor, num_valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.frame_splicing == 1:
            return features, num_valid
        num_valid = frame_count(num_valid, self.frame_splicing)
        return splice_frames(features, self.frame_splicing), num_valid

    def _features(self, signal: torch.Tensor, length: torch.Tensor, num_valid: torch.Tensor) -> torch.Tensor:
        """Some utterances from samples to finished features."""
        samples = own_samples(signal, length, dither=self.dither if self.training else 0.0)
        num_frames = self._num_frames(samples.shape[1])
        bands = samples.new_empty(samples.shape[0], self.num_bands, num_frames)
        for frames, power in self._power(samples, length, num_frames):
            bands[:, :, frames] = self._bands(power).mT
        return fill_beyond_(self._moved(self._finish(bands, num_valid)), num_valid, self.pad_value)

    def _moved(self, features: torch.Tensor) -> torch.Tensor:
        """What is done to the features of a whole utterance that depends on the frames before."""
        return features

    def _moved_on(self, features: torch.Tensor, state: State, last: bool) -> tuple[torch.Tensor, State]:
        """The same of a chunk, with what of the frames before is kept."""
        return features, {}

    # The frames: how many there are, and what is in them. A preprocessor with other frames has its own of these.

    def _surplus_samples(self) -> int:
        """With so many samples more, there is a frame for each hop that they fill or begin."""
        return self.framing.extra

    def _num_frames(self, num_samples: int) -> int:
        """The frames that are computed of so many samples."""
        return frame_count(num_samples + self._surplus_samples(), self.hop_length)

    def _valid_frames(self, length: torch.Tensor) -> torch.Tensor:
        """(B,) the frames that belong to so many samples."""
        return self.framing.valid_frames(length, self.hop_length)

    def _power(
        self, samples: torch.Tensor, length: torch.Tensor, num_frames: int
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Which frames, and their power (B, frames of the block, n_fft // 2 + 1), of :func:`own_samples`."""
        extended = extended_signal(samples, self.n_fft, self.preemph, length=length, framing=self.framing)
        return power_spectra(extended, self.window, self.hop_length, num_frames)

    def _exported_power(self, samples: torch.Tensor, length: torch.Tensor, num_frames: int) -> torch.Tensor:
        """The power of all frames, in operations that an exported graph runs fast."""
        return exported_power_spectra(
            samples,
            self.window,
            self.win_length,
            self.hop_length,
            num_frames,
            self.preemph,
            length=length,
            framing=self.framing,
        )

    def _bands(self, power: torch.Tensor) -> torch.Tensor:
        """Powers (B, U, n_fft // 2 + 1) of some frames to the values (B, U, num_bands) that are kept of them."""
        raise NotImplementedError(f"{type(self).__name__} has no _bands")

    def _finish(self, bands: torch.Tensor, num_valid: torch.Tensor) -> torch.Tensor:
        """Bands (B, num_bands, U) of whole utterances, free to be changed, to features (B, num_features, U)."""
        return bands

    def _padded(self, num_frames: int) -> int:
        """Frames before splicing, such that the frames behind it are as many as ``pad_to`` says."""
        splicing = self.frame_splicing
        spliced = frame_count(num_frames, splicing)
        if self.pad_to == "max":
            hop = self.hop_length * splicing
            shortest_padded = frame_count(int(MAX_SECONDS * self.sample_rate), hop)
            # torch.sym_max is for sizes that an exporter leaves open; it has no types.
            spliced = torch.sym_max(shortest_padded, spliced)  # type: ignore[no-untyped-call]
        multiple = FRAMES_MULTIPLE if self.pad_to == "max" else self.pad_to or 1
        return frame_count(spliced, multiple) * multiple * splicing


class Featurizer:
    """A preprocessor that gives features only when called; all its attributes are the preprocessor's."""

    def __init__(self, preprocessor: AudioPreprocessor) -> None:
        object.__setattr__(self, "_preprocessor", preprocessor)

    def __call__(self, signal: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self._preprocessor.get_features(signal, length)
        return features

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_preprocessor"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._preprocessor, name, value)


# Preprocessors: typed modules that turn waveforms into spectrograms.


Dither: TypeAlias = Annotated[float, Between(0, 1_000)]  # audio of any scale: full scale may be 32768
PadTo: TypeAlias = Annotated[int, Between(0, 4_096)]  # frames; 41 s
Guard: TypeAlias = Annotated[float, Between(0, 1_000_000, above=True)]
Normalization: TypeAlias = (
    Literal["per_feature", "per_feature_speech", "all_features", "none", "NA", False]
    | Mapping[str, Sequence[float]]
    | None
)

_AXES: dict[str | bool | None, tuple[int, ...]] = {
    "per_feature": (2,),
    "per_feature_speech": (2,),
    "all_features": (1, 2),
    "none": (),
    "NA": (),
    None: (),
    False: (),
}
_GUARD_VALUES = {"tiny": torch.finfo(torch.float32).tiny, "eps": torch.finfo(torch.float32).eps}
_MOST_FILTER_VALUES = 2**22  # 32 MB while they are made; speech has 2**15
_LOG_MEL_OFFSET = 1e-6  # torchaudio.transforms.MFCC with log_mels=True
_SMALLEST_POWER = 1e-10  # torchaudio.transforms.AmplitudeToDB
_DYNAMIC_RANGE_DB = 80.0  # the same
_SPEECH_RANGE_DB = 40.0  # vowels are up to 30 dB louder than the fricatives of a word


def _register_filters(
    module: AudioPreprocessor, lowfreq: float, highfreq: float | None, *, scale: MelScale, equal_area: bool
) -> BandBlocks:
    """Register the mel filters as columns, (n_fft // 2 + 1, num_bands). Gives their blocks, which fit only these."""
    if (module.n_fft // 2 + 1) * module.num_bands > _MOST_FILTER_VALUES:
        got, wanted = (
            f"n_fft {module.n_fft} and {module.num_bands} bands",
            f"n_fft / 2 x bands <= {_MOST_FILTER_VALUES}",
        )
        raise UsageError("the mel filters are too large", place=type(module).__name__, got=got, wanted=wanted)
    nyquist = module.sample_rate / 2
    highfreq = highfreq or nyquist
    place = type(module).__name__
    if highfreq > nyquist:
        logging.warning(f"{place}: highfreq {highfreq:g} Hz is above half the sample rate: bands up there hear nothing")
    if not 0 <= lowfreq < min(highfreq, nyquist):
        problem = "lowfreq and highfreq do not fit the sample rate"
        wanted = f"0 <= lowfreq < highfreq, and lowfreq < {nyquist:g} Hz"
        raise UsageError(problem, place=place, got=f"{lowfreq:g} and {highfreq:g} Hz", wanted=wanted)
    filters = mel_filterbank(
        module.sample_rate, module.n_fft, module.num_bands, lowfreq, highfreq, scale=scale, equal_area=equal_area
    )
    module.register_buffer("filters", filters.t().contiguous(), persistent=False)
    return band_blocks(module.get_buffer("filters"))


def _guard_value(place: str, kind: str, value: float | str) -> float:
    """The number that keeps powers away from log(0)."""
    if kind not in ("add", "clamp"):
        raise UnknownNameError("log_zero_guard_type", kind, ["add", "clamp"], place=place)
    if isinstance(value, str):
        if value not in _GUARD_VALUES:
            raise UnknownNameError("log_zero_guard_value", value, [*_GUARD_VALUES, "a number"], place=place)
        return _GUARD_VALUES[value]
    return value


def _fixed(place: str, normalize: Mapping[str, Sequence[float]], key: str, num_features: int) -> torch.Tensor:
    """The given mean or deviation of each feature, (D, 1)."""
    values = torch.as_tensor(list(normalize.get(key, ())), dtype=torch.float32)
    if len(normalize) != 2 or values.shape != (num_features,) or (key == "fixed_std" and not (values > 0).all()):
        got = f"{', '.join(normalize)} ({values.numel()} numbers)"
        wanted = f"fixed_mean and fixed_std with {num_features} numbers each, deviations above 0"
        raise UsageError(f"normalize has no usable {key}", place=place, got=got, wanted=wanted)
    return values[:, None]


class AudioToSpectrogramPreprocessor(AudioPreprocessor):
    """Power spectrogram, B x (n_fft // 2 + 1) x T, as ``torchaudio.transforms.Spectrogram`` defines it.

    Args:
        sample_rate: Hz.
        window_size: seconds of a frame's window.
        window_stride: seconds from frame to frame.
        n_window_size: the window in samples; ``window_size`` is then None.
        n_window_stride: the stride in samples; ``window_stride`` is then None.
        n_fft: samples of a frame; by default the next power of 2.
        window: hann, hamming, blackman, bartlett (in their periodic form), or ones.
        normalized: divide by the sum of the window's squares.

    Raises:
        UsageError: sizes that contradict each other.
        UnknownNameError: another window.
    """

    converts = (AudioSignal, SpectrogramType)

    def __init__(
        self,
        sample_rate: SampleRate = 16000,
        window_size: FrameSeconds | None = 0.02,
        window_stride: FrameSeconds | None = 0.01,
        n_window_size: FrameSamples | None = None,
        n_window_stride: FrameSamples | None = None,
        n_fft: FrameSamples | None = None,
        window: str | None = "hann",
        normalized: bool = True,
        name: str | None = None,
    ) -> None:
        size, stride = (window_size, n_window_size), (window_stride, n_window_stride)
        super().__init__(sample_rate, size, stride, n_fft, window, periodic=True, name=name)
        self.num_features = self.num_bands = self.n_fft // 2 + 1
        self.normalized = normalized

    def _bands(self, power: torch.Tensor) -> torch.Tensor:
        return power / self.window.square().sum() if self.normalized else power


class LogMelPreprocessor(AudioPreprocessor):
    """Base of the preprocessors that give logarithms of mel bands, normalised or not.

    Subclasses register ``filters`` (n_fft // 2 + 1, bands), whose blocks are ``_band_blocks``.
    """

    converts = (AudioSignal, MelSpectrogramType)
    spectrogram_type = MelSpectrogramType
    log: bool = True
    log_zero_guard_type: Literal["add", "clamp"] = "add"
    log_zero_guard_value: float
    mag_power: float = 2.0
    std_floor: float = 0.1
    normalization: Normalization
    filters: torch.Tensor
    moving: SlidingWindow | None = None  # of the statistics
    fixed_mean: torch.Tensor | None
    fixed_std: torch.Tensor | None
    _band_blocks: BandBlocks

    def _set_normalization(self, place: str, normalize: Normalization) -> None:
        self._over: tuple[int, ...] = ()
        fixed_mean = fixed_std = None
        if isinstance(normalize, Mapping):
            fixed_mean = _fixed(place, normalize, "fixed_mean", self.num_features)
            fixed_std = _fixed(place, normalize, "fixed_std", self.num_features)
        elif normalize not in _AXES:
            names = [*(str(key) for key in _AXES if key), "fixed_mean and fixed_std"]
            raise UnknownNameError("normalize", str(normalize), names, place=place)
        else:
            self._over = _AXES[normalize]
        self.normalization = normalize
        self._by_speech = normalize == "per_feature_speech"
        self.register_buffer("fixed_mean", fixed_mean, persistent=False)
        self.register_buffer("fixed_std", fixed_std, persistent=False)

    def stream_problem(self) -> str:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        if self._over or self._by_speech:
            return (
                "normalize takes mean and deviation of the whole utterance; fixed_mean and fixed_std, or null, do not"
            )
        return super().stream_problem()

    def graph_state(self, batch: int) -> State:
        """See `AudioPreprocessor.graph_state`: the frames whose mean and deviation are moving."""
        if self.moving is None:
            return {}
        return {"moving": self.moving.initial((batch, 2 * self.num_features, 0), 2, self.window)}

    def _frame_state(self, batch: int) -> State:
        return {**super()._frame_state(batch), **self.graph_state(batch)}

    def _step(self, input_signal: torch.Tensor, state: State, last: bool) -> tuple[torch.Tensor, State]:
        features, new_state = super()._step(input_signal, state, last)
        features, kept = self._moved_on(features, state, last)
        return features, {**new_state, **kept}

    def _moved_on(self, features: torch.Tensor, state: State, last: bool) -> tuple[torch.Tensor, State]:
        if self.moving is None:
            return features, {}
        seen, kept = self.moving.take(state["moving"], with_squares(features), 2, last)
        return normalized_by_window(seen, self.moving.span) if features.shape[2] else features, {"moving": kept}

    def _moved(self, features: torch.Tensor) -> torch.Tensor:
        if self.moving is None:
            return features
        return normalized_by_window(F.pad(with_squares(features), (self.moving.before, 0)), self.moving.span)

    def _bands(self, power: torch.Tensor) -> torch.Tensor:
        magnitudes = power if self.mag_power == 2.0 else power.pow(self.mag_power / 2)
        return into_bands(magnitudes, self.filters, self._band_blocks)

    def _finish(self, bands: torch.Tensor, num_valid: torch.Tensor) -> torch.Tensor:
        levels = bands.sum(1) if self._by_speech else None
        if self.log:
            guard = self.log_zero_guard_value
            bands = (bands.add_(guard) if self.log_zero_guard_type == "add" else bands.clamp_(min=guard)).log_()
        if self.fixed_mean is not None and self.fixed_std is not None:
            return bands.sub_(self.fixed_mean).div_(self.fixed_std)
        if levels is not None:
            least_share = 10.0 ** (-_SPEECH_RANGE_DB / 20.0 * self.mag_power)
            return normalize_by_speech_(bands, num_valid, levels, least_share, self.std_floor)
        return normalize_(bands, num_valid, self._over, self.std_floor) if self._over else bands


class AudioToMelSpectrogramPreprocessor(LogMelPreprocessor):
    """Log-mel spectrogram, B x features x T, normalised over each utterance.

    In this order: dither, pre-emphasis, spectrum, power, mel filters (those of librosa), logarithm, normalisation over
    the valid frames, ``pad_value`` beyond them, frame splicing, padding. It gives NeMo's numbers, apart from:

    - Dither acts in training only, so that evaluation gives the same numbers each time.
    - Bands without signal (above 4 kHz in audio that was upsampled from 8 kHz) stay close to 0. NeMo divides them by
      their own deviation, about 0.01, which makes noise as loud as speech of the dither in training, and of rounding
      errors in evaluation. ``std_floor=0`` gives NeMo's numbers there too.
    - The last frames of a batch's longest utterance, see :class:`AudioPreprocessor`.
    - ``mag_power`` is a power of the magnitude also where it is not 2.
    - ``frame_splicing`` stacks neighbouring frames (NeMo repeats each one), and T shrinks by that factor.
    - ``pad_to`` holds in evaluation as well, and can be "max".

    Args:
        sample_rate: Hz.
        window_size: seconds of a frame's window.
        window_stride: seconds from frame to frame.
        n_window_size: the window in samples; ``window_size`` is then None.
        n_window_stride: the stride in samples; ``window_stride`` is then None.
        window: hann, hamming, blackman, bartlett, or ones.
        normalize: "per_feature"; "per_feature_speech", with mean and deviation of the frames within 40 dB of the
            loudest, so that silence around the speech changes nothing; "all_features"; ``{"fixed_mean": [...],
            "fixed_std": [...]}`` with a number for each feature; or None (False, "NA").
        moving_seconds: with ``fixed_mean`` and ``fixed_std``: each frame is then normalised by mean and deviation of
            the last so many seconds, where those that are not there yet count as on average; 0: it is not.
        n_fft: samples of a frame; by default the next power of 2.
        preemph: coefficient of the pre-emphasis, or None.
        features: mel bands.
        lowfreq: where the first band begins, in Hz.
        highfreq: where the last band ends, in Hz; by default half the sample rate.
        log: take the natural logarithm.
        log_zero_guard_type: "add" the guard value to the powers, or "clamp" them to it.
        log_zero_guard_value: a number, or "tiny" or "eps" of float32.
        dither: standard deviation of the white noise added in training.
        pad_to: T becomes a multiple of it; 0 for none, "max" for at least 16.7 s.
        frame_splicing: neighbouring frames in one.
        stft_conv: take the window in its periodic form. (NeMo convolves instead of transforming, with that window.)
        pad_value: the value of frames behind an utterance's last one.
        mag_power: power of the magnitudes that the mel filters weight.
        std_floor: least deviation of the logarithms that a band, or with "all_features" the utterance, is divided by;
            speech has 2 to 4.
        generation: "nemo_lite", or the frames of NeMo that a model of NVIDIA's was trained on: "nemo_0.11", "nemo_1.0"
            (to 2.4) or "nemo_2.5" (and later). They count other frames as an utterance's, and see other samples at
            its ends; a file on its own has NeMo's numbers.

    Raises:
        UsageError: sizes, frequencies or numbers that are impossible or contradict each other.
        UnknownNameError: a window, normalisation or guard that is not known.
    """

    def __init__(
        self,
        sample_rate: SampleRate = 16000,
        window_size: FrameSeconds | None = 0.02,
        window_stride: FrameSeconds | None = 0.01,
        n_window_size: FrameSamples | None = None,
        n_window_stride: FrameSamples | None = None,
        window: str | None = "hann",
        normalize: Normalization = "per_feature",
        n_fft: FrameSamples | None = None,
        preemph: float | None = 0.97,
        features: Features = 64,
        lowfreq: float = 0,
        highfreq: float | None = None,
        log: bool = True,
        log_zero_guard_type: Literal["add", "clamp"] = "add",
        log_zero_guard_value: Guard | Literal["tiny", "eps"] = 2**-24,
        dither: Dither = 1e-5,
        pad_to: PadTo | Literal["max"] = 16,
        frame_splicing: Splicing = 1,
        stft_conv: bool = False,
        pad_value: float = 0,
        mag_power: Annotated[float, Between(0, 10, above=True)] = 2.0,
        std_floor: Annotated[float, Between(0, 1_000)] = 0.1,
        generation: Generation = "nemo_lite",
        moving_seconds: Annotated[float, Between(0, 600)] = 0.0,
        name: str | None = None,
    ) -> None:
        place = type(self).__name__
        if generation not in FRAMINGS:
            raise UnknownNameError("generation", str(generation), FRAMINGS, place=place)
        self.generation, self.framing = generation, FRAMINGS[generation]
        size, stride = (window_size, n_window_size), (window_stride, n_window_stride)
        super().__init__(sample_rate, size, stride, n_fft, window, periodic=stft_conv, name=name)
        self.num_features = self.num_bands = features
        self.dither, self.preemph, self.mag_power = dither, preemph, mag_power
        if pad_to != "max" and isinstance(pad_to, str):
            wanted = '0, a positive number or "max"'
            raise UsageError("pad_to cannot be used", place=place, got=str(pad_to), wanted=wanted)
        self.pad_to, self.pad_value, self.frame_splicing = pad_to, pad_value, frame_splicing
        self.log, self.log_zero_guard_type = log, log_zero_guard_type
        self.log_zero_guard_value = _guard_value(place, log_zero_guard_type, log_zero_guard_value)
        self.std_floor = std_floor if log else 0.0  # in the unit of the logarithm
        self._set_normalization(place, normalize)
        if moving_seconds:
            if self.fixed_mean is None:
                wanted, remedy = "normalize with fixed_mean and fixed_std", "nemo-lite data statistics computes them"
                raise UsageError(
                    "moving_seconds needs statistics to begin with", place=place, wanted=wanted, remedy=remedy
                )
            span = max(round(moving_seconds * sample_rate / self.hop_length), 1)
            self.moving = SlidingWindow(span, before=span - 1)
        self._band_blocks = _register_filters(self, lowfreq, highfreq, scale="slaney", equal_area=True)

    @property
    def filter_banks(self) -> torch.Tensor:
        """The mel filters (1, features, n_fft // 2 + 1), as NeMo gives them."""
        return self.filters.t().unsqueeze(0)


class AudioToMFCCPreprocessor(AudioPreprocessor):
    """Mel-frequency cepstral coefficients, B x n_mfcc x T, as ``torchaudio.transforms.MFCC`` defines them.

    Periodic window, power, mel filters on HTK's scale without normalisation, logarithm or dB, DCT-II. In dB, an
    utterance's values are kept within 80 dB of its own loudest one (in torchaudio, of the batch's).

    Args:
        sample_rate: Hz.
        window_size: seconds of a frame's window.
        window_stride: seconds from frame to frame.
        n_window_size: the window in samples; ``window_size`` is then None.
        n_window_stride: the stride in samples; ``window_stride`` is then None.
        window: hann, hamming, blackman, bartlett, or ones.
        n_fft: samples of a frame; by default the next power of 2.
        lowfreq: where the first band begins, in Hz.
        highfreq: where the last band ends, in Hz; by default half the sample rate.
        n_mels: mel bands.
        n_mfcc: coefficients kept.
        dct_type: 2.
        norm: "ortho", or None for a DCT that is not normalised.
        log: natural logarithm of the power plus 1e-6, instead of dB.

    Raises:
        UsageError: sizes, frequencies or numbers that are impossible or contradict each other.
        UnknownNameError: a window or norm that is not known.
    """

    converts = (AudioSignal, MFCCSpectrogramType)
    spectrogram_type = MFCCSpectrogramType
    filters: torch.Tensor
    dct: torch.Tensor

    def __init__(
        self,
        sample_rate: SampleRate = 16000,
        window_size: FrameSeconds | None = 0.02,
        window_stride: FrameSeconds | None = 0.01,
        n_window_size: FrameSamples | None = None,
        n_window_stride: FrameSamples | None = None,
        window: str | None = "hann",
        n_fft: FrameSamples | None = None,
        lowfreq: float = 0.0,
        highfreq: float | None = None,
        n_mels: Features = 64,
        n_mfcc: Features = 64,
        dct_type: int = 2,
        norm: Literal["ortho"] | None = "ortho",
        log: bool = True,
        name: str | None = None,
    ) -> None:
        place = type(self).__name__
        size, stride = (window_size, n_window_size), (window_stride, n_window_stride)
        super().__init__(sample_rate, size, stride, n_fft, window, periodic=True, name=name)
        if dct_type != 2:
            raise OutOfRangeError(f"{place}.dct_type", str(dct_type), "2")
        if norm not in ("ortho", None):
            raise UnknownNameError("norm", str(norm), ["ortho"], place=place)
        if not 1 <= n_mfcc <= n_mels:
            raise UsageError("n_mfcc does not fit n_mels", place=place, got=str(n_mfcc), wanted=f"1 to {n_mels}")
        self.num_features, self.num_bands, self.log = n_mfcc, n_mels, log
        self._band_blocks = _register_filters(self, lowfreq, highfreq, scale="htk", equal_area=False)
        dct = dct_matrix(n_mfcc, n_mels, orthonormal=norm == "ortho")
        self.register_buffer("dct", dct, persistent=False)

    def stream_problem(self) -> str:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        if not self.log:
            return "decibels are counted from the loudest frame of the whole utterance; log: true does not"
        return super().stream_problem()

    def _bands(self, power: torch.Tensor) -> torch.Tensor:
        return into_bands(power, self.filters, self._band_blocks)

    def _finish(self, bands: torch.Tensor, num_valid: torch.Tensor) -> torch.Tensor:
        if self.log:
            return self.dct @ (bands + _LOG_MEL_OFFSET).log_()
        powers = fill_beyond_(bands, num_valid, 0.0)
        decibels = 10.0 * powers.clamp(min=_SMALLEST_POWER).log10()
        loudest = decibels.amax((1, 2), keepdim=True)
        return self.dct @ decibels.maximum(loudest - _DYNAMIC_RANGE_DB)


# AudioPreprocessing: the one preprocessor of NeMo up to 0.8. Everything is done by its successor.


_TAKES_LOGARITHM = {"logfbank": True, "fbank": False}


class AudioPreprocessing(AudioToMelSpectrogramPreprocessor):
    """Mel spectrograms, in NeMo's words of 2019; the arguments are those of :class:`AudioToMelSpectrogramPreprocessor`.

    Args:
        feat_type: "logfbank", with the logarithm, or "fbank", without.

    Raises:
        UnknownFeatureTypeError: another ``feat_type``.
    """

    def __init__(
        self,
        sample_rate: SampleRate = 16000,
        window_size: FrameSeconds | None = 0.02,
        window_stride: FrameSeconds | None = 0.01,
        window: str | None = "hann",
        normalize: Normalization = "per_feature",
        n_fft: FrameSamples | None = None,
        preemph: float | None = 0.97,
        features: Features = 64,
        lowfreq: float = 0,
        highfreq: float | None = None,
        feat_type: str = "logfbank",
        dither: Dither = 1e-5,
        pad_to: PadTo = 16,
        frame_splicing: Splicing = 1,
        stft_conv: bool = False,
        name: str | None = None,
    ) -> None:
        if feat_type not in _TAKES_LOGARITHM:
            raise UnknownFeatureTypeError("feat_type", str(feat_type), _TAKES_LOGARITHM, place=type(self).__name__)
        super().__init__(
            sample_rate,
            window_size,
            window_stride,
            window=window,
            normalize=normalize,
            n_fft=n_fft,
            preemph=preemph,
            features=features,
            lowfreq=lowfreq,
            highfreq=highfreq,
            log=_TAKES_LOGARITHM[feat_type],
            dither=dither,
            pad_to=pad_to,
            frame_splicing=frame_splicing,
            stft_conv=stft_conv,
            name=name,
        )


# Augmentation of spectrograms and batches: masks, repetition, fixed lengths.


Rng: TypeAlias = torch.Generator | NumbersRng
Masks: TypeAlias = Annotated[int, Between(0, 1_000)]  # memory grows with masks x frames of a batch
Width: TypeAlias = Annotated[int, Between(0, 65_536)]


class SpectrogramAugmentation(NonTrainableNM):
    """Set random bands, stretches and rectangles of spectrograms to 0, drawn anew for each utterance. Training only.

    A mask's width is drawn evenly from 0 to the largest width (inclusive), then its place from all where it fits.
    Widths are cut to the size of the axis, so short input is no special case. With ``length`` connected, masks in time
    fall on an utterance's valid frames; without it, on all frames of the batch.

    Sources: Park et al., "SpecAugment", Interspeech 2019; DeVries and Taylor, "Improved Regularization of Convolutional
    Neural Networks with Cutout", 2017.

    Args:
        freq_masks: bands of features to mask.
        time_masks: stretches of frames to mask; a float is a share, 0 to 1: so many for each frame of an utterance
            (0.02: two in 100 frames), at most ``max_time_masks``.
        freq_width: features of the widest band.
        time_width: frames of the widest stretch; a float is a share, 0 to 1, of each utterance's frames (at least one).
        rect_masks: rectangles to mask.
        rect_time: frames of the widest rectangle.
        rect_freq: features of the widest rectangle.
        rng: generator of the draws, torch's, Python's or NumPy's; by default torch's own on the input's device.
        max_time_masks: most stretches where ``time_masks`` is a share.

    Raises:
        UsageError: a negative number, a share outside 0 to 1, or an rng that is no generator.
    """

    training_only = True
    input_ports: Ports = {
        "input_spec": NeuralType("B D T", SpectrogramType()),
        "length": NeuralType("B", LengthsType(), optional=True),
    }
    output_ports: Ports = {"augmented_spec": NeuralType("B D T", SpectrogramType())}

    def __init__(
        self,
        freq_masks: Masks = 0,
        time_masks: Masks | Share = 0,
        freq_width: Width = 10,
        time_width: Width | Share = 10,
        rect_masks: Masks = 0,
        rect_time: Width = 5,
        rect_freq: Width = 20,
        rng: Rng | None = None,
        name: str | None = None,
        max_time_masks: Masks = 20,
    ) -> None:
        super().__init__(name)
        place = type(self).__name__
        self.max_time_masks = max_time_masks
        self.freq_masks, self.time_masks, self.rect_masks = freq_masks, time_masks, rect_masks
        self.freq_width, self.time_width = freq_width, time_width
        self.rect_time, self.rect_freq = rect_time, rect_freq
        self._rng = None if rng is None else _torch_generator(rng, place)
        if isinstance(time_width, float) and time_width > 1.0:
            wanted = "a float from 0 to 1 (a share of the frames) or an int (frames)"
            raise UsageError("time_width is no share", place=place, got=str(time_width), wanted=wanted)
        if isinstance(time_masks, float) and time_masks > 1.0:
            wanted = "a float from 0 to 1 (masks for each frame) or an int (masks)"
            raise UsageError("time_masks is no share", place=place, got=str(time_masks), wanted=wanted)

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return {"augmented_spec": shapes["input_spec"]}

    @torch.no_grad()
    def forward(self, input_spec: torch.Tensor, length: torch.Tensor | None = None) -> torch.Tensor:
        """Spectrograms (B, D, T) with masked parts 0: new ones in training, the given ones in evaluation."""
        if not self.training or self.freq_masks + self.time_masks + self.rect_masks == 0:
            return input_spec
        num_rows, num_features, num_frames = input_spec.shape
        device = input_spec.device
        features = torch.full((num_rows,), num_features, device=device)
        if length is None:
            length = torch.full((num_rows,), num_frames, device=device)
        frames = length.to(device, torch.int64)
        bands = self._intervals(self.freq_masks, self.freq_width, features, num_features).any(1)
        stretches = self._stretches(frames, num_frames)
        heights = self._intervals(self.rect_masks, self.rect_freq, features, num_features)
        widths = self._intervals(self.rect_masks, self.rect_time, frames, num_frames)
        # A product of 0/1 matrices counts the rectangles over each point, with no (B, masks, D, T) in between.
        rectangles = heights.transpose(1, 2).float() @ widths.float() > 0
        return input_spec.masked_fill(bands[:, :, None] | stretches[:, None, :] | rectangles, 0.0)

    def _stretches(self, frames: torch.Tensor, num_frames: int) -> torch.Tensor:
        """(B, num_frames) true where a mask in time is."""
        if not isinstance(self.time_masks, float):
            return self._intervals(self.time_masks, self.time_width, frames, num_frames).any(1)
        intervals = self._intervals(self.max_time_masks, self.time_width, frames, num_frames)
        wanted = (frames * self.time_masks).long()[:, None]
        return (intervals & (torch.arange(self.max_time_masks, device=frames.device) < wanted)[..., None]).any(1)

    def _intervals(self, number: int, widest: int | float, sizes: torch.Tensor, axis_size: int) -> torch.Tensor:
        """Random intervals, (B, number, axis_size) true inside, each within the first ``sizes`` (B,) positions."""
        share = isinstance(widest, float)
        most = (sizes * widest).long().clamp(min=1) if share else torch.full_like(sizes, widest)
        widths = self._draw(number, torch.minimum(most, sizes)[:, None])
        starts = self._draw(number, sizes[:, None] - widths)
        positions = torch.arange(axis_size, device=sizes.device)
        return (positions >= starts[..., None]) & (positions < (starts + widths)[..., None])

    def _draw(self, number: int, most: torch.Tensor) -> torch.Tensor:
        """Integers (B, number), even from 0 to ``most`` (B, 1) or (B, number), inclusive."""
        most = most.expand(-1, number)
        source = most.device if self._rng is None else self._rng.device
        shares = torch.rand(most.shape, generator=self._rng, device=source).to(most.device)
        # The largest share times the number can round up to the number itself.
        return torch.minimum((shares * (most + 1)).long(), most)


def _torch_generator(rng: Rng, place: str) -> torch.Generator:
    """The generator itself, or torch's with a seed that another one draws."""
    if isinstance(rng, torch.Generator):
        return rng
    if not isinstance(rng, (random.Random, np.random.RandomState, np.random.Generator)):
        remedy = "pass torch.Generator().manual_seed(seed), or random.Random(seed)"
        raise UsageError("rng is no generator", place=place, got=type(rng).__name__, remedy=remedy)
    return torch.Generator().manual_seed(seed_from(rng))


class MultiplyBatch(NonTrainableNM):
    """Repeat a batch, so that augmentation behind it acts on each copy differently. Training only.

    Args:
        mult_batch: how many copies.

    Raises:
        UsageError: less than one.
    """

    training_only = True
    input_ports: Ports = {
        "in_x": NeuralType("B D T", SpectrogramType()),
        "in_x_len": NeuralType("B", LengthsType()),
        "in_y": NeuralType("B T", LabelsType()),
        "in_y_len": NeuralType("B", LengthsType()),
    }
    output_ports: Ports = {port.replace("in", "out"): ntype for port, ntype in input_ports.items()}

    def __init__(self, mult_batch: Annotated[int, Between(1, 100)] = 1, name: str | None = None) -> None:
        super().__init__(name)
        self.mult_batch = mult_batch

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """Those of the inputs; the batch of training is ``mult_batch`` times as large."""
        return {port: shapes[port.replace("out", "in")] for port in self.output_ports}

    @torch.no_grad()
    def forward(
        self, in_x: torch.Tensor, in_x_len: torch.Tensor, in_y: torch.Tensor, in_y_len: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The whole batch, ``mult_batch`` times one after the other."""
        copies = self.mult_batch if self.training else 1
        return in_x.repeat(copies, 1, 1), in_x_len.repeat(copies), in_y.repeat(copies, 1), in_y_len.repeat(copies)


class CropOrPadSpectrogramAugmentation(NonTrainableNM):
    """Bring every spectrogram to one number of frames: a random part of a longer one, zeros around a shorter one.

    In evaluation the part is the middle one. What counts as an utterance's frames is its length, not the batch's.

    Args:
        audio_length: frames of the output.

    Raises:
        UsageError: less than one.
    """

    input_ports: Ports = {
        "input_signal": NeuralType("B D T", SpectrogramType()),
        "length": NeuralType("B", LengthsType()),
    }

    def __init__(self, audio_length: Annotated[int, Between(1, 65_536)], name: str | None = None) -> None:
        super().__init__(name)
        self.audio_length = audio_length

    @property
    def output_ports(self) -> Ports:
        axes = (AxisType(AxisKind.Batch), AxisType(AxisKind.Dimension), AxisType(AxisKind.Time, self.audio_length))
        return {
            "processed_signal": NeuralType(axes, SpectrogramType()),
            "processed_length": NeuralType("B", LengthsType()),
        }

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """``B D audio_length``."""
        batch, features, _ = shapes["input_signal"]
        return {"processed_signal": (batch, features, self.audio_length), "processed_length": (batch,)}

    @torch.no_grad()
    def forward(self, input_signal: torch.Tensor, length: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Spectrograms (B, D, audio_length) and that length for each."""
        length = length.to(input_signal.device, torch.int64)
        surplus = length - self.audio_length
        starts = torch.div(surplus, 2, rounding_mode="trunc")
        if self.training:
            shares = torch.rand(surplus.shape, device=surplus.device)
            starts = torch.where(surplus > 0, torch.minimum((shares * (surplus + 1)).long(), surplus), starts)
        frames = starts[:, None] + torch.arange(self.audio_length, device=surplus.device)
        outside = (frames < 0) | (frames >= length[:, None])
        picked = frames.clamp(0, max(input_signal.shape[2] - 1, 0))[:, None, :].expand(-1, input_signal.shape[1], -1)
        cropped = input_signal.gather(2, picked).masked_fill(outside[:, None, :], 0.0)
        return cropped, torch.full_like(length, self.audio_length)
