"""The way that speech takes to the recording: codecs, filters, overload."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import soundfile
import soxr

from nemo_asr.augmentation.perturbation import Perturbation, ordered
from nemo_asr.rng import NumbersRng
from nemo_asr.run.arguments import look_up
from nemo_asr.run.audio import kinds
from nemo_asr.run.audio.files import Samples, scaled
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between, Share

Hertz: TypeAlias = Annotated[float, Between(1, 384_000)]


class _Codec(NamedTuple):
    """How libsndfile writes a codec, at which rate; ``rate`` 0: that of the audio, or the next that it has.

    Without a format it is one of PyAV.
    """

    format: str
    subtype: str
    rate: int


_CODECS = {
    "alaw": _Codec("WAV", "ALAW", 8000),
    "mulaw": _Codec("WAV", "ULAW", 8000),
    "gsm": _Codec("WAV", "GSM610", 8000),
    "g721": _Codec("AU", "G721_32", 8000),
    "g722": _Codec("", "", 16000),
    "mp3": _Codec("MP3", "MPEG_LAYER_III", 0),
    "vorbis": _Codec("OGG", "VORBIS", 0),
    "opus": _Codec("OGG", "OPUS", 0),
}
_CODEC_RATES: dict[str, tuple[int, ...]] = {
    "mp3": (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000),
    "opus": (8000, 12000, 16000, 24000, 48000),
}
_FLEXIBLE = ("mp3", "vorbis", "opus")
_G722_DELAY = 22  # samples: two filters of 24 taps, one for each way (ITU-T G.722, 3.1 and 4.4)


class CodecPerturbation(Perturbation):
    """Through a lossy codec and back, as on a telephone or in a compressed file. The length stays.

    alaw and mulaw are G.711, gsm is GSM 06.10, g721 is ADPCM: these are at 8 kHz, so frequencies above 4 kHz are lost.
    g722 is wideband telephony at 16 kHz and 64 kbit/s. mp3, vorbis and opus are at a strength of compression that is
    drawn evenly.

    Args:
        codecs: one of them is drawn: alaw, mulaw, gsm, g721, g722 (needs PyAV), mp3, vorbis, opus.

    Raises:
        UnknownNameError: another codec.
        UsageError: none, or one that is not installed.
    """

    def __init__(self, codecs: Sequence[str] = ("alaw", "mulaw", "mp3", "opus"), rng: NumbersRng | None = None) -> None:
        super().__init__(rng)
        names = [codecs] if isinstance(codecs, str) else list(codecs)
        if not names:
            raise UsageError("codecs is empty", place="augmentor.codec", wanted=f"some of {', '.join(_CODECS)}")
        for name in names:
            codec = look_up("codec", name, _CODECS, "augmentor.codec")
            if not codec.format:
                if not kinds.has_av():
                    remedy = "pip install av (the extra formats of nemo-lite), or leave it out"
                    raise UsageError(f"{name} needs PyAV", place="augmentor.codec", remedy=remedy)
            elif not soundfile.check_format(codec.format, codec.subtype):
                problem = f"the installed libsndfile {soundfile.__libsndfile_version__} has no {name}"
                raise UsageError(problem, place="augmentor.codec", remedy="leave it out, or upgrade soundfile")
        self._names = names

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        name = self._names[rng.integers(len(self._names))]
        codec, strength = _CODECS[name], rng.uniform()
        if not len(samples):
            return samples
        at_least = [rate for rate in _CODEC_RATES.get(name, ()) if rate >= sample_rate]
        rate = codec.rate or (at_least[0] if at_least else max(_CODEC_RATES.get(name, (sample_rate,))))
        sent: Samples = samples if rate == sample_rate else soxr.resample(samples, sample_rate, rate)
        # Codecs of whole numbers would fold what is beyond full scale.
        peak = max(1.0, float(np.abs(sent).max(initial=0.0)))
        loudest = sent / np.float32(peak)
        if codec.format:
            options = {"compression_level": strength} if name in _FLEXIBLE else {}
            received = _through_file(loudest, rate, codec, options)
        else:
            received = _through_g722(loudest)
        received = received if rate == sample_rate else soxr.resample(received, rate, sample_rate)
        received = received[: len(samples)] * np.float32(peak)
        return np.pad(received, (0, len(samples) - len(received)))


def _through_file(samples: Samples, rate: int, codec: _Codec, options: Mapping[str, Any]) -> Samples:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=codec.format, subtype=codec.subtype, **options)
    file.seek(0)
    received: Samples
    received, _ = soundfile.read(file, dtype="float32")
    return received


def _through_g722(samples: Samples) -> Samples:
    """(T,) at 16 kHz -> (T,), without the delay."""
    import av

    coder, decoder = av.CodecContext.create("g722", "w"), av.CodecContext.create("g722", "r")
    for context in (coder, decoder):
        context.sample_rate, context.layout = 16000, "mono"
    coder.format = "s16"
    num_padded = (len(samples) + _G722_DELAY + 1) // 2 * 2  # it codes pairs
    padded = np.pad(samples, (0, num_padded - len(samples)))
    frame = av.AudioFrame.from_ndarray(np.rint(padded * 32767.0).astype(np.int16)[None], "s16", "mono")
    frame.sample_rate = 16000
    packets = (*coder.encode(frame), *coder.encode(None))
    decoded = [one.to_ndarray() for packet in packets for one in decoder.decode(packet)]
    return scaled(np.concatenate(decoded, axis=1)[0, _G722_DELAY:][: len(samples)])


class LowPassPerturbation(Perturbation):
    """Without what is above a cutoff frequency, as by telephone, through a wall or a mask.

    A Butterworth filter without delay; the cutoff, 3 dB down, is drawn evenly on a logarithmic scale.

    Args:
        min_hz: lowest cutoff in Hz.
        max_hz: highest cutoff in Hz.
        order: of the filter: it falls by so many times 6 dB an octave.
    """

    def __init__(
        self,
        min_hz: Hertz = 2000.0,
        max_hz: Hertz = 7000.0,
        order: Annotated[int, Between(1, 100)] = 8,
        rng: NumbersRng | None = None,
    ) -> None:
        super().__init__(rng)
        self._limits, self._order = ordered("low_pass", min_hz=min_hz, max_hz=max_hz), order

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        least, most = self._limits
        cutoff = least * (most / least) ** rng.uniform()
        # Zeros behind it: what the filter spreads over the end must not return at the beginning.
        num_padded = len(samples) + sample_rate // 10
        frequencies = np.fft.rfftfreq(num_padded, 1 / sample_rate)
        gains = 1.0 / np.sqrt(1.0 + (frequencies / cutoff) ** (2 * self._order))
        filtered = np.fft.irfft(np.fft.rfft(samples, num_padded) * gains, num_padded)
        return filtered[: len(samples)].astype(np.float32)


class ClipPerturbation(Perturbation):
    """The loudest samples cut off at one level, as by an overloaded microphone; all others stay as they are.

    Args:
        min_share: least share of the samples that are cut off.
        max_share: largest share of them.
    """

    def __init__(self, min_share: Share = 0.0, max_share: Share = 0.1, rng: NumbersRng | None = None) -> None:
        super().__init__(rng)
        self._limits = ordered("clip", min_share=min_share, max_share=max_share)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        share = rng.uniform(*self._limits)
        if not len(samples):
            return samples
        level = np.float32(np.quantile(np.abs(samples), 1.0 - share))
        return np.clip(samples, -level, level)
