"""Values of a model's file set from outside, and the resolved configuration as a text."""

from __future__ import annotations

import pytest
from toys.shipped_configs import config_cases
from toys.tone_corpus import ASR

from nemo_asr import load_recipe, recipe_from_text
from nemo_lite.base.errors import ConfigError
from nemo_lite.core import Reference

QUARTZNET = ASR / "configs/quartznet5x5.yaml"
# Their classes, or labels, are those of the training set, or set from outside.
WITHOUT_LABELS = {"speakers", "speech_commands", "conformer_aishell", "u2pp_aishell"}


def modules_of(recipe) -> list:
    modules = recipe.classifier if recipe.task == "classification" else recipe.model
    return list(modules(with_weights=False).modules.values())


@pytest.mark.slow
@pytest.mark.parametrize("path", config_cases())
def test_the_resolved_configuration_makes_the_same_recipe(path) -> None:
    recipe = load_recipe(path, ["labels=[a, b, c]"] if path.stem in WITHOUT_LABELS else [])
    again = recipe_from_text(recipe.config.as_yaml(), path.name)
    assert (again.name, again.sample_rate, again.labels) == (recipe.name, recipe.sample_rate, recipe.labels)
    assert (again.config, again.task) == (recipe.config, recipe.task)
    made = [modules_of(each) for each in (recipe, again)]
    for mine, theirs in zip(*made, strict=True):
        values = [
            {name: str(value) if isinstance(value, Reference) else value for name, value in module.init_params.items()}
            for module in (mine, theirs)
        ]
        assert values[0] == values[1]


@pytest.mark.slow
def test_what_is_set_reaches_the_modules_and_the_resolved_configuration() -> None:
    given = ["AudioToMelSpectrogramPreprocessor.dither=0", "JasperEncoder.jasper.0.dropout=0.125"]
    recipe = load_recipe(QUARTZNET, given)
    for each in (recipe, recipe_from_text(recipe.config.as_yaml(), "model.yaml")):
        assert each.preprocessor().init_params["dither"] == 0
        assert each.model(with_weights=False).encoder.init_params["jasper"][0]["dropout"] == 0.125
    assert recipe_from_text(QUARTZNET.read_text(), "x.yaml", given).config == recipe.config


@pytest.mark.slow
def test_a_setting_of_the_loss_reaches_it_whichever_class_it_is(capsys) -> None:
    recipe = load_recipe(QUARTZNET, ["loss.label_smoothing=0.1"])
    assert recipe.loss().init_params["label_smoothing"] == 0.1
    assert "Set in the configuration: CTCLossNM.label_smoothing=0.1" in "".join(capsys.readouterr())
    with pytest.raises(ConfigError, match=r"CTCLossNM\.smoothing is not a key"):
        load_recipe(QUARTZNET, ["loss.smoothing=0.1"])


def test_what_is_set_is_logged(capsys) -> None:
    load_recipe(QUARTZNET, ["AudioToMelSpectrogramPreprocessor.dither=0"])
    assert "Set in the configuration: AudioToMelSpectrogramPreprocessor.dither=0" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("JasperEncodr.activation=relu", "JasperEncodr is not a key (did you mean JasperEncoder?)"),
        ("JasperEncoder.activaton=relu", "JasperEncoder.activaton is not a key (did you mean activation?)"),
        ("JasperEncoder.jasper.0.dropuot=0.1", "JasperEncoder.jasper[0].dropuot is not a key (did you mean dropout?)"),
        ("JasperEncoder.jasper.0.dropout=a lot", 'JasperEncoder.jasper[0].dropout is "a lot", wanted float'),
        ("JasperEncoder.jasper.0.dropout=1.5", "JasperEncoder.jasper[0].dropout is 1.5, wanted float from 0, below 1"),
        ("JasperEncoder.jasper.99.dropout=0", "99 is not an item of JasperEncoder.jasper, which has"),
        ("AudioToMelSpectrogramPreprocessor.features=-1", "AudioToMelSpectrogramPreprocessor"),
        ("AudioToMelSpectrogramPreprocessor.sample_rate=8000", "AudioToMelSpectrogramPreprocessor.sample_rate is 8000"),
        ("labels=[a, a]", "label 'a' repeats"),
        ("language=eng", 'language "eng" is not known; known: am, ar'),
    ],
)
def test_a_setting_that_does_not_fit_is_one_line_that_names_it(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe(QUARTZNET, [setting])
    lines = str(caught.value).splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"--set {setting}: {message}"), lines[0]


@pytest.mark.slow
def test_the_language_of_the_file_is_that_of_its_data_layer() -> None:
    recipe = load_recipe(QUARTZNET, ["language=none"])
    assert recipe.config["language"] == "none"
    assert recipe._derived["train"]["language"] == recipe._derived["eval"]["language"] == "none"
    assert "language" not in load_recipe(QUARTZNET)._derived["train"]
    with pytest.raises(ConfigError, match=r'AudioToTextDataLayer\.language is "de", language is "none"'):
        load_recipe(QUARTZNET, ["language=none", "AudioToTextDataLayer.language=de"])


def test_a_value_that_is_only_repeated_cannot_be_set(tmp_path) -> None:
    text = QUARTZNET.read_text() + "shared: &shared 0.25\n"
    with pytest.raises(ConfigError, match=r"^--set shared=1: shared is only repeated by others; set it where it is"):
        recipe_from_text(text, "a.yaml", ["shared=1"])
    assert "shared" not in recipe_from_text(text, "a.yaml").config
