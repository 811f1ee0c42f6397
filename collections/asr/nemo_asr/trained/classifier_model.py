"""load_classifier: a trained classifier by its folder. What is in the folder is read in ``folder``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nemo_asr.recipe.classifier import Classifier
from nemo_asr.recipe.recipe import Recipe
from nemo_asr.trained.card import ModelCard
from nemo_asr.trained.model import read_parts

if TYPE_CHECKING:
    from nemo_lite import NeuralModuleFactory


class TrainedClassifier(NamedTuple):
    """A classifier with trained weights.

    Attributes:
        place: where it was loaded from.
        recipe: its configuration, for data layers.
        modules: its modules, for DAGs: ``nemo_asr.connect_classifier(model.modules, data_layer)``.
        card: classes, sample rate, step, error rates and more.
    """

    place: str
    recipe: Recipe
    modules: Classifier
    card: ModelCard


def load_classifier(
    path: str | Path,
    *,
    recipe: Recipe | None = None,
    factory: NeuralModuleFactory | None = None,
    overrides: Sequence[str] = (),
) -> TrainedClassifier:
    """Load a trained classifier; the log says from which file and step.

    Args:
        path: a run's folder, a model folder or a folder of checkpoints.
        recipe: a configuration to use instead of the model's own.
        factory: where several ranks run: rank 0 reads, the others need not have the files.
        overrides: values that win over the model's own configuration, each ``KEY=VALUE``.

    Raises:
        CheckpointError: as ``load_model``.
        UsageError: the model transcribes.
    """
    loaded = read_parts(path, recipe=recipe, factory=factory, overrides=overrides)
    modules = loaded.recipe.classifier()
    loaded.fill(modules)
    return TrainedClassifier(loaded.place, loaded.recipe, modules, loaded.card)
