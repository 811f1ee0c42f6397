"""A stored classifier: loading it, and that it is not taken for a model that transcribes."""

import pytest
import torch

from nemo_asr.commands.training import is_classifier
from nemo_asr.tasks.recipe import recipe_from_text
from nemo_asr.trained.fine_tuning import task_of_model
from nemo_asr.trained.folder import write_model
from nemo_asr.trained.model import describe, load_classifier, load_model, trained_modules
from nemo_lite.backends.pytorch.checkpoint.storage import save_module
from nemo_lite.base.errors import CheckpointError, UsageError

TEXT = """labels: [one, two]
AudioToSpeechLabelDataLayer: {}
AudioToMelSpectrogramPreprocessor: {features: 8}
JasperEncoder:
  activation: relu
  jasper:
    - {filters: 4, repeat: 1, kernel: [3], stride: [2], dilation: [1], dropout: 0.0, residual: false}
"""


@pytest.fixture
def stored(tmp_path):
    recipe = recipe_from_text(TEXT, "model.yaml")
    modules = recipe.classifier()
    folder = tmp_path / "model"
    folder.mkdir()
    staged = {name: folder / f".{name}.safetensors" for name in trained_modules(modules)}
    for name, module in trained_modules(modules).items():
        save_module(module, staged[name])
    write_model(folder, describe(recipe), recipe.config.as_yaml(), staged)
    return folder, modules


@pytest.mark.slow
def test_a_stored_classifier_has_its_weights_classes_and_task(stored):
    folder, modules = stored
    loaded = load_classifier(folder)
    assert (loaded.card.task, loaded.card.labels, loaded.card.frame_seconds) == ("classification", ["one", "two"], 0.0)
    weights = [module.state_dict() for module in (loaded.modules.decoder, modules.decoder)]
    assert torch.equal(weights[0]["decoder_layers.0.weight"], weights[1]["decoder_layers.0.weight"])
    with pytest.raises(UsageError, match="got classification, wanted transcription"):
        load_model(folder)


def test_the_task_follows_from_the_model_or_the_configuration(stored, tmp_path):
    folder, _ = stored
    assert task_of_model(folder) == "classification"
    (tmp_path / "model.yaml").write_text(TEXT)
    assert is_classifier(str(tmp_path / "model.yaml"))
    assert not is_classifier("digits")
    assert not is_classifier("nowhere.yaml"), "reading it as a model of texts says what is wrong"


def test_no_model_is_told(tmp_path):
    with pytest.raises(CheckpointError, match="there is no model in this folder"):
        task_of_model(tmp_path)
