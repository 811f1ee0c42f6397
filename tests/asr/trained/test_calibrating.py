"""Calibrating a model: which words are right, what is stored, and that transcripts then have other confidences."""

import errno
import json

import numpy as np
import pytest
import torch
from toys.tone_corpus import CONFIG, read_manifest, record, run_script
from toys.tone_model import train_tones

import nemo_asr
from nemo_asr.commands.cli.models import main
from nemo_asr.run.transcribe.transcript import Transcribed, Transcript, Word
from nemo_asr.trained.calibrating import calibrate, hear_set, heard_words, store_heard
from nemo_asr.trained.folder import card_file, read_card
from nemo_asr.trained.model import TrainedModel, describe, load_model
from nemo_asr.trained.texts import text_layer
from nemo_lite import NeuralModuleFactory
from nemo_lite.base.errors import DataError, UsageError


@pytest.fixture(name="model")
def _model(tmp_path):
    (tmp_path / "tones.yaml").write_text(CONFIG)
    recipe = nemo_asr.load_recipe(tmp_path / "tones.yaml")
    return TrainedModel("here", recipe, recipe.model(), describe(recipe))


@pytest.fixture(name="dev")
def _dev(tmp_path, monkeypatch):
    """A manifest of ``a b``; the model hears ``a`` surely, and less surely ``b`` or, every second time, ``c``."""
    lines = [{"audio_filepath": f"{n}.wav", "duration": 1.0, "text": "A b!"} for n in range(40)]
    (tmp_path / "dev.json").write_text("\n".join(map(json.dumps, lines)))

    def transcribed(engine, recordings, settings):
        assert settings.calibration is None
        words = [(Word("a", 0.0, 0.1, 0.8), Word("bc"[n % 2], 0.2, 0.3, 0.6)) for n in range(len(recordings))]
        found = [Transcript(" ".join(w.text for w in each), each, 1.0, "a.wav") for each in words]
        return Transcribed(found, {}, 1.0)

    monkeypatch.setattr("nemo_asr.trained.model.transcribe", transcribed)
    return str(tmp_path / "dev.json")


def test_heard_words_are_right_where_the_text_as_the_model_spells_it_has_them(model, dev):
    heard = heard_words(model, text_layer(model.recipe, dev))
    assert heard.right.tolist() == [True, True, True, False] * 20
    assert heard.confidences.tolist() == [0.8, 0.6] * 40
    assert heard.utterances.tolist() == [n for n in range(40) for _ in range(2)]


def test_of_a_large_set_utterances_evenly_spread_are_heard(model, dev, monkeypatch):
    monkeypatch.setattr("nemo_asr.trained.calibrating.MOST_CALIBRATED", 4)
    layer, rows = text_layer(model.recipe, dev), []
    utterance_of = layer.utterance_of
    monkeypatch.setattr(layer, "utterance_of", lambda row: rows.append(row) or utterance_of(row))
    heard = heard_words(model, layer)
    assert rows == [0, 13, 26, 39]
    assert heard.utterances.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(heard.transcripts) == 4


def test_calibrated_confidences_are_the_shares_of_right_words(model, dev, tmp_path):
    (tmp_path / "test.json").write_text((tmp_path / "dev.json").read_text())
    done, _ = calibrate(model, dev, [str(tmp_path / "test.json")])
    calibration, sets = done.calibration, done.sets
    assert calibration(0.8) == pytest.approx(1.0, abs=0.03)
    assert calibration(0.6) == pytest.approx(0.5, abs=0.03)
    assert [each.name for each in sets] == ["dev (held out)", "test"]
    assert all(each.before.error == pytest.approx(0.15) and each.after.error < 0.03 for each in sets)


def test_what_was_heard_is_stored_in_the_card_as_what_the_model_knows(model, dev, tmp_path):
    layer = text_layer(model.recipe, dev)
    confidence, domain = hear_set(model, "dev", layer, NeuralModuleFactory())
    assert confidence == pytest.approx(0.7)
    assert (domain.set, domain.utterances, domain.sample_rate) == ("dev", 40, 16000)
    assert domain.ranges["confidence"] == pytest.approx((0.7, 1.0))
    assert domain.words == {"a": 40, "b": 20, "c": 20}
    model.save(tmp_path / "model")
    store_heard(tmp_path / "model/model.json", "dev", confidence, domain)
    assert read_card(tmp_path / "model/model.json").domain == domain
    assert load_model(tmp_path / "model").card.domain == domain


def test_a_model_that_says_nothing_is_told_in_one_line_of_a_set(model, tmp_path, capfd):
    for name in ("one", "two"):
        record(tmp_path / f"{name}.wav", "abcabc")
    lines = [{"audio_filepath": f"{name}.wav", "duration": 1.0, "text": "a"} for name in ("one", "two")]
    (tmp_path / "dev.json").write_text("\n".join(map(json.dumps, lines)))
    with torch.no_grad():
        (bias,) = (each for each in model.modules.decoder.parameters() if each.shape == (len(model.card.labels) + 1,))
        bias[-1] = 100.0
    layer = model.recipe.data_layer(str(tmp_path / "dev.json"), training=False, batch_size=2)
    assert hear_set(model, "dev", layer, NeuralModuleFactory()) == (None, None)
    told = [line for line in capfd.readouterr().err.splitlines() if "no word was found" in line]
    assert told == [
        f"warning: In 2 of 2 recordings somebody speaks where no word was found, such as {tmp_path / 'dev.json'}:1"
    ]


@pytest.mark.slow
def test_the_command_stores_the_calibration_and_transcripts_have_it(model, dev, tmp_path, capsys, monkeypatch):
    model.save(tmp_path / "model")
    main(["calibrate", str(tmp_path / "model"), dev])
    told = capsys.readouterr().out
    assert "dev (held out): 80 words, 75.0% right; confidences are off by 15.0%, calibrated by" in told
    assert json.loads((tmp_path / "model/calibration.json").read_text())["calibration"]["words"] == 80
    main(["show", str(tmp_path / "model")])
    told = capsys.readouterr().out
    assert "calibration  confidences of words, learned on 80 words of dev" in told
    assert "domain       40 utterances of dev: " in told
    loaded = load_model(tmp_path / "model")
    done, domain = calibrate(model, dev)
    assert (loaded.card.calibration, loaded.card.domain) == (done.calibration, domain)
    assert domain == hear_set(model, "dev", text_layer(model.recipe, dev), NeuralModuleFactory())[1]
    record(tmp_path / "cab.wav", "cab")
    given = []

    def noted(engine, recordings, settings):
        given.append(settings.calibration)
        return Transcribed([], {}, 0.0)

    monkeypatch.setattr("nemo_asr.trained.model.transcribe", noted)
    loaded.transcribe([str(tmp_path / "cab.wav")])
    loaded.transcribe([str(tmp_path / "cab.wav")], calibration=None)
    assert given == [loaded.card.calibration, None]


def test_all_sets_and_the_folder_are_looked_at_before_anything_is_heard(model, dev, tmp_path, monkeypatch):
    monkeypatch.setattr("nemo_asr.trained.calibrating.heard_words", lambda *_: pytest.fail("heard"))
    model.save(tmp_path / "model")
    with pytest.raises(DataError, match=r"none\.json: the manifest does not exist"):
        main(["calibrate", str(tmp_path / "model"), dev, "--test", "none.json"])

    def refuse(self, *args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.rmdir", refuse)
    with pytest.raises(UsageError, match=r'model: the folder is not writable: got "Permission denied"'):
        main(["calibrate", str(tmp_path / "model"), dev])


def test_too_few_words_and_checkpoints_are_refused(model, dev, tmp_path):
    lines = (tmp_path / "dev.json").read_text().splitlines()[:3]
    (tmp_path / "few.json").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"few\.json: the model heard too few words .*: got 6 words, wanted 50 or more"):
        calibrate(model, str(tmp_path / "few.json"))
    (tmp_path / "a.nemo").write_bytes(b"")
    with pytest.raises(
        UsageError, match=r"only a model folder has a card to write to.*nemo-lite models import, or convert"
    ):
        card_file(tmp_path / "a.nemo")


@pytest.mark.slow
def test_training_notes_how_sure_the_model_is_of_its_own_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe, modules = train_tones(tmp_path)
    TrainedModel("here", recipe, modules, describe(recipe)).save(tmp_path / "before")
    finished = run_script(
        *("jasper.py", "--init_from", "before", "--train_dataset", "train.json", "--eval_datasets", "dev.json"),
        *("other.json", "--num_epochs", 1, "--lr", 0, "--batch_size", 4, "--exp_name", "run", "--no-report"),
    )
    assert finished.code == 0, finished.err
    first, second = read_card(tmp_path / "run/model/model.json").rates
    heard = load_model("run").transcribe(
        [line["audio_filepath"] for line in read_manifest(tmp_path / "dev.json")], calibration=None
    )
    expected = np.mean([word.confidence for transcript in heard for word in transcript.words])
    assert first.confidence == pytest.approx(expected, abs=2e-3)
    assert second.confidence is None
    assert read_card(tmp_path / "run/model/model.json").usual_confidence() == (first.set, first.confidence)
