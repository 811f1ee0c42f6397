"""Preprocessors from waveforms to power, mel and MFCC spectrograms, by NeMo's names. Kaldi's filter banks: `fbank`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

import torch
import torch.nn.functional as F

from nemo_asr.features.audio_preprocessor import AudioPreprocessor
from nemo_asr.features.spectra import (
    FRAMINGS,
    BandBlocks,
    Generation,
    MelScale,
    band_blocks,
    dct_matrix,
    fill_beyond_,
    into_bands,
    mel_filterbank,
)
from nemo_asr.run.arguments import Features, FrameSamples, FrameSeconds, SampleRate, Splicing
from nemo_lite.backends.pytorch.streaming import SlidingWindow, State
from nemo_lite.base.errors import OutOfRangeError, UnknownFeatureTypeError, UnknownNameError, UsageError
from nemo_lite.base.ranges import Between
from nemo_lite.core.neural_types import AudioSignal, MelSpectrogramType, MFCCSpectrogramType, SpectrogramType
from nemo_lite.utils import logging

STD_FLOOR = 1e-5
"""Added to every standard deviation, as in NeMo: the scale that silence is divided by."""


def normalize_(
    features: torch.Tensor,
    num_valid: torch.Tensor,
    over: tuple[int, ...],
    least: float = 0.0,
    variance_floor: float | None = None,
) -> torch.Tensor:
    """Bring the valid frames of each utterance to mean 0 and standard deviation 1, in place; the others become 0.

    The deviation is the unbiased one plus 1e-5. A single frame becomes 0, and so does a feature that never changes: the
    first frame is subtracted before anything is averaged, or the division would blow up the rounding of the mean.

    Args:
        features: (B, D, T).
        num_valid: (B,) valid frames.
        over: the axes that share mean and deviation: ``(2,)`` for each feature, ``(1, 2)`` for a whole utterance.
        least: a smaller deviation counts as this one, so that what hardly changes stays small.
        variance_floor: is added to the variance, in place of ``least`` and of the 1e-5.
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
    if variance_floor is None:
        features /= (deviation + STD_FLOOR).clamp(min=least)
    else:
        features /= (deviation.square() + variance_floor).sqrt()
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


def register_filters(
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

    The arguments that are not explained here are those of `AudioPreprocessor`.

    Args:
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
    variance_floor: float | None = None
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
        if not self._over:
            return bands
        return normalize_(bands, num_valid, self._over, self.std_floor, self.variance_floor)


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

    The arguments that are not explained here are those of `AudioPreprocessor`.

    Args:
        normalize: "per_feature"; "per_feature_speech", with mean and deviation of the frames within 40 dB of the
            loudest, so that silence around the speech changes nothing; "all_features"; ``{"fixed_mean": [...],
            "fixed_std": [...]}`` with a number for each feature; or None (False, "NA").
        moving_seconds: with ``fixed_mean`` and ``fixed_std``: each frame is then normalised by mean and deviation of
            the last so many seconds, where those that are not there yet count as on average; 0: it is not.
        log: take the natural logarithm.
        log_zero_guard_type: "add" the guard value to the powers, or "clamp" them to it.
        log_zero_guard_value: a number, or "tiny" or "eps" of float32.
        dither: standard deviation of the white noise added in training.
        pad_to: T becomes a multiple of it; 0 for none, "max" for at least 16.7 s.
        frame_splicing: neighbouring frames in one.
        stft_conv: take the window in its periodic form. (NeMo convolves instead of transforming, with that window.)
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
        self._band_blocks = register_filters(self, lowfreq, highfreq, scale="slaney", equal_area=True)

    @property
    def filter_banks(self) -> torch.Tensor:
        """The mel filters (1, features, n_fft // 2 + 1), as NeMo gives them."""
        return self.filters.t().unsqueeze(0)


class AudioToMFCCPreprocessor(AudioPreprocessor):
    """Mel-frequency cepstral coefficients, B x n_mfcc x T, as ``torchaudio.transforms.MFCC`` defines them.

    Periodic window, power, mel filters on HTK's scale without normalisation, logarithm or dB, DCT-II. In dB, an
    utterance's values are kept within 80 dB of its own loudest one (in torchaudio, of the batch's).

    The arguments that are not explained here are those of `AudioPreprocessor`.

    Args:
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
        self._band_blocks = register_filters(self, lowfreq, highfreq, scale="htk", equal_area=False)
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
