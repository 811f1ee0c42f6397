"""Pieces of an alignment."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from nemo_asr.scoring.rates import Piece, count_errors, differences

SENTENCES = st.lists(st.sampled_from(["a", "b", "cat", "dog"]), max_size=7).map(" ".join)


def test_pieces_say_what_was_said_and_what_was_heard():
    assert differences("the cat sat on a mat", "a cat sat a mat today") == [
        Piece("replace", "the", "a"),
        Piece("equal", "cat sat", "cat sat"),
        Piece("delete", "on", ""),
        Piece("equal", "a mat", "a mat"),
        Piece("insert", "", "today"),
    ]


def test_characters_are_joined_without_spaces():
    assert differences("今天三点", "今天四点吗", use_cer=True) == [
        Piece("equal", "今天", "今天"),
        Piece("replace", "三", "四"),
        Piece("equal", "点", "点"),
        Piece("insert", "", "吗"),
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
