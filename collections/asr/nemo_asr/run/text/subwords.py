"""Vocabularies of subwords: of SentencePiece, WordPiece, byte-level BPE and by language; how they cut texts."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

from nemo_asr.run.text.byte_pairs import ALPHABET, BytePairMerges, label_of
from nemo_asr.run.text.labels import WORD_MARK, spelled
from nemo_asr.run.text.sentencepiece_file import (
    MAX_BYTES,
    MAX_PIECE_CHARACTERS,
    MAX_PIECES,
    PieceKind,
    decode,
    encode,
    read_bytes,
    refusal,
)
from nemo_lite.base.errors import DataError, UsageError
from nemo_lite.base.files import FileKind, parse_json

# Any: sentencepiece's objects, and values of JSON.

INSTALL = "pip install sentencepiece"
UNKNOWN_WORD = "[UNK]"  # the piece for what cannot be written, in vocabularies of BERT
_STORED = FileKind("the tokenizer", MAX_BYTES, DataError, "export or import the model again")
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
        model: the content of a file: a SentencePiece model, unigram or BPE; the ``vocab.txt`` of a WordPiece model;
            what `BytePairs.of` makes of byte-level BPE; or several of these, each for a language.
        place: its name, for messages.

    Attributes:
        model: the content of a file of the same pieces. Of SentencePiece it is without tables that replace characters:
            the parser decides how texts are rewritten. Equal pieces with equal scores give equal bytes.
        sha256: of ``model``.
        written: what texts may hold: the characters of the pieces, the space, and words that the user has defined, such
            as ``<noise>``.
        writes_all: texts may hold anything, and are cut as they are; ``written`` are characters of pieces all the same.
        suffix: of the name of such a file.

    Raises:
        DataError: it is no such file, or is damaged.
    """

    model: bytes
    sha256: str
    written: tuple[str, ...]
    suffix: ClassVar[str]
    writes_all: ClassVar[bool] = False

    def __new__(cls, model: bytes, place: str = "tokenizer") -> Subwords:
        if BytePairs.is_one(model):
            return BytePairs.read(model, place)
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
        normal = "".join(piece.text for piece in checked.pieces if piece.kind is PieceKind.NORMAL)
        defined = [spelled(piece.text).strip() for piece in checked.pieces if piece.kind is PieceKind.USER_DEFINED]
        written = dict.fromkeys([*sorted({" ", *normal} - {WORD_MARK}), *filter(None, defined)])
        made = cls._of([piece.text for piece in checked.pieces], encode(checked), written)
        made._unknown = next(i for i, piece in enumerate(checked.pieces) if piece.kind is PieceKind.UNKNOWN)
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
            raise refusal("the list of pieces is no text", place, str(error)) from None
        if len(pieces) > MAX_PIECES:
            raise refusal("the number of pieces", place, str(len(pieces)), f"2 to {MAX_PIECES}")
        for piece, count in Counter(pieces).items():
            if count > 1 or piece.split() != [piece] or len(piece) > MAX_PIECE_CHARACTERS:
                problem = "repeats another one" if count > 1 else "is empty, too long, or has white space in it"
                raise refusal(f"piece {pieces.index(piece)} {problem}", place, repr(piece[:MAX_PIECE_CHARACTERS]))
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


class BytePairs(Subwords):
    """The :class:`Subwords` of byte-level BPE, as GPT-2 and Whisper have it.

    A piece is of bytes in UTF-8, so it may have a part of a letter, and any text can be written. Texts are cut as they
    are; the name of a special token in a text, such as ``<|en|>``, is a text like others.
    """

    suffix = ".json"
    writes_all = True
    _merges: BytePairMerges

    @staticmethod
    def is_one(content: bytes) -> bool:
        """Whether the content of a file is such a vocabulary."""
        return content.startswith(b'{"byte_pairs":')

    @classmethod
    def of(cls, pieces: Sequence[str], merges: Sequence[tuple[str, str]], place: str) -> BytePairs:
        """Those of pieces by id, in the alphabet of ``vocab.json``, and of pairs that become one, the first ones first.

        A piece may be empty, as 50256 of Whisper is: it writes nothing, and no text has it.

        Raises:
            DataError: a piece is repeated, or of other characters; a byte has no piece, or a pair makes none.
        """
        ids = {piece: i for i, piece in enumerate(pieces)}
        if len(ids) != len(pieces) or len(pieces) > MAX_PIECES:
            wanted = f"up to {MAX_PIECES} pieces, none of them twice there"
            raise refusal(
                "the pieces cannot be used", place, f"{len(pieces)} pieces, {len(ids)} different ones", wanted
            )
        if missing := [byte for byte, character in ALPHABET.items() if character not in ids]:
            raise refusal("a byte has no piece", place, f"none for byte {missing[0]}")
        if lost := [pair for pair in merges if "".join(pair) not in ids]:
            raise refusal("a merge makes no piece", place, repr(" ".join(lost[0])))
        try:
            labels = [label_of(piece) for piece in pieces]
        except ValueError as error:
            raise refusal("a piece is not of bytes", place, str(error)) from None
        content = {"byte_pairs": list(pieces), "merges": [" ".join(pair) for pair in merges]}
        model = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
        letters = {spelled(label) for label in labels if len(label) == 1 and label.isprintable()}
        made = cls._of(labels, model, sorted({" ", *letters}))
        made._merges = BytePairMerges(ids, merges)
        return made

    @classmethod
    def read(cls, content: bytes, place: str) -> BytePairs:
        """Read a file's content. Errors as of :class:`Subwords`."""
        stored = parse_json(content, place, _STORED)
        pieces, merges = (stored.get(key) if isinstance(stored, dict) else None for key in ("byte_pairs", "merges"))
        pairs = [tuple(str(merge).split(" ")) for merge in merges] if isinstance(merges, list) else None
        if not isinstance(pieces, list) or pairs is None or any(len(pair) != 2 for pair in pairs):
            raise refusal("the file holds no pieces and merges", place, wanted="byte_pairs: [...], merges: [...]")
        return cls.of([str(piece) for piece in pieces], [(first, second) for first, second in pairs], place)

    @property
    def pieces(self) -> Mapping[str, int]:
        """The id of each piece, in the alphabet of ``vocab.json``."""
        return self._merges.ids

    def ids_of(self, text: str) -> tuple[list[int], list[str]]:
        return self._merges.ids_of(text), []


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
        stored = parse_json(content, place, _STORED)
        languages = stored.get("languages") if isinstance(stored, dict) else None
        if not isinstance(languages, dict) or not 0 < len(languages) <= _MOST_LANGUAGES:
            raise refusal("the file holds no tokenizers by language", place, wanted="languages: {CODE: CONTENT}")
        read: dict[str, Subwords] = {}
        for language, text in languages.items():
            try:
                model = base64.b64decode(str(text), validate=True)
            except binascii.Error as error:
                raise refusal("a tokenizer in it is damaged", f"{place}, {language}", str(error)) from None
            if model.startswith(b"{"):
                raise refusal("a tokenizer in it is of several languages", f"{place}, {language}")
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
