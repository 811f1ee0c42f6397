"""Scores of hypotheses and of class predictions: word and character error counts, accuracy, confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from nemo_lite.errors import UsageError


@dataclass(frozen=True)
class ErrorCounts:
    """What an alignment of hypotheses with references found, summed over a corpus.

    ``insertions``, ``deletions``, ``substitutions`` and ``correct`` count words (or characters); ``utterances`` counts
    pairs. Counts add up with ``+``, so a corpus may be scored in parts, on several machines.
    """

    insertions: int = 0
    deletions: int = 0
    substitutions: int = 0
    correct: int = 0
    utterances: int = 0

    @property
    def errors(self) -> int:
        """Insertions, deletions and substitutions: the edit distance."""
        return self.insertions + self.deletions + self.substitutions

    @property
    def reference_length(self) -> int:
        """Words (or characters) of the references."""
        return self.correct + self.deletions + self.substitutions

    @property
    def rate(self) -> float:
        """Errors by reference length: 0.05 is 5 %. Infinite where the references have no words."""
        return self.errors / self.reference_length if self.reference_length else float("inf")

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        return ErrorCounts(*(mine + theirs for mine, theirs in zip(self._counts(), other._counts(), strict=True)))

    def as_dict(self) -> dict[str, int]:
        """The five counts by name; ``ErrorCounts(**counts)`` is the way back."""
        return asdict(self)

    def _counts(self) -> tuple[int, ...]:
        return self.insertions, self.deletions, self.substitutions, self.correct, self.utterances


def count_errors(hypotheses: Sequence[str], references: Sequence[str], use_cer: bool = False) -> ErrorCounts:
    """Align each hypothesis with its reference by the fewest edits, and sum what was found.

    Args:
        hypotheses: what was recognised.
        references: what was said, in the same order.
        use_cer: count characters, spaces among them, instead of words.

    Raises:
        UsageError: the lists differ in length.
    """
    if len(hypotheses) != len(references):
        raise UsageError(
            "hypotheses and references must pair up",
            got=f"{len(hypotheses)} hypotheses and {len(references)} references",
        )
    insertions = deletions = substitutions = correct = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        said: Sequence[str] = reference if use_cer else reference.split()
        heard: Sequence[str] = hypothesis if use_cer else hypothesis.split()
        tags = [edit.tag for edit in Levenshtein.editops(said, heard)]
        deleted, replaced = tags.count("delete"), tags.count("replace")
        insertions += len(tags) - deleted - replaced
        deletions += deleted
        substitutions += replaced
        correct += len(said) - deleted - replaced
    return ErrorCounts(insertions, deletions, substitutions, correct, len(references))


def word_error_rate(hypotheses: Sequence[str], references: Sequence[str], use_cer: bool = False) -> float:
    """Errors by words (``use_cer``: characters) of the references, pooled over all utterances: 0.05 is 5 %.

    Infinite when the references have no words. See :func:`count_errors` for the arguments and errors.
    """
    return count_errors(hypotheses, references, use_cer).rate


def classification_accuracy(logits: Tensor, targets: Tensor, top_k: Sequence[int] | None = None) -> list[float]:
    """The share of items whose target is among the k highest logits, for each k of ``top_k`` (default: 1).

    Args:
        logits: (B, C) scores of C classes.
        targets: (B,) class ids.

    Raises:
        UsageError: a k is not in 1..C.
    """
    ks = [1] if top_k is None else list(top_k)
    num_classes = logits.shape[-1]
    if any(not 1 <= k <= num_classes for k in ks):
        raise UsageError("top_k is out of range", got=str(ks), wanted=f"numbers from 1 to {num_classes}, the classes")
    best = logits.topk(max(ks), dim=-1).indices
    hits = best == targets.reshape(-1, 1)
    return [float(hits[:, :k].any(dim=1).double().mean()) for k in ks]


def classification_confusion_matrix(logits: Tensor, targets: Tensor) -> Tensor:
    """How often each class (row) was taken for each class (column).

    Args:
        logits: (B, C) scores of C classes.
        targets: (B,) class ids.

    Returns:
        (C, C) counts, int64.
    """
    num_classes = logits.shape[-1]
    pairs = targets.reshape(-1).long() * num_classes + logits.argmax(dim=-1)
    return torch.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)
