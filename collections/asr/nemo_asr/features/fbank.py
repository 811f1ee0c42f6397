"""Kaldi's filter banks of log-mel energies, computed from waveforms: the features of WeNet, icefall and Kaldi itself.

Features that Kaldi has computed and stored: `data.kaldi`. The preprocessors of NeMo: `preprocessors`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F

from nemo_asr.features.preprocessors import Dither, Guard, LogMelPreprocessor, Normalization, PadTo
from nemo_asr.features.spectra import SPECTRUM_VALUES, band_blocks, blocks, fourier_basis, window_function
from nemo_asr.run.arguments import Features, FrameSamples, FrameSeconds, SampleRate
from nemo_lite.backends.pytorch.streaming import Delay, SlidingWindow, State, larger, num_new
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between

_FULL_SCALE = 32768.0  # of samples of 16 bits
_SMALLEST_POWER = torch.finfo(torch.float32).eps


def kaldi_filterbank(sample_rate: int, n_fft: int, num_mels: int, low_hz: float, high_hz: float) -> torch.Tensor:
    """Kaldi's mel filters (n_fft // 2 + 1, num_mels), float32: triangles over mels, of height 1.

    Those of :func:`nemo_asr.features.spectra.mel_filterbank` are triangles over Hz. A mel is 1127 ln(1 + f / 700).
    """

    def mel(hz: np.ndarray) -> np.ndarray:
        return 1127.0 * np.log1p(hz / 700.0)

    ends = mel(np.array([low_hz, high_hz]))
    corners = np.linspace(ends[0], ends[1], num_mels + 2)
    left, middle, right = (corners[first : first + num_mels] for first in range(3))
    bins = mel(np.arange(n_fft // 2 + 1) * (sample_rate / n_fft))[:, None]
    rising, falling = (bins - left) / (middle - left), (right - bins) / (right - middle)
    return torch.from_numpy(np.maximum(0.0, np.minimum(rising, falling))).float()


def reflected(samples: torch.Tensor, length: torch.Tensor, first: int, number: int) -> torch.Tensor:
    """``number`` samples of each utterance from sample ``first`` on, mirrored at both of its ends: (B, number).

    The mirrors repeat the sample at the end, and are mirrored in turn where an utterance is shorter than they are.
    """
    ends = length.clamp(min=1)[:, None]
    positions = (torch.arange(number, device=samples.device) + first) % (2 * ends)
    return samples.gather(1, torch.where(positions < ends, positions, 2 * ends - 1 - positions))


class AudioToKaldiFbankPreprocessor(LogMelPreprocessor):
    """Kaldi's log-mel filter banks, B x features x T: what WeNet's models hear.

    Of each frame on its own, in this order: mean of the samples subtracted, pre-emphasis, window, zeros up to a power
    of 2, power spectrum, mel filters, a least value, logarithm; then normalisation, ``pad_value`` beyond the
    utterance's frames, padding. ``AudioToMelSpectrogramPreprocessor`` has other frames, another mel scale and another
    order: weights that were trained on one are of no use on the other.

    n samples make 1 + (n - window) // hop frames; fewer than a window make one that does not count. With
    ``snip_edges=False`` they make (n + hop / 2) // hop: the signal is mirrored at both ends of each utterance.

    It gives the numbers of ``kaldi-native-fbank``. Dither is noise of each sample; in Kaldi, frames that overlap have
    noise of their own. Kaldi's energy floor is for the energy as a feature, which is not computed here.

    The arguments that are not explained here are those of `AudioPreprocessor`.

    Args:
        window: povey, hann, hamming, blackman, bartlett, or rectangular.
        normalize: ``{"fixed_mean": [...], "fixed_std": [...]}`` with a number for each feature (global CMVN, which
            ``nemo-lite data statistics`` computes); None for no normalisation; or one of those of each utterance, as
            in ``AudioToMelSpectrogramPreprocessor``.
        highfreq: where the last band ends, in Hz; None or 0 for half the sample rate, -400 for 400 Hz below it.
        dither: standard deviation of the white noise added in training, where full scale is ``scale``.
        scale: what samples are multiplied by. 32768 brings those of -1 to 1 to the range of 16 bits, as Kaldi and
            WeNet have it; 1 leaves them, as icefall does, and for a data layer with ``int_values``.
        snip_edges: frames lie wholly within the samples.
        remove_dc_offset: subtract the mean of a frame's samples.
        log_zero_guard_value: the least power whose logarithm is taken; Kaldi's is ``eps`` of float32.
        variance_floor: of a normalisation of each utterance, is added to the variance, as in Hugging Face's
            ``SeamlessM4TFeatureExtractor`` with 1e-7; None: deviations below 0.1 count as 0.1.
        pad_to: T becomes a multiple of it; 0 for none.

    Raises:
        UsageError: sizes, frequencies or numbers that are impossible or contradict each other.
        UnknownNameError: a window or normalisation that is not known.

    Source: Povey et al., "The Kaldi speech recognition toolkit", ASRU 2011, and Kaldi's feature-fbank.
    """

    log_zero_guard_type = "clamp"

    def __init__(
        self,
        sample_rate: SampleRate = 16000,
        window_size: FrameSeconds | None = 0.025,
        window_stride: FrameSeconds | None = 0.01,
        n_window_size: FrameSamples | None = None,
        n_window_stride: FrameSamples | None = None,
        window: str | None = "povey",
        normalize: Normalization = None,
        preemph: float | None = 0.97,
        features: Features = 80,
        lowfreq: float = 20.0,
        highfreq: float | None = None,
        dither: Dither = 1.0,
        scale: Annotated[float, Between(0, 65_536, above=True)] = _FULL_SCALE,
        snip_edges: bool = True,
        remove_dc_offset: bool = True,
        log_zero_guard_value: Guard = _SMALLEST_POWER,
        variance_floor: Annotated[float, Between(0, 1, above=True)] | None = None,
        pad_to: PadTo = 0,
        pad_value: float = 0.0,
        name: str | None = None,
    ) -> None:
        size, stride = (window_size, n_window_size), (window_stride, n_window_stride)
        super().__init__(sample_rate, size, stride, None, window, periodic=False, name=name)
        # The spectrum is linear in the samples, so the window scales them.
        weights = scale * window_function(window, self.win_length, periodic=False)
        self.register_buffer("window", weights, persistent=False)
        self.num_features = self.num_bands = features
        self.preemph, self.dither = preemph, dither / scale
        self.remove_dc_offset = remove_dc_offset
        self.log_zero_guard_value, self.variance_floor = log_zero_guard_value, variance_floor
        self.snip_edges, self.pad_to, self.pad_value = snip_edges, pad_to, pad_value
        self._set_normalization(type(self).__name__, normalize)
        nyquist = sample_rate / 2
        high = (highfreq or 0.0) + (nyquist if (highfreq or 0.0) <= 0 else 0.0)
        if not 0 <= lowfreq < high <= nyquist:
            wanted = f"0 <= lowfreq < highfreq <= {nyquist:g} Hz"
            got = f"{lowfreq:g} and {high:g} Hz"
            raise UsageError(
                "lowfreq and highfreq do not fit the sample rate", place=type(self).__name__, got=got, wanted=wanted
            )
        self.register_buffer(
            "filters", kaldi_filterbank(sample_rate, self.n_fft, features, lowfreq, high), persistent=False
        )
        self._band_blocks = band_blocks(self.filters)

    @property
    def summary(self) -> str:
        fixed = "with" if self.fixed_mean is not None else "without"
        mean = "mean and deviation of each recording" if self._over else f"{fixed} fixed mean and deviation"
        edges = "" if self.snip_edges else ", edges mirrored"
        return f"{self.num_features} a frame; Kaldi's fbank (WeNet's), {mean}{edges}"

    def _surplus_samples(self) -> int:
        return 1 - self.win_length if self.snip_edges else self.hop_length // 2 - self.hop_length + 1

    def _num_frames(self, num_samples: int) -> int:
        return larger(super()._num_frames(num_samples), 1)

    def _valid_frames(self, length: torch.Tensor) -> torch.Tensor:
        return ((length + self._surplus_samples() + self.hop_length - 1) // self.hop_length).clamp(min=0)

    def stream_problem(self) -> str:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        if not self.snip_edges:
            return "the first frame mirrors what follows; snip_edges: true does not"
        return super().stream_problem()

    def _frame_delay(self) -> Delay:
        return self._frames.delay

    def _frame_state(self, batch: int) -> State:
        return {"samples": self._frames.initial((batch, 0), 1, self.window)}

    def _step(self, input_signal: torch.Tensor, state: State, last: bool) -> tuple[torch.Tensor, State]:
        samples, kept = self._frames.take(state["samples"], input_signal.to(torch.float32), 1, last)
        number = (samples.shape[1] - self.win_length) // self.hop_length + 1 if samples.shape[1] else 0
        bands = samples.new_empty(samples.shape[0], self.num_bands, number)
        for frames, power in self._power_of(samples) if number else ():
            bands[:, :, frames] = self._bands(power).mT
        return self._finish(bands, num_new(bands, 2)), {"samples": kept}

    def graph_window(self, num_frames: int) -> tuple[int, int]:
        """See `AudioPreprocessor.graph_window`: frames lie wholly within the samples."""
        return 0, self.win_length + (num_frames * self.frame_splicing - 1) * self.hop_length

    def _framed(
        self, signal: torch.Tensor, length: torch.Tensor, at_start: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._convolved(signal), (length - self.win_length) // self.hop_length + 1

    @property
    def _frames(self) -> SlidingWindow:
        return SlidingWindow(self.win_length, self.hop_length)

    def _framed_samples(self, samples: torch.Tensor, length: torch.Tensor, num_frames: int) -> torch.Tensor:
        """(B, samples of that many frames); frame t begins at column t * hop."""
        number = (num_frames - 1) * self.hop_length + self.win_length
        if self.snip_edges:
            return F.pad(samples, (0, number - samples.shape[1]))
        return reflected(samples, length, self.hop_length // 2 - self.win_length // 2, number)

    def _power(
        self, samples: torch.Tensor, length: torch.Tensor, num_frames: int
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        yield from self._power_of(self._framed_samples(samples, length, num_frames))

    def _power_of(self, samples: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """That of all frames which lie within the samples."""
        framed = samples.unfold(1, self.win_length, self.hop_length)
        for block in blocks(framed.shape[1], samples.shape[0] * self.n_fft, SPECTRUM_VALUES, samples):
            frames = framed[:, block]
            frames = frames - frames.mean(2, keepdim=True) if self.remove_dc_offset else frames.clone()
            if self.preemph:
                # Before the first sample of a frame stands that sample itself.
                frames = frames - self.preemph * torch.cat([frames[..., :1], frames[..., :-1]], dim=2)
            squares = torch.view_as_real(torch.fft.rfft(frames.mul_(self.window), n=self.n_fft)).square_()
            yield block, squares[..., 0] + squares[..., 1]

    def _exported_power(self, samples: torch.Tensor, length: torch.Tensor, num_frames: int) -> torch.Tensor:
        """All steps up to the transform are linear, so that they and its cosines and sines are one convolution."""
        return self._convolved(self._framed_samples(samples, length, num_frames))

    def _convolved(self, framed: torch.Tensor) -> torch.Tensor:
        """(B, T) to the power of all frames that lie within."""
        basis = torch.from_numpy(fourier_basis(self.n_fft, self.win_length)).to(framed.device) * self.window.double()
        if self.preemph:
            own_first = torch.cat([basis[:, :1], torch.zeros_like(basis[:, 1:])], dim=1)
            basis = basis - self.preemph * (F.pad(basis[:, 1:], (0, 1)) + own_first)
        basis = (basis - basis.mean(1, keepdim=True) if self.remove_dc_offset else basis).float()
        parts = F.conv1d(framed.unsqueeze(1), basis.unsqueeze(1), stride=self.hop_length).square()
        return (parts[:, : self.n_fft // 2 + 1] + parts[:, self.n_fft // 2 + 1 :]).mT
