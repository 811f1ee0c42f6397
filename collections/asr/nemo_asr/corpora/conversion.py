"""Manifests of corpora as people have them: tables, folders of recordings with texts, lists of Kaldi, lhotse, WeNet.

``KINDS`` is the table of what can be read. A reader of one kind lists utterances: which file, which part of it, which
words, who speaks. What all of them share is here: finding the kind, reading the lengths, writing the manifests. A line
that cannot be used is a `DataError` in the list, and the others go on.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import math
import os
import re
import shlex
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tqdm import tqdm

from nemo_asr.audio import containers
from nemo_asr.audio.reading import AUDIO_SUFFIXES, open_audio
from nemo_asr.corpora.writing import Entry, as_written, write_manifest
from nemo_lite.errors import DataError, FileInTheWayError, UnknownNameError, listed
from nemo_lite.files import (
    FileKind,
    decode_text,
    make_writable_folder,
    names_in,
    open_file,
    parse_json,
    path_in_list,
    read_text,
)
from nemo_lite.files import numbered_lines as bytes_of_lines

# Also of files that need a package to be decoded: where it is missing, their lines say so.
_SUFFIXES = AUDIO_SUFFIXES | containers.SUFFIXES


class Listed(NamedTuple):
    """One utterance as its corpus lists it.

    Attributes:
        place: where it is listed, for messages.
        audio: the file.
        text: the words as written.
        speaker: who speaks; "" where that is not told.
        start, end: the part of the file, in seconds; None: to its end.
        channel: of a file of several, from 0; None: all of them.
    """

    place: str
    audio: Path
    text: str
    speaker: str = ""
    start: float = 0.0
    end: float | None = None
    channel: int | None = None


Utterances: TypeAlias = Iterable[Listed | DataError]
Sets: TypeAlias = Mapping[str, Utterances]  # by the name that the manifest gets


# A table: CSV or TSV with a line of column names. Common Voice's are tables beside a folder ``clips``.


_TABLE = FileKind("the table", 1 << 40)  # read line by line
_LOSSLESS = (".wav", ".flac")
_TABLE_SUFFIXES = (".csv", ".tsv")
_DELIMITERS = "\t|;,"
AUDIO_COLUMNS = (
    "audio_filepath", "path", "audio", "file", "filename", "file_name", "audio_path", "audio_file", "wav",
    "wav_filename", "wav_path",
)  # fmt: skip
TEXT_COLUMNS = ("text", "sentence", "transcript", "transcription", "normalized_text")
SPEAKER_COLUMNS = ("speaker", "client_id", "speaker_id", "spk", "spk_id")
_FOLDERS = ("", "clips", "wavs", "wav", "audio")  # beside a table, where its recordings may be
_COMMON_VOICE_SETS = ("train", "dev", "test")


class _Columns(NamedTuple):
    audio: int
    text: int
    speaker: int | None


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
    return {name: table_utterances(tables[name]) for name in names or tables}


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
    text in its second.

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
    lines.seek(0)
    delimiter = max(_DELIMITERS, key=lambda mark: (head.count(mark) > 0, mark == "\t", head.count(mark)))
    # Tables by tabs hold quotation marks as they are; those of spreadsheets double them.
    rows = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL)
    first = next(rows, [])
    columns = _columns_of(first)
    if columns is None:
        if len(first) < 2 or not _audio_beside(table, first[0]).is_file():
            wanted = f"one of {', '.join(AUDIO_COLUMNS[:5])}, ... and one of {', '.join(TEXT_COLUMNS)}"
            got = ", ".join(first)[:80] or "nothing"
            raise DataError(
                "the first line names no columns of audio and text", place=f"{table}:1", got=got, wanted=wanted
            )
        columns = _Columns(0, 1, None)
        yield _row(table, f"{table}:1", first, columns)
    number = rows.line_num + 1
    for cells in rows:
        if cells:
            yield _row(table, f"{table}:{number}", cells, columns)
        number = rows.line_num + 1


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
    endings = ("",) if Path(name).suffix.lower() in _SUFFIXES else ("", ".wav", ".mp3", ".flac")
    folders = [table.parent / folder for folder in _FOLDERS if (table.parent / folder).is_dir()]
    candidates = [folder / f"{name}{ending}" for folder in folders for ending in endings]
    if found := next((candidate for candidate in candidates if candidate.is_file()), None):
        return found
    elsewhere = Path(path_in_list(name, str(table.parent)))
    return elsewhere if elsewhere.is_file() or len(folders) == 1 else folders[1] / name


# A folder of recordings, each with a text file of its name beside it.


_TEXT = FileKind("the text", 1 << 20, remedy="save it as UTF-8 text")
_NO_TEXT_OF_A_RECORDING = re.compile(r"(?i)(readme|licen[cs]e|copying|changes|authors?|credits)\b.*")
_SET_FOLDERS = ("train", "dev", "valid", "validation", "val", "test", "eval")


def is_folder(path: Path) -> bool:
    """Whether there is a recording in this folder, or in one inside."""
    return path.is_dir() and next(_files(path, _SUFFIXES), None) is not None


def folder_sets(path: Path) -> Sets:
    """The recordings of a folder; of folders ``train``, ``dev``, ``test`` in it, where there are no others."""
    folders = {file.relative_to(path).parts[0] for file in _files(path, _SUFFIXES)}
    if folders and folders <= {*_SET_FOLDERS}:
        return {name: folder_utterances(path / name) for name in sorted(folders)}
    return {"manifest": folder_utterances(path)}


def folder_utterances(path: Path) -> Iterator[Listed | DataError]:
    """The recordings of a folder and of those inside, by name."""
    recordings: dict[Path, Path] = {}
    for audio in sorted(_files(path, _SUFFIXES), key=_best_first):
        stem = audio.with_suffix("")
        if stem in recordings:
            problem = f"two recordings have one text: {recordings[stem].name} is used"
            yield DataError(problem, place=str(audio), remedy="give it another name, or remove it")
            continue
        recordings[stem] = audio
        yield _with_text(audio)
    for text in sorted(_files(path, frozenset({".txt"}))):
        if text.with_suffix("") not in recordings and not _NO_TEXT_OF_A_RECORDING.fullmatch(text.name):
            yield DataError(
                "the text has no recording beside it", place=str(text), wanted=f"{text.stem}.wav or the like"
            )


def _best_first(audio: Path) -> tuple[Path, bool, str]:
    """Of recordings with one name the one that lost nothing comes first, which needs no other decoder either."""
    return audio.with_suffix(""), audio.suffix.lower() not in _LOSSLESS, audio.suffix


def _with_text(audio: Path) -> Listed | DataError:
    text = audio.with_suffix(".txt")
    if not text.is_file():
        return DataError("the recording has no text beside it", place=str(audio), wanted=text.name)
    try:
        return Listed(str(text), audio, read_text(text, _TEXT))
    except DataError as error:
        return error


def _files(folder: Path, suffixes: frozenset[str]) -> Iterator[Path]:
    """The files with one of these endings; names that begin with a point are passed over, as ``ls`` does."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
        for name in names:
            if Path(name).suffix.lower() in suffixes and not name.startswith("."):
                yield Path(root, name)


# Kaldi's data folder: ``wav.scp``, perhaps ``segments`` and ``utt2spk``, and ``text``. WeNet takes the same.


_LIST = FileKind("the list", 1 << 40)  # read line by line
_UNPACKERS = ("flac", "sph2pipe", "cat")  # programs that only unpack the one file that they are given


def is_kaldi(path: Path) -> bool:
    """Whether this is a data folder of Kaldi with recordings, or holds some, one for each set."""
    return bool(_kaldi_folders(path))


def kaldi_sets(path: Path) -> Sets:
    """The utterances of each data folder."""
    folders = _kaldi_folders(path)
    if folders == [path]:
        return {"manifest": kaldi_utterances(path)}
    return {folder.name: kaldi_utterances(folder) for folder in folders}


def _kaldi_folders(path: Path) -> list[Path]:
    folders = [path, *(path / name for name in names_in(path))] if path.is_dir() else []
    kaldi = [folder for folder in folders if (folder / "wav.scp").is_file()]
    return kaldi[:1] if kaldi[:1] == [path] else kaldi


def kaldi_utterances(folder: Path) -> Iterator[Listed | DataError]:
    """The utterances of a data folder, in the order of ``segments``, or else of ``wav.scp``.

    Raises:
        DataError: ``text`` or another list cannot be read.
    """
    texts = {name: words for _, name, words in _pairs(folder / "text")}
    speakers_file = folder / "utt2spk"
    speakers = {name: speaker for _, name, speaker in _pairs(speakers_file)} if speakers_file.is_file() else {}
    recordings = {name: (place, written) for place, name, written in _pairs(folder / "wav.scp")}
    segments = folder / "segments"
    parts = _pairs(segments) if segments.is_file() else ((place, name, name) for name, (place, _) in recordings.items())
    for place, name, part in parts:
        try:
            recording, start, end = _kaldi_part(place, part) if segments.is_file() else (part, 0.0, None)
            if name not in texts:
                raise DataError(f"{name} has no text", place=place, wanted=f"a line in {folder / 'text'}")
            if recording not in recordings:
                raise DataError(f"{recording} is no recording", place=place, wanted=f"a line in {folder / 'wav.scp'}")
            audio, channel = _kaldi_audio(recordings[recording][1], folder, recordings[recording][0])
        except DataError as error:
            yield error
            continue
        yield Listed(place, audio, texts[name], speakers.get(name, ""), start, end, channel)


def _pairs(path: Path) -> Iterator[tuple[str, str, str]]:
    """Of each line its place, its first word, and what follows."""
    for place, raw in bytes_of_lines(path, _LIST):
        name, *rest = decode_text(raw, place, _LIST).split(maxsplit=1)
        yield place, name, "".join(rest).strip()


def _kaldi_part(place: str, part: str) -> tuple[str, float, float | None]:
    """The recording, start and end of a line of ``segments``; an end of -1 is that of the recording."""
    words = part.split()
    try:
        recording, start, end = words[0], float(words[1]), float(words[2])
    except (IndexError, ValueError):
        raise DataError("this is no segment", place=place, got=part[:60], wanted="ID RECORDING START END") from None
    return recording, start, None if end == -1 else end


def _kaldi_audio(written: str, folder: Path, place: str) -> tuple[Path, int | None]:
    """The file of a line of ``wav.scp``, and its channel. Of commands only those that unpack one file are understood.

    Raises:
        DataError: it is another command; none is run.
    """
    if not written.endswith("|"):
        return Path(path_in_list(written, str(folder))), None
    try:
        words = shlex.split(written[:-1])
    except ValueError:
        words = []
    files = [word for word in words[1:] if Path(word).suffix.lower() in _SUFFIXES]
    if not words or Path(words[0]).name not in _UNPACKERS or len(files) != 1 or "|" in words:
        remedy = "run it once, and write the name of the file that it makes"
        raise DataError("the recording is a command, which is not run", place=place, got=written[:80], remedy=remedy)
    channel = words[words.index("-c") + 1] if words[0].endswith("sph2pipe") and "-c" in words[:-1] else ""
    return Path(path_in_list(files[0], str(folder))), int(channel) - 1 if channel.isdigit() else None


# Cuts of lhotse: a JSON object a line, also compressed by gzip.


_CUTS = FileKind("the list", 1 << 40)
_CUT_SUFFIXES = (".jsonl", ".jsonl.gz")
_MOST_LINE_BYTES = 1 << 20


def is_lhotse(path: Path) -> bool:
    """Whether this is a file of cuts, or a folder with some."""
    return bool(_cut_files(path))


def lhotse_sets(path: Path) -> Sets:
    """The utterances of each file of cuts."""
    files = _cut_files(path) or [path]
    return {file.name.removesuffix(".gz").removesuffix(".jsonl"): lhotse_utterances(file) for file in files}


def _cut_files(path: Path) -> list[Path]:
    files = [path / name for name in names_in(path)] if path.is_dir() else [path]
    return [file for file in files if file.name.endswith(_CUT_SUFFIXES) and _has_cuts(file)]


def _has_cuts(path: Path) -> bool:
    try:
        _, cut = next(_cuts(path), ("", {}))
    except DataError:
        return False
    return not isinstance(cut, DataError) and str(cut.get("type", "")).endswith("Cut")


def lhotse_utterances(path: Path) -> Iterator[Listed | DataError]:
    """An utterance for each supervision of each cut."""
    for place, cut in _cuts(path):
        if isinstance(cut, DataError):
            yield cut
            continue
        try:
            yield from _supervised(cut, path, place)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            got = f"no {error}" if isinstance(error, KeyError) else str(error)
            yield DataError("the cut cannot be read", place=place, got=got, wanted="a MonoCut as lhotse writes it")


def _cuts(path: Path) -> Iterator[tuple[str, dict[str, Any] | DataError]]:
    """Each line with its place: a cut, or why it is none."""
    try:
        with open_file(path, _CUTS) as raw, gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw as file:
            number = 0
            while line := file.readline(_MOST_LINE_BYTES + 1):
                number += 1
                place = f"{path}:{number}"
                if len(line) > _MOST_LINE_BYTES:
                    raise DataError(f"the line has more than {_MOST_LINE_BYTES} bytes", place=place)
                if line.strip():
                    yield place, _cut(line, place)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError("the list cannot be read", place=str(path), got=f'"{error}"') from None


def _cut(line: bytes, place: str) -> dict[str, Any] | DataError:
    try:
        cut = parse_json(line, place, _CUTS)
    except DataError as error:
        return error
    return cut if isinstance(cut, dict) else DataError("this is no cut", place=place, got=str(cut)[:60])


def _supervised(cut: dict[str, Any], path: Path, place: str) -> Iterator[Listed | DataError]:
    if cut["type"] not in ("MonoCut", "MultiCut"):
        remedy = "store the recordings that it is mixed of (CutSet.save_audios)"
        yield DataError("only cuts of one recording are read", place=place, got=str(cut["type"]), remedy=remedy)
        return
    sources = cut["recording"]["sources"]
    if len(sources) != 1 or sources[0]["type"] != "file":
        got = ", ".join(str(source["type"]) for source in sources)
        yield DataError("the recording is no single file", place=place, got=got, wanted='a source of the type "file"')
        return
    audio = Path(path_in_list(str(sources[0]["source"]), str(path.parent)))
    if not cut["supervisions"]:
        yield DataError("the cut has no supervision", place=place, wanted="a text")
    for supervision in cut["supervisions"]:
        start = float(cut["start"]) + float(supervision["start"])
        channel, speaker = supervision.get("channel"), supervision.get("speaker")
        yield Listed(
            place,
            audio,
            str(supervision.get("text") or ""),
            str(speaker) if speaker else "",
            max(start, 0.0),
            start + float(supervision["duration"]),
            channel if isinstance(channel, int) else None,
        )


# Lists of WeNet: a JSON object a line, ``{"key": ..., "wav": FILE, "txt": TEXT}``.


def is_wenet(path: Path) -> bool:
    """Whether this is a list of WeNet (``data.list`` of the type raw)."""
    if not path.is_file():
        return False
    try:
        _, first = next(_cuts(path), ("", {}))
    except DataError:
        return False
    return not isinstance(first, DataError) and {"wav", "txt"} <= first.keys()


def wenet_utterances(path: Path) -> Iterator[Listed | DataError]:
    """The utterances of a list; with ``start`` and ``end`` parts of recordings."""
    for place, line in _cuts(path):
        if isinstance(line, DataError):
            yield line
            continue
        try:
            start, end = float(line.get("start", 0.0)), line.get("end")
            audio = Path(path_in_list(str(line["wav"]), str(path.parent)))
            end = None if end is None else float(end)
            yield Listed(place, audio, str(line["txt"]), str(line.get("speaker", "")), start, end)
        except (KeyError, TypeError, ValueError) as error:
            got = f"no {error}" if isinstance(error, KeyError) else str(error)
            yield DataError(
                "the line cannot be read", place=place, got=got, wanted='{"key": ..., "wav": ..., "txt": ...}'
            )


@dataclass(frozen=True)
class Kind:
    """A kind of corpora.

    Attributes:
        description: in words, for messages and help.
        recognises: whether a path leads to one.
        sets: the utterances of each set.
    """

    description: str
    recognises: Callable[[Path], bool]
    sets: Callable[[Path], Sets]


KINDS = {  # the first one that recognises a path reads it
    "common_voice": Kind("a language of Common Voice (TSV files beside clips/)", is_common_voice, common_voice_sets),
    "kaldi": Kind("data folders of Kaldi or WeNet (wav.scp, text, perhaps segments)", is_kaldi, kaldi_sets),
    "lhotse": Kind("cuts of lhotse (.jsonl, .jsonl.gz)", is_lhotse, lhotse_sets),
    "wenet": Kind(
        "a list of WeNet (a JSON object a line, with wav and txt)",
        is_wenet,
        lambda path: {path.name.split(".")[0]: wenet_utterances(path)},
    ),
    "table": Kind("CSV or TSV files with columns for audio and text", is_table, table_sets),
    "folder": Kind("a folder of audio with a .txt of the same name beside each", is_folder, folder_sets),
}


# From listed utterances to manifests.


_AT_ONCE = 512  # utterances whose lengths are read before more are listed
_MOST_SECONDS = 1e7  # four months
_SLACK_SECONDS = 0.05  # by which a part may end behind the end of its file, as lists round
_LEAST_SECONDS = 0.01


@dataclass
class Made:
    """The manifests that were written.

    Attributes:
        kind: of the corpus.
        manifests: what each holds, by its path.
        problems: a line for each utterance that is left out.
    """

    kind: str
    manifests: dict[Path, list[Entry]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def make(
    source: str | Path,
    out: str | Path | None = None,
    *,
    kind: str = "",
    overwrite: bool = False,
    shares: Mapping[str, float] | None = None,
    num_workers: int | None = None,
) -> Made:
    """Write a manifest for each set of a corpus. Audio stays where it is; its heads are read for the lengths.

    Args:
        source: the folder or file.
        out: the folder to write to; by default that of the corpus.
        kind: one of ``KINDS``; by default the first that recognises ``source``.
        overwrite: manifests that are there already are replaced.
        shares: names of sets and the share of the seconds that each takes of a corpus of one set, which keeps the
            rest as ``train``. A speaker, or else a recording, is in one set only.
        num_workers: threads that read; None: one for each core.

    Raises:
        DataError: there is no such file, it is of no known kind, or has no utterance that can be used.
        UnknownNameError: there is no such kind.
        FileInTheWayError: a manifest is there already.
        UsageError: ``out`` cannot be written to.
    """
    path = Path(source).expanduser()
    made = Made(kind or kind_of(path))
    if made.kind not in KINDS:
        raise UnknownNameError("kind", made.kind, KINDS)
    sets = KINDS[made.kind].sets(path)
    if shares and len(sets) == 1:
        sets_written: Sequence[str] = ("train", *shares)
    elif shares:
        raise DataError("the corpus has sets already", place=str(path), got=", ".join(sets), remedy="give no shares")
    else:
        sets_written = [*sets]
    root = make_writable_folder(out or (path if path.is_dir() else path.parent))
    files = {name: root / f"{name}.json" for name in sets_written}
    if (in_the_way := [file for file in files.values() if file.exists()]) and not overwrite:
        remedy = "give another folder with --out, or --overwrite"
        raise FileInTheWayError("the manifest exists already", place=str(in_the_way[0]), remedy=remedy)
    manifests = {
        name: _entries(name, utterances, root, made.problems, num_workers) for name, utterances in sets.items()
    }
    if shares:
        ((_, entries),) = manifests.items()
        manifests = divided(entries, shares)
    if not any(manifests.values()):
        raise DataError(f"no utterance of {path} can be used:\n{listed(made.problems, len(made.problems))}")
    for name, entries in manifests.items():
        if not entries:
            made.problems.append(f"{files[name]}: no utterance is left for this set: it is not written")
            continue
        write_manifest(files[name], entries)
        made.manifests[files[name]] = entries
    return made


def kind_of(path: Path) -> str:
    """The name of the first kind that recognises a path.

    Raises:
        DataError: there is no such file, or none does.
    """
    if not path.exists():
        raise DataError("there is no such file or folder", place=str(path))
    for name, kind in KINDS.items():
        if kind.recognises(path):
            return name
    wanted = "; ".join(f"{name}: {kind.description}" for name, kind in KINDS.items())
    raise DataError("this is no corpus of a known kind", place=str(path), wanted=wanted, remedy="name it with --kind")


def _entries(
    name: str, utterances: Utterances, root: Path, problems: list[str], num_workers: int | None
) -> list[Entry]:
    entries: list[Entry] = []
    waiting = iter(utterances)
    with (
        ThreadPoolExecutor(num_workers or os.cpu_count() or 1) as pool,
        tqdm(desc=name, unit=" utterances", disable=None) as bar,
    ):
        while some := list(islice(waiting, _AT_ONCE)):
            for result in pool.map(lambda utterance: _entry(utterance, root), some):
                if isinstance(result, DataError):
                    problems.append(str(result))
                else:
                    entries.append(result)
            bar.update(len(some))
    return entries


def _entry(utterance: Listed | DataError, root: Path) -> Entry | DataError:
    """The manifest line, or why there can be none."""
    if isinstance(utterance, DataError):
        return utterance
    place, text = utterance.place, " ".join(utterance.text.split())
    if not text:
        return DataError("the text is empty", place=place, remedy="write the words, or remove the recording")
    try:
        seconds, num_channels = _length_of(str(utterance.audio))
    except DataError as error:
        return DataError(error.problem, place=place, got=error.got, wanted=error.wanted, remedy=error.remedy)
    end = seconds if utterance.end is None else utterance.end
    if not 0.0 <= utterance.start < end <= seconds + _SLACK_SECONDS:
        got, wanted = f"{utterance.start:g} to {end:g} s", f"a part of {utterance.audio}, which has {seconds:g} s"
        return DataError("the part is not in its recording", place=place, got=got, wanted=wanted)
    duration = round(min(end, seconds) - utterance.start, 4)
    if duration < _LEAST_SECONDS:
        return DataError(f"{utterance.audio} is too short", place=place, got=f"{duration:g} s")
    entry: Entry = {"audio_filepath": as_written(utterance.audio, root), "duration": duration, "text": text}
    if utterance.start > 0.0 or end < seconds - _SLACK_SECONDS:
        entry["offset"] = round(utterance.start, 4)
    if utterance.speaker:
        entry["speaker"] = utterance.speaker
    if utterance.channel is not None and num_channels > 1:
        if not 0 <= utterance.channel < num_channels:
            wanted = f"0 to {num_channels - 1}"
            return DataError(
                f"{utterance.audio} has no such channel", place=place, got=str(utterance.channel), wanted=wanted
            )
        entry["channel"] = utterance.channel
    return entry


@lru_cache(maxsize=4096)  # the parts of one recording are neighbours
def _length_of(audio: str) -> tuple[float, int]:
    """Seconds and channels of a file, by its head."""
    with open_audio(audio, audio, "") as file:
        if not 0.0 < file.seconds <= _MOST_SECONDS:
            raise DataError(f"{audio} does not say how long it is", remedy="write it again with another program")
        return file.seconds, file.num_channels


def divided(entries: Sequence[Entry], shares: Mapping[str, float]) -> dict[str, list[Entry]]:
    """A set divided by speakers, or by recordings where a speaker is not told; the same for the same entries.

    Args:
        entries: all of them.
        shares: of the seconds, by set; ``train`` keeps what is left.
    """
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.get("speaker") or entry["audio_filepath"], []).append(entry)
    names = sorted(groups, key=lambda name: hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest())
    total = math.fsum(entry["duration"] for entry in entries)
    sets: dict[str, list[Entry]] = {"train": [], **{name: [] for name in shares}}
    for name in names:
        fewest = max(shares, key=lambda part: shares[part] * total - _seconds(sets[part]))
        wanting = shares[fewest] * total - _seconds(sets[fewest]) >= _seconds(groups[name]) / 2
        sets[fewest if wanting else "train"] += groups[name]
    return sets


def _seconds(entries: Iterable[Entry]) -> float:
    return math.fsum(entry["duration"] for entry in entries)


def summary(made: Made) -> Iterator[str]:
    """A line about each manifest."""
    for path, entries in made.manifests.items():
        minutes = _seconds(entries) / 60
        length = f"{minutes / 60:.1f} h" if minutes >= 120 else f"{minutes:.1f} min"
        letters = {letter for entry in entries for letter in entry["text"] if not letter.isspace()}
        speakers = {entry["speaker"] for entry in entries if "speaker" in entry}
        told = f", {len(speakers)} speakers" if speakers else ""
        yield f"{path}: {len(entries)} utterances, {length}, {len(letters)} different characters{told}"
