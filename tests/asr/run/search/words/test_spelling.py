"""What labels add to a text: characters, and beginnings of words."""

from __future__ import annotations

import pytest

from nemo_asr.run.search.words import Spelling
from nemo_asr.run.text.labels import WORD_MARK
from nemo_lite.base.errors import UsageError

PIECES = [WORD_MARK, "a", "b", "ab", f"{WORD_MARK}ba"]


def unspellable(spelling, words):
    return [word for word in words if not spelling.can_spell(word)]


def test_a_word_is_spelled_by_letters_by_pieces_or_by_a_label_of_its_own():
    assert unspellable(Spelling(["a", "b", " "]), ["ab", "", "abc", "c"]) == ["", "abc", "c"]
    assert unspellable(Spelling(PIECES), ["baab", "abab", "c", "bac"]) == ["c", "bac"]
    assert unspellable(Spelling(PIECES[1:]), ["ba", "bab", "ab", "b"]) == ["ab", "b"]  # no piece begins these
    assert unspellable(Spelling(["天", "气"]), ["天", "天气", "天地", ""]) == ["天地", ""]


def test_words_begin_with_a_space_with_marked_pieces_or_with_each_label():
    assert Spelling(["a", " "]).begins.tolist() == [False, True]
    assert Spelling(PIECES).begins.tolist() == [True, False, False, False, True]
    assert Spelling(["天", "气"]).begins.tolist() == [True, True]
    assert [Spelling(labels).has_words for labels in (["a", " "], PIECES, ["天"])] == [True, True, False]


def test_a_label_of_two_words_is_refused():
    with pytest.raises(UsageError, match="cannot use these labels: got 'of the', wanted labels that write at most one"):
        Spelling(["a", "of the"])
