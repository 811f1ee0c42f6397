"""How far confidences of words can be believed, and a correction learned from words that are right or wrong.

A confidence is calibrated where, of the words that have it, this share is right. Nothing in here runs a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

FILE_NAME = "calibration.json"
NUM_BINS = 10
_NEAREST = 1e-4  # to 0 and to 1; confidences have three digits
_MOST_STEPS = 100
_RIDGE = 1e-3  # keeps the slope finite where one confidence parts right words from wrong ones


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Turns a confidence c into the probability that the word is right: 1 / (1 + exp(-(slope * logit(c) + offset))).

    Source: Platt, "Probabilistic Outputs for Support Vector Machines", 1999; on the logit of a probability.

    Attributes:
        slope: 0 or more, so the order of words stays.
        offset: of the log-odds.
        set: the name of the set from which it was learned.
        words: how many words that set gave.
    """

    slope: float
    offset: float
    set: str = ""
    words: int = 0

    def __call__(self, confidence: float) -> float:
        """The calibrated confidence."""
        return float(self.of(np.array([confidence]))[0])

    def of(self, confidences: Floats) -> Floats:
        """The calibrated confidences (N,)."""
        odds: Floats = self.slope * _log_odds(confidences) + self.offset
        return np.asarray(1.0 / (1.0 + np.exp(-odds)))


def usual_confidence(
    sets: Iterable[tuple[str, float | None]], calibration: Calibration | None
) -> tuple[str, float] | None:
    """The first set whose mean confidence is known, and that confidence, calibrated where there is a calibration."""
    known = next(((name, confidence) for name, confidence in sets if confidence is not None), None)
    if known is None or calibration is None:
        return known
    return known[0], calibration(known[1])


class Bin(NamedTuple):
    """The words whose confidences lie in one tenth of 0 to 1: how many, their mean confidence, the share right."""

    words: int
    confidence: float
    right: float


@dataclass(frozen=True)
class Reliability:
    """How far confidences are from the shares of right words.

    Attributes:
        bins: those with words, by rising confidence.
        words: how many in all.
        right: the share of right ones.
        error: the expected calibration error: the distance of confidence and share in each bin, weighed by its words.
            Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, equation 3.
    """

    bins: tuple[Bin, ...]
    words: int
    right: float
    error: float


class MeasuredSet(msgspec.Struct, frozen=True, kw_only=True):
    """How reliable confidences are on a set, as the model gives them and calibrated."""

    name: str
    before: Reliability
    after: Reliability


class CalibrationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What ``calibration.json`` holds: a calibration, and how well it did."""

    calibration: Calibration
    sets: list[MeasuredSet]


def right_words(said: Sequence[str], heard: Sequence[str]) -> list[bool]:
    """Which of the heard words are right, in an alignment with the fewest errors."""
    from rapidfuzz.distance import Levenshtein  # what applies a calibration need not wait for it

    right = [False] * len(heard)
    for code in Levenshtein.opcodes(said, heard):
        if code.tag == "equal":
            right[code.dest_start : code.dest_end] = [True] * (code.dest_end - code.dest_start)
    return right


def reliability(confidences: Floats, right: Mask) -> Reliability:
    """Compare confidences (N,) with which words are right (N,)."""
    places = np.minimum((confidences * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    members = [places == place for place in range(NUM_BINS)]
    bins = [
        Bin(int(some.sum()), float(confidences[some].mean()), float(right[some].mean()))
        for some in members
        if some.any()
    ]
    error = sum(group.words * abs(group.confidence - group.right) for group in bins) / max(len(right), 1)
    return Reliability(tuple(bins), len(right), float(right.mean()) if len(right) else 0.0, error)


def fit_calibration(confidences: Floats, right: Mask, name: str = "") -> Calibration:
    """The calibration under which right and wrong words are most probable.

    Targets are Platt's, (R + 1) / (R + 2) for R right words and 1 / (W + 2) for W wrong ones, so that a set without
    wrong words does not promise that there are none.

    Args:
        confidences: (N,) from 0 to 1.
        right: (N,) whether the word is right.
        name: of the set.
    """
    num_right, num_wrong = int(right.sum()), int((~right).sum())
    targets = np.where(right, (num_right + 1) / (num_right + 2), 1 / (num_wrong + 2))
    columns = np.stack([_log_odds(confidences), np.ones(len(right))], axis=1)
    slope, offset = _newton(columns, targets)
    if slope < 0:  # no sign that a higher confidence is better: the share of right words for all
        slope, (offset,) = 0.0, _newton(columns[:, 1:], targets)
    return Calibration(slope=round(float(slope), 4), offset=round(float(offset), 4), set=name, words=len(right))


def held_out(confidences: Floats, right: Mask, groups: npt.NDArray[np.int64], num_parts: int = 5) -> Floats:
    """Calibrated confidences (N,), each by a calibration that was learned without the word's part of the utterances.

    Args:
        confidences: (N,) from 0 to 1.
        right: (N,) whether the word is right.
        groups: (N,) the utterance of each word.
        num_parts: utterances go to parts in turn.
    """
    calibrated = np.zeros(len(confidences))
    for part in range(num_parts):
        mine = groups % num_parts == part
        calibrated[mine] = fit_calibration(confidences[~mine], right[~mine]).of(confidences[mine])
    return calibrated


def _log_odds(confidences: Floats) -> Floats:
    inside = np.clip(confidences, _NEAREST, 1.0 - _NEAREST)
    odds: Floats = np.log(inside) - np.log1p(-inside)
    return odds


def _newton(columns: Floats, targets: Floats) -> Floats:
    """The weights of a logistic regression, by Newton's steps."""
    weights: Floats = np.zeros(columns.shape[1])
    for _ in range(_MOST_STEPS):
        chances = 1.0 / (1.0 + np.exp(-columns @ weights))
        gradient = columns.T @ (targets - chances) - _RIDGE * weights
        curvature = (columns * (chances * (1.0 - chances))[:, None]).T @ columns + _RIDGE * np.eye(len(weights))
        step = np.linalg.solve(curvature, gradient)
        size = float(np.abs(step).max())
        weights = weights + step * min(1.0, 2.0 / size if size else 1.0)  # far steps of Newton's may overshoot
        if size < 1e-9:
            break
    return weights
