"""A folder of recordings, each with a text file of its name beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nemo_asr.corpora.listed import Listed, best_first, files_below
from nemo_asr.run.audio.kinds import ALL_SUFFIXES
from nemo_lite.base.errors import DataError
from nemo_lite.base.files import FileKind, read_text

_TEXT = FileKind("the text", 1 << 20, remedy="save it as UTF-8 text")
_NO_TEXT_OF_A_RECORDING = re.compile(r"(?i)(readme|licen[cs]e|copying|changes|authors?|credits)\b.*")


def recordings_in(path: Path) -> Iterator[Path]:
    """The recordings in this folder and in those inside."""
    return files_below(path, ALL_SUFFIXES)


def folder_utterances(path: Path) -> Iterator[Listed | DataError]:
    """The recordings of a folder and of those inside, by name."""
    recordings: dict[Path, Path] = {}
    for audio in sorted(recordings_in(path), key=best_first):
        stem = audio.with_suffix("")
        if stem in recordings:
            problem = f"two recordings have one text: {recordings[stem].name} is used"
            yield DataError(problem, place=str(audio), remedy="give it another name, or remove it")
            continue
        recordings[stem] = audio
        yield _with_text(audio)
    for text in sorted(files_below(path, frozenset({".txt"}))):
        if text.with_suffix("") not in recordings and not _NO_TEXT_OF_A_RECORDING.fullmatch(text.name):
            yield DataError(
                "the text has no recording beside it", place=str(text), wanted=f"{text.stem}.wav or the like"
            )


def _with_text(audio: Path) -> Listed | DataError:
    text = audio.with_suffix(".txt")
    if not text.is_file():
        return DataError("the recording has no text beside it", place=str(audio), wanted=text.name)
    try:
        return Listed(str(text), audio, read_text(text, _TEXT))
    except DataError as error:
        return error
