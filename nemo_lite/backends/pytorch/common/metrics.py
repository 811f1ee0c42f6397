"""Metrics of language models over characters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from torch import Tensor


def char_lm_metrics(
    chars_log_probs_batches: Iterable[Tensor],
    chars_targets_batches: Iterable[Tensor],
    targets_texts_batches: Iterable[Sequence[str]],
    pad_id: int,
) -> tuple[list[float], list[float]]:
    """Bits per character and perplexity per word, for each batch.

    Args:
        chars_log_probs_batches: ``(B, T, classes)`` each, natural logarithms.
        chars_targets_batches: ``(B, T)`` each, ids of characters.
        targets_texts_batches: the texts of each batch, whose words are counted; no words at all count as one.
        pad_id: positions with this target do not count.
    """
    bits_per_character, perplexities = [], []
    for log_probs, targets, texts in zip(
        chars_log_probs_batches, chars_targets_batches, targets_texts_batches, strict=True
    ):
        counted = targets != pad_id
        nats = -float(log_probs.gather(2, targets.long().unsqueeze(2)).squeeze(2)[counted].sum())
        num_words = max(sum(len(text.split()) for text in texts), 1)
        bits_per_character.append(nats / math.log(2) / max(int(counted.sum()), 1))
        perplexities.append(math.exp(nats / num_words))
    return bits_per_character, perplexities
