"""Tables: CSV or TSV with a line of column names, as Common Voice has them; lists with ``|`` as LJSpeech has one."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nemo_asr.corpora.listed import SUFFIXES, Listed, Sets
from nemo_lite.errors import DataError
from nemo_lite.files import FileKind, names_in, open_file, path_in_list

if TYPE_CHECKING:
    from _csv import Reader
_TABLE = FileKind("the table", 1 << 40)  # read line by line
_TABLE_SUFFIXES = (".csv", ".tsv")
_DELIMITERS = "\t|;,"  # the first one that makes sense of the first line is taken
AUDIO_COLUMNS = (
    "audio_filepath", "path", "audio", "file", "filename", "file_name", "audio_path", "audio_file", "wav",
    "wav_filename", "wav_path",
)  # fmt: skip
TEXT_COLUMNS = ("text", "sentence", "transcript", "transcription", "normalized_text")
SPEAKER_COLUMNS = ("speaker", "client_id", "speaker_id", "spk", "spk_id")
_FOLDERS = ("", "clips", "audios", "wavs", "wav", "audio")  # beside a table, where its recordings may be
_COMMON_VOICE_SETS = ("train", "dev", "test")


class _Columns(NamedTuple):
    audio: int
    text: int
    speaker: int | None
    are_named: bool = True


def is_table(path: Path) -> bool:
    """Whether this is a table of recordings and texts, or a folder with some."""
    return bool(_tables(path))


def is_common_voice(path: Path) -> bool:
    """Whether this is a language of Common Voice: tables beside a folder ``clips``."""
    return (path / "clips").is_dir() and any(table.suffix == ".tsv" for table in _tables(path))


def table_sets(path: Path) -> Sets:
    """The utterances of each table."""
    return {table.stem: table_utterances(table) for table in _tables(path)}


def common_voice_sets(path: Path) -> Sets:
    """The three sets of Common Voice; in a folder that has none of them, ``validated.tsv`` or all tables."""
    tables = {table.stem: table for table in _tables(path)}
    names = [name for name in _COMMON_VOICE_SETS if name in tables] or [
        name for name in ("validated",) if name in tables
    ]
    return {name: table_utterances(tables[name]) for name in names or [*tables.keys() - {"invalidated"}]}


def _tables(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix.lower() in _TABLE_SUFFIXES else []
    tables = [path / name for name in names_in(path) if name.lower().endswith(_TABLE_SUFFIXES)]
    return [table for table in tables if table.is_file() and _has_columns(table)]


def _has_columns(table: Path) -> bool:
    try:
        return next(table_utterances(table), None) is not None
    except DataError:
        return False


def table_utterances(table: Path) -> Iterator[Listed | DataError]:
    """The utterances of a CSV or TSV file.

    Which columns there are is told by the first line. A table without one has the audio in its first column and the
    text in its second; of three columns between bars in its third.

    Raises:
        DataError: it cannot be read, or has no such columns.
    """
    with open_file(table, _TABLE) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as lines:
        try:
            yield from _table_rows(table, lines)
        except UnicodeDecodeError as error:
            got, remedy = f"the byte {error.object[error.start]:#04x}", "save it as UTF-8"
            raise DataError("the table is not UTF-8", place=str(table), got=got, remedy=remedy) from None
        except csv.Error as error:
            raise DataError("the table cannot be read", place=str(table), got=f'"{error}"') from None


def _table_rows(table: Path, lines: io.TextIOWrapper) -> Iterator[Listed | DataError]:
    head = lines.readline()
    delimiter, columns = next(_readings(table, head), ("", None))
    if columns is None:
        wanted = f"one of {', '.join(AUDIO_COLUMNS[:5])}, ... and one of {', '.join(TEXT_COLUMNS)}"
        got = head.strip()[:80] or "nothing"
        raise DataError("the first line names no columns of audio and text", place=f"{table}:1", got=got, wanted=wanted)
    if not columns.are_named:
        lines.seek(0)
    first = 1 + columns.are_named
    rows = _rows(lines, delimiter)
    number = first
    for cells in rows:
        if cells:
            yield _row(table, f"{table}:{number}", cells, columns)
        number = first + rows.line_num


def _rows(lines: Iterable[str], delimiter: str) -> Reader:
    # Tables by tabs and bars hold quotation marks as they are; those of spreadsheets double them.
    is_quoted = delimiter not in "\t|"
    return csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE)


def _readings(table: Path, head: str) -> Iterator[tuple[str, _Columns]]:
    """Delimiters that make sense of the first line, with the columns then: by their names, or a recording comes first.

    Of three columns between bars without names, the third is the text in words, as in LJSpeech.
    """
    for delimiter in _DELIMITERS:
        cells = next(_rows([head], delimiter), [])
        if (columns := _columns_of(cells)) is not None:
            yield delimiter, columns
        elif len(cells) > 1 and _audio_beside(table, cells[0]).is_file():
            yield delimiter, _Columns(0, 2 if delimiter == "|" and len(cells) == 3 else 1, None, are_named=False)


def _columns_of(cells: Sequence[str]) -> _Columns | None:
    names = [cell.strip().lower() for cell in cells]
    audio, text, speaker = (
        next((names.index(name) for name in known if name in names), None)
        for known in (AUDIO_COLUMNS, TEXT_COLUMNS, SPEAKER_COLUMNS)
    )
    return None if audio is None or text is None else _Columns(audio, text, speaker)


def _row(table: Path, place: str, cells: Sequence[str], columns: _Columns) -> Listed | DataError:
    if len(cells) <= max(columns.audio, columns.text):
        wanted = f"at least {max(columns.audio, columns.text) + 1}"
        return DataError("the line has too few columns", place=place, got=str(len(cells)), wanted=wanted)
    speaker = cells[columns.speaker].strip() if columns.speaker is not None and columns.speaker < len(cells) else ""
    return Listed(place, _audio_beside(table, cells[columns.audio].strip()), cells[columns.text], speaker)


def _audio_beside(table: Path, name: str) -> Path:
    """The file that a table names: beside it or in one of the usual folders, with its ending or without."""
    if "\0" in name or not name:
        return table.parent / "no name"
    endings = ("",) if Path(name).suffix.lower() in SUFFIXES else ("", ".wav", ".mp3", ".flac")
    folders = [table.parent / folder for folder in _FOLDERS if (table.parent / folder).is_dir()]
    candidates = [folder / f"{name}{ending}" for folder in folders for ending in endings]
    if found := next((candidate for candidate in candidates if candidate.is_file()), None):
        return found
    elsewhere = Path(path_in_list(name, str(table.parent)))
    return elsewhere if elsewhere.is_file() or len(folders) == 1 else folders[1] / name
