"""initialise: weights of a new model from those of a trained one, whose labels may differ. It reads no files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nemo_asr.text.labels import spelled
from nemo_lite.backends.pytorch.checkpoint.state import with_todays_names
from nemo_lite.errors import CheckpointError

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
            same.
    """

    modules: Sequence[InitialisedModule]
    unused_modules: Sequence[str] = ()
    kept_labels: Sequence[str] = ()
    new_labels: Sequence[str] = ()
    left_labels: Sequence[str] = ()
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
    rows = _rows(labels, old_labels or ()) if labels_differ else None
    done = [
        _fill(name, module, with_todays_names(module, weights.get(name, {})), rows if name in heads else None)
        for name, module in modules.items()
    ]
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
    if not labels_differ or old_labels is None:
        return Initialised(done, unused, notes=notes)
    mine, theirs = {spelled(label) for label in labels}, {spelled(label) for label in old_labels}
    kept, new = [x for x in labels if spelled(x) in theirs], [x for x in labels if spelled(x) not in theirs]
    return Initialised(done, unused, kept, new, [label for label in old_labels if spelled(label) not in mine])


@dataclass(frozen=True)
class _Rows:
    """Which rows of a tensor with one for each label and the blank are whose: (mine, theirs), and how many."""

    mine: Tensor
    theirs: Tensor
    num_mine: int
    num_theirs: int


def _rows(labels: Sequence[str], old_labels: Sequence[str]) -> _Rows:
    theirs = {spelled(label): row for row, label in enumerate(old_labels)}
    pairs = [(row, theirs[spelled(label)]) for row, label in enumerate(labels) if spelled(label) in theirs]
    pairs.append((len(labels), len(old_labels)))  # CTC's blank comes last
    mine, old = torch.tensor(pairs).unbind(1)
    return _Rows(mine, old, len(labels) + 1, len(old_labels) + 1)


def _fill(name: str, module: nn.Module, stored: Mapping[str, Tensor], rows: _Rows | None) -> InitialisedModule:
    """Copy what fits into one module."""
    tensors = {key: value for key, value in module.state_dict().items() if isinstance(value, Tensor)}
    loaded, by_label, new = [], [], []
    for key, value in tensors.items():
        theirs = stored.get(key)
        if theirs is None:
            new.append(key)
        elif rows is not None and _has_row_for_each_label(value, theirs, rows):
            with torch.no_grad():
                value[rows.mine.to(value.device)] = theirs[rows.theirs].to(value)
            by_label.append(key)
        elif value.shape != theirs.shape:
            new.append(f"{key} (is {_shape(value)}, was {_shape(theirs)})")
        else:
            with torch.no_grad():
                value.copy_(theirs)
            loaded.append(key)
    return InitialisedModule(name, loaded, by_label, new, [key for key in stored if key not in tensors])


def _has_row_for_each_label(value: Tensor, theirs: Tensor, rows: _Rows) -> bool:
    if value.dim() == 0 or theirs.dim() == 0 or value.shape[1:] != theirs.shape[1:]:
        return False
    return value.shape[0] == rows.num_mine and theirs.shape[0] == rows.num_theirs


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"


def _labels(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - _MAX_LABELS} more" if len(labels) > _MAX_LABELS else ""
    listed = " ".join("space" if label == " " else label for label in labels[:_MAX_LABELS])
    return f" ({listed}{more})" if labels else ""


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"{', '.join(names[:_MAX_LISTED])}{more}"
