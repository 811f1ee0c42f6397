"""What NeMo's evaluation callbacks call: batches to texts or classes, and epochs to rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from nemo_asr.decoding.greedy import post_process_predictions, post_process_transcripts
from nemo_asr.scoring.rates import (
    Clusters,
    bootstrap_interval,
    class_errors,
    classification_accuracy,
    count_errors,
    utterance_errors,
)
from nemo_lite import NmTensor
from nemo_lite.base.errors import UsageError
from nemo_lite.core import Metric
from nemo_lite.utils import logging

# What the callback functions of an evaluation share: values by port, and losses weighed by utterances.


# Any: evaluated values are tensors, lists or numbers.
# Port name -> the wires from ports of that name, each with its unique name `port~~~module~~~id` and its values.
ValuesByPort: TypeAlias = dict[str, list[tuple[str, Sequence[Any]]]]

EPOCH_LINE = "==========>>>>>>Evaluation"


class ScalarWriter(Protocol):
    """What is needed of a TensorBoard writer."""

    def add_scalar(self, tag: str, scalar_value: float, /) -> object: ...


class LineWriter(Protocol):
    """What is needed of a logger."""

    def info(self, line: str, /) -> object: ...


def by_port(tensors: Mapping[str, Any], port_names: Mapping[str, str] | None = None) -> ValuesByPort:
    """The values by port name; ``port_names`` gives wires, by their unique names, the port name to go by."""
    ports: ValuesByPort = {}
    for name, values in tensors.items():
        port = (port_names or {}).get(name) or name.partition("~~~")[0]
        ports.setdefault(port, []).append((name, values))
    return ports


def take(wires: ValuesByPort, ports: Sequence[str], needed: bool = True) -> Sequence[Any]:
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
    (name, values), *more_wires = wires[port]
    if more_wires:
        raise UsageError(
            f"two evaluated tensors come from ports called {port}",
            got=" and ".join([name, *(other for other, _ in more_wires)]),
            remedy="evaluate one of them, or collect them in a callback of your own",
        )
    return values


def collect_losses(wires: ValuesByPort, sizes: Sequence[int], global_vars: MutableMapping[str, Any]) -> None:
    """Add the losses of one evaluated batch, where a loss was evaluated, each with its number of utterances."""
    if losses := take(wires, ["loss"], needed=False):
        global_vars.setdefault("EvalLoss", []).extend(losses)
        global_vars.setdefault("EvalSize", []).extend(sizes)


def mean_loss(global_vars: Mapping[str, Any]) -> float:
    """The mean over utterances: a small last batch weighs as little as it is, and the order of batches does not."""
    sizes: list[int] = global_vars["EvalSize"]
    weighted = sorted(float(loss) * size for loss, size in zip(global_vars["EvalLoss"], sizes, strict=True))
    return sum(weighted) / sum(sizes)


def utterances_without_loss(global_vars: Mapping[str, Any]) -> list[int]:
    """Which of the collected utterances are of a batch whose loss is infinite or NaN: their indices."""
    found: list[int] = []
    end = 0
    for loss, size in zip(global_vars.get("EvalLoss", ()), global_vars.get("EvalSize", ()), strict=True):
        end += size
        if not math.isfinite(loss):
            found.extend(range(end - size, end))
    return found


# The functions that speech recognition hands to callbacks: what to print while training, how to score an evaluation.
# Decoding is of whole batches, in ``nemo_asr.decoding``; nothing in here runs a model.


_PREDICTION_LENGTHS = ("predictions_length", "predictions_len", "encoded_lengths", "encoded_length", "encoded_len")
_TRANSCRIPTS = ("transcripts", "transcript")
_TRANSCRIPT_LENGTHS = ("transcript_length", "transcripts_length", "transcript_len")
_SCORED = ("loss", "predictions", "transcripts", "transcript_length")
_METRICS = ("WER", "CER")


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
            blank the padding itself, the lengths (B,) of the predictions. Scripts of the first NeMo have no loss there.
        labels: the vocabulary.
        eval_metric: WER or CER.
        tb_logger: a writer that gets the rate too.
        logger: where to write, as scripts of NeMo 0.9 say it; by default the log.

    Raises:
        UsageError: fewer tensors.
    """
    metric = _known_metric(eval_metric)
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


def process_evaluation_batch(
    tensors: Mapping[str, Any],
    global_vars: MutableMapping[str, Any],
    labels: Sequence[str],
    scored: Sequence[NmTensor] | None = None,
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
        scored: the wires of loss, predictions, transcripts and transcript lengths, as ``Wires.scored`` has them. Then
            the names of their ports do not matter.

    Raises:
        UsageError: a needed wire is missing, or two wires come from ports of one name.
    """
    wires = by_port(tensors, {wire.unique_name: port for wire, port in zip(scored or (), _SCORED, strict=False)})
    predictions = take(wires, ["predictions"])
    transcripts = take(wires, _TRANSCRIPTS)
    lengths = take(wires, _PREDICTION_LENGTHS, needed=False) or None
    heard = post_process_predictions(predictions, labels, lengths)
    said = post_process_transcripts(transcripts, take(wires, _TRANSCRIPT_LENGTHS), labels)
    global_vars.setdefault("predictions", []).extend(heard)
    global_vars.setdefault("transcripts", []).extend(said)
    global_vars.setdefault("logits", []).extend(take(wires, ["output"], needed=False))
    collect_losses(wires, [len(batch) for batch in transcripts], global_vars)


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
    heard, spoken = (global_vars.get(name, []) for name in ("predictions", "transcripts"))
    counts = count_errors(heard, spoken, use_cer=metric == "CER")
    log = logger or logging
    said, key = (f" {tag}", f"_{tag}") if tag else ("", "")
    results = {}
    if global_vars.get("EvalLoss"):
        results[f"Evaluation_Loss{key}"] = loss = mean_loss(global_vars)
        log.info(f"{EPOCH_LINE} Loss{said}: {loss}")
    results[f"Evaluation_{metric}{key}"] = counts.rate
    log.info(f"{EPOCH_LINE} {metric}{said}: {counts.rate * 100: 5.2f}%")
    unit = "words" if metric == "WER" else "characters"
    length = f"{counts.reference_length} {unit} of {counts.utterances} utterances"
    log.info(f"{EPOCH_LINE} errors{said}: {counts} in {length}")
    return results


def score_evaluation(global_vars: Mapping[str, Any]) -> dict[str, float]:
    """Score what :func:`process_evaluation_batch` collected, and log nothing.

    Returns:
        ``loss``, the mean over utterances (left out when no loss was evaluated), ``wer`` and ``cer``: errors by words
        and by characters of the references, pooled over the corpus, as fractions.
    """
    heard, spoken = (global_vars.get(name, []) for name in ("predictions", "transcripts"))
    rates = {name.lower(): count_errors(heard, spoken, use_cer=name == "CER").rate for name in _METRICS}
    return {"loss": mean_loss(global_vars), **rates} if global_vars.get("EvalLoss") else rates


def rate_intervals(global_vars: Mapping[str, Any], clusters: Clusters | None = None) -> dict[str, float]:
    """The 95 % intervals of what :func:`score_evaluation` gives: ``wer_low``, ``wer_high``, ``cer_low``, ``cer_high``.

    Args:
        global_vars: the collected batches.
        clusters: which utterances belong together; None: each is independent. Those of other utterances are not used.

    Returns:
        The ends, fractions; nothing where no utterance was evaluated.
    """
    heard, spoken = (global_vars.get(name, []) for name in ("predictions", "transcripts"))
    if not spoken:
        return {}
    fitting = clusters if clusters is not None and len(clusters.ids) == len(spoken) else None
    ends: dict[str, float] = {}
    for name in _METRICS:
        interval = bootstrap_interval(utterance_errors(heard, spoken, name == "CER", fitting))
        ends |= {f"{name.lower()}_low": interval.low, f"{name.lower()}_high": interval.high}
    return ends


class WordErrorRate(Metric):
    """Errors by words (or characters) of the references, pooled, for ``EvaluatorCallback(metrics={"wer": ...})``.

    The references are what the label ids say; commands and ``jasper.py`` score the texts of the manifest.

    Args:
        predictions: label ids (B, T) for each frame, or (B, U) of a search, as decoders give them.
        transcripts: label ids (B, U) of what was said.
        transcript_length: (B,) of them.
        labels: the vocabulary.
        predictions_length: (B,) frames or labels, where the decoder does not blank the padding itself.
        use_cer: count characters, spaces among them, instead of words.
    """

    higher_is_better = False

    def __init__(
        self,
        predictions: NmTensor,
        transcripts: NmTensor,
        transcript_length: NmTensor,
        *,
        labels: Sequence[str],
        predictions_length: NmTensor | None = None,
        use_cer: bool = False,
    ) -> None:
        ends = {} if predictions_length is None else {"predictions_length": predictions_length}
        super().__init__(predictions=predictions, transcripts=transcripts, transcript_length=transcript_length, **ends)
        self._labels, self._use_cer = labels, use_cer
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._hypotheses: list[str] = []
        self._references: list[str] = []

    def update(  # type: ignore[override]  # the names of the wires
        self, *, predictions: Any, transcripts: Any, transcript_length: Any, predictions_length: Any = None
    ) -> None:
        """Read the texts of a batch."""
        ends = None if predictions_length is None else [predictions_length]
        self._hypotheses += post_process_predictions([predictions], self._labels, ends)
        self._references += post_process_transcripts([transcripts], [transcript_length], self._labels)

    def value(self) -> float:
        """A fraction: 0.05 is 5 %. Infinite where the references have no words."""
        return count_errors(self._hypotheses, self._references, self._use_cer).rate

    def interval(self) -> tuple[float, float] | None:
        """By resampled utterances, each independent; None without utterances."""
        if not self._references:
            return None
        found = bootstrap_interval(utterance_errors(self._hypotheses, self._references, self._use_cer))
        return found.low, found.high


def _known_metric(name: str) -> str:
    if name.upper() not in _METRICS:
        raise UsageError("eval_metric is not known", got=name, wanted=" or ".join(_METRICS))
    return name.upper()


# The functions that classification hands to callbacks: what to print while training, how to score an evaluation.


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
