"""Recordings of noises and rooms are looked at before training: what cannot be used is named with its line."""

import json

import numpy as np
import pytest
import soundfile
from toys.manifests import layer_of, make_set

from nemo_asr.audio.augmentation import AudioAugmentor, check_recordings, read_recordings
from nemo_lite.errors import DataError


@pytest.fixture
def noises(tmp_path, monkeypatch):
    """A manifest of three recordings of a second each; the number of one changes its line."""
    monkeypatch.chdir(tmp_path)

    def write(**changes):
        lines = []
        for number in range(3):
            soundfile.write(f"noise{number}.wav", np.full(16000, 0.1), 16000)
            lines.append({"audio_filepath": f"noise{number}.wav", "duration": 1.0})
        lines[1] |= changes
        (tmp_path / "noises.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return "noises.json"

    return write


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"audio_filepath": "gone.wav"}, r"noises\.json:2: the audio file gone\.wav cannot be opened"),
        ({"audio_filepath": "noises.json"}, r"noises\.json:2: noises\.json"),
        ({"audio_filepath": 7}, r"noises\.json:2: audio_filepath: expected str"),
        (
            {"duration": 2.0, "offset": 0.5},
            r"noises\.json:2: noise1\.wav is shorter than its line says: got 1\.000 s, wanted 2\.500 s \(offset \+ dur",
        ),
        ({"offset": 1.5}, r"noises\.json:2: noise1\.wav is shorter than its line says"),
    ],
)
@pytest.mark.parametrize("kind", ["noise", "impulse"])
def test_a_recording_that_cannot_be_used_is_refused_before_training(noises, tmp_path, changes, message, kind):
    make_set(tmp_path, 2)
    augmentor = {kind: {"prob": 0.1, "manifest_path": noises(**changes)}}
    with pytest.raises(DataError, match=message):
        layer_of(augmentor=augmentor)


def test_recordings_that_can_be_used_pass_and_those_that_never_act_are_not_looked_at(noises, tmp_path):
    make_set(tmp_path, 2)
    layer_of(augmentor={"noise": {"prob": 0.5, "manifest_path": noises(offset=0.02)}})
    never = {"noise": {"prob": 0.0, "manifest_path": noises(audio_filepath="gone.wav")}}
    AudioAugmentor.from_config(never).check_files()
    layer_of(augmentor={"noise": {**never["noise"], "prob": 1.0}}, load_audio=False)


def test_of_many_that_cannot_be_used_the_first_five_are_named(tmp_path):
    path = tmp_path / "noises.json"
    path.write_text("".join(f'{{"audio_filepath": "{number}.wav", "duration": 1}}\n' for number in range(8)))
    with pytest.raises(DataError) as error:
        check_recordings(read_recordings(str(path)))
    lines = str(error.value).splitlines()
    assert [line.split(": ")[0] for line in lines[:5]] == [f"{path}:{number}" for number in range(1, 6)]
    assert lines[5:] == ["... and 3 more"]


def test_a_part_of_a_recording_is_read_at_the_rate_asked_for(noises):
    (recording, *_) = read_recordings(noises())
    assert len(recording.read(8000, 0.25, 0.5)) == 4000
