"""A file that a run can do without: pieces whole or not at all, one line about the first failure, and on it goes."""

from __future__ import annotations

import errno
import os

from nemo_lite.files import AppendedFile


def test_a_full_disk_is_told_once_and_each_piece_is_tried(tmp_path):
    told = []
    file = AppendedFile("/dev/full", told.append)
    assert [file.append(b"one\n"), file.append(b"two\n")] == [False, False]
    assert told == [
        "/dev/full: cannot be written: No space left on device; the run goes on, and what is to come is tried"
    ]
    file.path = tmp_path / "log"
    assert file.append(b"three\n")
    assert file.path.read_bytes() == b"three\n"


def test_a_piece_that_fits_in_part_leaves_nothing(tmp_path, monkeypatch):
    told, write = [], os.write
    file = AppendedFile(tmp_path / "log", told.append)
    assert file.append(b"whole\n")

    def fill_up(descriptor, data):
        if len(data) < 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:3])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fill_up)
        assert not file.append(b"halved")
    assert file.append(b"again\n")
    assert file.path.read_bytes() == b"whole\nagain\n"
    assert len(told) == 1


def test_a_pipe_or_a_link_is_left_alone(tmp_path):
    told = []
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / "pipe")
    pieces = [AppendedFile(tmp_path / name, told.append).append(b"one\n") for name in ("link", "pipe")]
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    pieces.append(AppendedFile(tmp_path / "pipe", told.append).append(b"one\n"))
    os.close(reader)
    assert pieces == [False] * 3
    reasons = ("Too many levels of symbolic links", "No such device or address", "it is a pipe")
    assert [reason in text for reason, text in zip(reasons, told, strict=True)] == [True] * 3
    assert (tmp_path / "precious").read_text() == "mine"
