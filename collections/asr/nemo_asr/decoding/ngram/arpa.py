"""ARPA files: the text format of n-gram models, read with every line checked, and written.

A header has the number of n-grams of each order, a section for each order follows. A line is log10 of a probability, a
tab, the words, and in all orders but the highest perhaps a tab and log10 of the back-off weight.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from nemo_asr.decoding.ngram.tables import MARKS, UNKNOWN_WORD, LogProbs, NgramTable, NgramTables, Rows, rows_of
from nemo_lite.errors import DataError, counted
from nemo_lite.untrusted import FileKind, open_file
from nemo_lite.utils.files import write_atomically

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


class _Section(NamedTuple):
    """One order of a file: ids (N, order), log10 of probabilities and weights (N,); the number of its first line."""

    ids: npt.NDArray[np.int32]
    log_probs: LogProbs
    backoffs: LogProbs
    first_line: int


class _LineSource(Protocol):
    """What is needed of an open file."""

    def readline(self, size: int, /) -> bytes: ...


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
            file: _LineSource = gzip.GzipFile(fileobj=raw) if is_packed else raw
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

    def __init__(self, file: _LineSource, path: str, num_bytes: int) -> None:
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

    def _table(self, section: _Section, keys: list[Rows]) -> NgramTable:
        """The table of a longer order; ``keys`` of the tables below gets its own."""
        num_ids, (*beginning, last) = len(keys[0]), section.ids.T.astype(np.int64)
        rows = beginning[0]
        for below, word in zip(keys[1:], beginning[1:], strict=True):
            rows = np.where(rows < 0, -1, rows_of(below, rows * num_ids + word))
        if (lost := np.flatnonzero(rows < 0)).size:
            line = section.first_line + int(lost[0])
            problem = "the n-gram without its last word is not listed among the shorter ones"
            raise self._error(problem, line=line, remedy="the file is cut, or not made as ARPA files are")
        own = rows * num_ids + last
        order = np.argsort(own, kind="stable")
        keys.append(own[order])
        if (twice := np.flatnonzero(keys[-1][1:] == keys[-1][:-1])).size:
            raise self._error("the n-gram is listed twice", line=section.first_line + int(order[twice + 1].min()))
        columns = rows[order], last[order].astype(np.int32), section.log_probs[order], section.backoffs[order]
        return NgramTable(*columns)

    def _section(self, order: int, count: int, id_of: Callable[[bytes], int], is_highest: bool) -> _Section:
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
        return _Section(np.frombuffer(ids, np.int32).reshape(-1, order), np.minimum(columns[0], 0.0), columns[1], first)

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
