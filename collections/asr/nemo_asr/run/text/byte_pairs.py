"""Byte-level BPE: how a text is cut into pieces of its UTF-8 bytes, and how these pieces are written as labels.

The vocabulary and its files: `subwords`.

Sources: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", ACL 2016; Radford et al.,
"Language Models are Unsupervised Multitask Learners" (GPT-2), 2019.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from nemo_asr.run.text.labels import WORD_MARK, label_of_bytes

_MOST_KNOWN_WORDS = 1 << 16
# What files have for each byte: itself where it is a visible character of Latin 1, else the next one behind Latin 1.
_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _VISIBLE]
ALPHABET: Mapping[int, str] = {
    **{byte: chr(byte) for byte in _VISIBLE},
    **{byte: chr(256 + number) for number, byte in enumerate(_OTHERS)},
}
"""The character that stands for each byte in ``vocab.json`` and ``merges.txt``."""
_BYTES = {character: byte for byte, character in ALPHABET.items()}
# GPT-2's words: a letter behind an apostrophe, letters, digits, other signs, each with the space before, white space.
_WORDS = re.compile(
    r"'(?:[stmd]|re|ve|ll)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+",
    re.ASCII,
)


class _Kinds(dict[int, str]):
    """A character of ASCII for each character that is none: of the same kind for GPT-2's words."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        kind = {"L": "a", "N": "0"}.get(unicodedata.category(character)[0], "\t" if character.isspace() else "!")
        self[code] = character if character.isascii() else kind
        return self[code]


_KINDS = _Kinds()


def label_of(piece: str) -> str:
    """The label that stands for a piece of a file; `nemo_asr.run.text.labels.text_of` makes texts of labels.

    Raises:
        ValueError: a character of it stands for no byte.
    """
    if others := [character for character in piece if character not in _BYTES]:
        raise ValueError(f"{others[0]!r} stands for no byte")
    return label_of_bytes(bytes(_BYTES[character] for character in piece)).replace(" ", WORD_MARK)


def words_of(text: str) -> list[str]:
    """The words of a text, across whose ends no piece goes; together they are the text."""
    return [text[match.start() : match.end()] for match in _WORDS.finditer(text.translate(_KINDS))]


class BytePairMerges:
    """Cuts texts into pieces: of each word all bytes at first, and then the two neighbours that come first in a list
    become one, again and again.

    Args:
        ids: of the pieces, in the alphabet of files; all bytes are among them.
        merges: pairs of pieces that become one, the first ones first; what they become is a piece.

    Attributes:
        ids: as above.
    """

    def __init__(self, ids: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> None:
        self.ids, self._ranks = ids, {pair: rank for rank, pair in reversed([*enumerate(merges)])}
        self._ids_of_word = lru_cache(_MOST_KNOWN_WORDS)(self._cut)

    def ids_of(self, text: str) -> list[int]:
        """The ids of a text's pieces."""
        return [i for word in words_of(text) for i in self._ids_of_word(word)]

    def _cut(self, word: str) -> list[int]:
        pieces = [ALPHABET[byte] for byte in word.encode()]
        while len(pieces) > 1:
            last = len(self._ranks)
            rank, place = min((self._ranks.get(pair, last), place) for place, pair in enumerate(pairwise(pieces)))
            if rank == last:
                break
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
        return [self.ids[piece] for piece in pieces]
