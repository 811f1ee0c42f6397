"""Error rates by speaker and by length; words that are lost, inserted and confused."""

import math

import numpy as np
import pytest

from nemo_asr.scoring.breakdown import (
    SECONDS,
    UNKNOWN,
    WORDS,
    most_frequent,
    rates_by_length,
    rates_by_speaker,
    word_errors,
)
from nemo_asr.scoring.intervals import UtteranceErrors, bootstrap_interval, clusters_of, utterance_errors
from nemo_asr.scoring.rates import count_errors
from nemo_lite.base.errors import UsageError

SAID = ["one two", "one two three", "four", "five six"]
HEARD = ["one", "one two tree", "four four", "five six"]
COUNTS = utterance_errors(HEARD, SAID)


def test_speakers_come_with_the_most_errors_first_and_their_sums_are_those_of_the_set():
    found = rates_by_speaker(COUNTS, ["a", "b", "b", None])
    assert [(group.name, group.num_utterances, group.num_units, group.num_errors) for group in found] == [
        ("b", 2, 4, 2),
        ("a", 1, 2, 1),
        (UNKNOWN, 1, 2, 0),
    ]
    assert [group.rate for group in found] == [0.5, 0.5, 0.0]
    assert sum(group.num_errors for group in found) == count_errors(HEARD, SAID).errors


def test_the_interval_of_a_speaker_is_by_its_utterances():
    generator = np.random.default_rng(0)
    lengths = np.full(60, 10)
    people = ["a"] * 30 + ["b"] * 30
    counts = UtteranceErrors(generator.binomial(10, 0.2, 60), lengths, clusters_of(people, [None] * 60))
    (a,) = [group for group in rates_by_speaker(counts, people) if group.name == "a"]
    alone = UtteranceErrors(counts.errors[:30], lengths[:30])
    assert a.interval == bootstrap_interval(alone, resamples=1000)


def test_a_set_without_speakers_has_no_rates_by_speaker():
    assert rates_by_speaker(COUNTS, [None] * 4) == []


def test_lengths_fall_into_the_group_that_begins_with_them():
    found = rates_by_length(COUNTS, np.array([0.5, 1.0, 1.99, 31.0]), SECONDS, "s")
    named = [(group.name, group.num_utterances, group.num_errors) for group in found]
    assert named == [("below 1 s", 1, 1), ("1 to 2 s", 2, 2), ("from 30 s", 1, 0)]
    found = rates_by_length(COUNTS, np.array([0.0, 1.0, 2.0, 41.0]), WORDS, "words")
    assert [group.name for group in found] == ["0 to 1 words", "2 words", "from 41 words"]
    assert "3 to 5 words" in [group.name for group in rates_by_length(COUNTS, np.full(4, 5.0), WORDS, "words")]


def test_utterances_without_words_have_an_infinite_rate_of_their_own():
    counts = utterance_errors(["x", "a"], ["", "a"])
    empty, whole = rates_by_length(counts, counts.lengths.astype(float), WORDS[:1], "words")[0], counts
    assert (empty.num_errors, empty.num_units, empty.rate) == (1, 1, 1.0)
    (alone,) = rates_by_length(whole.only(np.array([True, False])), np.array([0.0]), WORDS, "words")
    assert math.isinf(alone.rate)


def test_words_are_lost_inserted_and_confused():
    found = word_errors(HEARD, SAID)
    assert (found.lost, found.inserted, found.confused) == ({"two": 1}, {"four": 1}, {("three", "tree"): 1})
    assert found.said["one"] == 2
    sizes = [sum(each.values()) for each in (found.inserted, found.lost, found.confused)]
    together = count_errors(HEARD, SAID)
    assert sizes == [together.insertions, together.deletions, together.substitutions]


def test_of_words_that_are_wrong_equally_often_the_first_of_the_alphabet_comes_first():
    found = word_errors(["", "", ""], ["b a", "c a", "b"])
    assert most_frequent(found.lost, 2) == [("a", 2), ("b", 2)]
    found = word_errors(["b a", "x"], ["", "y"])
    assert (most_frequent(found.inserted), most_frequent(found.confused)) == ([("a", 1), ("b", 1)], [(("y", "x"), 1)])


def test_characters_are_counted_where_texts_have_no_words():
    found = word_errors(["今天三点"], ["今天四点"], use_cer=True)
    assert found.confused == {("四", "三"): 1}


def test_lists_that_do_not_pair_up_are_refused():
    with pytest.raises(UsageError, match="errors and utterances must pair up: got 4 and 1"):
        rates_by_speaker(COUNTS, ["a"])
    with pytest.raises(UsageError, match="must pair up: got 1 hypotheses and 2 references"):
        word_errors(["a"], ["a", "b"])
