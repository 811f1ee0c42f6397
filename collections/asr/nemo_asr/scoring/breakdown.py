"""Where the errors of a set are: rates by speaker and by length, and words that are lost, inserted or confused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein

from nemo_asr.scoring.intervals import Interval, UtteranceErrors, bootstrap_interval
from nemo_asr.scoring.rates import check_pairs, units_of
from nemo_lite.base.errors import UsageError

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
    if unit == "s":  # below 1 s, 1 to 2 s, ..., from 30 s
        inner = [f"{low:g} to {high:g} s" for low, high in pairwise(edges)]
        names = [f"below {edges[0]:g} s", *inner, f"from {edges[-1]:g} s"]
    else:  # of whole units 1, 2, 3 to 5, ..., from 41
        pairs = [(0.0 if number == 0 else edges[number - 1], edge - 1) for number, edge in enumerate(edges)]
        ranges = [f"{low:g} to {high:g}" if low < high else f"{high:g}" for low, high in pairs]
        names = [f"{span} {unit}" for span in [*ranges, f"from {edges[-1]:g}"]]
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
