"""Domain: what a model has shown to know, as ranges over a set of recordings; others are marked, with the reason.

Bandwidth, level and change of level of the sound; rate of speech and words of the text; how sure the model is; how far
what its search reads is from that of the set. A model gives a text for what it does not know all the same: 8 kHz audio,
music, another language, other words. No torch, no files.

The distance is Mahalanobis' (Lee et al., "A Simple Unified Framework for Detecting Out-of-Distribution Samples and
Adversarial Attacks", NeurIPS 2018), its square averaged over frames. For a frame x with a one in front, y = (1, x), and
the mean M of y yᵀ over the frames of the set, yᵀ M⁻¹ y is 1 more than the square of that distance. So sums of y yᵀ, the
moments, are all that is needed of a recording: those of its parts add up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from nemo_asr.run.audio.segments import Samples, frame_levels
from nemo_asr.run.transcribe.transcript import DIGITS, Sound, Transcript
from nemo_lite.base.errors import counted

Moments: TypeAlias = "npt.NDArray[np.floating[Any]]"
"""(K + 1, K + 1): the sum of y yᵀ over frames, whose number it has in its first corner."""

LEAST_SPOKEN = 0.5
"""Seconds of speech of which rate and distance are measured."""
MOST_DIMENSIONS = 128
"""K at most; frames of more are folded."""
_RIDGE = 1e-4  # of the mean square of the numbers, added to each: few frames vary in few directions
_BAND = 250.0  # Hz
_FRAME_SECONDS = 0.016  # of a spectrum: four bins a band
_BELOW_LOUDEST = 1e-5  # 50 dB: what is further below the loudest band is not there
_FEWEST_WORDS = 2  # of a text whose words are looked at
_FEWEST = 20  # recordings of a set that tell what a model knows
# How far from the median of a set a range ends, in the distance of its extremes: other sets have others. Of 300
# utterances of digits, of which 200 gave the ranges, 5 are marked at 1.2, 3 at 1.4 and 2 at 1.5; `change` alone marks
# 43 of 60 pieces of music at 1.2, 36 at 1.4 and 33 at 1.5.
_FURTHER = 1.4
# Of the distance one utterance in 200 is left out: there the model is mostly wrong. And the range ends nearer: at 1.2
# two of four models find a third less of other words. One with 13 % WER marks 14 of 300 utterances of another set at
# 1.1, 8 at 1.2.
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
    "distance": ("distance {}", ".2f"),
}


def moments_of(frames: npt.NDArray[Any]) -> Moments:
    """The moments of frames (T, D)."""
    number, dims = frames.shape
    folds, width = -(-dims // MOST_DIMENSIONS), min(dims, MOST_DIMENSIONS)
    padded = np.pad(frames.astype(np.float64), ((0, 0), (0, folds * width - dims)))
    with_one = np.hstack([np.ones((number, 1)), padded.reshape(number, folds, width).sum(1)])
    moments: Moments = with_one.T @ with_one
    return moments


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
            ``words`` in bits a word by their shares, ``confidence`` of words on average, ``distance`` of what the
            search reads, 1 on average in the set.
        words: how often each was heard.
        frames: mean moments of what the search reads: their upper triangle, float32. Empty: they are not known.

    Raises:
        ValueError: ``frames`` are none.
    """

    set: str = ""
    utterances: int = 0
    sample_rate: int = 16000
    ranges: dict[str, tuple[float, float]] = {}
    words: dict[str, int] = {}
    frames: bytes = b""

    def __post_init__(self) -> None:
        size = _size_of(self.frames)
        is_triangle = len(self.frames) == 2 * size * (size + 1) and size <= MOST_DIMENSIONS + 1
        if not is_triangle or not np.isfinite(np.frombuffer(self.frames, "<f4")).all():
            raise ValueError(f"{len(self.frames)} bytes that are no moments of frames")

    def measured(self, moments: Moments) -> dict[str, Any]:
        """What a transcript keeps of the moments of its frames: the distance; of a set to learn a domain from, all."""
        if not self.utterances:
            return {"moments": moments}
        known = _inverse(self.frames)
        if known.shape != moments.shape or not moments[0, 0]:
            return {}
        return {"distance": float((known * moments).sum() / moments[0, 0] / len(moments))}

    def measures(self, transcript: Transcript) -> dict[str, float]:
        """What can be measured of a transcript, by the names of `ranges`."""
        spoken = sum(span.end - span.start for span in transcript.segments) or transcript.duration
        found: dict[str, float] = {}
        if transcript.sound is not None:
            found["bandwidth"] = min(transcript.sound.bandwidth, self.sample_rate / 2)
            found["level"], found["change"] = transcript.sound.level, transcript.sound.change
        if spoken >= LEAST_SPOKEN and transcript.segments:
            found["rate"] = sum(not letter.isspace() for letter in transcript.text) / spoken
        if spoken >= LEAST_SPOKEN and transcript.distance is not None:
            found["distance"] = transcript.distance
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
        """The same for confidences that a calibration has changed, and a transcript rounds."""
        if calibration is None or "confidence" not in self.ranges:
            return self
        low, high = self.ranges["confidence"]
        calibrated = calibration(low) - 0.5 * 10.0**-DIGITS, high
        return msgspec.structs.replace(self, ranges={**self.ranges, "confidence": calibrated})


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
    frames = [transcript.moments for transcript in transcripts if transcript.moments is not None]
    all_frames = np.sum(frames, axis=0) if len(frames) == len(transcripts) else np.zeros((0, 0))
    known = Domain(
        set=name,
        utterances=len(transcripts),
        sample_rate=sample_rate,
        words=dict(counts.most_common()),
        frames=stored(all_frames),
    )
    values: dict[str, list[float]] = {}
    for transcript, words in zip(transcripts, of_each, strict=True):
        # By all others: a word that one utterance alone has is unheard, as in other sets.
        others = msgspec.structs.replace(known, words=counts - words)
        if known.frames and transcript.moments is not None:
            others = msgspec.structs.replace(others, frames=stored(all_frames - transcript.moments))
            transcript = replace(transcript, **others.measured(transcript.moments))
        for measure, value in others.measures(transcript).items():
            values.setdefault(measure, []).append(value)
    return msgspec.structs.replace(known, ranges={each: _range_of(each, found) for each, found in values.items()})


def stored(moments: Moments) -> bytes:
    """Moments as a domain holds them: see `Domain.frames`. Empty where they are too large for that."""
    with np.errstate(over="ignore"):
        upper = (moments / moments[:1, :1])[np.triu_indices(len(moments))].astype("<f4")
    return upper.tobytes() if np.isfinite(upper).all() else b""


def _size_of(frames: bytes) -> int:
    """K + 1 of `Domain.frames`; 0 where they are empty."""
    return (math.isqrt(2 * len(frames) + 1) - 1) // 2


@lru_cache(maxsize=8)  # of one domain for all its recordings
def _inverse(frames: bytes) -> Moments:
    """(K + 1, K + 1): the inverse of `Domain.frames`; (0, 0) where they are empty."""
    size = _size_of(frames)
    mean = np.zeros((size, size))
    mean[np.triu_indices(size)] = np.frombuffer(frames, "<f4")
    mean += np.triu(mean, 1).T
    squares = mean.diagonal()[1:]
    mean[range(1, size), range(1, size)] += _RIDGE * squares.sum() / max(len(squares), 1) or 1.0  # where all are 0
    return np.linalg.pinv(mean, hermitian=True)


def _range_of(name: str, values: Sequence[float]) -> tuple[float, float]:
    ordered, middle = sorted(values), float(np.median(values))
    low, high = middle + _FURTHER * (ordered[0] - middle), middle + _FURTHER * (ordered[-1] - middle)
    if name == "confidence":
        high = 1.0
    elif name == "distance":
        low, high = 0.0, middle + _FURTHER_OF_REST * (ordered[-1 - int(_LEFT_OUT * len(ordered))] - middle)
    elif name == "words":
        low = 0.0
    elif name == "rate":
        low = max(low, 0.0)
    return round(low, 4), round(high, 4)


def marked(transcript: Transcript, domain: Domain | None) -> Transcript:
    """The transcript with the reasons why the model may not know what it hears."""
    if domain is None or not (reasons := domain.unfamiliar(transcript)):
        return transcript
    return replace(transcript, unfamiliar=reasons)
