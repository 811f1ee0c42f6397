"""How the folder of a checkpoint is made, replaced and deleted; what is left when a step of it fails."""

from __future__ import annotations

import dataclasses
import errno
import os
from types import SimpleNamespace

import pytest

from nemo_lite.backends.pytorch.checkpoint import store as commit
from nemo_lite.backends.pytorch.checkpoint.record import CheckpointSet, read_record
from nemo_lite.backends.pytorch.checkpoint.store import (
    delete_set,
    folders_of_sets,
    link_to_files,
    rewrite_record,
    sweep,
    write_set,
)
from nemo_lite.base.errors import UsageError

NAME = "E-STEP-5.safetensors"


def made(folder, text="new"):
    wanted = CheckpointSet(folder / "checkpoint-STEP-5", "STEP", 5, 1, {})

    def write(file):
        file.write(text.encode())

    return write_set(wanted, {NAME: write})


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def failing(function, number, error):
    """The function, but its ``number``-th call fails."""
    calls = iter(range(number + 1))

    def call(*args, **kwargs):
        if next(calls, None) == number:
            raise error
        return function(*args, **kwargs)

    return call


@pytest.mark.parametrize(
    ("name", "number"),
    [("mkdir", 0), ("rename", 0), ("rename", 1), *[("fsync", number) for number in range(4)]],
)
@pytest.mark.parametrize(
    ("code", "told"),
    [
        (errno.EIO, r'checkpoint-STEP-5: cannot be written: got "Input/output error" \(EIO\); choose another folder'),
        (errno.ENOSPC, r"checkpoint-STEP-5: the disk is full; free some space; .* changed \(ENOSPC\)"),
    ],
)
def test_a_step_of_a_save_that_fails_is_told_with_its_path_and_number_and_the_old_set_stays(
    tmp_path, monkeypatch, name, number, code, told
):
    made(tmp_path, "old")
    with monkeypatch.context() as patched:
        patched.setattr(os, name, failing(getattr(os, name), number, OSError(code, os.strerror(code))))
        with pytest.raises(UsageError, match=told):
            made(tmp_path)
    found = read_record(tmp_path / "checkpoint-STEP-5")
    assert found.problem(contents=True) == ""
    is_committed = (name, number) == ("fsync", 3)  # only the last: the new name may be lost if the power fails
    assert (tmp_path / "checkpoint-STEP-5" / NAME).read_text() == ("new" if is_committed else "old")
    sweep(tmp_path)
    assert names_in(tmp_path) == ["checkpoint-STEP-5"]


def test_a_checkpoint_that_is_replaced_takes_files_of_others_along(tmp_path):
    (made(tmp_path, "old").path / "notes.txt").write_text("mine")
    saved = made(tmp_path, "new")
    assert (saved.path / "notes.txt").read_text() == "mine"
    assert (saved.path / NAME).read_text() == "new"
    delete_set(saved)
    assert names_in(saved.path) == ["notes.txt"]


def test_what_was_set_aside_and_replaced_goes_without_files_of_others(tmp_path):
    aside = tmp_path / ".checkpoint-STEP-5.some-host.12345.0123abcd.aside"
    (made(tmp_path, "old").path / "notes.txt").write_text("mine")
    (tmp_path / "checkpoint-STEP-5").rename(aside)
    made(tmp_path, "new")
    sweep(tmp_path)
    assert names_in(tmp_path) == ["checkpoint-STEP-5"]
    assert (tmp_path / "checkpoint-STEP-5" / "notes.txt").read_text() == "mine"


def test_a_file_of_the_users_stays_where_a_link_to_a_checkpoint_would_go(tmp_path):
    saved = made(tmp_path)
    (tmp_path / NAME).write_text("mine")
    link_to_files(saved)
    assert (tmp_path / NAME).read_text() == "mine"
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).symlink_to("elsewhere")
    link_to_files(saved)
    assert os.readlink(tmp_path / NAME) == "elsewhere"
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).symlink_to(f"checkpoint-STEP-4/{NAME}")
    link_to_files(saved)
    assert (tmp_path / NAME).read_text() == "new"


def test_what_was_set_aside_is_found_until_the_new_one_has_its_place(tmp_path):
    found = made(tmp_path, "old")
    aside = found.path.rename(tmp_path / ".checkpoint-STEP-5.some-host.12345.0123abcd.aside")
    assert folders_of_sets(tmp_path) == [aside]
    assert read_record(aside).problem(contents=True) == ""
    sweep(tmp_path)
    assert names_in(tmp_path) == ["checkpoint-STEP-5"]


def test_only_what_a_save_left_is_swept(tmp_path):
    others = [".checkpoint-STEP-5.tmp", ".notes.host.12345.0123abcd.tmp", "checkpoint-STEP-5.host.12345.0123abcd.tmp"]
    for name in (*others, ".checkpoint-STEP-5.host.12345.0123abcd.tmp"):
        (tmp_path / name).mkdir()
    outside = tmp_path / "outside"
    (outside / "precious").mkdir(parents=True)
    link = tmp_path / ".checkpoint-STEP-6.host.12345.0123abcd.tmp"
    link.symlink_to(outside)
    sweep(tmp_path)
    assert names_in(tmp_path) == sorted([*others, "outside", link.name])
    assert names_in(outside) == ["precious"]


def test_a_delete_that_was_killed_leaves_nothing_that_looks_damaged(tmp_path, monkeypatch):
    found = made(tmp_path)
    fake = SimpleNamespace(rmtree=lambda path, **kwargs: (path / NAME).unlink())
    monkeypatch.setattr(commit, "shutil", fake)
    delete_set(found)
    assert folders_of_sets(tmp_path) == []
    monkeypatch.undo()
    sweep(tmp_path)
    assert names_in(tmp_path) == []


def test_a_note_of_an_evaluation_that_was_killed_leaves_the_record_and_is_swept(tmp_path, monkeypatch):
    found = made(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", failing(os.replace, 0, KeyboardInterrupt()))
        patched.setattr(commit, "shutil", SimpleNamespace(rmtree=lambda path, **kwargs: None))
        with pytest.raises(KeyboardInterrupt):
            rewrite_record(dataclasses.replace(found, evaluations=[{"name": "dev"}]))
    assert (read_record(found.path).evaluations, names_in(found.path)) == ([], [NAME, "record.json"])
    rewrite_record(dataclasses.replace(found, evaluations=[{"name": "dev"}]))
    assert read_record(found.path).evaluations == [{"name": "dev"}]
    sweep(tmp_path)
    assert names_in(tmp_path) == [found.path.name]


def test_a_sweep_leaves_folders_that_are_no_checkpoints_of_ours(tmp_path):
    empty, kept = (tmp_path / f"checkpoint-STEP-{number}" for number in (1, 2))
    empty.mkdir()
    kept.mkdir()
    (kept / "notes.txt").write_text("mine")
    sweep(tmp_path)
    assert (names_in(tmp_path), names_in(kept)) == ([empty.name, kept.name], ["notes.txt"])


def test_a_set_that_cannot_be_deleted_is_named(tmp_path, monkeypatch):
    found = made(tmp_path)
    monkeypatch.setattr(os, "rename", failing(os.rename, 0, OSError(errno.EROFS, "Read-only file system")))
    with pytest.raises(UsageError, match=r'STEP-5: cannot be deleted: got "Read-only file system" \(EROFS\)'):
        delete_set(found)
