"""Kinds of corpora, and utterances as they list them: what `nemo_asr.corpora.conversion` makes manifests of.

A kind is one file of this folder. It opens no audio. A line that cannot be used is a `DataError` in the list, and the
others go on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from nemo_asr.run.audio.kinds import ALL_SUFFIXES
from nemo_lite.base.errors import DataError
from nemo_lite.base.files import FileKind, decode_text, numbered_lines

# Also of files that need a package to be decoded: where it is missing, their lines say so.


class Listed(NamedTuple):
    """One utterance as its corpus lists it.

    Attributes:
        place: where it is listed, for messages.
        audio: the file.
        text: the words as written.
        speaker: who speaks; "" where that is not told.
        start, end: the part of the file, in seconds; None: to its end.
        channel: of a file of several, from 0; None: all of them. A text: what the list says, and nobody understands.
        seconds: how long the recording is, where it is no file: ``audio`` is then its name in a tar file, and is not
            looked for.
        notation: what the list wrote in a notation of its own, and ``text`` has in words: ``(zero)``, ``two(2)``.
    """

    place: str
    audio: Path
    text: str
    speaker: str = ""
    start: float = 0.0
    end: float | None = None
    channel: int | str | None = None
    seconds: float | None = None
    notation: tuple[str, ...] = ()


LIST = FileKind("the list", 1 << 40)  # read line by line


def decoded_lines(file: Path) -> Iterator[tuple[str, str | DataError]]:
    """The lines of a list that hold something, stripped, or why one cannot be read, each after its place."""
    for place, raw in numbered_lines(file, LIST):
        try:
            line = decode_text(raw, place, LIST).strip()
        except DataError as error:
            yield place, error
            continue
        if line:
            yield place, line


def lines_of(file: Path) -> Iterator[tuple[str, str]]:
    """As `decoded_lines`, of a list that has to be whole.

    Raises:
        DataError: a line cannot be read.
    """
    for place, line in decoded_lines(file):
        if isinstance(line, DataError):
            raise line
        yield place, line


Utterances: TypeAlias = Iterable[Listed | DataError]
Sets: TypeAlias = Mapping[str, Utterances]  # by the name that the manifest gets


# How lists write the first channels, besides numbers.
_CHANNELS = {**{letter: number for number, letter in enumerate("abcdefgh")}, "l": 0, "left": 0, "r": 1, "right": 1}
_BEFORE_CHANNEL = re.compile("(?:channel|chan|ch)[ _-]?(?=.)")
_LOSSLESS = (".wav", ".flac")


def channel_of(written: str, first: int) -> int | str:
    """A channel as a list writes it (``A``, ``left``, ``2``, ``ch1``), from 0; or as it is, where it says none.

    Args:
        written: a word of the list.
        first: the number of the first channel there.
    """
    name = _BEFORE_CHANNEL.sub("", written.lower(), count=1)
    number = int(name) - first if name.isascii() and name.isdecimal() else _CHANNELS.get(name, -1)
    return number if number >= 0 else written


class Recordings:
    """Recordings by their names without the ending. Of two formats of one recording the lossless one counts.

    Args:
        files: the recordings; of those that differ in the folder, all are kept, and none can be told by its name.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._files: dict[str, list[Path]] = {}
        for file in files:
            self._files.setdefault(file.stem, []).append(file)

    def named(self, stem: str, place: str, wanted: str) -> Path:
        """The recording of a name.

        Raises:
            DataError: there is none, or one in each of two folders.
        """
        if stem not in self._files:
            raise DataError(f"{stem} has no recording", place=place, wanted=wanted)
        one, *others = sorted(self._files[stem], key=lambda file: (*best_first(file)[1:], file))
        if other := next((file for file in others if _folder_of(file) != _folder_of(one)), None):
            raise DataError(
                f"two recordings are called {stem}", place=place, got=f"{one} and {other}", remedy="rename one of them"
            )
        return one


def _folder_of(audio: Path) -> Path:
    """The folder of a recording; the one around, where it is named for the format: ``wav``, ``flac``."""
    is_of_format = f".{audio.parent.name.lower()}" in ALL_SUFFIXES
    return audio.parent.parent if is_of_format else audio.parent


def best_first(audio: Path) -> tuple[Path, bool, str]:
    """Of recordings with one name the one that lost nothing comes first, which needs no other decoder either."""
    return audio.with_suffix(""), audio.suffix.lower() not in _LOSSLESS, audio.suffix


_SET_FOLDER = re.compile("(train|dev|valid|val|validation|test|eval)([-_].*)?")


def sets_by_folder(path: Path, files: Iterable[Path], utterances: Callable[[Path], Utterances]) -> Sets:
    """One set of a folder; or one for each folder in it, where files are only in folders named as sets are.

    Args:
        path: the folder.
        files: those of the corpus below it.
        utterances: gives the utterances of a folder.
    """
    folders = {file.relative_to(path).parts[0] for file in files}
    if folders and all(map(_SET_FOLDER.fullmatch, folders)):
        return {name: utterances(path / name) for name in sorted(folders)}
    return {"manifest": utterances(path)}


_ENDINGS = (".csv", ".tsv", ".jsonl.gz", ".jsonl", ".stm")


def by_set_name(files: Iterable[Path]) -> dict[str, Path]:
    """Files by their names without the ending; with it where two differ in nothing else."""
    named: dict[str, list[Path]] = {}
    for file in files:
        ending = next((ending for ending in _ENDINGS if file.name.lower().endswith(ending)), "")
        named.setdefault(file.name[: len(file.name) - len(ending)], []).append(file)
    return {
        name if len(same) == 1 else file.name.replace(".", "_"): file for name, same in named.items() for file in same
    }


@dataclass(frozen=True)
class CorpusKind:
    """A kind of corpora.

    Attributes:
        description: in words, for messages and help.
        files: the lists, tables, recordings or folders of this kind to which a path leads; none: it is another kind.
        utterances: those of a list or a folder.
        names: the sets of lists, by the names of their manifests.
        by_folder: of a folder, there is a set for each folder in it that is named as sets are, not for each list.
    """

    description: str
    files: Callable[[Path], Iterable[Path]]
    utterances: Callable[[Path], Utterances]
    names: Callable[[Iterable[Path]], Mapping[str, Path]] = by_set_name
    by_folder: bool = False

    def recognises(self, path: Path) -> bool:
        """Whether a path leads to such a corpus."""
        return next(iter(self.files(path)), None) is not None

    def sets(self, path: Path) -> Sets:
        """The utterances of each set."""
        if self.by_folder and path.is_dir():
            return sets_by_folder(path, self.files(path), self.utterances)
        files = [*self.files(path)] or [path]
        if files == [path] and path.is_dir():
            return {"manifest": self.utterances(path)}
        return {name: self.utterances(file) for name, file in self.names(files).items()}


def files_below(folder: Path, suffixes: frozenset[str]) -> Iterator[Path]:
    """The files with one of these endings; names that begin with a point are passed over, as ``ls`` does."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
        for name in names:
            if Path(name).suffix.lower() in suffixes and not name.startswith("."):
                yield Path(root, name)
