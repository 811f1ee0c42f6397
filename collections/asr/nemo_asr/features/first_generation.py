"""AudioPreprocessing: the one preprocessor of NeMo up to 0.8. Everything is done by its successor."""

from __future__ import annotations

from typing import Annotated

from nemo_asr.arguments import Features, FrameSamples, FrameSeconds, Hertz, SampleRate, Splicing, Word
from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor, Dither, Normalization, PadTo
from nemo_lite.config.ranges import Between
from nemo_lite.errors import UnknownFeatureTypeError

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
        window: Word | None = "hann",
        normalize: Normalization = "per_feature",
        n_fft: FrameSamples | None = None,
        preemph: Annotated[float, Between(-1, 1)] | None = 0.97,
        features: Features = 64,
        lowfreq: Hertz = 0,
        highfreq: Hertz | None = None,
        feat_type: Word = "logfbank",
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
