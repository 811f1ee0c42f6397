"""Words as paths of characters, and the files that list them."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_asr.run.search.words import LEFT, NO_WORD, NOTHING, ROOT, Lexicon, Spelling, check_spellable, read_words
from nemo_lite.base.errors import DataError, UsageError

SPELLING = Spelling(["a", "b", "c", " "])


@pytest.mark.parametrize("most_dense", [1 << 25, 0], ids=["a table", "sorted keys"])
def test_each_word_ends_at_a_node_of_its_own_and_other_characters_leave_the_tree(most_dense, monkeypatch):
    monkeypatch.setattr("nemo_asr.run.search.words._MOST_DENSE", most_dense)
    tree = Lexicon(["ab", "abc", "b", "ab", "x"], SPELLING)
    assert tree.words == ["ab", "abc", "b"]
    ends = [tree.nodes_of(word, SPELLING)[-1] for word in tree.words]
    assert len({*ends, ROOT, LEFT}) == 5
    assert tree.word_at[ends].tolist() == [0, 1, 2]
    assert (np.delete(tree.word_at, ends) == NO_WORD).all()
    for gone in ("c", "ba", "abb", "abca", "ca"):
        assert tree.nodes_of(gone, SPELLING)[-1] == LEFT
    every = np.arange(len(tree.word_at))
    assert (tree.step(every, np.array(NOTHING)) == every).all()
    assert (tree.depth[ends].tolist(), tree.longest) == ([2, 3, 1], 3)


def test_words_in_a_row_hold_phrases_that_stand_across_them():
    tree = Lexicon(["ab", "abc", "b"], Spelling(["a", "b", "c"]))
    phrases = ["ab", "bc", "babc", "ca", "c", "aa", "cc", "ac", "bbbab"]
    assert [phrase for phrase in phrases if tree.can_hold([phrase], Spelling(["a", "b", "c"]))[0]] == [
        *("ab", "bc", "babc", "ca", "c", "bbbab")
    ]


def test_the_first_word_of_each_line_counts_and_remarks_do_not(tmp_path):
    (tmp_path / "words.txt").write_text("# digits\nzero Z IH R OW\none\n\none\n", encoding="utf-8")
    assert read_words(tmp_path / "words.txt") == ["zero", "one"]


@pytest.mark.parametrize(("content", "message"), [(b"\n# none\n", "has no words"), (b"\xff\xfe", "is not UTF-8")])
def test_a_file_without_words_is_refused_by_its_name(content, message, tmp_path):
    (tmp_path / "words.txt").write_bytes(content)
    with pytest.raises(DataError, match=rf"words\.txt:.*{message}"):
        read_words(tmp_path / "words.txt")
    with pytest.raises(DataError, match=r"none\.txt: the list of words cannot be opened"):
        read_words(tmp_path / "none.txt")
    (tmp_path / "long.txt").write_text(f"one\n{'a' * 1001}\n")
    with pytest.raises(DataError, match=r"a word that is too long: got 'aaa.*of 1001 char.*, wanted .* at most 1000"):
        read_words(tmp_path / "long.txt")


def test_words_that_the_labels_cannot_spell_are_named_with_their_file():
    message = r"words\.txt: the model's labels cannot spell words .*: got 'x', 'Ab' \(no label has A x\); write"
    with pytest.raises(UsageError, match=message):
        check_spellable(["ab", "x", "Ab"], SPELLING, "words.txt")
    with pytest.raises(UsageError, match=r"'x4' and 2 more \(no label has 0 1 2 3 4 5 6 x\); write"):
        check_spellable([f"x{number}" for number in range(7)], SPELLING, "words.txt")
