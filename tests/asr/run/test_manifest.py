"""Manifests: which lines are valid, what is kept of them, and new kinds."""

import gzip
import itertools
import json
import os
import pickle
import random
import re

import numpy as np
import pytest
import soundfile
from toys import tab_manifest
from toys.manifests import LABELS, entry, layer_of, refusal, write

from nemo_asr import AudioToSpeechLabelDataLayer, TarredAudioToTextDataLayer, warn_of_leaks
from nemo_asr.augmentation import read_recordings
from nemo_asr.commands.cli.data import main as data_command
from nemo_asr.compat.parts import ASRAudioText, ASRSpeechLabel, CharParser
from nemo_asr.run import manifest_kinds
from nemo_asr.run.manifest import Manifest, evenly
from nemo_asr.run.manifest_kinds import JsonLines, kind_of
from nemo_asr.run.transcribe.inputs import recordings_of
from nemo_asr.tasks.recipe import load_class_recipe
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.base.errors import DataChangedError, DataError, UsageError

# Manifest lines: which are valid, in which words others are refused, and reading one again.


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
        (b'{"audio_filepath": "a", "duration": 1, "text": "b", "speaker": 1e999}', "1e999 is no finite number"),
        (rb'{"audio_filepath": "a", "duration": 1, "text": "b\ud800"}', "half of a surrogate pair"),
        (entry(channel=-1), "channel -1; write 0 for the first, 1 for the second, or mix for the average of all"),
        (entry(channel="left"), "channel 'left'; write 0"),
        (entry(channel=1024), "channel 1024; write 0"),
        (entry(channel=0.5), r"channel: expected int \| str \| null, got float"),
        (entry(channel=True), r"channel: expected int \| str \| null, got bool"),
        (b'{"audio_filepath": "a", "duration": 1, "text": "b", "channel": 1, "channel": 0}', "the key channel occurs"),
        (b'{"audio_filepath": "a", "duration": 1, "text": "b", "channel": "mix", "channel": 0}', "the key channel"),
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


@pytest.mark.parametrize(("channel", "number"), [(0, 0), (7, 7), ("mix", None), (None, None)])
def test_a_channel_is_a_number_or_the_average(channel, number, folder):
    write(folder / "train.json", entry(channel=channel), entry())
    manifest = Manifest.open("train.json")
    assert [manifest.utterance(row).channel for row in range(2)] == [number, None]


def test_of_many_bad_lines_the_first_five_are_listed_and_the_rest_counted(folder):
    lines = refusal(entry(), *(entry(text="") for _ in range(8)), folder=folder).splitlines()
    assert [line.split(": ")[0] for line in lines[:5]] == [f"train.json:{number}" for number in range(2, 7)]
    assert lines[5:] == ["... and 3 more"]


def test_line_numbers_are_right_across_block_borders(folder, monkeypatch):
    monkeypatch.setattr("nemo_asr.run.manifest_kinds._BLOCK_BYTES", 256)
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
    refused = refusal(json.dumps(entry(), indent=1).encode(), folder=folder)
    assert refused == (
        "train.json: the objects of the manifest have several lines each: wanted one JSON object a line; "
        "write one object a line: jq -c . OLD.json > NEW.json"
    )


def test_two_objects_in_a_line_are_refused_even_if_lines_and_objects_are_equally_many(folder):
    line = json.dumps(entry()).encode()
    told = "train.json:1: there are several objects on the line; write each on a line of its own; a manifest has one"
    for together in (line + line, line + b", " + line, line + b"\r" + line):
        assert told in refusal(together, b"", folder=folder)


LINE = json.dumps(entry()).encode()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (gzip.compress(LINE), ": the manifest is compressed (gzip); unpack it first: gunzip -k train.json"),
        (LINE.decode().encode("utf-16"), ": the manifest is UTF-16; save it as UTF-8: iconv -f UTF-16 -t UTF-8"),
        (LINE.decode().encode("utf-16-le"), ": the manifest is UTF-16 or no text; save it as UTF-8"),
        (b"RIFF\x24\0\0\0WAVEfmt ", ": this is a recording, no manifest; nemo-lite data make FOLDER writes a"),
        (b"PK\x03\x04", ": the manifest is a ZIP archive or a spreadsheet; save it as CSV, of which nemo-lite"),
        (b"[" + LINE + b",\n" + LINE + b"]", ": the manifest is one JSON list: wanted one JSON object a line; write "
         "one object a line: jq -c '.[]' OLD.json > NEW.json"),
        (b"[\n" + LINE + b"\n]", ": the manifest is one JSON list"),
        (b"[" + LINE + b"]", ": the manifest is one JSON list"),
        (b"path,text\na.wav,one", ": the manifest is a table by commas (CSV): got path,text, wanted one JSON "
         "object a line; call it .csv or .tsv: then nemo-lite data make FILE writes a manifest of it"),
        (b"path\ttext, words\na.wav\tone, two", ": the manifest is a table by tabs (TSV): got"),
        (b"a.wav|one\nb.wav|two", ": the manifest is a table by bars: got a.wav|one"),
        (LINE + b",\n" + LINE, ":1: there is a comma behind the object; leave it out; a manifest has one JSON"),
        (str(entry()).encode(), ":1: this is written as Python prints it; write it with json.dumps"),
        (b"one word a line\nand no comma", ":1: invalid JSON"),
    ],
    ids=map(str, itertools.count()),  # gzip has the time in its head
)  # fmt: skip
def test_a_file_of_another_kind_is_told_as_such_with_what_to_do(folder, content, told):
    assert refusal(content, folder=folder).startswith(f"train.json{told}")
    (folder / "t.csv").write_bytes(b"path,text\na.wav,one")
    with pytest.raises(DataError, match=r"\(CSV\): .*; nemo-lite data make t\.csv writes a manifest of it"):
        Manifest.open("t.csv")


def test_a_long_line_is_read_again_whole(folder):
    write(folder / "train.json", entry(text="a" * 30000), entry())
    assert len(Manifest.open("train.json").utterance(0).text) == 30000


def test_a_file_without_line_ends_is_refused_before_it_fills_the_memory(folder, monkeypatch):
    monkeypatch.setattr("nemo_asr.run.manifest_kinds.MAX_LINE_BYTES", 1000)
    monkeypatch.setattr("nemo_asr.run.manifest_kinds._BLOCK_BYTES", 100)
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
    monkeypatch.setattr("nemo_asr.run.manifest_kinds._BLOCK_BYTES", 700)
    parts = Manifest.open("train.json")
    for name in ("offsets", "lines", "durations"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))


# Manifests: what is kept of them, what is refused, and in which words.


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


def test_texts_of_any_rows_are_those_of_the_utterances_however_long_lines_are(folder):
    draw = random.Random(2)
    for name in ("a.json", "b.json"):
        texts = [draw.choice("abc") * draw.choice((1, 60, 5_000, 70_000)) for _ in range(60)]
        lines = [entry(text=text, duration=draw.choice((1, 9))) for text in texts]
        write(folder / name, *(line for pair in zip(lines, [b""] * len(lines), strict=True) for line in pair))
    (folder / "b.json").write_bytes((folder / "b.json").read_bytes().rstrip())
    manifest = Manifest.open("a.json,b.json", max_duration=5)
    wanted = [manifest.utterance(row).text for row in range(len(manifest))]
    assert list(manifest.texts()) == wanted
    for first, last in ((0, 0), (3, 7), (0, len(wanted)), (40, len(wanted))):
        assert list(manifest.texts(range(first, last))) == wanted[first:last]
    mixed = np.array(draw.sample(range(len(wanted)), 40))
    assert list(manifest.texts_at(mixed)) == [wanted[row] for row in mixed]


class Loud(JsonLines):
    """A user's kind, which changes lines and texts."""

    suffixes = (".loud",)

    def line(self, offset):
        line = super().line(offset)
        line.text = f"{line.text}!"
        return line

    def text_of(self, line, place):
        return super().text_of(line, place).upper()


def test_texts_are_those_of_a_kind_that_changes_lines_and_texts(folder, monkeypatch):
    monkeypatch.setattr(manifest_kinds, "_kinds", [Loud, *manifest_kinds._kinds])
    write(folder / "set.loud", *[entry(text=text) for text in ("a", "b")])
    manifest = Manifest.open("set.loud")
    assert list(manifest.texts()) == [manifest.utterance(row).text for row in range(2)] == ["A!", "B!"]


def test_texts_of_a_manifest_that_was_replaced_are_refused(folder):
    write(folder / "train.json", *[entry()] * 3)
    manifest = Manifest.open("train.json")
    write(folder / "train.json", *[entry(text="another one")] * 3)
    with pytest.raises(DataChangedError, match=r"^train\.json: the manifest changed while it was in use"):
        list(manifest.texts())


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


# Sets of utterances: limits of duration, and what was left out.


def test_the_summary_tells_what_was_dropped_why_and_where(folder):
    write(folder / "train.json", entry(duration=3600), entry(duration=0.05), entry(duration=20), entry(duration=40))
    with pytest.raises(DataError, match=r"no utterance is left: 4 longer than max_duration 0\.01 s"):
        Manifest.open("train.json", max_duration=0.01)
    summary = Manifest.open("train.json", min_duration=0.1, max_duration=30).summary().splitlines()
    assert summary[0] == "train.json: 1 utterance kept (0.01 h)"
    assert summary[1] == "  dropped 1 shorter than min_duration 0.1 s (0.00 h: train.json:2)"
    assert summary[2] == "  dropped 2 longer than max_duration 30 s (1.01 h: train.json:1, train.json:4)"


def test_limits_are_inclusive(folder):
    write(folder / "train.json", entry(duration=0.1), entry(duration=16.7))
    assert len(Manifest.open("train.json", min_duration=0.1, max_duration=16.7)) == 2


def test_contradictory_limits_are_refused(folder):
    with pytest.raises(UsageError, match=r"min_duration 2 s is above max_duration 1 s"):
        Manifest.open("train.json", min_duration=2, max_duration=1)


# A new kind of manifest is one file with one registration: all that read manifests read it.


TEXTS = ["a b", "ab", "c"]


@pytest.fixture
def tab_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, _ in enumerate(TEXTS):
        samples = np.random.default_rng(number).uniform(-0.5, 0.5, 8000)
        soundfile.write(f"{number}.wav", samples, 16000)
    lines = [f"0.5\t{number}.wav\t{text}\t{'yes' if number else 'no'}\n" for number, text in enumerate(TEXTS)]
    (tmp_path / "set.tsv").write_text("".join(lines))
    return tmp_path


def test_a_path_is_of_the_kind_that_recognises_it():
    assert kind_of("a/SET.TSV") is tab_manifest.TabSeparated
    assert kind_of("a.jsonl") is not None
    assert kind_of("a.wav") is None


@pytest.mark.parametrize("num_workers", [0, 1])
def test_training_and_evaluation_read_it_also_in_workers(num_workers, tab_folder):
    layer = layer_of("set.tsv", augmentor={"noise": {"prob": 1.0, "manifest_path": "set.tsv"}}, num_workers=num_workers)
    for training in (False, True):
        batches = list(layer.loader(training=training, shard=Shard()).epoch(0))
        assert sorted(item for batch in batches for item in batch.ids) == [0, 1, 2]
    assert layer.place_of(2) == "set.tsv:3"
    assert any("set.tsv" in name for name in layer.fingerprint())


@pytest.mark.slow
def test_transcribing_noises_classes_and_lists_of_nemo_read_it(tab_folder):
    recordings = recordings_of(["set.tsv"])
    assert [(each.source, each.duration) for each in recordings] == [(f"{n}.wav", 0.5) for n in range(3)]
    assert [recording.path for recording in read_recordings("set.tsv")] == ["0.wav", "1.wav", "2.wav"]
    assert AudioToSpeechLabelDataLayer(manifest_filepath="set.tsv", batch_size=1).labels == ["no", "yes"]
    assert list(load_class_recipe("speakers", "set.tsv").labels) == ["no", "yes"]
    assert [row.text_raw for row in ASRAudioText("set.tsv", parser=CharParser(LABELS))] == TEXTS
    assert ASRSpeechLabel("set.tsv").uniq_labels == ["no", "yes"]


def test_the_commands_for_data_read_it(tab_folder, capsys):
    (tab_folder / "dev.json").write_text(json.dumps({"audio_filepath": "2.wav", "duration": 0.5, "text": "c"}) + "\n")
    assert data_command(["check", "set.tsv", "dev.json"]) == 1
    assert "1 of 1 utterances of dev.json are recordings of the training set set.tsv" in capsys.readouterr().out
    assert warn_of_leaks(layer_of("set.tsv"), {"dev": layer_of("dev.json")}) == 1
    assert data_command(["stats", "set.tsv"]) == 0
    assert data_command(["lm", "set.tsv", "--out", "lm.arpa", "--order", "1"]) == 0
    assert "3 texts, 4 words" in capsys.readouterr().out
    assert data_command(["tar", "set.tsv"]) == 0
    layer = TarredAudioToTextDataLayer("tarred/audio_0.tar", "set.tsv", LABELS, 1)
    assert [layer.utterance_of(item).text for item in range(3)] == TEXTS


def test_bad_lines_and_changes_are_told_as_of_other_kinds(tab_folder):
    manifest = Manifest.open("set.tsv")
    (tab_folder / "set.tsv").write_text("0.5\t0.wav\ta\tno\n-1\t1.wav\ta\tno\nx\n")
    with pytest.raises(DataChangedError, match=r"set\.tsv: the manifest changed while it was in use"):
        manifest.utterance(0)
    with pytest.raises(DataError, match=r"^set\.tsv:2: duration -1 s; write .*\nset\.tsv:3: a line has seconds"):
        Manifest.open("set.tsv")


def test_positions_are_spread_over_a_whole_set():
    assert [evenly(number, 3).tolist() for number in range(6)] == [[], [0], [0, 1], [0, 1, 2], [0, 1, 3], [0, 2, 4]]
    assert evenly(7, 1).tolist() == [0]
    assert evenly(1000, 1000).tolist() == [*range(1000)]
