"""The content of a SentencePiece model file, checked before the library's C++ code reads it.

A model file is a protocol buffer, ``sentencepiece_model.proto``. Only what segmentation needs is taken from it: the
pieces with their scores and kinds, and which algorithm they are for. It is written anew from these. What else a file
may hold, such as a compiled table that replaces characters, never reaches the library, which does not check it.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple, TypeAlias

from nemo_asr.run.text.labels import WORD_MARK
from nemo_lite.base.errors import DataError
from nemo_lite.base.files import FileKind
from nemo_lite.base.files import read_bytes as untrusted_bytes

Field: TypeAlias = "tuple[int, int | bytes]"  # its number and its value

MAX_BYTES = 8 * 2**20
_FILE = FileKind("the tokenizer", MAX_BYTES, remedy="train one: nemo-lite data tokenizer")
MAX_PIECES = 65_536  # a CTC decoder has an output for each
MAX_PIECE_CHARACTERS = 128  # SentencePiece makes pieces of 16 unless it is told otherwise

# Numbers of the fields in sentencepiece_model.proto.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _KIND = 1, 2, 3
_ALGORITHM, _VOCAB_SIZE, _SUFFIX, _UNK_ID, _BOS_ID, _EOS_ID, _PAD_ID = 3, 4, 24, 40, 41, 42, 43
_NAME, _DUMMY_PREFIX, _ESCAPE = 1, 3, 5
_WIDTHS = {1: 8, 5: 4}  # bytes of the wire types of fixed width
_VARINT, _DELIMITED, _FIXED_32 = 0, 2, 5
_MAX_VARINT_BYTES = 10
_NO_ID = 2**64 - 1  # -1 as a varint


class PieceKind(IntEnum):
    """What a piece is for; the numbers are the file's."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5


class Piece(NamedTuple):
    """A piece: its text with the mark of a word's beginning, its score, its kind."""

    text: str
    score: float
    kind: PieceKind


class ModelFile(NamedTuple):
    """What counts of a model file.

    Attributes:
        algorithm: 1 for unigram, 2 for BPE.
        pieces: by id.
    """

    algorithm: int
    pieces: tuple[Piece, ...]


STORED_ALGORITHMS = {1: "unigram", 2: "bpe"}


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The content of a model file that is a regular file of a size such files have.

    Raises:
        DataError: it cannot be read, is no regular file, or is larger than :data:`MAX_BYTES`.
    """
    return untrusted_bytes(Path(path).expanduser(), _FILE)


def decode(content: bytes, place: str) -> ModelFile:
    """Read and check a model file's content.

    Args:
        content: of the file.
        place: its name, for messages.

    Raises:
        DataError: it is no SentencePiece model, is damaged, or is of a kind that is not for CTC.
    """
    try:
        fields = list(_fields(content))
        pieces = tuple(_piece(_bytes(value)) for number, value in fields if number == _PIECES)
        trainer = _settings(fields, _TRAINER)
        normalizer = _settings(fields, _NORMALIZER)
    except (ValueError, struct.error) as error:
        raise refusal("the file is no SentencePiece model, or is damaged", place, str(error)) from None
    algorithm = trainer.get(_ALGORITHM, 1)
    if algorithm not in STORED_ALGORITHMS:
        raise refusal("the model is of another algorithm", place, f"number {algorithm}", "unigram or bpe")
    if trainer.get(_SUFFIX, 0) or not normalizer.get(_DUMMY_PREFIX, 1) or not normalizer.get(_ESCAPE, 1):
        raise refusal("the pieces do not mark where a word begins", place, wanted="add_dummy_prefix, no suffixes")
    model = ModelFile(int(algorithm), pieces)
    _check(model, place)
    return model


def encode(model: ModelFile) -> bytes:
    """A model file of nothing but this."""
    unknown = next(i for i, piece in enumerate(model.pieces) if piece.kind is PieceKind.UNKNOWN)
    trainer = {_ALGORITHM: model.algorithm, _VOCAB_SIZE: len(model.pieces), _UNK_ID: unknown}
    trainer |= dict.fromkeys((_BOS_ID, _EOS_ID, _PAD_ID), _NO_ID)
    parts = []
    for piece in model.pieces:
        score = _as_varint(_SCORE << 3 | _FIXED_32) + struct.pack("<f", piece.score)
        parts.append(_delimited(_PIECES, _delimited(_TEXT, piece.text.encode()) + score + _number(_KIND, piece.kind)))
    parts.append(_delimited(_TRAINER, b"".join(_number(*pair) for pair in trainer.items())))
    parts.append(_delimited(_NORMALIZER, _delimited(_NAME, b"identity")))
    return b"".join(parts)


def _check(model: ModelFile, place: str) -> None:
    """See that the pieces are a vocabulary, and that what they spell can be written.

    Raises:
        DataError: they are not.
    """
    texts = [piece.text for piece in model.pieces]
    if not 2 <= len(texts) <= MAX_PIECES:
        raise refusal("the number of pieces", place, str(len(texts)), f"2 to {MAX_PIECES}")
    unknown = sum(piece.kind is PieceKind.UNKNOWN for piece in model.pieces)
    if unknown != 1:
        raise refusal("the piece for what cannot be written", place, f"{unknown} of them", "one")
    seen: set[str] = set()
    for i, (text, score, kind) in enumerate(model.pieces):
        problem = ""
        if not text or len(text) > MAX_PIECE_CHARACTERS:
            problem = "is empty or too long"
        elif text in seen:
            problem = "repeats another one"
        elif not math.isfinite(score):
            problem = f"has the score {score}"
        elif kind is PieceKind.NORMAL and WORD_MARK in text[1:]:
            problem = "spans several words; train with split_by_whitespace"
        elif text.split() != [text] or "\0" in text:
            problem = "has white space in it"
        if problem:
            raise refusal(f"piece {i} {problem}", place, repr(text[:MAX_PIECE_CHARACTERS]))
        seen.add(text)


def refusal(problem: str, place: str, got: str = "", wanted: str = "") -> DataError:
    return DataError(problem, place=place, got=got, wanted=wanted, remedy="train one: nemo-lite data tokenizer")


def _piece(content: bytes) -> Piece:
    text, score, kind = "", 0.0, 1
    for number, value in _fields(content):
        if number == _TEXT:
            text = _bytes(value).decode("utf-8")
        elif number == _SCORE:
            (score,) = struct.unpack("<f", _bytes(value))
        elif number == _KIND:
            if isinstance(value, bytes):
                raise ValueError("text where a number is wanted")
            kind = value
    if kind not in list(PieceKind):
        raise ValueError("a piece is of another kind, such as a byte (byte_fallback)")
    return Piece(text, score, PieceKind(kind))


def _settings(fields: list[Field], section: int) -> dict[int, int]:
    """The numbers of a section by their fields."""
    contents = [_bytes(value) for number, value in fields if number == section]
    return {number: value for content in contents for number, value in _fields(content) if isinstance(value, int)}


def _fields(content: bytes) -> Iterator[Field]:
    """The fields of a message, in order.

    Raises:
        ValueError: the content is no message.
    """
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(content, at)
            yield number, value
            continue
        if wire != _DELIMITED and wire not in _WIDTHS:
            raise ValueError(f"field of unknown type {wire} at byte {at}")
        length, at = _varint(content, at) if wire == _DELIMITED else (_WIDTHS[wire], at)
        if length > len(content) - at:
            raise ValueError(f"a field ends behind the end, at byte {at}")
        yield number, content[at : at + length]
        at += length


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """The number at a position, and the position behind it."""
    value = 0
    for count in range(_MAX_VARINT_BYTES):
        if at + count >= len(content):
            break
        byte = content[at + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, at + count + 1
    raise ValueError(f"a number does not end, at byte {at}")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where text is wanted")
    return value


def _delimited(number: int, content: bytes) -> bytes:
    return _as_varint(number << 3 | _DELIMITED) + _as_varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _as_varint(number << 3 | _VARINT) + _as_varint(value)


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
