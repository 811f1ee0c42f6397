"""Files of SentencePiece: what of them is read, and that nothing else reaches the library."""

from __future__ import annotations

import os
import random

import pytest
import sentencepiece
from toys.subwords import small_subwords

from nemo_asr.run.text.sentencepiece_file import MAX_BYTES, ModelFile, Piece, PieceKind, decode, encode, read_bytes
from nemo_lite.base.errors import DataError

MARK = "\u2581"
SMALL = ModelFile(1, (Piece("<unk>", 0.0, PieceKind.UNKNOWN), Piece(f"{MARK}a", -1.5, PieceKind.NORMAL)))


def with_pieces(*pieces: Piece) -> bytes:
    return encode(ModelFile(1, (SMALL.pieces[0], *pieces)))


@pytest.mark.parametrize("algorithm", [1, 2])
def test_what_is_written_is_what_is_read(algorithm):
    model = ModelFile(algorithm, SMALL.pieces)
    assert decode(encode(model), "a.model") == model


def test_a_file_of_the_library_is_read_as_the_library_reads_it():
    content = small_subwords().model
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    mine = decode(content, "a.model")
    assert [(piece.text, piece.score) for piece in mine.pieces] == [
        (theirs.id_to_piece(i), theirs.get_score(i)) for i in range(theirs.vocab_size())
    ]


def test_a_table_that_replaces_characters_is_left_out():
    table = b"\x12\x06hacked"  # normalizer_spec.precompiled_charsmap
    content = encode(SMALL) + b"\x1a" + bytes([len(table)]) + table
    assert encode(decode(content, "a.model")) == encode(SMALL)


def test_a_cut_or_changed_file_is_refused_in_one_line_or_safe_for_the_library():
    content = small_subwords().model
    chance = random.Random(0)
    refusals = []
    for _ in range(300):
        damaged = bytearray(content[: chance.randrange(len(content))] if chance.random() < 0.3 else content)
        for _ in range(chance.randrange(4)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            model = decode(bytes(damaged), "a.model")
        except DataError as error:
            refusals.append(str(error))
        else:
            sentencepiece.SentencePieceProcessor(model_proto=encode(model)).encode("the cat")
    assert 100 < len(refusals) < 300
    assert all(line.startswith("a.model: ") and "\n" not in line for line in refusals)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the number of pieces: got 0"),
        (b"RIFF....WAVE", "no SentencePiece model, or is damaged"),
        (encode(SMALL)[:-3], "damaged"),
        (b"\x0a\xff\xff\xff\xff\x0f", "a field ends behind the end"),
        (b"\x80" * 20, "a number does not end"),
        (encode(SMALL) + b"\x12\x02\x18\x03", "another algorithm: got number 3"),
        (encode(SMALL) + b"\x12\x03\xc0\x01\x01", "do not mark where a word begins"),
        (encode(SMALL) + b"\x1a\x02\x18\x00", "do not mark where a word begins"),
        (encode(SMALL) + b"\x0a\x07\x0a\x03<a>\x18\x06", "a piece is of another kind, such as a byte"),
        (encode(SMALL) + b"\x0a\x03\x0a\x01\xff", "damaged"),
        (
            with_pieces(Piece("b", 0.0, PieceKind.NORMAL), Piece("b", 0.0, PieceKind.NORMAL)),
            "piece 2 repeats another one",
        ),
        (with_pieces(Piece("b" * 200, 0.0, PieceKind.NORMAL)), "piece 1 is empty or too long"),
        (with_pieces(Piece("", 0.0, PieceKind.NORMAL)), "piece 1 is empty or too long"),
        (with_pieces(Piece("b", float("nan"), PieceKind.NORMAL)), "piece 1 has the score nan"),
        (with_pieces(Piece(f"a{MARK}b", 0.0, PieceKind.NORMAL)), "piece 1 spans several words"),
        (with_pieces(Piece("a b", 0.0, PieceKind.NORMAL)), "piece 1 has white space"),
        (with_pieces(Piece("b", 0.0, PieceKind.UNKNOWN)), "got 2 of them, wanted one"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_with_what_is_wrong(content, message):
    with pytest.raises(DataError) as caught:
        decode(content, "a.model")
    assert message in str(caught.value)
    assert str(caught.value).startswith("a.model: ")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_number_of_pieces_beyond_any_vocabulary_is_refused():
    many = encode(SMALL) + b"".join(b"\x0a\x07\x0a\x05" + b"%05d" % i for i in range(70_000))
    with pytest.raises(DataError, match="the number of pieces: got 70002, wanted 2 to 65536"):
        decode(many, "a.model")


def test_only_a_regular_file_of_bounded_size_is_read(tmp_path):
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    with large.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    for path, message in [(pipe, "a pipe"), (tmp_path, "a folder"), (tmp_path / "none", "No such file")]:
        with pytest.raises(DataError, match=message):
            read_bytes(path)
    with pytest.raises(DataError, match="the tokenizer is too large: got 8388609 bytes, wanted at most 8388608 bytes"):
        read_bytes(large)
