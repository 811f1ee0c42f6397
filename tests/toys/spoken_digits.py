"""Recordings of spoken digits, where they lie beside the checkout, as manifests of digits, of speakers, of silence."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Beside the checkout, or beside one of the folders around it.
FOLDER = next((found for folder in ROOT.parents if (found := folder / "shared/data/fsdd").is_dir()), Path("nowhere"))
needs_digits = pytest.mark.skipif(not FOLDER.is_dir(), reason="the spoken digits are not beside this checkout")
RATE = 8000
SETS = ("train", "test")


def recordings(of_set):
    """The lines of a set, with whole paths."""
    for line in (FOLDER / f"{of_set}.json").read_text().splitlines():
        read = json.loads(line)
        yield {**read, "audio_filepath": str(FOLDER / read["audio_filepath"])}


def written(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def digit_sets(folder):
    """Which digit: two manifests; the takes of the second are in the first not."""
    for of_set in SETS:
        lines = [
            {"audio_filepath": line["audio_filepath"], "duration": line["duration"], "command": line["text"]}
            for line in recordings(of_set)
        ]
        yield written(folder / f"digits_{of_set}.json", lines)


def speaker_sets(folder):
    """Which speaker."""
    for of_set in SETS:
        lines = [
            {"audio_filepath": line["audio_filepath"], "duration": line["duration"], "label": line["speaker"]}
            for line in recordings(of_set)
        ]
        yield written(folder / f"speakers_{of_set}.json", lines)
