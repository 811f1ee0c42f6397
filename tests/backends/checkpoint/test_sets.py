"""Indexes of checkpoint sets: what they say, what is refused, and that older ones stay readable."""

from __future__ import annotations

import dataclasses
import json

import pytest

from nemo_lite.backends.pytorch.checkpoint.sets import CheckpointSet, index_path, read_index
from nemo_lite.errors import CheckpointError, UsageError


def written(folder, **changes):
    """The index of a set, with some of its keys changed; None takes a key out."""
    found = CheckpointSet(folder, "STEP", 5, 1, {"E-STEP-5.safetensors": 3}, "", {"labels": ["a", "ж"]}, (), 5, 1)
    content = json.loads(found.index_text()) | changes
    path = index_path(folder, "STEP-5")
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}), encoding="utf-8")
    return path


def test_an_index_says_what_was_put_in(tmp_path):
    rates = [{"name": "dev-clean", "step": 5, "values": {"wer": 0.25}}]
    contract = {"arguments": {"lr": 0.5}}
    found = read_index(written(tmp_path, evaluations=rates, contract=contract))
    assert found.contract == contract
    assert (found.tag, found.step, found.epoch, found.modules) == ("STEP-5", 5, 1, ["E"])
    assert found.about == {"labels": ["a", "ж"]}
    assert found.evaluations == rates


def test_an_index_of_before_about_and_rates_is_read(tmp_path):
    found = read_index(written(tmp_path, about=None, evaluations=None, step=None, epoch=None, contract=None))
    assert found == CheckpointSet(tmp_path, "STEP", 5, 1, {"E-STEP-5.safetensors": 3}, "", {}, [], None, None)


def test_an_index_of_a_later_version_is_an_error_that_says_so(tmp_path):
    path = written(tmp_path, version=2)
    with pytest.raises(CheckpointError, match=r"checkpoint-STEP-5.json: this .* by a later nemo_lite: got version 2"):
        read_index(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "other"},
        {"files": {"../E-STEP-5.safetensors": 3}},
        {"files": {"E-STEP-6.safetensors": 3}},
        {"number": 6},
    ],
)
def test_a_foreign_or_contradicting_index_is_no_set(tmp_path, changes):
    assert read_index(written(tmp_path)) is not None
    assert read_index(written(tmp_path, **changes)) is None


@pytest.mark.parametrize("about", [{"a": object()}, {"a": float("nan")}])
def test_what_json_cannot_hold_is_named(tmp_path, about):
    found = read_index(written(tmp_path))
    assert found is not None
    with pytest.raises(UsageError, match=r"STEP-5: what is said about a checkpoint cannot be stored as JSON: got "):
        dataclasses.replace(found, about=about).index_text()
