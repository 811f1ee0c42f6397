"""Lists of ids and texts with recordings below them: LibriSpeech, Multilingual LibriSpeech, VoxForge; and STM files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from nemo_asr.corpora.listed import SUFFIXES, Listed, Sets, files_below, sets_by_folder
from nemo_lite.errors import DataError
from nemo_lite.files import FileKind, decode_text, numbered_lines

_LIST = FileKind("the list", 1 << 40)  # read line by line
_NAMES = re.compile(r".+\.trans\.txt|transcripts\.txt|PROMPTS")
_WITH_SPEAKER = re.compile("([0-9]+)[-_][0-9]+[-_][0-9]+")  # SPEAKER-CHAPTER-NUMBER


def is_lists(path: Path) -> bool:
    """Whether there is such a list in this folder, or in one inside."""
    return path.is_dir() and next(_lists(path), None) is not None


def list_sets(path: Path) -> Sets:
    """The utterances of all lists; one set for each folder of a set."""
    return sets_by_folder(path, _lists(path), list_utterances)


def _lists(path: Path) -> Iterator[Path]:
    return (file for file in files_below(path, frozenset({".txt", ""})) if _NAMES.fullmatch(file.name))


def list_utterances(path: Path) -> Iterator[Listed | DataError]:
    """The utterances of the lists below a folder: ``ID WORDS`` of each line, the recording by the id's last part."""
    for file in sorted(_lists(path)):
        folder = file.parent.parent if file.parent.name == "etc" else file.parent  # as VoxForge has them
        recordings = {audio.stem: audio for audio in files_below(folder, SUFFIXES)}
        for place, raw in numbered_lines(file, _LIST):
            try:
                name, *words = decode_text(raw, place, _LIST).split(maxsplit=1)
            except DataError as error:
                yield error
                continue
            stem = PurePosixPath(name).name
            if stem not in recordings:
                yield DataError(f"{name} has no recording", place=place, wanted=f"{stem}.flac or the like in {folder}")
                continue
            told = _WITH_SPEAKER.fullmatch(stem)
            speaker = told[1] if told else folder.name if file.name == "PROMPTS" else ""
            yield Listed(place, recordings[stem], "".join(words), speaker)


# STM, as NIST's sclite and TED-LIUM have it: RECORDING CHANNEL SPEAKER START END [<LABELS>] WORDS.


_STM_LINE = re.compile(r"(\S+)\s+(\S+)\s+(\S+)\s+([0-9.]+)\s+([0-9.]+)(?:\s+<[^>]*>)?(?:\s+(.*))?")
_NOT_SCORED = "ignore_time_segment_in_scoring"
_STM_WANTED = "RECORDING CHANNEL SPEAKER START END <LABELS> WORDS"
_AUDIO_FOLDERS = ("sph", "wav", "audio")


def is_stm(path: Path) -> bool:
    """Whether this is an STM file, or a folder with some."""
    return next(_stm_files(path), None) is not None


def stm_sets(path: Path) -> Sets:
    """The utterances of an STM file; or of all below a folder, one set for each folder of a set."""
    if path.is_file():
        return {path.stem: stm_utterances(path)}
    return sets_by_folder(path, _stm_files(path), stm_utterances)


def _stm_files(path: Path) -> Iterator[Path]:
    return iter([path] if path.suffix == ".stm" else []) if path.is_file() else files_below(path, frozenset({".stm"}))


def stm_utterances(path: Path) -> Iterator[Listed | DataError]:
    """The segments, with recordings beside the file or in a folder ``sph``, ``wav`` or ``audio`` beside its own."""
    for file in sorted(_stm_files(path)):
        folders = [file.parent, *(file.parent.parent / name for name in _AUDIO_FOLDERS)]
        recordings = {audio.stem: audio for folder in folders for audio in files_below(folder, SUFFIXES)}
        for place, raw in numbered_lines(file, _LIST):
            try:
                line = decode_text(raw, place, _LIST).strip()
            except DataError as error:
                yield error
                continue
            segment = _STM_LINE.fullmatch(line)
            if line.startswith(";;") or (segment and segment[6] == _NOT_SCORED):
                continue
            if segment is None:
                yield DataError("this is no segment", place=place, got=line[:60], wanted=_STM_WANTED)
            elif segment[1] not in recordings:
                wanted = f"{segment[1]}.sph or the like in {', '.join(map(str, folders))}"
                yield DataError(f"{segment[1]} has no recording", place=place, wanted=wanted)
            else:
                channel = int(segment[2]) - 1 if segment[2].isdecimal() and segment[2] != "0" else None
                start, end = float(segment[4]), float(segment[5])
                yield Listed(place, recordings[segment[1]], segment[6] or "", segment[3], start, end, channel)
