"""Tar shards: their paths by braces, what is in them, and damage of every kind."""

import bz2
import gzip
import os
import tarfile

import pytest
from toys.tar_shards import write_shard

from nemo_asr.data.tarred.shards import expanded, members_of
from nemo_lite.errors import DataError, UsageError

BLOCK = 512


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(12):
        write_shard(f"audio_{number}.tar")
        write_shard(f"a_{number:02}.tar")
    return tmp_path


@pytest.mark.parametrize(
    ("paths", "shards"),
    [
        ("audio_0.tar", ["audio_0.tar"]),
        ("audio_{0..2}.tar", ["audio_0.tar", "audio_1.tar", "audio_2.tar"]),
        ("audio_{9..11}.tar", ["audio_9.tar", "audio_10.tar", "audio_11.tar"]),
        ("a_{09..11}.tar", ["a_09.tar", "a_10.tar", "a_11.tar"]),
        ("a_{0{8,9},11}.tar", ["a_08.tar", "a_09.tar", "a_11.tar"]),
        ("audio__OP_0..1_CL_.tar", ["audio_0.tar", "audio_1.tar"]),
        ("audio_(0..1).tar", ["audio_0.tar", "audio_1.tar"]),
        ("audio_[0..1].tar", ["audio_0.tar", "audio_1.tar"]),
        ("audio_<0..1>.tar", ["audio_0.tar", "audio_1.tar"]),
        (["audio_3.tar", "a_0{1,0}.tar"], ["audio_3.tar", "a_01.tar", "a_00.tar"]),
    ],
)
def test_braces_mean_what_they_mean_in_bash_and_in_nemo(paths, shards, folder):
    assert expanded(paths) == shards


def test_a_path_that_is_there_is_taken_as_it_is_written(folder):
    write_shard(folder / "set_(0..1).tar")
    write_shard(folder / "a{1,2}.tar")
    assert expanded(["set_(0..1).tar", "a{1,2}.tar"]) == ["set_(0..1).tar", "a{1,2}.tar"]


@pytest.mark.parametrize(
    ("paths", "problem"),
    [
        ("audio_{11..12}.tar", r"^audio_12\.tar: the tar shard does not exist; mend the list of tar shards$"),
        ("audio_{10..13}.tar", r"^audio_12\.tar: the tar shard does not exist \(2 of 4 are missing\)"),
        (["audio_0.tar", "audio_{0..1}.tar"], r"^audio_0\.tar: the tar shard is given 2 times; name it once$"),
        (["audio_0.tar", ""], "^the list of tar shards is empty or has an empty part"),
        ([], "^the list of tar shards is empty"),
        (".", r"^\.: the tar shard is a folder: wanted a tar file$"),
    ],
)
def test_shards_that_are_not_there_are_named(paths, problem, folder):
    with pytest.raises(DataError, match=problem):
        expanded(paths)


def test_a_pattern_of_too_many_shards_is_refused():
    with pytest.raises(UsageError, match=r"too many tar shards: got a\{0\.\.9999999\}\.tar, wanted 100000 or fewer"):
        expanded("a{0..9999999}.tar")


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_found_by_their_headers_whatever_the_format(kind, tmp_path):
    long = f"{'folder/' * 20}ünïcode.wav" if kind != tarfile.USTAR_FORMAT else "folder/a.wav"
    path = write_shard(tmp_path / "s.tar", ("1.wav", b"one"), (long, b"x" * 700), ("3.wav", b""), kind=kind)
    members = list(members_of(path))
    assert [member.name for member in members] == ["1.wav", long, "3.wav"]
    content = (tmp_path / "s.tar").read_bytes()
    assert [content[first : first + size] for _, first, size in members] == [b"one", b"x" * 700, b""]


def test_folders_and_links_are_no_members(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.wav").write_bytes(b"a")
    (tmp_path / "in/link.wav").symlink_to("a.wav")
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        archive.add(tmp_path / "in", "in")
    assert [member.name for member in members_of(str(tmp_path / "s.tar"))] == ["in/a.wav"]


def test_a_shard_without_members_is_a_shard(tmp_path):
    assert list(members_of(write_shard(tmp_path / "s.tar"))) == []


@pytest.mark.parametrize(
    ("num_bytes", "problem"),
    [
        (0, r"the tar shard is empty \(0 bytes\); copy it or make it again$"),
        (100, "this is no tar file, or a damaged one"),
        (2 * BLOCK + 100, r"ends early, within 1\.wav: got 1124 bytes, wanted at least 2048; copy it or make it again"),
        (4 * BLOCK, r"ends early, after 1\.wav, without the blocks of zeros that end it: got 2048 bytes"),
        (4 * BLOCK + 100, r"ends early, after 1\.wav, without the blocks of zeros"),
        (6 * BLOCK, r"ends early, within 2\.wav: got 3072 bytes, wanted at least 4096"),
    ],
)
def test_a_shard_that_ends_early_is_refused_wherever_it_ends(num_bytes, problem, tmp_path):
    path = write_shard(tmp_path / "s.tar", ("1.wav", b"1" * 3 * BLOCK), ("2.wav", b"2" * 3 * BLOCK))
    os.truncate(path, num_bytes)
    with pytest.raises(DataError, match=problem) as error:
        list(members_of(path))
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("position", "problem"),
    [(0, "this is no tar file, or a damaged one"), (2 * BLOCK, r"is damaged at byte 1024, after 1\.wav")],
)
def test_a_damaged_header_is_not_taken_for_the_end(position, problem, tmp_path):
    path = write_shard(tmp_path / "s.tar", ("1.wav", b"1"), ("2.wav", b"2"))
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(b"damage")
    with pytest.raises(DataError, match=problem):
        list(members_of(path))


@pytest.mark.parametrize(("compress", "kind"), [(gzip.compress, "gzip"), (bz2.compress, "bzip2")])
def test_a_compressed_shard_is_refused_with_the_reason(compress, kind, tmp_path):
    path = write_shard(tmp_path / "s.tar", ("1.wav", b"1"))
    (tmp_path / "c.tar").write_bytes(compress((tmp_path / "s.tar").read_bytes()))
    with pytest.raises(DataError, match=rf"c\.tar: the tar shard is compressed \({kind}\): wanted a plain tar file"):
        list(members_of(str(tmp_path / "c.tar")))
    assert len(list(members_of(path))) == 1
