"""Domain: what a model has shown to know, as ranges over a set of recordings; others are marked, with the reason.

Bandwidth, level and change of level of the sound; rate of speech and words of the text; how sure the model is. A model
gives a text for what it does not know all the same: 8 kHz audio, music, another language, other words. No torch, no
files.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from nemo_asr.run.audio.segments import Samples, frame_levels
from nemo_asr.run.transcribe.transcript import Sound, Transcript
from nemo_lite.base.errors import counted

_BAND = 250.0  # Hz
_FRAME_SECONDS = 0.016  # of a spectrum: four bins a band
_BELOW_LOUDEST = 1e-5  # 50 dB: what is further below the loudest band is not there
_FEWEST_WORDS = 2  # of a text whose words are looked at
_LEAST_SPOKEN = 0.5  # seconds
_FEWEST = 20  # recordings of a set that tell what a model knows
# How far from the median of a set a range ends, in the distance of its extremes: other sets have others. Of 300 other
# utterances of digits a CTC head marks about 12 at 1.0 and 2 at 1.2; `change` alone marks 44 of 60 pieces of music at
# 1.2 and 24 at 1.5.
_FURTHER = 1.2
# Of how sure a model is, of one utterance in 200: there it is wrong, so that is left out, and a range ends nearer.
_LEFT_OUT, _FURTHER_OF_REST = 0.005, 1.1
_LOUD_RANGE = 40.0  # dB below the loudest frame
_UNHEARD = 0.5  # how often a word is in the set that it has not
_UNITS = {
    "bandwidth": ("bandwidth {} Hz", ".0f"),
    "level": ("level {} dB", ".0f"),
    "change": ("levels that change by {} dB", ".1f"),
    "rate": ("{} letters a second", ".1f"),
    "words": ("words of {} bits", ".1f"),
    "confidence": ("confidence {}", ".2f"),
    "doubt": ("doubts of {} bits a second", ".1f"),
}


class SoundMeter:
    """Measures a recording whose samples pass through it.

    Args:
        sample_rate: of the recording.
    """

    def __init__(self, sample_rate: int) -> None:
        self._rate, self._size = sample_rate, max(8, round(_FRAME_SECONDS * sample_rate))
        self._window = np.hanning(self._size).astype(np.float32)
        self._power = np.zeros(self._size // 2 + 1)

    def through(self, pieces: Iterable[Samples]) -> Iterator[Samples]:
        """The pieces as they are; every second frame of them is measured."""
        for piece in pieces:
            step = 2 * self._size
            frames = piece[: len(piece) // step * step].reshape(-1, step)[:, : self._size]
            for first in range(0, len(frames), 4096):
                some = frames[first : first + 4096]
                spectra = np.fft.rfft((some - some.mean(axis=1, keepdims=True)) * self._window)
                self._power += np.square(np.abs(spectra)).sum(axis=0)
            yield piece

    def sound(self, levels: Samples) -> Sound | None:
        """What was measured; None of a recording without sound.

        Args:
            levels: (N,) of its frames, in dB: see `frame_levels`.
        """
        bins = np.arange(len(self._power)) * self._rate / self._size
        bands = np.bincount((bins // _BAND).astype(np.int64), weights=self._power)
        if not len(levels) or not bands.max() > 0.0:
            return None
        highest = int(np.flatnonzero(bands >= _BELOW_LOUDEST * bands.max())[-1])
        loud = levels[levels > levels.max() - _LOUD_RANGE]
        return Sound(min((highest + 1) * _BAND, self._rate / 2), float(loud.mean()), float(loud.std()))


def sound_of(samples: Samples, sample_rate: int) -> Sound | None:
    """What samples (T,) are like; None of those without sound."""
    meter = SoundMeter(sample_rate)
    return meter.sound(frame_levels(meter.through([samples]), sample_rate))


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """What recordings of a set, and what a model hears in them, are like.

    Attributes:
        set: its name.
        utterances: how many were measured.
        sample_rate: of the model: what lies above half of it is not heard.
        ranges: lowest and highest value by measure: those of `Sound`, ``rate`` in letters a second of speech,
            ``words`` in bits a word by their shares, ``confidence`` of words on average, ``doubt`` in bits a second of
            speech: the negative logarithm of the path that the search took, blanks and all.
        words: how often each was heard.
    """

    set: str = ""
    utterances: int = 0
    sample_rate: int = 16000
    ranges: dict[str, tuple[float, float]] = {}
    words: dict[str, int] = {}

    def measures(self, transcript: Transcript) -> dict[str, float]:
        """What can be measured of a transcript, by the names of `ranges`."""
        spoken = sum(span.end - span.start for span in transcript.segments) or transcript.duration
        found: dict[str, float] = {}
        if transcript.sound is not None:
            found["bandwidth"] = min(transcript.sound.bandwidth, self.sample_rate / 2)
            found["level"], found["change"] = transcript.sound.level, transcript.sound.change
        if spoken >= _LEAST_SPOKEN and transcript.segments:
            found["rate"] = sum(not letter.isspace() for letter in transcript.text) / spoken
            if transcript.score is not None:
                found["doubt"] = -transcript.score / math.log(2) / spoken
        if len(transcript.words) >= _FEWEST_WORDS and self.words:
            log_shares = (math.log2(self.words.get(word.text, _UNHEARD)) for word in transcript.words)
            found["words"] = math.log2(sum(self.words.values())) - sum(log_shares) / len(transcript.words)
        if transcript.words:
            found["confidence"] = sum(word.confidence for word in transcript.words) / len(transcript.words)
        return found

    def unfamiliar(self, transcript: Transcript) -> tuple[str, ...]:
        """Why the model may not know what it hears: each measure that is out of its range. Empty: none is."""
        reasons = []
        for name, value in self.measures(transcript).items():
            low, high = self.ranges.get(name, (-math.inf, math.inf))
            if not low <= value <= high:
                told, digits = _UNITS[name]
                known = f"{low:{digits}} to {high:{digits}}"
                reasons.append(f"{told.format(format(value, digits))}, on {self.set} {known}")
        return tuple(reasons)

    def described(self) -> str:
        """A line: its set, and the ranges."""
        ranges = ((*_UNITS[name], *values) for name, values in self.ranges.items() if name in _UNITS)
        told = (text.format(f"{low:{digits}} to {high:{digits}}") for text, digits, low, high in ranges)
        return f"{counted(self.utterances, 'utterance')} of {self.set}: {', '.join(told)}"

    def calibrated(self, calibration: Callable[[float], float] | None) -> Domain:
        """The same for confidences that a calibration has changed."""
        if calibration is None or "confidence" not in self.ranges:
            return self
        low, high = map(calibration, self.ranges["confidence"])
        return msgspec.structs.replace(self, ranges={**self.ranges, "confidence": (low, high)})


def fit_domain(name: str, transcripts: Sequence[Transcript], sample_rate: int) -> Domain | None:
    """The domain of a set; None where it has too few recordings with words.

    Args:
        name: of the set.
        transcripts: what the model hears in its recordings, by confidences that are not calibrated.
        sample_rate: of the model.
    """
    transcripts = [transcript for transcript in transcripts if transcript.words]
    if len(transcripts) < _FEWEST:
        return None
    of_each = [Counter(word.text for word in transcript.words) for transcript in transcripts]
    counts = sum(of_each, Counter[str]())
    known = Domain(set=name, utterances=len(transcripts), sample_rate=sample_rate, words=dict(counts.most_common()))
    values: dict[str, list[float]] = {}
    for transcript, words in zip(transcripts, of_each, strict=True):
        # By the words of all others: a word that one utterance alone has is unheard, as in other sets.
        for measured, value in msgspec.structs.replace(known, words=counts - words).measures(transcript).items():
            values.setdefault(measured, []).append(value)
    return msgspec.structs.replace(known, ranges={each: _range_of(each, found) for each, found in values.items()})


def _range_of(name: str, values: Sequence[float]) -> tuple[float, float]:
    ordered, middle = sorted(values), float(np.median(values))
    left_out = int(_LEFT_OUT * len(ordered))
    low, high = middle + _FURTHER * (ordered[0] - middle), middle + _FURTHER * (ordered[-1] - middle)
    if name == "confidence":
        low, high = middle + _FURTHER_OF_REST * (ordered[left_out] - middle), 1.0
    elif name == "doubt":
        low, high = 0.0, middle + _FURTHER_OF_REST * (ordered[-1 - left_out] - middle)
    elif name == "words":
        low = 0.0
    return round(low, 4), round(high, 4)


def marked(transcript: Transcript, domain: Domain | None) -> Transcript:
    """The transcript with the reasons why the model may not know what it hears."""
    if domain is None or not (reasons := domain.unfamiliar(transcript)):
        return transcript
    return replace(transcript, unfamiliar=reasons)
