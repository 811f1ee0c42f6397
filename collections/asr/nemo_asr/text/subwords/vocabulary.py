"""Subwords: the pieces of a SentencePiece model as labels, and how a text is cut into them. No file formats in here."""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from typing import Any

from nemo_asr.text.labels import WORD_MARK, spelled
from nemo_asr.text.subwords.model_file import Kind, decode, encode, read_bytes
from nemo_lite.errors import UsageError

# Any: sentencepiece's objects.

INSTALL = "pip install sentencepiece"


class Subwords(tuple[str, ...]):
    """A vocabulary of subwords: the pieces by id, for every argument that takes ``labels``.

    A piece that begins a word begins with SentencePiece's mark, U+2581; what it writes: `nemo_asr.text.labels.spelled`.
    Decoding needs the pieces alone; the model in here cuts texts into them.

    Args:
        model: the content of a SentencePiece model file, unigram or BPE.
        place: its name, for messages.

    Attributes:
        model: the content of a file of the same pieces, without tables that replace characters: the parser decides
            how texts are rewritten. Equal pieces with equal scores give equal bytes.
        sha256: of ``model``.
        written: what texts may hold: the characters of the pieces, the space, and words that the user has defined, such
            as ``<noise>``.

    Raises:
        DataError: it is no such model, or is damaged.
    """

    model: bytes
    sha256: str
    written: tuple[str, ...]
    _unknown: int

    def __new__(cls, model: bytes, place: str = "tokenizer") -> Subwords:
        checked = decode(model, place)
        made = super().__new__(cls, [piece.text for piece in checked.pieces])
        made.model = encode(checked)
        made.sha256 = hashlib.sha256(made.model).hexdigest()
        normal = "".join(piece.text for piece in checked.pieces if piece.kind is Kind.NORMAL)
        defined = [spelled(piece.text).strip() for piece in checked.pieces if piece.kind is Kind.USER_DEFINED]
        made.written = tuple(dict.fromkeys([*sorted({" ", *normal} - {WORD_MARK}), *filter(None, defined)]))
        made._unknown = next(i for i, piece in enumerate(checked.pieces) if piece.kind is Kind.UNKNOWN)
        return made

    def __reduce__(self) -> tuple[type[Subwords], tuple[bytes]]:
        return type(self), (self.model,)

    def __getnewargs__(self) -> tuple[bytes]:
        return (self.model,)

    def ids_of(self, text: str) -> tuple[list[int], list[str]]:
        """The pieces of a text, and what no piece writes, which they leave out.

        Args:
            text: as the vocabulary is meant to write it; :class:`nemo_asr.text.parser.CharParser` makes it so.

        Raises:
            UsageError: the package sentencepiece is not installed.
        """
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


def load_subwords(path: str | os.PathLike[str]) -> Subwords:
    """The vocabulary in a SentencePiece model file.

    Raises:
        DataError: it cannot be read, is no such file, or is damaged.
    """
    return Subwords(read_bytes(path), os.fspath(path))
