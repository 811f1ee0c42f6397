"""STM files, as NIST's sclite and TED-LIUM have them: RECORDING CHANNEL SPEAKER START END [<LABELS>] WORDS."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from nemo_asr.corpora.listed import (
    Listed,
    Recordings,
    channel_of,
    decoded_lines,
    files_below,
)
from nemo_asr.run.audio.kinds import ALL_SUFFIXES
from nemo_asr.scoring import sclite
from nemo_lite.base.errors import DataError

_STM_LINE = re.compile(r"(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)(?:\s+<[^>]*>)?(?:\s+(.*))?")
_FROM_ZERO = re.compile(r"[^0-9]*0+")  # a channel of a file that counts them from 0
_NOT_SCORED = "ignore_time_segment_in_scoring"
_STM_WANTED = "RECORDING CHANNEL SPEAKER START END <LABELS> WORDS"
_AUDIO_FOLDERS = ("sph", "wav", "audio")


def stm_files(path: Path) -> Iterator[Path]:
    """An STM file, or those below a folder, but for references that an evaluation there wrote for sclite."""
    if path.is_file():
        return iter([path] if path.suffix == ".stm" else [])
    files = files_below(path, frozenset({".stm"}))
    return (file for file in files if not (file.parent.name == sclite.FOLDER and file.name.endswith(".ref.stm")))


def stm_utterances(path: Path) -> Iterator[Listed | DataError]:
    """The segments, with recordings beside the file or in a folder ``sph``, ``wav`` or ``audio`` beside its own."""
    for file in sorted(stm_files(path)):
        folders = [file.parent, *(file.parent.parent / name for name in _AUDIO_FOLDERS)]
        recordings = Recordings(_audio_of(folders))
        channels = (segment[2] for _, segment in _segments(file) if isinstance(segment, re.Match))
        first = 0 if any(map(_FROM_ZERO.fullmatch, channels)) else 1
        for place, segment in _segments(file):
            try:
                yield _segment(place, segment, recordings, first, folders)
            except DataError as error:
                yield error


def _audio_of(folders: Sequence[Path]) -> Iterator[Path]:
    """The recordings of the first of these folders that has some of a name."""
    stems: dict[str, Path] = {}
    for folder in folders:
        for audio in files_below(folder, ALL_SUFFIXES):
            if stems.setdefault(audio.stem, folder) == folder:
                yield audio


def _segments(file: Path) -> Iterator[tuple[str, re.Match[str] | DataError]]:
    """Of each line that is to be scored its place, and its fields or why it has none."""
    for place, line in decoded_lines(file):
        if isinstance(line, DataError):
            yield place, line
            continue
        segment = _STM_LINE.fullmatch(line)
        if line.startswith(";;") or (segment and (segment[6] or "").lower() == _NOT_SCORED):
            continue
        yield place, segment or DataError("this is no segment", place=place, got=line[:60], wanted=_STM_WANTED)


# Words that may be said or not stand in round brackets, a number behind a word says how it is pronounced (TED-LIUM),
# %hesitation is a sound, and @ no word at all.
_ALTERNATIVES = re.compile(r"\{[^{}]*/[^{}/]*\}")
_PRONUNCIATION = re.compile(r"(?<=\w)\([0-9]+\)")
_MAY_BE_SAID = re.compile(r"\(([^()]*)\)")
_NO_WORD = re.compile(r"(?<!\S)(?:%[^\W\d]\S*|@)(?!\S)")


def words_of(written: str) -> tuple[str, tuple[str, ...]]:
    """The words of a segment, and what was written of them in the notation of NIST. Marks such as ``{NOISE}`` stay.

    Of alternatives in braces the first counts; words in round brackets are taken as said.
    """
    notation: list[str] = []

    def noted(pattern: re.Pattern[str], words: Callable[[re.Match[str]], str], text: str) -> str:
        notation.extend(match[0] for match in pattern.finditer(text))
        return pattern.sub(words, text)

    text = written
    while _ALTERNATIVES.search(text):  # the inner ones first
        text = noted(_ALTERNATIVES, _first_alternative, text)
    text = noted(_PRONUNCIATION, lambda match: "", text)
    text = noted(_MAY_BE_SAID, lambda match: match[1], text)
    return " ".join(noted(_NO_WORD, lambda match: "", text).split()), tuple(notation)


def _first_alternative(match: re.Match[str]) -> str:
    words = (part.strip() for part in match[0][1:-1].split("/"))
    return next((part for part in words if part not in ("", "@")), "")


def _segment(
    place: str, segment: re.Match[str] | DataError, recordings: Recordings, first: int, folders: Sequence[Path]
) -> Listed:
    if isinstance(segment, DataError):
        raise segment
    name, channel, speaker, start, end, words = segment.groups()
    try:
        part = float(start), float(end)
    except ValueError:
        raise DataError("this is no segment", place=place, got=segment[0][:60], wanted=_STM_WANTED) from None
    audio = recordings.named(name, place, f"{name}.sph or the like in {', '.join(map(str, folders))}")
    text, notation = words_of(words or "")
    return Listed(place, audio, text, speaker, *part, channel_of(channel, first), notation=notation)
