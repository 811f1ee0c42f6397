"""Utterances as corpora list them: what each reader of a kind of corpus gives to `nemo_asr.corpora.conversion`.

A reader is one file: whether a path leads to its kind, and the utterances of each set. It opens no audio. A line that
cannot be used is a `DataError` in the list, and the others go on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from nemo_asr.audio import containers
from nemo_asr.audio.reading import AUDIO_SUFFIXES
from nemo_lite.errors import DataError

# Also of files that need a package to be decoded: where it is missing, their lines say so.
SUFFIXES = AUDIO_SUFFIXES | containers.SUFFIXES


class Listed(NamedTuple):
    """One utterance as its corpus lists it.

    Attributes:
        place: where it is listed, for messages.
        audio: the file.
        text: the words as written.
        speaker: who speaks; "" where that is not told.
        start, end: the part of the file, in seconds; None: to its end.
        channel: of a file of several, from 0; None: all of them.
        seconds: how long the recording is, where it is no file: ``audio`` is then its name in a tar file, and is not
            looked for.
    """

    place: str
    audio: Path
    text: str
    speaker: str = ""
    start: float = 0.0
    end: float | None = None
    channel: int | None = None
    seconds: float | None = None


Utterances: TypeAlias = Iterable[Listed | DataError]
Sets: TypeAlias = Mapping[str, Utterances]  # by the name that the manifest gets


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


def files_below(folder: Path, suffixes: frozenset[str]) -> Iterator[Path]:
    """The files with one of these endings; names that begin with a point are passed over, as ``ls`` does."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
        for name in names:
            if Path(name).suffix.lower() in suffixes and not name.startswith("."):
                yield Path(root, name)
