"""AudioPreprocessor: frame sizes, ports, blocks and padding, which all preprocessors share. No features in here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import torch
import torch.nn.functional as F

from nemo_asr.arguments import FrameSamples, FrameSeconds, SampleRate, Word
from nemo_asr.features import signal_processing
from nemo_lite import NonTrainableNM
from nemo_lite.core.neural_types import (
    AudioSignal,
    AxisKind,
    AxisType,
    ChannelType,
    LengthsType,
    NeuralType,
    SpectrogramType,
)
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, ceil_div, named
from nemo_lite.errors import UsageError

SecondsOrSamples: TypeAlias = tuple[FrameSeconds | None, FrameSamples | None]  # of which one is given

# With pad_to="max" batches are padded to the longest utterance of NeMo's LibriSpeech recipes.
MAX_SECONDS = 16.7
FRAMES_MULTIPLE = 16
_MOST_SAMPLES = 65_536
_MOST_SPECTRUM_VALUES = 2**24  # of a second; speech at 16 kHz has 100 frames of 512


class AudioPreprocessor(NonTrainableNM):
    """Base of the preprocessors: B utterances of T samples to B x D features x U frames.

    Frame t is centred at sample t * hop; n samples make ceil(n / hop) frames (with frame splicing, fewer). Each
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
        window: see :func:`signal_processing.window_function`.
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
    window: torch.Tensor

    def __init__(
        self,
        sample_rate: SampleRate,
        window_size: SecondsOrSamples,
        window_stride: SecondsOrSamples,
        n_fft: FrameSamples | None,
        window: Word | None,
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
        weights = signal_processing.window_function(window, self.win_length, periodic=periodic)
        self.register_buffer("window", signal_processing.centred(weights, self.n_fft), persistent=False)

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
        """``B D T`` with T = ceil(samples / hop)."""
        batch, samples = shapes["input_signal"]
        frames = named("T", ceil_div(samples, self.hop_length * self.frame_splicing))
        spectrogram = (batch, self.num_features * self.frame_splicing, frames)
        return {"processed_signal": spectrogram, "processed_length": (batch,)}

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
        num_valid = signal_processing.frame_count(length.long(), self.hop_length)
        return signal_processing.frame_count(num_valid, self.frame_splicing)

    @torch.no_grad()
    def forward(self, input_signal: torch.Tensor, length: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Features (B, D, T) and the valid frames of each utterance (B,)."""
        length = length.to(input_signal.device, torch.int64)
        if torch.compiler.is_exporting():
            return self._exported(input_signal, length)
        num_valid = signal_processing.frame_count(length, self.hop_length)
        num_frames = signal_processing.frame_count(input_signal.shape[1], self.hop_length)
        shape = (input_signal.shape[0], self.num_features, self._padded(num_frames))
        features = torch.full(shape, self.pad_value, dtype=torch.float32, device=input_signal.device)
        cost, limit = num_frames * self.n_fft, signal_processing.ROWS_VALUES
        for rows in signal_processing.blocks(shape[0], cost, limit, input_signal.device):
            block = self._features(input_signal[rows], length[rows], num_valid[rows])
            features[rows, :, : block.shape[2]] = block
        return self._spliced(features, num_valid)

    def _exported(self, signal: torch.Tensor, length: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for exporters."""
        num_valid = signal_processing.frame_count(length, self.hop_length)
        num_frames = signal_processing.frame_count(signal.shape[1], self.hop_length)
        own = signal_processing.own_samples(signal, length)
        power = signal_processing.exported_power_spectra(own, self.window, self.hop_length, num_frames, self.preemph)
        features = self._finish(self._bands(power).mT, num_valid)
        features = signal_processing.fill_beyond_(features, num_valid, self.pad_value)
        padded = F.pad(features, (0, self._padded(num_frames) - num_frames), value=self.pad_value)
        return self._spliced(padded, num_valid)

    def _spliced(self, features: torch.Tensor, num_valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.frame_splicing == 1:
            return features, num_valid
        num_valid = signal_processing.frame_count(num_valid, self.frame_splicing)
        return signal_processing.splice_frames(features, self.frame_splicing), num_valid

    def _features(self, signal: torch.Tensor, length: torch.Tensor, num_valid: torch.Tensor) -> torch.Tensor:
        """Some utterances from samples to finished features."""
        own = signal_processing.own_samples(signal, length, dither=self.dither if self.training else 0.0)
        num_frames = signal_processing.frame_count(own.shape[1], self.hop_length)
        extended = signal_processing.extended_signal(own, self.n_fft, self.preemph)
        bands = own.new_empty(own.shape[0], self.num_bands, num_frames)
        for frames, power in signal_processing.power_spectra(extended, self.window, self.hop_length, num_frames):
            bands[:, :, frames] = self._bands(power).mT
        return signal_processing.fill_beyond_(self._finish(bands, num_valid), num_valid, self.pad_value)

    def _bands(self, power: torch.Tensor) -> torch.Tensor:
        """Powers (B, U, n_fft // 2 + 1) of some frames to the values (B, U, num_bands) that are kept of them."""
        raise NotImplementedError(f"{type(self).__name__} has no _bands")

    def _finish(self, bands: torch.Tensor, num_valid: torch.Tensor) -> torch.Tensor:
        """Bands (B, num_bands, U) of whole utterances, free to be changed, to features (B, num_features, U)."""
        return bands

    def _padded(self, num_frames: int) -> int:
        """Frames before splicing, such that the frames behind it are as many as ``pad_to`` says."""
        splicing = self.frame_splicing
        spliced = signal_processing.frame_count(num_frames, splicing)
        if self.pad_to == "max":
            hop = self.hop_length * splicing
            longest = signal_processing.frame_count(int(MAX_SECONDS * self.sample_rate), hop)
            # torch.sym_max is for sizes that an exporter leaves open; it has no types.
            spliced = torch.sym_max(longest, spliced)  # type: ignore[no-untyped-call]
        multiple = FRAMES_MULTIPLE if self.pad_to == "max" else self.pad_to or 1
        return signal_processing.frame_count(spliced, multiple) * multiple * splicing


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
