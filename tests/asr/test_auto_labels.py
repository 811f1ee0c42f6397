"""``labels: auto``: labels come from the training texts, are stored as a list, and stay those of the run."""

import json

import pytest
from toys.tone_corpus import CONFIG, make_corpus, read_manifest, run_subcommand, write_manifest

from nemo_asr.commands.cli.data import main as data
from nemo_asr.tasks.recipe import labels_are_auto, labels_for, load_class_recipe, load_recipe
from nemo_asr.trained.model import labels_of_run
from nemo_lite.base.errors import ConfigError

AUTO = CONFIG.replace('labels: [" ", "a", "b", "c"]', "labels: auto\nlanguage: none")
RUN = ["--num_epochs", "1", "--batch_size", "4", "--exp_name", "run", "--placement", "CPU"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_corpus(tmp_path)
    (tmp_path / "auto.yaml").write_text(AUTO)
    return tmp_path


def train(*words, config="auto.yaml"):
    return run_subcommand("train", "--model_config", config, "--train_dataset", "train.json", *RUN, *words)


@pytest.mark.slow
def test_a_run_stores_its_labels_and_goes_on_with_them_when_the_texts_grow(folder):
    first = train()
    assert first.code == 0, first.err
    assert "labels: auto: 4 labels of 12 texts: abc" in first.out + first.err
    assert labels_of_run(folder / "run/checkpoints") == [" ", "a", "b", "c"]
    assert load_recipe(*(folder / "run/model").glob("config*.yaml")).labels == [" ", "a", "b", "c"]
    lines = read_manifest(folder / "train.json")
    write_manifest(folder / "train.json", [*lines, {**lines[0], "text": "cabz"}])
    again = train("--num_epochs", "2")
    assert again.code == 0, again.err
    assert "labels: auto: 4 labels, as in the checkpoint run/checkpoints" in again.out + again.err
    assert labels_of_run(folder / "run/checkpoints") == [" ", "a", "b", "c"]
    anew = train("--exp_name", "new")
    assert labels_of_run(folder / "new/checkpoints") == [" ", "a", "b", "c", "z"], anew.err


@pytest.mark.slow
def test_any_configuration_takes_labels_of_the_texts_by_an_option(folder):
    (folder / "tones.yaml").write_text(CONFIG.replace('"a", "b", "c"', '"x"'))
    finished = train("--set", "labels=auto", "--language", "none", "--plan", config="tones.yaml")
    assert finished.code == 0, finished.err
    assert "4 labels of 12 texts" in finished.out + finished.err


def test_what_does_not_train_says_where_the_labels_are(folder):
    with pytest.raises(
        ConfigError, match=r"auto\.yaml:\d+:1: labels is auto: only training finds them, in its texts; give"
    ):
        load_recipe(folder / "auto.yaml")


def test_punctuated_labels_of_a_file_or_an_option(folder, capsys):
    lines = read_manifest(folder / "train.json")
    write_manifest(folder / "train.json", [*lines, {**lines[0], "text": "Abc, cab?"}])
    assert labels_for(folder / "train.json", ["labels=auto_punctuated", "language=none"]).labels == [*" ABCabc,?"]
    (folder / "auto.yaml").write_text(AUTO.replace("labels: auto", "labels: auto_punctuated"))
    assert labels_for(folder / "train.json", path=folder / "auto.yaml").labels == [*" ABCabc,?"]
    with pytest.raises(ConfigError, match="labels is auto_punctuated: only training finds them"):
        load_recipe(folder / "auto.yaml")
    data(["check", "train.json", "--model_config", "auto.yaml"])
    assert "outside the vocabulary" not in capsys.readouterr().err


def test_data_check_takes_the_labels_of_the_training_set(folder, capsys):
    data(["check", "train.json", "--model_config", "auto.yaml"])
    assert "labels" not in capsys.readouterr().err


def test_a_tokenizer_and_auto_exclude_each_other(folder):
    (folder / "both.yaml").write_text(f"{AUTO}\ntokenizer: a.model\n")
    with pytest.raises(ConfigError, match="labels is auto, and tokenizer gives labels; leave one of them out"):
        labels_are_auto(folder / "both.yaml")
    assert labels_are_auto(folder / "both.yaml", ["tokenizer=null"])
    assert not labels_are_auto(folder / "auto.yaml", ['labels=["a"]'])
    assert labels_are_auto(None, ["labels=auto"])


def test_auto_labels_of_a_classifier_are_its_classes(folder):
    lines = [{"audio_filepath": "train0.wav", "duration": 1.0, "command": name} for name in ("yes", "no")]
    (folder / "classes.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe = load_class_recipe("speech_commands", folder / "classes.json", ["labels=auto"])
    assert recipe.labels == ["no", "yes"]
