"""WordErrorRate: the error rate of texts as a metric of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nemo_asr.decoding.greedy import post_process_predictions, post_process_transcripts
from nemo_asr.scoring.intervals import bootstrap_interval, utterance_errors
from nemo_asr.scoring.rates import count_errors
from nemo_lite import NmTensor
from nemo_lite.core import Metric


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
        interval = bootstrap_interval(utterance_errors(self._hypotheses, self._references, self._use_cer))
        return interval.low, interval.high


def mean_loss(losses: Sequence[float], sizes: Sequence[int]) -> float:
    """The mean over utterances: a small last batch weighs as little as it is, and the order of batches does not.

    Args:
        losses: the mean of each batch.
        sizes: how many utterances each batch has.
    """
    weighted = sorted(float(loss) * size for loss, size in zip(losses, sizes, strict=True))
    return sum(weighted) / sum(sizes)
