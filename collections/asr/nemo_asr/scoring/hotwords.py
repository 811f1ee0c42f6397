"""What hot words gain and what they cost: how often each is found, false alarms, the errors of all other words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TypeAlias

import msgspec
import numpy as np

from nemo_asr.run.calibration import right_words
from nemo_asr.run.text.forms import CLOSING_MARKS
from nemo_asr.run.text.labels import characters_of, is_without_spaces, main_metric
from nemo_asr.scoring.intervals import Clusters, UtteranceErrors, bootstrap_interval
from nemo_asr.scoring.rates import count_errors

Split: TypeAlias = Callable[[str], list[str]]
"""Cuts a text into words."""
Places: TypeAlias = "list[tuple[str, range]]"
"""Hot words with the positions of their words in a text."""

_MOST_ABSENT = 10  # hot words that nobody says, of a printed line


class PhraseCounts(msgspec.Struct, frozen=True):
    """One hot word or phrase, without and with hot words.

    Attributes:
        phrase: the word or phrase.
        said: how often it is in the references.
        found_without, found_with: how often all of its words are right where it is said.
        false_without, false_with: how often it is recognised where it is not said.
    """

    phrase: str
    said: int
    found_without: int
    found_with: int
    false_without: int
    false_with: int

    def __str__(self) -> str:
        alarms = f"false alarms {self.false_without} without, {self.false_with} with"
        if not self.said:
            return f"hot word {self.phrase}: nobody says it; {alarms}"
        found = f"hot word {self.phrase}: {self.found_without} of {self.said} found without, {self.found_with} with"
        return f"{found}; {alarms}" if self.false_without or self.false_with else found


class OtherRate(msgspec.Struct, frozen=True):
    """The error rate of all words that are not hot, with its 95 % interval; fractions."""

    rate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.rate:.2%} ({self.low:.2%} to {self.high:.2%})"


class HotwordScores(msgspec.Struct, frozen=True):
    """The hot words of a set.

    Attributes:
        phrases: those that somebody says or that are recognised, as they were given.
        absent: all others.
        others_without, others_with: the error rate of the other words; None where there are none.
    """

    phrases: list[PhraseCounts]
    absent: list[str]
    others_without: OtherRate | None = None
    others_with: OtherRate | None = None

    @property
    def all_phrases(self) -> list[str]:
        """Every hot word, also those that nobody says."""
        return [*(counts.phrase for counts in self.phrases), *self.absent]

    @property
    def total(self) -> PhraseCounts:
        """The sums over all hot words, with no name."""
        columns = ("said", "found_without", "found_with", "false_without", "false_with")
        return PhraseCounts("", *(sum(getattr(each, name) for each in self.phrases) for name in columns))

    def lines(self) -> list[str]:
        """What is printed."""
        lines = list(map(str, self.phrases))
        if self.absent:
            more = ", ..." if len(self.absent) > _MOST_ABSENT else ""
            lines.append(f"hot words that nobody says here: {', '.join(self.absent[:_MOST_ABSENT])}{more}")
        if self.others_without and self.others_with:
            rates = f"{self.others_without} without, {self.others_with} with hot words"
            lines.append(f"error rate of the other words: {rates}")
        return lines


def words_of(labels: Sequence[str]) -> Split:
    """How texts of these labels are cut into words that are counted.

    Each character of a script without spaces, such as Han and Kana, is a word, and so is what stands between them or
    between spaces. Where no label is of such a script or writes a space, each character is a word. A mark behind a word
    is left out: ``Berlin?`` is the word ``Berlin``.
    """
    if main_metric(labels) == "wer":
        return lambda text: list(map(_bare, text.split()))
    return _mixed_words if any(map(is_without_spaces, characters_of(labels))) else list


def _bare(word: str) -> str:
    return word.rstrip(CLOSING_MARKS) or word


def _mixed_words(text: str) -> list[str]:
    runs = (run for word in text.split() for run in groupby(word, is_without_spaces))
    return [part for is_loose, run in runs for part in (run if is_loose else ["".join(run)])]


def score_hotwords(
    hot: Sequence[str],
    said: Sequence[str],
    without: Sequence[str],
    heard: Sequence[str],
    split: Split = str.split,
    clusters: Clusters | None = None,
) -> HotwordScores:
    """How often each hot word was found without and with hot words, and the error rate of all other words.

    Args:
        hot: the words and phrases.
        said: references.
        without, heard: hypotheses without and with hot words.
        split: cuts a text into words: see `words_of`.
        clusters: which utterances belong together, for the interval.
    """
    spoken = list(map(split, said))
    places_in = phrase_finder(hot, split)
    places = list(map(places_in, spoken))
    covered = [{unit for _, units in row for unit in units} for row in places]
    counts = Counter(phrase for row in places for phrase, _ in row)
    lengths = np.array([len(row) - len(hidden) for row, hidden in zip(spoken, covered, strict=True)], np.int64)
    found, alarms, rates = list[Counter[str]](), list[Counter[str]](), list[OtherRate]()
    for hypotheses in (without, heard):
        hits, wrong, errors = Counter[str](), Counter[str](), list[int]()
        for row, of_row, hidden, words in zip(spoken, places, covered, map(split, hypotheses), strict=True):
            right = right_words(words, row)
            hits_here = Counter(phrase for phrase, units in of_row if all(right[unit] for unit in units))
            hits += hits_here
            wrong += Counter(phrase for phrase, _ in places_in(words)) - hits_here
            missed = sum(not right[unit] for unit in hidden)
            # Words that nobody said count, hot ones too: that is what hot words cost.
            errors.append(count_errors([" ".join(words)], [" ".join(row)]).errors - missed)
        found.append(hits)
        alarms.append(wrong)
        rate = UtteranceErrors(np.array(errors, np.int64), lengths, clusters)
        if lengths.sum():
            interval = bootstrap_interval(rate)
            rates.append(OtherRate(rate.rate, interval.low, interval.high))
    is_there = {phrase: bool(counts[phrase] or alarms[0][phrase] or alarms[1][phrase]) for phrase in hot}
    return HotwordScores(
        [
            PhraseCounts(phrase, counts[phrase], *(each[phrase] for each in (*found, *alarms)))
            for phrase, there in is_there.items()
            if there
        ],
        [phrase for phrase, there in is_there.items() if not there],
        *rates,
    )


def phrase_finder(phrases: Iterable[str], split: Split = str.split) -> Callable[[Sequence[str]], Places]:
    """A function that finds the phrases among the words of a text, cut by ``split``; marks behind them do not count."""
    by_first = defaultdict[str, list[tuple[str, list[str]]]](list)
    for phrase in phrases:
        if words := list(map(_bare, split(phrase))):
            by_first[words[0]].append((phrase, words))

    def places_in(row: Sequence[str]) -> Places:
        row = list(map(_bare, row))
        return [
            (phrase, range(start, start + len(words)))
            for start, word in enumerate(row)
            for phrase, words in by_first.get(word, ())
            if row[start : start + len(words)] == words
        ]

    return places_in
