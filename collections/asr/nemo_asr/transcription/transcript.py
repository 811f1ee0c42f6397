"""Transcript: what was said in a recording, and when. From a CTC path to words; no models and no files in here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_asr.text.labels import spelled, text_of
from nemo_lite.errors import UsageError

Path: TypeAlias = "npt.NDArray[np.integer[Any]]"
Scores: TypeAlias = "npt.NDArray[np.floating[Any]]"

_DIGITS = 3  # of seconds and confidences
_MOST_LOG_SUM = 0.1  # far more than rounding in half precision gives


@dataclass(frozen=True)
class Word:
    """One word, or one character where the model's labels have no space.

    Attributes:
        text: the word.
        start: seconds from the beginning of the recording to the first frame of its first label.
        end: seconds to the end of the last frame of its last label.
        confidence: from 0 to 1. Without a calibration the geometric mean of the probabilities that the model gave the
            word's labels, over the frames of these labels: exp(mean of log p); blanks inside and around the word do not
            count. With one, how probable it is that the word is right.
    """

    text: str
    start: float
    end: float
    confidence: float


class ScoredText(NamedTuple):
    """What may have been said.

    Attributes:
        text: the words.
        score: natural logarithm: of the sounds and, with weights, of the words. Scores of one recording compare.
    """

    text: str
    score: float


@dataclass(frozen=True)
class Transcript:
    """What was said in one recording.

    Attributes:
        text: the words, with single spaces between them where the labels have a space.
        words: each word with its times.
        duration: seconds of audio.
        source: where the audio came from: a path, or ``audio[3]`` for an array.
        offset: seconds into the audio where a part of it begins, from which times count; None: it is the whole audio.
        hypotheses: the most probable texts, the best first, which is ``text``; empty where no n-best was asked for.
    """

    text: str
    words: tuple[Word, ...]
    duration: float
    source: str
    offset: float | None = None
    hypotheses: tuple[ScoredText, ...] = ()

    @property
    def name(self) -> str:
        """The source, with the offset where it is a part: ``a.wav@12.5``."""
        return self.source if self.offset is None else f"{self.source}@{self.offset:g}"

    @property
    def separator(self) -> str:
        """What stands between two words: a space, or nothing."""
        return "" if len(self.words) > 1 and "".join(word.text for word in self.words) == self.text else " "


class Transcribed(NamedTuple):
    """The result for a list of recordings.

    Attributes:
        transcripts: in the order given, without the recordings that could not be read; on ranks above 0 empty.
        faults: why recordings could not be read, by position in what was given; on all ranks.
        seconds: of audio that was transcribed; on ranks above 0 none.
    """

    transcripts: list[Transcript]
    faults: dict[int, str]
    seconds: float


def refuse_no_probabilities(log_sum: float) -> None:
    """Raise UsageError where the probabilities of a frame do not add up to 1: then words have no confidences.

    Args:
        log_sum: natural logarithm of the sum: of all frames the one that is farthest from 0, which may be NaN.
    """
    if not abs(log_sum) <= _MOST_LOG_SUM:
        problem = "the model's log_probs are no logarithms of probabilities, so words have no confidences"
        got, remedy = f"frames whose logarithm of the sum is {log_sum:.3g}", "end its decoder with log_softmax"
        raise UsageError(problem, got=got, wanted="0, as of a CTC head", remedy=remedy)


class _Emission(NamedTuple):
    """A label that the path emits, in the frames from ``first`` to before ``end``; the sum of its log-probabilities."""

    label: str
    first: int
    end: int
    log_prob: float


def transcript_of(
    path: Path,
    scores: Scores,
    labels: Sequence[str],
    frame_seconds: float,
    duration: float,
    source: str,
    offset: float | None = None,
    calibration: Callable[[float], float] | None = None,
    hypotheses: Sequence[ScoredText] = (),
    start: float = 0.0,
) -> Transcript:
    """The transcript that a CTC path stands for.

    Args:
        path: (T,) the label of each frame; ``len(labels)`` is the blank.
        scores: (T,) natural logarithm of that label's probability.
        labels: the vocabulary.
        frame_seconds: how much audio a frame stands for. Frame t lasts from t to t + 1 times it, behind ``start``.
        duration: seconds of audio.
        source: where it came from.
        offset: seconds into the source where it begins.
        calibration: turns a confidence into a calibrated one.
        hypotheses: of a search, the best first.
        start: seconds into the recording where the first frame begins.
    """
    labels = [spelled(label) for label in labels]
    has_spaces = any(label.startswith(" ") for label in labels)
    words = []
    for emissions in _words(_emissions(path, scores, labels), has_spaces):
        num_frames = sum(each.end - each.first for each in emissions)
        confidence = float(np.exp(sum(each.log_prob for each in emissions) / num_frames))
        confidence = confidence if calibration is None else calibration(confidence)
        times = (min(start + frame * frame_seconds, duration) for frame in (emissions[0].first, emissions[-1].end))
        first, last = (round(seconds, _DIGITS) for seconds in times)
        words.append(Word("".join(each.label for each in emissions).strip(), first, last, round(confidence, _DIGITS)))
    text = (" " if has_spaces else "").join(word.text for word in words)
    return Transcript(text, tuple(words), round(duration, _DIGITS), source, offset, tuple(hypotheses))


def scored_texts(found: Iterable[tuple[Sequence[int], float]], labels: Sequence[str]) -> tuple[ScoredText, ...]:
    """The texts of label ids with their scores; ids whose score is minus infinity are no text."""
    return tuple(ScoredText(text_of(ids, labels), round(score, _DIGITS)) for ids, score in found if score > -np.inf)


def _emissions(path: Path, scores: Scores, labels: Sequence[str]) -> Iterator[_Emission]:
    """The runs of equal labels, blanks left out."""
    if not len(path):
        return
    sums = np.concatenate([[0.0], np.cumsum(scores, dtype=np.float64)])
    edges = [0, *(np.flatnonzero(path[1:] != path[:-1]) + 1).tolist(), len(path)]
    for first, end in itertools.pairwise(edges):
        label = int(path[first])
        if label < len(labels):
            yield _Emission(labels[label], first, end, float(sums[end] - sums[first]))


def _words(emissions: Iterator[_Emission], has_spaces: bool) -> Iterator[list[_Emission]]:
    """The emissions of each word."""
    word: list[_Emission] = []
    for each in emissions:
        if each.label.startswith(" ") or not has_spaces:
            if word:
                yield word
            word = []
        if each.label != " ":
            word.append(each)
    if word:
        yield word
