"""Training that begins with a trained model: which weights fit, and which task it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from nemo_asr.tasks.families import Model, family_of
from nemo_asr.tasks.recipe import Recipe, recipe_from_text
from nemo_asr.tasks.registry import TASKS
from nemo_asr.text.subwords import Subwords
from nemo_asr.transcribe.folder import CARD, StoredModel, find_model, read_card, read_model
from nemo_asr.transcribe.initialise import Initialised, initialise
from nemo_asr.transcribe.model import trained_modules
from nemo_lite import NeuralModule
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.errors import CheckpointError
from nemo_lite.utils import logging

if TYPE_CHECKING:
    from nemo_lite import NeuralModuleFactory


# init_from: training starts from the weights of a trained model. What fits is decided in ``initialise``.


# Arguments of a preprocessor that do not change what a feature means; std_floor changes bands without signal only.
_OF_NO_MATTER = ("name", "dither", "pad_to", "pad_value", "stft_conv", "std_floor")
# Arguments whose default, None, stands for a value that follows from others.
_DERIVED = ("n_fft", "highfreq")


def init_from(
    path: str | Path,
    model: Model,
    recipe: Recipe,
    unless_in: str | Path | None = None,
    allow_feature_change: bool = False,
) -> Initialised | None:
    """Copy the weights of a trained model into a new one, as far as they fit, and log what was loaded.

    Step, epoch and optimizer are not read: training starts anew. With several ranks call it on the first only,
    ``factory.on_first(lambda: init_from(...))``: when training starts, the others get the first one's weights.

    Args:
        path: a run's folder, a model folder or a folder of checkpoints, as ``load_model`` takes it.
        model: the new modules; they are changed in place.
        recipe: of the new model.
        unless_in: the folder of the run's checkpoints. Where it holds one, the run goes on from it, and nothing is
            copied.
        allow_feature_change: take the weights also where the features differ; it is logged in what.

    Returns:
        What was done; None where the run goes on.

    Raises:
        CheckpointError: there is no such model, its features are not those of the new one, or nothing of it fits.
    """
    if unless_in is not None and not CheckpointFolder(unless_in).is_empty():
        logging.warning("--init_from %s is not used: the run goes on from its checkpoints in %s", path, unless_in)
        return None
    stored = read_model(path)
    old_labels = stored.card.labels or None
    if stored.config:
        place, carried = _config_place(stored), stored.tokenizer
        trained = recipe_from_text(stored.config, place, tokenizer=carried, for_training=False)
        _compare_features(trained.preprocessor(), model.preprocessor, stored.place, recipe, allow_feature_change)
    by_role, modules = model.modules, trained_modules(model)
    of_labels: list[object] = [by_role[role] for role in family_of(model.family).label_roles if role in by_role]
    heads = [name for name, module in modules.items() if module in of_labels]
    try:
        done = initialise(modules, stored.weights, heads=heads, labels=recipe.labels, old_labels=old_labels)
    except CheckpointError as error:
        raise CheckpointError(
            error.problem, place=stored.place, got=error.got, wanted=error.wanted, remedy=error.remedy
        ) from None
    _log(stored, done)
    return done


def recipe_of(path: str | Path, overrides: Sequence[str] = (), *, factory: NeuralModuleFactory | None = None) -> Recipe:
    """The configuration that a trained model carries.

    Args:
        path: as :func:`init_from`.
        overrides: values that win over its own, as ``load_recipe`` takes them.
        factory: where several ranks run: rank 0 reads, the others need not have the files.

    Raises:
        CheckpointError: there is no such model, or it carries none.
        ConfigError: the overrides do not fit.
    """

    def read() -> tuple[str, str, bytes]:
        stored = read_model(path)
        if not stored.config:
            remedy = "give the one that it was trained with: --model_config"
            raise CheckpointError("the checkpoint carries no configuration", place=stored.place, remedy=remedy)
        return stored.config, _config_place(stored), stored.tokenizer.model if stored.tokenizer else b""

    text, place, model = factory.from_first(read) if factory else read()
    return recipe_from_text(text, place, overrides, tokenizer=Subwords(model, place) if model else None)


def _config_place(stored: StoredModel) -> str:
    return f"{stored.place} (configuration)"


def _log(stored: StoredModel, done: Initialised) -> None:
    say = logging.info if all(not module.new or module.by_label for module in done.modules) else logging.warning
    say("Weights from %s, %s:\n%s", stored.place, stored.card.progress(), indent(str(done), "  "))


def _compare_features(old: NeuralModule, new: NeuralModule, place: str, recipe: Recipe, may_differ: bool) -> None:
    """Weights mean something on the features that they were trained on only; on near ones they are a good start.

    Raises:
        CheckpointError: the preprocessors differ, and may not; it shows in what.
    """
    theirs, mine = _meaning(old), _meaning(new)
    different = [key for key in {**mine, **theirs} if not _is_same(key, mine.get(key), theirs.get(key))]
    if not different:
        return
    error = CheckpointError(
        "its features are not those of the model that the weights are from",
        place=recipe.config.place(),
        got=", ".join(f"{key} {mine.get(key)}" for key in different),
        wanted=f"{', '.join(f'{key} {theirs.get(key)}' for key in different)} as in {place}",
        remedy="" if may_differ else "change the preprocessor's section, or give --allow_feature_change",
    )
    if not may_differ:
        raise error
    logging.warning("%s", error)


def _meaning(preprocessor: NeuralModule) -> Mapping[str, Any]:
    """What decides on the meaning of a preprocessor's features."""
    arguments = {key: value for key, value in preprocessor.init_params.items() if key not in _OF_NO_MATTER}
    return {"class": type(preprocessor).__name__, **arguments}


def _is_same(key: str, mine: object, theirs: object) -> bool:
    return mine == theirs or (key in _DERIVED and None in (mine, theirs))


# Which script trains a configuration or evaluates a stored model: by what it is for, texts or classes.


def task_of_model(path: str | Path) -> str:
    """``transcription`` or ``classification``: what a stored model is for. A model that does not say it transcribes.

    Raises:
        CheckpointError: there is no model.
    """
    folder = find_model(path)
    if (folder / CARD).is_file():
        return read_card(folder / CARD).task
    latest = CheckpointFolder(folder).latest()
    card = latest.about.get("model") if latest else None
    return str(card.get("task", TASKS[0])) if isinstance(card, dict) else TASKS[0]
