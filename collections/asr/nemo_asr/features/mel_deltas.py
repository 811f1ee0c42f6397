"""AudioToMelDeltasPreprocessor: mel energies and their changes, two frames in one: what Granite Speech hears."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
import torch.nn.functional as F

from nemo_asr.features.audio_preprocessor import AudioPreprocessor
from nemo_asr.features.preprocessors import register_filters
from nemo_asr.features.spectra import Framing, fill_beyond_, into_bands
from nemo_asr.run.arguments import Features, FrameSamples, SampleRate
from nemo_lite.base.ranges import Between
from nemo_lite.core.neural_types import AudioSignal, MelSpectrogramType

_SMALLEST_POWER = 1e-10


class AudioToMelDeltasPreprocessor(AudioPreprocessor):
    """Pairs of frames, B x (4 * features) x T: of each frame logarithms of mel bands, and behind them their deltas.

    The mel bands are those of ``torchaudio.transforms.MelSpectrogram``: windows around multiples of the hop, both ends
    of the signal mirrored, HTK's scale. A feature is a quarter of the decimal logarithm plus 1, where logarithms are at
    most ``floor`` below the greatest one of the utterance. The delta is half the difference of the frame behind and the
    one before; at the ends of an utterance stands the frame itself. This is what Hugging Face's
    ``GraniteSpeech5FeatureExtractor`` computes of a recording on its own.

    n samples make n // hop frames, of which an odd number gets one more; fewer than a hop make none.

    The arguments that are not explained here are those of `AudioPreprocessor`.

    Args:
        n_window_size: samples of a window.
        n_window_stride: samples from frame to frame.
        features: mel bands.
        floor: in powers of 10, how far below the greatest logarithm all smaller ones are raised.

    Raises:
        UsageError: sizes that contradict each other.
    """

    converts = (AudioSignal, MelSpectrogramType)
    spectrogram_type = MelSpectrogramType
    framing = Framing(1, "floor", mirrors_start=True, mirrors_end=True, is_masked=False, files="Granite Speech")
    frame_splicing = 2
    filters: torch.Tensor

    def __init__(
        self,
        sample_rate: SampleRate = 16000,
        n_window_size: FrameSamples = 400,
        n_window_stride: FrameSamples = 160,
        n_fft: FrameSamples | None = 512,
        features: Features = 80,
        floor: Annotated[float, Between(0, 100, above=True)] = 8.0,
        name: str | None = None,
    ) -> None:
        sizes = (None, n_window_size), (None, n_window_stride)
        super().__init__(sample_rate, *sizes, n_fft, "hann", periodic=True, name=name)
        self.num_features, self.num_bands, self._floor = 2 * features, features, floor
        self._band_blocks = register_filters(self, 0.0, None, scale="htk", equal_area=False)

    @property
    def summary(self) -> str:
        return f"{self.num_bands} a frame and their deltas, two frames in one; Granite Speech's"

    def stream_problem(self) -> str:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        return "logarithms are counted from the greatest one of the whole utterance"

    def _surplus_samples(self) -> int:
        return 1 - self.hop_length

    def _num_frames(self, num_samples: int) -> int:
        hops = num_samples // self.hop_length
        return hops + hops % 2

    def _valid_frames(self, length: torch.Tensor) -> torch.Tensor:
        hops = length // self.hop_length
        return hops + hops % 2

    def _power(
        self, samples: torch.Tensor, length: torch.Tensor, num_frames: int
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        return super()._power(samples, self._mirrored_at(length), num_frames)

    def _exported_power(self, samples: torch.Tensor, length: torch.Tensor, num_frames: int) -> torch.Tensor:
        return super()._exported_power(samples, self._mirrored_at(length), num_frames)

    def _mirrored_at(self, length: torch.Tensor) -> torch.Tensor:
        """(B,) samples that are mirrored: a zero more where the middle of the last frame is behind the utterance."""
        return length.maximum((self._valid_frames(length) - 1) * self.hop_length + 1)

    def _bands(self, power: torch.Tensor) -> torch.Tensor:
        return into_bands(power, self.filters, self._band_blocks)

    def _finish(self, bands: torch.Tensor, num_valid: torch.Tensor) -> torch.Tensor:
        logarithms = fill_beyond_(bands, num_valid, 0.0).clamp_(min=_SMALLEST_POWER).log10_()
        if not logarithms.shape[2]:
            return torch.cat([logarithms, logarithms], dim=1)
        greatest = logarithms.amax((1, 2), keepdim=True)
        values = logarithms.maximum(greatest - self._floor) / 4 + 1
        last = (num_valid - 1).clamp(min=0)[:, None, None]
        positions = torch.arange(values.shape[2], device=values.device).expand_as(values)
        behind = values.gather(2, (positions + 1).minimum(last))
        before = F.pad(values, (1, 0), mode="replicate")[:, :, :-1]
        return torch.cat([values, (behind - before) / 2], dim=1)
