"""Which recordings a command line names: files, folders, manifests and stdin. None of them is decoded in here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from nemo_asr.audio.reading import MAX_CONTENT_BYTES
from nemo_asr.transcription.recording import Recording
from nemo_lite.errors import DataError, UsageError
from nemo_lite.untrusted import FileKind, JsonLimits, numbered_lines, parse_json
from nemo_lite.utils.files import path_in_list

STDIN = "-"
AUDIO_SUFFIXES = frozenset(
    {".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".caf", ".w64", ".sph"}
)
MANIFEST_SUFFIXES = frozenset({".json", ".jsonl"})


class _Line(msgspec.Struct):
    """The keys of a manifest line that count here; a text is not needed."""

    audio_filepath: str = ""
    audio_filename: str = ""
    offset: float | None = None
    duration: float | None = None


_MANIFEST = FileKind("the manifest", 1 << 28)
_LIMITS = JsonLimits(depth=32, values=10_000)
_MOST_SECONDS = 1e7  # four months
_decoder = msgspec.json.Decoder(_Line)


def recordings_of(names: Sequence[str]) -> list[Recording]:
    """The recordings that some names stand for, in their order.

    Args:
        names: audio files; folders, of which all audio files are taken, also those in folders inside; manifests
            (``.json``, ``.jsonl``); ``-`` for an audio file on stdin.

    Raises:
        UsageError: a folder without audio, stdin without audio, or stdin twice.
        DataError: a manifest that cannot be read.
    """
    if names.count(STDIN) > 1:
        raise UsageError("stdin holds one recording", place=STDIN, got=f"{STDIN} {names.count(STDIN)} times")
    return [recording for name in names for recording in _named(name)]


def _named(name: str) -> Iterator[Recording]:
    path = Path(name).expanduser()
    if name == STDIN:
        yield Recording("stdin", _stdin())
    elif path.is_dir():
        yield from _in_folder(path)
    elif path.suffix.lower() in MANIFEST_SUFFIXES:
        yield from _in_manifest(path)
    else:
        yield Recording(name, str(path))


def _stdin() -> bytes:
    remedy = "pipe the content of an audio file into the command, or name a file"
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("stdin is a terminal, not audio", place=STDIN, remedy=remedy)
    content = sys.stdin.buffer.read(MAX_CONTENT_BYTES + 1)
    if len(content) > MAX_CONTENT_BYTES:
        problem, wanted = "there is too much on stdin", f"at most {MAX_CONTENT_BYTES} bytes"
        raise UsageError(problem, place=STDIN, wanted=wanted, remedy="name a file instead")
    if not content:
        raise UsageError("there is no audio on stdin", place=STDIN, got="0 bytes", remedy=remedy)
    return content


def _in_folder(folder: Path) -> list[Recording]:
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in AUDIO_SUFFIXES and path.is_file())
    if not found:
        wanted = f"files ending in {', '.join(sorted(AUDIO_SUFFIXES))}"
        raise UsageError("there is no audio in this folder", place=str(folder), wanted=wanted)
    return [Recording(str(path), str(path)) for path in found]


def _in_manifest(path: Path) -> Iterator[Recording]:
    numbered = list(numbered_lines(path, _MANIFEST))
    if not numbered:
        raise DataError("the manifest is empty", place=str(path), wanted="one JSON object a line")
    for place, written in numbered:
        parse_json(written, place, _MANIFEST, _LIMITS)
        try:
            line = _decoder.decode(written)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DataError(f"the line cannot be read ({error})", place=place) from None
        named = line.audio_filepath or line.audio_filename
        if not named:
            raise DataError("no audio_filepath (or audio_filename); name the audio file", place=place)
        if "\0" in named or not (_is_time(line.offset) and _is_time(line.duration)):
            problem, wanted = "a path has a null character, or a time is out of range", f"0 to {_MOST_SECONDS:g} s"
            raise DataError(problem, place=place, wanted=wanted)
        audio = path_in_list(named, os.path.dirname(path))
        yield Recording(audio, audio, offset=line.offset, duration=line.duration)


def _is_time(seconds: float | None) -> bool:
    return seconds is None or 0.0 <= seconds <= _MOST_SECONDS
