"""ScoredSet and ScoredClasses: the metrics of a training's evaluated sets: loss, error rates, transcripts in a file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from nemo_asr.data.scored_texts import (
    TextsToScore,
    clusters_in_data,
    hypotheses_in_data,
    references_in_data,
    texts_to_score,
    write_transcripts,
)
from nemo_asr.decoding.greedy import post_process_predictions, post_process_transcripts
from nemo_asr.scoring.classification import classification_accuracy
from nemo_asr.scoring.intervals import Clusters, bootstrap_interval, class_errors, utterance_errors
from nemo_asr.scoring.nemo_lines import log_accuracies, log_error_rate
from nemo_asr.scoring.rates import count_errors
from nemo_asr.scoring.word_error_rate import mean_loss
from nemo_lite import DataLayerNM, NmTensor, logging
from nemo_lite.base.errors import MAX_LISTED, NemoLiteError
from nemo_lite.base.files import make_writable_folder
from nemo_lite.base.nemo_logging import LogMode
from nemo_lite.base.outputs import write_output
from nemo_lite.core import Metric


class ScoredSet(Metric):
    """Loss and error rates of an evaluated set, against the texts of its data: ``EvaluatorCallback(metrics=...)``.

    It gives ``loss``, ``wer`` and ``cer``, for both rates the ends of their 95 % intervals (``wer_low``, ``wer_high``,
    ...; by speaker or recording where the data layer knows them). It writes the transcripts to a file, which each
    evaluation replaces. In the log's style "nemo" it also logs NeMo's lines of an evaluation.

    Args:
        scored: the wires of loss, predictions, transcripts and their lengths: ``Wires.scored``.
        labels: the vocabulary.
        name: of the set.
        data_layer: where it comes from.
        folder: of ``NAME.transcripts.jsonl``; ``None`` writes none.
        metric: ``wer`` or ``cer``: the rate that counts.
        normalizer: a score normaliser, see `nemo_asr.data.scored_texts.texts_to_score`.
    """

    higher_is_better = False

    def __init__(
        self,
        scored: Sequence[NmTensor],
        labels: Sequence[str],
        name: str,
        data_layer: DataLayerNM,
        folder: Path | None = None,
        metric: str = "wer",
        normalizer: str | None = None,
    ) -> None:
        loss, predictions, transcripts, lengths = scored
        super().__init__(loss=loss, predictions=predictions, transcripts=transcripts, transcript_length=lengths)
        self._labels, self._name, self._data_layer = labels, name, data_layer
        self._metric, self._normalizer = metric, normalizer
        self._path = None if folder is None else folder / f"{name}.transcripts.jsonl"
        # Of the utterances that were scored last.
        self._clusters: tuple[list[int], Clusters | None] = [], None
        self._references: tuple[list[int], list[str]] = [], []
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._losses: list[float] = []
        self._sizes: list[int] = []
        self._hypotheses: list[str] = []
        self._transcripts: list[str] = []

    def update(  # type: ignore[override]  # the names of the wires
        self, *, loss: Tensor, predictions: Tensor, transcripts: Tensor, transcript_length: Tensor
    ) -> None:
        """Read the texts of a batch."""
        self._losses.append(float(loss))
        self._sizes.append(len(transcripts))
        self._hypotheses += post_process_predictions([predictions], self._labels)
        self._transcripts += post_process_transcripts([transcripts], [transcript_length], self._labels)

    def value(self) -> float:
        """The rate that counts, a fraction."""
        return self.tagged_values(self._metric)[self._metric]

    def tagged_values(self, tag: str) -> dict[str, float]:
        """Loss, both rates and the ends of their intervals; the tag is that of the rate that counts."""
        loss, texts, clusters = mean_loss(self._losses, self._sizes), self._texts(), self._clusters_of_utterances()
        if logging.style == "nemo":
            errors = count_errors(texts.hypotheses, texts.references, use_cer=self._metric == "cer")
            log_error_rate(errors, loss, self._metric, self._name)
        self._warn_of_infinite_losses()
        self._write(texts)
        rates: dict[str, float] = {}
        ends: dict[str, float] = {}
        for rate in ("wer", "cer"):
            counts = utterance_errors(texts.hypotheses, texts.references, rate == "cer", clusters)
            interval = bootstrap_interval(counts)
            rates[rate] = counts.rate
            ends |= {f"{rate}_low": interval.low, f"{rate}_high": interval.high}
        return {"loss": loss, **rates, **ends}

    def _texts(self) -> TextsToScore:
        """The utterances' own texts in the place of what their label ids say; these, where the data cannot be read."""
        layer, positions = self._data_layer, None if self.positions is None else list(self.positions)
        try:
            if positions is not None and self._normalizer is not None:
                return texts_to_score(layer, positions, self._transcripts, self._hypotheses, self._normalizer)
            if positions is not None:
                if self._references[0] != positions:
                    self._references = positions, references_in_data(layer, positions, self._transcripts)
                return TextsToScore(self._references[1], hypotheses_in_data(layer, self._hypotheses))
        except NemoLiteError as error:
            logging.warning("%s", error, mode=LogMode.ONCE)
        return TextsToScore(self._transcripts, self._hypotheses)

    def _clusters_of_utterances(self) -> Clusters | None:
        """Which utterances belong together; nearly always the clusters of the evaluation before."""
        if self.positions is None:
            return None
        positions = list(self.positions)
        if self._clusters[0] != positions:
            try:
                self._clusters = positions, clusters_in_data(self._data_layer, positions)
            except NemoLiteError as error:
                logging.warning("%s", error, mode=LogMode.ONCE)
                self._clusters = positions, None
        return self._clusters[1]

    def _warn_of_infinite_losses(self) -> None:
        """Name the utterances of batches whose loss is infinite or NaN."""
        items = np.flatnonzero(np.repeat(~np.isfinite(self._losses), self._sizes)).tolist()
        if self.positions is None or not items:
            return
        places = ", ".join(self._data_layer.place_of(self.positions[item]) for item in items[:MAX_LISTED])
        more = f" and {len(items) - MAX_LISTED} more" if len(items) > MAX_LISTED else ""
        problem = f"{self._name}: the loss is infinite or NaN in the batch of {places}{more}"
        logging.warning(problem, mode=LogMode.ONCE)

    def _write(self, texts: TextsToScore) -> None:
        """Write the transcripts; what goes wrong is a warning: the run is worth more than this file."""
        if self._path is None or self.positions is None:
            return
        lines = partial(write_transcripts, data_layer=self._data_layer, items=self.positions, **texts._asdict())
        try:
            make_writable_folder(self._path.parent)
            write_output(self._path, lines, "nemo-lite train", remedy="move it away")
        except NemoLiteError as error:
            logging.warning("%s", error, mode=LogMode.ONCE)


class ScoredClasses(Metric):
    """Loss and error rate of an evaluated set of classes: ``loss``, ``error``, and the ends of its 95 % interval.

    The error rate is the share of recordings whose highest score is that of another class. In the log's style "nemo" it
    also logs NeMo's lines of an evaluation.

    Args:
        scored: the wires of loss, scores and classes: ``ClassWires.scored``.
        name: of the set.
    """

    higher_is_better = False

    def __init__(self, scored: Sequence[NmTensor], name: str) -> None:
        loss, logits, classes = scored
        super().__init__(loss=loss, logits=logits, classes=classes)
        self._name = name
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._losses: list[float] = []
        self._sizes: list[int] = []
        self._num_correct = 0

    def update(self, *, loss: Tensor, logits: Tensor, classes: Tensor) -> None:  # type: ignore[override]  # the names of the wires
        """Count a batch."""
        (accuracy,) = classification_accuracy(logits, classes)
        self._losses.append(float(loss))
        self._sizes.append(len(classes))
        self._num_correct += round(accuracy * len(classes))

    def value(self) -> float:
        """The share of recordings that get another class than theirs."""
        return 1.0 - self._num_correct / sum(self._sizes)

    def interval(self) -> tuple[float, float]:
        """By resampled recordings, each independent."""
        interval = bootstrap_interval(class_errors(np.arange(sum(self._sizes)) >= self._num_correct))
        return interval.low, interval.high

    def tagged_values(self, tag: str) -> dict[str, float]:
        """The loss, the error rate by its tag, and the ends of its interval."""
        loss = mean_loss(self._losses, self._sizes)
        if logging.style == "nemo":
            log_accuracies({1: self._num_correct / sum(self._sizes)}, loss, self._name)
        return {"loss": loss, **super().tagged_values(tag)}
