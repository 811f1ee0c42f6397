"""What is in a tar shard, whatever its format; and damage of every kind, which must not be taken for the end."""

import bz2
import gzip
import os
import tarfile

import pytest
from toys.tar_shards import write_shard

from nemo_asr.data.tarred import members_of
from nemo_lite.errors import DataError

BLOCK = 512


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_found_by_their_headers_whatever_the_format(kind, tmp_path):
    long = f"{'folder/' * 20}ünïcode.wav" if kind != tarfile.USTAR_FORMAT else "folder/a.wav"
    path = write_shard(tmp_path / "s.tar", ("1.wav", b"one"), (long, b"x" * 700), ("3.wav", b""), kind=kind)
    members = list(members_of(path))
    with tarfile.open(path) as archive:
        assert members == [(member.name, member.offset_data, member.size) for member in archive]
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
