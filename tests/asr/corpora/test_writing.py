"""Manifests and folders are written completely or not at all."""

import json
import os
import time

import pytest

from nemo_asr.corpora.writing import filling_folder, write_manifest


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


def test_what_a_killed_run_left_is_swept_after_a_day_and_not_before(tmp_path):
    old, young = tmp_path / ".f.old.partial", tmp_path / ".f.young.partial"
    for folder in (old, young):
        folder.mkdir()
    os.utime(old, (time.time() - 90_000,) * 2)
    with filling_folder(tmp_path / "f"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".f.young.partial", "f"]
