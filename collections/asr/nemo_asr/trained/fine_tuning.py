"""Training that begins with a trained model: which weights fit, and which task it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nemo_asr.run.text.labels import spelled
from nemo_asr.run.text.subwords import Subwords
from nemo_asr.tasks.family import Model, family_of
from nemo_asr.tasks.recipe import Recipe, recipe_from_text
from nemo_asr.tasks.registry import TASKS
from nemo_asr.trained.folder import CARD, StoredModel, find_model, foreign_format, read_card, read_model
from nemo_asr.trained.model import trained_modules
from nemo_lite import NeuralModule
from nemo_lite.backends.pytorch.checkpoint.fitting import shape_text, with_todays_names
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.base.errors import CheckpointError, counted
from nemo_lite.utils import logging

if TYPE_CHECKING:
    from nemo_lite import NeuralModuleFactory


# init_from: training starts from the weights of a trained model. What fits is decided by :func:`initialise`.


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
        old_labels = old_labels or trained.labels
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
    tell = logging.info if all(not module.new or module.by_label for module in done.modules) else logging.warning
    tell("Weights from %s, %s:\n%s", stored.place, stored.card.progress(), indent(str(done), "  "))
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


def _compare_features(old: NeuralModule, new: NeuralModule, place: str, recipe: Recipe, may_differ: bool) -> None:
    """Weights mean something on the features that they were trained on only; on near ones they are a good start.

    Raises:
        CheckpointError: the preprocessors differ, and may not; it shows in what.
    """
    theirs, mine = _meaning(old), _meaning(new)
    different = [key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)]
    different = [key for key in different if key not in _DERIVED or None not in (mine.get(key), theirs.get(key))]
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


# Which script trains a configuration or evaluates a stored model: by what it is for, texts or classes.


def task_of_model(path: str | Path) -> str:
    """``transcription`` or ``classification``: what a stored model is for. A model that does not say it transcribes.

    Raises:
        CheckpointError: there is no model.
    """
    folder = find_model(path)
    if (folder / CARD).is_file():
        return read_card(folder / CARD).task
    if foreign_format(folder) is not None:
        return TASKS[0]
    latest = CheckpointFolder(folder).latest()
    card = latest.about.get("model") if latest else None
    return str(card.get("task", TASKS[0])) if isinstance(card, dict) else TASKS[0]


# initialise: weights of a new model from those of a trained one, whose labels may differ. It reads no files.


_MAX_LISTED = 8
_MAX_LABELS = 64  # alphabets are shown whole, vocabularies of subwords are not


@dataclass(frozen=True)
class InitialisedModule:
    """What became of the tensors of one module.

    Attributes:
        name: under which its weights are saved.
        loaded: tensors that were taken over as they are.
        by_label: tensors of which the rows of labels that both models have were taken over.
        new: tensors that stay as they were made, each with the reason where there was another one.
        left: tensors of the trained model that the new one has no place for.
    """

    name: str
    loaded: Sequence[str] = ()
    by_label: Sequence[str] = ()
    new: Sequence[str] = ()
    left: Sequence[str] = ()

    @property
    def is_complete(self) -> bool:
        """Whether nothing is new and nothing was left."""
        return not self.new and not self.left

    def lines(self) -> list[str]:
        """What is said of it: a line, and one more for what is new and for what was left."""
        num_tensors = len(self.loaded) + len(self.by_label) + len(self.new)
        if not self.loaded and not self.by_label:
            lines = [f"{self.name}: new, all {num_tensors} tensors"]
        else:
            whole = f"all {num_tensors}" if len(self.loaded) == num_tensors else f"{len(self.loaded)} of {num_tensors}"
            lines = [f"{self.name}: {whole} tensors loaded"]
            if self.by_label:
                lines[0] += f", {len(self.by_label)} by label ({_listed(self.by_label)})"
            if self.new:
                lines.append(f"  {len(self.new)} new: {_listed(self.new)}")
        if self.left:
            lines.append(f"  {len(self.left)} left: {_listed(self.left)}")
        return lines


@dataclass(frozen=True)
class Initialised:
    """What :func:`initialise` did; ``str()`` says it in a few lines.

    Attributes:
        modules: one entry for each module of the new model.
        unused_modules: those of the trained model that the new one does not have.
        kept_labels, new_labels, left_labels: of the vocabularies; the blank is always kept. Empty where labels are the
            same, or where no row was taken over.
        parts: of new labels that start from trained ones: the labels whose rows' mean they start from.
    """

    modules: Sequence[InitialisedModule]
    unused_modules: Sequence[str] = ()
    kept_labels: Sequence[str] = ()
    new_labels: Sequence[str] = ()
    left_labels: Sequence[str] = ()
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: Sequence[str] = field(default=())

    @property
    def is_complete(self) -> bool:
        """Whether every tensor of both models found its place."""
        return all(module.is_complete for module in self.modules) and not self.unused_modules

    def __str__(self) -> str:
        lines = [line for module in self.modules for line in module.lines()]
        if self.kept_labels or self.new_labels or self.left_labels:
            lines.append(
                f"labels: {len(self.kept_labels)} kept with the blank{_labels(self.kept_labels)}, "
                f"{len(self.new_labels)} new{_labels(self.new_labels)}, "
                f"{len(self.left_labels)} left{_labels(self.left_labels)}"
            )
        if self.parts:
            written = (f"{label} = {' + '.join(map(_label, parts))}" for label, parts in self.parts.items())
            lines.append(f"{len(self.parts)} of the new labels start from the mean of their parts: {_listed(written)}")
        if self.unused_modules:
            lines.append(f"not used: {', '.join(self.unused_modules)}")
        return "\n".join([*lines, *self.notes])


def initialise(
    modules: Mapping[str, nn.Module],
    weights: Mapping[str, Mapping[str, Tensor]],
    *,
    heads: Sequence[str],
    labels: Sequence[str],
    old_labels: Sequence[str] | None,
) -> Initialised:
    """Copy a trained model's weights into the modules of a new one, as far as they fit; the rest stays as it is.

    A tensor is copied where name and shape are the same. Where the labels differ, also in their order, tensors of
    ``heads`` that have a row for each label and one for the blank (the last one) are taken over row by row: the rows of
    labels that both have, and the blank's. Labels are the same where they write the same: the space is also a piece.
    A new label that trained labels write together starts from the mean of their rows, those of the fewest such labels.

    A module with ``label_tensors`` says itself which tensors have such rows. Behind those of the labels they may have
    others: they are kept where both have as many; where the trained one has the blank's alone, that goes to the blank.

    Args:
        modules: those of the new model, by the name under which they are saved; they are changed in place.
        weights: the tensors of the trained model, by module and name.
        heads: the names of the modules whose weights have rows for labels.
        labels: of the new model, without the blank.
        old_labels: of the trained model; None where nobody knows: then a decoder of the same size is taken as it is.

    Raises:
        CheckpointError: nothing fits but ``heads``. Vectors and counts do not matter here: those of any two models
            may fit.
    """
    labels_differ = old_labels is not None and list(labels) != list(old_labels)
    rows = None if old_labels is None else _rows_of(labels, old_labels)
    done = []
    for name, module in modules.items():
        stored = with_todays_names(module, weights.get(name, {}))
        done.append(_fill(name, module, stored, rows if name in heads else None, labels_differ))
    before_heads = [module for module in done if module.name not in heads]
    if not any(modules[module.name].state_dict()[key].dim() > 1 for module in before_heads for key in module.loaded):
        raise CheckpointError(
            "none of its tensors before the decoder has the name and the shape of one of the new model",
            got=_listed([f"{name} ({len(tensors)} tensors)" for name, tensors in weights.items()]) or "no weights",
            wanted=_listed([f"{name} ({len(module.state_dict())} tensors)" for name, module in modules.items()]),
            remedy="use the configuration that it was trained with, with other labels if you like",
        )
    unused = [name for name in weights if name not in modules]
    notes = [] if old_labels is not None else ["its labels are not known: they are taken to be those of the new model"]
    if not labels_differ or old_labels is None or rows is None or not any(module.by_label for module in done):
        return Initialised(done, unused, notes=notes)
    mine, theirs = {spelled(label) for label in labels}, {spelled(label) for label in old_labels}
    kept, new = [x for x in labels if spelled(x) in theirs], [x for x in labels if spelled(x) not in theirs]
    left = [label for label in old_labels if spelled(label) not in mine]
    parts = {labels[row]: [old_labels[part] for part in of_row] for row, of_row in rows.parts.items()}
    return Initialised(done, unused, kept, new, left, parts, notes)


@dataclass(frozen=True)
class _Rows:
    """Which rows of a trained tensor become which rows of a new one.

    Attributes:
        mine, theirs: the rows of labels that both models have.
        parts: for rows of new labels, those of the trained labels that write them together.
        num_mine, num_theirs: how many labels each model has.
    """

    mine: Sequence[int]
    theirs: Sequence[int]
    parts: Mapping[int, Sequence[int]]
    num_mine: int
    num_theirs: int

    def are_in(self, key: str, value: Tensor, stored: Tensor, named: Sequence[str] | None) -> bool:
        """Whether both tensors have a row for each label, and are alike beside that; ``named``: those that may."""
        if value.dim() == 0 or stored.dim() == 0 or value.shape[1:] != stored.shape[1:]:
            return False
        behind = self.behind(value, stored)
        return behind == (1, 1) if named is None else key in named and min(behind) >= 0

    def behind(self, value: Tensor, stored: Tensor) -> tuple[int, int]:
        """How many rows each has behind those of the labels."""
        return len(value) - self.num_mine, len(stored) - self.num_theirs

    def copy(self, value: Tensor, stored: Tensor, blank: int) -> bool:
        """Fill rows of ``value``; whether those behind the labels were filled too, of which ``blank`` is one."""
        stored = stored.to(value)
        mine, theirs = self.behind(value, stored)
        with torch.no_grad():
            value[list(self.mine)] = stored[list(self.theirs)]
            for row, parts in self.parts.items():
                value[row] = stored[list(parts)].mean(0)
            if mine == theirs:
                value[self.num_mine :] = stored[self.num_theirs :]
            elif mine and theirs == 1:
                value[blank] = stored[-1]
        return mine == theirs


def _rows_of(labels: Sequence[str], old_labels: Sequence[str]) -> _Rows:
    row_of = {spelled(label): row for row, label in enumerate(old_labels)}
    shared = {row: row_of[spelled(label)] for row, label in enumerate(labels) if spelled(label) in row_of}
    cut = {row: _fewest_parts(spelled(label), row_of) for row, label in enumerate(labels) if row not in shared}
    parts = {row: of_row for row, of_row in cut.items() if of_row}
    return _Rows([*shared], [*shared.values()], parts, len(labels), len(old_labels))


def _fewest_parts(text: str, row_of: Mapping[str, int]) -> list[int]:
    """The rows of the fewest labels that write a text together, the first ones as long as can be; none, if none do."""
    # From the end: the best cut of text[start:], None where there is none.
    cuts: list[list[int] | None] = [None] * len(text) + [[]]
    for start in reversed(range(len(text))):
        for end in range(len(text), start, -1):
            rest, row = cuts[end], row_of.get(text[start:end])
            best = cuts[start]
            if rest is not None and row is not None and (best is None or len(rest) + 1 < len(best)):
                cuts[start] = [row, *rest]
    return cuts[0] or []


def _fill(
    name: str, module: nn.Module, stored: Mapping[str, Tensor], rows: _Rows | None, labels_differ: bool
) -> InitialisedModule:
    """Copy what fits into one module; ``rows``: of a head."""
    tensors = {key: value for key, value in module.state_dict().items() if isinstance(value, Tensor)}
    named: Sequence[str] | None = getattr(module, "label_tensors", None)
    loaded, by_label, new = [], [], []
    for key, value in tensors.items():
        theirs = stored.get(key)
        if theirs is None:
            new.append(key)
            continue
        is_same = value.shape == theirs.shape
        if rows is not None and (labels_differ or not is_same) and rows.are_in(key, value, theirs, named):
            is_whole = rows.copy(value, theirs, getattr(module, "blank", rows.num_mine))
            by_label.append(key if is_whole else f"{key}: behind the labels {_behind_text(rows, value, theirs)}")
        elif not is_same:
            new.append(f"{key} (is {shape_text(value)}, was {shape_text(theirs)})")
        else:
            with torch.no_grad():
                value.copy_(theirs)
            loaded.append(key)
    return InitialisedModule(name, loaded, by_label, new, [key for key in stored if key not in tensors])


def _behind_text(rows: _Rows, value: Tensor, stored: Tensor) -> str:
    mine, theirs = rows.behind(value, stored)
    return f"{counted(mine, 'row')}, was {theirs}"


def _labels(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - _MAX_LABELS} more" if len(labels) > _MAX_LABELS else ""
    return f" ({' '.join(map(_label, labels[:_MAX_LABELS]))}{more})" if labels else ""


def _label(label: str) -> str:
    return "space" if label == " " else label


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"{', '.join(names[:_MAX_LISTED])}{more}"
