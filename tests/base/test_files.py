"""Files: the one door (opening, JSON, archives), atomic writing, appending, digests."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import socket
import subprocess
import sys
import time
import tracemalloc
from enum import Enum
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_lite.base import files
from nemo_lite.base.errors import CheckpointError, DataError, FileInTheWayError, NemoLiteError, UsageError
from nemo_lite.base.files import (
    AppendedFile,
    FileKind,
    JsonLimits,
    check_replaceable,
    check_writable_folder,
    decode_text,
    digest_of,
    digest_of_files,
    digest_of_package,
    make_writable_folder,
    open_file,
    parse_json,
    path_in_list,
    plain_values,
    problem_of_json,
    read_bytes,
    read_json,
    read_text,
    refuse_existing,
    write_atomically,
)

# Opening a file that others may have made: what is no file is refused at once, what is too large before it is read.


LEXICON = FileKind("the lexicon", 1000, remedy="name a lexicon")


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


NO_FILES = {
    "a named pipe": (make_pipe, "the lexicon is a pipe or a device: wanted a regular file; name a lexicon"),
    "a socket": (make_socket, r"the lexicon cannot be opened \(No such device or address\)"),
    "an endless link": (make_endless_link, r"the lexicon cannot be opened \(Too many levels of symbolic links\)"),
    "a folder": (Path.mkdir, "the lexicon is a folder"),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), "the lexicon is a pipe or a device"),
    "2 GiB of holes": (make_sparse, "the lexicon is too large: got 2147483648 bytes, wanted at most 1000 bytes"),
    "nothing": (lambda path: None, r"the lexicon cannot be opened \(No such file or directory\)"),
}


@pytest.mark.parametrize("trick", NO_FILES)
def test_what_is_no_file_of_the_kind_is_refused_with_its_path(trick, tmp_path):
    make, message = NO_FILES[trick]
    make(tmp_path / "hostile")
    with pytest.raises(DataError, match=rf"^{tmp_path}/hostile: {message}"):
        read_bytes(tmp_path / "hostile", LEXICON)


def test_a_null_character_in_a_path_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be opened"):
        open_file(f"{tmp_path}/a\0b", LEXICON)


def test_a_file_of_the_size_that_its_kind_may_have_is_read(tmp_path):
    (tmp_path / "file").write_bytes(b"a" * 1000)
    assert read_bytes(tmp_path / "file", LEXICON) == b"a" * 1000


def test_a_file_that_has_more_than_its_size_says_is_refused_while_it_is_read():
    with pytest.raises(DataError, match="the lexicon is too large: wanted at most 10 bytes"):
        read_bytes("/proc/self/status", FileKind("the lexicon", 10))  # its size is 0


def test_a_small_file_takes_no_more_memory_than_it_has_bytes_whatever_its_kind_may_have(tmp_path):
    (tmp_path / "file").write_bytes(b"a" * 1000)
    tracemalloc.start()
    try:
        assert read_bytes(tmp_path / "file", FileKind("the record", 1 << 28)) == b"a" * 1000
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_no_descriptor_stays_open_after_a_refusal(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(NemoLiteError):
            open_file(tmp_path, LEXICON)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_kind_chooses_the_error(tmp_path):
    with pytest.raises(CheckpointError, match="the index is a folder"):
        read_bytes(tmp_path, FileKind("the index", 10, CheckpointError))


def test_text_that_is_not_utf_8_is_refused_with_its_line():
    with pytest.raises(DataError, match=r"^words:2: the lexicon is not UTF-8: got the byte 0xff"):
        decode_text(b"a\nb\xff\n", "words", LEXICON)


def test_a_byte_order_mark_is_left_out_of_a_text(tmp_path):
    (tmp_path / "words").write_bytes(b"\xef\xbb\xbfa\tb\r\nc\n")
    assert read_text(tmp_path / "words", LEXICON) == "a\tb\r\nc\n"


# JSON that others may have written: refused before it fills the memory, and each key counts once.


INDEX = FileKind("the index", 1 << 20)
JSON_LIMITS = JsonLimits(depth=8, values=100)

REFUSED_JSON = {
    "lists in lists": (b"[" * 100_000 + b"]" * 100_000, "it is nested 100000 levels deep, at most 8 are read"),
    "objects in objects": (b'{"a":' * 9 + b"1" + b"}" * 9, "nested 9 levels deep"),
    "lists that do not end": (b"[" * 100_000, "nested 100000 levels deep"),
    "many values": (b"[" + b"1," * 200 + b"1]", "it has 202 values, at most 100 are read"),
    "many empty lists": (b"[" + b"[]," * 100 + b"[]]", "values, at most 100"),
    "a key twice": (b'{"ab": 1, "ab": 2}', "the key ab occurs twice"),
    "a key twice by escapes": (rb'{"ab": 1, "\u0061b": 2}', "the key ab occurs twice"),
    "a key twice within": (b'[{"x": {"a": 1, "a": 1}}]', "the key a occurs twice"),
    "Infinity": (b'{"a": Infinity}', "Infinity is no finite number"),
    "NaN": (b"[NaN]", "NaN is no finite number"),
    "1e999": (b"[-1e999]", "-1e999 is no finite number"),
    "many digits": (b"[" + b"9" * 301 + b"]", "has 301 digits, at most 300 are read"),
    "many digits after the point": (b"[0." + b"9" * 300 + b"]", "has 302 digits"),
    "half of a surrogate pair": (rb'["\ud800"]', "a text has half of a surrogate pair"),
    "half of one in a key": (rb'{"a": [{"\udfff": 1}]}', "half of a surrogate pair"),
    "not UTF-8": (b'["\xff"]', "the byte 0xff is not UTF-8"),
    "no JSON": (b"{a}", "invalid JSON"),
    "nothing": (b"", "invalid JSON"),
    "a raw control character": (b'["a\x1bb"]', "invalid JSON"),
    "a text without an end": (b'["' + rb"\"" * 100_000, "invalid JSON"),
}


@pytest.mark.parametrize("trick", REFUSED_JSON)
def test_hostile_json_is_refused_with_the_reason(trick):
    raw, reason = REFUSED_JSON[trick]
    with pytest.raises(DataError, match=f"^index.json: the index cannot be read: .*{reason}"):
        parse_json(raw, "index.json", INDEX, JSON_LIMITS)
    assert reason in problem_of_json(raw, JSON_LIMITS)


def test_a_text_that_is_too_long_is_refused():
    with pytest.raises(DataError, match="the index is too large: got 1048578 bytes, wanted at most 1048576 bytes"):
        parse_json(b'"' + b"a" * (1 << 20) + b'"', "index.json", INDEX)


def test_brackets_and_commas_in_texts_do_not_count():
    value = {"[[[[[[[[[[[[": r'},,,\\"[{[{[{[{[{[{[{[' * 20, "b": "\\"}
    assert parse_json(json.dumps(value), "index.json", INDEX, JSON_LIMITS) == value


def test_plain_values_are_read_as_the_library_reads_them():
    value = {"a": [1, -2.5, 1e-300, True, None, "ü \U0001f600 \n"], "": {}, "big": 2**60}
    assert parse_json(json.dumps(value), "index.json", INDEX, JSON_LIMITS) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode(), "index.json", INDEX, JSON_LIMITS) == value


def test_halves_of_surrogate_pairs_are_read_where_the_kind_may_have_them():
    assert parse_json(rb'["\ud800"]', "", INDEX, JsonLimits(surrogates=True)) == ["\ud800"]


def test_the_structure_is_checked_before_anything_is_built():
    raw = b"[" + b"[]," * 300_000 + b"[]]"
    tracemalloc.start()
    started = time.process_time()
    assert "values, at most 1000" in problem_of_json(raw, JsonLimits(values=1000))
    assert tracemalloc.get_traced_memory()[1] < 4 * len(raw)
    tracemalloc.stop()
    assert time.process_time() - started < 2.0


def test_a_file_is_read_within_the_bounds_of_its_kind(tmp_path):
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert read_json(tmp_path / "a.json", INDEX) == {"a": 1}


# Atomic writing, sweeping and folders.


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


def test_a_writer_that_writes_whole_itself_names_the_file_that_was_asked_for(tmp_path):
    full = failing(OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(UsageError) as caught:
        write_atomically(tmp_path / "x", lambda path: write_atomically(path, full))
    assert caught.value.place == str(tmp_path / "x")


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


def test_a_folder_is_checked_without_being_made(tmp_path):
    check_writable_folder(tmp_path / "a" / "b")
    assert names_in(tmp_path) == []
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file: there is a file where a folder is wanted"):
        check_writable_folder(tmp_path / "file" / "sub")


def test_a_folder_without_permission_is_refused_in_one_line(tmp_path, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.rmdir", refuse)
    with pytest.raises(UsageError, match='the folder is not writable: got "Permission denied"'):
        make_writable_folder(tmp_path)


def test_a_disk_that_fails_once_leaves_no_proof_behind(tmp_path, monkeypatch):
    removed, rmdir = [], Path.rmdir

    def fail_once(self):
        removed.append(self)
        if len(removed) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rmdir(self)

    monkeypatch.setattr(Path, "rmdir", fail_once)
    with pytest.raises(UsageError, match='the folder is not writable: got "Input/output error"'):
        make_writable_folder(tmp_path)
    assert names_in(tmp_path) == []


def test_a_link_that_leads_nowhere_is_in_the_way_too(tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(FileInTheWayError, match="link: the file exists already"):
        refuse_existing(tmp_path / "link")


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


# A file that a run can do without: pieces whole or not at all, one line about the first failure, and on it goes.


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


# Digests: what counts of a value, of a file and of a package.


class Colour(Enum):
    RED = 1
    BLUE = 2


DIFFERENT = [
    *(None, True, False, 0, 1, 1.5, "", "1", "None", b"", b"1", [], {}, [[]], ["a", "b"], ["b", "a"], {"a": 1}),
    *({1: "a"}, {"1": "a"}, {"a"}, {"a", "b"}, Path("a"), float("nan"), Colour.RED, Colour.BLUE, digest_of, Path),
]


def test_different_values_have_different_digests() -> None:
    same = [(left, right) for left, right in combinations(DIFFERENT, 2) if digest_of(left) == digest_of(right)]
    assert same == []


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([1, 2], (1, 2)),
        ({"x", "y", "z"}, {"z", "y", "x"}),
        (Path("/data/here/train.json"), Path("/mnt/train.json")),
        (np.float64(0.5), 0.5),
        (np.int32(3), 3),
        (object(), object()),
        (lambda: 1, lambda: 2),
    ],
)
def test_order_of_keys_folders_and_identities_do_not_count(left: Any, right: Any) -> None:
    assert digest_of(left) == digest_of(right)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        *((each, each) for each in (0.5, 3, True, None, "relu")),
        (math.inf, "Infinity"),
        (np.float32(0.5), 0.5),
        ([0.9, 0.98], "[0.9,0.98]"),
        (Path("/data/a.json"), '{"file":"a.json"}'),
        (Colour, f"{__name__}.Colour"),
        (Colour.RED, '{"Colour":"RED"}'),
        (["a"] * 200, digest_of(["a"] * 200)),
        ("a" * 200, digest_of("a" * 200)),
        ({}, '{"mapping":{}}'),
        (partial(math.sqrt, 2), '{"partial":[{"object":"math.sqrt"},[2],{"mapping":{}}]}'),
    ],
)
def test_short_values_are_shown_and_long_ones_are_digests(value: Any, plain: Any) -> None:
    assert [*plain_values("name", value)] == [("name", plain)]


def test_a_mapping_is_an_entry_for_each_key() -> None:
    assert dict(plain_values("speed", {"prob": 0.5, "rates": {"low": 0.9}})) == {
        "speed.prob": 0.5,
        "speed.rates.low": 0.9,
    }


def test_a_file_counts_by_name_and_content(tmp_path: Path) -> None:
    paths = []
    for folder, content in (("a", "one"), ("b", "two"), ("c", "one")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.json").write_text(content)
        paths.append(tmp_path / folder / "train.json")
    one, two = (hashlib.sha256(text).hexdigest() for text in (b"one", b"two"))
    assert digest_of_files(paths[:1]) == digest_of_files(paths[2:]) == {"train.json": one}
    assert digest_of_files([paths[0], paths[1], str(paths[0])]) == {"train.json": one, "train.json (2)": two}


def test_a_file_that_is_not_there_counts_as_none_and_one_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert digest_of_files([tmp_path / "dev.json"]) == {"dev.json": "none"}
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r'folder: the file cannot be read: got "Is a directory"'):
        digest_of_files([tmp_path / "folder"])


def test_a_package_counts_with_its_packages_and_nothing_else(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    for path in (tmp_path / "__init__.py", inner / "__init__.py", inner / "code.py"):
        path.write_text("a = 1\n")
    digest = digest_of_package(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "downloaded.py").write_text("")
    (tmp_path / "notes.txt").write_text("")
    assert digest_of_package(tmp_path) == digest
    (inner / "code.py").write_text("a = 2\n")
    changed = digest_of_package(tmp_path)
    (inner / "code.py").rename(inner / "other.py")
    assert len({digest, changed, digest_of_package(tmp_path)}) == 3
