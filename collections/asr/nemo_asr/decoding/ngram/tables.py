"""NgramTables: the n-grams of a model as arrays, an order each. Estimation makes them, ARPA files hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32]
LogProbs = npt.NDArray[np.float32]

UNKNOWN_WORD, SENTENCE_START, SENTENCE_END = "<unk>", "<s>", "</s>"
MARKS = (UNKNOWN_WORD, SENTENCE_START, SENTENCE_END)
# What ARPA files give for the start of a sentence, which no model ever predicts.
NEVER = -99.0


class NgramTable(NamedTuple):
    """All n-grams of one order, sorted by prefix and then by word.

    Attributes:
        prefixes: (N,) the row of each n-gram without its last word, in the table of the order below; of words 0.
        words: (N,) the id of the last word.
        log_probs: (N,) log10 of its probability after the words before it.
        backoffs: (N,) log10 of the weight with which shorter histories stand in for this one; 0 in the highest order.
    """

    prefixes: Rows
    words: Ids
    log_probs: LogProbs
    backoffs: LogProbs


@dataclass(frozen=True)
class NgramTables:
    """The n-grams of a model.

    Attributes:
        words: the words by id, without the marks. The ids behind them are those of `MARKS`, in this order.
        orders: a table for each order, from single words on. The first one has a row for each id, marks included.
    """

    words: Sequence[str]
    orders: Sequence[NgramTable]

    @property
    def num_ids(self) -> int:
        """Of words and marks."""
        return len(self.words) + len(MARKS)

    @property
    def unknown(self) -> int:
        """The id of ``<unk>``."""
        return len(self.words)

    @property
    def start(self) -> int:
        """The id of ``<s>``."""
        return len(self.words) + 1

    @property
    def end(self) -> int:
        """The id of ``</s>``."""
        return len(self.words) + 2

    def ids_of(self, order: int) -> npt.NDArray[np.int32]:
        """(N, order) the word ids of each n-gram of an order."""
        columns, rows = [], np.arange(len(self.orders[order - 1].words))
        for table in reversed(self.orders[:order]):
            columns.append(table.words[rows])
            rows = table.prefixes[rows]
        return np.stack(columns[::-1], axis=1)


def rows_of(keys: Rows, wanted: Rows) -> Rows:
    """Where each wanted key stands in sorted keys; -1 where it does not."""
    if not len(keys):
        return np.full(len(wanted), -1)
    found = np.searchsorted(keys, wanted)
    np.minimum(found, len(keys) - 1, out=found)
    return np.where(keys[found] == wanted, found, -1)
