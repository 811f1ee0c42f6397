"""n-gram language models: counting, smoothing, ARPA files, look-up, binaries of KenLM."""

from __future__ import annotations

import gzip
import mmap
import os
import re
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO, Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from nemo_lite.base.errors import DataError, UsageError, counted
from nemo_lite.base.files import FileKind, open_file, write_atomically

# LanguageModel: what a search asks of a model of word sequences.
# A state stands for the words so far, as far as the model looks back: a whole number, of which equal ones have the
# same future. So a search keeps the states of all its hypotheses in one array.


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

    def score_batch(self, states: Ids, words: Ids) -> tuple[Scores, Ids]:
        """As ``score``: states (N,) and words (N,), positions in ``words`` or `UNKNOWN`, to scores and states (N,)."""

    def end_batch(self, states: Ids) -> Scores:
        """As ``end``: states (N,) to scores (N,)."""


_MOST_SCORES = 1 << 20  # some 200 MB


class WordByWord:
    """Base of a `LanguageModel` that scores one word at a time: of many at once, each different question is asked once.

    Derive, and write ``words``, ``start``, ``score`` and ``end``.
    """

    words: Sequence[str]

    def __init__(self) -> None:
        self._scores: dict[tuple[int, int], tuple[float, int]] = {}
        self._ends: dict[int, float] = {}
        self._lock = Lock()  # of what several threads change

    def score(self, state: int, word: str) -> tuple[float, int]:
        """log10 P(word | state), and the state behind the word."""
        raise NotImplementedError(f"{type(self).__name__} has no score")

    def end(self, state: int) -> float:
        """log10 P(the text ends | state)."""
        raise NotImplementedError(f"{type(self).__name__} has no end")

    def score_batch(self, states: Ids, words: Ids) -> tuple[Scores, Ids]:
        """States (N,) and words (N,) to scores and states (N,)."""
        if len(self._scores) > _MOST_SCORES:
            self._scores = {}  # another one: other threads may look into it
        known, pairs = self._scores, list(zip(states.tolist(), words.tolist(), strict=True))
        for state, word in {pair for pair in pairs if pair not in known}:  # no walk through what other threads change
            # The empty word is in no model.
            known[state, word] = self.score(state, "" if word == UNKNOWN else self.words[word])
        scores, following = zip(*(known[pair] for pair in pairs), strict=True) if pairs else ((), ())
        return np.array(scores, np.float64), np.array(following, np.int64)

    def end_batch(self, states: Ids) -> Scores:
        """States (N,) to scores (N,)."""
        numbers = states.tolist()
        for state in {number for number in numbers if number not in self._ends}:
            self._ends[state] = self.end(state)
        return np.array([self._ends[state] for state in numbers], np.float64)


# NgramTables: the n-grams of a model as arrays, an order each. Estimation makes them, ARPA files hold them.


IdArray = npt.NDArray[np.int32]
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

    prefixes: Ids
    words: IdArray
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


def rows_of(keys: Ids, queries: Ids) -> Ids:
    """Where each wanted key stands in sorted keys; -1 where it does not."""
    if not len(keys):
        return np.full(len(queries), -1)
    rows = np.searchsorted(keys, queries)
    np.minimum(rows, len(keys) - 1, out=rows)
    return np.where(keys[rows] == queries, rows, -1)


# NgramCounter: counts the n-grams of sentences. What is made of the counts: :func:`estimate`.


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

    prefixes: Ids
    words: IdArray
    counts: Ids
    suffixes: Ids
    starts: npt.NDArray[np.bool_]


class NgramCounter:
    """Ids n-grams up to an order. It keeps one whole number of 4 bytes for each word of the texts.

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


def _table(keys: Ids, counts: Ids, below: CountTable, keys_below: Ids, num_ids: int) -> CountTable:
    prefixes, words = np.divmod(keys, num_ids)
    suffixes = rows_of(keys_below, below.suffixes[prefixes] * num_ids + words)
    return CountTable(prefixes, words.astype(np.int32), counts, suffixes, below.starts[prefixes])


def _in_blocks(keys: Ids, queries: Ids) -> IdArray:
    """Where the keys stand, in little memory."""
    blocks = [
        np.searchsorted(keys, queries[at : at + _BLOCK]).astype(np.int32) for at in range(0, len(queries), _BLOCK)
    ]
    return np.concatenate(blocks) if blocks else np.zeros(0, np.int32)


# ARPA files: the text format of n-gram models, read with every line checked, and written.
# A header has the number of n-grams of each order, a section for each order follows. A line is log10 of a
# probability, a tab, the words, and in all orders but the highest perhaps a tab and log10 of the back-off weight.


MAX_ORDER = 10
_ARPA = FileKind("the language model", 1 << 40)  # read line by line
_MAX_LINE_BYTES = 1 << 16
_LEAST_LINE_BYTES = 4  # "0", a tab, one letter, the end of the line
_MOST_NGRAMS = 1 << 31
_MOST_GROWTH = 100  # when decompressed
_GZIP = b"\x1f\x8b"
_COUNT = re.compile(rb"ngram\s+(\d{1,9})\s*=\s*(\d{1,18})")
_NOT_IN_FILE = -100.0  # of <unk>, where a file does not list it: KenLM's value
_ROUNDING = 1e-4  # so much above 0 may log10 of a probability be
_LINES_AT_ONCE = 1 << 16


class _NgramOrder(NamedTuple):
    """One order of a file: ids (N, order), log10 of probabilities and weights (N,); the number of its first line."""

    ids: npt.NDArray[np.int32]
    log_probs: LogProbs
    backoffs: LogProbs
    first_line: int


class _Numbers(dict[bytes, int]):
    """Gives each new word the next number."""

    def __missing__(self, word: bytes) -> int:
        self[word] = number = len(self)
        return number


def read_arpa(path: str | Path) -> NgramTables:
    """The model in an ARPA file, which may be compressed by gzip.

    Raises:
        DataError: the file cannot be read or is no such file, with the first line from which that is seen; an n-gram
            is listed twice, or its words or its beginning are not listed.
    """
    path = Path(path)
    try:
        with open_file(path, _ARPA) as raw:
            is_packed = raw.read(2) == _GZIP
            raw.seek(0)
            size = os.fstat(raw.fileno()).st_size
            file: IO[bytes] | gzip.GzipFile = gzip.GzipFile(fileobj=raw) if is_packed else raw
            return _Reader(file, str(path), size * _MOST_GROWTH if is_packed else size).read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError("the compressed file is damaged", place=str(path), got=str(error)) from None
    except OSError as error:
        raise DataError("the file cannot be read", place=str(path), got=f'"{error.strerror or error}"') from None


def write_arpa(path: str | Path, tables: NgramTables) -> None:
    """Write a model as an ARPA file, all or nothing.

    Raises:
        UsageError: it cannot be written.
    """

    def write(file: Path) -> None:
        with open(file, "w", encoding="utf-8", newline="\n") as out:
            counts = "".join(f"ngram {order}={len(t.words)}\n" for order, t in enumerate(tables.orders, 1))
            out.write(f"\\data\\\n{counts}")
            for order in range(1, len(tables.orders) + 1):
                out.write(f"\n\\{order}-grams:\n")
                out.writelines(_lines(tables, order))
            out.write("\n\\end\\\n")

    write_atomically(path, write)


def _lines(tables: NgramTables, order: int) -> Iterator[str]:
    names = np.array([*tables.words, *MARKS], object)
    table, ids = tables.orders[order - 1], tables.ids_of(order)
    for first in range(0, len(ids), _LINES_AT_ONCE):
        part = slice(first, first + _LINES_AT_ONCE)
        rows = zip(
            table.log_probs[part].tolist(), names[ids[part]].tolist(), table.backoffs[part].tolist(), strict=True
        )
        if order == len(tables.orders):
            yield "".join([f"{log_prob:.7g}\t{' '.join(words)}\n" for log_prob, words, _ in rows])
        else:
            yield "".join([f"{log_prob:.7g}\t{' '.join(words)}\t{backoff:.7g}\n" for log_prob, words, backoff in rows])


class _Reader:
    """Reads one file from its beginning to its end."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, path: str, num_bytes: int) -> None:
        self._file, self._path, self._num_bytes = file, path, num_bytes
        self._line = 0

    def read(self) -> NgramTables:
        counts = self._counts()
        words, table = self._single_words(counts[0], is_highest=len(counts) == 1)
        ids = {word.encode(): number for number, word in enumerate([*words, *MARKS])}
        ids[b"<UNK>"] = ids[UNKNOWN_WORD.encode()]
        tables, keys = [table], [np.arange(len(words) + len(MARKS))]
        for order, count in enumerate(counts[1:], 2):
            self._check_title(self._next_line(), order)
            section = self._section(order, count, ids.__getitem__, is_highest=order == len(counts))
            tables.append(self._table(section, keys))
        if (line := self._next_line()) != b"\\end\\":
            raise self._error("the section has more n-grams than the header says", line, wanted="\\end\\")
        return NgramTables(words, tables)

    def _counts(self) -> list[int]:
        """The number of n-grams of each order; the title of the first section is read too."""
        if (line := self._next_line()) != b"\\data\\":
            raise self._error("this is no ARPA file", line, wanted="\\data\\ as its first line")
        counts: list[int] = []
        while (line := self._next_line()).startswith(b"ngram"):
            match = _COUNT.fullmatch(line)
            if match is None or int(match[1]) != len(counts) + 1:
                raise self._error("the header is damaged", line, wanted=f"ngram {len(counts) + 1}=NUMBER")
            counts.append(int(match[2]))
        self._check_title(line, 1)
        if not 1 <= len(counts) <= MAX_ORDER:
            raise self._error("the order is out of range", got=str(len(counts)), wanted=f"1 to {MAX_ORDER}")
        too_many = sum(counts) * _LEAST_LINE_BYTES > self._num_bytes
        if too_many or sum(counts) > _MOST_NGRAMS:
            raise self._error("the header says more n-grams than the file holds", got=f"{sum(counts)} n-grams")
        return counts

    def _single_words(self, count: int, is_highest: bool) -> tuple[list[str], NgramTable]:
        numbers = _Numbers()
        section = self._section(1, count, numbers.__getitem__, is_highest)
        ids = section.ids[:, 0]
        if len(numbers) < count:
            again = int(np.flatnonzero(ids != np.arange(count))[0])
            raise self._error("the word is listed twice", list(numbers)[ids[again]], line=section.first_line + again)
        names = []
        for number, word in enumerate(numbers):
            try:
                names.append(word.decode())
            except UnicodeDecodeError:
                raise self._error("the word is not UTF-8", word, line=section.first_line + number) from None
        names = [UNKNOWN_WORD if name == "<UNK>" else name for name in names]
        words = [name for name in names if name not in MARKS]
        for mark in MARKS[1:]:
            if mark not in names:
                remedy = "a model of sentences lists where they start and end"
                raise self._error(f"the words have no {mark}", line=section.first_line, remedy=remedy)
        positions = {name: number for number, name in enumerate([*words, *MARKS])}
        renamed = [positions[name] for name in names]
        log_probs = np.full(len(positions), _NOT_IN_FILE, np.float32)
        backoffs = np.zeros(len(positions), np.float32)
        log_probs[renamed], backoffs[renamed] = section.log_probs, section.backoffs
        nothing = np.zeros(len(positions), np.int64)
        return words, NgramTable(nothing, np.arange(len(positions), dtype=np.int32), log_probs, backoffs)

    def _table(self, section: _NgramOrder, keys: list[Ids]) -> NgramTable:
        """The table of a longer order; ``keys`` of the tables below gets its own."""
        num_ids, (*beginning, last) = len(keys[0]), section.ids.T.astype(np.int64)
        rows = beginning[0]
        for below, word in zip(keys[1:], beginning[1:], strict=True):
            rows = np.where(rows < 0, -1, rows_of(below, rows * num_ids + word))
        if (lost := np.flatnonzero(rows < 0)).size:
            line = section.first_line + int(lost[0])
            problem = "the n-gram without its last word is not listed among the shorter ones"
            raise self._error(problem, line=line, remedy="the file is cut, or not made as ARPA files are")
        new_keys = rows * num_ids + last
        order = np.argsort(new_keys, kind="stable")
        keys.append(new_keys[order])
        if (twice := np.flatnonzero(keys[-1][1:] == keys[-1][:-1])).size:
            raise self._error("the n-gram is listed twice", line=section.first_line + int(order[twice + 1].min()))
        columns = rows[order], last[order].astype(np.int32), section.log_probs[order], section.backoffs[order]
        return NgramTable(*columns)

    def _section(self, order: int, count: int, id_of: Callable[[bytes], int], is_highest: bool) -> _NgramOrder:
        """The lines of an order; its title has been read."""
        ids, log_probs, backoffs = array("i"), array("f"), array("f")
        first, readline = self._line + 1, self._file.readline
        for number in range(count):
            line = readline(_MAX_LINE_BYTES)
            fields = line.split()
            try:
                log_probs.append(float(fields[0]))
                ids.extend(map(id_of, fields[1 : order + 1]))
                backoffs.append(float(fields[order + 1]) if len(fields) != order + 1 else 0.0)
            except (ValueError, KeyError, IndexError):
                raise self._bad_line(line, first + number, order, id_of) from None
            if len(fields) > order + 2 or len(line) == _MAX_LINE_BYTES:
                raise self._bad_line(line, first + number, order, id_of)
        self._line += count
        columns = np.frombuffer(log_probs, np.float32), np.frombuffer(backoffs, np.float32)
        is_good = np.isfinite(columns[0]) & (columns[0] <= _ROUNDING) & np.isfinite(columns[1])
        if is_highest:
            is_good &= columns[1] == 0.0
        if not is_good.all():
            at = int(np.flatnonzero(~is_good)[0])
            got = f"{log_probs[at]:g} and {backoffs[at]:g}"
            wanted = "log10 of a probability, 0 or less, and a finite weight (of the longest n-grams none)"
            raise self._error("the numbers are out of range", line=first + at, got=got, wanted=wanted)
        return _NgramOrder(
            np.frombuffer(ids, np.int32).reshape(-1, order), np.minimum(columns[0], 0.0), columns[1], first
        )

    def _bad_line(self, line: bytes, number: int, order: int, id_of: Callable[[bytes], int]) -> DataError:
        """What is wrong with a line of a section."""
        fields = line.split()
        if not line:
            return self._error("the file ends too early", line=number, remedy="it was cut; copy or make it again")
        if not fields or line.startswith(b"\\"):
            problem = f"the section of order {order} has fewer n-grams than the header says"
            return self._error(problem, line=number, remedy="the file is damaged; copy or make it again")
        if order > 1 and len(fields) >= order + 1:
            for word in fields[1 : order + 1]:
                try:
                    id_of(word)
                except KeyError:
                    return self._error("the word is not listed among the single words", word, line=number)
        return self._error(
            "the line is damaged", line, line=number, wanted=f"a number, {counted(order, 'word')}, a number"
        )

    def _check_title(self, line: bytes, order: int) -> None:
        if line != b"\\%d-grams:" % order:
            problem = (
                "the section before has more n-grams than the header says" if order > 1 else "the header is damaged"
            )
            raise self._error(problem, line, wanted=f"\\{order}-grams:")

    def _next_line(self) -> bytes:
        """The next line that is not blank."""
        while line := self._file.readline(_MAX_LINE_BYTES):
            self._line += 1
            if text := line.strip():
                return text
        raise self._error("the file ends too early", line=self._line + 1, remedy="it was cut; copy or make it again")

    def _error(
        self,
        problem: str,
        text: bytes = b"",
        *,
        line: int | None = None,
        got: str = "",
        wanted: str = "",
        remedy: str = "",
    ) -> DataError:
        place = f"{self._path}:{line or max(self._line, 1)}"
        got = got or (repr(text[:60].decode(errors="replace")) if text else "")
        return DataError(problem, place=place, got=got, wanted=wanted, remedy=remedy)


# NgramModel: look-up of n-grams with back-off, one word or many at once.


class NgramModel:
    """An n-gram language model with back-off. Scores are logarithms to the base 10; it is a `LanguageModel`.

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

    def _after_shorter(self, states: Ids, words: npt.NDArray[np.int32]) -> Ids:
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
        scores, states = self.score_batch(np.array([state]), np.array([self._ids.get(word, UNKNOWN)]))
        return float(scores[0]), int(states[0])

    def end(self, state: int) -> float:
        """log10 P(the text ends | state)."""
        return float(self.end_batch(np.array([state]))[0])

    def score_batch(self, states: Ids, words: Ids) -> tuple[Scores, Ids]:
        """As :meth:`score`: states (N,) and positions in ``words`` (N,), negative ones unknown, to scores, states."""
        weights, rows = self._look_up(states, np.where(words < 0, self._unknown, words), self._keys)
        return weights + self._log_probs[rows], self._next[rows]

    def end_batch(self, states: Ids) -> Scores:
        """As :meth:`end`: states (N,) to scores (N,)."""
        weights, rows = self._look_up(states, np.full(len(states), self._end), self._keys)
        scores: Scores = weights + self._log_probs[rows]
        return scores

    def _look_up(self, states: Ids, words: Ids, keys: Ids) -> tuple[Scores, Ids]:
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


# KenlmModel: binaries of KenLM, read by the optional package ``kenlm``. ARPA files need no package.


_MAGIC = b"mmap lm http://kheafield.com/code"
_BINARY = FileKind("the binary of KenLM", 1 << 40)  # mapped, not read
_KENLM_FIRST_WORD = b"<unk>\0"
INSTALL = "pip install ufal-kenlm"


def is_kenlm_binary(path: Path) -> bool:
    """Whether a file begins as KenLM's binaries do.

    Raises:
        DataError: it cannot be read.
    """
    with open_file(path, _BINARY) as file:
        return file.read(len(_MAGIC)) == _MAGIC


class KenlmModel(WordByWord):
    """A language model in a binary of KenLM (``build_binary``), of any of its types. Scores are log10.

    KenLM's states become whole numbers in the order in which they are met.

    Args:
        path: the file. It must hold its words, as it does unless it was built without.

    Raises:
        UsageError: the package ``kenlm`` is not installed.
        DataError: the file is damaged, of another version, or holds no words.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        try:
            import kenlm
        except ImportError:
            problem, remedy = "reading binaries of KenLM needs a package", f"{INSTALL}, or give the ARPA file"
            raise UsageError(problem, place=str(path), remedy=remedy) from None
        try:
            self._model: Any = kenlm.Model(str(path))
        except OSError as error:
            reason = " ".join(str(error).split())[:300]
            raise DataError("KenLM cannot read the file", place=str(path), got=reason) from None
        self._new_state = kenlm.State
        self.words = _words_in(path)
        first = kenlm.State()
        self._model.BeginSentenceWrite(first)
        self._states: list[Any] = [first]
        self._numbers: dict[Any, int] = {first: 0}

    def start(self) -> int:
        """The state in front of a text's first word."""
        return 0

    def score(self, state: int, word: str) -> tuple[float, int]:
        """log10 P(word | state), and the state behind the word. A word that is not known is scored as ``<unk>``."""
        after = self._new_state()
        score: float = self._model.BaseScore(self._states[state], word, after)
        with self._lock:  # else two threads might give one number to two states
            number = self._numbers.setdefault(after, len(self._states))
            if number == len(self._states):
                self._states.append(after)
        return score, number

    def end(self, state: int) -> float:
        """log10 P(the text ends | state)."""
        score: float = self._model.BaseScore(self._states[state], "</s>", self._new_state())
        return score


def _words_in(path: Path) -> list[str]:
    """The words of a binary: they are its end, each with a null character behind it, ``<unk>`` first."""
    with open_file(path, _BINARY) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        first = content.rfind(_KENLM_FIRST_WORD)
        listed = content[first:].split(b"\0") if first >= 0 else []
    if not listed or listed[-1]:
        raise DataError("the binary of KenLM holds no words", place=str(path), remedy="build it again, with its words")
    try:
        names = [word.decode() for word in listed[:-1]]
    except UnicodeDecodeError:
        raise DataError("the words of the binary of KenLM are not UTF-8", place=str(path)) from None
    return [name for name in names if name not in MARKS]


# From counts of n-grams to their probabilities: interpolated, modified Kneser-Ney. No texts and no files in here.
# Source: Chen and Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling", TR-10-98, Harvard
# 1998: sections 2.7 (Kneser-Ney), 3 (its modification: three discounts) and 2.5 (Witten-Bell). Unknown words share
# what the single words leave over, as Heafield et al., "Scalable Modified Kneser-Ney Language Model Estimation", ACL
# 2013.


class Discounts(NamedTuple):
    """What is taken from n-grams that were counted once, twice, and more often."""

    once: float
    twice: float
    more: float


class Estimated(NamedTuple):
    """A model, and how it was smoothed.

    Attributes:
        tables: its n-grams.
        discounts: for each order those of Kneser-Ney; None where the counts give none, so Witten-Bell took its place.
    """

    tables: NgramTables
    discounts: list[Discounts | None]


class _Smoothed(NamedTuple):
    """Of one order: the discounted probability of each n-gram, and what each history leaves to shorter ones."""

    probs: Scores
    left_over: Scores


def estimate(counter: NgramCounter, place: str = "") -> Estimated:
    """The model of the sentences that were counted. The probabilities after each history sum to 1.

    Args:
        counter: has counted them.
        place: where they come from, for the message.

    Raises:
        DataError: there is no sentence with a word in it.
    """
    if not counter.num_words:
        problem, got = "there are no words to make a language model of", f"{counter.num_sentences} texts with words"
        raise DataError(problem, place=place, got=got)
    counts = counter.tables()
    words = counter.words
    # A word that never ends a sentence, and <unk>, which never occurs, get their share from this.
    probs = np.full(len(words) + 3, 1.0 / (len(words) + 2))
    tables: list[NgramTable] = []
    discounts: list[Discounts | None] = []
    num_histories = 1
    for order, table in enumerate(counts, 1):
        adjusted = _adjusted(table, counts[order] if order < len(counts) else None)
        if order == 1:
            adjusted[table.starts] = 0  # no model predicts the start of a sentence
        order_discounts = discounts_of(adjusted)
        discounts.append(order_discounts)
        smoothed = _smooth(adjusted, table.prefixes, num_histories, order_discounts)
        if tables:
            backoffs = np.log10(smoothed.left_over).astype(np.float32)
            tables[-1] = tables[-1]._replace(backoffs=backoffs)
        below = probs if order == 1 else probs[table.suffixes]
        probs = smoothed.probs + smoothed.left_over[table.prefixes] * below
        log_probs = np.log10(probs).astype(np.float32)
        if order == 1:
            log_probs[table.starts] = NEVER
        tables.append(NgramTable(table.prefixes, table.words, log_probs, np.zeros(len(probs), np.float32)))
        num_histories = len(probs)
    return Estimated(NgramTables(words, tables), discounts)


def discounts_of(counts: Ids) -> Discounts | None:
    """The discounts of modified Kneser-Ney, from how many n-grams have each of the counts 1 to 4.

    Args:
        counts: (N,) of all n-grams of an order.

    Returns:
        None where they cannot be told: a small set has no n-gram with one of the counts, or more with a higher one.
    """
    one, two, three, four = (int(np.count_nonzero(counts == number)) for number in (1, 2, 3, 4))
    if not (one and two and three):
        return None
    scale = one / (one + 2 * two)
    result = Discounts(1 - 2 * scale * two / one, 2 - 3 * scale * three / two, 3 - 4 * scale * four / three)
    return result if all(0 < discount <= most for most, discount in enumerate(result, 1)) else None


def _adjusted(table: CountTable, above: CountTable | None) -> Ids:
    """The counts that Kneser-Ney smooths: in the highest order how often an n-gram occurs; in the others after how
    many different words. Nothing comes before the start of a sentence, so what begins with it keeps its count."""
    if above is None:
        return table.counts.copy()
    kinds = np.bincount(above.suffixes, minlength=len(table.counts))
    return np.where(table.starts, table.counts, kinds)


def _smooth(counts: Ids, histories: Ids, num_histories: int, discounts: Discounts | None) -> _Smoothed:
    """Probabilities (N,) and what is left over of each history (num_histories,), 1 of those that nothing follows."""
    totals = np.bincount(histories, counts, num_histories)
    if discounts is None:  # Witten-Bell: as much as there are different words is left over
        taken = np.zeros(len(counts))
        left = np.bincount(histories, counts > 0, num_histories)
        totals = totals + left
    else:
        taken = np.array([0.0, *discounts])[np.minimum(counts, 3)]
        left = np.bincount(histories, taken, num_histories)
    has_next = totals > 0
    totals = np.where(has_next, totals, 1.0)
    return _Smoothed((counts - taken) / totals[histories], np.where(has_next, left / totals, 1.0))


# load_language_model: a file of an n-gram model, whatever its format.


_loaded: WeakValueDictionary[tuple[int, ...], LanguageModel] = WeakValueDictionary()
_loading = Lock()


def load_language_model(path: str | Path) -> LanguageModel:
    """The n-gram model in a file: ARPA, perhaps compressed by gzip, or a binary of KenLM.

    It is one object for all that use it at a time, also in several threads: none of them changes it.

    Raises:
        DataError: there is no such file, or it is damaged or of another format; of ARPA files with the line.
        UsageError: a binary of KenLM, and the package that reads them is not installed.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        problem = "the language model is a folder" if path.is_dir() else "the language model does not exist"
        raise DataError(problem, place=str(path), wanted="an ARPA file or a binary of KenLM")
    status = path.stat()
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    with _loading:
        model = _loaded.get(identity)
        if model is None:
            model = KenlmModel(path) if is_kenlm_binary(path) else NgramModel(read_arpa(path))
            _loaded[identity] = model
        return model
