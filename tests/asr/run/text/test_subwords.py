"""Subwords: labels that know how a text is cut into them."""

from __future__ import annotations

import copy
import pickle
import sys

import pytest
import sentencepiece
from toys.subwords import NUM_PIECES, TEXTS, small_subwords

from nemo_asr.run.text.labels import spelled
from nemo_asr.run.text.subwords import Subwords, load_subwords
from nemo_lite.base.errors import DataError, UsageError


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_texts_come_back_from_their_pieces(algorithm):
    subwords = small_subwords(algorithm)
    assert len(subwords) == NUM_PIECES
    for text in [*TEXTS, "the <noise> cat"]:
        ids, lost = subwords.ids_of(text)
        assert spelled("".join(subwords[i] for i in ids)).strip().replace("  ", " ") == text
        assert lost == []


def test_what_no_piece_writes_is_left_out_and_told():
    ids, lost = small_subwords().ids_of("the \u20ac caty")
    assert lost == ["\u20ac", "y"]
    assert "".join(small_subwords()[i] for i in ids) == "\u2581the\u2581\u2581cat"


def test_it_says_which_characters_and_words_texts_may_hold():
    written = small_subwords().written
    assert {*"".join(TEXTS)} == {*written} - {"<noise>"}
    assert "<noise>" in written
    assert "\u2581" not in written


def test_copies_and_other_processes_have_the_same_pieces_and_cuts():
    subwords = small_subwords()
    for other in (pickle.loads(pickle.dumps(subwords)), copy.deepcopy(subwords), Subwords(subwords.model)):
        assert (other, other.sha256, other.written) == (subwords, subwords.sha256, subwords.written)
        assert other.ids_of(TEXTS[0]) == subwords.ids_of(TEXTS[0])


def test_a_file_of_the_library_is_a_vocabulary_and_ours_is_one_for_the_library(tmp_path):
    path = tmp_path / "a.model"
    path.write_bytes(small_subwords().model)
    assert load_subwords(path) == small_subwords()
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert theirs.encode(TEXTS[2]) == small_subwords().ids_of(TEXTS[2])[0]
    assert theirs.bos_id() == theirs.eos_id() == theirs.pad_id() == -1


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "a.model"
    path.write_bytes(small_subwords().model[:40])
    with pytest.raises(DataError, match=rf"^{path}: the file is no SentencePiece model, or is damaged"):
        load_subwords(path)


def test_without_the_package_the_error_has_the_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UsageError, match=r"sentencepiece is not installed; pip install sentencepiece$"):
        Subwords(small_subwords().model).ids_of("a")
