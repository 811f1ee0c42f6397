"""Configurations by path and by name."""

from pathlib import Path

import pytest
from toys.tone_corpus import ASR

from nemo_asr import load_recipe
from nemo_asr.shipped import config_path, examples_folder
from nemo_lite.base.errors import ConfigError


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_in_a_checkout_scripts_and_configurations_are_those_of_the_examples():
    assert examples_folder() == ASR


@pytest.mark.parametrize("name", ["quartznet5x5", "quartznet5x5.yaml"])
def test_a_name_is_a_configuration_that_comes_with_the_package(name):
    assert config_path(name) == ASR / "configs/quartznet5x5.yaml"


def test_a_path_of_nemos_guides_stands_for_the_name_where_there_is_no_such_file(tmp_path):
    guided = tmp_path / "nemo/examples/asr/configs/jasper15x5SEP.yaml"
    assert config_path(guided) == ASR / "configs/jasper15x5SEP.yaml"
    assert config_path(guided.with_name("mine.yaml")) == guided.with_name("mine.yaml")
    guided.parent.mkdir(parents=True)
    guided.write_text("model: Own\n")
    assert config_path(guided) == guided


def test_a_file_wins_over_a_name(tmp_path):
    Path("quartznet5x5").write_text("model: Own\n")
    assert config_path("quartznet5x5") == Path("quartznet5x5")


def test_a_recipe_is_loaded_by_name():
    assert load_recipe("quartznet5x5").config == load_recipe(ASR / "configs/quartznet5x5.yaml").config


def test_an_unknown_name_is_answered_with_the_nearest_and_all_names():
    with pytest.raises(ConfigError) as caught:
        load_recipe("quartznet55")
    names = ", ".join(sorted(path.stem for path in (ASR / "configs").glob("*.yaml")))
    assert str(caught.value) == (
        f"quartznet55: is neither a file nor the name of a configuration; known names: {names} "
        "(did you mean quartznet5x5?)"
    )


@pytest.mark.parametrize("path", ["configs/quartznet5x5", "./no.yaml", "quartz.yml"])
def test_a_path_is_not_taken_for_a_name(path):
    assert config_path(path) == Path(path)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("train_conformer.yaml", "conformer_aishell"),
        ("conf/train_conformer.yaml", "conformer_aishell"),
        ("train_u2++_conformer", "u2pp_aishell"),
    ],
)
def test_a_configuration_of_wenets_guides_leads_to_ours_of_the_same_model(theirs, ours, caplog):
    assert config_path(theirs) == ASR / f"configs/{ours}.yaml"
    assert f"{theirs} is not there: taking {ours}" in caplog.text
    Path(theirs).parent.mkdir(exist_ok=True)
    Path(theirs).write_text("model: Own\n")
    assert config_path(theirs) == Path(theirs)
