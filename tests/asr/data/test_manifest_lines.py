"""Manifest lines: which are valid, in which words others are refused, and reading one again."""

import json
import os
import pickle
import re

import numpy as np
import pytest
from toys.manifests import entry, refusal, write

from nemo_asr.data.manifest import Manifest
from nemo_lite.backends.pytorch.data.order import DataChangedError
from nemo_lite.errors import DataError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_older_and_alternative_keys_are_understood(folder):
    (folder / "t.txt").write_text("from a file\n")
    write(
        folder / "train.json",
        entry(audio_filepath=None, audio_filename="b.wav"),
        entry(text=None, normalized_text="normal"),
        entry(text=None, text_filepath="t.txt"),
        entry(text="written", normalized_text="normal", text_filepath="t.txt"),
    )
    manifest = Manifest.open("train.json")
    assert manifest.utterance(0).audio_path == "b.wav"
    assert [manifest.utterance(row).text for row in (1, 2, 3)] == ["normal", "from a file", "written"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"audio_filepath": "a.wav", "duration": 1', "invalid JSON"),
        (b"audio_filepath a.wav", "invalid JSON"),
        (b'["a.wav", 1.0]', "expected object, got array"),
        (entry(duration=None), "no duration; write the seconds"),
        (entry(audio_filepath=None), r"no audio_filepath \(or audio_filename\)"),
        (entry(text=None), "text is missing or empty"),
        (entry(text=" \t"), "text is missing or empty"),
        (entry(text=3), r"text: expected str \| null, got int"),
        (entry(duration=0), "duration 0 s; write the seconds of audio, above 0"),
        (entry(duration=-1.5), r"duration -1\.5 s"),
        (entry(duration=1e39), r"duration 1e\+39 s; write the seconds of audio"),
        (entry(audio_filepath="a\0.wav"), "a path has a null character in it"),
        (entry(text=None, text_filepath="a\0.txt"), "a path has a null character in it"),
        (entry(duration="1.5"), r"duration: expected float \| null, got str"),
        (b'{"audio_filepath": "a.wav", "duration": NaN, "text": "a"}', "NaN is no finite number"),
        (entry(offset=-1), "offset -1 s; write the seconds from the start"),
        (b'{"audio_filepath": "a.wav", "duration": 1, "text": "a", "text": "b"}', "the key text occurs twice"),
        (b'{"audio_filepath": "a.wav", "duration": 1, "duration": 2, "text": "b"}', "the key duration occurs twice"),
        (b'{"audio_filepath": "a.wav", "duration": 1, "text": "\xff"}', "the byte 0xff is not UTF-8"),
        (rb'{"audio_filepath": "a", "duration": 1, "text": "a", "t\u0065xt": "b"}', "the key text occurs twice"),
        (b'{"audio_filepath": "a", "duration": 1, "text": "b", "offset": 1, "offset": null}', "the key offset occurs"),
        (b'{"audio_filepath": "a", "duration": 1, "text": "b", "id": 1, "speaker": "c", "speaker": 1}', "key speaker"),
        (b'{"audio_filepath": "a", "duration": 1, "text": "b", "x": ' + b"[" * 33 + b"]" * 33 + b"}", "34 levels deep"),
        (b'{"audio_filepath": "a", "duration": 1, "text": "b", "x": ' + b"[" * 100_000, "100001 levels deep"),
        (b'{"audio_filepath": "a", "duration": 1, "text": "b", "speaker": "\xff"}', "the byte 0xff is not UTF-8"),
        (b'{"audio_filepath": "a", "duration": 1, "text": "b", "speaker": 1e999}', "1e999 is out of range"),
        (rb'{"audio_filepath": "a", "duration": 1, "text": "b\ud800"}', "half of a surrogate pair"),
        (entry(offset=1e308), r"offset 1e\+308 s; write the seconds"),
        (entry(duration=1e8), r"duration 1e\+08 s; write the seconds"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_what_is_wrong(line, problem, folder):
    text = refusal(entry(), line, entry(), folder=folder)
    assert text.startswith("train.json:2: ")
    assert len(text.splitlines()) == 1
    assert re.search(problem, text), text


def test_lines_without_text_or_duration_are_taken_where_the_caller_is_lenient(folder):
    long_and_short = [entry(duration=0), entry(duration=-1.5), entry(duration=18000)]
    write(folder / "train.json", entry(text=None), entry(text=""), *long_and_short, entry())
    manifest = Manifest.open("train.json", lenient=True)
    assert [manifest.utterance(row).text for row in range(len(manifest))] == ["", "", "one two", "one two"]
    assert [(dropped.reason, dropped.count) for dropped in manifest.dropped] == [("with a duration of 0 s or less", 2)]
    write(folder / "train.json", entry(text=None), entry(audio_filepath=None))
    with pytest.raises(DataError, match=r"^train\.json:2: no audio_filepath"):
        Manifest.open("train.json", lenient=True)


@pytest.mark.parametrize("speaker", ["mary", 17, 2.5, True, ["a", 1], {"name": "mary"}, None])
def test_a_speaker_is_of_any_type(speaker, folder):
    (folder / "train.json").write_text(json.dumps({**entry(), "speaker": speaker}))
    assert Manifest.open("train.json").utterance(0).speaker == speaker
    write(folder / "train.json", entry())
    assert Manifest.open("train.json").utterance(0).speaker is None


def test_of_many_bad_lines_the_first_five_are_listed_and_the_rest_counted(folder):
    lines = refusal(entry(), *(entry(text="") for _ in range(8)), folder=folder).splitlines()
    assert [line.split(": ")[0] for line in lines[:5]] == [f"train.json:{number}" for number in range(2, 7)]
    assert lines[5:] == ["... and 3 more"]


def test_line_numbers_are_right_across_block_borders(folder, monkeypatch):
    monkeypatch.setattr("nemo_asr.data.manifest._BLOCK_BYTES", 256)
    lines = [entry(text=f"number {number}") for number in range(1, 100)]
    lines[70] = entry(duration=-1)
    assert refusal(*lines, folder=folder).startswith("train.json:71: duration -1 s")
    lines[70] = entry(text="number 71")
    write(folder / "train.json", *lines)
    manifest = Manifest.open("train.json")
    assert [manifest.utterance(row).text for row in range(99)] == [f"number {number}" for number in range(1, 100)]
    assert manifest.place(98) == "train.json:99"


def test_blank_lines_windows_line_ends_a_byte_order_mark_and_a_missing_last_newline_are_allowed(folder):
    line = json.dumps(entry()).encode()
    (folder / "train.json").write_bytes(b"\xef\xbb\xbf" + line + b"\r\n\r\n" + line)
    manifest = Manifest.open("train.json")
    assert [manifest.place(row) for row in range(2)] == ["train.json:1", "train.json:3"]
    assert [manifest.utterance(row).text for row in range(2)] == ["one two"] * 2


def test_a_value_spelled_like_a_key_is_no_repeated_key(folder):
    write(folder / "train.json", entry(source="text"), entry(source="duration"))
    assert len(Manifest.open("train.json")) == 2


def test_objects_over_several_lines_are_refused(folder):
    assert "train.json:1: invalid JSON" in refusal(json.dumps(entry(), indent=1).encode(), folder=folder)


def test_two_objects_in_a_line_are_refused_even_if_lines_and_objects_are_equally_many(folder):
    line = json.dumps(entry()).encode()
    assert "train.json:1: invalid JSON" in refusal(line + line, b"", folder=folder)


def test_a_long_line_is_read_again_whole(folder):
    write(folder / "train.json", entry(text="a" * 30000), entry())
    assert len(Manifest.open("train.json").utterance(0).text) == 30000


def test_a_file_without_line_ends_is_refused_before_it_fills_the_memory(folder, monkeypatch):
    monkeypatch.setattr("nemo_asr.data.manifest.MAX_LINE_BYTES", 1000)
    monkeypatch.setattr("nemo_asr.data.manifest._BLOCK_BYTES", 100)
    assert "a line of more than 1000 bytes starts at byte 0" in refusal(b"x" * 5000, folder=folder)


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_manifest_is_refused(content, folder):
    (folder / "train.json").write_bytes(content)
    with pytest.raises(DataError, match=r"train\.json: the manifest is empty"):
        Manifest.open("train.json")


def test_an_unreadable_text_file_names_the_line(folder):
    write(folder / "train.json", entry(text=None, text_filepath="none.txt"))
    with pytest.raises(DataError, match=r"train\.json:1: none\.txt: the text file cannot be opened"):
        Manifest.open("train.json").utterance(0)
    (folder / "none.txt").write_text(" ")
    with pytest.raises(DataError, match=r"train\.json:1: the text file none\.txt is empty"):
        Manifest.open("train.json").utterance(0)


def test_a_manifest_that_changes_while_in_use_is_an_error_that_names_it(folder):
    write(folder / "train.json", entry(), entry())
    manifest = Manifest.open("train.json")
    with open("train.json", "ab") as file:
        file.write(b"\n")
    with pytest.raises(DataChangedError, match=r"train\.json: the manifest changed while it was in use"):
        manifest.utterance(0)


def test_a_reader_sent_to_another_process_notices_a_replaced_manifest(folder):
    write(folder / "train.json", entry(text="old"))
    manifest = Manifest.open("train.json")
    sent = pickle.loads(pickle.dumps(manifest.reader))
    assert sent.utterance(manifest.refs([0])[0]).text == "old"
    late = pickle.loads(pickle.dumps(manifest.reader))
    write(folder / "new.json", entry(text="newer"))
    os.replace("new.json", "train.json")
    with pytest.raises(DataChangedError):
        late.utterance(manifest.refs([0])[0])


def test_a_reader_stays_small_however_many_lines_there_are(folder):
    write(folder / "small.json", entry())
    write(folder / "large.json", *[entry()] * 5000)
    small, large = (len(pickle.dumps(Manifest.open(path).reader)) for path in ("small.json", "large.json"))
    assert abs(large - small) < 50


def test_scanning_in_blocks_finds_the_same_as_in_one(folder, monkeypatch):
    rng = np.random.default_rng(0)
    lines = [entry(text="x" * int(rng.integers(1, 300)), duration=float(rng.uniform(1, 9))) for _ in range(300)]
    write(folder / "train.json", *lines)
    whole = Manifest.open("train.json")
    monkeypatch.setattr("nemo_asr.data.manifest._BLOCK_BYTES", 700)
    parts = Manifest.open("train.json")
    for name in ("offsets", "lines", "durations"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))
