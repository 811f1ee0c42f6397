"""The functions that scripts hand to callbacks: what to print while training, what to collect and score in evaluation.

Decoding is greedy and of whole batches. Scores live in metrics.py; nothing in here runs a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from nemo_asr.scoring.metrics import ErrorCounts, classification_accuracy, count_errors
from nemo_lite.errors import UsageError
from nemo_lite.utils import logging

# The wires of an evaluation arrive under their unique names, `port~~~module~~~id`; these are the ports looked for.
_LOSS = ("loss",)
_PREDICTIONS = ("predictions",)
_PREDICTION_LENGTHS = ("predictions_length", "predictions_len", "encoded_lengths", "encoded_length", "encoded_len")
_TRANSCRIPTS = ("transcripts", "transcript")
_TRANSCRIPT_LENGTHS = ("transcript_length", "transcripts_length", "transcript_len")
_LOG_PROBS = ("output",)
_LOGITS = ("logits",)
_CLASSES = ("label", "labels", "targets")

_Wires: TypeAlias = dict[str, list[tuple[str, Sequence[Any]]]]

_METRICS = ("WER", "CER")
_EPOCH_LINE = "==========>>>>>>Evaluation"


class ScalarWriter(Protocol):
    """What is needed of a TensorBoard writer."""

    def add_scalar(self, tag: str, scalar_value: float, /) -> object: ...


class LineWriter(Protocol):
    """What is needed of a logger."""

    def info(self, line: str, /) -> object: ...


def ctc_collapse(predictions: Tensor, lengths: Tensor | None, blank: int) -> list[list[int]]:
    """Best paths to label ids: repeats merged, then blanks left out, frames beyond ``lengths`` not looked at.

    Source: Graves et al., "Connectionist Temporal Classification", ICML 2006, section 3.1.

    Args:
        predictions: (B, T) the best label of each frame.
        lengths: (B,) frames that belong to each utterance; None where all of them do.
        blank: the id of the CTC blank.
    """
    predictions = predictions.detach().cpu()
    keep = predictions != blank
    keep[:, 1:] &= predictions[:, 1:] != predictions[:, :-1]
    if lengths is not None:
        keep &= torch.arange(predictions.shape[1]) < lengths.detach().cpu().reshape(-1, 1)
    return _cut(predictions[keep].tolist(), keep.sum(dim=1).tolist())


def post_process_predictions(
    predictions: Iterable[Tensor], labels: Sequence[str], lengths: Iterable[Tensor] | None = None
) -> list[str]:
    """The hypotheses of all batches of best paths.

    Args:
        predictions: batches of (B, T) ids, as ``infer`` returns them; the id ``len(labels)`` is the blank.
        labels: the vocabulary.
        lengths: for each batch, (B,) frames of each utterance. Leave it out only where the decoder has already
            blanked the frames that are padding.

    Raises:
        UsageError: an id is neither a label nor the blank, or ``lengths`` has another number of batches.
    """
    batches = list(predictions)
    ends: list[Tensor | None] = [None] * len(batches) if lengths is None else list(lengths)
    if len(ends) != len(batches):
        raise UsageError(
            "predictions and lengths must pair up", got=f"{len(batches)} batches of predictions, {len(ends)} of lengths"
        )
    blank = len(labels)
    return [
        _write(ids, labels) for batch, end in zip(batches, ends, strict=True) for ids in ctc_collapse(batch, end, blank)
    ]


def post_process_transcripts(
    transcripts: Iterable[Tensor], transcript_lengths: Iterable[Tensor], labels: Sequence[str]
) -> list[str]:
    """The references of all batches.

    Args:
        transcripts: batches of (B, U) label ids, padded.
        transcript_lengths: for each batch, (B,) labels of each utterance.
        labels: the vocabulary.

    Raises:
        UsageError: an id inside a length is not a label.
    """
    return [
        _write(ids[:length], labels)
        for batch, lengths in zip(transcripts, transcript_lengths, strict=True)
        for ids, length in zip(batch.tolist(), lengths.tolist(), strict=True)
    ]


def monitor_asr_train_progress(
    tensors: Sequence[Any],
    labels: Sequence[str],
    eval_metric: str = "WER",
    tb_logger: ScalarWriter | None = None,
    logger: LineWriter | None = None,
) -> None:
    """Log the loss, the error rate of the batch, and its first utterance as recognised and as spoken.

    Args:
        tensors: loss, predictions (B, T), transcripts (B, U), transcript lengths (B,) and, where the decoder does not
            blank the padding itself, the lengths (B,) of the predictions.
        labels: the vocabulary.
        eval_metric: WER or CER.
        tb_logger: a writer that gets the rate too.
        logger: where to write, as scripts of NeMo 0.9 say it; by default the log.
    """
    metric = _known_metric(eval_metric)
    loss, predictions, transcripts, transcript_lengths, *ends = tensors
    hypotheses = post_process_predictions([predictions], labels, ends or None)
    references = post_process_transcripts([transcripts], [transcript_lengths], labels)
    rate = count_errors(hypotheses, references, use_cer=metric == "CER").rate
    tag = f"training_batch_{metric}"
    if tb_logger is not None:
        tb_logger.add_scalar(tag, rate)
    log = logger or logging
    log.info(f"Loss: {float(loss)}")
    log.info(f"{tag}: {rate * 100: 5.2f}%")
    log.info(f"Prediction: {hypotheses[0]}")
    log.info(f"Reference: {references[0]}")


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
    wires = _by_port(tensors)
    predictions = _take(wires, _PREDICTIONS)
    transcripts = _take(wires, _TRANSCRIPTS)
    lengths = _take(wires, _PREDICTION_LENGTHS, needed=False) or None
    heard = post_process_predictions(predictions, labels, lengths)
    said = post_process_transcripts(transcripts, _take(wires, _TRANSCRIPT_LENGTHS), labels)
    global_vars.setdefault("predictions", []).extend(heard)
    global_vars.setdefault("transcripts", []).extend(said)
    global_vars.setdefault("logits", []).extend(_take(wires, _LOG_PROBS, needed=False))
    _collect_losses(_take(wires, _LOSS, needed=False), [len(batch) for batch in transcripts], global_vars)


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
    metric = _known_metric(eval_metric)
    counts = count_errors(
        global_vars.get("predictions", []), global_vars.get("transcripts", []), use_cer=metric == "CER"
    )
    log = logger or logging
    said, key = (f" {tag}", f"_{tag}") if tag else ("", "")
    results = {}
    if global_vars.get("EvalLoss"):
        results[f"Evaluation_Loss{key}"] = loss = _mean_loss(global_vars)
        log.info(f"{_EPOCH_LINE} Loss{said}: {loss}")
    results[f"Evaluation_{metric}{key}"] = counts.rate
    log.info(f"{_EPOCH_LINE} {metric}{said}: {counts.rate * 100: 5.2f}%")
    log.info(f"{_EPOCH_LINE} errors{said}: {_describe(counts, 'words' if metric == 'WER' else 'characters')}")
    return results


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
    wires = _by_port(tensors)
    logits, targets = torch.cat(list(_take(wires, _LOGITS))), torch.cat(list(_take(wires, _CLASSES)))
    sizes = [len(batch) for batch in _take(wires, _CLASSES)]
    ks = _top_k(top_k)
    global_vars.setdefault("batchsize", []).append(sum(sizes))
    for k, accuracy in zip(ks, classification_accuracy(logits, targets, ks), strict=True):
        global_vars.setdefault(f"CorrectCount@{k}", []).append(round(accuracy * len(targets)))
    _collect_losses(_take(wires, _LOSS, needed=False), sizes, global_vars)


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
        results[f"Evaluation_Loss{said}"] = loss = _mean_loss(global_vars)
        logging.info(f"{_EPOCH_LINE} Loss{said}: {loss:.3f}")
    for k in _top_k(eval_metric):
        results[f"Evaluation_Accuracy_Top@{k}{said}"] = accuracy = sum(global_vars[f"CorrectCount@{k}"]) / total
        logging.info(f"{_EPOCH_LINE} Accuracy Top@{k}{said}: {accuracy * 100:3.4f}")
    return results


def _cut(ids: list[int], counts: list[int]) -> list[list[int]]:
    return [ids[start:end] for start, end in pairwise(accumulate(counts, initial=0))]


def _write(ids: Iterable[int], labels: Sequence[str]) -> str:
    ids = list(ids)
    if ids and not (min(ids) >= 0 and max(ids) < len(labels)):
        raise UsageError(
            "an id is outside the vocabulary",
            got=f"id {min(ids) if min(ids) < 0 else max(ids)}",
            wanted=f"0 to {len(labels) - 1} for labels, {len(labels)} for the blank",
            remedy="the model was made for other labels",
        )
    return "".join([labels[i] for i in ids])


def _by_port(tensors: Mapping[str, Any]) -> _Wires:
    """Port name to the wires from ports of that name, each with its values."""
    ports: _Wires = {}
    for name, values in tensors.items():
        ports.setdefault(name.partition("~~~")[0], []).append((name, values))
    return ports


def _take(wires: _Wires, ports: Sequence[str], needed: bool = True) -> Sequence[Any]:
    """The values, one for each worker, of the wire from the first of ``ports`` that was evaluated."""
    port = next((port for port in ports if port in wires), None)
    if port is None:
        if not needed:
            return ()
        raise UsageError(
            f"no evaluated tensor comes from a port called {' or '.join(ports)}",
            got=", ".join(wires),
            remedy="add it to eval_tensors",
        )
    (name, values), *others = wires[port]
    if others:
        raise UsageError(
            f"two evaluated tensors come from ports called {port}",
            got=" and ".join([name, *(other for other, _ in others)]),
            remedy="evaluate one of them, or collect them in a callback of your own",
        )
    return values


def _collect_losses(losses: Sequence[Any], sizes: Sequence[int], global_vars: MutableMapping[str, Any]) -> None:
    for loss, size in zip(losses, sizes, strict=True) if losses else ():
        global_vars.setdefault("EvalLoss", []).append(loss)
        global_vars.setdefault("EvalSize", []).append(size)


def _mean_loss(global_vars: Mapping[str, Any]) -> float:
    """The mean over utterances: a small last batch weighs as little as it is, and the order of batches does not."""
    sizes: list[int] = global_vars["EvalSize"]
    weighted = sorted(float(loss) * size for loss, size in zip(global_vars["EvalLoss"], sizes, strict=True))
    return sum(weighted) / sum(sizes)


def _describe(counts: ErrorCounts, unit: str) -> str:
    return (
        f"{counts.insertions} insertions, {counts.deletions} deletions, {counts.substitutions} substitutions "
        f"in {counts.reference_length} {unit} of {counts.utterances} utterances"
    )


def _known_metric(name: str) -> str:
    if name.upper() not in _METRICS:
        raise UsageError("eval_metric is not known", got=name, wanted=" or ".join(_METRICS))
    return name.upper()


def _top_k(top_k: int | Sequence[int] | None) -> list[int]:
    if top_k is None:
        return [1]
    return [top_k] if isinstance(top_k, int) else sorted(top_k)
