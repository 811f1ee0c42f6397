"""NgramCounter: counts the n-grams of sentences. What is made of the counts: ``smoothing``."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nemo_asr.decoding.ngram.tables import MARKS, Ids, Rows, rows_of

_START, _END, _FIRST_WORD = 0, 1, 2
_BLOCK = 1 << 22


class CountTable(NamedTuple):
    """The counts of all n-grams of one order, sorted by prefix and then by word.

    Attributes:
        prefixes: (N,) the row of each n-gram without its last word, in the table below.
        words: (N,) the id of its last word.
        counts: (N,) how often it occurs.
        suffixes: (N,) the row of each n-gram without its first word, in the table below.
        starts: (N,) whether its first word is ``<s>``.
    """

    prefixes: Rows
    words: Ids
    counts: Rows
    suffixes: Rows
    starts: npt.NDArray[np.bool_]


class NgramCounter:
    """Counts n-grams up to an order. It keeps one whole number of 4 bytes for each word of the texts.

    Args:
        order: of the longest n-grams.
    """

    def __init__(self, order: int) -> None:
        self.order = order
        self.num_sentences = 0
        self._ids: dict[str, int] = {}
        self._tokens = array("i")

    def add(self, sentence: Iterable[str]) -> None:
        """Count one more sentence: its words, in order."""
        ids = self._ids
        self._tokens.append(_START)
        self._tokens.extend([ids.setdefault(word, len(ids) + _FIRST_WORD) for word in sentence])
        self._tokens.append(_END)
        self.num_sentences += 1

    @property
    def words(self) -> list[str]:
        """All words that were met; their positions are their ids."""
        return list(self._ids)

    @property
    def num_words(self) -> int:
        """Of all sentences together, repeated ones included."""
        return len(self._tokens) - 2 * self.num_sentences

    def tables(self) -> list[CountTable]:
        """The counts of each order, from single words on. The first table has a row for each id, marks included."""
        num_words = len(self._ids)
        start, end, num_ids = num_words + 1, num_words + 2, num_words + len(MARKS)
        renamed = np.concatenate([[start, end], np.arange(num_words)]).astype(np.int32)
        tokens = renamed[np.frombuffer(self._tokens, np.int32)]
        ids = np.arange(num_ids)
        counts = np.bincount(tokens, minlength=num_ids)
        nothing = np.zeros(num_ids, np.int64)
        tables = [CountTable(nothing, ids.astype(np.int32), counts, nothing, ids == start)]
        rows = np.where(tokens == end, -1, tokens)  # of the n-gram that begins at each token; nothing follows an end
        keys = ids
        for order in range(2, self.order + 1):
            rows, last = rows[:-1], tokens[order - 1 :]
            has_next = rows >= 0
            keys_of_tokens = rows[has_next].astype(np.int64) * num_ids + last[has_next]
            below = keys
            keys, counts = np.unique(keys_of_tokens, return_counts=True)
            tables.append(_table(keys, counts, tables[-1], below, num_ids))
            if order < self.order:
                rows = np.full(len(rows), -1, np.int32)
                rows[has_next] = _in_blocks(keys, keys_of_tokens)
                rows[last == end] = -1
        return tables


def _table(keys: Rows, counts: Rows, below: CountTable, keys_below: Rows, num_ids: int) -> CountTable:
    prefixes, words = np.divmod(keys, num_ids)
    suffixes = rows_of(keys_below, below.suffixes[prefixes] * num_ids + words)
    return CountTable(prefixes, words.astype(np.int32), counts, suffixes, below.starts[prefixes])


def _in_blocks(keys: Rows, wanted: Rows) -> Ids:
    """Where the keys stand, in little memory."""
    blocks = [np.searchsorted(keys, wanted[at : at + _BLOCK]).astype(np.int32) for at in range(0, len(wanted), _BLOCK)]
    return np.concatenate(blocks) if blocks else np.zeros(0, np.int32)
