"""Corpora as people have them become manifests: which kind, where they go, what is divided, trimmed and told."""

import gzip
import hashlib
import json
import math
import random
import re

import numpy as np
import pytest
import soundfile
from toys.corpora import common_voice_in, record, written

from nemo_asr.commands.cli.data import main
from nemo_asr.corpora.conversion import KINDS, divided, make
from nemo_asr.run.manifest import Manifest
from nemo_lite.base.errors import DataError, FileInTheWayError, UnknownNameError, UsageError


@pytest.fixture
def common_voice(tmp_path):
    return common_voice_in(tmp_path / "cs")


def test_a_corpus_of_which_nothing_can_be_used_is_one_error_and_leaves_nothing(common_voice):
    for clip in (common_voice / "clips").iterdir():
        clip.unlink()
    with pytest.raises(DataError, match=r"no utterance of .*cs can be used:\n.*train\.tsv:2: the audio file"):
        make(common_voice, common_voice / "none")
    assert not (common_voice / "none").exists()


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
    told = r"this is no corpus of a known kind: got neither audio nor lists, wanted one of common_voice, .*--help says"
    with pytest.raises(DataError, match=told) as refused:
        make(tmp_path)
    assert len(str(refused.value)) - len(str(tmp_path)) < 250  # it was 700
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


def test_what_an_evaluation_wrote_among_the_recordings_is_no_corpus(tmp_path):
    record(tmp_path / "r.wav")
    (tmp_path / "r.txt").write_text("yes")
    (tmp_path / "results/m/sclite").mkdir(parents=True)
    (tmp_path / "results/m/sclite/manifest.ref.stm").write_text("r 1 ann 0 1 yes\n")
    assert make(tmp_path).kind == "folder"


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
