"""nemo-lite data check: what is measured, what is found in sets and between them, and how it is told."""

import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from toys.checked_sets import add, sound, write_set

from nemo_asr import AudioToTextDataLayer
from nemo_asr.commands.cli.data import main
from nemo_asr.data.check import (
    Finding,
    as_text,
    draw_histograms,
    findings_among,
    findings_between,
    findings_in,
    shared_recordings,
    tell_of_little,
    warn_of_leaks,
    warn_of_long,
)
from nemo_asr.data.examined import distribution, examine, statistics_of
from nemo_asr.run.audio import files
from nemo_asr.run.manifest import Manifest
from nemo_lite.base.errors import DataError

# What is measured of each utterance.


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


def test_what_training_cannot_read_into_one_array_is_told(folder, monkeypatch):
    monkeypatch.setattr("nemo_asr.run.audio.reading.MAX_SECONDS", 0.4)
    (item,) = examine(write_set(folder, "train.json", add(folder, "a.wav", sound(1)))).items
    assert "a.wav claims 0 s of audio: wanted at most 0 s" in item.problem


def test_without_audio_nothing_is_opened(folder, monkeypatch):
    line = add(folder, "a.wav", sound(1))
    monkeypatch.setattr(files, "_SoundFile", None)
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


# Figures of a set.


def test_the_figures_are_those_of_the_recordings_and_texts(tmp_path):
    lines = [
        add(tmp_path, "a.wav", sound(1, 0.5), text="one two", speaker="ann"),
        add(tmp_path, "b.wav", sound(2, 1.0, 8000), rate=8000, text="one", speaker="ann", duration=5.0),
        add(tmp_path, "c.wav", sound(3, 1.5), text="one two", speaker=7),
        {"audio_filepath": "none.wav", "duration": 9, "text": "x y z"},
    ]
    path = write_set(tmp_path, "train.json", *lines)
    found = statistics_of(examine(path))
    assert found == json.loads(json.dumps(found))
    assert (found["name"], found["manifests"]) == (path, [path])
    assert (found["utterances"], found["hours"]) == (3, pytest.approx(3.0 / 3600))
    assert found["sample_rates"] == {"16000": 2, "8000": 1}
    assert found["channels"] == {"1": 3}
    assert found["speakers"] == {"ann": 2, "7": 1}
    assert (found["words"], found["different_words"], found["different_texts"]) == (5, 2, 2)
    assert found["characters"] == {"o": 5, "n": 3, "e": 3, " ": 2, "t": 2, "w": 2}
    assert found["unit"] == "words"
    seconds = found["seconds"]
    assert [seconds[key] for key in ("least", "median", "mean", "most")] == pytest.approx([0.5, 1.0, 1.0, 1.5])
    assert sum(seconds["histogram"]["counts"]) == 3
    assert found["units_per_second"]["most"] == pytest.approx(4.0)


def test_texts_without_spaces_are_counted_in_characters_and_without_audio_there_are_no_rates(tmp_path):
    path = write_set(tmp_path, "train.json", add(tmp_path, "a.wav", sound(1), text="今天天气"))
    found = statistics_of(examine(path, with_audio=False))
    assert (found["unit"], found["units_per_second"]["median"]) == ("characters", 8.0)
    assert "sample_rates" not in found


@pytest.mark.parametrize("values", [[1 / 0.17, 5 / 0.85], [3.0, 3.0], [1e6, np.nextafter(1e6, 2e6)], [5.0]])
def test_values_that_differ_by_rounding_alone_have_a_histogram_too(values):
    """Rates of short sets are so: one word in 0.17 s and five in 0.85 s."""
    found = distribution(values)
    assert (found["least"], found["most"]) == (min(values), max(values))
    counts = found["histogram"]["counts"]
    assert sum(counts[9:11]) == len(values)  # in the middle
    assert len(found["histogram"]["edges"]) == 21


def test_a_narrow_range_keeps_its_histogram():
    assert sum(count > 0 for count in distribution([5.0, 5.0001, 5.0002])["histogram"]["counts"]) == 3


# What is found in a set and between sets; each finding is made by one fault, and a clean set has none.


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


def test_pauses_that_training_would_keep_are_told_the_longest_first_and_no_problem(folder):
    tone = 0.3 * np.sin(np.arange(16000) / 5)
    ends = add(folder, "ends.wav", np.concatenate([np.zeros(24000), tone, np.zeros(8000)]), text="a b c")
    inside = add(folder, "inside.wav", np.concatenate([tone, np.zeros(32000), tone]), text="a b c d e")
    short = add(folder, "short.wav", np.concatenate([tone, np.zeros(12800), tone]), text="a b c d e f")
    found = found_in(folder, ends, inside, short)
    assert list(found) == ["pause"]
    assert not found["pause"].is_problem
    assert found["pause"].details == [
        "train.json:2: one of 2.0 s in 4.0 s: inside.wav",
        "train.json:1: one of 1.5 s in 3.0 s: ends.wav",
    ]
    assert found["pause"].summary == (
        "train.json: 2 utterances with a pause of 1 s or more, which train leaves in, and eval without "
        "--segments energy; transcribe cuts there; "
        "data make --trim cuts at both ends; "
        "nemo-lite align MODEL MANIFEST --cut NEW.json --longest 3 cuts there, with the texts"
    )


def test_utterances_of_minutes_are_told_the_longest_first_and_no_problem(folder):
    waves = {
        name: np.tile(0.3 * np.sin(np.arange(8000) / 5), 2 * num) for name, num in (("a", 31), ("b", 30), ("c", 40))
    }
    lines = [add(folder, f"{name}.wav", wave, text=f"a b c {name} " * 20) for name, wave in waves.items()]
    found = found_in(folder, *lines)
    assert list(found) == ["long"]
    assert not found["long"].is_problem
    assert found["long"].details == ["train.json:3: 40.0 s: c.wav", "train.json:1: 31.0 s: a.wav"]
    assert found["long"].summary == (
        "train.json: 2 utterances longer than 30 s: the memory of a training step grows with its longest utterance; "
        "nemo-lite align MODEL MANIFEST --cut NEW.json cuts them, with the texts; "
        "max_duration of the data layer leaves them out"
    )


def test_channels_of_opposite_phases_are_a_problem_unless_one_of_them_is_named(folder):
    loud, other = sound(301, 1.0).astype(np.float64), sound(302, 1.0).astype(np.float64)
    pairs = {
        "opposite": (loud, -loud),
        "nearly": (loud, -0.9 * loud + 0.1 * other),
        "unrelated": (loud, other),
        "one_silent": (loud, 0 * loud),
        "equal": (loud, loud),
    }
    samples = {name: np.stack(pair, axis=1).astype(np.int16) for name, pair in pairs.items()}
    many = np.stack([sound(310 + number, 1.0) for number in range(20)], axis=1)
    wide = [add(folder, f"{name}.wav", stereo, text=f"a {name}") for name, stereo in samples.items()]
    found = found_in(folder, *clean(folder), *wide, add(folder, "many.wav", many, text="a many"))
    assert sorted(found) == ["phase"]
    assert found["phase"].summary == "train.json: 2 utterances whose channels cancel each other (opposite phases)"
    assert [detail.split(" ", 1)[1] for detail in found["phase"].details] == [
        'opposite.wav: the average is 120 dB below its channels; add "channel": 0',
        'nearly.wav: the average is 23 dB below its channels; add "channel": 0',
    ]
    assert found_in(folder, *clean(folder), {**wide[0], "channel": 0}, {**wide[1], "channel": 1}) == {}


def test_silence_in_all_channels_is_silence_and_no_matter_of_phases(folder):
    found = found_in(folder, *clean(folder), add(folder, "zero.wav", np.zeros((16000, 2)), text="a b c"))
    assert sorted(found) == ["silence"]


def test_a_text_that_is_far_too_long_or_too_short_for_its_audio_is_named_the_worst_first(folder):
    slow = add(folder, "slow.wav", sound(201, 12.0), text="word")
    fast = add(folder, "fast.wav", sound(200, 1.0), text="so " * 30)
    found = found_in(folder, *clean(folder), fast, slow)
    assert list(found) == ["speed"]
    assert found["speed"].details[0].startswith('train.json:32: 0.083 words a second: "word" in 12.00 s (the median')
    assert found["speed"].details[1].startswith("train.json:31: 30 words a second")
    few = found_in(folder, *clean(folder, count=3), fast)
    assert list(few) == ["speed"]


def test_a_long_pause_does_not_make_a_text_too_short_for_its_audio(folder):
    silence = np.zeros(16000 * 8, np.int16)
    lines = [
        add(folder, "phone.wav", np.concatenate([silence, sound(400, 1.0)]), text="word word"),
        add(folder, "fast.wav", np.concatenate([silence, sound(401, 1.0)]), text="so " * 30),
    ]
    found = found_in(folder, *clean(folder), *lines)
    (detail,) = found["speed"].details
    assert re.match(r"train\.json:32: 29 words a second: .* in 9\.00 s with pauses of 8\.0 s \(the median", detail)


def test_silence_at_both_ends_does_not_hide_a_text_that_is_too_long(folder):
    silence = np.zeros(16000 * 2, np.int16)
    wrong = add(folder, "phone.wav", np.concatenate([silence, sound(402, 1.0), silence]), text="so " * 16)
    found = found_in(folder, *clean(folder), wrong)
    (detail,) = found["speed"].details
    assert re.match(r"train\.json:31: 1\d words a second: .* in 5\.00 s with pauses of 4\.0 s \(the median", detail)


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


# The leaks that a run warns of before training.


def shared(folder, train, evaluation):
    manifests = [("train.json", train), ("dev.json", evaluation)]
    return shared_recordings(*(Manifest.open(write_set(folder, name, *lines)) for name, lines in manifests))


def test_the_same_file_and_a_copy_of_the_same_name_are_found_without_decoding(folder, monkeypatch):
    train = [add(folder, f"a/{number}.wav", sound(number)) for number in range(4)]
    copy, other = add(folder, "b/1.wav", sound(1)), add(folder, "b/2.wav", sound(99))
    monkeypatch.setattr(files, "_SoundFile", None)
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


def test_channels_of_a_file_are_no_leak_of_each_other(folder):
    whole = add(folder, "call.wav", np.stack([sound(1), sound(2)], axis=1))
    first, second = ({**whole, "channel": channel} for channel in (0, 1))
    assert shared(folder, [first], [second]) == []
    assert len(shared(folder, [first], [first])) == len(shared(folder, [first], [whole])) == 1
    assert "leak" not in between(folder, [first], [second])
    assert between(folder, [first], [whole])["leak"].details == ["e.json:1 = t.json:1 (call.wav)"]


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


# The picture is XML, and its bars have the heights of the counts.


_SVG = "{http://www.w3.org/2000/svg}"


def test_a_picture_has_a_row_for_each_set_and_a_bar_for_each_count(tmp_path):
    lines = [add(tmp_path, f"{n}.wav", sound(n, 0.5 if n else 1.0), text="a b <c>") for n in range(4)]
    sets = [statistics_of(examine(write_set(tmp_path, name, *lines))) for name in ("a&b.json", "c.json")]
    root = ET.fromstring(draw_histograms(sets))
    titles = [text.text for text in root.iter(f"{_SVG}text") if text.get("font-weight")]
    assert titles == [f"{tmp_path}/{name}: 4 utterances, 0.00 h" for name in ("a&b.json", "c.json")]
    bars = [bar for bar in root.iter(f"{_SVG}rect") if bar.find(f"{_SVG}title") is not None]
    assert len(bars) == 2 * 3 * 20
    first = {bar.find(f"{_SVG}title").text: float(bar.get("height")) for bar in bars[:20]}
    assert first["0.975 to 1: 1"] == pytest.approx(160 / 3, abs=0.1)
    assert first["0.5 to 0.525: 3"] == 160


# Text for a terminal.


def figures(tmp_path):
    lines = [add(tmp_path, f"{n}.wav", sound(n, 1 + n), text=f"one {n}", speaker="ann") for n in range(3)]
    return statistics_of(examine(write_set(tmp_path, "train.json", *lines)))


def test_the_figures_of_a_set_are_a_block(tmp_path):
    lines = as_text([figures(tmp_path)], None).splitlines()
    assert lines[0] == str(tmp_path / "train.json")
    assert lines[1] == "  3 utterances, 0.00 h, 1 speakers"
    assert "  sample rates  16000 (3)" in lines
    assert any(line.startswith("  seconds       1.00 to 3.00, median 2.00, 95 % below 2.90  |█") for line in lines)
    assert "  characters    6: '012eno'" in lines


def test_a_set_that_cannot_be_read_is_not_empty(tmp_path):
    lines = [{"audio_filepath": "none.wav", "duration": 1.0, "text": "a"}] * 2
    found = statistics_of(examine(write_set(tmp_path, "train.json", *lines)))
    assert as_text([found], None).splitlines()[1] == "  0 utterances, 0.00 h, 2 more cannot be used"


def test_problems_come_last_and_long_lists_are_cut():
    findings = [
        Finding("leak", True, "9 leaks", [f"e:{n}" for n in range(9)]),
        Finding("text", False, "4 texts", [f"t:{n}" for n in range(4)]),
    ]
    lines = as_text([], findings).splitlines()
    assert lines.index("Worth knowing") < lines.index("Problems")
    assert "    ... and 1 more (--json has all)" in lines
    assert "    ... and 4 more (--json has all)" in lines
    assert lines[-1] == "1 problem found"
    assert as_text([], []) == "No problem found"


def test_training_warns_of_utterances_that_are_far_longer_than_the_others(folder, capsys):
    lines = [{"audio_filepath": "a.wav", "duration": 2.0, "text": "a"} for _ in range(9)]
    lines[4]["duration"] = 600.0
    (folder / "long.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "even.json").write_text("".join(json.dumps({**line, "duration": 31.0}) + "\n" for line in lines))
    texts = {"labels": ["a"], "batch_size": 2, "load_audio": False}
    assert warn_of_long(AudioToTextDataLayer("long.json", **texts)) == 1
    told = capsys.readouterr().err
    assert (
        "long.json: 1 utterance longer than 30 s, where half of all have at most 2.0 s; long.json:5 has 600.0 s. A"
        in told
    )
    assert "max_duration of the data layer leaves long ones out, nemo-lite align MODEL MANIFEST --cut NEW.json" in told
    assert warn_of_long(AudioToTextDataLayer("even.json", **texts)) == 0
    assert capsys.readouterr().err == ""


def test_what_minutes_of_speech_are_enough_for_is_told_of_a_training_set_only(folder, capsys):
    lines = clean(folder)
    write_set(folder, "train.json", *lines)
    write_set(folder, "dev.json", *clean(folder, first=100))
    main(["check", "train.json", "dev.json"])
    out = capsys.readouterr().out
    assert "Worth knowing" in out
    assert out.count("of speech: enough to adapt a trained model") == 1
    assert "train.json: 34 s of speech" in out
    assert "nemo-lite models list" in out
    main(["check", "--eval", "dev.json"])
    assert "of speech: enough" not in capsys.readouterr().out


def test_a_model_that_starts_from_none_is_told_what_its_minutes_are_enough_for(folder, capsys):
    line = {"audio_filepath": "a.wav", "duration": 20.0, "text": "a"}
    for name, count in (("minutes.json", 60), ("hours.json", 120)):
        write_set(folder, name, *[line] * count)
        tell_of_little(AudioToTextDataLayer(name, labels=["a"], batch_size=2, load_audio=False))
    told = capsys.readouterr().out
    assert "minutes.json has 20.0 min of speech: enough to adapt a trained model" in told
    assert "hours.json has" not in told


def test_marks_that_are_no_words_are_worth_knowing(folder):
    texts = ["two <unk> [noise]", "two three", "a < b"]
    lines = [{"audio_filepath": f"{number}.wav", "duration": 1.0, "text": text} for number, text in enumerate(texts)]
    (folder / "odd.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (finding,) = findings_in(examine("odd.json", with_audio=False))
    assert (finding.kind, finding.is_problem, finding.details) == ("mark", False, ["odd.json:1: <unk> [noise]"])
    assert finding.summary == (
        "odd.json: 1 utterance with marks such as <unk>, which training leaves out unless they are labels"
    )


def test_letters_of_a_script_that_hardly_any_text_has_are_told_with_their_line(folder):
    def scripts_in(*texts):
        lines = [{"audio_filepath": f"{n}.wav", "duration": 1.0, "text": text} for n, text in enumerate(texts)]
        (folder / "odd.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
        found = findings_in(examine("odd.json", with_audio=False))
        return [(each.is_problem, each.details) for each in found if each.kind == "script"]

    english = [f"a caf\u00e9 of {number} o\u02bcclock" for number in range(30)]
    odd = ["\u0434\u0430 yes", "\u4f60\u597d"]
    told = [
        'odd.json:31: "\u0434\u0430" (CYRILLIC) in "\u0434\u0430 yes"',
        'odd.json:32: "\u4f60\u597d" (CJK) in "\u4f60\u597d"',
    ]
    assert scripts_in(*english, *odd) == [(False, told)]
    assert scripts_in(*english, *odd * 2) == []  # of 34 texts two are no accident
    assert scripts_in(*english[:5], *odd) == []
    japanese = ["\u4f60\u597d"] * 30
    assert scripts_in(*japanese, "\u30c6\u30ec\u30d3\u30fc", "\u306f\u3044") == []
