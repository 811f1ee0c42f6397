"""What is measured of each utterance."""

import numpy as np
import pytest
import soundfile
from toys.checked_sets import add, sound, write_set

from nemo_asr.data.check import examine
from nemo_lite.errors import DataError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_utterance_is_measured_and_equal_samples_have_equal_digests_in_any_lossless_format(folder):
    stereo = np.stack([sound(1)] * 2, axis=1)
    lines = [
        *(add(folder, name, sound(1)) for name in ("a.wav", "a.flac")),
        add(folder, "b.wav", sound(2, rate=8000), rate=8000),
        add(folder, "c.wav", stereo),
        {**add(folder, "d.wav", sound(1)), "offset": 0.1, "duration": 0.2},
    ]
    first, same, other, two, part = examine(write_set(folder, "train.json", *lines), num_workers=2).items
    assert (first.seconds, first.sample_rate, first.num_channels, first.place) == (
        0.5,
        16000,
        1,
        "train.json:1",
    )
    assert first.peak == pytest.approx(0.5, abs=0.01)
    assert first.digest == same.digest == two.digest
    assert len({first.digest, other.digest, part.digest}) == 3
    assert (other.sample_rate, two.num_channels) == (8000, 2)
    assert part.seconds == 0.2
    assert part.span == pytest.approx((0.1, 0.3))


def test_two_names_of_one_file_have_one_identity(folder):
    line = add(folder, "a.wav", sound(1))
    (folder / "b.wav").symlink_to(folder / "a.wav")
    (folder / "c.wav").hardlink_to(folder / "a.wav")
    names = ["b.wav", "c.wav"]
    write_set(folder, "train.json", line, *({**line, "audio_filepath": name} for name in names))
    assert len({item.file for item in examine("train.json").items}) == 1


def test_what_cannot_be_read_is_told_with_its_line_and_the_rest_is_measured(folder):
    line = add(folder, "a.wav", sound(1))
    (folder / "bad.wav").write_bytes(b"bad" * 100)
    changes: list[dict] = [
        {"audio_filepath": "none.wav"},
        {"audio_filepath": "bad.wav"},
        {"offset": 9},
        {"duration": 2.0},
    ]
    changed = [{**line, **change} for change in changes]
    write_set(
        folder, "train.json", line, *changed, '{"audio_filepath": ', {**line, "text": None, "text_filepath": "no"}
    )
    examined = examine("train.json")
    problems = [item.problem for item in examined.items]
    assert [bool(problem) for problem in problems] == [False, True, True, True, False, True]
    assert problems[1].startswith("train.json:2: the audio file none.wav cannot be opened")
    assert problems[2].startswith("train.json:3: bad.wav is not a WAV")
    assert "train.json:4: offset 9 s leaves nothing of a.wav" in problems[3]
    assert problems[5].startswith("train.json:7: no: the text file cannot be opened")
    assert examined.items[4].excess == pytest.approx(-1.5)
    assert [text.split(" (")[0] for text in examined.invalid] == ["train.json:6: invalid JSON"]
    strict = examine("train.json", strict=True).items[4].problem
    assert strict.startswith("train.json:5: duration 2 s disagrees with a.wav")


def test_without_audio_nothing_is_opened(folder, monkeypatch):
    line = add(folder, "a.wav", sound(1))
    monkeypatch.setattr(soundfile, "SoundFile", None)
    (item,) = examine(write_set(folder, "train.json", line), with_audio=False).items
    assert (item.seconds, item.digest, item.problem) == (0.5, b"", "")


def test_manifests_that_are_not_there_or_hold_nothing_are_errors(folder):
    with pytest.raises(DataError, match=r"none\.json: the manifest does not exist"):
        examine("none.json")
    with pytest.raises(DataError, match="is a folder"):
        examine(str(folder))
    write_set(folder, "bad.json", "[]", "{")
    with pytest.raises(DataError, match=r"bad\.json:1: expected object(.|\n)*bad\.json:2: invalid JSON"):
        examine("bad.json")
