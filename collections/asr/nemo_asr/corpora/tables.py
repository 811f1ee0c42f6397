"""Tables: CSV or TSV with a line of column names, as Common Voice has them; lists with ``|`` as LJSpeech has one."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from nemo_asr.corpora.listed import Listed, by_set_name, channel_of
from nemo_asr.run.audio.kinds import ALL_SUFFIXES
from nemo_lite.base.errors import DataError
from nemo_lite.base.files import FileKind, names_in, open_file, path_in_list

_TABLE = FileKind("the table", 1 << 40)  # read line by line
_SAVE = "save it as UTF-8"
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
TABLE_SUFFIXES = (".csv", ".tsv")
_DELIMITERS = "\t|;,"  # the first one that makes sense of the first line is taken
AUDIO_COLUMNS = (
    "audio_filepath", "path", "audio", "file", "filename", "file_name", "audio_path", "audio_file", "wav",
    "wav_filename", "wav_path",
)  # fmt: skip
TEXT_COLUMNS = ("text", "sentence", "transcript", "transcription", "normalized_text")
SPEAKER_COLUMNS = ("speaker", "client_id", "speaker_id", "spk", "spk_id")
# Of a part of the recording: seconds of its beginning and end, or of how long it is; its channel, from 0.
START_COLUMNS = ("offset", "start", "start_time", "begin", "begin_time")
END_COLUMNS = ("end", "end_time", "stop")
DURATION_COLUMNS = ("duration", "length", "seconds")
CHANNEL_COLUMNS = ("channel",)
_FOLDERS = ("", "clips", "audios", "wavs", "wav", "audio")  # beside a table, where its recordings may be
_COMMON_VOICE_SETS = ("train", "dev", "test")
_LOOKED_AT = 20  # lines behind the first one that tell how many columns a table without names has
_MOST_LINES = 100  # of a cell in quotation marks
_SEPARATOR = re.compile(r"sep=(.)\s*")  # Excel's first line


class _Columns(NamedTuple):
    audio: int
    text: int
    speaker: int | None = None
    start: int | None = None
    end: int | None = None
    duration: int | None = None
    channel: int | None = None
    are_named: bool = True


def tables_in(path: Path) -> list[Path]:
    """A table of recordings and texts, or those in a folder; with one that can be read also those that cannot."""
    if path.is_file():
        return [path] if path.suffix.lower() in TABLE_SUFFIXES else []
    tables, readable = list[Path](), False
    for table in (path / name for name in names_in(path) if name.lower().endswith(TABLE_SUFFIXES)):
        try:
            has_rows = table.is_file() and next(table_utterances(table), None) is not None
            readable |= has_rows
        except NoColumnsError:
            continue
        except DataError:
            has_rows = True  # told as one that cannot be read
        tables += [table] if has_rows else []
    return tables if readable else []


def common_voice_tables(path: Path) -> list[Path]:
    """The tables of a language of Common Voice, beside a folder ``clips``."""
    tables = tables_in(path) if (path / "clips").is_dir() else []
    return tables if any(table.suffix == ".tsv" for table in tables) else []


def common_voice_names(files: Iterable[Path]) -> dict[str, Path]:
    """The three sets of Common Voice; where there are none of them, ``validated`` or all tables."""
    tables = by_set_name(files)
    names = [name for name in _COMMON_VOICE_SETS if name in tables] or [
        name for name in ("validated",) if name in tables
    ]
    return {name: tables[name] for name in names or [*tables.keys() - {"invalidated"}]}


def told_utterances(table: Path) -> Iterator[Listed | DataError]:
    """As `table_utterances`; of a table that cannot be read the reason, so that others are."""
    try:
        yield from table_utterances(table)
    except DataError as error:
        yield error


class NoColumnsError(DataError):
    """A table whose first line names no columns of audio and text."""


def table_utterances(table: Path) -> Iterator[Listed | DataError]:
    """The utterances of a CSV or TSV file.

    Which columns there are is told by the first line. A table without one has the audio in its first column and the
    text in its second; of three columns between bars in its third.

    Raises:
        DataError: it cannot be read, or has no such columns.
    """
    with open_file(table, _TABLE) as file:
        start = file.read(2)
        if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or 0 in start:
            raise DataError("the table is UTF-16", place=str(table), remedy=_SAVE)
        file.seek(0)
        # A byte that is not UTF-8 is told with its line.
        with io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="") as lines:
            yield from _table_rows(table, lines)


def _table_rows(table: Path, lines: io.TextIOWrapper) -> Iterator[Listed | DataError]:
    number, head = 1, lines.readline()
    if separator := _SEPARATOR.fullmatch(head):
        number, head = 2, lines.readline()
    behind = list(islice(lines, _LOOKED_AT))
    readings = _readings(table, head, behind, separator[1] if separator else _DELIMITERS)
    delimiter, columns, num_cells = next(readings, ("", None, 0))
    if columns is None:
        wanted = f"one of {', '.join(AUDIO_COLUMNS[:5])}, ... and one of {', '.join(TEXT_COLUMNS)}"
        got, place = head.strip()[:80] or "nothing", f"{table}:{number}"
        raise NoColumnsError("the first line names no columns of audio and text", place=place, got=got, wanted=wanted)
    rows = _TableRows(table, delimiter, columns, num_cells)
    if not columns.are_named:
        yield from rows.read(head, number)
    for line in chain(behind, lines):
        number += 1
        yield from rows.read(line, number)
    yield from rows.finish()


class _TableRows:
    """Reads a table line by line. One that does not fit the first is an error with its place, and the others go on.

    Args:
        table: the file.
        delimiter: between cells.
        columns: where what is.
        num_cells: of a row.
    """

    def __init__(self, table: Path, delimiter: str, columns: _Columns, num_cells: int) -> None:
        self._table, self._delimiter, self._columns, self._num_cells = table, delimiter, columns, num_cells
        # Tables by tabs and bars hold quotation marks as they are; those of spreadsheets double them.
        self._is_quoted = delimiter not in "\t|"
        self._waiting: list[tuple[str, int]] = []  # lines from one whose quotation mark is open

    def read(self, line: str, number: int) -> Iterator[Listed | DataError]:
        """The utterance that ends with a line, if one does."""
        if not (self._is_quoted and (self._waiting or '"' in line)):
            if line.strip():
                yield self._row(line, number)
            return
        self._waiting.append((line, number))
        is_closed = self._is_closed()
        if self._is_other_row(line, is_closed) or len(self._waiting) > _MOST_LINES:
            yield from self.open_cell()
        elif is_closed:
            row = self._row("".join(line for line, _ in self._waiting), self._waiting[0][1])
            if isinstance(row, DataError) and len(self._waiting) > 1:
                yield from self.open_cell()
            else:
                self._waiting = []
                yield row

    def _is_closed(self) -> bool:
        """Whether no cell is open behind the lines that wait."""
        try:
            _cells("".join(line for line, _ in self._waiting), self._delimiter)
        except csv.Error as error:
            return "unexpected end" not in str(error)
        return True

    def finish(self) -> Iterator[DataError | Listed]:
        """Tell of quotation marks that nothing closes at the end of the table."""
        while self._waiting:
            yield from self.open_cell()

    def open_cell(self) -> Iterator[Listed | DataError]:
        """Tell of a quotation mark that is not closed, and read the lines behind it again."""
        (line, number), *others = self._waiting
        self._waiting = []
        remedy = "close it, or double it where it is part of the text"
        problem = "a quotation mark is opened and not closed in this row"
        yield DataError(problem, place=f"{self._table}:{number}", got=line.strip()[:60], remedy=remedy)
        for line, number in others:
            yield from self.read(line, number)

    def _is_other_row(self, line: str, is_closed: bool) -> bool:
        """Whether a line that is read as part of a cell is a row by itself: its recording is there."""
        columns, cells = self._columns, line.split(self._delimiter)
        has_recording = len(self._waiting) > 1 if columns.audio < columns.text else not is_closed
        if not has_recording or len(cells) <= columns.audio:
            return False
        return _audio_beside(self._table, cells[columns.audio].strip().strip('"')).is_file()

    def _row(self, line: str, number: int) -> Listed | DataError:
        place, columns, wanted = f"{self._table}:{number}", self._columns, f"{self._num_cells}, as in the first line"
        if byte := _NOT_UTF8.search(line):
            got = f"the byte {ord(byte[0]) - 0xDC00:#04x}"
            return DataError("the line is not UTF-8", place=place, got=got, remedy=_SAVE)
        try:
            cells = _cells(line, self._delimiter)
        except csv.Error as error:
            remedy = "a cell in quotation marks ends with one, and doubles those in it"
            return DataError("the row cannot be read", place=place, got=f'"{error}"', remedy=remedy)
        while len(cells) > self._num_cells and not cells[-1].strip():  # spreadsheets fill up rows
            cells.pop()
        if len(cells) > self._num_cells:
            mark = "tab" if self._delimiter == "\t" else f'"{self._delimiter}"'
            remedy = f"put a text with {mark} in it into quotation marks"
            remedy = remedy if self._is_quoted else f"take the {mark} out of the text"
            got = str(len(cells))
            return DataError("the line has too many columns", place=place, got=got, wanted=wanted, remedy=remedy)
        needed = max(columns.audio, columns.text)
        if len(cells) <= needed or (len(cells) < self._num_cells and not (self._is_quoted and columns.are_named)):
            return DataError("the line has too few columns", place=place, got=str(len(cells)), wanted=wanted)
        try:
            return self._listed(place, cells)
        except ValueError as error:
            wanted = "seconds: 1.5"
            return DataError("the row has no times of a part", place=place, got=f'"{error}"', wanted=wanted)

    def _listed(self, place: str, cells: Sequence[str]) -> Listed:
        def cell(column: int | None) -> str:
            return cells[column].strip() if column is not None and column < len(cells) else ""

        columns = self._columns
        audio = _audio_beside(self._table, cells[columns.audio].strip())
        start, end = float(cell(columns.start) or 0.0), float(cell(columns.end)) if cell(columns.end) else None
        if end is None and cell(columns.start) and cell(columns.duration):  # a length alone is that of the recording
            end = start + float(cell(columns.duration))
        channel = channel_of(written, 0) if (written := cell(columns.channel)) not in ("", "mix") else None
        return Listed(place, audio, cells[columns.text], cell(columns.speaker), start, end, channel)


def _cells(line: str, delimiter: str) -> list[str]:
    """The cells of a row. csv.Error where they cannot be told apart."""
    is_quoted = delimiter not in "\t|"
    row = line.rstrip() if is_quoted else line.rstrip("\r\n")
    reader = csv.reader(
        [row],
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE,
        strict=is_quoted,
        skipinitialspace=is_quoted,
    )
    return next(reader, [])


def _readings(table: Path, head: str, behind: Sequence[str], delimiters: str) -> Iterator[tuple[str, _Columns, int]]:
    """Delimiters that make sense of the first line, with the columns and their number then.

    Columns are told by their names, or a recording comes first, and there are as many as in most of the lines behind;
    of three between bars without names, the third is the text in words, as in LJSpeech.
    """
    for delimiter in delimiters:
        try:
            cells = _cells(head, delimiter)
        except csv.Error:
            continue
        if (columns := _columns_of(cells)) is not None:
            yield delimiter, columns, len(cells)
        elif len(cells) > 1 and _audio_beside(table, cells[0]).is_file():
            ((num_cells, _),) = Counter(line.count(delimiter) + 1 for line in (head, *behind)).most_common(1)
            num_cells = num_cells if delimiter in "\t|" else len(cells)
            text = 2 if delimiter == "|" and num_cells == 3 else 1
            yield delimiter, _Columns(0, text, are_named=False), num_cells


def _columns_of(cells: Sequence[str]) -> _Columns | None:
    names = [cell.strip().lower() for cell in cells]

    def column(known: Sequence[str]) -> int | None:
        return next((names.index(name) for name in known if name in names), None)

    audio, text = column(AUDIO_COLUMNS), column(TEXT_COLUMNS)
    if audio is None or text is None:
        return None
    start, end, duration = column(START_COLUMNS), column(END_COLUMNS), column(DURATION_COLUMNS)
    return _Columns(audio, text, column(SPEAKER_COLUMNS), start, end, duration, column(CHANNEL_COLUMNS))


def _audio_beside(table: Path, name: str) -> Path:
    """The file that a table names: beside it or in one of the usual folders, with its ending or without."""
    if "\0" in name or not name:
        return table.parent / "no name"
    endings = ("",) if Path(name).suffix.lower() in ALL_SUFFIXES else ("", ".wav", ".mp3", ".flac")
    folders = [table.parent / folder for folder in _FOLDERS if (table.parent / folder).is_dir()]
    candidates = [folder / f"{name}{ending}" for folder in folders for ending in endings]
    if found := next((candidate for candidate in candidates if candidate.is_file()), None):
        return found
    elsewhere = Path(path_in_list(name, str(table.parent)))
    return elsewhere if elsewhere.is_file() or len(folders) == 1 else folders[1] / name
