"""Power spectra in operations that an exported graph runs fast, of whole utterances and of chunks."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from nemo_asr.features.framing import OWN_FRAMING, Framing, fill_beyond_
from nemo_asr.features.spectra import mirrored_ends


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
        preemph: as in `spectra.extended_signal`.
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
