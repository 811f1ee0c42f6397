"""A trained model, loaded: transcribe, evaluate, fill; speech recognisers and classifiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from torch import Tensor, nn

from nemo_asr.tasks.families import Model
from nemo_asr.tasks.recipe import Recipe, recipe_from_text
from nemo_asr.text.subwords import Subwords
from nemo_asr.transcribe.engine import transcribe, transcripts_or_error
from nemo_asr.transcribe.folder import (
    ModelCard,
    StoredModel,
    card_from_json,
    card_to_json,
    describe,
    read_model,
    write_model,
)
from nemo_asr.transcribe.transcript import Transcribed, Transcript
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.backends.pytorch.checkpoint.state import fitted
from nemo_lite.backends.pytorch.checkpoint.storage import fill_module, save_module
from nemo_lite.core.neural_module import unique_names
from nemo_lite.errors import CheckpointError
from nemo_lite.files import make_writable_folder, temporary_name
from nemo_lite.utils import logging

if TYPE_CHECKING:
    from nemo_lite import NeuralModuleFactory


# load_model: a trained model by its folder. What is in the folder is read in ``folder``.


class TrainedModel:
    """A model with trained weights.

    Attributes:
        place: where it was loaded from.
        recipe: its configuration, for data layers.
        modules: its modules, for DAGs: ``nemo_asr.connect(model.modules, data_layer)``.
        card: labels, sample rate, step, error rates and more.
    """

    def __init__(self, place: str, recipe: Recipe, modules: Model, card: ModelCard) -> None:
        self.place, self.recipe, self.modules, self.card = place, recipe, modules, card

    def transcribe(
        self, audio: Sequence[Any], sample_rate: int | None = None, batch_size: int = 16, **settings: Any
    ) -> list[Transcript]:
        """What is said in recordings, in the order given: text, words with times and confidences, duration.

        Confidences are calibrated where the card has a calibration; ``calibration=None`` gives the model's own.

        Args:
            audio: paths, or arrays of samples, (T,), (channels, T) or (T, channels).
            sample_rate: of the arrays, in Hz; files say their own.
            batch_size: most recordings in a batch.
            settings: ``batch_seconds``, ``num_workers``, ``worker_timeout``, ``factory``, ``verbose``, ``decoder`` and
                ``nbest``: see `nemo_asr.transcribe`'s ``transcribe``.

        Returns:
            A transcript for each; on ranks above 0 nothing.

        Raises:
            DataError: recordings that cannot be read; all are named.
            UsageError: an array without a sample rate or of a kind that is no audio.
        """
        return transcripts_or_error(self.transcribed(audio, audio_rate=sample_rate, batch_size=batch_size, **settings))

    def transcribed(self, audio: Sequence[Any], **settings: Any) -> Transcribed:
        """As :meth:`transcribe`, with the reasons of recordings that cannot be read in the place of an error.

        Args:
            audio: also `nemo_asr.transcribe`'s ``Recording`` objects.
            settings: of `nemo_asr.transcribe`'s ``transcribe``.
        """
        card, reading = self.card, self.recipe.reading
        of_model = {"trim_silence": reading.trim_silence, "int_values": reading.int_values}
        settings = {"calibration": card.calibration, **of_model, **settings}
        return transcribe(self.modules, card.labels, card.sample_rate, audio, **settings)

    def save(self, folder: str | Path, licence: str | None = None) -> ModelCard:
        """Write a model folder; a model that is there already is replaced.

        Args:
            folder: created where it is missing.
            licence: of the weights; by default as the card has it.

        Returns:
            The card that was written.

        Raises:
            UsageError: the folder or the disk cannot be written to.
        """
        path = make_writable_folder(Path(folder))
        staged = {}
        for name, module in trained_modules(self.modules).items():
            staged[name] = path / f"{temporary_name(name)}.safetensors"
            save_module(module, staged[name])
        if licence is not None:
            self.card = msgspec.structs.replace(self.card, licence=licence)
        return write_model(path, self.card, self.recipe.config.as_yaml(), staged, self.recipe.tokenizer)


def load_model(
    path: str | Path,
    *,
    recipe: Recipe | None = None,
    factory: NeuralModuleFactory | None = None,
    overrides: Sequence[str] = (),
) -> TrainedModel:
    """Load a trained model; the log says from which file and step.

    Args:
        path: a run's folder (its best model, or its newest checkpoint where it has no model yet), a model folder, or a
            folder of checkpoints.
        recipe: a configuration to use instead of the model's own; its labels, sample rate and shapes must be the
            model's.
        factory: where several ranks run: rank 0 reads, the others need not have the files.
        overrides: values that win over the model's own configuration, each ``KEY=VALUE``; see ``load_recipe``.

    Raises:
        CheckpointError: there is no model, a file of it is missing or damaged, it carries no configuration and none is
            given, or it does not fit the given one.
    """
    parts = read_parts(path, recipe=recipe, factory=factory, overrides=overrides)
    return parts.filled(parts.recipe.model())


class ModelParts(NamedTuple):
    """A model that was read and whose modules are not made yet.

    Attributes:
        place: the folder, or the checkpoint in it.
        recipe: its configuration.
        card: what it says about itself.
        weights: the tensors of each module, by name.
    """

    place: str
    recipe: Recipe
    card: ModelCard
    weights: Mapping[str, Mapping[str, Tensor]]

    def filled(self, modules: Model) -> TrainedModel:
        """The model of these modules, which get their weights.

        Raises:
            CheckpointError: weights of a module are missing or do not fit.
        """
        for name, module in trained_modules(modules).items():
            if name not in self.weights:
                got = ", ".join(self.weights)
                raise CheckpointError(f"there are no weights of {name}", place=self.place, got=got)
            fill_module(module, fitted(module, self.weights[name], f"{self.place}, {name}"))
        logging.info("Loaded %s: %s", self.place, self.card.progress())
        return TrainedModel(self.place, self.recipe, modules, self.card)


def read_parts(
    path: str | Path,
    *,
    recipe: Recipe | None = None,
    factory: NeuralModuleFactory | None = None,
    overrides: Sequence[str] = (),
) -> ModelParts:
    """What :func:`load_model`, with these arguments and errors, makes a model of."""
    stored = factory.from_first(lambda: _packed(read_model(path))) if factory else _packed(read_model(path))
    place, card_text, config, weights, model = stored
    card, tokenizer = card_from_json(card_text, place), Subwords(model, place) if model else None
    if recipe is None:
        if not config:
            remedy = "give the model's configuration as well (--model_config)"
            raise CheckpointError("the checkpoint carries no configuration", place=place, remedy=remedy)
        recipe = recipe_from_text(
            config, f"{place} (configuration)", overrides, tokenizer=tokenizer, for_training=False
        )
        _compare(recipe, card, place, "leave --set out")
    else:
        _compare(recipe, card, place, "leave --model_config out: the model carries its own")
    if not card.labels:  # of an older version or of NeMo 0.x
        card = msgspec.structs.replace(describe(recipe), step=card.step, epoch=card.epoch)
    return ModelParts(place, recipe, card, weights)


def check_goes_on(folder: str | Path, recipe: Recipe) -> None:
    """See that the checkpoint from which a run would go on is of a model with these labels and this sample rate.

    Raises:
        CheckpointError: it is not. Nothing is said where there is no checkpoint, or one that says nothing about it.
    """
    checkpoint = CheckpointFolder(folder).latest()
    if checkpoint is not None and "model" in checkpoint.about:
        card = card_from_json(msgspec.json.encode(checkpoint.about["model"]), str(checkpoint))
        _compare(recipe, card, str(checkpoint), "give the configuration that the run began with, or another --exp_name")


def trained_modules(model: Model) -> dict[str, nn.Module]:
    """The modules that have weights, by the name under which they are saved."""
    parts = model.modules.values()
    named = unique_names([part for part in parts if isinstance(part, nn.Module) and part.state_dict()])
    return {name: module for name, module in named.items() if isinstance(module, nn.Module)}


def _packed(stored: StoredModel) -> tuple[str, bytes, str, Mapping[str, Mapping[str, Tensor]], bytes]:
    """As plain values, which travel to other ranks."""
    tokenizer = b"" if stored.tokenizer is None else stored.tokenizer.model
    return stored.place, card_to_json(stored.card), stored.config, stored.weights, tokenizer


def _compare(recipe: Recipe, card: ModelCard, place: str, remedy: str) -> None:
    """Labels, tokenizer and sample rate of a configuration that was given or changed must be the model's.

    Raises:
        CheckpointError: they are not.
    """
    if not card.labels:
        return
    remedy += "; to train on with other labels use --init_from"
    source = recipe.config.place
    if recipe.sample_rate != card.sample_rate:
        problem, got = "the sample rate is not the model's", f"{recipe.sample_rate} Hz"
        wanted = f"{card.sample_rate} Hz as in {place}"
        raise CheckpointError(problem, place=source("sample_rate"), got=got, wanted=wanted, remedy=remedy)
    if recipe.labels != card.labels:
        problem, (got, wanted) = "the labels are not the model's", _first_difference(recipe.labels, card.labels)
        wanted = f"{wanted} as in {place}"
        place_of_labels = source("labels" if recipe.tokenizer is None else "tokenizer")
        raise CheckpointError(problem, place=place_of_labels, got=got, wanted=wanted, remedy=remedy)
    mine, theirs = recipe.tokenizer, card.tokenizer
    if mine is not None and theirs is not None and mine.sha256 != theirs.sha256:
        problem = "the tokenizer is not the model's: its pieces are the same, and their scores are not"
        got, wanted = f"SHA-256 {mine.sha256[:16]}...", f"{theirs.sha256[:16]}... as in {place}"
        raise CheckpointError(problem, place=source("tokenizer"), got=got, wanted=wanted, remedy=remedy)


def _first_difference(mine: list[str], theirs: list[str]) -> tuple[str, str]:
    if len(mine) != len(theirs):
        extra = sorted({*mine} ^ {*theirs})
        listed = f", different: {', '.join(map(repr, extra[:8]))}" if extra else ""
        return f"{len(mine)} labels{listed}", f"{len(theirs)} labels"
    index = next(i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)
    return f"{mine[index]!r} as label {index}", repr(theirs[index])


def load_classifier(
    path: str | Path,
    *,
    recipe: Recipe | None = None,
    factory: NeuralModuleFactory | None = None,
    overrides: Sequence[str] = (),
) -> TrainedModel:
    """As :func:`load_model`, of a classifier: ``nemo_asr.connect_classifier(model.modules, data_layer)`` makes DAGs.

    Raises:
        CheckpointError: as ``load_model``.
        UsageError: the model transcribes.
    """
    parts = read_parts(path, recipe=recipe, factory=factory, overrides=overrides)
    return parts.filled(parts.recipe.classifier())
