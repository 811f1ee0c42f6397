"""Corpora as people have them become manifests: each kind, its languages, and what is wrong with single lines."""

import gzip
import hashlib
import json
import math
import random
import re

import numpy as np
import pytest
import soundfile
from toys.checked_sets import sound
from toys.tar_shards import write_shard

from nemo_asr.commands.cli.data import main
from nemo_asr.corpora.conversion import KINDS, divided, kind_of, make
from nemo_asr.corpora.stm import words_of
from nemo_asr.corpora.tables import table_utterances
from nemo_asr.data.tarred import TarredAudioToTextDataLayer
from nemo_asr.run.manifest import Manifest
from nemo_lite.base.errors import DataError, FileInTheWayError, UnknownNameError, UsageError

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
    assert lines[3] == f"{table}:6: the line has too few columns: got 1, wanted 5, as in the first line"
    assert len(lines) == 4
    assert f"{common_voice}/train.json: 1 utterance, " in out
    assert out.endswith("4 problems: see above; the other utterances are in the manifests\n")
    assert [line["text"] for line in written(common_voice / "dev.json")] == ['"Příliš žluťoučký" kůň 2']


def test_a_corpus_of_which_nothing_can_be_used_is_one_error_and_leaves_nothing(common_voice):
    for clip in (common_voice / "clips").iterdir():
        clip.unlink()
    with pytest.raises(DataError, match=r"no utterance of .*cs can be used:\n.*train\.tsv:2: the audio file"):
        make(common_voice, common_voice / "none")
    assert not (common_voice / "none").exists()


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


def test_endings_in_capitals_as_of_a_memory_card_are_found(tmp_path):
    record(tmp_path / "a.wav")
    (tmp_path / "a.wav").rename(tmp_path / "A.WAV")
    (tmp_path / "A.TXT").write_text("words")
    made = make(tmp_path)
    assert (made.kind, made.problems) == ("folder", [])
    assert [line["text"] for line in written(tmp_path / "manifest.json")] == ["words"]


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
    assert broken == f"{folder}/segments:6: this is no segment: got rec1 x, wanted ID RECORDING START END [CHANNEL]"
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


def test_the_list_that_manifests_are_made_of_is_never_replaced(tmp_path):
    record(tmp_path / "a.wav")
    line = json.dumps({"key": "a", "wav": str(tmp_path / "a.wav"), "txt": "word"}) + "\n"
    (tmp_path / "train.json").write_text(line)
    with pytest.raises(FileInTheWayError, match=r"train\.json: this is an input of the command, which is never"):
        make(tmp_path / "train.json", kind="wenet", overwrite=True)
    assert (tmp_path / "train.json").read_text() == line


def test_what_is_no_corpus_is_told_with_the_kinds(tmp_path):
    with pytest.raises(DataError, match=r"this is no corpus of a known kind: wanted common_voice: a language of"):
        make(tmp_path)
    with pytest.raises(DataError, match="there is no such file or folder"):
        make(tmp_path / "none")
    with pytest.raises(UnknownNameError, match=r'kind "kaldy" is not known; known: .*\(did you mean kaldi\?\)'):
        make(tmp_path, kind="kaldy")
    assert [*KINDS] == ["common_voice", "kaldi", "shar", "lhotse", "wenet", "lists", "stm", "table", "folder"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_without_the_lists_of_the_kind_is_told_what_it_lacks(kind, tmp_path):
    (tmp_path / "notes.pdf").touch()
    wanted = re.escape(f"wanted {KINDS[kind].description}; name the folder that has them, or leave --kind out")
    with pytest.raises(DataError, match=f"{tmp_path}: the folder is none of kind {kind}: {wanted}"):
        make(tmp_path, kind=kind)


def test_a_folder_of_kaldi_without_texts_is_told_what_it_lacks(tmp_path):
    (tmp_path / "wav.scp").write_text("a a.wav\n")
    with pytest.raises(DataError, match=r"text: the list is missing: wanted wav\.scp and text, .*; name the folder"):
        make(tmp_path)


# Lists as people write them: what cannot be read as it stands is named, and nothing is changed in silence.


def table(folder, *rows, name="t.csv", head="path,sentence", encoding="utf-8"):
    """A folder with six recordings and a table of these rows: what was made of it."""
    for number in range(6):
        record(folder / f"wav/r{number}.wav", 0.2 + number / 10)
    (folder / name).write_bytes(("\n".join([*([head] if head else []), *rows]) + "\n").encode(encoding))
    made = make(folder, overwrite=True)
    texts = [entry["text"] for entries in made.manifests.values() for entry in entries]
    return texts, [problem.removeprefix(f"{folder}/") for problem in made.problems]


@pytest.mark.parametrize(
    ("rows", "texts", "problem"),
    [
        (["wav/r1.wav,stop, go, stop"], [], "t.csv:3: the line has too many columns: got 4, wanted 2, as in the first"),
        (['wav/r1.wav, "stop, go"'], ["stop, go"], ""),
        (['wav/r1.wav,"stop, ""go"""'], ['stop, "go"'], ""),
        (["wav/r1.wav,stop,,", "", "wav/r2.wav,go"], ["stop", "go"], ""),
        (['wav/r1.wav,"two', 'lines"', "wav/r2.wav,go"], ["two lines", "go"], ""),
        (['wav/r1.wav,"seven', "wav/r2.wav,go"], ["go"], "t.csv:3: a quotation mark is opened and not closed in this"),
        (
            ['wav/r1.wav,"seven', 'wav/r2.wav,go"', "wav/r3.wav,up"],
            ['go"', "up"],
            "t.csv:3: a quotation mark is opened",
        ),
        (['wav/r1.wav,"seven', 'wav/r2.wav,"stop, go"'], ["stop, go"], "t.csv:3: a quotation mark is opened and not"),
        (['wav/r1.wav,5" long', 'wav/r2.wav,5" or "6"'], ['5" long', '5" or "6"'], ""),
        (['wav/r1.wav,"5" long'], [], "t.csv:3: the row cannot be read: got"),
        (['wav/r1.wav,"a" "b"'], [], "t.csv:3: the row cannot be read: got \"',' expected after '\"'\"; a cell in"),
        (["wav/r1.wav"], [], "t.csv:3: the line has too few columns: got 1, wanted 2, as in the first line"),
    ],
)
def test_rows_of_csv_are_read_whole_or_named(tmp_path, rows, texts, problem):
    got, problems = table(tmp_path, "wav/r0.wav,first", *rows)
    assert got == ["first", *texts]
    assert [line[: len(problem)] for line in problems] == [problem] * len(problems)
    assert bool(problems) == bool(problem)


def test_an_open_quotation_mark_before_the_recording_is_named(tmp_path):
    got, (problem,) = table(
        tmp_path, '"seven,wav/r1.wav', 'go",wav/r2.wav', '"two', 'lines",wav/r3.wav', head="sentence,path"
    )
    assert got == ['go"', "two lines"]
    assert problem.startswith('t.csv:2: a quotation mark is opened and not closed in this row: got "seven,wav/r1.wav;')


@pytest.mark.parametrize(
    ("name", "head", "rows", "texts", "problem"),
    [
        ("t.tsv", "path\tsentence", ["wav/r1.wav\tstop\tgo", 'wav/r2.wav\t"up'], ['"up'], "too many"),
        ("t.tsv", "path\tsentence\tup", ["wav/r1.wav\tstop", "go\t1", "wav/r2.wav\tup\t2"], ["up"], "too few"),
        ("t.csv", "", ["wav/r1.wav|yes, 1|yes, one", "wav/r2.wav|yes | no|yes no"], ["yes, one"], "too many"),
        ("t.csv", "", ["wav/r1.wav|a | b|a b", *["wav/r2.wav|no 1|no one"] * 2], ["no one"] * 2, "too many"),
    ],
)  # fmt: skip
def test_rows_by_tabs_and_bars_are_read_whole_or_named(tmp_path, name, head, rows, texts, problem):
    got, problems = table(tmp_path, *rows, name=name, head=head)
    assert got == texts
    assert re.match(rf"{re.escape(name)}:[12]: the line has {problem}", problems[0])


def test_parts_and_channels_of_tables_are_read(tmp_path):
    record(tmp_path / "a.wav", 2.0, channels=2)
    (tmp_path / "t.csv").write_text(
        "path,start,end,channel,text\na.wav,0.5,1.5,1,yes\na.wav,1,,A,no\na.wav,x,,,up\na.wav,,,2,go\na.wav,,,,all\n"
    )
    made = make(tmp_path)
    ((first, second, whole),) = made.manifests.values()
    assert (first["offset"], first["duration"], first["channel"]) == (0.5, 1.0, 1)
    assert (second["offset"], second["duration"], second["channel"]) == (1.0, 1.0, 0)
    assert whole == {"audio_filepath": "a.wav", "duration": 2.0, "text": "all"}
    assert "t.csv:4: the row has no times of a part: got \"could not convert string to float: 'x'\"" in made.problems[0]
    assert "a.wav has no such channel: got channel 2, counted from 0, wanted one of its 2" in made.problems[1]
    assert made.notes == [
        f"1 utterance of recordings with several channels, and none is named: their average is heard ({tmp_path}/a.wav)"
    ]


def test_tables_of_excel_and_in_other_encodings_are_read_or_told_as_such(tmp_path):
    assert table(tmp_path / "sep", "path;sentence", "wav/r1.wav;stop, go", head="sep=;") == (["stop, go"], [])
    got, (problem,) = table(tmp_path / "latin", "wav/r1.wav,caf\u00e9", "wav/r2.wav,go", encoding="latin-1")
    assert got == ["go"]
    assert problem == "t.csv:2: the line is not UTF-8: got the byte 0xe9; save it as UTF-8"
    with pytest.raises(
        DataError, match=r"can be used; a list there is not read: .*t\.csv: the table is UTF-16 \(save it"
    ):
        table(tmp_path / "wide", "wav/r1.wav,go", encoding="utf-16")
    (tmp_path / "sep/other.csv").write_bytes("path,text\n".encode("utf-16"))
    (tmp_path / "sep/third.csv").write_text("id,words\n1,go\n")
    (tmp_path / "sep/t.tsv").write_text("path\ttext\nwav/r2.wav\tgo\n")
    made = make(tmp_path / "sep", overwrite=True)
    assert sorted(path.name for path in made.manifests) == ["t_csv.json", "t_tsv.json"]
    assert made.problems[0] == f"{tmp_path}/sep/other.csv: the table is UTF-16; save it as UTF-8"
    (note,) = made.notes
    assert note.startswith(f"{tmp_path}/sep/third.csv is not read: the first line names no columns of audio and text")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("recordings.jsonl", '{"id": "r", "sources": []}', "recordings or supervisions of lhotse: make cuts of them"),
        ("supervisions.jsonl.gz", '{"recording_id": "r", "text": "go"}', "supervisions of lhotse: make cuts of them"),
        (
            "metadata.jsonl",
            '{"file_name": "r.wav", "transcription": "go"}',
            "objects with file_name, transcription: write",
        ),
        (
            "train.json",
            '{"audio_filepath": "r.wav", "duration": 1, "text": "go"}',
            "a manifest already: name it where a",
        ),
        ("t.csv", "id,words", r"the first line names no columns of audio and text \(id,words\)"),
        ("t.xlsx", "PK", "this kind is not read: save it as CSV"),
        ("text", "r go", "a list of Kaldi without wav.scp beside it"),
    ],
)
def test_a_folder_without_texts_names_its_lists_and_why_they_are_not_read(tmp_path, name, content, reason):
    record(tmp_path / "r.wav")
    (tmp_path / name).write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    with pytest.raises(DataError, match=rf"a list there is not read: .*/{name}: .*{reason}"):
        make(tmp_path)
    if name not in ("t.csv", "text"):  # named itself
        with pytest.raises(DataError, match=rf"{name}: this is no corpus of a known kind: got .*{reason}"):
            make(tmp_path / name)


def test_ids_that_occur_twice_are_named_and_equal_lines_are_one(tmp_path):
    folder = tmp_path / "kaldi"
    for number in range(4):
        record(folder / f"r{number}.wav")
    (folder / "wav.scp").write_text("r0 r0.wav\nr1 r1.wav\nr2 r2.wav\nr3 r3.wav\nr0 r0.wav\nr2 r1.wav\n")
    (folder / "text").write_text("r0 yes\nr1 no\nr2 up\nr3 go\nr3 stop\nr0 yes\n\u3000\n")
    made = make(folder)
    assert [entry["text"] for entries in made.manifests.values() for entry in entries] == ["yes", "no"]
    text, scp = made.problems
    assert text == (
        f"{folder}/text:5: r3 occurs a second time: got stop, wanted what line 4 has: go; "
        "keep the right line; both are left out"
    )
    assert scp.startswith(f"{folder}/wav.scp:6: r2 occurs a second time: got r1.wav, wanted what line 3 has: r2.wav")
    lists = tmp_path / "lists"
    for name in ("a/1", "a/2", "b/2", "wav/3"):
        record(lists / f"{name}.wav")
    record(lists / "ogg/3.ogg")  # the same in another format
    (lists / "transcripts.txt").write_text("1 yes\n1 yes\n2 no\n3 up\n\u00a0\n1b x\n3 up\n")
    made = make(lists)
    assert [entry["text"] for entries in made.manifests.values() for entry in entries] == ["yes", "up"]
    assert made.problems[0].startswith(
        f"{lists}/transcripts.txt:3: two recordings are called 2: got {lists}/a/2.wav and"
    )
    (lists / "transcripts.txt").write_text("1 yes\n3 up\n1 no\n")
    made = make(lists, overwrite=True)
    assert [problem.rpartition("txt:")[2][1:26] for problem in made.problems] == [": 1 occurs with two texts"] * 2


@pytest.mark.parametrize(
    ("lines", "channels"),
    [
        ("r A ann 0 0.4 yes\nr B bob 0 0.4 no", [0, 1]),
        ("r a ann 0 0.4 yes\nr b bob 0 0.4 no", [0, 1]),
        ("r 1 ann 0 0.4 yes\nr 2 bob 0 0.4 no", [0, 1]),
        ("r 0 ann 0 0.4 yes\nr 1 bob 0 0.4 no", [0, 1]),
        ("r ch1 ann 0 0.4 yes\nr ch2 bob 0 0.4 no", [0, 1]),
        ("r left ann 0 0.4 yes\nr R bob 0 0.4 no", [0, 1]),
    ],
)
def test_channels_of_stm_stay_apart_in_all_their_spellings(tmp_path, lines, channels):
    record(tmp_path / "r.wav", channels=2)
    (tmp_path / "r.stm").write_text(lines)
    made = make(tmp_path)
    assert [entry["channel"] for entries in made.manifests.values() for entry in entries] == channels
    assert made.problems == made.notes == []


def test_a_channel_that_nobody_understands_or_that_is_not_there_is_named(tmp_path):
    record(tmp_path / "two.wav", channels=2)
    record(tmp_path / "one.wav")
    (tmp_path / "r.stm").write_text(
        "two main ann 0 0.4 yes\ntwo 3 bob 0 0.4 no\none main ann 0 0.4 up\none 1 ann 0 0.4 go\none B bob 0 0.4 x\n"
        "two 1 ann 0.0.1 0.4 no\n"
    )
    made = make(tmp_path)
    assert [entry["text"] for entries in made.manifests.values() for entry in entries] == ["up", "go"]
    unknown, third, second, broken = made.problems
    assert "two.wav has no such channel: got 'main', wanted one of its 2" in unknown.partition("r.stm:1: ")[2]
    assert "got channel 2, counted from 0, wanted one of its 2" in third.partition("r.stm:2: ")[2]
    assert "one.wav has no such channel: got channel 1, counted from 0" in second.partition("r.stm:5: ")[2]
    assert "r.stm:6: this is no segment: got two 1 ann 0.0.1 0.4 no, wanted RECORDING CHANNEL" in broken


def test_kaldi_lists_name_channels_in_three_places(tmp_path):
    for name in ("a", "b", "c"):
        record(tmp_path / f"{name}.wav", channels=2)
    record(tmp_path / "7.flac")
    (tmp_path / "wav.scp").write_text(
        "a a.wav\nb sph2pipe -f wav -p -c2 b.wav |\nc c.wav\nd sph2pipe -t 0:1 c.wav |\ne flac -d -s 7.flac |\n"
        "f flac -d --skip=5 7.flac |\n"
    )
    (tmp_path / "segments").write_text(
        "a0 a 0 0.4 0\na1 a 0 0.4 1\na2 a 0 0.4 -1\nb0 b 0 0.4 0\nc0 c 0 0.4\nd0 d 0 1\ne0 e 0 0.4\nf0 f 0 1\n"
        "a3 a 0 0.4 1 x\n"
    )
    names = ("a0", "a1", "a2", "a3", "b0", "c0", "d0", "e0", "f0")
    (tmp_path / "reco2file_and_channel").write_text("c c B\ne e A\n")
    (tmp_path / "text").write_text("".join(f"{name} {name}\n" for name in names))
    made = make(tmp_path)
    ((*entries,),) = made.manifests.values()
    assert {entry["text"]: entry.get("channel") for entry in entries} == {
        "a0": 0, "a1": 1, "a2": None, "b0": 1, "c0": 1, "e0": None
    }  # fmt: skip
    assert [problem.partition(": ")[2][:44] for problem in made.problems] == [
        "the recording is a command, which is not run",
        "the recording is a command, which is not run",
        "this is no segment: got a 0 0.4 1 x, wanted ",
    ]


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


@pytest.mark.parametrize(
    ("written", "words", "notation"),
    [
        ("zero two(2) <unk> {NOISE}", "zero two <unk> {NOISE}", ["(2)"]),
        ("{ going to / gonna } go", "going to go", ["{ going to / gonna }"]),
        ("{ @ / uh } { a / { b / c } }", "uh a", ["{ @ / uh }", "{ b / c }", "{ a / b }"]),
        ("oh (zero) (%hesitation) @ five", "oh zero five", ["(zero)", "(%hesitation)", "%hesitation", "@"]),
        ("%10 and 5 % a{b", "%10 and 5 % a{b", []),
    ],
)
def test_words_of_stm_are_read_as_nist_has_them(written, words, notation):
    assert words_of(written) == (words, tuple(notation))


def test_marks_and_notation_of_stm_are_named_and_counted(tmp_path, capsys):
    record(tmp_path / "r.wav", 2.0)
    (tmp_path / "r.stm").write_text("r 1 ann 0 1 <o> one two(2) <unk> {NOISE}\nr 1 ann 1 2 <o> <unk> (zero) five\n")
    assert main(["make", str(tmp_path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-2] == (
        'marks in the texts that are no words: "<unk>" x2 "{NOISE}" x1; training leaves them out and counts them, '
        "unless they are labels"
    )
    assert out[-1].startswith('notation of NIST in the texts: "(2)" x1 "(zero)" x1; of alternatives the first is taken')
    assert [line["text"] for line in written(tmp_path / "manifest.json")] == [
        "one two <unk> {NOISE}",
        "<unk> zero five",
    ]


def test_a_recording_with_two_texts_is_told(tmp_path):
    record(tmp_path / "a.wav", 1.0)
    (tmp_path / "t.csv").write_text("path,start,end,text\na.wav,,,one\na.wav,,,two\na.wav,,,one\na.wav,0.5,,three\n")
    (note,) = make(tmp_path).notes
    assert note == (
        f"1 utterance with the recording of another one and another text ({tmp_path}/t.csv:3): nemo-lite data check "
        "lists them"
    )


def test_what_an_evaluation_wrote_among_the_recordings_is_no_corpus(tmp_path):
    record(tmp_path / "r.wav")
    (tmp_path / "r.txt").write_text("yes")
    (tmp_path / "results/m/sclite").mkdir(parents=True)
    (tmp_path / "results/m/sclite/manifest.ref.stm").write_text("r 1 ann 0 1 yes\n")
    assert make(tmp_path).kind == "folder"


def test_segments_of_stm_that_are_not_scored_are_no_text_in_any_case(tmp_path):
    record(tmp_path / "r.wav", 2.0)
    (tmp_path / "r.stm").write_text("r 1 x 0 1 IGNORE_TIME_SEGMENT_IN_SCORING\nr 1 ann 1 2 yes\n")
    assert [entry["text"] for entries in make(tmp_path).manifests.values() for entry in entries] == ["yes"]


def spoken(path, before, behind, channels=1):
    """A second of a tone that sways, as speech does, between two silences."""
    times = np.arange(16000) / 16000
    tone = 0.3 * np.sin(2 * np.pi * 200 * times) * (1 + np.sin(2 * np.pi * 5 * times)) / 2
    samples = np.concatenate([np.zeros(round(16000 * before)), tone, np.zeros(round(16000 * behind))])
    noise = np.random.default_rng(0).normal(0, 1e-4, len(samples))
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.stack([samples + noise] * channels, 1), 16000)
    path.with_suffix(".txt").write_text("a b c")
    return path


def test_trim_leaves_silence_at_the_ends_out_by_offset_and_duration_and_audio_as_it_is(tmp_path, capsys):
    late = spoken(tmp_path / "late.wav", 2.0, 1.5)
    spoken(tmp_path / "tight.wav", 0.0, 0.0)
    before = late.read_bytes()
    assert main(["make", str(tmp_path), "--trim"]) == 0
    by_name = {line["audio_filepath"]: line for line in written(tmp_path / "manifest.json")}
    line = by_name["late.wav"]
    assert 1.7 < line["offset"] < 2.0, "0.15 s are kept before the speech"
    assert 3.0 < line["offset"] + line["duration"] < 3.3
    assert by_name["tight.wav"]["duration"] == pytest.approx(1.0, abs=0.05)
    assert late.read_bytes() == before
    assert re.search(
        r"3\.\d s of silence before and behind the speech of [12] utterances? are left out", capsys.readouterr().out
    )
    assert len(Manifest.open(tmp_path / "manifest.json", strict=True)) == 2, "training reads it"


def test_trim_stays_within_the_part_that_a_list_names_and_its_channel(tmp_path):
    spoken(tmp_path / "long.wav", 2.0, 6.0, channels=2)
    (tmp_path / "long.txt").unlink()
    (tmp_path / "list.csv").write_text("audio,text,start,end,channel\nlong.wav,a b c,1.0,6.0,1\n")
    make(tmp_path / "list.csv", trim=True)
    (line,) = written(tmp_path / "list.json")
    assert 1.7 < line["offset"] < 2.0
    assert line["offset"] + line["duration"] < 3.3
    assert line["channel"] == 1


def test_trim_tells_recordings_in_which_nobody_speaks_and_the_others_go_on(tmp_path, capsys):
    spoken(tmp_path / "good.wav", 1.0, 1.0)
    soundfile.write(tmp_path / "mute.wav", np.zeros(16000), 16000)
    (tmp_path / "mute.txt").write_text("a")
    assert main(["make", str(tmp_path), "--trim"]) == 1
    assert f"nobody speaks in {tmp_path}/mute.wav, by its level" in capsys.readouterr().err
    assert [line["audio_filepath"] for line in written(tmp_path / "manifest.json")] == ["good.wav"]
