"""The leaks that a run warns of before training."""

import pytest
import soundfile
from toys.checked_sets import add, sound, write_set

from nemo_asr import AudioToTextDataLayer
from nemo_asr.data.check import shared_recordings, warn_of_leaks
from nemo_asr.data.manifest import Manifest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shared(folder, train, evaluation):
    manifests = [("train.json", train), ("dev.json", evaluation)]
    return shared_recordings(*(Manifest.open(write_set(folder, name, *lines)) for name, lines in manifests))


def test_the_same_file_and_a_copy_of_the_same_name_are_found_without_decoding(folder, monkeypatch):
    train = [add(folder, f"a/{number}.wav", sound(number)) for number in range(4)]
    copy, other = add(folder, "b/1.wav", sound(1)), add(folder, "b/2.wav", sound(99))
    monkeypatch.setattr(soundfile, "SoundFile", None)
    found = shared(folder, train, [train[3], copy, other])
    assert found == [
        ("dev.json:2", "train.json:2"),
        ("dev.json:1", "train.json:4"),
    ]


def test_parts_of_a_file_count_only_where_they_overlap(folder):
    whole = add(folder, "long.wav", sound(1, 3.0))
    first, second, third = ({**whole, "offset": start, "duration": 1.0} for start in (0.0, 0.5, 1.0))
    assert len(shared(folder, [first], [second])) == 1
    assert shared(folder, [first], [third]) == []
    assert len(shared(folder, [whole], [third])) == 1


def test_only_lines_with_a_name_of_the_evaluation_set_are_looked_at(folder, monkeypatch):
    train = [add(folder, f"{number}.wav", sound(number)) for number in range(5)]
    asked = []
    utterance = Manifest.utterance
    monkeypatch.setattr(Manifest, "utterance", lambda self, row: asked.append(row) or utterance(self, row))
    assert len(shared(folder, train, train[4:])) == 1
    assert asked == [0, 4]


def test_a_missing_file_is_no_leak(folder):
    line = {"audio_filepath": "none.wav", "duration": 1, "text": "a"}
    assert shared(folder, [line], [line]) == []


def test_the_warning_names_the_set_the_count_and_the_places(folder, capsys):
    lines = [add(folder, f"{number}.wav", sound(number), text="ab") for number in range(9)]
    layers = [
        AudioToTextDataLayer(write_set(folder, name, *some), ["a", "b"], 2)
        for name, some in (
            ("train.json", lines),
            ("dev.json", lines[2:]),
            ("test.json", [add(folder, "new.wav", sound(77), text="ab")]),
        )
    ]
    capsys.readouterr()
    assert warn_of_leaks(layers[0], {"dev": layers[1], "test": layers[2]}) == 7
    told = capsys.readouterr().err
    assert "dev: 7 of 7 recordings are in the training set as well" in told
    assert "dev.json:1 = " in told
    assert "dev.json:5 = train.json:7 and 2 more. Take them out of one of the sets" in told
    assert "test:" not in told
