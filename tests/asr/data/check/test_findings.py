"""What is found in a set and between sets; each finding is made by one fault, and a clean set has none."""

import numpy as np
import pytest
from toys.checked_sets import add, sound, write_set

from nemo_asr.data.check import examine, findings_among, findings_between, findings_in


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def clean(folder, first=0, count=30, name="wav"):
    """Lines of different recordings of about the same speed."""
    texts = [f"word{number} and more{number}" for number in range(first, first + count)]
    return [add(folder, f"{name}/{first + n}.wav", sound(first + n, 1 + n / 100), text=t) for n, t in enumerate(texts)]


def found_in(folder, *lines, **options):
    write_set(folder, "train.json", *lines)
    return {finding.kind: finding for finding in findings_in(examine("train.json", **options))}


def between(folder, train, evaluation):
    sets = [examine(write_set(folder, name, *lines)) for name, lines in (("t.json", train), ("e.json", evaluation))]
    return {finding.kind: finding for finding in findings_between(*sets)}


def test_a_clean_set_has_no_finding(folder):
    assert found_in(folder, *clean(folder)) == {}
    assert between(folder, clean(folder), clean(folder, 100)) == {}


def test_lines_audio_and_silence_are_problems(folder):
    lines = [*clean(folder), "{", {"audio_filepath": "none.wav", "duration": 1, "text": "a b"}]
    found = found_in(folder, *lines, add(folder, "zero.wav", np.zeros(16000), text="a b c"))
    assert sorted(found) == ["audio", "line", "silence"]
    assert all(finding.is_problem for finding in found.values())
    assert found["audio"].details[0].startswith("train.json:32: the audio file none.wav cannot be opened")
    assert found["silence"].details == ["train.json:33: zero.wav"]
    assert found["silence"].summary == "train.json: 1 utterance without sound"


def test_a_text_that_is_far_too_long_or_too_short_for_its_audio_is_named_the_worst_first(folder):
    slow = add(folder, "slow.wav", sound(201, 12.0), text="word")
    fast = add(folder, "fast.wav", sound(200, 1.0), text="so " * 30)
    found = found_in(folder, *clean(folder), fast, slow)
    assert list(found) == ["speed"]
    assert found["speed"].details[0].startswith('train.json:32: 0.083 words a second: "word" in 12.00 s (the median')
    assert found["speed"].details[1].startswith("train.json:31: 30 words a second")
    few = found_in(folder, *clean(folder, count=3), fast)
    assert list(few) == ["speed"]


def test_the_same_samples_twice_are_a_problem_and_with_another_text_a_contradiction(folder):
    lines = clean(folder)
    copy = add(folder, "copy.flac", sound(3, 1.03), text=lines[3]["text"])
    other = add(folder, "other.wav", sound(4, 1.04), text="quite another text")
    found = found_in(folder, *lines, copy, other)
    assert {kind: finding.is_problem for kind, finding in found.items()} == {
        "duplicate": True,
        "contradiction": True,
        "text": False,
    }
    assert found["duplicate"].details == ["train.json:31 = train.json:4 (copy.flac)"]
    expected = 'train.json:5 and train.json:32: "word4 and more4" and "quite another text"'
    assert found["contradiction"].details == [expected]


def test_durations_paths_rates_and_repeated_texts_are_told_and_no_problem(folder):
    (folder / "lists").mkdir()
    lines = [{**line, "duration": 2.00275} for line in clean(folder)[:3]]
    lines.append(add(folder, "low.wav", sound(50, 1.0, 8000), rate=8000, text=lines[0]["text"]))
    write_set(folder, "lists/train.json", *lines)
    found = {finding.kind: finding for finding in findings_in(examine("lists/train.json"))}
    assert sorted(found) == ["duration", "path", "rate", "text"]
    assert not any(finding.is_problem for finding in found.values())
    assert found["duration"].details[0] == "lists/train.json:1 says 2.003 s, the file has 1.000 s"
    assert len(found["path"].details) == 4
    assert found["rate"].details == ["8000 Hz: 1", "16000 Hz: 3"]
    assert found["text"].details == ['2 times "word0 and more0"']


def test_a_recording_in_training_and_evaluation_is_a_leak_under_any_name_and_format(folder):
    train = clean(folder)
    copied = add(folder, "else/where.flac", sound(7, 1.07), text="another text")
    found = between(folder, train, [*clean(folder, 100), copied, train[2]])
    assert found["leak"].is_problem
    assert found["leak"].details == ["e.json:31 = t.json:8 (else/where.flac)", "e.json:32 = t.json:3 (wav/2.wav)"]
    assert found["leak"].summary == "2 of 32 utterances of e.json are recordings of the training set t.json"


def test_overlapping_parts_of_a_file_leak_and_other_parts_are_told(folder):
    whole = add(folder, "long.wav", sound(1, 3.0))
    parts = [{**whole, "offset": start, "duration": 1.0, "text": f"part {start}"} for start in (0.0, 0.5, 1.0, 2.0)]
    found = between(folder, parts[:1], parts[1:2])
    assert found["leak"].details == ["e.json:1 = t.json:1 (long.wav)"]
    found = between(folder, parts[:1], parts[2:])
    assert "leak" not in found
    assert not found["file"].is_problem
    assert found["file"].details[0] == "e.json:1, t.json:1 (long.wav)"


def test_shared_texts_and_speakers_are_told_and_no_problem(folder):
    train = [{**line, "speaker": "ann"} for line in clean(folder)]
    evaluation = [{**line, "speaker": "ann"} for line in clean(folder, 100)]
    evaluation[0]["text"] = train[0]["text"]
    found = between(folder, train, evaluation)
    assert {kind: (finding.is_problem, list(finding.details)) for kind, finding in found.items()} == {
        "text": (False, ["e.json:1"]),
        "speaker": (False, ["ann"]),
    }


def test_what_two_evaluation_sets_share_is_no_problem(folder):
    lines = clean(folder, count=3)
    sets = [examine(write_set(folder, name, *lines)) for name in ("a.json", "b.json")]
    (finding,) = findings_among(*sets)
    assert (finding.kind, finding.is_problem) == ("shared", False)
    assert finding.details[0] == "b.json:1 = a.json:1"
