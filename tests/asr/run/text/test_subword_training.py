"""Training a vocabulary of subwords: the same texts give the same one; sizes that they cannot give."""

from __future__ import annotations

import pytest
from toys.subwords import TEXTS, small_subwords

from nemo_asr.run.text.subword_training import train_subwords
from nemo_lite.base.errors import DataError, UnknownNameError, UsageError

SHARP_S = "stra\u00dfe 1"


def test_the_same_texts_give_the_same_vocabulary():
    again = train_subwords(list(TEXTS) * 50, len(small_subwords()), symbols=["<noise>"])
    assert again.sha256 == small_subwords().sha256


def test_every_character_has_a_piece_and_none_is_rewritten():
    subwords = train_subwords([SHARP_S, "\u2460 \ufb01x"] * 9, 13)
    ids, lost = subwords.ids_of(f"{SHARP_S} \u2460 \ufb01x")
    assert lost == []
    assert "".join(subwords[i] for i in ids).replace("\u2581", " ").strip() == f"{SHARP_S} \u2460 \ufb01x"


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
@pytest.mark.parametrize(
    ("size", "message"),
    [
        (500, "vocab_size: the texts cannot give a vocabulary of this size: got 500 pieces, wanted at most "),
        (5, "vocab_size: the texts cannot give a vocabulary of this size: got 5 pieces, wanted at least 18, one for"),
        (0, "vocab_size"),
    ],
)
def test_a_size_that_the_texts_cannot_give_is_one_line_with_the_possible_one(algorithm, size, message):
    with pytest.raises(UsageError) as caught:
        train_subwords(TEXTS * 50, size, algorithm=algorithm)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_texts_that_cannot_be_used_are_told():
    with pytest.raises(DataError, match="there are no texts"):
        train_subwords(["", " \u2581 "], 10)
    with pytest.raises(DataError, match="a text is too long: got 1048577 bytes"):
        train_subwords(["a" * (2**20 + 1)], 10)
    with pytest.raises(UnknownNameError, match=r"did you mean unigram\?"):
        train_subwords(TEXTS, 20, algorithm="unigramm")
