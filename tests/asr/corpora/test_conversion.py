"""Corpora as people have them become manifests: each kind, its languages, and what is wrong with single lines."""

import gzip
import hashlib
import json
import math
import random

import numpy as np
import pytest
import soundfile
from toys.checked_sets import sound
from toys.tar_shards import write_shard

from nemo_asr.cli.data import main
from nemo_asr.corpora.conversion import KINDS, divided, kind_of, make
from nemo_asr.corpora.tables import table_utterances
from nemo_asr.data.manifest import Manifest
from nemo_asr.data.tarred import TarredAudioToTextDataLayer
from nemo_lite.errors import DataError, FileInTheWayError, UnknownNameError, UsageError

HEAD = "client_id\tpath\tsentence_id\tsentence\tup_votes\n"


def record(path, seconds=0.5, rate=16000, channels=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = sound(1, seconds, rate)
    soundfile.write(path, np.stack([samples] * channels, 1) if channels > 1 else samples, rate)
    return path


def written(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture
def common_voice(tmp_path):
    """A language: three sets, a table that is none of them, and a sentence with quotation marks."""
    root = tmp_path / "cs"
    for number in range(4):
        record(root / f"clips/common_voice_cs_{number}.mp3", 1.0, 48000)
    rows = [
        f'spk{number % 2}\tcommon_voice_cs_{number}.mp3\tid\t"Příliš žluťoučký" kůň {number}\t2\n'
        for number in range(4)
    ]
    (root / "train.tsv").write_text(HEAD + "".join(rows[:2]), "utf-8")
    (root / "dev.tsv").write_text(HEAD + rows[2], "utf-8")
    (root / "test.tsv").write_text(HEAD + rows[3], "utf-8")
    (root / "validated.tsv").write_text(HEAD + "".join(rows), "utf-8")
    (root / "clip_durations.tsv").write_text("clip\tduration[ms]\ncommon_voice_cs_0.mp3\t1000\n")
    return root


def test_common_voice_becomes_its_three_sets_with_speakers(common_voice):
    made = make(common_voice)
    assert made.kind == "common_voice"
    assert made.problems == []
    assert sorted(path.name for path in made.manifests) == ["dev.json", "test.json", "train.json"]
    first, second = written(common_voice / "train.json")
    assert first == {
        "audio_filepath": "clips/common_voice_cs_0.mp3",
        "duration": 1.0,
        "text": '"Příliš žluťoučký" kůň 0',
        "speaker": "spk0",
    }
    assert second["speaker"] == "spk1"
    assert len(Manifest.open(common_voice / "train.json", strict=True)) == 2, "training reads it"


def test_common_voice_without_the_three_sets_is_what_was_validated(common_voice):
    for name in ("train", "dev", "test"):
        (common_voice / f"{name}.tsv").unlink()
    make(common_voice)
    assert len(written(common_voice / "validated.json")) == 4


def test_missing_damaged_and_wordless_recordings_are_a_line_each_and_others_go_on(common_voice, capsys):
    (common_voice / "clips/common_voice_cs_1.mp3").write_bytes(b"no audio")
    with open(common_voice / "train.tsv", "a", encoding="utf-8") as file:
        file.write("spk\tgone.mp3\tid\tničí\t2\nspk\tcommon_voice_cs_0.mp3\tid\t \t2\nspk\n")
    assert main(["make", str(common_voice)]) == 1
    out, err = capsys.readouterr()
    table = common_voice / "train.tsv"
    lines = err.splitlines()
    assert lines[0].startswith(f"{table}:3: {common_voice}/clips/common_voice_cs_1.mp3 is not a WAV, FLAC")
    assert (
        lines[1]
        == f"{table}:4: the audio file {common_voice}/clips/gone.mp3 cannot be opened (No such file or directory)"
    )
    assert lines[2].startswith(f"{table}:5: the text is empty; ")
    assert lines[3] == f"{table}:6: the line has too few columns: got 1, wanted at least 4"
    assert len(lines) == 4
    assert f"{common_voice}/train.json: 1 utterance, " in out
    assert out.endswith("4 problems: see above; the other utterances are in the manifests\n")
    assert [line["text"] for line in written(common_voice / "dev.json")] == ['"Příliš žluťoučký" kůň 2']


def test_a_corpus_of_which_nothing_can_be_used_is_one_error(common_voice):
    for clip in (common_voice / "clips").iterdir():
        clip.unlink()
    with pytest.raises(DataError, match=r"no utterance of .*cs can be used:\n.*train\.tsv:2: the audio file"):
        make(common_voice)
    assert not (common_voice / "train.json").exists()


def test_a_folder_of_recordings_with_texts_beside_them(tmp_path):
    for name, text in (("早/你好.wav", "你好,世界"), ("早/b.flac", "two\nlines\n"), ("c.ogg", "\ufeffMarke")):
        record(tmp_path / name)
        (tmp_path / name).with_suffix(".txt").write_text(text, "utf-8")
    (tmp_path / "README.txt").write_text("about")
    (tmp_path / "._c.ogg").write_bytes(b"of another system")
    made = make(tmp_path)
    assert (made.kind, made.problems) == ("folder", [])
    lines = written(tmp_path / "manifest.json")
    assert {line["audio_filepath"]: line["text"] for line in lines} == {
        "c.ogg": "Marke",
        "早/b.flac": "two lines",
        "早/你好.wav": "你好,世界",
    }


def test_texts_and_recordings_without_the_other_are_named(tmp_path):
    record(tmp_path / "a.wav")
    record(tmp_path / "b.wav")
    record(tmp_path / "b.mp3")
    (tmp_path / "b.txt").write_text("words")
    (tmp_path / "c.txt").write_text("no sound")
    record(tmp_path / "d.wav")
    (tmp_path / "d.txt").write_bytes("мир".encode("cp1251"))
    made = make(tmp_path)
    assert made.problems == [
        f"{tmp_path}/a.wav: the recording has no text beside it: wanted a.txt",
        f"{tmp_path}/b.mp3: two recordings have one text: b.wav is used; give it another name, or remove it",
        f"{tmp_path}/d.txt:1: the text is not UTF-8: got the byte 0xec; save it as UTF-8 text",
        f"{tmp_path}/c.txt: the text has no recording beside it: wanted c.wav or the like",
    ]
    assert len(written(tmp_path / "manifest.json")) == 1


def test_of_recordings_that_share_a_text_the_one_without_loss_is_used(tmp_path):
    record(tmp_path / "memo.wav")
    (tmp_path / "memo.m4a").write_bytes(b"\0\0\0\x1cftypM4A \0\0\2\0M4A isomiso2" + b"\0" * 200)
    record(tmp_path / "memo.mp3")
    (tmp_path / "memo.txt").write_text("words")
    problem = "two recordings have one text: memo.wav is used; give it another name, or remove it"
    assert make(tmp_path).problems == [f"{tmp_path}/memo.{end}: {problem}" for end in ("m4a", "mp3")]
    assert [line["audio_filepath"] for line in written(tmp_path / "manifest.json")] == ["memo.wav"]


def test_a_recording_that_needs_a_missing_decoder_is_told_and_not_overlooked(tmp_path):
    record(tmp_path / "a.wav")
    (tmp_path / "b.m4a").write_bytes(b"\0\0\0\x1cftypM4A \0\0\2\0M4A isomiso2" + b"\0" * 200)
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("words")
    (problem,) = make(tmp_path).problems
    assert problem.startswith(f"{tmp_path}/b.txt: {tmp_path}/b.m4a ")


def test_folders_named_as_sets_become_sets(tmp_path):
    for name in ("train/s1/a", "train/s2/b", "test/c"):
        record(tmp_path / f"{name}.wav")
        (tmp_path / f"{name}.txt").write_text("x")
    made = make(tmp_path)
    assert {path.name: len(entries) for path, entries in made.manifests.items()} == {"test.json": 1, "train.json": 2}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "text,file_name,speaker\nhello,x.wav,me\n"),
        ("a.csv", '\ufeffaudio;transcript;spk\nx;"hello";me\n'),
        ("a.csv", "x|hello\n"),
        ("a.tsv", "Path\tSentence\tClient_ID\nx.wav\thello\tme\n"),
    ],
)
def test_tables_are_read_by_the_names_of_their_columns(tmp_path, name, content):
    audio = record(tmp_path / "wavs/x.wav")
    (tmp_path / name).write_text(content, "utf-8")
    (row,) = table_utterances(tmp_path / name)
    assert (row.audio, row.text) == (audio, "hello")
    assert row.speaker == ("" if "|" in content else "me")
    assert kind_of(tmp_path / name) == kind_of(tmp_path) == "table"


@pytest.mark.parametrize(
    "head",
    [
        "client_id\tpath\tsentence\tup_votes\tdown_votes\tage\tgender\taccent",
        "client_id\tpath\tsentence\tup_votes\tdown_votes\tage\tgender\taccents\tvariant\tlocale\tsegment",
        "client_id\tpath\tsentence_id\tsentence\tsentence_domain\tup_votes\tdown_votes\tage\tgender\taccents\tvariant"
        "\tlocale\tsegment",
    ],
)
def test_common_voice_of_every_release_is_read(tmp_path, head):
    for name in ("a", "b"):
        record(tmp_path / f"clips/{name}.mp3")
    columns = head.split("\t")
    values = {"client_id": "me", "path": "a.mp3", "sentence": '"Ano", řekla', "sentence_id": "7"}
    rows = [values, {**values, "path": "b", "sentence": "it's"}, {**values, "sentence": ""}]
    lines = ["\t".join(row.get(column, "") for column in columns) for row in rows]
    (tmp_path / "validated.tsv").write_text("\n".join([head, *lines, ""]), "utf-8")
    (tmp_path / "invalidated.tsv").write_text("\n".join([head, *lines, ""]), "utf-8")
    (tmp_path / "train.tsv").write_text(head + "\n")
    (tmp_path / "validated_sentences.tsv").write_text("sentence_id\tsentence\n7\tAno\n")
    (tmp_path / "reported.tsv").write_text("sentence_id\tsentence\tlocale\treason\n7\tAno\tcs\tspelling\n", "utf-8")
    made = make(tmp_path)
    assert [(line["text"], line["speaker"]) for line in written(tmp_path / "validated.json")] == [
        ('"Ano", řekla', "me"),
        ("it's", "me"),
    ]
    assert [path.name for path in made.manifests] == ["validated.json"]
    assert made.problems == [f"{tmp_path}/validated.tsv:4: the text is empty; write the words, or remove the recording"]


def test_a_list_of_ljspeech_is_read_in_words_with_its_quotation_marks(tmp_path):
    audio = record(tmp_path / "wavs/LJ001-0001.wav")
    line = '"LJ001-0001|Printing, in 5, then, of "type", is|"Printing, in five, then, of ""type"", is\n'
    (tmp_path / "metadata.csv").write_text(line.removeprefix('"'))
    (row,) = table_utterances(tmp_path / "metadata.csv")
    assert (row.audio, row.text) == (audio, '"Printing, in five, then, of ""type"", is')


def test_lists_of_ids_and_texts_find_their_recordings(tmp_path):
    layouts = {
        "libri": ("dev-clean/84/121123/84-121123.trans.txt", "84-121123-0000 GO ON\n84-121123-0009 NO\n",
                  "dev-clean/84/121123/84-121123-0000.flac"),
        "mls": ("dev/transcripts.txt", "84_121123_000000\tgo on\n", "dev/audio/84/121123/84_121123_000000.ogg"),
        "voxforge": ("ann-2008-x/etc/PROMPTS", "ann-2008-x/mfc/a01 GO ON\n", "ann-2008-x/wav/a01.wav"),
    }  # fmt: skip
    for name, (file, content, audio) in layouts.items():
        root = tmp_path / name
        record(root / audio, rate=16000)
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(content)
        made = make(root)
        assert made.kind == "lists"
        ((path, (entry,)),) = made.manifests.items()
        assert path.name == {"libri": "dev-clean.json", "mls": "dev.json", "voxforge": "manifest.json"}[name]
        assert (entry["audio_filepath"], entry["text"].lower()) == (audio, "go on")
        assert entry["speaker"] == ("ann-2008-x" if name == "voxforge" else "84")
        assert len(made.problems) == (name == "libri")
    assert (
        "84-121123-0009 has no recording: wanted 84-121123-0009.flac or the like in "
        in make(tmp_path / "libri", overwrite=True).problems[0]
    )


def test_segments_of_stm_are_parts_of_recordings_beside_their_folder(tmp_path):
    record(tmp_path / "train/sph/talk.wav", 3.0)
    (tmp_path / "train/stm").mkdir(parents=True)
    lines = [
        ";; comment",
        "talk 1 ann 0.50 1.25 <o,f0,female> it 's on",
        "talk 1 inter_segment_gap 1.25 2.00 <o,,> ignore_time_segment_in_scoring",
        "talk 1 ann 2.00 2.50 no labels",
        "other 1 ann 0 1 <o> lost",
        "talk 1 ann zero 1 <o> lost",
    ]
    (tmp_path / "train/stm/talk.stm").write_text("\n".join(lines))
    made = make(tmp_path)
    assert made.kind == "stm"
    assert [(line["text"], line["offset"], line["duration"]) for line in written(tmp_path / "train.json")] == [
        ("it 's on", 0.5, 0.75),
        ("no labels", 2.0, 0.5),
    ]
    lost, broken = made.problems
    assert "talk.stm:5: other has no recording: wanted other.sph or the like in " in lost
    assert "talk.stm:6: this is no segment: got talk 1 ann zero 1 <o> lost, wanted RECORDING CHANNEL" in broken


def test_a_folder_whose_texts_are_elsewhere_is_refused_in_a_few_lines(tmp_path):
    for number in range(30):
        record(tmp_path / f"wav48/p225/p225_{number:03}.wav")
    with pytest.raises(DataError) as error:
        make(tmp_path)
    assert "p225_000.wav: the recording has no text beside it: wanted p225_000.txt" in str(error.value)
    assert str(error.value).count("\n") <= 11


def test_a_table_without_such_columns_names_those_it_has(tmp_path):
    (tmp_path / "a.csv").write_text("id,words\n1,hello\n")
    with pytest.raises(DataError, match=r"a\.csv:1: the first line names no columns .*: got id,words, wanted one of"):
        make(tmp_path / "a.csv", kind="table")


def kaldi(folder, segments=True):
    record(folder / "r.wav", 2.0, channels=2)
    record(folder / "sp ace.flac", 1.0)
    (folder / "wav.scp").write_text(
        f"rec1 sph2pipe -f wav -p -c 2 {folder}/r.wav |\nrec2 flac -c -d -s '{folder}/sp ace.flac' |\n"
        "rec3 sox a.wav -t wav - |\nrec4 r.wav\n"
    )
    if segments:
        (folder / "segments").write_text(
            "u1 rec1 0.5 1.25\nu2 rec2 0.0 -1\nu3 rec3 0 1\nu4 rec4 1.5 9\nu5 rec9 0 1\nu6 rec1 x\nu7 rec1 0 1\n"
        )
    names = [f"u{number}" for number in range(1, 7)] if segments else ["rec1", "rec2", "rec3", "rec4"]
    (folder / "text").write_text("".join(f"{name} 字 {name}\n" for name in names), "utf-8")
    (folder / "utt2spk").write_text("".join(f"{name} spk\n" for name in names[:1]))
    return folder


def test_kaldi_segments_are_parts_of_recordings(tmp_path):
    folder = kaldi(tmp_path)
    made = make(folder)
    assert made.kind == "kaldi"
    assert written(folder / "manifest.json") == [
        {"audio_filepath": "r.wav", "duration": 0.75, "text": "字 u1", "offset": 0.5, "speaker": "spk", "channel": 1},
        {"audio_filepath": "sp ace.flac", "duration": 1.0, "text": "字 u2"},
    ]
    command, beyond, unknown, broken, silent = made.problems
    assert command == (
        f"{folder}/wav.scp:3: the recording is a command, which is not run: got sox a.wav -t wav - |; "
        "run it once, and write the name of the file that it makes"
    )
    assert "segments:4: the part is not in its recording: got 1.5 to 9 s, wanted a part of" in beyond
    assert unknown == f"{folder}/segments:5: rec9 is no recording: wanted a line in {folder}/wav.scp"
    assert broken == f"{folder}/segments:6: this is no segment: got rec1 x, wanted ID RECORDING START END"
    assert silent == f"{folder}/segments:7: u7 has no text: wanted a line in {folder}/text"


def test_kaldi_folders_of_sets_are_sets(tmp_path):
    for name in ("train_clean", "dev"):
        kaldi(tmp_path / "data" / name, segments=False)
    made = make(tmp_path / "data", tmp_path / "out")
    assert {path.name: len(entries) for path, entries in made.manifests.items()} == {
        "dev.json": 3,
        "train_clean.json": 3,
    }
    assert written(tmp_path / "out/dev.json")[2]["audio_filepath"] == str(tmp_path / "data/dev/r.wav"), "lies elsewhere"


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


def test_sets_are_divided_by_speakers_and_the_same_each_time():
    entries = [
        {"audio_filepath": f"{number}.wav", "duration": 1.0, "text": "x", "speaker": f"s{number % 20}"}
        for number in range(200)
    ]
    sets = divided(entries, {"dev": 0.1, "test": 0.2})
    assert {name: len(part) for name, part in sets.items()} == {"train": 140, "dev": 20, "test": 40}
    speakers = [{entry["speaker"] for entry in part} for part in sets.values()]
    assert not speakers[0] & speakers[1] | speakers[0] & speakers[2] | speakers[1] & speakers[2]
    again = divided(entries[::-1], {"dev": 0.1, "test": 0.2})
    assert [{entry["speaker"] for entry in part} for part in again.values()] == speakers


def divided_by_adding_anew(entries, shares):
    """The definition: whole sets are added up for each recording."""
    order = sorted({entry["audio_filepath"] for entry in entries}, key=lambda x: hashlib.sha256(x.encode()).digest())
    groups = {name: [entry for entry in entries if entry["audio_filepath"] == name] for name in order}

    def seconds(some):
        return math.fsum(entry["duration"] for entry in some)

    sets = {"train": [], **{name: [] for name in shares}}
    for group in groups.values():
        lacking = {name: shares[name] * seconds(entries) - seconds(sets[name]) for name in shares}
        fewest = max(lacking, key=lacking.get)
        sets[fewest if lacking[fewest] >= seconds(group) / 2 else "train"] += group
    return sets


class CountedEntry(dict):
    reads = 0

    def __getitem__(self, key):
        CountedEntry.reads += key == "duration"
        return super().__getitem__(key)


def test_dividing_a_set_takes_its_sums_once_and_divides_as_sums_made_anew():
    draw = random.Random(3)
    for num in (1, 40, 160):
        durations = (round(draw.uniform(0.1, 9.0), draw.choice((1, 4, 15))) for _ in range(num))
        entries = [
            CountedEntry(audio_filepath=f"{draw.randrange(num)}.wav", duration=seconds, text="x")
            for seconds in durations
        ]
        for shares in ({"dev": 0.1}, {"dev": 0.3, "test": 0.3}):
            CountedEntry.reads = 0
            sets = divided(entries, shares)
            assert CountedEntry.reads <= 3 * num
            assert sets == divided_by_adding_anew(entries, shares)


def test_a_folder_around_or_within_a_corpus_names_the_corpus(common_voice):
    for folder in (common_voice / "clips", common_voice.parent):
        with pytest.raises(
            DataError, match=rf"can be used; {common_voice} is a language of Common Voice .*: name that"
        ):
            make(folder)


def test_an_address_is_told_as_one():
    with pytest.raises(DataError, match=r"https:/example\.org/x\.zip: the corpus is an address, .*; download it first"):
        make("https://example.org/x.zip")


def test_one_utterance_of_one_speaker_is_no_plural(tmp_path, capsys):
    record(tmp_path / "a.wav")
    (tmp_path / "list.csv").write_text("path,text,speaker\na.wav,oo,ann\n")
    assert main(["make", str(tmp_path)]) == 0
    assert "list.json: 1 utterance, 0.0 min, 1 different character, 1 speaker\n" in capsys.readouterr().out


def test_a_share_is_kept_apart_on_the_command_line(tmp_path, capsys):
    for number in range(10):
        record(tmp_path / f"{number}.wav")
        (tmp_path / f"{number}.txt").write_text("words words")
    assert main(["make", str(tmp_path), "--dev", "0.2"]) == 0
    assert f"{tmp_path}/train.json: 8 utterances, 0.1 min, 5 different characters" in capsys.readouterr().out
    assert len(written(tmp_path / "dev.json")) == 2
    assert main(["stats", str(tmp_path / "train.json")]) == 0  # counts them alike
    assert "  characters    5: 'dorsw'" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"--dev and --test leave nothing to train on: got 1\.1 of 1"):
        main(["make", str(tmp_path), "--dev", "0.6", "--test", "0.5"])


def test_manifests_that_are_there_are_not_replaced_unasked(common_voice):
    (common_voice / "dev.json").write_text("mine")
    with pytest.raises(FileInTheWayError, match=r"dev\.json: the manifest exists already; .*--out, or --overwrite"):
        make(common_voice)
    assert not (common_voice / "train.json").exists()
    make(common_voice, overwrite=True)
    assert len(written(common_voice / "dev.json")) == 1
    with pytest.raises(DataError, match=r"the corpus has sets already: got train, dev, test; give no shares"):
        make(common_voice, overwrite=True, shares={"dev": 0.1})


def test_what_is_no_corpus_is_told_with_the_kinds(tmp_path):
    with pytest.raises(DataError, match=r"this is no corpus of a known kind: wanted common_voice: a language of"):
        make(tmp_path)
    with pytest.raises(DataError, match="there is no such file or folder"):
        make(tmp_path / "none")
    with pytest.raises(UnknownNameError, match=r'kind "kaldy" is not known; known: .*\(did you mean kaldi\?\)'):
        make(tmp_path, kind="kaldy")
    assert [*KINDS] == ["common_voice", "kaldi", "shar", "lhotse", "wenet", "lists", "stm", "table", "folder"]
