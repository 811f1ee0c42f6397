"""Vocabularies of subwords: files of SentencePiece, of WordPiece and by language, checked; cutting texts; training."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import json
import math
import os
import re
import struct
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

from nemo_asr.run.arguments import look_up
from nemo_asr.run.text.labels import WORD_MARK, spelled
from nemo_lite.base.errors import DataError, UsageError
from nemo_lite.base.files import FileKind, parse_json
from nemo_lite.base.files import read_bytes as untrusted_bytes
from nemo_lite.base.ranges import PositiveInt, numbers_checked

# The content of a SentencePiece model file, checked before the library's C++ code reads it.
# A model file is a protocol buffer, ``sentencepiece_model.proto``. Only what segmentation needs is taken from it: the
# pieces with their scores and kinds, and which algorithm they are for. It is written anew from these. What else a
# file may hold, such as a compiled table that replaces characters, never reaches the library, which does not check
# it.


Field: TypeAlias = "tuple[int, int | bytes]"  # its number and its value

MAX_BYTES = 8 * 2**20
_FILE = FileKind("the tokenizer", MAX_BYTES, remedy="train one: nemo-lite data tokenizer")
MAX_PIECES = 65_536  # a CTC decoder has an output for each
_MAX_PIECE_CHARACTERS = 128  # SentencePiece makes pieces of 16 unless it is told otherwise

# Numbers of the fields in sentencepiece_model.proto.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _KIND = 1, 2, 3
_ALGORITHM, _VOCAB_SIZE, _SUFFIX, _UNK_ID, _BOS_ID, _EOS_ID, _PAD_ID = 3, 4, 24, 40, 41, 42, 43
_NAME, _DUMMY_PREFIX, _ESCAPE = 1, 3, 5
_WIDTHS = {1: 8, 5: 4}  # bytes of the wire types of fixed width
_VARINT, _DELIMITED, _FIXED_32 = 0, 2, 5
_MAX_VARINT_BYTES = 10
_NO_ID = 2**64 - 1  # -1 as a varint


class Kind(IntEnum):
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
    kind: Kind


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
        raise _refusal("the file is no SentencePiece model, or is damaged", place, str(error)) from None
    algorithm = trainer.get(_ALGORITHM, 1)
    if algorithm not in STORED_ALGORITHMS:
        raise _refusal("the model is of another algorithm", place, f"number {algorithm}", "unigram or bpe")
    if trainer.get(_SUFFIX, 0) or not normalizer.get(_DUMMY_PREFIX, 1) or not normalizer.get(_ESCAPE, 1):
        raise _refusal("the pieces do not mark where a word begins", place, wanted="add_dummy_prefix, no suffixes")
    model = ModelFile(int(algorithm), pieces)
    _check(model, place)
    return model


def encode(model: ModelFile) -> bytes:
    """A model file of nothing but this."""
    unknown = next(i for i, piece in enumerate(model.pieces) if piece.kind is Kind.UNKNOWN)
    trainer = {_ALGORITHM: model.algorithm, _VOCAB_SIZE: len(model.pieces), _UNK_ID: unknown}
    trainer |= dict.fromkeys((_BOS_ID, _EOS_ID, _PAD_ID), _NO_ID)
    parts = [_delimited(_PIECES, _encoded(piece)) for piece in model.pieces]
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
        raise _refusal("the number of pieces", place, str(len(texts)), f"2 to {MAX_PIECES}")
    unknown = sum(piece.kind is Kind.UNKNOWN for piece in model.pieces)
    if unknown != 1:
        raise _refusal("the piece for what cannot be written", place, f"{unknown} of them", "one")
    seen: set[str] = set()
    for i, (text, score, kind) in enumerate(model.pieces):
        problem = ""
        if not text or len(text) > _MAX_PIECE_CHARACTERS:
            problem = "is empty or too long"
        elif text in seen:
            problem = "repeats another one"
        elif not math.isfinite(score):
            problem = f"has the score {score}"
        elif kind is Kind.NORMAL and WORD_MARK in text[1:]:
            problem = "spans several words; train with split_by_whitespace"
        elif text.split() != [text] or "\0" in text:
            problem = "has white space in it"
        if problem:
            raise _refusal(f"piece {i} {problem}", place, repr(text[:_MAX_PIECE_CHARACTERS]))
        seen.add(text)


def _refusal(problem: str, place: str, got: str = "", wanted: str = "") -> DataError:
    return DataError(problem, place=place, got=got, wanted=wanted, remedy="train one: nemo-lite data tokenizer")


def _piece(content: bytes) -> Piece:
    text, score, kind = "", 0.0, 1
    for number, value in _fields(content):
        if number == _TEXT:
            text = _bytes(value).decode("utf-8")
        elif number == _SCORE:
            (score,) = struct.unpack("<f", _bytes(value))
        elif number == _KIND:
            kind = _int(value)
    if kind not in list(Kind):
        raise ValueError("a piece is of another kind, such as a byte (byte_fallback)")
    return Piece(text, score, Kind(kind))


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


def _int(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("text where a number is wanted")
    return value


def _encoded(piece: Piece) -> bytes:
    score = _as_varint(_SCORE << 3 | _FIXED_32) + struct.pack("<f", piece.score)
    return _delimited(_TEXT, piece.text.encode()) + score + _number(_KIND, piece.kind)


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


# Subwords: pieces as labels, and how a text is cut into them. Of three kinds of files the content says which it is.


# Any: sentencepiece's objects, and values of JSON.

INSTALL = "pip install sentencepiece"
UNKNOWN_WORD = "[UNK]"  # the piece for what cannot be written, in vocabularies of BERT
_LANGUAGES = FileKind("the tokenizer", MAX_BYTES, DataError, "export or import the model again")
_MOST_LANGUAGES = 64
_MAX_WORD_CHARACTERS = 100  # longer ones are BERT's unknown word
# Ranges of ideographs around which BERT puts spaces: those of "CJK Unified Ideographs" and their extensions.
_IDEOGRAPHS = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]"
)


class Subwords(tuple[str, ...]):
    """A vocabulary of subwords: the pieces by id, for every argument that takes ``labels``.

    A piece that begins a word begins with SentencePiece's mark, U+2581; what it writes:
    `nemo_asr.run.text.labels.spelled`.
    Decoding needs the pieces alone; the file in here cuts texts into them.

    Args:
        model: the content of a file: a SentencePiece model, unigram or BPE; the ``vocab.txt`` of a WordPiece model; or
            several of these, each for a language.
        place: its name, for messages.

    Attributes:
        model: the content of a file of the same pieces. Of SentencePiece it is without tables that replace characters:
            the parser decides how texts are rewritten. Equal pieces with equal scores give equal bytes.
        sha256: of ``model``.
        written: what texts may hold: the characters of the pieces, the space, and words that the user has defined, such
            as ``<noise>``.
        suffix: of the name of such a file.

    Raises:
        DataError: it is no such file, or is damaged.
    """

    model: bytes
    sha256: str
    written: tuple[str, ...]
    suffix: ClassVar[str]

    def __new__(cls, model: bytes, place: str = "tokenizer") -> Subwords:
        if model.startswith(b"{"):
            return SubwordsByLanguage.read(model, place)
        if WordPieces.is_one(model):
            return WordPieces.read(model, place)
        return SentencePieces.read(model, place)

    @classmethod
    def _of(cls, pieces: Iterable[str], model: bytes, written: Iterable[str]) -> Self:
        made = super().__new__(cls, pieces)
        made.model, made.sha256, made.written = model, hashlib.sha256(model).hexdigest(), tuple(written)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Subwords, (self.model,)

    def for_language(self, language: str | None) -> Subwords:
        """Those that cut texts of a language: a vocabulary for several cuts each by its own."""
        return self

    def ids_of(self, text: str) -> tuple[list[int], list[str]]:
        """The pieces of a text, and what no piece writes, which they leave out.

        Args:
            text: as the vocabulary is meant to write it; :class:`nemo_asr.run.text.parser.CharParser` makes it so.

        Raises:
            UsageError: the package sentencepiece is not installed.
        """
        raise NotImplementedError


class SentencePieces(Subwords):
    """The :class:`Subwords` of a SentencePiece model."""

    suffix = ".model"
    _unknown: int

    @classmethod
    def read(cls, model: bytes, place: str) -> SentencePieces:
        """Read a file's content. Errors as of :class:`Subwords`."""
        checked = decode(model, place)
        normal = "".join(piece.text for piece in checked.pieces if piece.kind is Kind.NORMAL)
        defined = [spelled(piece.text).strip() for piece in checked.pieces if piece.kind is Kind.USER_DEFINED]
        written = dict.fromkeys([*sorted({" ", *normal} - {WORD_MARK}), *filter(None, defined)])
        made = cls._of([piece.text for piece in checked.pieces], encode(checked), written)
        made._unknown = next(i for i, piece in enumerate(checked.pieces) if piece.kind is Kind.UNKNOWN)
        return made

    def ids_of(self, text: str) -> tuple[list[int], list[str]]:
        ids: list[int] = self._processor.encode(text)
        if self._unknown not in ids:
            return ids, []
        surfaces: list[str] = self._processor.encode(text, out_type=str)
        lost = [piece.replace(WORD_MARK, "") for i, piece in zip(ids, surfaces, strict=True) if i == self._unknown]
        return [i for i in ids if i != self._unknown], [character for piece in lost for character in piece]

    @cached_property
    def _processor(self) -> Any:
        try:
            import sentencepiece
        except ImportError:
            raise UsageError("the package sentencepiece is not installed", place="tokenizer", remedy=INSTALL) from None
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)


class WordPieces(Subwords):
    """The :class:`Subwords` of a WordPiece vocabulary, a list of pieces of which those within words begin with ``##``.

    Words are cut as BERT's cased models do it: each punctuation mark and each ideograph is a word, and of a word the
    longest piece that fits is taken again and again. A word that cannot be cut to its end is left out whole.

    Source: Devlin et al., "BERT", NAACL 2019; Wu et al., "Google's Neural Machine Translation System", 2016.
    """

    suffix = ".txt"
    _ids: dict[str, int]

    @staticmethod
    def is_one(content: bytes) -> bool:
        """Whether the content of a file is such a list: text, one of whose lines is ``[UNK]``."""
        return UNKNOWN_WORD.encode() in content.splitlines()

    @classmethod
    def read(cls, content: bytes, place: str) -> WordPieces:
        """Read a file's content. Errors as of :class:`Subwords`."""
        try:
            pieces = [line.rstrip("\r") for line in content.decode("utf-8").rstrip("\n").split("\n")]
        except UnicodeDecodeError as error:
            raise _refusal("the list of pieces is no text", place, str(error)) from None
        if len(pieces) > MAX_PIECES:
            raise _refusal("the number of pieces", place, str(len(pieces)), f"2 to {MAX_PIECES}")
        for piece, count in Counter(pieces).items():
            if count > 1 or piece.split() != [piece] or len(piece) > _MAX_PIECE_CHARACTERS:
                problem = "repeats another one" if count > 1 else "is empty, too long, or has white space in it"
                raise _refusal(f"piece {pieces.index(piece)} {problem}", place, repr(piece[:_MAX_PIECE_CHARACTERS]))
        content = "".join(f"{piece}\n" for piece in pieces).encode()
        written = {*"".join(piece.removeprefix("##") for piece in pieces if not _is_special(piece))}
        made = cls._of(map(marked_piece, pieces), content, sorted({" ", *written}))
        made._ids = {piece: i for i, piece in enumerate(pieces) if not _is_special(piece)}
        return made

    def ids_of(self, text: str) -> tuple[list[int], list[str]]:
        ids: list[int] = []
        lost: list[str] = []
        for word in _words_of_bert(text):
            pieces = self._cut(word)
            ids += pieces
            lost += [] if pieces else list(word)
        return ids, lost

    def _cut(self, word: str) -> list[int]:
        """The ids of a word's pieces; none where it cannot be cut to its end."""
        ids: list[int] = []
        start = 0
        while start < len(word) <= _MAX_WORD_CHARACTERS:
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self._ids), None)
            if end is None:
                return []
            ids.append(self._ids[prefix + word[start:end]])
            start = end
        return ids


def marked_piece(piece: str) -> str:
    """A piece of BERT (``the``, ``##ing``) as SentencePiece writes it: the mark is where a word begins."""
    return piece.removeprefix("##") if piece.startswith("##") else f"{WORD_MARK}{piece}"


def _is_special(piece: str) -> bool:
    return piece.startswith("[") and piece.endswith("]") and len(piece) > 2


def _words_of_bert(text: str) -> list[str]:
    """The words that BERT cuts into pieces: also each punctuation mark and each ideograph."""
    text = _IDEOGRAPHS.sub(r" \g<0> ", unicodedata.normalize("NFC", text))
    return "".join(f" {c} " if _is_mark_for_bert(c) else "" if _is_left_out(c) else c for c in text).split()


def _is_mark_for_bert(character: str) -> bool:
    """Punctuation, and what is printed in ASCII beside letters, digits and the space."""
    is_in_ascii = character.isascii() and character.isprintable() and not character.isalnum() and character != " "
    return is_in_ascii or unicodedata.category(character).startswith("P")


def _is_left_out(character: str) -> bool:
    is_control = unicodedata.category(character).startswith("C") and character not in "\t\n\r"
    return is_control or character == "\ufffd"


class SubwordsByLanguage(Subwords):
    """:class:`Subwords` of several languages, one after another: NeMo's aggregate tokenizers.

    A piece may be there once for each language. Texts are cut by those of one: :meth:`for_language`.
    """

    suffix = ".json"
    languages: dict[str, Subwords]
    _language: str | None = None

    @classmethod
    def joined(cls, languages: Mapping[str, Subwords]) -> SubwordsByLanguage:
        """Those of each language in this order."""
        encoded = {language: base64.b64encode(each.model).decode() for language, each in languages.items()}
        model = json.dumps({"languages": encoded}, indent=1).encode()
        written = sorted({character for each in languages.values() for character in each.written})
        made = cls._of([piece for each in languages.values() for piece in each], model, written)
        made.languages = dict(languages)
        return made

    @classmethod
    def read(cls, content: bytes, place: str) -> SubwordsByLanguage:
        """Read a file's content. Errors as of :class:`Subwords`."""
        stored = parse_json(content, place, _LANGUAGES)
        languages = stored.get("languages") if isinstance(stored, dict) else None
        if not isinstance(languages, dict) or not 0 < len(languages) <= _MOST_LANGUAGES:
            raise _refusal("the file holds no tokenizers by language", place, wanted="languages: {CODE: CONTENT}")
        read: dict[str, Subwords] = {}
        for language, text in languages.items():
            try:
                model = base64.b64decode(str(text), validate=True)
            except binascii.Error as error:
                raise _refusal("a tokenizer in it is damaged", f"{place}, {language}", str(error)) from None
            if model.startswith(b"{"):
                raise _refusal("a tokenizer in it is of several languages", f"{place}, {language}")
            read[language] = Subwords(model, f"{place}, {language}")
        return cls.joined(read)

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_language, (self.model, self._language)

    def for_language(self, language: str | None) -> Subwords:
        """These, cutting texts of a language.

        Raises:
            UsageError: none is given, or none of them is of this one.
        """
        codes = {code: code for code in self.languages} | {code.lower().split("-")[0]: code for code in self.languages}
        if language not in codes:
            problem, wanted = "the pieces are of several languages", " or ".join(self.languages)
            remedy = "say which one the texts are in: --language CODE"
            got = "no language" if language is None else language
            raise UsageError(problem, place="tokenizer", got=got, wanted=wanted, remedy=remedy)
        return _of_language(self.model, codes[language])

    def ids_of(self, text: str) -> tuple[list[int], list[str]]:
        if self._language is None:
            return self.for_language(None).ids_of(text)
        before = list(self.languages)[: list(self.languages).index(self._language)]
        offset = sum(len(self.languages[language]) for language in before)
        ids, lost = self.languages[self._language].ids_of(text)
        return [offset + i for i in ids], lost


def _of_language(model: bytes, language: str | None) -> SubwordsByLanguage:
    made = SubwordsByLanguage.read(model, "tokenizer")
    if language is not None:
        made._language, made.written = language, made.languages[language].written
    return made


def load_subwords(path: str | os.PathLike[str]) -> Subwords:
    """The vocabulary in a file: a SentencePiece model, or another kind that :class:`Subwords` reads.

    Raises:
        DataError: it cannot be read, is no such file, or is damaged.
    """
    return Subwords(read_bytes(path), os.fspath(path))


# train_subwords: a vocabulary of subwords from texts.


ALGORITHMS = ("unigram", "bpe")
_MAX_LINE_BYTES = 2**20  # longer texts are an error, where the library would leave them out
# What the library says of a size that the texts cannot give.
_TOO_LARGE = re.compile(r"Vocabulary size (?:is )?too high.*<= (\d+)")
_TOO_SMALL = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")


@numbers_checked
def train_subwords(
    texts: Iterable[str], vocab_size: PositiveInt, *, algorithm: str = "unigram", symbols: Iterable[str] = ()
) -> Subwords:
    """Train a SentencePiece model; the same texts give the same one.

    Every character of the texts becomes a piece. There are no pieces for the beginning, the end and padding: CTC needs
    none. Piece 0 stands for what cannot be written.

    Args:
        texts: as a parser normalises them.
        vocab_size: the number of pieces.
        algorithm: ``unigram`` or ``bpe``.
        symbols: words that stay whole, such as ``<noise>``.

    Raises:
        DataError: there are no texts, or one is longer than a megabyte.
        UsageError: the texts cannot give so many pieces, or need more; or sentencepiece is not installed.
        UnknownNameError: another algorithm.

    Source: Kudo, "Subword Regularization", ACL 2018; Sennrich et al., "Neural Machine Translation of Rare Words with
    Subword Units", ACL 2016.
    """
    try:
        import sentencepiece
    except ImportError:
        raise UsageError("the package sentencepiece is not installed", remedy=INSTALL) from None
    look_up("algorithm", algorithm, dict.fromkeys(ALGORITHMS))
    lines = [cleaned for text in texts if (cleaned := " ".join(text.replace(WORD_MARK, " ").split()))]
    if not lines:
        raise DataError("there are no texts to train a tokenizer on")
    longest = max(len(line.encode()) for line in lines)
    if longest > _MAX_LINE_BYTES:
        raise DataError("a text is too long", got=f"{longest} bytes", wanted=f"at most {_MAX_LINE_BYTES}")
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=written,
            vocab_size=vocab_size,
            model_type=algorithm,
            user_defined_symbols=list(symbols),
            normalization_rule_name="identity",  # the parser decides how texts are rewritten
            character_coverage=1.0,
            max_sentence_length=_MAX_LINE_BYTES,
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=1,  # the sums of several threads depend on their order
            minloglevel=3,
        )
    except (RuntimeError, OSError) as error:
        raise _explained(str(error), vocab_size, lines) from None
    return Subwords(written.getvalue())


def _explained(message: str, vocab_size: int, lines: list[str]) -> UsageError:
    problem, got = "the texts cannot give a vocabulary of this size", f"{vocab_size} pieces"
    if match := _TOO_LARGE.search(message):
        return UsageError(problem, place="vocab_size", got=got, wanted=f"at most {match[1]}")
    if match := _TOO_SMALL.search(message):
        return UsageError(problem, place="vocab_size", got=got, wanted=f"at least {match[1]}, one for each character")
    got = message.strip().rpartition("] ")[2].partition("\n")[0] or message.strip()
    return UsageError("sentencepiece refuses the texts", got=f"{got} ({len(lines)} texts)")
