"""Metrics: numbers over an evaluation, each with the direction in which it is good. No torch, no ranks in this file."""

from __future__ import annotations

import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_lite.base.errors import UsageError
from nemo_lite.core.neural_types import NmTensor

# Any: values of wires are tensors of the backend, or what a module returns.

# Words of a value's name that say whether low or high values are good, where no metric does.
_LOW_IS_GOOD = {"wer", "cer", "ler", "per", "eer", "error", "errors", "loss", "mse", "mae", "rmse", "perplexity", "ppl"}
_HIGH_IS_GOOD = {"accuracy", "acc", "precision", "recall", "f1", "auc", "bleu", "score"}


class Metric(ABC):
    """A number over all items of an evaluation: ``EvaluatorCallback(metrics={"accuracy": Accuracy(logits, labels)})``.

    A subclass says ``higher_is_better``, and sums up in :meth:`update`. With several ranks, rank 0 updates with the
    batches of all of them, each item once and in data order: so the value is that of one process, and a metric needs
    no exchange of its own.

    Args:
        wires: what :meth:`update` gets, by the name of its argument: ``MaxError(predictions=wire, targets=other)``.

    Attributes:
        higher_is_better: whether a high value is good: what the best checkpoint and the lines of the log go by.
        wires: see above.
        positions: of the evaluated items in data order, known when the value is asked for; ``None`` where the data
            layer does not number them.

    Raises:
        UsageError: wires without names.
    """

    higher_is_better: bool
    positions: Sequence[int] | None = None

    def __init__(self, *nameless: NmTensor, **wires: NmTensor) -> None:
        if nameless:
            kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
            parameters = inspect.signature(self.update).parameters.values()
            names = [parameter.name for parameter in parameters if parameter.kind in kinds] or ["name_in_update"]
            call = f"{type(self).__name__}({', '.join(f'{name}=...' for name in names)})"
            got = f"{len(nameless)} without a name"
            raise UsageError("a metric gets its wires by name", place=type(self).__name__, got=got, wanted=call)
        self.wires = wires

    @abstractmethod
    def reset(self) -> None:
        """Forget all batches: an evaluation begins."""

    @abstractmethod
    def update(self, **values: Any) -> None:
        """Take the values of one batch, by the names of ``wires``."""

    @abstractmethod
    def value(self) -> float:
        """The number over all batches since :meth:`reset`."""

    def interval(self) -> tuple[float, float] | None:
        """The ends of the value's 95 % interval, which become ``NAME_low`` and ``NAME_high``; None: not known."""
        return None

    def tagged_values(self, tag: str) -> dict[str, float]:
        """The results by tag: the value, and the ends of its interval; override it for a metric of several numbers.

        Args:
            tag: of the value.
        """
        interval = self.interval()
        ends = {} if interval is None else {f"{tag}_low": interval[0], f"{tag}_high": interval[1]}
        return {tag: self.value(), **ends}


class Accuracy(Metric):
    """The share of items whose class is among the highest scores.

    Args:
        logits: scores (B, C), or (B, ..., C).
        labels: class ids (B,), or (B, ...).
        top_k: how many of the highest scores count.
    """

    higher_is_better = True

    def __init__(self, logits: NmTensor, labels: NmTensor, top_k: int = 1) -> None:
        super().__init__(logits=logits, labels=labels)
        self._top_k = top_k
        self._num_correct = self._num_items = 0

    def reset(self) -> None:
        """Forget all batches."""
        self._num_correct = self._num_items = 0

    def update(self, *, logits: Any, labels: Any) -> None:  # type: ignore[override]  # the names of the wires
        """Count a batch."""
        highest = logits.topk(min(self._top_k, logits.shape[-1]), dim=-1).indices
        self._num_correct += int((highest == labels.unsqueeze(-1)).sum())
        self._num_items += labels.numel()

    def value(self) -> float:
        """A share from 0 to 1; NaN without items."""
        return self._num_correct / self._num_items if self._num_items else math.nan


class Mean(Metric):
    """The mean over items of a number for each batch that is a mean over the batch, such as a loss.

    Args:
        batch_mean: one number for each batch.
        items: a wire whose first dimension counts the batch's items.
        higher_is_better: whether a high value is good; a loss is good when it is low.
    """

    def __init__(self, batch_mean: NmTensor, items: NmTensor, higher_is_better: bool = False) -> None:
        super().__init__(batch_mean=batch_mean, items=items)
        self.higher_is_better = higher_is_better
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._sum, self._num_items = 0.0, 0

    def update(self, *, batch_mean: Any, items: Any) -> None:  # type: ignore[override]  # the names of the wires
        """Add a batch."""
        self._sum += float(batch_mean) * len(items)
        self._num_items += len(items)

    def value(self) -> float:
        """The mean; NaN without items."""
        return self._sum / self._num_items if self._num_items else math.nan


def higher_is_better(name: str, directions: Mapping[str, bool] | None = None, place: str = "") -> bool:
    """Whether a high value of this name is good.

    Args:
        name: the value's tag: ``wer``, ``accuracy``.
        directions: what metrics say of theirs, by name.
        place: for the error.

    Raises:
        UsageError: no metric says so, and the name's words do not.
    """
    if directions and name in directions:
        return directions[name]
    words = set(re.findall("[a-z]+1?", name.lower()))
    is_low, is_high = bool(words & _LOW_IS_GOOD), bool(words & _HIGH_IS_GOOD)
    if is_low == is_high:
        problem = f"it is not known whether a good {name} is low or high"
        remedy = 'give best_is="lowest" or best_is="highest", or evaluate it as a Metric'
        raise UsageError(problem, place=place, remedy=remedy)
    return is_high


def directions_of(metrics: Mapping[str, Metric]) -> dict[str, bool]:
    """Whether a high value is good, by the metrics' tags.

    Raises:
        UsageError: a metric does not say so.
    """
    directions: dict[str, bool] = {}
    for tag, metric in metrics.items():
        direction = getattr(metric, "higher_is_better", None)
        if not isinstance(direction, bool):
            problem = f"{type(metric).__name__} does not say whether a high value is good"
            raise UsageError(problem, place=f"metric {tag}", remedy="set higher_is_better to True or False")
        directions[tag] = direction
    return directions
