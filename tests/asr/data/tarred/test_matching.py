"""Which recording in the tar shards belongs to which manifest line, and what is told of those that belong to none."""

import pytest
from toys.manifests import entry, write
from toys.tar_shards import write_shard

from nemo_asr.data.manifest import Manifest
from nemo_asr.data.tarred import match
from nemo_lite import logging
from nemo_lite.errors import DataError


@pytest.fixture
def matched(tmp_path, capsys):
    """A function from the shards' members, and the paths in the lines: (row, shard) of each utterance, and the log."""

    def run(shards, *paths, strict=False):
        lines = [path if isinstance(path, dict) else entry(audio_filepath=path) for path in paths]
        manifest = Manifest.open(write(tmp_path / "m.json", *lines), strict=True)
        members = [[(name, b"x" * (size or 1)) for name, size in shard.items()] for shard in shards]
        written = [write_shard(tmp_path / f"{number}.tar", *each) for number, each in enumerate(members)]
        with logging.temp_verbosity(logging.WARNING):
            found = match(manifest, written, strict=strict)
        told = capsys.readouterr().err.replace(f"{tmp_path}/", "")
        return list(zip(found["rows"].tolist(), found["shards"].tolist(), strict=True)), told

    return run


def test_a_member_belongs_to_the_line_of_its_base_name_in_the_order_of_the_shards(matched):
    shards = [{"c.flac": 1, "./b.wav": 2}, {"any/a.wav": 3}]
    assert matched(shards, "x/a.wav", "/data/b.wav", "c.wav") == ([(2, 0), (1, 0), (0, 1)], "")


def test_members_without_a_line_and_lines_without_a_member_are_counted(matched):
    shards = [{"a.wav": 1, "b.wav": 1}, {f"{number}.wav": 1 for number in range(7)}]
    rows, told = matched(shards, "c.wav", "a.wav")
    assert rows == [(1, 0)]
    assert "m.json: 1 of 2 lines whose recording is in no tar shard (m.json:1): not used" in told
    assert "m.json: 8 recordings (0.tar:b.wav, 1.tar:0.wav, 1.tar:1.wav, 1.tar:2.wav, 1.tar:3.wav, ...) in the" in told
    assert "in the tar shards without a manifest line: not used" in told


def test_with_strict_they_are_errors(matched):
    with pytest.raises(DataError, match=r"m\.json: 1 of 2 lines whose recording is in no tar shard .*1 recording \("):
        matched([{"a.wav": 1, "b.wav": 1}], "a.wav", "c.wav", strict=True)
    assert matched([{"a.wav": 1}], "a.wav", strict=True) == ([(0, 0)], "")


def test_texts_beside_the_recordings_are_not_taken_for_recordings(matched):
    assert matched([{"a.txt": 5, "a.wav": 1, "a.json": 3, "README.md": 9}], "a.wav") == ([(0, 0)], "")


def test_several_lines_are_parts_of_one_recording(matched):
    parts = [entry(audio_filepath="long.wav", offset=float(start)) for start in range(3)]
    assert matched([{"long.wav": 9}, {"b.wav": 1}], *parts, "b.wav") == ([(0, 0), (1, 0), (2, 0), (3, 1)], "")


def test_recordings_of_one_name_in_two_folders_are_told_apart_by_their_whole_path(matched):
    shards = [{"ann/1.wav": 5, "./bob/1.wav": 6}]
    assert matched(shards, "bob/1.wav", "ann/1.wav") == ([(1, 0), (0, 0)], "")
    rows, told = matched([{"x/1.wav": 5}], "bob/1.wav", "ann/1.wav")
    assert rows == []
    assert "2 of 2 lines whose recording is in no tar shard" in told


def test_a_repeated_recording_is_not_used_and_another_one_of_the_same_name_is_an_error(matched):
    rows, told = matched([{"a.wav": 7}, {"a.wav": 7}], "a.wav")
    assert rows == [(0, 0)]
    assert "1 recording (1.tar:a.wav) in the tar shards with the name and size of another one: not used" in told
    with pytest.raises(DataError, match=r"1\.tar:b/a\.wav: two recordings cannot be told apart: .*0\.tar:a\.wav"):
        matched([{"a.wav": 7}, {"b/a.wav": 8}], "a.wav")
