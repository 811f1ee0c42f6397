"""Preprocessors: audio to spectrograms, mel spectrograms and MFCC, of all generations of NeMo 0.x."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import torch
import torch.nn.functional as F

from nemo_asr.arguments import Features, FrameSamples, FrameSeconds, SampleRate, Splicing
from nemo_asr.features import signal_processing
from nemo_asr.features.signal_processing import MelScale
from nemo_lite import NonTrainableNM
from nemo_lite.config import Between
from nemo_lite.core.neural_types import (
    AudioSignal,
    AxisKind,
    AxisType,
    ChannelType,
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

# AudioPreprocessor: frame sizes, ports, blocks and padding, which all preprocessors share. No features in here.


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
        samples = signal_processing.own_samples(signal, length)
        power = signal_processing.exported_power_spectra(
            samples, self.window, self.hop_length, num_frames, self.preemph
        )
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
        samples = signal_processing.own_samples(signal, length, dither=self.dither if self.training else 0.0)
        num_frames = signal_processing.frame_count(samples.shape[1], self.hop_length)
        extended = signal_processing.extended_signal(samples, self.n_fft, self.preemph)
        bands = samples.new_empty(samples.shape[0], self.num_bands, num_frames)
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


# Preprocessors: typed modules that turn waveforms into spectrograms. The mathematics is in `signal_processing`.


Dither: TypeAlias = Annotated[float, Between(0, 1_000)]  # audio of any scale: full scale may be 32768
PadTo: TypeAlias = Annotated[int, Between(0, 4_096)]  # frames; 41 s
Guard: TypeAlias = Annotated[float, Between(0, 1_000_000, above=True)]
Normalization: TypeAlias = Literal["per_feature", "all_features", "none", False] | Mapping[str, Sequence[float]] | None

_AXES: dict[str | bool | None, tuple[int, ...]] = {
    "per_feature": (2,),
    "all_features": (1, 2),
    "none": (),
    None: (),
    False: (),
}
_GUARD_VALUES = {"tiny": torch.finfo(torch.float32).tiny, "eps": torch.finfo(torch.float32).eps}
_MOST_FILTER_VALUES = 2**22  # 32 MB while they are made; speech has 2**15
_LOG_MEL_OFFSET = 1e-6  # torchaudio.transforms.MFCC with log_mels=True
_SMALLEST_POWER = 1e-10  # torchaudio.transforms.AmplitudeToDB
_DYNAMIC_RANGE_DB = 80.0  # the same


def _register_filters(
    module: AudioPreprocessor, lowfreq: float, highfreq: float | None, *, scale: MelScale, equal_area: bool
) -> signal_processing.BandBlocks:
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
    filters = signal_processing.mel_filterbank(
        module.sample_rate, module.n_fft, module.num_bands, lowfreq, highfreq, scale=scale, equal_area=equal_area
    )
    module.register_buffer("filters", filters.t().contiguous(), persistent=False)
    return signal_processing.band_blocks(module.get_buffer("filters"))


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


class AudioToMelSpectrogramPreprocessor(AudioPreprocessor):
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
        normalize: "per_feature", "all_features", ``{"fixed_mean": [...], "fixed_std": [...]}`` with a number for each
            feature, or None (False).
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

    Raises:
        UsageError: sizes, frequencies or numbers that are impossible or contradict each other.
        UnknownNameError: a window, normalisation or guard that is not known.
    """

    converts = (AudioSignal, MelSpectrogramType)
    spectrogram_type = MelSpectrogramType
    filters: torch.Tensor
    fixed_mean: torch.Tensor | None
    fixed_std: torch.Tensor | None

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
        name: str | None = None,
    ) -> None:
        place = type(self).__name__
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
        self._band_blocks = _register_filters(self, lowfreq, highfreq, scale="slaney", equal_area=True)

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
        self.register_buffer("fixed_mean", fixed_mean, persistent=False)
        self.register_buffer("fixed_std", fixed_std, persistent=False)

    @property
    def filter_banks(self) -> torch.Tensor:
        """The mel filters (1, features, n_fft // 2 + 1), as NeMo gives them."""
        return self.filters.t().unsqueeze(0)

    def _bands(self, power: torch.Tensor) -> torch.Tensor:
        magnitudes = power if self.mag_power == 2.0 else power.pow(self.mag_power / 2)
        return signal_processing.into_bands(magnitudes, self.filters, self._band_blocks)

    def _finish(self, bands: torch.Tensor, num_valid: torch.Tensor) -> torch.Tensor:
        if self.log:
            guard = self.log_zero_guard_value
            bands = (bands.add_(guard) if self.log_zero_guard_type == "add" else bands.clamp_(min=guard)).log_()
        if self.fixed_mean is not None and self.fixed_std is not None:
            return bands.sub_(self.fixed_mean).div_(self.fixed_std)
        return signal_processing.normalize_(bands, num_valid, self._over, self.std_floor) if self._over else bands


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
        dct = signal_processing.dct_matrix(n_mfcc, n_mels, orthonormal=norm == "ortho")
        self.register_buffer("dct", dct, persistent=False)

    def _bands(self, power: torch.Tensor) -> torch.Tensor:
        return signal_processing.into_bands(power, self.filters, self._band_blocks)

    def _finish(self, bands: torch.Tensor, num_valid: torch.Tensor) -> torch.Tensor:
        if self.log:
            return self.dct @ (bands + _LOG_MEL_OFFSET).log_()
        powers = signal_processing.fill_beyond_(bands, num_valid, 0.0)
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
