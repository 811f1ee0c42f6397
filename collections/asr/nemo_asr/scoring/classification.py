"""Scores of class predictions: accuracy and confusion matrix. Texts are scored in ``error_counts``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nemo_lite.errors import UsageError


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
