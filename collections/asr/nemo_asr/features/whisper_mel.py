"""AudioToWhisperMelPreprocessor: Whisper's log-mel features of windows of 30 s. Other features: `preprocessors`."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F

from nemo_asr.features.audio_preprocessor import AudioPreprocessor
from nemo_asr.features.spectra import FRAMINGS, band_blocks, into_bands, longest, mel_filterbank
from nemo_asr.run.arguments import Features, FrameSamples, SampleRate
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between
from nemo_lite.core.neural_types import AudioSignal, MelSpectrogramType

_HIGHEST_HZ = 8000.0
_SMALLEST_POWER = 1e-10
_DECADES = 8.0  # below the loudest value of a window


class AudioToWhisperMelPreprocessor(AudioPreprocessor):
    """Log-mel spectrogram of a window, B x features x T: what Whisper hears.

    Whisper has learned from windows of 30 s and hears no shorter ones: silence stands behind an utterance, whose
    features the encoder needs as well, though they are no valid frames. In this order: zeros up to the window,
    spectrum, power, mel filters (those of librosa), logarithm to base 10 of at least 1e-10; values more than 8 below
    the window's greatest one become that; plus 4, divided by 4. An utterance's features do not depend on the others of
    its batch.

    It gives the numbers of Hugging Face's ``WhisperFeatureExtractor``.

    Args:
        sample_rate: Hz.
        n_fft: samples of a frame, and of its window.
        hop_length: samples from frame to frame.
        features: mel bands, up to 8 kHz.
        chunk_length: seconds of a window.
        name: the module's name.

    Attributes:
        longest_seconds: of an utterance: the window.

    Raises:
        UsageError: a hop that does not divide the window; and of ``forward``, an utterance longer than a window.

    Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision", 2022, section 2.2.
    """

    converts = (AudioSignal, MelSpectrogramType)
    spectrogram_type = MelSpectrogramType
    framing = FRAMINGS["nemo_0.11"]  # both ends of the window are mirrored
    filters: torch.Tensor

    def __init__(
        self,
        sample_rate: SampleRate = 16000,
        n_fft: FrameSamples = 400,
        hop_length: FrameSamples = 160,
        features: Features = 80,
        chunk_length: Annotated[int, Between(1, 600, unit="s")] = 30,
        name: str | None = None,
    ) -> None:
        super().__init__(sample_rate, (None, n_fft), (None, hop_length), n_fft, "hann", periodic=True, name=name)
        self._chunk_samples, self.longest_seconds = chunk_length * sample_rate, float(chunk_length)
        if self._chunk_samples % hop_length:
            got, wanted = f"hop_length {hop_length}", f"a divisor of {self._chunk_samples} samples"
            raise UsageError("the hop does not divide the window", place=type(self).__name__, got=got, wanted=wanted)
        self.num_features = self.num_bands = features
        filters = mel_filterbank(sample_rate, n_fft, features, 0.0, min(_HIGHEST_HZ, sample_rate / 2))
        self.register_buffer("filters", filters.t().contiguous(), persistent=False)
        self._band_blocks = band_blocks(self.filters)

    @property
    def summary(self) -> str:
        return f"{self.num_features} a frame; Whisper's, of windows of {self._chunk_samples // self.sample_rate} s"

    def stream_problem(self) -> str:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        return f"it hears windows of {self._chunk_samples // self.sample_rate} s as a whole"

    @torch.no_grad()
    def forward(self, input_signal: torch.Tensor, length: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Features (B, D, T) of a window, and the frames of each utterance in it (B,).

        Raises:
            UsageError: an utterance is longer than a window.
        """
        length = length.to(input_signal.device, torch.int64)
        if (num_samples := longest(length, input_signal.shape[1])) > self._chunk_samples:
            seconds = self._chunk_samples // self.sample_rate
            got, wanted = f"{num_samples / self.sample_rate:.1f} s", f"at most {seconds} s"
            problem, remedy = (
                "an utterance is longer than the window",
                "leave it out, or cut it: eval --segments energy",
            )
            raise UsageError(problem, place=type(self).__name__, got=got, wanted=wanted, remedy=remedy)
        is_own = torch.arange(input_signal.shape[1], device=input_signal.device) < length.unsqueeze(1)
        samples = torch.where(is_own, input_signal.to(torch.float32), 0.0)
        window = F.pad(samples, (0, self._chunk_samples - samples.shape[1]))
        features, _ = super().forward(window, torch.full_like(length, self._chunk_samples))
        return features, self._valid_frames(length)

    def _bands(self, power: torch.Tensor) -> torch.Tensor:
        return into_bands(power, self.filters, self._band_blocks)

    def _finish(self, bands: torch.Tensor, num_valid: torch.Tensor) -> torch.Tensor:
        decades = bands.clamp(min=_SMALLEST_POWER).log10()
        least = decades.amax((1, 2), keepdim=True) - _DECADES
        return (decades.maximum(least) + 4.0) / 4.0
