"""Checkpoints of version 1, an index beside its files: what is read and refused; nothing foreign is touched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.backends.pytorch.checkpoint.storage import Weights
from nemo_lite.backends.pytorch.checkpoint.store import read_index
from nemo_lite.errors import CheckpointError

V1 = Path(__file__).parents[3] / "data" / "checkpoint_v1"
STAGED = ".STEP-3.vm.4344.c752411e.staged"


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(V1, tmp_path / "old"))


def changed(folder, **changes):
    path = folder / "checkpoint-STEP-3.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    return path


def test_an_index_lists_the_files_beside_it(folder):
    found = read_index(folder / "checkpoint-STEP-3.json")
    assert (found.tag, found.modules, found.is_flat) == ("STEP-3", ["Encoder"], True)
    assert found.path_of("Encoder") == folder / "Encoder-STEP-3.safetensors"
    assert found.problem(contents=True) == ""


def test_files_that_a_killed_process_left_in_its_own_folder_are_found(folder):
    (folder / STAGED).mkdir()
    (folder / "Encoder-STEP-3.safetensors").rename(folder / STAGED / "Encoder-STEP-3.safetensors")
    assert CheckpointFolder(folder).newest().path_of("Encoder") == folder / STAGED / "Encoder-STEP-3.safetensors"


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "other"},
        {"files": {"../Encoder-STEP-3.safetensors": 3}},
        {"files": {"Encoder-STEP-4.safetensors": 3}},
        {"files": {"Encoder-STEP-3.safetensors": float("inf")}},
        {"files": []},
        {"number": 4},
        {"number": "x"},
        {"serial": float("inf")},
        {"serial": True},
        {"serial": -1},
        {"step": 1.5},
        {"evaluations": [3]},
        {"staged_in": "../precious"},
        {"staged_in": "precious"},
        {"staged_in": 3},
        {"version": "x", "kind": []},
    ],
)
def test_a_damaged_or_foreign_index_is_named_and_nothing_is_deleted(folder, changes):
    precious = folder / "precious" / "Encoder-STEP-3.safetensors"
    precious.parent.mkdir()
    precious.touch()
    path = changed(folder, **changes)
    with pytest.raises(
        CheckpointError,
        match=r"checkpoint-STEP-3\.json: (this is no index|.*cannot be read: Infinity|the index is of another)",
    ):
        read_index(path)
    there = sorted(folder.rglob("*"))
    CheckpointFolder(folder).save({"E": Weights("E", {})}, None, kind="STEP", number=4, keep=1)
    assert set(there) < set(folder.rglob("*"))


def test_an_index_of_a_later_version_is_an_error_that_says_so(folder):
    with pytest.raises(CheckpointError, match=r"checkpoint-STEP-3\.json: this .* by a later nemo_lite: got version 2"):
        read_index(changed(folder, version=2))


def test_an_old_set_goes_with_its_files_when_newer_ones_take_its_place(folder):
    (folder / "notes.txt").touch()
    CheckpointFolder(folder).save({"E": Weights("E", {})}, None, kind="STEP", number=4, keep=1)
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "checkpoint-STEP-4", "notes.txt"]
