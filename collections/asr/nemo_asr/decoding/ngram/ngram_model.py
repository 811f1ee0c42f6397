"""NgramModel: look-up of n-grams with back-off, one word or many at once. Files are read in ``arpa``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nemo_asr.decoding.ngram.tables import NgramTables, Rows, rows_of

Scores = npt.NDArray[np.float64]


class NgramModel:
    """An n-gram language model with back-off. Scores are logarithms to the base 10; it is a `BatchedLanguageModel`.

    A state is the longest part of the last words that the model has a row for: 0 for none, 1 and more by order and
    row. All n-grams lie in one sorted array of whole numbers (state times ids, plus word), 24 bytes each.

    Source: Katz, "Estimation of Probabilities from Sparse Data for the Language Model Component of a Speech
    Recognizer", IEEE Transactions on Acoustics, Speech and Signal Processing, 1987: the back-off.

    Args:
        tables: the n-grams.
    """

    def __init__(self, tables: NgramTables) -> None:
        self.order = len(tables.orders)
        self._words = list(tables.words)
        self._ids = {word: number for number, word in enumerate(self._words)}
        self._num_ids, self._unknown, self._end = tables.num_ids, tables.unknown, tables.end
        firsts = np.cumsum([0, 1, *(len(table.words) for table in tables.orders)])  # the first state of each length
        histories = [table.prefixes + first for table, first in zip(tables.orders, firsts[:-2], strict=True)]
        tables_and_histories = list(zip(tables.orders, histories, strict=True))
        self._keys = np.concatenate([before * self._num_ids + table.words for table, before in tables_and_histories])
        self._log_probs = np.concatenate([table.log_probs for table in tables.orders])
        self._backoffs = np.concatenate([np.zeros(1, np.float32), *(table.backoffs for table in tables.orders[:-1])])
        self._shorter = np.zeros(1, np.int64)  # of each state the longest one without its first words
        self._next = np.zeros(0, np.int64)  # the state behind each n-gram
        for order, (table, before) in enumerate(tables_and_histories, 1):
            shorter = np.zeros_like(before) if order == 1 else self._after_shorter(before, table.words)
            if order < self.order:
                self._shorter = np.concatenate([self._shorter, shorter])
                self._next = np.concatenate([self._next, firsts[order] + np.arange(len(before))])
            else:
                self._next = np.concatenate([self._next, shorter])
        self._start = int(self._next[tables.start])

    def _after_shorter(self, states: Rows, words: npt.NDArray[np.int32]) -> Rows:
        """The states behind words that follow shorter forms of states: their n-grams are in ``_next`` already."""
        _, rows = self._look_up(self._shorter[states], words.astype(np.int64), self._keys[: len(self._next)])
        return self._next[rows]

    @property
    def words(self) -> Sequence[str]:
        """The words that it knows, without the marks ``<unk>``, ``<s>`` and ``</s>``."""
        return self._words

    def start(self) -> int:
        """The state in front of a text's first word."""
        return self._start

    def score(self, state: int, word: str) -> tuple[float, int]:
        """log10 P(word | state), and the state behind the word. A word that is not known is scored as ``<unk>``."""
        return self._score_id(state, self._ids.get(word, self._unknown))

    def end(self, state: int) -> float:
        """log10 P(the text ends | state)."""
        return self._score_id(state, self._end)[0]

    def score_batch(self, states: Rows, words: Rows) -> tuple[Scores, Rows]:
        """As :meth:`score`: states (N,) and positions in ``words`` (N,), negative ones unknown, to scores, states."""
        weights, rows = self._look_up(states, np.where(words < 0, self._unknown, words), self._keys)
        return weights + self._log_probs[rows], self._next[rows]

    def end_batch(self, states: Rows) -> Scores:
        """As :meth:`end`: states (N,) to scores (N,)."""
        weights, rows = self._look_up(states, np.full(len(states), self._end), self._keys)
        scores: Scores = weights + self._log_probs[rows]
        return scores

    def _score_id(self, state: int, word: int) -> tuple[float, int]:
        weight = 0.0
        while True:
            key = state * self._num_ids + word
            row = int(self._keys.searchsorted(key))
            if row < len(self._keys) and self._keys[row] == key:
                return weight + float(self._log_probs[row]), int(self._next[row])
            weight += float(self._backoffs[state])
            state = int(self._shorter[state])

    def _look_up(self, states: Rows, words: Rows, keys: Rows) -> tuple[Scores, Rows]:
        """The weights of backing off, summed, and the rows of the longest n-grams that are there."""
        states, weights = states.copy(), np.zeros(len(states))
        rows = rows_of(keys, states * self._num_ids + words)
        missing = np.flatnonzero(rows < 0)
        while len(missing):  # ends at state 0, after which each word has a row
            weights[missing] += self._backoffs[states[missing]]
            states[missing] = self._shorter[states[missing]]
            rows[missing] = rows_of(keys, states[missing] * self._num_ids + words[missing])
            missing = missing[rows[missing] < 0]
        return weights, rows
