"""The paths of tar shards: patterns with braces, lists, and shards that are not there."""

import pytest
from toys.tar_shards import write_shard

from nemo_asr.data.tarred import expanded
from nemo_lite.errors import DataError, UsageError


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
