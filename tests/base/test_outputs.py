"""Outputs: what commands may overwrite, and what they may delete."""

from __future__ import annotations

import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_lite.base.errors import FileInTheWayError, UsageError
from nemo_lite.base.outputs import (
    RECORD,
    InputFiles,
    check_ours,
    check_output,
    foreign_in,
    list_outputs,
    remove_outputs,
    write_output,
)

KIND = "nemo-lite toy"


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


# Files


def test_what_a_command_wrote_it_may_replace_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for content in ("1", "2", "1", "3"):
        write_output(path, text(content), KIND)
        assert path.read_text() == content
    with pytest.raises(FileInTheWayError, match=r"a\.txt: the file was not written by another; give another name, or"):
        write_output(path, text("4"), "another")
    path.write_text("mine")
    with pytest.raises(FileInTheWayError, match=r"a\.txt: the file was changed since nemo-lite toy wrote it; move it$"):
        write_output(path, text("4"), KIND, remedy="move it")
    assert path.read_text() == "mine"
    write_output(path, text("4"), KIND, overwrite=True)
    write_output(path, text("5"), KIND)
    assert sorted(os.listdir(tmp_path)) == [RECORD, "a.txt"]


def test_a_file_that_appears_while_a_command_works_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"

    def write(temporary: Path) -> None:
        temporary.write_text("new")
        path.write_text("mine")

    with pytest.raises(FileInTheWayError, match="was not written by nemo-lite toy"):
        write_output(path, write, KIND)
    assert path.read_text() == "mine"


def test_a_file_that_failed_to_be_written_is_what_it_was(tmp_path: Path) -> None:
    write_output(tmp_path / "a.txt", text("1"), KIND)
    with pytest.raises(ZeroDivisionError):
        write_output(tmp_path / "a.txt", lambda path: 1 / 0, KIND)
    write_output(tmp_path / "a.txt", text("2"), KIND)
    assert (tmp_path / "a.txt").read_text() == "2"


@pytest.mark.parametrize("link", ["nowhere", "real.txt"])
def test_a_link_of_the_users_is_not_replaced(link: str, tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("mine")
    (tmp_path / "a.txt").symlink_to(link)
    with pytest.raises(FileInTheWayError, match=r"a\.txt: the file was not written by nemo-lite toy"):
        check_output(tmp_path / "a.txt", KIND)


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_input_is_never_overwritten_by_any_name(overwrite: bool, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    audio = tmp_path / "in" / "a.wav"
    audio.write_text("mine")
    (tmp_path / "soft").symlink_to(audio)
    (tmp_path / "hard").hardlink_to(audio)
    (tmp_path / "folder").symlink_to("in")
    inputs = InputFiles([tmp_path / "none", "\0", audio])
    for name in ("in/a.wav", "soft", "hard", "folder/a.wav", "in/../in/a.wav"):
        with pytest.raises(FileInTheWayError, match=r"this is an input of the command.*, which is never overwritten"):
            check_output(tmp_path / name, KIND, inputs=inputs, overwrite=overwrite)
    check_output(tmp_path / "new", KIND, inputs=inputs)


@pytest.mark.parametrize(
    "damage", ["", "{", "[1]", '{"file": 1}', '{"file": "a.txt", "by": [], "sha256": {}}', "\0", "[" * 200_000]
)
def test_a_damaged_record_makes_nothing_ours_and_is_written_on(damage: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("mine")
    (tmp_path / RECORD).write_text(damage + "\n")
    with pytest.raises(FileInTheWayError, match="was not written by nemo-lite toy"):
        write_output(tmp_path / "a.txt", text("new"), KIND)
    for content in ("1", "2"):
        write_output(tmp_path / "b.txt", text(content), KIND)


def test_a_record_is_read_in_no_more_memory_than_it_has_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for number in range(2):  # the second time the record is read
        tracemalloc.start()
        try:
            write_output(path, text(str(number)), KIND)
            assert tracemalloc.get_traced_memory()[1] < 2 << 20
        finally:
            tracemalloc.stop()


def test_a_record_that_cannot_be_written_leaves_files_to_overwrite(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / RECORD)
    write_output(tmp_path / "a.txt", text("1"), KIND)
    with pytest.raises(FileInTheWayError, match="was not written by nemo-lite toy"):
        write_output(tmp_path / "a.txt", text("2"), KIND)
    write_output(tmp_path / "a.txt", text("2"), KIND, overwrite=True)


def test_a_record_that_was_removed_is_forgotten(tmp_path: Path) -> None:
    write_output(tmp_path / "a.txt", text("1"), KIND)
    write_output(tmp_path / "a.txt", text("2"), KIND)
    (tmp_path / RECORD).unlink()
    with pytest.raises(FileInTheWayError, match="was not written by nemo-lite toy"):
        write_output(tmp_path / "a.txt", text("3"), KIND)


# Folders


def a_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    (folder / "inner" / "empty").mkdir(parents=True)
    (folder / "a").write_text("a")
    (folder / "inner" / "b").write_text("b")
    (folder / "inner" / "link").symlink_to("b")
    list_outputs(folder, KIND)
    return folder


def test_a_folder_of_ours_is_removed_as_a_whole(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    check_ours(folder, KIND)
    assert remove_outputs(folder, KIND)
    assert os.listdir(tmp_path) == []
    check_ours(folder, KIND)


def test_what_is_not_listed_is_not_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("mine")
    folder = a_folder(tmp_path)
    (folder / "a").write_text("changed")
    (folder / "inner" / "thesis").write_text("mine")
    (folder / "inner" / "link").unlink()
    (folder / "inner" / "link").symlink_to("elsewhere")
    (folder / "own").mkdir()
    (folder / "away").symlink_to(outside)
    foreign = ["a", "away", "inner/link", "inner/thesis", "own"]
    assert sorted(foreign_in(folder, KIND)) == foreign
    told = f"{folder}: the folder holds files that nemo-lite toy has not listed as its own "
    told += "(if it is killed, it lists none), or that were changed since: got "
    with pytest.raises(UsageError, match=re.escape(told) + ".*, \\.\\.\\.; nothing has been deleted; choose another"):
        check_ours(folder, KIND)
    assert not remove_outputs(folder, KIND)
    left = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    assert left == [RECORD, "a", "away", "inner", "inner/link", "inner/thesis", "own"]
    assert (outside / "precious").read_text() == "mine"


def test_a_folder_without_a_record_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("mine")
    assert not remove_outputs(tmp_path, KIND)
    assert (tmp_path / "thesis").read_text() == "mine"
    with pytest.raises(UsageError, match="thesis: there is a file where a folder is wanted"):
        check_ours(tmp_path / "thesis", KIND)


def test_a_file_of_the_name_of_a_listed_folder_is_not_removed(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    (folder / "inner" / "empty").rmdir()
    (folder / "inner" / "empty").write_text("mine")
    assert not remove_outputs(folder, KIND)
    assert (folder / "inner" / "empty").read_text() == "mine"
