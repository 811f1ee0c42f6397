"""AISHELL-1 manifests and the configuration of its characters, from a small set of the same layout."""

import json
import os
import tarfile

import numpy as np
import pytest
import soundfile
from toys.hostile_audio import encoded, speech_like

from nemo_asr.corpora import aishell
from nemo_asr.run.audio import files
from nemo_asr.run.text.labels import main_metric
from nemo_asr.tasks.recipe import load_recipe
from nemo_lite.base.errors import ConfigError, DataError, FileInTheWayError, UsageError
from nemo_lite.base.outputs import RECORD

TEXTS = {
    "BAC009S0002W0122": "而 对 楼市 成交 抑制 作用 最 大 的 限 购",
    "BAC009S0002W0123": "也 成为 地方 政府 的 眼中 钉",
    "BAC009S0724W0121": "广州市 房地产",
    "BAC009S0764W0121": "甚至 出现 交易",
}
PLACES = {"S0002": "train", "S0724": "dev", "S0764": "test"}
TRANSCRIPT = "transcript/aishell_transcript_v0.8.txt"
SMALL = """sample_rate: 16000
AudioToMelSpectrogramPreprocessor: {features: 32, n_fft: 512}
JasperEncoder:
  activation: relu
  conv_mask: true
  jasper: [{filters: 8, repeat: 1, kernel: [11], stride: [2], dilation: [1], dropout: 0.0, residual: false}]
labels: [a]
"""


@pytest.fixture
def corpus(tmp_path):
    """The corpus with all its audio in folders; one recording has no transcript."""
    root = tmp_path / "library" / "data_aishell"
    (root / "transcript").mkdir(parents=True)
    (root / TRANSCRIPT).write_text("".join(f"{utterance} {text}\n" for utterance, text in TEXTS.items()))
    for utterance in (*TEXTS, "BAC009S0002W0999"):
        speaker = utterance[6:11]
        folder = root / "wav" / PLACES[speaker] / speaker
        folder.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / f"{utterance}.wav", np.zeros(4000), 16000)
    (tmp_path / "small.yaml").write_text(SMALL)
    return root


def pack_speakers(corpus, with_split=True):
    """An archive for each speaker in place of the folder: beside the sets' folders, or within them."""
    for speaker, split in PLACES.items():
        folder = corpus / "wav" / split
        with tarfile.open((corpus / "wav" if with_split else folder) / f"{speaker}.tar.gz", "w:gz") as tar:
            tar.add(folder / speaker, f"{split}/{speaker}" if with_split else speaker)
        for recording in (folder / speaker).iterdir():
            recording.unlink()
        (folder / speaker).rmdir()


def pack(corpus, path):
    with tarfile.open(path, "w:gz") as tar:
        tar.add(corpus, "data_aishell")
    return path


def manifest(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def make(corpus, source=None):
    out = corpus.parents[1] / "out"
    return out, aishell.make(source or corpus, out, str(corpus.parents[1] / "small.yaml"))


def check(out, audio):
    sets = {split: manifest(out / f"{split}.json") for split in aishell.SPLITS}
    assert [len(entries) for entries in sets.values()] == [2, 1, 1]
    assert sets["train"][0] == {
        "audio_filepath": f"{audio}/train/S0002/BAC009S0002W0122.wav",
        "duration": 0.25,
        "text": "而对楼市成交抑制作用最大的限购",
        "speaker": "S0002",
    }
    assert all((out / entry["audio_filepath"]).exists() for entries in sets.values() for entry in entries)


def test_audio_in_folders_stays_where_it_is(corpus):
    out, made = make(corpus)
    check(out, corpus / "wav")
    assert names_in(out) == [RECORD, "dev.json", "small.yaml", "test.json", "train.json"]
    assert made.without_text == 1


@pytest.mark.parametrize("with_split", [True, False])
@pytest.mark.parametrize("as_one_archive", [True, False])
def test_packed_audio_is_unpacked_beside_the_manifests(corpus, with_split, as_one_archive):
    pack_speakers(corpus, with_split)
    before = sorted(corpus.rglob("*"))
    out, _ = make(corpus, pack(corpus, corpus.parents[1] / "data_aishell.tgz") if as_one_archive else corpus.parent)
    check(out, "aishell_wav")
    assert names_in(out) == [RECORD, "aishell_wav", "dev.json", "small.yaml", "test.json", "train.json"]
    assert sorted(corpus.rglob("*")) == before


def test_files_of_others_are_never_replaced_and_own_ones_are(corpus):
    archive = pack(corpus, corpus.parents[1] / "data_aishell.tgz")
    out, _ = make(corpus, archive)
    make(corpus, archive)
    (out / "small.yaml").write_text("labels: [mine]")
    with pytest.raises(FileInTheWayError, match=r"small\.yaml: the file was changed since .* choose another folder"):
        make(corpus, archive)
    (out / "small.yaml").unlink()
    (out / "aishell_wav" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"aishell_wav: the folder holds files .* got notes\.txt; nothing has been"):
        make(corpus, archive)
    assert (out / "aishell_wav" / "notes.txt").read_text() == "mine"


def test_an_archive_of_unpacked_audio_is_taken_too(corpus):
    out, _ = make(corpus, pack(corpus, corpus.parents[1] / "data_aishell.tgz"))
    check(out, "aishell_wav")


@pytest.mark.long
def test_the_configuration_has_the_characters_of_the_training_texts_and_no_others(corpus):
    out, made = make(corpus)
    expected = sorted(set("而对楼市成交抑制作用最大的限购也成为地方政府的眼中钉"))
    recipe = load_recipe(out / "small.yaml")
    assert recipe.labels == made.labels == expected
    assert main_metric(recipe.labels) == "cer"
    assert "with the 24 characters of the training texts of AISHELL-1" in (out / "small.yaml").read_text()


@pytest.mark.slow
def test_the_configuration_of_the_package_is_the_default(corpus):
    made = aishell.make(corpus, corpus.parents[1] / "out")
    assert made.config.name == "quartznet15x5_zh.yaml"
    assert load_recipe(made.config).labels == made.labels


@pytest.mark.long
@pytest.mark.parametrize("name", ["conformer_aishell", "u2pp_aishell"])
def test_a_recipe_of_wenet_gets_the_characters_of_the_corpus(corpus, name):
    made = aishell.make(corpus, corpus.parents[1] / "out", name)
    assert made.config.name == f"{name}.yaml"
    assert load_recipe(made.config).labels == made.labels


def test_a_configuration_that_is_not_there_is_named_before_anything_is_written(corpus, tmp_path):
    with pytest.raises(ConfigError, match=r"quartznet_zh: is neither a file nor the name of a configuration"):
        aishell.make(corpus, tmp_path / "out", "quartznet_zh")
    assert not (tmp_path / "out").exists()


def test_a_missing_recording_is_named_by_the_line_that_lists_it(corpus):
    (corpus / "wav/dev/S0724/BAC009S0724W0121.wav").unlink()
    with pytest.raises(DataError, match=r"v0\.8\.txt:3: the recording is missing: wanted BAC009S0724W0121\.wav"):
        make(corpus)
    assert names_in(corpus.parents[1] / "out") == []


def test_an_adpcm_header_that_contradicts_itself_never_reaches_the_decoder(corpus, monkeypatch):
    path = corpus / "wav/dev/S0724/BAC009S0724W0121.wav"
    content = bytearray(encoded(speech_like(3000), "WAV", "IMA_ADPCM"))
    content[content.index(b"fmt ") + 26] ^= 1  # of the samples in a block
    path.write_bytes(content)
    opened, sound_file = [], files._SoundFile
    monkeypatch.setattr(files, "_SoundFile", lambda file, **named: opened.append(file) or sound_file(file, **named))
    told = (
        r"v0\.8\.txt:3: the recording cannot be read: got .*W0121\.wav is damaged: its ADPCM header contradicts itself"
    )
    with pytest.raises(DataError, match=told):
        make(corpus)
    assert len(opened) == 2  # those before it


def test_a_pipe_in_the_place_of_a_recording_is_refused_without_waiting(corpus):
    path = corpus / "wav/dev/S0724/BAC009S0724W0121.wav"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"v0\.8\.txt:3: .*W0121\.wav is a pipe or a device"):
        make(corpus)


def test_a_damaged_recording_is_named(corpus):
    (corpus / "wav/dev/S0724/BAC009S0724W0121.wav").write_bytes(b"RIFF damaged")
    with pytest.raises(DataError, match=r"v0\.8\.txt:3: the recording cannot be read: got .*S0724W0121\.wav"):
        make(corpus)


def test_a_line_that_is_no_transcript_is_named(corpus):
    (corpus / TRANSCRIPT).write_text("BAC009S0002W0122\n")
    with pytest.raises(DataError, match=r"v0\.8\.txt:1: this is not a transcript: got 'BAC009S0002W0122'"):
        make(corpus)


def test_a_corpus_without_a_set_is_refused(corpus):
    lines = (corpus / TRANSCRIPT).read_text().splitlines(keepends=True)
    (corpus / TRANSCRIPT).write_text("".join(lines[:3]))
    with pytest.raises(DataError, match=r"the corpus has no utterance of test: wanted wav/test"):
        make(corpus)


def test_a_folder_of_something_else_is_refused(corpus, tmp_path):
    with pytest.raises(DataError, match=r"this is not the AISHELL-1 corpus: wanted data_aishell/transcript/aishell"):
        make(corpus, tmp_path)


def test_the_command_line_says_what_was_made_and_reports_errors_in_one_line(corpus, capsys):
    out = corpus.parents[1] / "out"
    aishell.main([str(corpus), str(out), "--model_config", str(corpus.parents[1] / "small.yaml")])
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"{out}/train.json: 2 utterances, 0.0 h, 26 characters (24 different), 1 speakers"
    assert (
        told[1]
        == f"{out}/dev.json: 1 utterances, 0.0 h, 6 characters (6 different, 4 of them not in train), 1 speakers"
    )
    assert told[3:] == [
        "1 recordings have no transcript and are left out",
        f"{out}/small.yaml: a model with 24 labels",
    ]
    with pytest.raises(SystemExit) as ended:
        aishell.main(["--nonsense"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(SystemExit) as ended:
        aishell.main([str(out), str(out)])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(
        f"python -m nemo_asr.corpora.aishell: error: {out}: this is not the AISHELL-1 corpus"
    )
