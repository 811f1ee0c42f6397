"""NeMo's functions for its ``EvaluatorCallback``: values of wires by the names of their ports, epochs to rates.

They collect in a dictionary of the script, ``global_vars``, which a metric needs not (`nemo_lite.core.Metric`).
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nemo_asr.decoding.greedy import post_process_predictions, post_process_transcripts
from nemo_asr.scoring.classification import classification_accuracy
from nemo_asr.scoring.nemo_lines import LineWriter, checked_metric, listed_top_k, log_accuracies, log_error_rate
from nemo_asr.scoring.rates import ErrorCounts, count_errors
from nemo_asr.scoring.word_error_rate import mean_loss
from nemo_lite.base.errors import UsageError

# Any: evaluated values are tensors of each worker, other keys have values of their own; what is collected are lists.


# What ports are called in data layers and decoders of scripts for NeMo, which looks for the beginning of a name.
_SPELLINGS = {
    "transcripts": ("transcript",),
    "transcript_length": ("transcripts_length", "transcript_len"),
    "encoded_lengths": ("predictions_length", "predictions_len", "encoded_length", "encoded_len"),
    "label": ("labels", "targets"),
}


def process_evaluation_batch(
    tensors: Mapping[str, Any], global_vars: MutableMapping[str, Any], labels: Sequence[str]
) -> None:
    """Collect one evaluated batch: the ``user_iter_callback`` of an evaluator.

    ``global_vars`` gets ``predictions`` and ``transcripts`` (lists of str), ``EvalLoss`` (a list of losses),
    ``EvalSize`` (the utterances behind each loss) and ``logits`` (batches of log-probabilities, if they are evaluated).

    Args:
        tensors: unique wire name to a list of values, one for each worker; other keys (IS_FROM_DIST_EVAL) are passed
            over. Needed are the ports predictions, transcripts and transcript_length; loss, output and encoded_lengths
            are used when there.
        global_vars: what the batches of this evaluation have given so far.
        labels: the vocabulary.

    Raises:
        UsageError: a needed wire is missing, or two wires come from ports of one name.
    """
    transcripts = _values_of(tensors, "transcripts")
    predictions, lengths = _values_of(tensors, "predictions"), _values_of(tensors, "encoded_lengths", needed=False)
    spoken = post_process_transcripts(transcripts, _values_of(tensors, "transcript_length"), labels)
    _extend(global_vars, "predictions", post_process_predictions(predictions, labels, lengths or None))
    _extend(global_vars, "transcripts", spoken)
    _extend(global_vars, "logits", _values_of(tensors, "output", needed=False))
    _collect_losses(tensors, transcripts, global_vars)


def process_evaluation_epoch(
    global_vars: Mapping[str, Any],
    eval_metric: str = "WER",
    tag: str | None = None,
    logger: LineWriter | None = None,
) -> dict[str, float]:
    """Score and log what :func:`process_evaluation_batch` collected: the ``user_epochs_done_callback`` of an evaluator.

    Args:
        global_vars: the collected batches.
        eval_metric: WER or CER.
        tag: the name of the evaluated set.
        logger: where to write, as scripts of NeMo 0.9 say it; by default the log.

    Returns:
        ``Evaluation_Loss[_tag]``, the mean over utterances (left out when no loss was evaluated), and
        ``Evaluation_WER[_tag]`` (or CER), pooled over the corpus, as a fraction.
    """
    metric, key = checked_metric(eval_metric), f"_{tag}" if tag else ""
    errors, loss = _errors(global_vars, use_cer=metric == "CER"), _loss(global_vars)
    log_error_rate(errors, loss, metric, tag, logger)
    losses = {} if loss is None else {f"Evaluation_Loss{key}": loss}
    return {**losses, f"Evaluation_{metric}{key}": errors.rate}


def score_evaluation(global_vars: Mapping[str, Any]) -> dict[str, float]:
    """Score what :func:`process_evaluation_batch` collected, and log nothing.

    Returns:
        ``loss``, the mean over utterances (left out when no loss was evaluated), ``wer`` and ``cer``: errors by words
        and by characters of the references, pooled over the corpus, as fractions.
    """
    loss = _loss(global_vars)
    rates = {name: _errors(global_vars, use_cer=name == "cer").rate for name in ("wer", "cer")}
    return rates if loss is None else {"loss": loss, **rates}


def process_classification_evaluation_batch(
    tensors: Mapping[str, Any], global_vars: MutableMapping[str, Any], top_k: int | Sequence[int] | None = 1
) -> None:
    """Collect one evaluated batch of class predictions: the ports logits and label, and loss when there.

    ``global_vars`` gets ``EvalLoss``, ``EvalSize``, ``batchsize`` and ``CorrectCount@k`` for each k of ``top_k``.

    Raises:
        UsageError: as in :func:`process_evaluation_batch`.
    """
    classes = _values_of(tensors, "label")
    logits, targets = torch.cat(list(_values_of(tensors, "logits"))), torch.cat(list(classes))
    ks = listed_top_k(top_k)
    _extend(global_vars, "batchsize", [len(targets)])
    for k, accuracy in zip(ks, classification_accuracy(logits, targets, ks), strict=True):
        _extend(global_vars, f"CorrectCount@{k}", [round(accuracy * len(targets))])
    _collect_losses(tensors, classes, global_vars)


def process_classification_evaluation_epoch(
    global_vars: Mapping[str, Any], eval_metric: int | Sequence[int] | None = None, tag: str | None = None
) -> dict[str, float]:
    """Score and log what :func:`process_classification_evaluation_batch` collected.

    Returns:
        ``Evaluation_Loss tag`` (left out when no loss was evaluated) and ``Evaluation_Accuracy_Top@k tag``, a fraction;
        nothing at all when no item was evaluated.
    """
    total, loss, key = sum(global_vars.get("batchsize", [])), _loss(global_vars), f" {tag}" if tag else ""
    if not total:
        return {}
    accuracies = {k: sum(global_vars[f"CorrectCount@{k}"]) / total for k in listed_top_k(eval_metric)}
    log_accuracies(accuracies, loss, tag)
    losses = {} if loss is None else {f"Evaluation_Loss{key}": loss}
    return {**losses, **{f"Evaluation_Accuracy_Top@{k}{key}": accuracy for k, accuracy in accuracies.items()}}


def _values_of(tensors: Mapping[str, Any], port: str, needed: bool = True) -> Sequence[Tensor]:
    """The values, one for each worker, of the wire from a port; none where there is none, if it is not needed."""
    ports = [name.partition("~~~")[0] for name in tensors]
    port = next((spelling for spelling in (port, *_SPELLINGS.get(port, ())) if spelling in ports), port)
    names = [name for name in tensors if name.partition("~~~")[0] == port]
    if len(names) > 1:
        raise UsageError(
            f"two evaluated tensors come from ports called {port}",
            got=" and ".join(names),
            remedy="evaluate one of them, or collect them in a callback of your own",
        )
    if needed and not names:
        got = ", ".join(name.partition("~~~")[0] for name in tensors)
        problem = f"no evaluated tensor comes from a port called {port}"
        raise UsageError(problem, got=got, remedy="add it to eval_tensors")
    return tensors[names[0]] if names else ()


def _extend(global_vars: MutableMapping[str, Any], name: str, values: Sequence[object]) -> None:
    global_vars.setdefault(name, []).extend(values)


def _collect_losses(
    tensors: Mapping[str, Any], batches: Sequence[Tensor], global_vars: MutableMapping[str, Any]
) -> None:
    """Where a loss was evaluated, each with its number of utterances."""
    if losses := _values_of(tensors, "loss", needed=False):
        _extend(global_vars, "EvalLoss", losses)
        _extend(global_vars, "EvalSize", [len(batch) for batch in batches])


def _loss(global_vars: Mapping[str, Any]) -> float | None:
    return mean_loss(global_vars["EvalLoss"], global_vars["EvalSize"]) if global_vars.get("EvalLoss") else None


def _errors(global_vars: Mapping[str, Any], use_cer: bool) -> ErrorCounts:
    return count_errors(global_vars.get("predictions", []), global_vars.get("transcripts", []), use_cer)
