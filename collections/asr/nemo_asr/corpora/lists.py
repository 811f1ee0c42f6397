"""Lists of ids and texts with recordings below them: LibriSpeech, Multilingual LibriSpeech, VoxForge.

And folders without a list, where each recording has a text file of its name beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from nemo_asr.corpora.listed import (
    Listed,
    Recordings,
    best_first,
    decoded_lines,
    files_below,
    lines_of,
)
from nemo_asr.corpora.writing import check_id
from nemo_asr.run.audio.kinds import ALL_SUFFIXES
from nemo_lite.base.errors import DataError
from nemo_lite.base.files import FileKind, read_text

_NAMES = re.compile(r".+\.trans\.txt|transcripts\.txt|PROMPTS")
_WITH_SPEAKER = re.compile("([0-9]+)[-_][0-9]+[-_][0-9]+")  # SPEAKER-CHAPTER-NUMBER


def list_files(path: Path) -> Iterator[Path]:
    """Such lists in this folder and in those inside."""
    return (file for file in files_below(path, frozenset({".txt", ""})) if _NAMES.fullmatch(file.name))


def list_utterances(path: Path) -> Iterator[Listed | DataError]:
    """The utterances of the lists below a folder: ``ID WORDS`` of each line, the recording by the id's last part."""
    for file in sorted(list_files(path)):
        folder = file.parent.parent if file.parent.name == "etc" else file.parent  # as VoxForge has them
        recordings = Recordings(files_below(folder, ALL_SUFFIXES))
        texts: dict[str, int] = {}  # by their hashes: a list may have millions
        twice = {name for name, words, _ in _ids(file) if texts.setdefault(name, hash(words)) != hash(words)}
        for name, words, place in _ids(file):
            if isinstance(words, DataError):
                yield words
            elif name in twice:
                remedy = "keep the right line; all are left out"
                yield DataError(f"{name} occurs with two texts", place=place, got=words[:60], remedy=remedy)
            elif texts.pop(name, None) is not None:  # equal lines are one
                stem = PurePosixPath(name).name
                try:
                    audio = recordings.named(stem, place, f"{stem}.flac or the like in {folder}")
                except DataError as error:
                    yield error
                    continue
                told = _WITH_SPEAKER.fullmatch(stem)
                speaker = told[1] if told else folder.name if file.name == "PROMPTS" else ""
                yield Listed(place, audio, words, speaker)


def _ids(file: Path) -> Iterator[tuple[str, str | DataError, str]]:
    """Of each line its first word, what follows it, or why it cannot be read, and its place."""
    for place, line in decoded_lines(file):
        if isinstance(line, DataError):
            yield place, line, place
            continue
        name, *words = line.split(maxsplit=1)
        yield name, "".join(words), place


def transcripts(file: Path) -> Iterator[tuple[str, str, str]]:
    """Of each line ``ID WORDS`` of a list that has to be whole its place, the id and the words.

    Raises:
        DataError: a line cannot be read, or is another.
    """
    for place, line in lines_of(file):
        name, *words = line.split(maxsplit=1)
        if not words:
            problem, wanted = "this is not a transcript", "utterance-id WORDS"
            raise DataError(problem, place=place, got=repr(line[:60]), wanted=wanted)
        check_id(name, place)
        yield place, name, words[0]


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
    if not text.is_file() and audio.with_suffix(".TXT").is_file():
        text = audio.with_suffix(".TXT")
    if not text.is_file():
        return DataError("the recording has no text beside it", place=str(audio), wanted=text.name)
    try:
        return Listed(str(text), audio, read_text(text, _TEXT))
    except DataError as error:
        return error
