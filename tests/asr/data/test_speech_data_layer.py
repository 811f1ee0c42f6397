"""What all speech data layers share, over several ranks: the account of unusable utterances, and fingerprints."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from toys.manifests import LABELS, damage, layer_of, make_set
from toys.ranks import on_ranks

from nemo_asr import AudioToTextDataLayer
from nemo_lite import DeviceType
from nemo_lite.backends.pytorch.adapter import PyTorchAdapter
from nemo_lite.backends.pytorch.data import Shard, settle
from nemo_lite.core.backend import LaunchOptions


def evaluate(folder, num_times, max_corrupt):
    """On each rank: what was unusable in the end."""
    os.chdir(folder)
    comm, _, _ = PyTorchAdapter().join(DeviceType.CPU, None, LaunchOptions())
    with comm.guarded():
        layer = layer_of(batch_size=1, sample_rate=8000, max_corrupt=max_corrupt)
        for _ in range(num_times):
            loader = layer.loader(training=False, shard=Shard(comm.rank, comm.world_size))
            for _ in loader.epoch(0):
                pass
            settle(loader, comm)
        layer.report_unusable()
    comm.close()
    return layer.unusable


def test_ranks_have_one_budget_together_and_fail_alike_where_one_would(tmp_path):
    make_set(tmp_path, 6)
    damage(tmp_path, 1, 2, 3, 4)
    told = []
    for world_size in (1, 2):
        ends = on_ranks(world_size, evaluate, tmp_path, 1, 3)
        assert [end.code for end in ends] == [2] * world_size
        told += [end.err.partition("DataError: ")[2] for end in ends if "DataError: " in end.err]
    assert told[0].startswith("train.json: 4 utterances cannot be used and max_corrupt allows 3; mend the files")
    assert told[0].count("is not a WAV") == 4
    assert told[1:] == [told[0]] * 2


def test_the_first_rank_tells_what_all_have_skipped_and_converted_once_and_all_know_it(tmp_path):
    make_set(tmp_path, 6)
    damage(tmp_path, 1, 2)
    first, second = on_ranks(2, evaluate, tmp_path, 3, 2)
    assert first.code == second.code == 0, first.err + second.err
    assert list(first.result) == [0, 1]
    assert first.result == second.result
    assert first.err.count("2 utterances skipped so far (max_corrupt 2):\n  train.json:1: 1.wav is not") == 1
    assert first.err.count("skipped so far") == 1
    assert first.err.count("train.json: 2 of 6 utterances could not be used:\n  train.json:1: ") == 1
    assert first.out.count("4 utterances resampled from 16000 Hz to 8000 Hz") == first.out.count("resampled") == 1
    assert second.err == ""


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
    assert differing(one, prints_in(here, labels=[*LABELS, "d"])) == {"labels of data"}
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
