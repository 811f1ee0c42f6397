"""Atomic writing, sweeping and folders."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_lite import files
from nemo_lite.errors import UsageError
from nemo_lite.files import check_replaceable, make_writable_folder, path_in_list, write_atomically


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def failing(error):
    def write(path):
        path.write_text("half", encoding="utf-8")
        raise error

    return write


def test_a_write_replaces_the_file_and_leaves_nothing_else(tmp_path):
    for text in ("old", "new"):
        write_atomically(tmp_path / "x.json", lambda path, text=text: path.write_text(text, encoding="utf-8"))
    assert (tmp_path / "x.json").read_text(encoding="utf-8") == "new"
    assert names_in(tmp_path) == ["x.json"]


def test_the_temporary_lies_below_the_same_folder_and_bears_the_same_name(tmp_path):
    seen = []
    write_atomically(tmp_path / "x.wav", lambda path: (seen.append(path), path.touch()))
    assert (seen[0].name, seen[0].parent.parent) == ("x.wav", tmp_path)


def test_the_file_is_as_readable_as_the_users_mask_allows(tmp_path):
    (tmp_path / "ordinary").touch()

    def write_privately(path):
        path.touch(mode=0o600)

    write_atomically(tmp_path / "x", write_privately)
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_the_content_reaches_the_disk_before_the_name_and_the_name_before_the_return(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace

    def recording_fsync(descriptor):
        events.append("fsync " + ("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file"))
        fsync(descriptor)

    def recording_replace(source, target):
        events.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", recording_replace)
    write_atomically(tmp_path / "x", lambda path: path.touch())
    assert events == ["fsync file", "replace", "fsync folder"]


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_an_error_of_the_writer_passes_and_keeps_the_old_file(tmp_path, error):
    (tmp_path / "x").write_text("old", encoding="utf-8")
    with pytest.raises(type(error)):
        write_atomically(tmp_path / "x", failing(error))
    assert (tmp_path / "x").read_text(encoding="utf-8") == "old"
    assert names_in(tmp_path) == ["x"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 704 vs 598"),
        Exception("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_said_in_words_and_leaves_nothing(tmp_path, error):
    with pytest.raises(
        UsageError,
        match=r"x: the disk is full; free some space; nothing that was there before has been changed",
    ):
        write_atomically(tmp_path / "x", failing(error))
    assert names_in(tmp_path) == []


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(
        UsageError,
        match=r'gone/x: the file cannot be written: got "No such file or directory" \(ENOENT\); '
        r"its folder is not there: was it deleted or unmounted\?$",
    ):
        write_atomically(tmp_path / "gone" / "x", lambda path: path.touch())


def test_only_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "stdout").symlink_to(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, kind in (("pipe", "pipe or a device"), ("stdout", "pipe or a device"), ("folder", "folder")):
        with pytest.raises(UsageError, match=f"{name}: this is a {kind}: wanted the name of a file"):
            write_atomically(tmp_path / name, lambda path: path.touch())
    for name in ("/dev/stdout", "/dev/fd/1"):  # perhaps links to a file
        with pytest.raises(UsageError, match=f"{name}: this is a pipe or a device"):
            check_replaceable(Path(name))
    assert (tmp_path / "pipe").is_fifo()
    assert names_in(tmp_path) == ["folder", "pipe", "stdout"]


def test_temporaries_of_ended_processes_are_swept_and_others_kept(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    kept = [f".a.{files._HOST}.{os.getpid()}.00000000.tmp", ".b.elsewhere.1.00000000.tmp", ".mine.tmp", "x.tmp"]
    swept = [f".a.b.{files._HOST}.{ended.pid}.00000000.tmp", ".c.elsewhere.1.00000000.tmp"]
    for name in (*kept, *swept):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").touch()
    os.utime(tmp_path / swept[1], (0, 0))
    write_atomically(tmp_path / "x", lambda path: path.touch())
    assert names_in(tmp_path) == sorted([*kept, "x"])


def test_a_writable_folder_is_made_with_its_parents_and_left_empty(tmp_path):
    assert make_writable_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert names_in(tmp_path / "a" / "b") == []


def test_the_proof_of_a_killed_process_is_swept_when_the_folder_is_used_again(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f".probe.{files._HOST}.{ended.pid}.00000000.tmp").mkdir()
    make_writable_folder(tmp_path)
    assert names_in(tmp_path) == []


def test_a_folder_below_a_file_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        UsageError, match=r'file/sub: the folder is not writable: got "Not a directory"; choose another'
    ):
        make_writable_folder(tmp_path / "file" / "sub")
    with pytest.raises(UsageError, match="file: there is a file where a folder is wanted"):
        make_writable_folder(tmp_path / "file")


def test_a_folder_without_permission_is_refused_in_one_line(tmp_path, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.rmdir", refuse)
    with pytest.raises(UsageError, match='the folder is not writable: got "Permission denied"'):
        make_writable_folder(tmp_path)


def test_an_existing_folder_is_refused_when_asked(tmp_path):
    with pytest.raises(UsageError, match="the folder exists already; choose another folder"):
        make_writable_folder(tmp_path, exist_ok=False)


def test_a_path_of_a_list_starts_at_its_folder_or_else_at_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("lists/both.wav", "lists/beside.wav", "both.wav", "here.wav"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    assert path_in_list("both.wav", "lists") == "lists/both.wav"
    assert path_in_list("beside.wav", "lists") == "lists/beside.wav"
    assert path_in_list("here.wav", "lists") == "here.wav"
    assert path_in_list("none.wav", "lists") == "lists/none.wav"
    assert path_in_list("here.wav", "") == "here.wav"
    assert path_in_list("/here.wav", "lists") == "/here.wav"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert path_in_list("~/none.wav", "lists") == f"{tmp_path}/none.wav"
