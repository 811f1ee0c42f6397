"""Error counts and rates, and where a text differs from its reference."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_asr.scoring.rates import AlignedWords, ErrorCounts, count_errors, differences, word_error_rate
from nemo_lite.base.errors import UsageError

SENTENCES = st.lists(st.sampled_from(["a", "b", "cat", "dog"]), max_size=7).map(" ".join)


def edit_distance(a, b):
    """The textbook recurrence, as the reference."""
    previous = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        current = [i]
        for j, y in enumerate(b, 1):
            current.append(min(previous[j] + 1, current[-1] + 1, previous[j - 1] + (x != y)))
        previous = current
    return previous[-1]


def test_words_are_pooled_over_the_corpus_not_averaged_over_utterances():
    assert word_error_rate(["a", "x y z w"], ["b", "x y z w"]) == 1 / 5


def test_character_error_rate_counts_spaces():
    assert word_error_rate(["ab"], ["a b"], use_cer=True) == 1 / 3


def test_insertions_deletions_and_substitutions_are_told_apart():
    assert count_errors(["the cat sat"], ["cat sat down"]) == ErrorCounts(1, 1, 0, 2, 1)
    assert count_errors(["the cat"], ["a cat"]) == ErrorCounts(0, 0, 1, 1, 1)
    assert count_errors([""], ["one two"]) == ErrorCounts(0, 2, 0, 0, 1)
    assert count_errors(["one two"], [""]) == ErrorCounts(2, 0, 0, 0, 1)


def test_a_reference_without_words_gives_an_infinite_rate():
    assert math.isinf(word_error_rate(["a"], [""]))
    assert math.isinf(word_error_rate([], []))


def test_lists_of_different_length_are_refused_with_both_lengths():
    with pytest.raises(UsageError, match="must pair up: got 1 hypotheses and 2 references"):
        word_error_rate(["a"], ["a", "b"])


@pytest.mark.slow
@given(st.lists(st.tuples(SENTENCES, SENTENCES), max_size=5), st.booleans())
def test_counts_agree_with_the_textbook_distance_and_add_up(pairs, use_cer):
    hypotheses, references = [h for h, _ in pairs], [r for _, r in pairs]
    units = list if use_cer else str.split
    counts = count_errors(hypotheses, references, use_cer)
    assert counts.errors == sum(edit_distance(units(r), units(h)) for h, r in pairs)
    assert counts.reference_length == sum(len(units(r)) for r in references)
    parts = [count_errors([h], [r], use_cer) for h, r in pairs]
    assert sum(parts, ErrorCounts()) == counts


def test_counts_travel_as_plain_numbers():
    counts = count_errors(["the cat sat"], ["cat sat down"])
    assert counts.as_dict() == {"insertions": 1, "deletions": 1, "substitutions": 0, "correct": 2, "utterances": 1}
    assert ErrorCounts(**counts.as_dict()) == counts


def test_pieces_say_what_was_said_and_what_was_heard():
    assert differences("the cat sat on a mat", "a cat sat a mat today") == [
        AlignedWords("replace", "the", "a"),
        AlignedWords("equal", "cat sat", "cat sat"),
        AlignedWords("delete", "on", ""),
        AlignedWords("equal", "a mat", "a mat"),
        AlignedWords("insert", "", "today"),
    ]


def test_characters_are_joined_without_spaces():
    assert differences("今天三点", "今天四点吗", use_cer=True) == [
        AlignedWords("equal", "今天", "今天"),
        AlignedWords("replace", "三", "四"),
        AlignedWords("equal", "点", "点"),
        AlignedWords("insert", "", "吗"),
    ]


@given(SENTENCES, SENTENCES)
def test_pieces_hold_both_texts_and_as_many_edits_as_are_counted(said, heard):
    pieces = differences(said, heard)
    assert " ".join(piece.said for piece in pieces if piece.said) == said
    assert " ".join(piece.heard for piece in pieces if piece.heard) == heard
    sizes: Counter[str] = Counter()
    for piece in pieces:
        sizes[piece.kind] += len((piece.said or piece.heard).split())
    counts = count_errors([heard], [said])
    assert (sizes["insert"], sizes["delete"]) == (counts.insertions, counts.deletions)
    assert (sizes["replace"], sizes["equal"]) == (counts.substitutions, counts.correct)
    assert all(len(p.said.split()) == len(p.heard.split()) for p in pieces if p.kind == "replace")
