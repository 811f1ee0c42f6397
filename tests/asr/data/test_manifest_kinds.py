"""A new kind of manifest is one file with one registration: all that read manifests read it."""

import json

import numpy as np
import pytest
import soundfile
from toys import tab_manifest
from toys.manifests import LABELS, layer_of

from nemo_asr import AudioToSpeechLabelDataLayer, TarredAudioToTextDataLayer, warn_of_leaks
from nemo_asr.audio.augmentation import read_recordings
from nemo_asr.cli.data import main as data_command
from nemo_asr.data.manifest import Manifest, kind_of
from nemo_asr.parts.collections import ASRAudioText, ASRSpeechLabel
from nemo_asr.parts.parsers import CharParser
from nemo_asr.tasks.recipe import load_class_recipe
from nemo_asr.transcribe.inputs import recordings_of
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.errors import DataChangedError, DataError

TEXTS = ["a b", "ab", "c"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
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
def test_training_and_evaluation_read_it_also_in_workers(num_workers):
    layer = layer_of("set.tsv", augmentor={"noise": {"prob": 1.0, "manifest_path": "set.tsv"}}, num_workers=num_workers)
    for training in (False, True):
        batches = list(layer.loader(training=training, shard=Shard()).epoch(0))
        assert sorted(item for batch in batches for item in batch.ids) == [0, 1, 2]
    assert layer.place_of(2) == "set.tsv:3"
    assert any("set.tsv" in name for name in layer.fingerprint())


def test_transcribing_noises_classes_and_lists_of_nemo_read_it():
    recordings = recordings_of(["set.tsv"])
    assert [(each.source, each.duration) for each in recordings] == [(f"{n}.wav", 0.5) for n in range(3)]
    assert [recording.path for recording in read_recordings("set.tsv")] == ["0.wav", "1.wav", "2.wav"]
    assert AudioToSpeechLabelDataLayer(manifest_filepath="set.tsv", batch_size=1).labels == ["no", "yes"]
    assert list(load_class_recipe("speakers", "set.tsv").labels) == ["no", "yes"]
    assert [row.text_raw for row in ASRAudioText("set.tsv", parser=CharParser(LABELS))] == TEXTS
    assert ASRSpeechLabel("set.tsv").uniq_labels == ["no", "yes"]


def test_the_commands_for_data_read_it(folder, capsys):
    (folder / "dev.json").write_text(json.dumps({"audio_filepath": "2.wav", "duration": 0.5, "text": "c"}) + "\n")
    assert data_command(["check", "set.tsv", "dev.json"]) == 1
    assert "1 of 1 utterances of dev.json are recordings of the training set set.tsv" in capsys.readouterr().out
    assert warn_of_leaks(layer_of("set.tsv"), {"dev": layer_of("dev.json")}) == 1
    assert data_command(["stats", "set.tsv"]) == 0
    assert data_command(["lm", "set.tsv", "--out", "lm.arpa", "--order", "1"]) == 0
    assert "3 texts, 4 words" in capsys.readouterr().out
    assert data_command(["tar", "set.tsv"]) == 0
    layer = TarredAudioToTextDataLayer("tarred/audio_0.tar", "set.tsv", LABELS, 1)
    assert [layer.utterance_of(item).text for item in range(3)] == TEXTS


def test_bad_lines_and_changes_are_told_as_of_other_kinds(folder):
    manifest = Manifest.open("set.tsv")
    (folder / "set.tsv").write_text("0.5\t0.wav\ta\tno\n-1\t1.wav\ta\tno\nx\n")
    with pytest.raises(DataChangedError, match=r"set\.tsv: the manifest changed while it was in use"):
        manifest.utterance(0)
    with pytest.raises(DataError, match=r"^set\.tsv:2: duration -1 s; write .*\nset\.tsv:3: a line has seconds"):
        Manifest.open("set.tsv")
