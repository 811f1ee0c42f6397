"""Cuts of lhotse, Shar folders and lists of WeNet: their parts, texts and channels."""

import gzip
import json

import numpy as np
import pytest
import soundfile
from toys.corpora import record, written
from toys.tar_shards import write_shard

from nemo_asr.corpora.conversion import make
from nemo_asr.data.tarred import TarredAudioToTextDataLayer
from nemo_lite.base.errors import DataError


def cut(audio, **changes):
    supervision = {"id": "s", "recording_id": "r", "start": 0.25, "duration": 0.5, "channel": 0, "text": "привет мир"}
    source = {"type": "file", "channels": [0], "source": str(audio)}
    recording = {"id": "r", "sources": [source], "sampling_rate": 16000, "num_samples": 32000, "duration": 2.0}
    parts = {"id": "c", "start": 1.0, "duration": 1.0, "channel": 0, "recording": recording, "type": "MonoCut"}
    return {**parts, "supervisions": [{**supervision, "speaker": "f 1"}], **changes}


@pytest.mark.parametrize("is_packed", [True, False])
def test_cuts_of_lhotse_become_an_utterance_for_each_supervision(tmp_path, is_packed):
    audio = record(tmp_path / "r.flac", 2.0)
    memory = {**cut(audio)["recording"], "sources": [{"type": "memory", "channels": [0], "source": "x"}]}
    no_supervisions = {key: value for key, value in cut(audio).items() if key != "supervisions"}
    cuts = [cut(audio), cut(audio, type="FeatureCut"), cut(audio, recording=memory), no_supervisions]
    lines = "".join(json.dumps(each) + "\n" for each in cuts) + "{broken\n"
    path = tmp_path / ("cuts_train.jsonl.gz" if is_packed else "cuts_train.jsonl")
    path.write_bytes(gzip.compress(lines.encode()) if is_packed else lines.encode())
    made = make(path)
    assert made.kind == "lhotse"
    assert written(tmp_path / "cuts_train.json") == [
        {"audio_filepath": "r.flac", "duration": 0.5, "text": "привет мир", "offset": 1.25, "speaker": "f 1"}
    ]
    other, in_memory, incomplete, broken = made.problems
    assert other == f"{path}:2: this is no cut of a recording: got FeatureCut"
    assert in_memory == f'{path}:3: the recording is no single file: got memory, wanted a source of the type "file"'
    assert incomplete.startswith(f"{path}:4: the cut cannot be read: got no 'supervisions'")
    assert broken.startswith(f"{path}:5: the list cannot be read: invalid JSON")


def mixed(*tracks):
    """A cut of several, each with the second at which it begins."""
    return {"id": "m", "type": "MixedCut", "tracks": [{"cut": each, "offset": offset} for each, offset in tracks]}


def test_cuts_that_are_padded_or_joined_are_their_parts_and_mixed_ones_are_refused(tmp_path):
    speech, padding = cut(record(tmp_path / "r.flac", 2.0)), {"id": "p", "type": "PaddingCut", "duration": 1.0}
    noise, changed = {**speech, "supervisions": []}, {**speech["recording"], "transforms": [{"name": "Speed"}]}
    lines = [
        mixed((padding, 0.0), (speech, 1.0), (padding, 2.0)),
        mixed((speech, 0.0), (noise, 1.0005), (speech, 2.0)),
        mixed((speech, 0.0), (noise, 0.5)),
        mixed((padding, 0.0), (noise, 1.0)),
        {**speech, "recording": changed},
        {**speech, "recording": {**speech["recording"], "transforms": [{"name": "Resample"}]}},
    ]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = make(tmp_path / "c.jsonl")
    assert [(line["offset"], line["duration"]) for line in written(tmp_path / "c.json")] == [(1.25, 0.5)] * 4
    at_once, silent, faster = (problem.removeprefix(f"{tmp_path}/c.jsonl:") for problem in made.problems)
    assert at_once.startswith("3: the cut mixes recordings: got 2 at the same time; store what it sounds like")
    assert silent == "4: the cut has no supervision: wanted a text"
    assert faster.startswith("5: the recording is changed as it is read: got Speed; store it so")


def test_a_shar_folder_is_trained_on_where_it_lies(tmp_path):
    audio = record(tmp_path / "r.wav", 2.0)
    shar = {**cut(audio)["recording"], "sources": [{"type": "shar", "channels": [0], "source": ""}]}
    cuts = [{**cut(audio), "id": name, "recording": shar, "duration": 2.0, "start": 0} for name in ("a/x.1", "y", "z")]
    folder = tmp_path / "shar"
    folder.mkdir()
    for number, some in enumerate((cuts[:2], cuts[2:])):
        lines = "".join(json.dumps(each) + "\n" for each in some)
        (folder / f"cuts.{number:06}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    members = [(f"{name}.{ending}", audio.read_bytes()) for name in ("a/x.1", "y") for ending in ("wav", "json")]
    write_shard(folder / "recording.000000.tar", *members)
    write_shard(folder / "recording.000001.tar", ("z.nodata", b""), ("z.nometa", b""))
    made = make(folder)
    assert (made.kind, len(made.problems)) == ("shar", 1)
    assert made.problems[0].endswith("recording.000001.tar has no recording of the cut: got z")
    manifest = folder / "manifest.json"
    assert [line["audio_filepath"] for line in written(manifest)] == ["a/x.1.wav", "y.wav"]
    shards, labels = [str(folder / "recording.000000.tar")], [*" авеимнпрт"]
    layer = TarredAudioToTextDataLayer(shards, str(manifest), labels=labels, batch_size=1)
    samples, sample_rate = soundfile.read(audio, dtype="float32")
    start, end = (int(seconds * sample_rate) for seconds in (0.25, 0.75))
    for signal, length, *_ in layer.data_iterator:
        assert int(length[0]) == end - start
        assert np.array_equal(signal[0].numpy(), samples[start:end])


def test_cuts_whose_compression_is_damaged_are_one_error(tmp_path):
    audio = record(tmp_path / "r.flac", 2.0)
    lines = "".join(json.dumps(cut(audio, id=str(number))) + "\n" for number in range(400))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode())[:-9])
    with pytest.raises(DataError, match=r"c\.jsonl\.gz: the list cannot be read: got \"Compressed file ended"):
        make(tmp_path / "c.jsonl.gz")


def test_a_list_of_wenet_is_read_with_its_parts(tmp_path):
    record(tmp_path / "r.wav", 2.0)
    lines = [
        {"key": "a", "wav": "r.wav", "txt": "甚至出现"},
        {"key": "b", "wav": "r.wav", "txt": "交易", "start": 0.5, "end": 1.5, "speaker": "S1"},
        {"key": "c", "wav": "r.wav", "txt": "x", "start": "soon"},
        {"key": "d", "txt": "x"},
    ]
    (tmp_path / "data.list").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = make(tmp_path / "data.list")
    assert made.kind == "wenet"
    assert written(tmp_path / "data.json") == [
        {"audio_filepath": "r.wav", "duration": 2.0, "text": "甚至出现"},
        {"audio_filepath": "r.wav", "duration": 1.0, "text": "交易", "offset": 0.5, "speaker": "S1"},
    ]
    no_number, no_file = made.problems
    assert no_number.startswith(f"{tmp_path}/data.list:3: the line cannot be read: got could not convert")
    assert no_file.startswith(f"{tmp_path}/data.list:4: the line cannot be read: got no 'wav', wanted ")


def test_null_and_lists_in_place_of_texts_and_speakers_are_named(tmp_path):
    record(tmp_path / "a.wav", 2.0, channels=2)
    base = {"key": "a", "wav": "a.wav", "txt": "yes"}
    rows = [
        {**base, "speaker": None}, {**base, "txt": None}, {**base, "txt": ["a", "b"]}, {**base, "speaker": ["x"]},
        {**base, "wav": None}, {**base, "txt": 5}, {**base, "speaker": 7, "start": None},
    ]  # fmt: skip
    (tmp_path / "data.list").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = make(tmp_path / "data.list")
    assert written(tmp_path / "data.json") == [
        {"audio_filepath": "a.wav", "duration": 2.0, "text": "yes"},
        {"audio_filepath": "a.wav", "duration": 2.0, "text": "yes", "speaker": "7"},
    ]
    told = [
        "txt is no text: got null",
        "txt is no text: got list ['a', 'b'], wanted words in quotation",
        "speaker is no text: got list ['x']",
        "wav is no text: got null",
        "txt is no text: got int 5",
    ]
    for number, (problem, start) in enumerate(zip(made.problems, told, strict=True), 2):
        assert problem.startswith(f"{tmp_path}/data.list:{number}: {start}")


def test_supervisions_of_lhotse_keep_their_channels_and_are_texts(tmp_path):
    record(tmp_path / "a.wav", 2.0, channels=2)
    parts: list[dict[str, object]] = [
        {"channel": 1, "text": "one"}, {"channel": [0], "text": "zero"}, {"channel": [0, 1], "text": "both"},
        {"text": "of the cut"}, {"channel": "x", "text": "none"}, {"channel": 0, "text": ["a", "b"]},
        {"channel": 0, "text": "go", "speaker": ["x"]}, {"channel": 0, "text": None},
        {"channel": 0, "text": "early", "start": -0.5},
    ]  # fmt: skip
    source = {"type": "file", "channels": [0, 1], "source": "a.wav"}
    cut_of_both: dict[str, object] = {"type": "MultiCut", "id": "c", "start": 0, "duration": 2, "channel": [0, 1]}
    cut_of_both["recording"] = {"id": "a", "sources": [source]}
    cut_of_both["supervisions"] = [
        {"start": 0, "duration": 1 + number / 10, **part} for number, part in enumerate(parts)
    ]
    features = {
        "type": "MonoCut",
        "id": "f",
        "start": 0,
        "duration": 2,
        "channel": 0,
        "supervisions": [{}],
        "features": {},
    }
    (tmp_path / "cuts.jsonl").write_text(json.dumps(cut_of_both) + "\n" + json.dumps(features) + "\n")
    made = make(tmp_path)
    ((*entries,),) = made.manifests.values()
    assert [(entry["text"], entry.get("channel")) for entry in entries] == [
        ("one", 1), ("zero", 0), ("both", None), ("of the cut", None)
    ]  # fmt: skip
    name, text, speaker, empty, early, no_recording = (problem.partition("jsonl:")[2] for problem in made.problems)
    assert name.startswith("1: an utterance has one channel, or all: got channel x")
    assert text.startswith("1: text is no text: got list ['a', 'b'], wanted words in quotation marks")
    assert speaker.startswith("1: speaker is no text: got list")
    assert empty.startswith("1: the text is empty")
    assert early.startswith("1: the part is not in its recording: got -0.5 to ")
    assert no_recording.startswith("2: the cut has features and no recording: got type, id, start")
