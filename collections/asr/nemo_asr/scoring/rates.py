"""Error rates: edit distances, classes and speakers, their intervals by bootstrap, where the errors are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from itertools import pairwise
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from nemo_lite.base.errors import UsageError

# Word and character errors of hypotheses.


@dataclass(frozen=True)
class ErrorCounts:
    """What an alignment of hypotheses with references found, summed over a corpus.

    ``insertions``, ``deletions``, ``substitutions`` and ``correct`` count words (or characters); ``utterances`` counts
    pairs. Counts add up with ``+``, so a corpus may be scored in parts, on several machines.
    """

    insertions: int = 0
    deletions: int = 0
    substitutions: int = 0
    correct: int = 0
    utterances: int = 0

    @property
    def errors(self) -> int:
        """Insertions, deletions and substitutions: the edit distance."""
        return self.insertions + self.deletions + self.substitutions

    @property
    def reference_length(self) -> int:
        """Words (or characters) of the references."""
        return self.correct + self.deletions + self.substitutions

    @property
    def rate(self) -> float:
        """Errors by reference length: 0.05 is 5 %. Infinite where the references have no words."""
        return self.errors / self.reference_length if self.reference_length else float("inf")

    def __str__(self) -> str:
        return f"{self.insertions} insertions, {self.deletions} deletions, {self.substitutions} substitutions"

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        return ErrorCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def as_dict(self) -> dict[str, int]:
        """The five counts by name; ``ErrorCounts(**counts)`` is the way back."""
        return asdict(self)


def count_errors(hypotheses: Sequence[str], references: Sequence[str], use_cer: bool = False) -> ErrorCounts:
    """Align each hypothesis with its reference by the fewest edits, and sum what was found.

    Args:
        hypotheses: what was recognised.
        references: what was said, in the same order.
        use_cer: count characters, spaces among them, instead of words.

    Raises:
        UsageError: the lists differ in length.
    """
    check_pairs(hypotheses, references)
    edits: Counter[str] = Counter()
    length = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        said, heard = units_of(reference, use_cer), units_of(hypothesis, use_cer)
        edits.update(edit.tag for edit in Levenshtein.editops(said, heard))
        length += len(said)
    deleted, replaced = edits["delete"], edits["replace"]
    return ErrorCounts(edits["insert"], deleted, replaced, length - deleted - replaced, len(references))


def word_error_rate(hypotheses: Sequence[str], references: Sequence[str], use_cer: bool = False) -> float:
    """Errors by words (``use_cer``: characters) of the references, pooled over all utterances: 0.05 is 5 %.

    Infinite when the references have no words. See :func:`count_errors` for the arguments and errors.
    """
    return count_errors(hypotheses, references, use_cer).rate


def check_pairs(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raise UsageError where the lists differ in length."""
    if len(hypotheses) != len(references):
        got = f"{len(hypotheses)} hypotheses and {len(references)} references"
        raise UsageError("hypotheses and references must pair up", got=got)


def units_of(text: str, use_cer: bool) -> Sequence[str]:
    """What errors are counted in: words, or characters with the spaces among them."""
    return text if use_cer else text.split()


# Scores of class predictions: accuracy and confusion matrix. Texts are scored above.


def classification_accuracy(logits: Tensor, targets: Tensor, top_k: Sequence[int] | None = None) -> list[float]:
    """The share of items whose target is among the k highest logits, for each k of ``top_k`` (default: 1).

    Args:
        logits: (B, C) scores of C classes.
        targets: (B,) class ids.

    Raises:
        UsageError: a k is not in 1..C.
    """
    ks = [1] if top_k is None else list(top_k)
    num_classes = logits.shape[-1]
    if any(not 1 <= k <= num_classes for k in ks):
        raise UsageError("top_k is out of range", got=str(ks), wanted=f"numbers from 1 to {num_classes}, the classes")
    best = logits.topk(max(ks), dim=-1).indices
    hits = best == targets.reshape(-1, 1)
    return [float(hits[:, :k].any(dim=1).double().mean()) for k in ks]


def classification_confusion_matrix(logits: Tensor, targets: Tensor) -> Tensor:
    """How often each class (row) was taken for each class (column).

    Args:
        logits: (B, C) scores of C classes.
        targets: (B,) class ids.

    Returns:
        (C, C) counts, int64.
    """
    num_classes = logits.shape[-1]
    pairs = targets.reshape(-1).long() * num_classes + logits.argmax(dim=-1)
    return torch.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


# Scores of speaker verification: are two recordings of one speaker? Their embeddings decide.


class EqualErrorRate(NamedTuple):
    """Where as many pairs of one speaker are refused as pairs of two speakers are accepted.

    Attributes:
        rate: the share of both.
        threshold: the score from which a pair is accepted there.
    """

    rate: float
    threshold: float


def equal_error_rate(scores: Tensor, is_same: Tensor) -> EqualErrorRate:
    """The equal error rate of pairs; between two thresholds the rates are interpolated.

    Args:
        scores: (N,) of the pairs; higher: rather of one speaker.
        is_same: (N,) true for pairs of one speaker.

    Raises:
        UsageError: no pair of one speaker, or none of two; or a score is not finite.
    """
    scores, same = scores.flatten().double(), is_same.flatten().bool()
    num_same, num_other = int(same.sum()), int((~same).sum())
    if not num_same or not num_other:
        got = f"{num_same} of one speaker, {num_other} of two"
        raise UsageError("an equal error rate needs pairs of both kinds", got=got, remedy="take more recordings")
    if not bool(scores.isfinite().all()):
        raise UsageError("scores must be finite", got=f"{int((~scores.isfinite()).sum())} that are not")
    order = scores.argsort(descending=True)
    scores, same = scores[order], same[order]
    last_of_equals = torch.cat([scores[1:] != scores[:-1], torch.tensor([True])])
    start = torch.zeros(1, dtype=torch.double)
    # Accepted are the pairs up to each threshold: first none, then those with the highest score, and so on.
    accepted = torch.cat([start, (~same).cumsum(0).double()[last_of_equals] / num_other])
    refused = torch.cat([start + 1, 1 - same.cumsum(0).double()[last_of_equals] / num_same])
    thresholds = torch.cat([scores[:1], scores[last_of_equals]])
    behind = int((accepted >= refused).nonzero()[0])  # the first threshold past the crossing; the very first never is
    before = behind - 1
    gap_before, gap_behind = (float(refused[place] - accepted[place]) for place in (before, behind))
    share = gap_before / (gap_before - gap_behind)
    rate = float(torch.lerp(accepted[before], accepted[behind], share))
    return EqualErrorRate(rate, float(torch.lerp(thresholds[before], thresholds[behind], share)))


def all_pairs(embeddings: Tensor, speakers: Tensor) -> tuple[Tensor, Tensor]:
    """Each pair of different recordings: the cosine of the angle between their embeddings, and whether of one speaker.

    Args:
        embeddings: (N, E).
        speakers: (N,) numbers.

    Returns:
        scores and truth, (N * (N - 1) / 2,) each.
    """
    directions = F.normalize(embeddings.double(), dim=1)
    first, second = torch.triu_indices(len(speakers), len(speakers), offset=1)
    return (directions @ directions.T)[first, second], speakers[first] == speakers[second]


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


# How sure an error rate is: intervals by resampling clusters of utterances, a paired test of two models. No files.
# A resample draws as many utterances as there are, with replacement, and its rate is pooled over them: M. Bisani and
# H. Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation", ICASSP 2004. Utterances of one
# speaker fail together, so where speakers are known whole speakers are drawn: Z. Liu and F. Peng, "Statistical
# testing on ASR performance via blockwise bootstrap", Interspeech 2020. With few clusters percentiles are too narrow,
# and are taken further out ("expanded percentiles"): T. Hesterberg, "What teachers should know about the bootstrap",
# The American Statistician 69, 2015.


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
        return f"{self.number} {self.unit if self.number != 1 else self.unit.removesuffix('s')}"


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
    def difference(self) -> float:
        """Rate of B less that of A: below 0, B is better."""
        return self.rate_b - self.rate_a


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


# Where a hypothesis differs from its reference, piece by piece, to be shown. Counts are above.


Kind: TypeAlias = Literal["equal", "replace", "delete", "insert"]


@dataclass(frozen=True)
class Piece:
    """Neighbouring words (or characters) of one kind.

    Attributes:
        kind: ``delete``: only said; ``insert``: only heard; ``replace``: as many words said as heard, all different.
        said: the part of the reference.
        heard: the part of the hypothesis.
    """

    kind: Kind
    said: str
    heard: str


def differences(reference: str, hypothesis: str, use_cer: bool = False) -> list[Piece]:
    """The pieces of an alignment with the fewest edits, in order: the edits that the error counts count.

    Args:
        reference: what was said.
        hypothesis: what was recognised.
        use_cer: align characters instead of words.
    """
    said, heard = units_of(reference, use_cer), units_of(hypothesis, use_cer)
    join = ("" if use_cer else " ").join
    return [
        Piece(
            cast(Kind, code.tag),
            join(said[code.src_start : code.src_end]),
            join(heard[code.dest_start : code.dest_end]),
        )
        for code in Levenshtein.opcodes(said, heard)
    ]


# Where the errors of a set are: error rates by speaker and by length, and words that are lost, inserted or confused.


Unit = TypeVar("Unit", str, tuple[str, str])

UNKNOWN = "(unknown)"
SECONDS = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0)
"""Where one group of durations ends and the next begins."""
WORDS = (2.0, 3.0, 6.0, 11.0, 21.0, 41.0)
"""The same for lengths in words (or characters)."""
_RESAMPLES = 1000  # of one group: its interval is wide, and there may be hundreds of them


@dataclass(frozen=True)
class GroupRate:
    """The error rate of some utterances of a set.

    Attributes:
        name: the speaker, or a range of lengths.
        num_utterances: how many.
        num_units: words (or characters) of their references.
        num_errors: insertions, deletions and substitutions.
        rate: errors by units, a fraction; infinite where the references are empty.
        interval: 95 % interval of the rate. That of a speaker is about other utterances of this speaker.
    """

    name: str
    num_utterances: int
    num_units: int
    num_errors: int
    rate: float
    interval: Interval


@dataclass(frozen=True)
class WordErrors:
    """How often words (or characters) were recognised wrongly, by an alignment with the fewest edits.

    Attributes:
        said: how often each was said.
        lost: how often each was said and nothing recognised for it.
        inserted: how often each was recognised where nothing was said.
        confused: how often the first of a pair was said and the second recognised.
    """

    said: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    inserted: Counter[str] = field(default_factory=Counter)
    confused: Counter[tuple[str, str]] = field(default_factory=Counter)


def most_frequent(counts: Mapping[Unit, int], number: int | None = None) -> list[tuple[Unit, int]]:
    """Words, or pairs of them, with their counts, the highest first; of equal ones in the order of the alphabet."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:number]


def rates_by_speaker(counts: UtteranceErrors, speakers: Sequence[str | None]) -> list[GroupRate]:
    """The rate of each speaker, the one with the most errors first; nothing where no speaker is known.

    Args:
        counts: (N,) what each utterance adds.
        speakers: (N,) of each utterance; None where it is not known.

    Raises:
        UsageError: they differ in length.
    """
    _check(counts, speakers)
    if not any(speaker is not None for speaker in speakers):
        return []
    names = [UNKNOWN if speaker is None else speaker for speaker in speakers]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    ids = np.array([numbers[name] for name in names])
    # Of one speaker: its utterances are what could have been others.
    alone = UtteranceErrors(counts.errors, counts.lengths)
    groups = [_rate(name, alone, ids == number) for name, number in numbers.items()]
    return sorted(groups, key=lambda group: (-group.num_errors, group.name))


def rates_by_length(
    counts: UtteranceErrors, lengths: npt.NDArray[np.float64], edges: Sequence[float], unit: str
) -> list[GroupRate]:
    """The rate of utterances of similar length, the short ones first; groups without utterances are left out.

    Args:
        counts: (N,) what each utterance adds.
        lengths: (N,) of the utterances, in any unit.
        edges: where a group begins, ascending; one more is below the first.
        unit: for the names: ``s`` gives "2 to 5 s", any other "2 to 4 words".

    Raises:
        UsageError: they differ in length.
    """
    _check(counts, lengths)
    groups = np.searchsorted(np.array(edges), lengths, side="right")
    names = _names_of(edges, unit)
    return [_rate(names[number], counts, groups == number) for number in np.unique(groups).tolist()]


def word_errors(hypotheses: Sequence[str], references: Sequence[str], use_cer: bool = False) -> WordErrors:
    """Count which words (``use_cer``: characters) were lost, inserted and confused.

    Args:
        hypotheses: what was recognised.
        references: what was said, in the same order.
        use_cer: take characters instead of words.

    Raises:
        UsageError: the lists differ in length.
    """
    check_pairs(hypotheses, references)
    errors = WordErrors()
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        said, heard = units_of(reference, use_cer), units_of(hypothesis, use_cer)
        errors.said.update(said)
        for edit in Levenshtein.editops(said, heard):
            if edit.tag == "delete":
                errors.lost[said[edit.src_pos]] += 1
            elif edit.tag == "insert":
                errors.inserted[heard[edit.dest_pos]] += 1
            else:
                errors.confused[said[edit.src_pos], heard[edit.dest_pos]] += 1
    return errors


def _check(counts: UtteranceErrors, values: Sequence[object] | npt.NDArray[np.float64]) -> None:
    if len(counts.errors) != len(values):
        raise UsageError("errors and utterances must pair up", got=f"{len(counts.errors)} and {len(values)}")


def _rate(name: str, counts: UtteranceErrors, rows: npt.NDArray[np.bool_]) -> GroupRate:
    group = counts.only(rows)
    return GroupRate(
        name=name,
        num_utterances=len(group.errors),
        num_units=int(group.lengths.sum()),
        num_errors=int(group.errors.sum()),
        rate=group.rate,
        interval=bootstrap_interval(group, resamples=_RESAMPLES),
    )


def _names_of(edges: Sequence[float], unit: str) -> list[str]:
    """``below 1 s``, ``1 to 2 s``, ..., ``from 30 s``; of whole units ``1``, ``2``, ``3 to 5``, ..., ``from 41``."""
    if unit == "s":
        inner = [f"{low:g} to {high:g} s" for low, high in pairwise(edges)]
        return [f"below {edges[0]:g} s", *inner, f"from {edges[-1]:g} s"]
    pairs = [(0.0 if number == 0 else edges[number - 1], edge - 1) for number, edge in enumerate(edges)]
    ranges = [f"{low:g} to {high:g}" if low < high else f"{high:g}" for low, high in pairs]
    return [f"{span} {unit}" for span in [*ranges, f"from {edges[-1]:g}"]]
