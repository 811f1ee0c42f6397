"""From samples to spectra and bands: which frames there are, what they see at both ends, windows, mel filters.

Of whole utterances, by a transform in blocks; of streams, whose samples come in pieces; and in operations that an
exported graph runs fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from nemo_lite.backends.pytorch.iterations import iterations
from nemo_lite.backends.pytorch.streaming import State
from nemo_lite.base.errors import UnknownNameError

Count = TypeVar("Count", int, torch.Tensor)


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


# On CPU, how many windowed samples are transformed at once (512 frames of 512: they and their spectrum stay in the
# cache, and in memory that is used again instead of being handed out anew by the system, page by page). Measured, as
# `ROWS_VALUES` of `audio_preprocessor`, on utterances of 0.44, 3, 12 and 16 s.
SPECTRUM_VALUES = 2**18

_WINDOWS: dict[str, Callable[..., torch.Tensor]] = {
    "hann": torch.hann_window,
    "hamming": torch.hamming_window,
    "blackman": torch.blackman_window,
    "bartlett": torch.bartlett_window,
}
_NO_WINDOW = ("ones", "none", "null", "rectangular")
_POVEY_POWER = 0.85  # of Kaldi's window: like Hamming's, but 0 at its ends


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
    for block in blocks(num_frames, extended.shape[0] * window.numel(), SPECTRUM_VALUES, extended):
        # Real and imaginary parts alternate in memory: squaring all at once is faster than one kind after the other.
        squares = torch.view_as_real(torch.fft.rfft(frames[:, block] * window)).square_()
        yield block, squares[..., 0] + squares[..., 1]


def blocks(number: int, num_values: int, limit: int, tensor: torch.Tensor) -> Sequence[slice]:
    """Cut ``number`` things of ``num_values`` values each into blocks of ``limit`` values; on a GPU into one block.

    Where memory is counted, some of the blocks: each of them leaves nothing but its part of what the loop fills.
    """
    step = max(1, limit // max(1, num_values)) if tensor.device.type == "cpu" else max(1, number)
    return iterations([slice(first, min(first + step, number)) for first in range(0, number, step)], tensor, 2)


def first_samples(batch: int, window: torch.Tensor) -> State:
    """What :func:`next_samples` keeps between chunks, before the first one; on the device of ``window``."""
    zeros = torch.zeros(1, dtype=torch.int64, device=window.device)
    samples = window.new_zeros(batch, 0)
    # Samples after pre-emphasis: those from the start of the next frame on; and all before the first frame.
    return {"samples": samples, "previous": samples.new_zeros(batch, 1), "num_samples": zeros, "num_frames": zeros}


def next_samples(
    input_signal: torch.Tensor,
    state: State,
    last: bool,
    n_fft: int,
    hop: int,
    preemph: float | None,
    framing: Framing,
) -> tuple[torch.Tensor, int, State]:
    """The samples of the frames that a chunk completes: those that `spectra.extended_signal` gives of the whole.

    Args:
        input_signal: (B, T) the next samples.
        state: of :func:`first_samples`, or what the chunk before kept.
        last: whether the recording ends with this chunk.
        n_fft: samples of a frame.
        hop: samples from frame to frame.
        preemph: as in `extended_signal`.
        framing: what stands at the ends, and which frames count.

    Returns:
        Samples (B, S), frame t of which begins at column t * hop; the number of frames; and what is kept.
    """
    signal = torch.cat([state["previous"], input_signal.to(torch.float32)], dim=1)
    body = signal[:, 1:]
    if preemph:
        body = torch.sub(body, signal[:, :-1], alpha=preemph)
    samples = torch.cat([state["samples"], body], dim=1)
    num_samples, num_frames = int(state["num_samples"]) + body.shape[1], int(state["num_frames"])
    margin = n_fft // 2
    if last:
        samples = torch.cat([samples, _behind(samples, signal[:, -1:], n_fft, preemph, framing)], dim=1)
    is_started = int(state["num_samples"]) > margin  # before, nobody knows what to mirror
    if not is_started and (last or num_samples > margin):
        start = samples[:, 1 : margin + 1].flip(1)
        samples = torch.cat([start if framing.mirrors_start else torch.zeros_like(start), samples], dim=1)
        is_started = True
    number = (samples.shape[1] - n_fft) // hop + 1 if is_started else 0
    number = max(min(number, framing.valid_frames(num_samples, hop) - num_frames), 0)
    new_state = {
        "samples": samples[:, number * hop :],
        "previous": signal[:, -1:],
        "num_samples": torch.full_like(state["num_samples"], num_samples),
        "num_frames": torch.full_like(state["num_frames"], num_frames + number),
    }
    return samples, number, new_state


def _behind(
    samples: torch.Tensor, last_sample: torch.Tensor, n_fft: int, preemph: float | None, framing: Framing
) -> torch.Tensor:
    """(B, n_fft): what frames see behind the last sample, which comes without pre-emphasis."""
    behind, margin = samples.new_zeros(samples.shape[0], n_fft), n_fft // 2
    if framing.mirrors_end:
        mirrored = samples[:, max(samples.shape[1] - 1 - margin, 0) : max(samples.shape[1] - 1, 0)].flip(1)
        behind[:, : mirrored.shape[1]] = mirrored
    elif preemph and not framing.is_masked:
        behind[:, :1] = -preemph * last_sample
    return behind


def fourier_basis(n_fft: int, num_samples: int) -> npt.NDArray[np.float64]:
    """Cosines and, behind them, sines of all frequencies: (2 * (n_fft // 2 + 1), num_samples).

    Of NumPy: an exported graph holds it as it is, and not how to compute it. In float64, or it would be further from
    the truth than the transform's own rounding.
    """
    angles = np.outer(np.arange(n_fft // 2 + 1), np.arange(num_samples)) % n_fft * (2 * math.pi / n_fft)
    return np.concatenate([np.cos(angles), np.sin(angles)])


def _power(signal: torch.Tensor, window: torch.Tensor, hop: int, weighted: slice = slice(None)) -> torch.Tensor:
    """Power (B, frames, n_fft // 2 + 1) of the frames of a signal (B, T), one every ``hop`` samples.

    A convolution with cosines and sines: runtimes have no fast Fourier transform.

    Args:
        weighted: the samples of a window that the signal's frames hold; the window is zero at the others.
    """
    n_fft, num_bins = window.numel(), window.numel() // 2 + 1
    waves = fourier_basis(n_fft, n_fft)[:, weighted].astype(np.float32)
    basis = torch.from_numpy(waves).to(signal.device) * window[weighted]
    parts = F.conv1d(signal.unsqueeze(1), basis.unsqueeze(1), stride=hop).square()
    return (parts[:, :num_bins] + parts[:, num_bins:]).mT


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

    The same as :func:`extended_signal` and :func:`power_spectra`, but nothing is written into parts of a tensor.
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
    return _power(extended, window, hop, slice(before, before + win_length))


def exported_chunk_power(
    signal: torch.Tensor,
    length: torch.Tensor,
    at_start: torch.Tensor,
    window: torch.Tensor,
    hop: int,
    preemph: float | None = None,
    *,
    framing: Framing = OWN_FRAMING,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Power (B, U, n_fft // 2 + 1) of the frames of a chunk, and how many there are to the end of the recording.

    Args:
        signal: (B, T) samples; one of pre-emphasis and half a frame stand before the middle of the first frame.
        length: (B,) samples from that middle to the end of the recording.
        at_start: (B,) whether the first frame is that of the recording.
        window: (n_fft,) weights of a frame's samples.
        hop: samples from frame to frame.
        preemph: as in `extended_signal`.
        framing: what stands at the ends, and which frames count.
    """
    margin = window.numel() // 2
    positions = torch.arange(signal.shape[1], device=signal.device) - 1 - margin
    ends, positions = length.unsqueeze(1), positions.unsqueeze(0)
    samples = torch.where(positions < ends, signal, 0.0)
    body, positions = samples[:, 1:], positions[:, 1:]
    if preemph:
        body = body - preemph * samples[:, :-1]
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
    power = _power(body, window, hop)
    # Not `valid_frames`, which counts from the start of the recording, where no samples have no frames.
    surplus = {"ceil": hop - 1, "floor": 0, "floor + 1": hop}[framing.valid]
    return power, (length + surplus) // hop


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
