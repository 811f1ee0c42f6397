"""What ranks compare of the audio data layer: manifests by content, the vocabulary, the other arguments."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from nemo_asr import AudioToTextDataLayer

LABELS = [" ", "a", "b"]


@pytest.fixture
def machines(tmp_path: Path) -> list[Path]:
    """Two folders with the same corpus."""
    folders = [tmp_path / "data", tmp_path / "mnt" / "corpus"]
    for folder in folders:
        folder.mkdir(parents=True)
        soundfile.write(folder / "1.wav", np.zeros(3200), 16000)
        line = {"audio_filepath": "1.wav", "duration": 0.2, "text": "ab"}
        for name in ("train.json", "dev.json", "noise.json"):
            (folder / name).write_text(json.dumps({**line, "set": name}) + "\n")
    return folders


def prints_in(folder: Path, manifest: str = "train.json", **changes: Any) -> dict[str, str]:
    arguments = {"labels": LABELS, "batch_size": 4, "name": "data", **changes}
    return dict(AudioToTextDataLayer(str(folder / manifest), **arguments).fingerprint())


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    assert list(one) == list(other)
    return {name for name in one if one[name] != other[name]}


def test_manifests_count_by_content_and_the_vocabulary_by_itself(machines: list[Path]) -> None:
    here, there = machines
    one = prints_in(here)
    assert list(one) == ["train.json", "labels of data", "data"]
    assert one["train.json"] == hashlib.sha256((here / "train.json").read_bytes()).hexdigest()
    assert prints_in(there) == one
    assert differing(one, prints_in(here, labels=[*LABELS, "c"])) == {"labels of data"}
    assert differing(one, prints_in(here, max_duration=9.0)) == {"data"}
    with (there / "train.json").open("a") as file:
        file.write("\n")
    assert differing(one, prints_in(there)) == {"train.json"}


def test_each_of_several_manifests_is_an_entry(machines: list[Path]) -> None:
    here, there = machines
    both = f"{there / 'train.json'},{there / 'dev.json'}"
    assert list(prints_in(here, both))[:2] == ["train.json", "dev.json"]
    same_name = [str(folder / "train.json") for folder in machines]
    prints = dict(AudioToTextDataLayer(same_name, LABELS, 4).fingerprint())
    assert prints["train.json"] == prints["train.json (2)"]


def test_a_manifest_of_noises_counts_by_content_too(machines: list[Path]) -> None:
    def prints(folder: Path) -> dict[str, str]:
        return prints_in(folder, augmentor={"noise": {"prob": 0.5, "manifest_path": str(folder / "noise.json")}})

    here, there = machines
    assert list(prints(here)) == ["train.json", "noise.json", "labels of data", "data"]
    assert prints(here) == prints(there)
    with (there / "noise.json").open("a") as file:
        file.write("\n")
    assert differing(prints(here), prints(there)) == {"noise.json"}
