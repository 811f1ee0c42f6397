"""A configuration's task, and classes that its training set decides."""

import json

import pytest

from nemo_asr.tasks.recipe import load_class_recipe, task_of
from nemo_lite.base.errors import DataError

SECTIONS = """AudioToMelSpectrogramPreprocessor: {features: 8}
JasperEncoder:
  activation: relu
  jasper:
    - {filters: 4, repeat: 1, kernel: [3], stride: [2], dilation: [1], dropout: 0.0, residual: false}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "classes.yaml").write_text("AudioToSpeechLabelDataLayer: {}\n" + SECTIONS)
    (tmp_path / "inside.yaml").write_text("AudioToSpeechLabelDataLayer: {labels: [c]}\n" + SECTIONS)
    (tmp_path / "texts.yaml").write_text("labels: [a]\n" + SECTIONS)
    lines = [{"audio_filepath": "a.wav", "duration": 1.0, "label": name} for name in ("b", "a b", "b")]
    (tmp_path / "train.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "bare.json").write_text('{"audio_filepath": "a.wav", "duration": 1.0}\n')
    return tmp_path


def test_the_data_layer_decides_the_task(folder):
    assert (task_of("classes.yaml"), task_of("texts.yaml")) == ("classification", "transcription")
    assert (task_of("speakers"), task_of("digits")) == ("classification", "transcription")


def test_classes_that_the_file_leaves_out_are_those_of_the_training_set(folder):
    recipe = load_class_recipe("classes.yaml", "train.json")
    assert recipe.labels == ["a b", "b"]
    assert recipe.config["labels"] == ["a b", "b"]
    with pytest.raises(DataError, match=r"bare\.json:1: no class"):
        load_class_recipe("classes.yaml", "bare.json")


def test_classes_that_are_given_stay(folder):
    assert load_class_recipe("classes.yaml", "train.json", ["labels=[x, y]"]).labels == ["x", "y"]
    assert load_class_recipe("inside.yaml", "train.json").labels == ["c"]
