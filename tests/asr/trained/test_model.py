"""load_model and TrainedModel: a model is the same after a trip through its folder, and does not fit another's file."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from toys.nemo_archives import LABELS, weights_of, write_0, write_1
from toys.subwords import small_subwords
from toys.tone_corpus import CONFIG, record, run_script, write_manifest

import nemo_asr
import nemo_lite as nemo
from nemo_asr import augmentation as augmentor
from nemo_asr import augmentation as perturbation
from nemo_asr.commands.cli import models
from nemo_asr.export import onnx_export
from nemo_asr.export.onnx_export import exported_files, metadata_of
from nemo_asr.run.cli.transcribe import main as transcribe_command
from nemo_asr.run.search.text_search import TextSearch
from nemo_asr.trained.calibrating import heard_words
from nemo_asr.trained.folder import about_checkpoint, read_model
from nemo_asr.trained.model import TrainedModel, describe, trained_modules
from nemo_asr.trained.texts import text_layer
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.base.errors import CheckpointError, ConfigError, DataError, UsageError

STORED = Path(__file__).parent / "stored_model_1"


@pytest.fixture(name="recipe_of")
def _recipe_of(tmp_path):
    """A function that gives the recipe of the tones' configuration with something replaced in its text."""

    def made(*changes):
        text = CONFIG
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "tones.yaml").write_text(text)
        return nemo_asr.load_recipe(tmp_path / "tones.yaml")

    return made


@pytest.fixture(name="model")
def _model(recipe_of):
    recipe = recipe_of()
    return TrainedModel("here", recipe, recipe.model(), describe(recipe))


def state_of(model):
    modules = trained_modules(model)
    return {f"{name}.{key}": value for name in modules for key, value in modules[name].state_dict().items()}


def assert_equal(mine, theirs):
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_model_transcribes_arrays_and_files_and_names_all_that_are_bad(model, tmp_path):
    record(tmp_path / "a.wav", "cab")
    noise = np.random.default_rng(0).normal(0, 0.1, 16000)
    first, second = model.transcribe([tmp_path / "a.wav", noise], sample_rate=16000, batch_size=1)
    assert (first.source, first.duration) == (str(tmp_path / "a.wav"), 0.51)
    assert (second.source, second.duration) == ("audio[1]", 1.0)
    assert "".join(word.text for word in second.words) == second.text.replace(" ", "")
    with pytest.raises(
        DataError, match=r"^2 of the recordings cannot be read: the audio file none\.wav .*; the audio file no\.wav"
    ):
        model.transcribe(["none.wav", tmp_path / "a.wav", "no.wav"])


def test_settings_without_an_effect_are_refused_at_each_door(model):
    noise = np.random.default_rng(0).normal(0, 0.1, 16000)
    with pytest.raises(UsageError, match=r"align: settings without an effect: got nbest, wanted batch_size, "):
        model.align([noise], ["a"], sample_rate=16000, nbest=3)
    with pytest.raises(UsageError, match=r"stream: settings without an effect: got num_workers, wanted batch_s"):
        model.stream(by="segments", num_workers=2)
    with pytest.raises(UsageError, match=r"batch_transcriber: settings without an effect: got cutting, wanted "):
        model.batch_transcriber(cutting=None)


def test_a_search_that_is_no_module_is_refused_with_its_class(model):
    with pytest.raises(UsageError, match=r"no search of a model in torch: got TextSearch, wanted a module, such as"):
        model.transcribe([np.zeros(16000)], sample_rate=16000, decoder=TextSearch(model.card.labels))


_TRIMS = ("AudioToTextDataLayer:\n", "AudioToTextDataLayer:\n  trim_silence: true\n")


@pytest.mark.parametrize(
    ("change", "trims", "clips"),
    [
        (("", ""), False, False),
        (_TRIMS, True, False),
        (("eval: {shuffle: false}", "eval: {shuffle: false, trim_silence: true, int_values: true}"), True, True),
        (("train: {shuffle: true}", "train: {shuffle: true, trim_silence: true}"), False, False),
    ],
)
def test_a_recipe_says_how_evaluation_reads_recordings(recipe_of, change, trims, clips):
    reading = recipe_of(change).reading
    assert (reading.sample_rate, reading.trim_silence, reading.int_values) == (16000, trims, clips)


@pytest.mark.slow
def test_a_model_is_given_the_same_samples_at_every_door(recipe_of, tmp_path, monkeypatch):
    """Evaluation, transcription by code and by the command, calibration, export and the example's DAG."""
    recipe = recipe_of(_TRIMS)
    model = TrainedModel("here", recipe, recipe.model(), describe(recipe))
    record(tmp_path / "short.wav", "cab")
    samples, rate = soundfile.read(tmp_path / "short.wav", dtype="float32")
    soundfile.write(tmp_path / "a.wav", np.pad(samples, rate), rate)
    write_manifest(
        tmp_path / "a.json", [{"audio_filepath": "a.wav", "duration": len(samples) / rate + 2, "text": "cab"}]
    )
    model.save(tmp_path / "model")
    seen = []
    preprocessor = nemo_asr.AudioToMelSpectrogramPreprocessor
    forward = preprocessor.forward

    def noted(self, input_signal, length):
        seen.append(length.tolist())
        return forward(self, input_signal, length)

    monkeypatch.setattr(preprocessor, "forward", noted)
    layer = recipe.data_layer(str(tmp_path / "a.json"), training=False, batch_size=1)
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, set_default=False)
    factory.infer([nemo_asr.connect(model.modules, layer).predictions])
    model.transcribe([np.pad(samples, rate)], rate)
    assert transcribe_command([str(tmp_path / "model"), str(tmp_path / "a.json"), "--placement", "CPU"]) == 0
    heard_words(model, text_layer(model.recipe, str(tmp_path / "a.json")))
    runs = run_script("jasper_infer.py", "--load_dir", tmp_path / "model", tmp_path / "a.wav", "--placement", "CPU")
    assert runs.code == 0
    exported = []
    monkeypatch.setattr(models, "export_onnx", lambda model, path, recordings: exported.extend(map(len, recordings)))
    with pytest.raises(FileNotFoundError):  # nothing was written
        models.export([str(tmp_path / "model"), str(tmp_path / "m.onnx"), "--audio", str(tmp_path / "a.wav")])
    (length,), *_ = seen
    assert len(samples) <= length < len(samples) + 3000
    assert seen == [[length]] * 5
    assert exported == [length]


def test_the_metadata_of_an_exported_model_say_how_recordings_are_read(recipe_of):
    for change, said in ((("", ""), None), (_TRIMS, "true")):
        recipe = recipe_of(change)
        model = TrainedModel("here", recipe, recipe.model(), describe(recipe))
        wires, files = exported_files(model)
        metadata = metadata_of(model, wires, files["model"])
        assert (metadata.get("trim_silence"), metadata.get("int_values")) == (said, None)


@pytest.mark.long
def test_the_metadata_name_a_search_that_is_not_in_the_exported_file(recipe_of):
    for change, search in ((("", ""), None), (("labels:", "BeamSearchCTCDecoder: {beam_size: 4}\nlabels:"), "Beam")):
        recipe = recipe_of(change)
        model = TrainedModel("here", recipe, recipe.model(), describe(recipe))
        wires, files = exported_files(model)
        found = metadata_of(model, wires, files["model"]).get("search")
        assert found == (search and "BeamSearchCTCDecoder")


@pytest.mark.slow
def test_an_export_says_which_search_is_not_in_the_file(recipe_of, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(onnx_export, "export_wires", lambda outputs, inputs, path, check, metadata: check(None, None))
    monkeypatch.setattr(onnx_export, "compare", lambda *_: "equal")
    for change, is_told in ((("", ""), False), (("labels:", "BeamSearchCTCDecoder: {beam_size: 4}\nlabels:"), True)):
        recipe = recipe_of(change)
        onnx_export.export_onnx(TrainedModel("here", recipe, recipe.model(), describe(recipe)), tmp_path / "m.onnx")
        told = capfd.readouterr().err
        assert ("m.onnx ends at log_probs: BeamSearchCTCDecoder of the configuration" in told) == is_told


@pytest.mark.slow
def test_a_model_is_the_same_after_a_trip_through_its_folder(model, tmp_path):
    model.save(tmp_path / "model", licence="CC-BY-4.0")
    loaded = nemo_asr.load_model(tmp_path / "model")
    assert_equal(state_of(model.modules), state_of(loaded.modules))
    assert (loaded.recipe.labels, loaded.card.labels) == ([" ", "a", "b", "c"],) * 2
    assert (loaded.card.sample_rate, loaded.card.frame_seconds, loaded.card.licence) == (16000, 0.02, "CC-BY-4.0")
    assert loaded.recipe.config.plain() == model.recipe.config.plain()
    loaded.save(tmp_path / "again")
    assert_equal(state_of(model.modules), state_of(nemo_asr.load_model(tmp_path / "again").modules))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["train: {shuffle: true", "eval: {shuffle: false"])
def test_a_model_needs_no_file_of_the_perturbations_that_it_was_trained_with(recipe_of, where, tmp_path, monkeypatch):
    """Loaded, fine-tuned on and evaluated without it; trained with the same perturbations not."""
    monkeypatch.setitem(augmentor.perturbation_types, "mine", perturbation.GainPerturbation)
    recipe = recipe_of((where, f"{where}, augmentor: {{gain: {{prob: 1.0}}, mine: {{prob: 0.5}}}}"))
    TrainedModel("here", recipe, recipe.model(), describe(recipe)).save(tmp_path / "model")
    record(tmp_path / "a.wav", "cab")
    write_manifest(tmp_path / "a.json", [{"audio_filepath": "a.wav", "duration": 0.51, "text": "cab"}])
    monkeypatch.delitem(augmentor.perturbation_types, "mine")
    model = nemo_asr.load_model(tmp_path / "model")
    assert model.transcribe([tmp_path / "a.wav"])[0].duration == 0.51
    assert len(model.recipe.data_layer(str(tmp_path / "a.json"), training=False, batch_size=1)) == 1
    new = recipe_of().model()
    assert nemo_asr.init_from(tmp_path / "model", new, recipe_of()).is_complete
    model.save(tmp_path / "again")
    assert "mine" in read_model(tmp_path / "again").config
    told = (
        r"configuration\):\d+:\d+: AudioToTextDataLayer\.\w+\.augmentor\.mine is not a key; known: .*gain, .*--import"
    )
    if where.startswith("train"):
        with pytest.raises(ConfigError, match=told):
            model.recipe.data_layer(str(tmp_path / "a.json"), training=True, batch_size=1)
    with pytest.raises(ConfigError, match=told):
        nemo_asr.recipe_of(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"augmentor\.mine"):
        nemo_asr.load_model(tmp_path / "model", overrides=["AudioToTextDataLayer.train.augmentor.mine.prob=0.1"])


@pytest.mark.slow
def test_a_model_says_what_it_was_loaded_from(model, tmp_path, capfd):
    model.save(tmp_path / "run" / "model")
    nemo_asr.load_model(tmp_path / "run")
    assert f"Loaded {tmp_path / 'run' / 'model'}: step 0 (epoch 0)" in capfd.readouterr().out


def test_a_given_configuration_may_differ_where_the_weights_do_not_care(model, recipe_of, tmp_path):
    model.save(tmp_path / "model")
    loaded = nemo_asr.load_model(tmp_path / "model", recipe=recipe_of(("shuffle: false", "shuffle: true")))
    assert loaded.recipe.config["AudioToTextDataLayer"]["eval"]["shuffle"] is True
    assert_equal(state_of(model.modules), state_of(loaded.modules))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ([('"b", "c"', '"c", "b"')], "the labels are not the model's: got 'c' as label 2, wanted 'b' as in "),
        ([('"b", "c"', '"b", "c", "d"')], "got 5 labels, different: 'd', wanted 4 labels as in "),
        (
            [("sample_rate: 16000", "sample_rate: 8000")],
            "the sample rate is not the model's: got 8000 Hz, wanted 16000 Hz",
        ),
        ([("filters: 32", "filters: 48")], "does not fit JasperEncoder: different: "),
    ],
)
def test_a_configuration_of_another_model_is_refused_with_the_difference(changes, told, model, recipe_of, tmp_path):
    model.save(tmp_path / "model")
    with pytest.raises(CheckpointError) as caught:
        nemo_asr.load_model(tmp_path / "model", recipe=recipe_of(*changes))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def checkpoint(model, folder, about):
    CheckpointFolder(folder).save(
        trained_modules(model.modules), {"step": 3, "epoch": 1}, kind="STEP", number=3, keep=1, about=about
    )


def test_a_checkpoint_alone_is_enough(model, tmp_path):
    checkpoint(model, tmp_path, about_checkpoint(model.card, model.recipe.config.as_yaml()))
    loaded = nemo_asr.load_model(tmp_path)
    assert_equal(state_of(model.modules), state_of(loaded.modules))
    assert (loaded.card.step, loaded.card.labels) == (3, [" ", "a", "b", "c"])


def test_an_older_checkpoint_needs_its_configuration(model, recipe_of, tmp_path):
    checkpoint(model, tmp_path / "old", None)
    with pytest.raises(CheckpointError, match="carries no configuration; give the model's configuration as well"):
        nemo_asr.load_model(tmp_path / "old")
    loaded = nemo_asr.load_model(tmp_path / "old", recipe=recipe_of())
    assert_equal(state_of(model.modules), state_of(loaded.modules))
    assert (loaded.card.step, loaded.card.labels, loaded.card.sample_rate) == (3, [" ", "a", "b", "c"], 16000)


def test_weights_that_are_missing_are_named(model, recipe_of, tmp_path):
    CheckpointFolder(tmp_path).save({"JasperEncoder": model.modules.encoder}, None, kind="STEP", number=3, keep=1)
    with pytest.raises(CheckpointError, match="there are no weights of JasperDecoderForCTC: got JasperEncoder"):
        nemo_asr.load_model(tmp_path, recipe=recipe_of())


def test_the_model_stored_with_the_first_version_of_the_format_is_read():
    """Never write this folder again: it stands for the models that users have."""
    model = nemo_asr.load_model(STORED)
    assert (model.card.version, model.card.step, model.card.rates[0].wer) == (1, 120, 0.25)
    assert model.recipe.labels == [" ", "a", "b", "c"]
    total = sum(float(value.double().sum()) for value in state_of(model.modules).values())
    assert total == pytest.approx(float((STORED / "sum.txt").read_text()), rel=1e-6)


def test_values_of_its_own_configuration_can_be_set(model, tmp_path):
    model.save(tmp_path / "model")
    loaded = nemo_asr.load_model(tmp_path / "model", overrides=["AudioToMelSpectrogramPreprocessor.dither=0.5"])
    assert loaded.modules.preprocessor.init_params["dither"] == 0.5
    with pytest.raises(
        ConfigError, match=r"^--set AudioToMelSpectrogramPreprocessor\.dihter=0: .* \(did you mean dither\?"
    ):
        nemo_asr.load_model(tmp_path / "model", overrides=["AudioToMelSpectrogramPreprocessor.dihter=0"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ('labels=[" ", a, c, b]', "the labels are not the model's: got 'c' as label 2, wanted 'b' as in "),
        ("sample_rate=8000", "the sample rate is not the model's: got 8000 Hz, wanted 16000 Hz as in "),
    ],
)
def test_no_set_value_may_change_what_the_weights_were_trained_with(setting, told, model, tmp_path):
    model.save(tmp_path / "model")
    with pytest.raises(CheckpointError, match=re.escape(f"--set {setting}: {told}") + ".*; leave --set out; to train"):
        nemo_asr.load_model(tmp_path / "model", overrides=[setting])


@pytest.mark.slow
def test_a_run_does_not_go_on_with_other_labels(model, recipe_of, tmp_path):
    checkpoint(model, tmp_path, about_checkpoint(model.card, model.recipe.config.as_yaml()))
    nemo_asr.check_goes_on(tmp_path, recipe_of(("shuffle: false", "shuffle: true")))
    nemo_asr.check_goes_on(tmp_path, recipe_of(("dither: 0.0", "dither: 0, normalize: per_feature")))
    nemo_asr.check_goes_on(tmp_path / "none", recipe_of())
    with pytest.raises(CheckpointError) as caught:
        nemo_asr.check_goes_on(tmp_path, recipe_of(('"b", "c"', '"c", "b"')))
    assert "the labels are not the model's: got 'c' as label 2, wanted 'b' as in " in str(caught.value)
    assert "give the configuration that the run began with, or another --exp_name" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("model: Tones", "model: Chords"), 'got model "Chords", wanted "Tones" as in'),
        (("dropout: 0.0", "dropout: 0.1"), "got JasperEncoder.jasper.0.dropout 0.1, wanted 0.0 as in"),
        (("labels: [", "SpectrogramAugmentation: {freq_masks: 1}\nlabels: ["), "wanted nothing as in"),
        (
            ("dither: 0.0", "dither: 0.0, normalize: all_features"),
            'normalize "all_features", wanted "per_feature" as in',
        ),
    ],
)
def test_a_run_does_not_go_on_with_another_configuration_of_the_same_shapes(change, told, model, recipe_of, tmp_path):
    checkpoint(model, tmp_path, about_checkpoint(model.card, model.recipe.config.as_yaml()))
    with pytest.raises(CheckpointError) as caught:
        nemo_asr.check_goes_on(tmp_path, recipe_of(change))
    assert "the configuration is not the one with which this run began: " in str(caught.value)
    assert told in str(caught.value)
    remedy = "or another --exp_name; to start anew from its weights use --init_from with another --exp_name"
    assert str(caught.value).endswith(remedy)


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_0, write_1])
def test_a_file_of_nemo_transcribes_and_becomes_a_model_folder(tmp_path, write):
    modules = write(tmp_path / "Small.nemo")
    model = nemo_asr.load_model(tmp_path / "Small.nemo")
    assert (model.card.name, model.card.labels, model.card.sample_rate) == ("Small", LABELS, 8000)
    stored = {f"{part}.{name}": value for part, each in modules.items() for name, value in each.state_dict().items()}
    assert all(torch.equal(value, stored[name]) for name, value in weights_of(model.modules).items())
    noise = np.random.default_rng(0).standard_normal(8000).astype(np.float32)
    (found,) = model.transcribe([noise], 8000)
    assert found.text
    model.save(tmp_path / "folder")
    assert nemo_asr.load_model(tmp_path / "folder").transcribe([noise], 8000) == [found]


def test_a_citrinet_transcribes_with_its_pieces_and_takes_no_texts(tmp_path):
    write_1(tmp_path / "Citrinet.nemo", ["<unk>", "\u2581th", "e", "\u2581", "\u2581cat"], citrinet=True)
    model = nemo_asr.load_model(tmp_path / "Citrinet.nemo")
    assert model.card.frame_seconds == 0.04
    (found,) = model.transcribe([np.random.default_rng(0).standard_normal(16000).astype(np.float32)], 8000)
    assert found.text
    assert "\u2581" not in found.text
    (tmp_path / "train.json").write_text('{"audio_filepath": "a.wav", "duration": 1.0, "text": "the cat"}\n')
    message = r":1:1: labels: .* pieces of words, and texts cannot be cut into pieces here: .*tokenizer: FILE"
    with pytest.raises(ConfigError, match=message):
        model.recipe.data_layer(str(tmp_path / "train.json"), training=True, batch_size=1)


def test_a_citrinet_takes_texts_with_the_tokenizer_of_its_archive(tmp_path):
    subwords = small_subwords()
    (tmp_path / "tokenizer.model").write_bytes(subwords.model)
    write_1(tmp_path / "Citrinet.nemo", list(subwords), citrinet=True)
    given = [f"tokenizer={tmp_path / 'tokenizer.model'}"]
    card = nemo_asr.load_model(tmp_path / "Citrinet.nemo", overrides=given).save(tmp_path / "folder")
    assert card.tokenizer is not None
    recipe = nemo_asr.load_model(tmp_path / "folder").recipe
    (tmp_path / "train.json").write_text('{"audio_filepath": "a.wav", "duration": 1.0, "text": "The cat"}\n')
    layer = recipe.data_layer(str(tmp_path / "train.json"), training=True, batch_size=1, load_audio=False)
    assert layer.infeasible(lambda samples: 2, len)[0].needed == len(subwords.ids_of("the cat")[0])


def test_a_file_of_nemo_whose_weights_are_of_other_sizes_is_refused(tmp_path):
    write_0(tmp_path / "m.nemo")
    with pytest.raises(CheckpointError, match=r"m\.nemo, JasperEncoder: does not fit JasperEncoder: .*different:"):
        nemo_asr.load_model(
            tmp_path / "m.nemo", overrides=["init_params.encoder_params.init_params.jasper.0.kernel=[7]"]
        )
