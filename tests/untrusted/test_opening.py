"""Opening a file that others may have made: what is no file is refused at once, what is too large before it is read."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from nemo_lite.errors import CheckpointError, DataError, NemoLiteError
from nemo_lite.files import FileKind, decode_text, open_file, read_bytes, read_text

KIND = FileKind("the lexicon", 1000, remedy="name a lexicon")


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def make_endless_link(path: Path) -> None:
    path.symlink_to(path)


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2 << 30)


REFUSED = {
    "a named pipe": (make_pipe, "the lexicon is a pipe or a device: wanted a regular file; name a lexicon"),
    "a socket": (make_socket, r"the lexicon cannot be opened \(No such device or address\)"),
    "an endless link": (make_endless_link, r"the lexicon cannot be opened \(Too many levels of symbolic links\)"),
    "a folder": (Path.mkdir, "the lexicon is a folder"),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), "the lexicon is a pipe or a device"),
    "2 GiB of holes": (make_sparse, "the lexicon is too large: got 2147483648 bytes, wanted at most 1000 bytes"),
    "nothing": (lambda path: None, r"the lexicon cannot be opened \(No such file or directory\)"),
}


@pytest.mark.parametrize("trick", REFUSED)
def test_what_is_no_file_of_the_kind_is_refused_with_its_path(trick, tmp_path):
    make, message = REFUSED[trick]
    make(tmp_path / "hostile")
    with pytest.raises(DataError, match=rf"^{tmp_path}/hostile: {message}"):
        read_bytes(tmp_path / "hostile", KIND)


def test_a_null_character_in_a_path_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be opened"):
        open_file(f"{tmp_path}/a\0b", KIND)


def test_a_file_of_the_size_that_its_kind_may_have_is_read(tmp_path):
    (tmp_path / "file").write_bytes(b"a" * 1000)
    assert read_bytes(tmp_path / "file", KIND) == b"a" * 1000


def test_a_file_that_has_more_than_its_size_says_is_refused_while_it_is_read():
    with pytest.raises(DataError, match="the lexicon is too large: wanted at most 10 bytes"):
        read_bytes("/proc/self/status", FileKind("the lexicon", 10))  # its size is 0


def test_no_descriptor_stays_open_after_a_refusal(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(NemoLiteError):
            open_file(tmp_path, KIND)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_kind_chooses_the_error(tmp_path):
    with pytest.raises(CheckpointError, match="the index is a folder"):
        read_bytes(tmp_path, FileKind("the index", 10, CheckpointError))


def test_text_that_is_not_utf_8_is_refused_with_its_line():
    with pytest.raises(DataError, match=r"^words:2: the lexicon is not UTF-8: got the byte 0xff"):
        decode_text(b"a\nb\xff\n", "words", KIND)


def test_a_byte_order_mark_is_left_out_of_a_text(tmp_path):
    (tmp_path / "words").write_bytes(b"\xef\xbb\xbfa\tb\r\nc\n")
    assert read_text(tmp_path / "words", KIND) == "a\tb\r\nc\n"
