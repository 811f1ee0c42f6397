"""Power spectra of whole utterances: windows, pre-emphasis, what stands at both ends, the transform in blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from nemo_asr.features.framing import OWN_FRAMING, Framing, fill_beyond_, longest, shortest
from nemo_lite.base.errors import UnknownNameError

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
    for block in blocks(num_frames, extended.shape[0] * window.numel(), SPECTRUM_VALUES, extended.device):
        # Real and imaginary parts alternate in memory: squaring all at once is faster than one kind after the other.
        squares = torch.view_as_real(torch.fft.rfft(frames[:, block] * window)).square_()
        yield block, squares[..., 0] + squares[..., 1]


def blocks(number: int, num_values: int, limit: int, device: torch.device) -> Iterator[slice]:
    """Cut ``number`` things of ``num_values`` values each into blocks of ``limit`` values; on a GPU into one block."""
    step = max(1, limit // max(1, num_values)) if device.type == "cpu" else max(1, number)
    return (slice(first, min(first + step, number)) for first in range(0, number, step))
