"""item_iter: the lines of manifests as NeMo's dictionaries. The data layers read manifests by ``data/manifest.py``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from nemo_asr.data.manifest import ManifestPaths
from nemo_lite.errors import DataError
from nemo_lite.files import FileKind, JsonLimits, decode_text, parse_json, read_text
from nemo_lite.files import numbered_lines as lines_of

# Any: the values of a JSON object.
Item: TypeAlias = dict[str, Any]
_MOST_SECONDS = 1e7  # four months
_MANIFEST = FileKind("the manifest", 1 << 40)  # read line by line
_TRANSCRIPT = FileKind("the text file", 1 << 20)
_LIMITS = JsonLimits(depth=32, values=10_000)
_AUDIO_KEYS = ("audio_filename", "audio_filepath")


def item_iter(manifests_files: ManifestPaths, parse_func: Callable[[str, str], Item] | None = None) -> Iterator[Item]:
    """``audio_file``, ``duration``, ``text``, ``offset``, ``speaker`` and ``id`` of each line; ids count over all.

    Args:
        manifests_files: one path, or a list of them.
        parse_func: makes such a dictionary (without ``id``) of a line and the path of its manifest.

    Raises:
        DataError: a file that cannot be read, or a line without audio, duration or text.
    """
    single = isinstance(manifests_files, (str, os.PathLike))
    paths: Sequence[str | os.PathLike[str]] = [manifests_files] if single else manifests_files  # type: ignore[list-item,assignment]  # mypy does not follow the flag
    number = 0
    for path in (os.path.expanduser(os.fspath(path)) for path in paths):
        for place, line in numbered_lines(path):
            item = parse_line(line, path, place) if parse_func is None else parse_func(line, path)
            yield {**item, "id": number}
            number += 1


def numbered_lines(path: str) -> Iterator[tuple[str, str]]:
    """The lines of a file that hold something, each with its place."""
    for place, line in lines_of(path, _MANIFEST):
        yield place, decode_text(line, place, _MANIFEST)


def parse_line(line: str, manifest: str, place: str) -> Item:
    """One line of a manifest as a dictionary.

    Raises:
        DataError: it has no audio, duration or text.
    """
    fields = json_object(line, place)
    text = fields.get("text")
    if "text" not in fields and "text_filepath" in fields:
        text = _text_of(fields["text_filepath"], place)
    elif "text" not in fields and "normalized_text" in fields:
        text = fields["normalized_text"]
    elif "text" not in fields:
        problem = "there is no text, text_filepath or normalized_text"
        raise DataError(problem, place=place, remedy='write "text": "" where nothing is said')
    about = {"offset": fields.get("offset"), "speaker": fields.get("speaker")}
    return {
        "audio_file": audio_of(fields, manifest, place),
        "duration": duration_of(fields, place),
        "text": text,
    } | about


def json_object(line: str, place: str) -> Item:
    """The object that a line holds."""
    fields = parse_json(line, place, _MANIFEST, _LIMITS)
    if not isinstance(fields, dict):
        raise DataError("this is no JSON object", place=place, got=type(fields).__name__)
    return fields


def audio_of(fields: Item, manifest: str, place: str) -> str:
    """The path as written, or beside the manifest where that alone leads to a file."""
    written = next((fields[key] for key in _AUDIO_KEYS if key in fields), None)
    if not isinstance(written, str):
        raise DataError("there is no audio_filepath (or audio_filename)", place=place, remedy="name the audio file")
    path = os.path.expanduser(written)
    beside = os.path.join(os.path.dirname(manifest), path)
    return beside if not os.path.exists(path) and os.path.exists(beside) else path


def duration_of(fields: Item, place: str) -> float:
    """Seconds."""
    if not isinstance(fields.get("duration"), (int, float)):
        raise DataError("there is no duration", place=place, remedy="write the seconds of audio")
    seconds: float = fields["duration"]
    if not abs(seconds) <= _MOST_SECONDS:
        raise DataError("the duration is out of range", place=place, got=f"{str(seconds)[:20]} s", wanted="seconds")
    return seconds


def _text_of(path: str, place: str) -> str:
    return read_text(os.path.expanduser(path), _TRANSCRIPT, place=f"{place}: {path}").replace("\n", "")
