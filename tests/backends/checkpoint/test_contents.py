"""The files of a set: their names, whole and in parts, and what is read from those that were chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder, Chosen, writers_of
from nemo_lite.backends.pytorch.checkpoint.storage import WHOLE, Weights
from nemo_lite.errors import CheckpointError
from nemo_lite.utils.helpers import Part


def test_the_names_of_files_say_which_part_they_are() -> None:
    weights = {"E": Weights("E", {})}
    assert [*writers_of(weights, {}, "STEP-5", ".pt", WHOLE)] == ["E-STEP-5.pt", "trainer-STEP-5.pt"]
    in_parts = writers_of(weights, {}, "EPOCH-5", ".safetensors", Part(2, 4))
    assert [*in_parts] == ["E-EPOCH-5.part-2-of-4.safetensors", "trainer-EPOCH-5.part-2-of-4.safetensors"]


def test_what_was_chosen_travels_as_plain_values_and_all_misfits_are_told_at_once(tmp_path: Path) -> None:
    modules = {"a": nn.Linear(2, 1), "b": nn.Linear(3, 1)}
    CheckpointFolder(tmp_path).save(modules, {"step": 1}, kind="STEP", number=1, keep=1, contract={"x": 1})
    chosen = Chosen(*tuple(CheckpointFolder(tmp_path).choose(modules)))
    assert all(type(path) is str for path in chosen.files.values())
    found = chosen.read(modules)
    assert (found.state, found.contract) == ({"step": 1}, {"x": 1})
    assert torch.equal(found.weights["b"]["weight"], modules["b"].weight)
    with pytest.raises(CheckpointError, match=r"a-STEP-1(?s:.*)b-STEP-1"):
        chosen.read({"a": nn.Linear(5, 1), "b": nn.Linear(5, 1)})
