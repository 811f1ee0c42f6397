"""item_iter: the lines of manifests as NeMo's dictionaries. The data layers read manifests by ``data/manifest.py``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from msgspec import UNSET

from nemo_asr.data.manifest import MANIFEST, Line, ManifestPaths, read_lines
from nemo_lite.errors import DataError
from nemo_lite.files import FileKind, decode_text, read_text
from nemo_lite.files import numbered_lines as lines_of

# Any: the values of a JSON object.
Item: TypeAlias = dict[str, Any]
_TRANSCRIPT = FileKind("the text file", 1 << 20)


def item_iter(manifests_files: ManifestPaths, parse_func: Callable[[str, str], Item] | None = None) -> Iterator[Item]:
    """``audio_file``, ``duration``, ``text``, ``offset``, ``speaker`` and ``id`` of each line; ids count over all.

    Args:
        manifests_files: one path, or a list of them.
        parse_func: makes such a dictionary (without ``id``) of a line and the path of its manifest.

    Raises:
        DataError: a file that cannot be read, or a line without audio, duration or text.
    """
    for number, (item, _) in enumerate(lines_and_items(manifests_files, parse_func)):
        yield {**item, "id": number}


def lines_and_items(
    manifests_files: ManifestPaths, parse_func: Callable[[str, str], Item] | None = None, *, with_text: bool = True
) -> Iterator[tuple[Item, Line | None]]:
    """The same without ids, each with its line where ``parse_func`` does not read it."""
    single = isinstance(manifests_files, (str, os.PathLike))
    paths: Sequence[str | os.PathLike[str]] = [manifests_files] if single else manifests_files  # type: ignore[list-item,assignment]  # mypy does not follow the flag
    for path in (os.path.expanduser(os.fspath(path)) for path in paths):
        if parse_func is not None:
            for _, written in numbered_lines(path):
                yield parse_func(written, path), None
            continue
        _, lines = read_lines(path, "audio")
        for place, line in lines:
            yield _item_of(line, path, place, with_text), line


def numbered_lines(path: str) -> Iterator[tuple[str, str]]:
    """The lines of a file that hold something, each with its place."""
    for place, line in lines_of(path, MANIFEST):
        yield place, decode_text(line, place, MANIFEST)


def _item_of(line: Line, manifest: str, place: str, with_text: bool) -> Item:
    if line.duration is None:
        raise DataError("there is no duration", place=place, remedy="write the seconds of audio")
    # The path as written, or beside the manifest where that alone leads to a file.
    path = os.path.expanduser(line.path)
    beside = os.path.join(os.path.dirname(manifest), path)
    audio = beside if not os.path.exists(path) and os.path.exists(beside) else path
    speaker = None if line.speaker is UNSET else line.speaker
    item = {"audio_file": audio, "duration": line.duration, "offset": line.start, "speaker": speaker}
    return {**item, "text": _text_of(line, place)} if with_text else item


def _text_of(line: Line, place: str) -> str:
    if line.text is not None:
        return line.text
    if line.text_filepath:
        path = os.path.expanduser(line.text_filepath)
        return read_text(path, _TRANSCRIPT, place=f"{place}: {path}").replace("\n", "")
    if line.normalized_text is UNSET or line.normalized_text is None:
        problem = "there is no text, text_filepath or normalized_text"
        raise DataError(problem, place=place, remedy='write "text": "" where nothing is said')
    return line.normalized_text
