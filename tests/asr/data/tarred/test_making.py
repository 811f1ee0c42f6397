"""The maker of tar shards: names, lines, equal shards, equal files from equal input, and what it refuses."""

import json
import tarfile
from pathlib import Path

import pytest
from toys.manifests import damage, entry, make_set, write

from nemo_asr.cli.data import main
from nemo_asr.data.tarred import make_shards
from nemo_lite.errors import DataError, UsageError


def members(path):
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def lines_of(manifest):
    return [json.loads(line) for line in Path(manifest).read_text().splitlines()]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_set(tmp_path, 7)
    return tmp_path


def test_recordings_are_taken_over_in_shards_of_equal_numbers(folder):
    made = make_shards("train.json", "tarred", num_shards=3)
    assert [path.name for path in made.shards] == ["audio_0.tar", "audio_1.tar", "audio_2.tar"]
    contents = [members(path) for path in made.shards]
    assert [list(each) for each in contents] == [["1.wav", "2.wav", "3.wav"], ["4.wav", "5.wav"], ["6.wav", "7.wav"]]
    assert contents[1]["5.wav"] == (folder / "5.wav").read_bytes()
    lines = lines_of(made.manifest)
    assert lines[4] == {"audio_filepath": "5.wav", "duration": 0.25, "text": "a", "shard_id": 1}
    assert (made.num_lines, made.num_recordings, len(lines)) == (7, 7, 7)
    assert made.seconds == pytest.approx(1.68)


def test_equal_input_gives_equal_files_and_shuffling_another_order(folder):
    first, again, shuffled = (
        make_shards("train.json", name, num_shards=2, shuffle=name == "c", seed=3) for name in ("a", "b", "c")
    )
    assert [path.read_bytes() for path in first.shards] == [path.read_bytes() for path in again.shards]
    names = [name for path in shuffled.shards for name in members(path)]
    assert sorted(names) == [f"{number}.wav" for number in range(1, 8)] != names
    assert [line["audio_filepath"] for line in lines_of(shuffled.manifest)] == names


def test_lines_keep_their_keys_and_get_true_durations_and_texts(folder):
    (folder / "t.txt").write_text("from a file")
    write(
        folder / "m.json",
        entry(audio_filepath="1.wav", duration=2.0, speaker=5, lang="en"),
        entry(audio_filepath="2.wav", duration=0.1, offset=0.05),
        entry(audio_filepath="2.wav", duration=0.02, offset=0.15, text=None, text_filepath="t.txt"),
        entry(audio_filepath="3.wav", duration=0.2299),
    )
    made = make_shards("m.json", "tarred", max_duration=2.5)
    assert lines_of(made.manifest) == [
        {"audio_filepath": "1.wav", "duration": 0.21, "text": "one two", "speaker": 5, "lang": "en", "shard_id": 0},
        {"audio_filepath": "2.wav", "duration": 0.1, "text": "one two", "offset": 0.05, "shard_id": 0},
        {"audio_filepath": "2.wav", "duration": 0.02, "text": "from a file", "offset": 0.15, "shard_id": 0},
        {"audio_filepath": "3.wav", "duration": 0.2299, "text": "one two", "shard_id": 0},
    ]
    assert (made.num_lines, made.num_recordings) == (4, 3)
    assert list(members(made.shards[0])) == ["1.wav", "2.wav", "3.wav"]


def test_names_have_no_folder_and_one_dot_and_are_different(folder):
    paths = ["x/1.v2.wav", "x/y/1.wav", "x/y_1.wav", "x/1_v2.flac"]
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes((folder / "1.wav").read_bytes())
    write(folder / "m.json", *(entry(audio_filepath=path, duration=0.21) for path in paths))
    made = make_shards("m.json", "tarred")
    assert list(members(made.shards[0])) == ["1_v2.wav", "y_1.wav", "y_1 (2).wav", "1_v2 (2).flac"]


def test_what_cannot_be_made_is_refused_before_anything_is_written(folder):
    with pytest.raises(UsageError, match=r"more shards than recordings: got 8, wanted at most 7"):
        make_shards("train.json", "tarred", num_shards=8)
    (folder / "2.wav").unlink()
    with pytest.raises(DataError, match=r"train\.json:2: the audio file 2\.wav cannot be opened \(No such file"):
        make_shards("train.json", "tarred")
    assert not (folder / "tarred").exists()


def test_a_damaged_recording_ends_it_without_a_manifest(folder):
    damage(folder, 6)
    with pytest.raises(DataError, match=r"train\.json:6: 6\.wav is not a WAV"):
        make_shards("train.json", "tarred", num_shards=2)
    assert [path.name for path in (folder / "tarred").iterdir()] == ["audio_0.tar"]
    with pytest.raises(UsageError, match=r"tarred: the folder holds tar shards already: got audio_0\.tar; choose"):
        make_shards("train.json", "tarred")


def test_the_command_prints_the_arguments_of_the_data_layer(folder, capsys):
    assert main(["tar", "train.json", "--num_shards", "3", "--shuffle", "--target_dir", "t"]) == 0
    assert capsys.readouterr().out == (
        "audio_tar_filepaths: t/audio_{0..2}.tar  (7 recordings, 0.1 MB)\n"
        "manifest_filepath: t/tarred_audio_manifest.json  (7 utterances, 0.00 h)\n"
    )
    assert main(["tar", "train.json"]) == 0
    assert capsys.readouterr().out.startswith("audio_tar_filepaths: tarred/audio_0.tar  (")
