"""A model that has learned the tones of ``tone_corpus``, trained within the test's process in a few seconds."""

from __future__ import annotations

from pathlib import Path

import nemo_asr
import nemo_lite as nemo
from nemo_asr.tasks.families import Model
from nemo_asr.tasks.recipe import Recipe
from toys.tone_corpus import CONFIG, make_corpus


def train_tones(folder: Path, config: str = CONFIG) -> tuple[Recipe, Model]:
    """Make the corpus in ``folder`` and train a model of this configuration on it, on the CPU."""
    make_corpus(folder)
    (folder / "tones.yaml").write_text(config)
    recipe = nemo_asr.load_recipe(folder / "tones.yaml")
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=0, set_default=False)
    model = recipe.model()
    layer = recipe.data_layer(str(folder / "train.json"), training=True, batch_size=4)
    loss = nemo_asr.connect(model, layer, training=True).loss
    assert loss is not None
    factory.train([loss], optimizer="adam_w", optimization_params={"num_epochs": 40, "lr": 0.02})
    return recipe, model
