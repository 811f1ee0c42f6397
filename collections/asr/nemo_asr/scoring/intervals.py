"""How sure an error rate is: intervals by resampling clusters of utterances, a paired test of two models. No files.

A resample draws as many utterances as there are, with replacement, and its rate is pooled over them: M. Bisani and
H. Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation", ICASSP 2004. Utterances of one
speaker fail together, so where speakers are known whole speakers are drawn: Z. Liu and F. Peng, "Statistical
testing on ASR performance via blockwise bootstrap", Interspeech 2020. With few clusters percentiles are too narrow,
and are taken further out ("expanded percentiles"): T. Hesterberg, "What teachers should know about the bootstrap",
The American Statistician 69, 2015.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein

from nemo_asr.scoring.rates import check_pairs, units_of
from nemo_lite.base.errors import UsageError, counted

Counts: TypeAlias = "npt.NDArray[np.int64]"
Rates: TypeAlias = "npt.NDArray[np.float64]"

# The 2.5 % point of so many draws is off by 0.04 standard errors of the rate: less than what is printed.
RESAMPLES = 5000
CONFIDENCE = 0.95
_BLOCK_VALUES = 1 << 20  # how many drawn values are in memory at once
_COST_OF_A_KIND = 8  # drawing how often a kind occurs costs as much as drawing so many clusters: measured


@dataclass(frozen=True)
class Clusters:
    """Which utterances belong together, because their errors are not independent of each other.

    Attributes:
        ids: (N,) the cluster of each utterance, from 0.
        number: of clusters.
        unit: what a cluster is: ``speakers``, ``recordings``, ``speakers and recordings`` or ``utterances``.
    """

    ids: Counts
    number: int
    unit: str

    def __str__(self) -> str:
        return counted(self.number, self.unit.removesuffix("s"))


def clusters_of(speakers: Sequence[str | None], recordings: Sequence[str | None]) -> Clusters:
    """The clusters of a set: its speakers; where none is known, or there is only one, its recordings.

    An utterance without a speaker belongs to its recording; without either it is a cluster of its own. A set of one
    recording is taken by utterances: nothing in it tells how others would differ.

    Args:
        speakers: (N,) of each utterance; None where it is not known.
        recordings: (N,) the audio file of each; None where it is not known.

    Raises:
        UsageError: the lists differ in length.
    """
    if len(speakers) != len(recordings):
        raise UsageError("speakers and recordings must pair up", got=f"{len(speakers)} and {len(recordings)}")
    by_file: list[Hashable] = [number if file is None else file for number, file in enumerate(recordings)]
    num_known = sum(speaker is not None for speaker in speakers)
    if num_known:
        pairs = zip(speakers, by_file, strict=True)
        people = [(False, file) if speaker is None else (True, speaker) for speaker, file in pairs]
        clusters = _numbered(people, "speakers" if num_known == len(speakers) else "speakers and recordings")
        if clusters.number > 1:
            return clusters
    clusters = _numbered(by_file, "recordings")
    if 1 < clusters.number < len(recordings):
        return clusters
    return _numbered(range(len(speakers)), "utterances")


def _numbered(keys: Iterable[Hashable], unit: str) -> Clusters:
    numbers: dict[Hashable, int] = {}
    ids = [numbers.setdefault(key, len(numbers)) for key in keys]
    return Clusters(np.array(ids, dtype=np.int64), len(numbers), unit)


@dataclass(frozen=True, eq=False)
class UtteranceErrors:
    """What each utterance adds to an error rate.

    Attributes:
        errors: (N,) insertions, deletions and substitutions.
        lengths: (N,) words (or characters) of the references.
        clusters: which utterances belong together; None: each is independent of all others.
    """

    errors: Counts
    lengths: Counts
    clusters: Clusters | None = None

    @property
    def rate(self) -> float:
        """Errors by reference length, pooled: 0.05 is 5 %. Infinite where the references have no words."""
        length = int(self.lengths.sum())
        return int(self.errors.sum()) / length if length else math.inf

    def only(self, rows: npt.NDArray[np.bool_]) -> UtteranceErrors:
        """Those of some utterances, given by a mask (N,), with their clusters."""
        clusters = self.clusters
        if clusters is not None:
            kept, ids = np.unique(clusters.ids[rows], return_inverse=True)
            clusters = Clusters(ids.astype(np.int64), len(kept), clusters.unit)
        return UtteranceErrors(self.errors[rows], self.lengths[rows], clusters)


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
        num_clusters: how many clusters the utterances were resampled in.
        unit: what a cluster is, as in :class:`Clusters`.
    """

    num_utterances: int
    rate_a: float
    rate_b: float
    interval: Interval
    probability: float
    p_value: float
    num_clusters: int = 0
    unit: str = "utterances"

    @property
    def clusters(self) -> str:
        """In what the utterances were resampled: ``12 speakers``."""
        return counted(self.num_clusters, self.unit.removesuffix("s"))

    @property
    def difference(self) -> float:
        """Rate of B less that of A: below 0, B is better."""
        return self.rate_b - self.rate_a

    @property
    def is_sure(self) -> bool:
        """Whether it is no chance. Both must say so: the p-value counts errors, the interval weighs them by words."""
        is_beyond = not self.interval.low <= 0 <= self.interval.high
        return self.has_words and is_beyond and self.p_value < 1 - CONFIDENCE

    @property
    def has_words(self) -> bool:
        """Whether something is said in the references; else there are no rates."""
        return math.isfinite(self.rate_a)


def utterance_errors(
    hypotheses: Sequence[str], references: Sequence[str], use_cer: bool = False, clusters: Clusters | None = None
) -> UtteranceErrors:
    """The errors of each utterance, counted as in :func:`~nemo_asr.scoring.rates.count_errors`.

    Args:
        hypotheses: what was recognised.
        references: what was said, in the same order.
        use_cer: count characters instead of words.
        clusters: which utterances belong together.

    Raises:
        UsageError: the lists differ in length.
    """
    check_pairs(hypotheses, references)
    said = [units_of(text, use_cer) for text in references]
    heard = [units_of(text, use_cer) for text in hypotheses]
    errors = [Levenshtein.distance(one, other) for one, other in zip(said, heard, strict=True)]
    lengths = [len(units) for units in said]
    return UtteranceErrors(np.array(errors, dtype=np.int64), np.array(lengths, dtype=np.int64), clusters)


def class_errors(is_wrong: npt.NDArray[np.bool_], clusters: Clusters | None = None) -> UtteranceErrors:
    """What each recording adds to the error rate of a classifier, given by a mask (N,) of those with another class."""
    return UtteranceErrors(is_wrong.astype(np.int64), np.ones(len(is_wrong), dtype=np.int64), clusters)


def bootstrap_interval(
    counts: UtteranceErrors, *, confidence: float = CONFIDENCE, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Expanded percentile interval of the pooled error rate over resampled clusters.

    The same utterances give the same interval, in whatever order they come. A rate of 0 has an interval that ends where
    so few errors in as many words would be as rare as the confidence says (C. Clopper and E. Pearson, Biometrika 26,
    1934); this takes words as independent. A single cluster gives 0 to 1: it tells nothing about others.

    Args:
        counts: what each utterance adds.
        confidence: how often the interval holds the true rate, 0 to 1.
        resamples: how many.
        seed: of the draws.

    Raises:
        UsageError: there are no utterances.
    """
    columns = _by_cluster([counts.errors, counts.lengths], counts.clusters)
    num_units = int(counts.lengths.sum())
    if not counts.errors.any() and num_units:
        return Interval(0.0, 1.0 - ((1.0 - confidence) / 2) ** (1 / num_units))
    if len(columns[0]) == 1:
        return Interval(0.0, max(1.0, counts.rate))
    errors, lengths = _resampled_sums(columns, resamples, seed)
    return _percentiles(_rates(errors, lengths), confidence, len(columns[0]))


def paired_test(a: UtteranceErrors, b: UtteranceErrors, *, resamples: int = RESAMPLES, seed: int = 0) -> PairedTest:
    """Compare two models: both are scored on the same resampled clusters, those of ``a``.

    Beside it, the matched-pairs test on the difference of errors of each cluster, after L. Gillick and S. Cox, "Some
    statistical issues in the comparison of speech recognition algorithms", ICASSP 1989, with clusters as segments, and
    with Student's t for their number. With one cluster the interval is as wide as it can be and the p-value 1.

    Raises:
        UsageError: there are no utterances, or the references of the two differ in length.
    """
    if not np.array_equal(a.lengths, b.lengths):
        got = f"{len(a.lengths)} and {len(b.lengths)} utterances of different reference lengths"
        raise UsageError("two models are compared on the same utterances", got=got)
    columns = _by_cluster([a.errors, b.errors, a.lengths], a.clusters)
    number = len(columns[0])
    errors_a, errors_b, lengths = _resampled_sums(columns, resamples, seed)
    better, equal = (float(np.mean(mask)) for mask in (errors_b < errors_a, errors_b == errors_a))
    interval = _percentiles(_rates(errors_b - errors_a, lengths), CONFIDENCE, number)
    return PairedTest(
        num_utterances=len(a.errors),
        rate_a=a.rate,
        rate_b=b.rate,
        interval=interval if number > 1 else Interval(-max(1.0, a.rate), max(1.0, b.rate)),
        probability=better + equal / 2,
        p_value=_matched_pairs(columns[1] - columns[0]),
        num_clusters=number,
        unit=a.clusters.unit if a.clusters else "utterances",
    )


def _by_cluster(columns: Sequence[Counts], clusters: Clusters | None) -> list[Counts]:
    """The sum of each column (N,) over each cluster: (clusters,) each."""
    if not len(columns[0]):
        raise UsageError("an interval of an error rate needs utterances", got="none")
    if clusters is None:
        return list(columns)
    # Sums of weights are doubles: whole numbers up to 2**53 stay what they are.
    return [np.bincount(clusters.ids, weights=column, minlength=clusters.number).astype(np.int64) for column in columns]


def _resampled_sums(columns: Sequence[Counts], resamples: int, seed: int) -> list[Counts]:
    """The sum of each column (N,) over each resample: (resamples,) each.

    Where many are equal, equal ones are drawn together: how often each kind is drawn is multinomial.
    """
    number = len(columns[0])
    kinds, frequencies = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
    generator = np.random.default_rng(seed)
    draws_kinds = len(kinds) * _COST_OF_A_KIND < number
    block = max(1, _BLOCK_VALUES // (len(kinds) if draws_kinds else number))
    sizes = [min(block, resamples - first) for first in range(0, resamples, block)]
    if draws_kinds:
        drawn = [generator.multinomial(number, frequencies / number, size=size) @ kinds for size in sizes]
        return list(np.concatenate(drawn).T)
    listed = [np.repeat(column, frequencies) for column in kinds.T]
    sums = []
    for size in sizes:
        items = generator.integers(0, number, (size, number), dtype=np.uint32)
        sums.append([column[items].sum(axis=1) for column in listed])
    return [np.concatenate(parts) for parts in zip(*sums, strict=True)]


def _rates(errors: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> Rates:
    """Errors by lengths; resamples whose references have no words are left out."""
    rates: Rates = errors[lengths > 0] / lengths[lengths > 0]
    return rates


def _percentiles(rates: Rates, confidence: float, number: int) -> Interval:
    """Where the rates of resamples lie, taken further out for a small number of clusters."""
    if not len(rates):
        return Interval(math.inf, math.inf)
    if number < 2:
        return Interval(float(rates.min()), float(rates.max()))
    tail = NormalDist().cdf(-math.sqrt(number / (number - 1)) * two_sided_score(confidence, number - 1))
    low, high = np.quantile(rates, [tail, 1 - tail])
    return Interval(float(low), float(high))


def _matched_pairs(differences: Counts) -> float:
    """Two-sided p-value of a mean of 0, by Student's t."""
    number = len(differences)
    if not differences.any() or number == 1:
        return 1.0
    deviation = float(differences.std(ddof=1))
    if not deviation:
        return 0.0
    return two_sided_p_value(float(differences.mean()) / (deviation / math.sqrt(number)), number - 1)


# Student's t distribution for whole degrees of freedom, for means of few values. SciPy is no dependency of ours.
# Source: M. Abramowitz and I. Stegun, "Handbook of Mathematical Functions", 1964, 26.7.3 and 26.7.4.
# Beyond it the normal distribution is taken: its 97.5 % point is 0.05 % lower there.
_MOST_DEGREES = 2000


def two_sided_p_value(score: float, degrees: int) -> float:
    """How likely a value at least as far from 0 as ``score`` is, 0 to 1.

    Args:
        score: a mean divided by its standard error.
        degrees: of freedom: the number of values less 1; at least 1.
    """
    score = abs(score)
    if degrees > _MOST_DEGREES:
        return math.erfc(score / math.sqrt(2))
    angle = math.atan(score / math.sqrt(degrees))
    sine, squared = math.sin(angle), math.cos(angle) ** 2
    is_odd = degrees % 2
    # The terms of the two series: each is the one before, times an odd by an even number (or the other way round).
    term, total = (math.cos(angle), 0.0) if is_odd else (1.0, 0.0)
    for number in range(degrees // 2):
        total += term
        term *= squared * ((2 * number + 2) / (2 * number + 3) if is_odd else (2 * number + 1) / (2 * number + 2))
    inside = 2 / math.pi * (angle + sine * total) if is_odd else sine * total
    return max(0.0, 1.0 - inside)


def two_sided_score(confidence: float, degrees: int) -> float:
    """The distance from 0 that holds ``confidence`` of the values: 1.96 for 0.95 and many degrees of freedom."""
    if degrees > _MOST_DEGREES:
        return NormalDist().inv_cdf((1 + confidence) / 2)
    low, high = 0.0, 1.0
    while two_sided_p_value(high, degrees) > 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p_value(middle, degrees) > 1 - confidence else (low, middle)
    return high
