"""AudioPreprocessing: the one preprocessor of NeMo up to 0.8. Everything is done by its successor."""

from __future__ import annotations

from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor, Normalization
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
        sample_rate: int = 16000,
        window_size: float | None = 0.02,
        window_stride: float | None = 0.01,
        window: str | None = "hann",
        normalize: Normalization = "per_feature",
        n_fft: int | None = None,
        preemph: float | None = 0.97,
        features: int = 64,
        lowfreq: float = 0,
        highfreq: float | None = None,
        feat_type: str = "logfbank",
        dither: float = 1e-5,
        pad_to: int = 16,
        frame_splicing: int = 1,
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
