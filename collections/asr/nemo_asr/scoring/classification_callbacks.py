"""The functions that classification hands to callbacks: what to print while training, how to score an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch

from nemo_asr.scoring.bootstrap import bootstrap_interval, class_errors
from nemo_asr.scoring.classification import classification_accuracy
from nemo_asr.scoring.evaluated import EPOCH_LINE, ScalarWriter, by_port, collect_losses, mean_loss, take
from nemo_lite.utils import logging

# Any: evaluated values are tensors, lists or numbers.
_LOGITS = ("logits",)
_CLASSES = ("label", "labels", "targets")


def monitor_classification_training_progress(
    tensors: Sequence[Any], eval_metric: int | Sequence[int] | None = None, tb_logger: ScalarWriter | None = None
) -> None:
    """Log the loss and the accuracy of the batch.

    Args:
        tensors: loss, logits (B, C), class ids (B,).
        eval_metric: the k of top-k accuracy, one or several; 1 by default.
        tb_logger: a writer that gets the accuracies too.
    """
    loss, logits, targets = tensors
    top_k = _top_k(eval_metric)
    logging.info(f"Loss: {float(loss)}")
    for k, accuracy in zip(top_k, classification_accuracy(logits, targets, top_k), strict=True):
        tag = f"training_batch_top@{k}"
        if tb_logger is not None:
            tb_logger.add_scalar(tag, accuracy)
        logging.info(f"{tag}: {accuracy * 100:3.4f}")


def process_classification_evaluation_batch(
    tensors: Mapping[str, Any], global_vars: MutableMapping[str, Any], top_k: int | Sequence[int] | None = 1
) -> None:
    """Collect one evaluated batch of class predictions: the ports logits and label, and loss when there.

    ``global_vars`` gets ``EvalLoss``, ``EvalSize``, ``batchsize`` and ``CorrectCount@k`` for each k of ``top_k``.

    Raises:
        UsageError: as in :func:`process_evaluation_batch`.
    """
    wires = by_port(tensors)
    logits, targets = torch.cat(list(take(wires, _LOGITS))), torch.cat(list(take(wires, _CLASSES)))
    sizes = [len(batch) for batch in take(wires, _CLASSES)]
    ks = _top_k(top_k)
    global_vars.setdefault("batchsize", []).append(sum(sizes))
    for k, accuracy in zip(ks, classification_accuracy(logits, targets, ks), strict=True):
        global_vars.setdefault(f"CorrectCount@{k}", []).append(round(accuracy * len(targets)))
    collect_losses(wires, sizes, global_vars)


def process_classification_evaluation_epoch(
    global_vars: Mapping[str, Any], eval_metric: int | Sequence[int] | None = None, tag: str | None = None
) -> dict[str, float]:
    """Score and log what :func:`process_classification_evaluation_batch` collected.

    Returns:
        ``Evaluation_Loss tag`` (left out when no loss was evaluated) and ``Evaluation_Accuracy_Top@k tag``, a fraction;
        nothing at all when no item was evaluated.
    """
    total = sum(global_vars.get("batchsize", []))
    if not total:
        return {}
    said = f" {tag}" if tag else ""
    results = {}
    if global_vars.get("EvalLoss"):
        results[f"Evaluation_Loss{said}"] = loss = mean_loss(global_vars)
        logging.info(f"{EPOCH_LINE} Loss{said}: {loss:.3f}")
    for k in _top_k(eval_metric):
        results[f"Evaluation_Accuracy_Top@{k}{said}"] = accuracy = sum(global_vars[f"CorrectCount@{k}"]) / total
        logging.info(f"{EPOCH_LINE} Accuracy Top@{k}{said}: {accuracy * 100:3.4f}")
    return results


def score_classes(global_vars: Mapping[str, Any]) -> dict[str, float]:
    """Score what :func:`process_classification_evaluation_batch` collected for k = 1, and log nothing.

    Returns:
        ``loss``, the mean over recordings (left out when no loss was evaluated), and ``error``: the share of recordings
        whose highest score is that of another class, with the ends of its 95 % interval, ``error_low`` and
        ``error_high``. Nothing at all when no recording was evaluated.
    """
    total = sum(global_vars.get("batchsize", []))
    if not total:
        return {}
    num_correct = sum(global_vars["CorrectCount@1"])
    interval = bootstrap_interval(class_errors(np.arange(total) >= num_correct))
    rates = {"error": 1.0 - num_correct / total, "error_low": interval.low, "error_high": interval.high}
    return {"loss": mean_loss(global_vars), **rates} if global_vars.get("EvalLoss") else rates


def _top_k(top_k: int | Sequence[int] | None) -> list[int]:
    if top_k is None:
        return [1]
    return [top_k] if isinstance(top_k, int) else sorted(top_k)
