"""Spelling: what each label adds to a text, for searches over words. No scores and no search in this file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from nemo_asr.text.labels import spelled
from nemo_lite.errors import UsageError

NOTHING = 0
"""The number of no character, which fills up rows of characters."""


class Spelling:
    """Labels as characters and beginnings of words.

    A space, or SentencePiece's mark before a piece, begins a word. Where no label does so, as in Chinese, each label is
    a word of its own.

    Args:
        labels: the vocabulary, without the blank.

    Attributes:
        num_characters: how many numbers of characters there are, `NOTHING` included.
        characters: (labels, most characters of a label) the characters' numbers, without spaces.
        begins: (labels,) whether a word begins with the label.
        is_space: (labels,) whether the label is a space and nothing else, which ends a word of letters.
        has_words: whether texts have spaces between words.

    Raises:
        UsageError: a label has a space within.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        written = [spelled(label) for label in labels]
        begins = [text.startswith(" ") for text in written]
        cores = [text.removeprefix(" ") for text in written]
        within = [label for label, core in zip(labels, cores, strict=True) if " " in core]
        if within:
            wanted = "labels that write at most one word"
            raise UsageError("a search over words cannot use these labels", got=repr(within[0]), wanted=wanted)
        self._numbers = {c: number for number, c in enumerate(sorted({c for core in cores for c in core}), NOTHING + 1)}
        self.num_characters = len(self._numbers) + 1
        self.characters = np.full((len(labels), max(map(len, cores), default=0) or 1), NOTHING, np.int64)
        for row, core in zip(self.characters, cores, strict=True):
            row[: len(core)] = self.numbers(core)
        self.has_words = any(begins)
        self.begins: npt.NDArray[np.bool_] = np.array(begins) if self.has_words else np.ones(len(labels), bool)
        self.is_space: npt.NDArray[np.bool_] = np.array([label == " " for label in labels])
        self._endings = _Endings(cores, begins if self.has_words else None)

    def numbers(self, word: str) -> list[int]:
        """The numbers of a word's characters. KeyError for a character that is in no label."""
        return [self._numbers[character] for character in word]

    def can_spell(self, word: str) -> bool:
        """Whether some labels, one after another, write this word."""
        return self._endings.can_spell(word)

    def unspellable(self, words: Iterable[str]) -> list[str]:
        """Those words that no labels write, in their order."""
        return [word for word in words if not self.can_spell(word)]


class _Endings:
    """Which pieces may begin a word, and which may follow within it."""

    def __init__(self, cores: Sequence[str], begins: Sequence[bool] | None) -> None:
        if begins is None:  # each label is a word
            self._first, self._later = set(cores), set[str]()
            return
        pairs = list(zip(cores, begins, strict=True))
        self._later = {core for core, begin in pairs if not begin and core}
        self._first = {core for core, begin in pairs if begin and core}
        if any(begin and not core for core, begin in pairs):  # a space alone; any label may follow it
            self._first |= self._later
        self._longest = max(map(len, self._first | self._later), default=0)

    def can_spell(self, word: str) -> bool:
        if not self._later:
            return word in self._first
        reached = {end for end in range(1, min(self._longest, len(word)) + 1) if word[:end] in self._first}
        for start in range(1, len(word)):
            if start in reached:
                ends = range(start + 1, min(start + self._longest, len(word)) + 1)
                reached.update(end for end in ends if word[start:end] in self._later)
        return bool(word) and len(word) in reached
