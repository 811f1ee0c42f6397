"""How sure an error rate is: intervals by resampling utterances, and a paired test of two models. No files in here.

Source: M. Bisani and H. Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation", ICASSP 2004.
A resample draws as many utterances as there are, with replacement. Its rate is pooled over them, as that of the corpus
is. Utterances count as independent: with few speakers the true intervals are wider.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein

from nemo_asr.scoring.error_counts import check_pairs, units_of
from nemo_lite.errors import UsageError

Counts: TypeAlias = "npt.NDArray[np.int64]"
Rates: TypeAlias = "npt.NDArray[np.float64]"

# The 2.5 % point of so many draws is off by 0.04 standard errors of the rate: less than what is printed.
RESAMPLES = 5000
_BLOCK_VALUES = 1 << 22  # how many drawn counts are in memory at once


@dataclass(frozen=True)
class UtteranceErrors:
    """What each utterance adds to an error rate.

    Attributes:
        errors: (N,) insertions, deletions and substitutions.
        lengths: (N,) words (or characters) of the references.
    """

    errors: Counts
    lengths: Counts

    @property
    def rate(self) -> float:
        """Errors by reference length, pooled: 0.05 is 5 %. Infinite where the references have no words."""
        length = int(self.lengths.sum())
        return int(self.errors.sum()) / length if length else math.inf


@dataclass(frozen=True)
class Interval:
    """From ``low`` to ``high``, both fractions: 0.05 is 5 %."""

    low: float
    high: float


@dataclass(frozen=True)
class PairedTest:
    """Two models on the same utterances; A is the first one, B the second one.

    Attributes:
        num_utterances: how many.
        rate_a: error rate of A, a fraction.
        rate_b: error rate of B.
        interval: 95 % interval of the difference.
        probability: share of the resamples in which B has fewer errors than A; ties count half (ours).
        p_value: of the matched-pairs test: how likely a mean difference of errors at least as large is, if the models
            are equally good; two-sided. 1 where no utterance differs.
    """

    num_utterances: int
    rate_a: float
    rate_b: float
    interval: Interval
    probability: float
    p_value: float

    @property
    def difference(self) -> float:
        """Rate of B less that of A: below 0, B is better."""
        return self.rate_b - self.rate_a


def utterance_errors(hypotheses: Sequence[str], references: Sequence[str], use_cer: bool = False) -> UtteranceErrors:
    """The errors of each utterance, counted as in :func:`~nemo_asr.scoring.error_counts.count_errors`.

    Raises:
        UsageError: the lists differ in length.
    """
    check_pairs(hypotheses, references)
    said = [units_of(text, use_cer) for text in references]
    heard = [units_of(text, use_cer) for text in hypotheses]
    errors = [Levenshtein.distance(one, other) for one, other in zip(said, heard, strict=True)]
    return UtteranceErrors(np.array(errors, dtype=np.int64), np.array([len(each) for each in said], dtype=np.int64))


def bootstrap_interval(
    counts: UtteranceErrors, *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Percentile interval of the pooled error rate over resampled utterances.

    The same arguments give the same interval. Where no utterance has an error, every resample has none, and the
    interval is 0 to 0: it then says nothing about unseen utterances.

    Args:
        counts: what each utterance adds.
        confidence: the share of resamples inside, 0 to 1.
        resamples: how many.
        seed: of the draws.

    Raises:
        UsageError: there are no utterances.
    """
    sums = _resampled_sums([counts.errors, counts.lengths], resamples, seed)
    return _percentiles(_rates(sums[0], sums[1]), confidence)


def paired_test(a: UtteranceErrors, b: UtteranceErrors, *, resamples: int = RESAMPLES, seed: int = 0) -> PairedTest:
    """Compare two models: both are scored on the same resampled utterances.

    Beside it, the matched-pairs test on the difference of errors of each utterance, after L. Gillick and S. Cox, "Some
    statistical issues in the comparison of speech recognition algorithms", ICASSP 1989, with utterances as segments.

    Raises:
        UsageError: there are no utterances, or the references of the two differ in length.
    """
    if not np.array_equal(a.lengths, b.lengths):
        got = f"{len(a.lengths)} and {len(b.lengths)} utterances of different reference lengths"
        raise UsageError("two models are compared on the same utterances", got=got)
    errors_a, errors_b, lengths = _resampled_sums([a.errors, b.errors, a.lengths], resamples, seed)
    better, equal = (float(np.mean(mask)) for mask in (errors_b < errors_a, errors_b == errors_a))
    return PairedTest(
        num_utterances=len(a.errors),
        rate_a=a.rate,
        rate_b=b.rate,
        interval=_percentiles(_rates(errors_b - errors_a, lengths), 0.95),
        probability=better + equal / 2,
        p_value=_matched_pairs(b.errors - a.errors),
    )


def _resampled_sums(columns: Sequence[Counts], resamples: int, seed: int) -> list[Counts]:
    """The sum of each column (N,) over each resample: (resamples,) each.

    Equal utterances are drawn together: how often each kind is drawn is multinomial. There are far fewer kinds than
    utterances, so this takes a tenth of the time and memory of drawing utterances.
    """
    number = len(columns[0])
    if not number:
        raise UsageError("an interval of an error rate needs utterances", got="none")
    kinds, frequencies = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK_VALUES // len(kinds))
    sums = [
        generator.multinomial(number, frequencies / number, size=min(block, resamples - first)) @ kinds
        for first in range(0, resamples, block)
    ]
    return list(np.concatenate(sums).T)


def _rates(errors: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> Rates:
    """Errors by lengths; resamples whose references have no words are left out."""
    rates: Rates = errors[lengths > 0] / lengths[lengths > 0]
    return rates


def _percentiles(rates: Rates, confidence: float) -> Interval:
    if not len(rates):
        return Interval(math.inf, math.inf)
    low, high = np.quantile(rates, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))


def _matched_pairs(differences: Counts) -> float:
    """Two-sided p-value of a mean of 0, by the normal approximation."""
    number = len(differences)
    if not differences.any():
        return 1.0
    deviation = float(differences.std(ddof=1)) if number > 1 else 0.0
    if not deviation:
        return 1.0 if number == 1 else 0.0
    score = abs(float(differences.mean())) / (deviation / math.sqrt(number))
    return math.erfc(score / math.sqrt(2))
