"""The lines of NeMo's scripts: progress of a training on its last batch, and the rates of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from nemo_asr.decoding.greedy import post_process_predictions, post_process_transcripts
from nemo_asr.scoring.classification import classification_accuracy
from nemo_asr.scoring.rates import ErrorCounts, count_errors
from nemo_lite.base.errors import UsageError
from nemo_lite.utils import logging

_EPOCH = "==========>>>>>>Evaluation"
_METRICS = ("WER", "CER")


class ScalarWriter(Protocol):
    """What is needed of a TensorBoard writer."""

    def add_scalar(self, tag: str, scalar_value: float, /) -> object: ...


class LineWriter(Protocol):
    """What is needed of a logger."""

    def info(self, line: str, /) -> object: ...


def monitor_asr_train_progress(
    tensors: Sequence[Tensor],
    labels: Sequence[str],
    eval_metric: str = "WER",
    tb_logger: ScalarWriter | None = None,
    logger: LineWriter | None = None,
) -> None:
    """Log the loss, the error rate of the batch, and its first utterance as recognised and as spoken.

    Args:
        tensors: loss, predictions (B, T), transcripts (B, U), transcript lengths (B,) and, where the decoder does not
            blank the padding itself, the lengths (B,) of the predictions. Scripts of the first NeMo have no loss there.
        labels: the vocabulary.
        eval_metric: WER or CER.
        tb_logger: a writer that gets the rate too.
        logger: where to write, as scripts of NeMo 0.9 say it; by default the log.

    Raises:
        UsageError: fewer tensors.
    """
    metric = checked_metric(eval_metric)
    losses = [value for value in tensors[:1] if getattr(value, "ndim", 0) < 2]  # predictions have two axes
    if len(tensors) < len(losses) + 3:
        wanted = "loss, predictions, transcripts and transcript lengths"
        place = "monitor_asr_train_progress"
        raise UsageError("tensors are missing", place=place, got=str(len(tensors)), wanted=wanted)
    predictions, transcripts, transcript_lengths, *ends = tensors[len(losses) :]
    hypotheses = post_process_predictions([predictions], labels, ends or None)
    references = post_process_transcripts([transcripts], [transcript_lengths], labels)
    rate = count_errors(hypotheses, references, use_cer=metric == "CER").rate
    tag = f"training_batch_{metric}"
    if tb_logger is not None:
        tb_logger.add_scalar(tag, rate)
    log = logger or logging
    for loss in losses:
        log.info(f"Loss: {float(loss)}")
    log.info(f"{tag}: {rate * 100: 5.2f}%")
    log.info(f"Prediction: {hypotheses[0]}")
    log.info(f"Reference: {references[0]}")


def monitor_classification_training_progress(
    tensors: Sequence[Tensor], eval_metric: int | Sequence[int] | None = None, tb_logger: ScalarWriter | None = None
) -> None:
    """Log the loss and the accuracy of the batch.

    Args:
        tensors: loss, logits (B, C), class ids (B,).
        eval_metric: the k of top-k accuracy, one or several; 1 by default.
        tb_logger: a writer that gets the accuracies too.
    """
    loss, logits, targets = tensors
    top_k = listed_top_k(eval_metric)
    logging.info(f"Loss: {float(loss)}")
    for k, accuracy in zip(top_k, classification_accuracy(logits, targets, top_k), strict=True):
        tag = f"training_batch_top@{k}"
        if tb_logger is not None:
            tb_logger.add_scalar(tag, accuracy)
        logging.info(f"{tag}: {accuracy * 100:3.4f}")


def log_error_rate(
    errors: ErrorCounts, loss: float | None, eval_metric: str, tag: str | None = None, logger: LineWriter | None = None
) -> None:
    """Log what an evaluation of texts gave.

    Args:
        errors: of words or characters, as the metric says.
        loss: the mean over utterances; None: no loss was evaluated.
        eval_metric: WER or CER.
        tag: the name of the evaluated set.
        logger: where to write; by default the log.
    """
    log, said = logger or logging, f" {tag}" if tag else ""
    metric = checked_metric(eval_metric)
    if loss is not None:
        log.info(f"{_EPOCH} Loss{said}: {loss}")
    log.info(f"{_EPOCH} {metric}{said}: {errors.rate * 100: 5.2f}%")
    unit = "words" if metric == "WER" else "characters"
    log.info(f"{_EPOCH} errors{said}: {errors} in {errors.reference_length} {unit} of {errors.utterances} utterances")


def log_accuracies(accuracies: Mapping[int, float], loss: float | None, tag: str | None = None) -> None:
    """Log what an evaluation of classes gave: the accuracy by the k of top-k, and the loss where one was evaluated."""
    said = f" {tag}" if tag else ""
    if loss is not None:
        logging.info(f"{_EPOCH} Loss{said}: {loss:.3f}")
    for k, accuracy in accuracies.items():
        logging.info(f"{_EPOCH} Accuracy Top@{k}{said}: {accuracy * 100:3.4f}")


def checked_metric(name: str) -> str:
    """WER or CER, in capitals.

    Raises:
        UsageError: it is another one.
    """
    if name.upper() not in _METRICS:
        raise UsageError("eval_metric is not known", got=name, wanted=" or ".join(_METRICS))
    return name.upper()


def listed_top_k(top_k: int | Sequence[int] | None) -> list[int]:
    """The numbers of top-k accuracies, ascending: 1 by default."""
    if top_k is None:
        return [1]
    return [top_k] if isinstance(top_k, int) else sorted(top_k)
