"""A model that has learned the tones of ``tone_corpus``, trained in a few seconds: once for all test processes."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import nemo_asr
import nemo_lite as nemo
from nemo_asr.export.onnx_export import export_onnx
from nemo_asr.tasks.family import Model
from nemo_asr.tasks.recipe import Recipe
from nemo_asr.trained.model import TrainedModel, describe, load_model
from toys.tone_corpus import CONFIG, make_corpus

STREAMING = CONFIG.replace("features: 32", "features: 32, normalize: null, pad_to: 0")
"""A configuration whose model streams by frames."""
FOLDER = "NEMO_LITE_TESTS_SHARED"
"""The environment variable with the folder that all test processes of a session share (``conftest.py``)."""


def train_tones(folder: Path, config: str = CONFIG) -> tuple[Recipe, Model]:
    """Make the corpus in ``folder``; a model of this configuration that was trained on it, on the CPU."""
    make_corpus(folder)
    (folder / "tones.yaml").write_text(config)
    return nemo_asr.load_recipe(folder / "tones.yaml"), load_model(_trained(config)).modules


def stored_tones(folder: Path, config: str = CONFIG) -> TrainedModel:
    """The same, stored as ``folder/model``."""
    recipe, modules = train_tones(folder, config)
    model = TrainedModel(str(folder / "model"), recipe, modules, describe(recipe))
    model.save(folder / "model")
    return model


def exported_tones() -> Path:
    """That model of the default configuration as an ONNX file. Do not write there."""
    model = load_model(_trained(CONFIG))
    return _made_once("tones.onnx", lambda path: export_onnx(model, path))


def _trained(config: str) -> Path:
    digest = hashlib.sha256(config.encode()).hexdigest()[:12]
    return _made_once(f"tones-{digest}", lambda path: _train(path, config))


def _train(path: Path, config: str) -> None:
    corpus = path.with_name(f"{path.name}-corpus")
    corpus.mkdir(exist_ok=True)
    make_corpus(corpus)
    (corpus / "tones.yaml").write_text(config)
    recipe = nemo_asr.load_recipe(corpus / "tones.yaml")
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=0, set_default=False)
    model = recipe.model()
    layer = recipe.data_layer(str(corpus / "train.json"), training=True, batch_size=4)
    loss = nemo_asr.connect(model, layer, training=True).loss
    assert loss is not None
    factory.train([loss], optimizer="adam_w", optimization_params={"num_epochs": 40, "lr": 0.02})
    TrainedModel("here", recipe, model, describe(recipe)).save(path)


def _made_once(name: str, make: Callable[[Path], None]) -> Path:
    """What the first test process that needs it makes; the others wait for it."""
    path = Path(os.environ[FOLDER], name)
    with path.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            unfinished = path.with_name(f"{name}-unfinished")
            make(unfinished)
            unfinished.rename(path)
    return path
