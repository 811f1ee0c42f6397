"""Manifests and folders are written completely or not at all."""

import errno
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from nemo_asr.corpora.writing import filling_folder, write_manifest, write_recording
from nemo_lite.errors import UsageError


def names_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_manifest_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "m.json"
    write_manifest(path, [{"audio_filepath": "a.wav", "duration": 1.0, "text": "caf\u00e9"}])
    with pytest.raises(TypeError):
        write_manifest(path, [{"audio_filepath": b"bytes", "duration": 1.0, "text": ""}])
    assert [json.loads(line)["text"] for line in path.read_text("utf-8").splitlines()] == ["caf\u00e9"]
    assert names_in(tmp_path) == ["m.json"]


def test_a_folder_is_filled_as_a_whole_or_not_at_all(tmp_path):
    with filling_folder(tmp_path / "sub" / "f") as new:
        (new / "a").write_text("1")
    assert names_in(tmp_path) == ["sub/f/a"]

    def fail():
        with filling_folder(tmp_path / "sub" / "f") as new:
            (new / "b").write_text("2")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert names_in(tmp_path) == ["sub/f/a"]
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["f"]


@pytest.mark.parametrize("space", [0, 44, 1000])
def test_a_recording_on_a_full_disk_is_one_line_and_leaves_no_half_file(tmp_path, monkeypatch, space):
    path, write = tmp_path / "a.wav", Path.write_bytes
    write_recording(path, np.zeros(100, np.int16), 16000)
    before = path.read_bytes()

    def fill_up(self, data):
        write(self, data[:space])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fill_up)
    with pytest.raises(UsageError, match=r"a\.wav: the disk is full; free some space; nothing that was there before"):
        write_recording(path, np.ones(2000), 16000)
    assert names_in(tmp_path) == ["a.wav"]
    assert path.read_bytes() == before


def test_a_folder_that_the_disk_has_no_room_for_is_one_line(tmp_path):
    def fill():
        with filling_folder(tmp_path / "f"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UsageError, match=r"f: the disk is full; free some space"):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_swept_after_a_day_and_not_before(tmp_path):
    old, young = tmp_path / ".f.old.partial", tmp_path / ".f.young.partial"
    for folder in (old, young):
        folder.mkdir()
    os.utime(old, (time.time() - 90_000,) * 2)
    with filling_folder(tmp_path / "f"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".f.young.partial", "f"]
