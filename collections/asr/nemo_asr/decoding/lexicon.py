"""Lexicon: words as paths of characters, so that a search knows at each label which words are left. No scores here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nemo_asr.decoding.spelling import NOTHING, Spelling
from nemo_lite.errors import DataError, UsageError
from nemo_lite.untrusted import FileKind, read_text

ROOT = 0
"""The node in front of a word."""
LEFT = 1
"""The node of all characters that begin no word."""
NO_WORD = -1
_MOST_LETTERS = 1_000  # of a word; each costs memory while it is searched for
_LIST = FileKind("the list of words", 1 << 26, remedy="give a text file with a word a line")


class Lexicon:
    """A tree of words by their characters.

    Args:
        words: what is in it; a word that the labels cannot spell is left out.
        spelling: of the labels.

    Attributes:
        words: the words, in the order given, each once.
        following: (nodes, characters) the node behind a character; `LEFT` where no word goes on so. ``NOTHING`` stays.
        word_at: (nodes,) the position in ``words`` of the word that ends there, or `NO_WORD`.
    """

    def __init__(self, words: Iterable[str], spelling: Spelling) -> None:
        self.words = [word for word in dict.fromkeys(words) if spelling.can_spell(word)]
        paths: dict[tuple[int, int], int] = {}
        ends = []
        for word in self.words:
            node = ROOT
            for character in spelling.numbers(word):
                node = paths.setdefault((node, character), len(paths) + 2)
            ends.append(node)
        num_nodes = len(paths) + 2
        self.following: npt.NDArray[np.int32] = np.full((num_nodes, spelling.num_characters), LEFT, np.int32)
        if paths:
            places = np.array(list(paths))
            self.following[places[:, 0], places[:, 1]] = list(paths.values())
        self.following[:, NOTHING] = np.arange(num_nodes)
        self.word_at: npt.NDArray[np.int64] = np.full(num_nodes, NO_WORD, np.int64)
        self.word_at[ends] = np.arange(len(ends))

    def nodes_of(self, word: str, spelling: Spelling) -> list[int]:
        """The nodes behind each character of a word."""
        node, passed = ROOT, []
        for character in spelling.numbers(word):
            node = int(self.following[node, character])
            passed.append(node)
        return passed


def read_words(path: str | Path) -> list[str]:
    """The words of a text file: the first of each line, so that a pronunciation dictionary does too; ``#`` for remarks.

    Raises:
        DataError: the file cannot be read, is no text, has no words, or one that is too long.
    """
    lines = read_text(Path(path).expanduser(), _LIST).splitlines()
    words = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
    if not words:
        raise DataError("the list has no words", place=str(path), wanted="a word a line")
    longest = max(words, key=len)
    if len(longest) > _MOST_LETTERS:
        got, wanted = f"{longest[:40]!r}... of {len(longest)} characters", f"words of at most {_MOST_LETTERS}"
        raise DataError("the list has a word that is too long", place=str(path), got=got, wanted=wanted)
    return list(dict.fromkeys(words))


def check_spellable(words: Sequence[str], spelling: Spelling, place: str) -> None:
    """See that the labels can spell all words.

    Raises:
        UsageError: some words cannot be spelled; the first ones are named.
    """
    bad = spelling.unspellable(words)
    if bad:
        listed = ", ".join(map(repr, bad[:5])) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
        problem = "the model's labels cannot spell words of the list"
        raise UsageError(problem, place=place, got=listed, remedy="write them in the labels' letters and case")
