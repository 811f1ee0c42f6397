"""Records of checkpoints: what they say, that any change is noticed, what is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os

import numpy as np
import pytest

from nemo_lite.backends.pytorch.checkpoint.record import KIND, CheckpointSet, read_record, score_in
from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.base.verified import VerifiedFile
from nemo_lite.core.callbacks.action_state import Best

NAME = "E-STEP-5.safetensors"
RATES = [{"name": "dev-clean", "step": 5, "values": {"wer": 0.25}}]


def described(folder):
    files = {NAME: VerifiedFile(NAME, hashlib.sha256(b"abc").hexdigest(), 3)}
    about, contract = {"labels": ["a", "ж"]}, {"arguments": {"lr": 1e22}}
    return CheckpointSet(folder, "STEP", 5, 1, files, about, RATES, 5, 1, contract)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "checkpoint-STEP-5"
    made.mkdir()
    (made / NAME).write_bytes(b"abc")
    (made / "record.json").write_text(described(made).record_text(), encoding="utf-8")
    return made


def rewritten(folder, **changes):
    """The record with other content, and the digest of that."""
    content = json.loads((folder / "record.json").read_text(encoding="utf-8")) | changes
    del content["sha256"]
    (folder / "record.json").write_text(KIND.text(content), encoding="utf-8")
    return folder


def test_a_record_says_what_was_put_in(folder):
    found = read_record(folder)
    assert found == described(folder)
    assert (found.tag, found.modules, found.path_of("E")) == ("STEP-5", ["E"], folder / NAME)
    assert found.problem(contents=True) == ""


@pytest.mark.slow
def test_every_flipped_bit_and_every_shortening_of_a_record_is_noticed(folder):
    path = folder / "record.json"
    whole = path.read_bytes()
    flipped = [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole))]
    for damaged in (*flipped, *(whole[:end] for end in range(0, len(whole), 7)), whole + b" ", whole * 2):
        path.write_bytes(damaged)
        with pytest.raises(
            CheckpointError, match=r"record\.json(:\d+)?: the record (was changed|cannot be read|is not UTF-8)"
        ):
            read_record(folder)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: path.unlink(), f"lacks {NAME}"),
        (lambda path: path.write_bytes(b"ab"), f"{NAME} has 2 bytes, 3 were written"),
        (lambda path: path.write_bytes(b"abb"), f"{NAME} has changed (SHA-256 differs)"),
        (lambda path: (path.unlink(), os.mkfifo(path)), f"{NAME} is no file"),
        (lambda path: (path.unlink(), path.mkdir()), f"{NAME} is no file"),
        (lambda path: (path.unlink(), path.symlink_to(path)), f"{NAME} cannot be read (Too many levels"),
    ],
)
def test_a_file_that_is_not_what_was_written_is_named(folder, damage, problem):
    damage(folder / NAME)
    assert read_record(folder).problem(contents=True).startswith(problem)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "other"},
        {"files": {f"../{NAME}": {"bytes": 3, "sha256": "0" * 64}}},
        {"files": {"E-STEP-6.safetensors": {"bytes": 3, "sha256": "0" * 64}}},
        {"files": {"E-STEP-5.py/../x-STEP-5.pt": {"bytes": 3, "sha256": "0" * 64}}},
        {"files": {NAME: {"bytes": 3.0, "sha256": "0" * 64}}},
        {"files": {NAME: {"bytes": 3, "sha256": ""}}},
        {"files": {NAME: 3}},
        {"files": [NAME]},
        {"number": 6},
        {"number": -5},
        {"serial": 2**64},
        {"serial": "1"},
        {"kind": "RUN"},
        {"step": True},
        {"about": [1]},
        {"evaluations": "x"},
    ],
)
def test_a_record_whose_digest_is_right_but_whose_content_is_not_is_refused(folder, changes):
    with pytest.raises(CheckpointError, match=r"the record (cannot be read|is of another kind)"):
        read_record(rewritten(folder, **changes))


def test_a_record_in_the_folder_of_another_checkpoint_is_refused(folder):
    moved = folder.rename(folder.with_name("checkpoint-STEP-50"))
    with pytest.raises(CheckpointError, match=r"STEP-50/record\.json: the record is of another checkpoint: got STEP-5"):
        read_record(moved)
    assert read_record(moved.rename(folder.with_name("my copy"))).tag == "STEP-5"


def test_a_record_of_a_later_version_is_an_error_that_says_so(folder):
    with pytest.raises(CheckpointError, match=r"record\.json: the record was .* by a later nemo_lite: got version 4"):
        read_record(rewritten(folder, version=4))


@pytest.mark.parametrize(
    ("damage", "problem"), [("[" * 100_000, "nested 100000 levels"), (None, "the record is a pipe")]
)
def test_a_record_that_is_nested_without_end_or_no_file_is_refused(folder, damage, problem):
    (folder / "record.json").unlink()
    (folder / "record.json").write_text(damage) if damage else os.mkfifo(folder / "record.json")
    with pytest.raises(CheckpointError, match=problem):
        read_record(folder)


@pytest.mark.parametrize("about", [{"a": object()}, {"a": float("nan")}])
def test_what_json_cannot_hold_is_named(folder, about):
    with pytest.raises(UsageError, match=r"STEP-5: what is said about a checkpoint cannot be stored as JSON: got "):
        dataclasses.replace(described(folder), about=about).record_text()


def test_a_result_that_is_infinite_or_nan_is_null_in_a_record_and_no_best(folder):
    values = {"loss": math.inf, "wer": math.nan, "cer": np.float64(-np.inf), "top": (0.5, math.nan), "note": "inf"}
    results = [{"name": "dev", "step": 5, "values": values}]
    made = dataclasses.replace(described(folder), evaluations=results)
    (folder / "record.json").write_text(made.record_text(), encoding="utf-8")
    (found,) = read_record(folder).evaluations
    assert found["values"] == {"loss": None, "wer": None, "cer": None, "top": [0.5, None], "note": "inf"}
    for evaluations in (results, [found]):
        assert [score_in(evaluations, 5, Best("dev", tag, 1)) for tag in values] == [None] * 5
        assert score_in(evaluations, 5, Best("dev", "loss", 1, highest=True)) is None


def test_names_that_are_no_utf_8_are_kept_in_a_record(folder):
    name = os.fsdecode(b"tr\xff.py")
    contract = {"code": {name: "0123"}, "data": {"manifest": f"/d\udcfe/{name}"}}
    made = dataclasses.replace(described(folder), contract=contract, about={"from": name, "d": "\ud83d\ude00"})
    (folder / "record.json").write_text(made.record_text(), encoding="utf-8")
    found = read_record(folder)
    assert (found.contract, found.about) == (contract, {"from": name, "d": "\U0001f600"})


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["part-1-of-2"], "1 files of E, which is in 2 parts"),
        (["part-1-of-2", "part-2-of-2", "part-1-of-3"], "3 files of E"),
        (["part-1-of-2", "part-2-of-2", None], "3 files of E"),
    ],
)
def test_a_record_lists_each_part_of_a_file_and_nothing_else_of_its_module(folder, names, problem):
    parts = [f"E-STEP-5.{name}.safetensors" if name else NAME for name in ("part-1-of-2", "part-2-of-2")]
    made = dataclasses.replace(described(folder), files={name: VerifiedFile(name, "0" * 64, 3) for name in parts})
    (folder / "record.json").write_text(made.record_text(), encoding="utf-8")
    found = read_record(folder)
    assert (found.modules, found.path_of("E")) == (["E"], folder / parts[0])
    listed = {f"E-STEP-5.{name}.safetensors" if name else NAME: {"bytes": 3, "sha256": "0" * 64} for name in names}
    with pytest.raises(CheckpointError, match=problem):
        read_record(rewritten(folder, files=listed))
