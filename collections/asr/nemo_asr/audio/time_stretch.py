"""Time stretching of a waveform at constant pitch: a phase vocoder. Nothing random and no configuration in here."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from nemo_asr.audio.reading import Samples

_OVERLAP = 4  # frames that cover each sample


def time_stretched(samples: Samples, rate: float, n_fft: int) -> Samples:
    """The same sounds in 1 / rate of the time.

    Source: Flanagan and Golden, "Phase Vocoder", Bell System Technical Journal 45, 1966; Dolson, "The Phase Vocoder: A
    Tutorial", Computer Music Journal 10, 1986.

    Args:
        samples: (T,).
        rate: above 1 for shorter, below for longer.
        n_fft: samples of a frame, a multiple of 4.

    Returns:
        (round(T / rate),) float32.
    """
    hop = n_fft // _OVERLAP
    window = np.hanning(n_fft + 1)[:-1]
    num_samples = round(len(samples) / rate)
    padded = np.pad(samples.astype(np.float64), (n_fft // 2, n_fft + hop))
    frames = np.lib.stride_tricks.sliding_window_view(padded, n_fft)[::hop]
    spectra = _interpolated(np.fft.rfft(frames * window), rate, hop, math.ceil(num_samples / hop) + _OVERLAP)
    stretched = _overlapped(np.fft.irfft(spectra, n_fft) * window, hop)
    weights = _overlapped(np.broadcast_to(window**2, (len(spectra), n_fft)), hop)
    body = slice(n_fft // 2, n_fft // 2 + num_samples)
    result: Samples = (stretched[body] / weights[body]).astype(np.float32)
    return result


def _interpolated(
    spectra: npt.NDArray[np.complex128], rate: float, hop: int, num_frames: int
) -> npt.NDArray[np.complex128]:
    """Frames (num_frames, bins) taken every ``rate`` of the given ones: magnitudes in between, phases that run on."""
    times = np.minimum(np.arange(num_frames) * rate, len(spectra) - 2)
    before = times.astype(np.int64)
    share = (times - before)[:, None]
    magnitudes = np.abs(spectra)
    magnitude = (1.0 - share) * magnitudes[before] + share * magnitudes[before + 1]
    phases = np.angle(spectra)
    expected = 2.0 * np.pi * hop * np.arange(spectra.shape[1]) / (2 * (spectra.shape[1] - 1))
    surplus = phases[before + 1] - phases[before] - expected
    advance = expected + surplus - 2.0 * np.pi * np.round(surplus / (2.0 * np.pi))
    phase = phases[0] + np.concatenate([np.zeros((1, spectra.shape[1])), np.cumsum(advance[:-1], axis=0)])
    interpolated: npt.NDArray[np.complex128] = magnitude * np.exp(1j * phase)
    return interpolated


def _overlapped(frames: npt.NDArray[np.float64], hop: int) -> npt.NDArray[np.float64]:
    """The sum of frames (U, n) laid ``hop`` apart: (U * hop + n - hop,)."""
    num_frames, n_fft = frames.shape
    parts = frames.reshape(num_frames, n_fft // hop, hop)
    total = np.zeros((num_frames + n_fft // hop - 1, hop))
    for index in range(n_fft // hop):
        total[index : index + num_frames] += parts[:, index]
    return total.ravel()
