"""Dotted attributes, padding, checkpoint names."""

from __future__ import annotations

import types

import pytest

from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.base.helpers import (
    get_checkpoint_from_dir,
    pad_to,
    parse_checkpoint_name,
    rgetattr,
    rsetattr,
    stored_as,
    tag_of_folder,
)


def touch(folder, *names):
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch()


def test_dotted_attributes_are_read_and_written():
    obj = types.SimpleNamespace(a=types.SimpleNamespace(b=1))
    rsetattr(obj, "a.b", 2)
    rsetattr(obj, "c", 3)
    assert (rgetattr(obj, "a.b"), rgetattr(obj, "c"), rgetattr(obj, "a.x.y", None)) == (2, 3, None)
    with pytest.raises(AttributeError):
        rgetattr(obj, "a.x")


def test_pad_to_gives_the_next_multiple():
    assert [pad_to(x, 8) for x in (0, 1, 8, 9)] == [0, 8, 8, 16]
    with pytest.raises(UsageError, match="pad_to: k is out of range: got 0"):
        pad_to(3, 0)


def test_checkpoint_names_are_taken_apart_from_the_right():
    assert parse_checkpoint_name("My-STEP-1-x-EPOCH-12.pt") == ("My-STEP-1-x", "EPOCH", 12, ".pt", None)
    assert parse_checkpoint_name("E-STEP-1.part-2-of-3.safetensors") == ("E", "STEP", 1, ".safetensors", (2, 3))
    assert parse_checkpoint_name("E-STEP-1.part-4-of-3.safetensors") is None
    assert parse_checkpoint_name("JasperEncoder-STEP-.pt") is None
    assert parse_checkpoint_name("notes.txt") is None


def test_the_highest_common_step_is_taken(tmp_path):
    touch(
        tmp_path, "E-STEP-9.pt", "D-STEP-9.pt", "E-STEP-10.pt", "D-STEP-10.pt", "E-STEP-100.pt", "E-STEP-x.pt", "a.md"
    )
    touch(tmp_path, "E-EPOCH-500.pt", "D-EPOCH-500.pt")
    files, steps = get_checkpoint_from_dir(["E", "D"], tmp_path, return_steps=True)
    assert files == [str(tmp_path / "E-STEP-10.pt"), str(tmp_path / "D-STEP-10.pt")]
    assert steps == [10, 10]
    assert get_checkpoint_from_dir("E", tmp_path) == [str(tmp_path / "E-STEP-100.pt")]


def test_epochs_are_taken_when_there_are_no_steps(tmp_path):
    touch(tmp_path, "E-EPOCH-2.pt", "E-EPOCH-11.pt")
    assert get_checkpoint_from_dir("E", str(tmp_path)) == [str(tmp_path / "E-EPOCH-11.pt")]


def test_a_pattern_narrows_the_choice(tmp_path):
    touch(tmp_path, "E-STEP-9.pt", "E-STEP-10.pt")
    assert get_checkpoint_from_dir(["E"], tmp_path, "STEP-9") == [str(tmp_path / "E-STEP-9.pt")]


def test_safetensors_win_over_pt_of_the_same_step(tmp_path):
    touch(tmp_path, "E-STEP-9.pt", "E-STEP-9.safetensors")
    assert get_checkpoint_from_dir(["E"], tmp_path) == [str(tmp_path / "E-STEP-9.safetensors")]


def test_a_longer_name_with_the_same_beginning_does_not_match(tmp_path):
    touch(tmp_path, "JasperEncoder2-STEP-9.pt")
    message = r"no checkpoint files for JasperEncoder of the same step: got .*did you mean JasperEncoder2"
    with pytest.raises(CheckpointError, match=message):
        get_checkpoint_from_dir("JasperEncoder", tmp_path)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere: no such folder"):
        get_checkpoint_from_dir("E", tmp_path / "nowhere")


def test_modules_without_a_common_step_have_their_own_highest_one(tmp_path):
    touch(tmp_path, "E-STEP-9.pt", "E-STEP-10.pt", "D-STEP-8.pt")
    files = [str(tmp_path / "E-STEP-10.pt"), str(tmp_path / "D-STEP-8.pt")]
    assert get_checkpoint_from_dir(["E", "D"], tmp_path, return_steps=True) == (files, [10, 8])
    with pytest.raises(ValueError, match="no checkpoint files for E, F of the same step"):
        get_checkpoint_from_dir(["E", "F"], tmp_path)


@pytest.mark.parametrize(("names", "pattern"), [([3], ""), (["E"], 9)])
def test_names_and_patterns_that_are_no_texts_are_refused(tmp_path, names, pattern):
    touch(tmp_path, "E-STEP-9.pt")
    with pytest.raises(ValueError, match="get_checkpoint_from_dir: a name or pattern is no text: got int"):
        get_checkpoint_from_dir(names, tmp_path, pattern)


def test_files_are_found_in_the_folders_of_checkpoints_under_their_flat_names(tmp_path):
    made = tmp_path / "checkpoint-STEP-9"
    touch(made, "E-STEP-9.safetensors", "D-STEP-9.safetensors", "record.json")
    touch(tmp_path / "checkpoint-STEP-10", "E-STEP-10.safetensors", "D-STEP-10.safetensors")  # it has no record
    files, steps = get_checkpoint_from_dir(["E", "D"], tmp_path, return_steps=True)
    assert (files, steps) == ([str(made / f"{name}-STEP-9.safetensors") for name in "ED"], [9, 9])
    for name in ("E-STEP-9.pt", "E-STEP-9.safetensors"):
        assert stored_as(tmp_path / name) == made / "E-STEP-9.safetensors"
    for name in ("F-STEP-9.pt", "E-STEP-9.txt", "x.pt"):
        assert stored_as(tmp_path / name) == tmp_path / name


def test_the_tag_of_a_checkpoint_is_in_the_name_of_its_folder():
    names = ("checkpoint-STEP-9", "checkpoint-EPOCH-0", "checkpoint-STEP-09", "checkpoint-STEP-9.json", "STEP-9")
    assert [tag_of_folder(name) for name in names] == ["STEP-9", "EPOCH-0", None, None, None]
