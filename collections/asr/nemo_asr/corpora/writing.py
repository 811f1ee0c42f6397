"""What all corpus makers share in writing: a manifest or a folder, all of it or none. What is in them: the makers."""

from __future__ import annotations

import glob
import json
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from nemo_lite.utils.files import make_writable_folder, write_atomically

_WORKSHOP = ".partial"
_ABANDONED_AFTER_SECONDS = 86_400


class _Entry(TypedDict):
    audio_filepath: str
    duration: float
    text: str


class Entry(_Entry, total=False):
    """One manifest line: the audio's path relative to the manifest, seconds, the words; perhaps the speaker."""

    speaker: str


def write_manifest(path: Path, entries: Iterable[Entry]) -> None:
    """Write one JSON object a line.

    Raises:
        UsageError: the file cannot be written; what was there before is untouched.
    """
    lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    write_atomically(path, lambda temporary: temporary.write_text(lines, encoding="utf-8"))


def describe(name: str, entries: Iterable[Entry]) -> str:
    """One line about a manifest: utterances, minutes, words, speakers."""
    listed = list(entries)
    minutes = sum(entry["duration"] for entry in listed) / 60
    words = [word for entry in listed for word in entry["text"].split()]
    speakers = {entry["speaker"] for entry in listed if "speaker" in entry}
    return (
        f"{name}: {len(listed)} utterances, {minutes:.1f} min, {len(words)} words ({len(set(words))} different), "
        f"{len(speakers)} speakers"
    )


@contextmanager
def filling_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of ``folder`` when the block ends without an error.

    Raises:
        UsageError: the folder that is to hold it is not writable.
    """
    make_writable_folder(folder.parent)
    workshop = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=_WORKSHOP, dir=folder.parent))
    try:
        _sweep_workshops(folder)
        new = workshop / "new"
        new.mkdir()
        yield new
        if folder.exists():
            folder.rename(workshop / "old")
        new.rename(folder)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _sweep_workshops(folder: Path) -> None:
    """Remove what a killed run left behind; in a younger one another process may be at work."""
    for workshop in folder.parent.glob(f".{glob.escape(folder.name)}.*{_WORKSHOP}"):
        if time.time() - workshop.stat().st_mtime > _ABANDONED_AFTER_SECONDS:
            shutil.rmtree(workshop, ignore_errors=True)
