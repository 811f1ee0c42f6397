"""Files for NIST's sclite: references and hypotheses as .trn, with times as .stm and .ctm. No scores in here.

Words come as they were scored; their times are those of the words as they were recognised.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import NamedTuple

from rapidfuzz.distance import Levenshtein

from nemo_asr.scoring.normalize import basic
from nemo_asr.scoring.report.transcripts import ScoredUtterance
from nemo_lite.base.files import make_writable_folder, write_atomically

FOLDER = "sclite"
ENDINGS = ("ref.trn", "hyp.trn", "ref.stm", "hyp.ctm")
_UNKNOWN = "unknown"
# sclite reads braces and slashes as alternatives, parentheses as words that may be left out, ;; as a comment, and @ as
# no word at all, <...> at the beginning of a segment as its label. Full-width forms are plain characters to it.
_FULL_WIDTH = 0xFEE0
_SPECIAL = str.maketrans({mark: chr(ord(mark) + _FULL_WIDTH) for mark in "(){}/;@*<>"})
_NOT_SCORED = re.compile("(?i)ignore_time_segment_in_scoring")
_MILLISECOND = 0.001


class TimedWord(NamedTuple):
    """A word, and the seconds from the beginning of its utterance to where it starts and ends."""

    text: str
    start: float
    end: float


def write_sclite(
    folder: Path,
    name: str,
    rows: Sequence[ScoredUtterance],
    words: Sequence[Sequence[TimedWord]] | None = None,
    write: Callable[[Path, Callable[[Path], object]], object] = write_atomically,
) -> list[Path]:
    """Write ``folder/name.ref.trn`` and ``.hyp.trn``, and with times ``.ref.stm`` and ``.hyp.ctm``; the paths.

    The id of an utterance is ``SPEAKER-FILE-NUMBER``, the number that of its line among the rows, so that ``-i spu_id``
    finds the speakers. Where an utterance's length or file is not known there is neither .stm nor .ctm. The channel is
    that of the utterance, from 1, and 1 where it is the average of all. sclite puts words into segments by their times:
    utterances of one channel that overlap are on channels of their own, such as ``1-2``.

    Args:
        folder: made where it is not there.
        name: of the set.
        rows: the utterances.
        words: of each utterance what was recognised, with times.
        write: lets a function fill a file.

    Raises:
        UsageError: a file cannot be written.
    """
    files = _names_of_files([row.audio_filepath for row in rows])
    ids = [
        f"{_speaker(row)}-{file}-{number:06d}" for number, (row, file) in enumerate(zip(rows, files, strict=True), 1)
    ]
    texts = {
        "ref.trn": [f"{_words(row.reference)} ({key})" for row, key in zip(rows, ids, strict=True)],
        "hyp.trn": [f"{_words(row.hypothesis)} ({key})" for row, key in zip(rows, ids, strict=True)],
    }
    if words is not None and all(row.duration is not None and row.audio_filepath for row in rows):
        channels = _channels(rows, files)
        order = sorted(range(len(rows)), key=lambda item: (files[item], channels[item], *_span(rows[item])))
        texts["ref.stm"] = [_segment(rows[item], f"{files[item]} {channels[item]}") for item in order]
        texts["hyp.ctm"] = [
            line for item in order for line in _timed_lines(rows[item], f"{files[item]} {channels[item]}", words[item])
        ]
    make_writable_folder(folder)
    paths = []
    for ending, lines in texts.items():
        paths.append(folder / f"{name}.{ending}")
        content = "".join(f"{line.strip()}\n" for line in lines).encode("utf-8", errors="replace")
        write(paths[-1], partial(Path.write_bytes, data=content))
    return paths


def timed_as_scored(scored: str, recognised: Sequence[TimedWord]) -> list[TimedWord]:
    """The words of a scored text with the times of those that were recognised.

    Words that are the same but for case and punctuation keep their times; between them, as many words take each other's
    times, and other numbers of words share the time evenly.
    """
    words = scored.split()
    keys, others = [basic(word) for word in words], [basic(word.text) for word in recognised]
    timed: list[TimedWord] = []
    first = other = 0
    blocks = [(code.src_start, code.dest_start, code.src_end - code.src_start) for code in Levenshtein.opcodes(
        keys, others) if code.tag == "equal"]  # fmt: skip
    for start, other_start, length in [*blocks, (len(words), len(recognised), 0)]:
        timed += _spread(words[first:start], recognised[other:other_start], timed[-1].end if timed else 0.0)
        pairs = zip(words[start : start + length], recognised[other_start : other_start + length], strict=True)
        timed += [word._replace(text=text) for text, word in pairs]
        first, other = start + length, other_start + length
    return timed


def _spread(words: Sequence[str], span: Sequence[TimedWord], before: float) -> list[TimedWord]:
    if len(words) == len(span):
        return [word._replace(text=text) for text, word in zip(words, span, strict=True)]
    start, end = (span[0].start, span[-1].end) if span else (before, before)
    step = (end - start) / max(len(words), 1)
    return [TimedWord(text, start + step * k, start + step * (k + 1)) for k, text in enumerate(words)]


def _span(row: ScoredUtterance) -> tuple[float, float]:
    """The seconds of an utterance in its recording; an empty one would hold no word."""
    start = round(row.offset or 0.0, 3)
    return start, round(max(start + (row.duration or 0.0), start + 0.01), 3)


def _channels(rows: Sequence[ScoredUtterance], files: Sequence[str]) -> list[str]:
    """The channel of each utterance; of those that overlap in a file, each has another one."""
    channels = [""] * len(rows)
    ends: dict[tuple[str, str], float] = {}  # of the last utterance on each channel
    for item in sorted(range(len(rows)), key=lambda item: _span(rows[item])):
        start, end = _span(rows[item])
        channel = str((rows[item].channel or 0) + 1)
        names = (channel if number == 1 else f"{channel}-{number}" for number in itertools.count(1))
        channels[item] = next(name for name in names if ends.get((files[item], name), 0.0) <= start)
        ends[files[item], channels[item]] = end
    return channels


def _segment(row: ScoredUtterance, file_and_channel: str) -> str:
    start, end = _span(row)
    return f"{file_and_channel} {_speaker(row)} {start:.3f} {end:.3f} {_words(row.reference)}"


def _timed_lines(row: ScoredUtterance, file_and_channel: str, words: Sequence[TimedWord]) -> list[str]:
    """The words in order, each within its segment, to which sclite takes it by the middle."""
    offset, (start, end) = row.offset or 0.0, _span(row)
    lines, before = [], start
    for word in timed_as_scored(row.hypothesis, words):
        first = min(max(offset + word.start, before), end - 2 * _MILLISECOND)
        last = min(max(offset + word.end, first + 2 * _MILLISECOND), end)
        lines.append(f"{file_and_channel} {first:.3f} {last - first:.3f} {_words(word.text)}")
        before = first
    # sclite refuses a file of the references that has no line at all.
    return lines or [f"{file_and_channel} {start:.3f} 0.000 @"]


def _words(text: str) -> str:
    plain = _NOT_SCORED.sub(lambda match: match[0].replace("_", chr(ord("_") + _FULL_WIDTH)), text)
    return " ".join(plain.translate(_SPECIAL).split())


def _speaker(row: ScoredUtterance) -> str:
    return re.sub(r"[^\w.]|_", ".", row.speaker or _UNKNOWN)


def _names_of_files(paths: Sequence[str | None]) -> list[str]:
    """The stems of paths, with their folders where two files have one stem, as single words; each file has its own."""
    known = {path: PurePath(path).stem for path in paths if path is not None}
    if len({stem.lower() for stem in known.values()}) < len(known):
        known = {path: str(PurePath(path).with_suffix("")).strip("/") for path in known}
    names: dict[str, str] = {}  # the path of each, in small letters
    for path, name in known.items():
        word = re.sub(r"[^\w.-]", "_", name) or "_"
        unused = (word if number == 1 else f"{word}_{number}" for number in itertools.count(1))
        known[path] = next(one for one in unused if names.setdefault(one.lower(), path) == path)
    return [known[path] if path is not None else _UNKNOWN for path in paths]
