"""Scores of classes: accuracy, confusions; and of speakers by embeddings: are two recordings of one speaker?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nemo_lite.base.errors import UsageError


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


class EqualErrorRate(NamedTuple):
    """Where as many pairs of one speaker are refused as pairs of two speakers are accepted.

    Attributes:
        rate: the share of both.
        threshold: the score from which a pair is accepted there.
    """

    rate: float
    threshold: float


def equal_error_rate(scores: Tensor, is_same: Tensor) -> EqualErrorRate:
    """The equal error rate of pairs; between two thresholds the rates are interpolated.

    Args:
        scores: (N,) of the pairs; higher: rather of one speaker.
        is_same: (N,) true for pairs of one speaker.

    Raises:
        UsageError: no pair of one speaker, or none of two; or a score is not finite.
    """
    scores, same = scores.flatten().double(), is_same.flatten().bool()
    num_same, num_other = int(same.sum()), int((~same).sum())
    if not num_same or not num_other:
        got = f"{num_same} of one speaker, {num_other} of two"
        raise UsageError("an equal error rate needs pairs of both kinds", got=got, remedy="take more recordings")
    if not bool(scores.isfinite().all()):
        raise UsageError("scores must be finite", got=f"{int((~scores.isfinite()).sum())} that are not")
    order = scores.argsort(descending=True)
    scores, same = scores[order], same[order]
    last_of_equals = torch.cat([scores[1:] != scores[:-1], torch.tensor([True])])
    start = torch.zeros(1, dtype=torch.double)
    # Accepted are the pairs up to each threshold: first none, then those with the highest score, and so on.
    accepted = torch.cat([start, (~same).cumsum(0).double()[last_of_equals] / num_other])
    refused = torch.cat([start + 1, 1 - same.cumsum(0).double()[last_of_equals] / num_same])
    thresholds = torch.cat([scores[:1], scores[last_of_equals]])
    behind = int((accepted >= refused).nonzero()[0])  # the first threshold past the crossing; the very first never is
    before = behind - 1
    gap_before, gap_behind = (float(refused[place] - accepted[place]) for place in (before, behind))
    share = gap_before / (gap_before - gap_behind)
    rate = float(torch.lerp(accepted[before], accepted[behind], share))
    return EqualErrorRate(rate, float(torch.lerp(thresholds[before], thresholds[behind], share)))


def all_pairs(embeddings: Tensor, speakers: Tensor) -> tuple[Tensor, Tensor]:
    """Each pair of different recordings: the cosine of the angle between their embeddings, and whether of one speaker.

    Args:
        embeddings: (N, E).
        speakers: (N,) numbers.

    Returns:
        scores and truth, (N * (N - 1) / 2,) each.
    """
    directions = F.normalize(embeddings.double(), dim=1)
    first, second = torch.triu_indices(len(speakers), len(speakers), offset=1)
    return (directions @ directions.T)[first, second], speakers[first] == speakers[second]
