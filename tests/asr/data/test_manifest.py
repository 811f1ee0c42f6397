"""Manifests: what is kept of them, what is refused, and in which words."""

import os

import pytest
from toys.manifests import entry, write

from nemo_asr.data.manifest import Manifest
from nemo_lite.errors import DataError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_line_is_read_again_with_its_path_resolved_against_the_manifest(folder):
    (folder / "sets").mkdir()
    write(folder / "sets/train.json", entry(), entry(duration=2, text="trois\u00e9", speaker=7, offset=0.25))
    utterance = Manifest.open("sets/train.json").utterance(1)
    assert utterance.audio_path == os.path.join("sets", "wav/a.wav")
    assert (utterance.duration, utterance.offset, utterance.text, utterance.speaker) == (2.0, 0.25, "trois\u00e9", 7)
    assert utterance.place == "sets/train.json:2"


def test_a_path_object_names_a_manifest_as_a_text_does(folder):
    write(folder / "a.json", entry())
    for given in (folder / "a.json", [folder / "a.json"]):
        assert len(Manifest.open(given)) == 1


def test_home_and_absolute_audio_paths_are_kept(folder, monkeypatch):
    monkeypatch.setenv("HOME", "/home/her")
    write(folder / "train.json", entry(audio_filepath="~/a.wav"), entry(audio_filepath="/data/b.wav"))
    manifest = Manifest.open("train.json")
    assert [manifest.utterance(row).audio_path for row in range(2)] == ["/home/her/a.wav", "/data/b.wav"]


def test_several_manifests_follow_each_other_and_keep_their_own_line_numbers(folder):
    write(folder / "a.json", entry(text="a1"), entry(text="a2"))
    write(folder / "b.json", entry(text="b1"))
    for paths in ("a.json, b.json", ["a.json", "b.json"]):
        manifest = Manifest.open(paths)
        assert [manifest.utterance(row).text for row in range(3)] == ["a1", "a2", "b1"]
        assert [manifest.place(row) for row in range(3)] == ["a.json:1", "a.json:2", "b.json:1"]


def test_places_stay_right_after_filtering_over_several_manifests(folder):
    write(folder / "a.json", entry(duration=9), entry(duration=2))
    write(folder / "b.json", entry(duration=9), entry(duration=9))
    write(folder / "c.json", entry(duration=0.05), entry(duration=3))
    manifest = Manifest.open("a.json,b.json,c.json", min_duration=0.1, max_duration=5)
    assert [manifest.place(row) for row in range(len(manifest))] == ["a.json:2", "c.json:2"]
    assert [manifest.utterance(row).duration for row in range(2)] == [2, 3]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ("train.json,", r'"train\.json," has an empty part.*no comma at the end'),
        ("", "has an empty part"),
        ("train.json,,train.json", "has an empty part"),
    ],
)
def test_an_empty_part_in_the_list_is_refused(paths, message, folder):
    write(folder / "train.json", entry())
    with pytest.raises(DataError, match=message):
        Manifest.open(paths)


def test_a_missing_manifest_is_named_with_the_nearest_name_before_anything_is_read(folder):
    write(folder / "train.json", b"not read")
    with pytest.raises(DataError, match=r"trian\.json: the manifest does not exist \(did you mean train\.json\?\)"):
        Manifest.open("train.json,trian.json")
    with pytest.raises(DataError, match=r"x/a\.json: .*there is no folder x\); missing as well: x/b\.json"):
        Manifest.open("x/a.json,train.json,x/b.json")
    with pytest.raises(DataError, match="is a folder"):
        Manifest.open(str(folder))


def test_a_manifest_that_is_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "m.json")
    with pytest.raises(DataError, match=r"m\.json: the manifest is a pipe or a device; name a file"):
        Manifest.open(str(tmp_path / "m.json"))


def test_sixteen_bytes_a_line_are_kept(folder):
    write(folder / "train.json", *[entry()] * 5000)
    manifest = Manifest.open("train.json")
    assert manifest.offsets.nbytes + manifest.lines.nbytes + manifest.durations.nbytes == 16 * 5000


def test_a_path_that_starts_at_the_working_directory_is_found_there_and_noted_unless_strict(folder):
    (folder / "sets").mkdir()
    (folder / "wav").mkdir()
    (folder / "wav/a.wav").touch()
    write(folder / "sets/train.json", entry(), entry(audio_filepath="none.wav"))
    utterances = [Manifest.open("sets/train.json", strict=strict).utterance(0) for strict in (False, True)]
    assert [utterance.audio_path for utterance in utterances] == ["wav/a.wav", "sets/wav/a.wav"]
    assert [bool(utterance.note) for utterance in utterances] == [True, False]
    assert Manifest.open("sets/train.json").utterance(1).audio_path == "sets/none.wav"


def test_written_paths_are_those_of_the_lines_that_are_left(folder):
    write(folder / "a.json", entry(audio_filepath="1.wav", duration=9), b"", entry(audio_filepath="2.wav"))
    write(folder / "b.json", entry(audio_filepath=None, audio_filename="3.wav"))
    (folder / "b.json").write_bytes((folder / "b.json").read_bytes().rstrip())
    assert list(Manifest.open("a.json,b.json", max_duration=5).written_paths()) == ["2.wav", "3.wav"]


def test_lines_that_are_not_valid_are_taken_aside_where_the_caller_wants_them(folder):
    write(folder / "train.json", b"[]", entry(text="kept"), *[b"{"] * 9)
    invalid: list[str] = []
    manifest = Manifest.open("train.json", invalid=invalid)
    assert [manifest.place(row) for row in range(len(manifest))] == ["train.json:2"]
    assert invalid[0].startswith("train.json:1: expected object, got array")
    assert (len(invalid), invalid[-1]) == (6, "... and 5 more")
    write(folder / "none.json", b"{")
    with pytest.raises(DataError, match=r"none\.json:1: invalid JSON"):
        Manifest.open("none.json", invalid=invalid)


def test_the_working_directory_is_asked_once_for_each_folder(folder, monkeypatch):
    (folder / "sets").mkdir()
    write(folder / "sets/train.json", *[entry(audio_filepath=f"wav/{number}.wav") for number in range(9)])
    manifest, asked = Manifest.open("sets/train.json"), []
    monkeypatch.setattr(os.path, "isdir", lambda path: asked.append(path))
    monkeypatch.setattr(os.path, "exists", None)
    assert manifest.utterance(8).audio_path == "sets/wav/8.wav"
    assert [manifest.utterance(row).note for row in range(9)] == [""] * 9
    assert asked == ["wav"]
