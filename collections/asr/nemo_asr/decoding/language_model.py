"""LanguageModel: what a search asks of a model of word sequences. Files of such models are read elsewhere.

A state stands for the words so far, as far as the model looks back: a whole number, of which equal ones have the same
future. So a search keeps the states of all its hypotheses in one array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]

UNKNOWN = -1
"""The position of a word that the model does not know."""


class LanguageModel(Protocol):
    """A model of word sequences, such as an n-gram model. Scores are logarithms to the base 10, as in ARPA files."""

    @property
    def words(self) -> Sequence[str]:
        """The words that it knows, without its marks for sentence ends and unknown words."""

    def start(self) -> int:
        """The state in front of a text's first word."""

    def score(self, state: int, word: str) -> tuple[float, int]:
        """log10 P(word | state), and the state behind the word. A word that is not known has a score too."""

    def end(self, state: int) -> float:
        """log10 P(the text ends | state)."""


class BatchedLanguageModel(LanguageModel, Protocol):
    """A model that looks up many words at once."""

    def score_batch(self, states: Ids, words: Ids) -> tuple[Scores, Ids]:
        """As ``score``: states (N,) and words (N,), positions in ``words`` or `UNKNOWN`, to scores and states (N,)."""

    def end_batch(self, states: Ids) -> Scores:
        """As ``end``: states (N,) to scores (N,)."""


class RememberingLanguageModel:
    """Makes a model that scores one word at a time a `BatchedLanguageModel`: each different question is asked once.

    Args:
        model: the model.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.words = list(model.words)
        self._scores: dict[tuple[int, int], tuple[float, int]] = {}
        self._ends: dict[int, float] = {}

    def start(self) -> int:
        """As of the model."""
        return self._model.start()

    def score(self, state: int, word: str) -> tuple[float, int]:
        """As of the model."""
        return self._model.score(state, word)

    def end(self, state: int) -> float:
        """As of the model."""
        return self._model.end(state)

    def score_batch(self, states: Ids, words: Ids) -> tuple[Scores, Ids]:
        """States (N,) and words (N,) to scores and states (N,)."""
        pairs = list(zip(states.tolist(), words.tolist(), strict=True))
        for state, word in set(pairs).difference(self._scores):
            # The empty word is in no model.
            self._scores[state, word] = self._model.score(state, "" if word == UNKNOWN else self.words[word])
        found = [self._scores[pair] for pair in pairs]
        return np.array([score for score, _ in found], np.float64), np.array([state for _, state in found], np.int64)

    def end_batch(self, states: Ids) -> Scores:
        """States (N,) to scores (N,)."""
        asked = states.tolist()
        for state in set(asked).difference(self._ends):
            self._ends[state] = self._model.end(state)
        return np.array([self._ends[state] for state in asked], np.float64)
