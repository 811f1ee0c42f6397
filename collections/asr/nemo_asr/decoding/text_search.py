"""TextSearch: log-probabilities to texts by prefix beam search, in numpy. The module around it is in ``beam_search``.

Exported models are searched without torch, so this file does not import it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nemo_asr.decoding.prefix_beam_search import BeamSize, Hypothesis, Ints, Limits, LogProb, search
from nemo_asr.decoding.word_scores import Alpha, Beta, HotwordWeight, UnknownScore, Weights, WordScores, word_scores
from nemo_lite.errors import UsageError

_BLOCK = 64  # utterances that are searched together, which bounds memory


class TextSearch:
    """The most probable labels of utterances; with a lexicon, a language model or hot words, the most probable words.

    Arguments and errors are those of `nemo_asr.BeamSearchCTCDecoder`, but for the name.

    Attributes:
        labels: as given.
        weights: those that it uses now.
        beam_size: as given.
    """

    def __init__(
        self,
        labels: Sequence[str],
        beam_size: BeamSize = Limits.beam_size,
        lexicon: str | Path | None = None,
        lm: str | Path | None = None,
        hotwords: Sequence[str] = (),
        alpha: Alpha = Weights.alpha,
        beta: Beta = Weights.beta,
        hotword_weight: HotwordWeight = Weights.hotword_weight,
        unknown_score: UnknownScore = Weights.unknown_score,
        min_log_prob: LogProb = Limits.min_log_prob,
    ) -> None:
        self.labels, self.weights = list(labels), Weights(alpha, beta, hotword_weight, unknown_score)
        self.beam_size, self._limits = beam_size, Limits(beam_size, min_log_prob)
        self._words = word_scores(labels, lexicon, lm, hotwords, self.weights)

    def use(self, weights: Weights) -> None:
        """Search with other weights from now on."""
        self.weights = weights
        if self._words:
            self._words = self._words.with_weights(weights)

    def hypotheses(self, log_probs: npt.NDArray[np.floating], lengths: Ints, nbest: int = 1) -> list[list[Hypothesis]]:
        """The best hypotheses of each utterance, best first.

        Args:
            log_probs: (B, T, classes) natural logarithms.
            lengths: (B,) valid frames.
            nbest: most hypotheses of an utterance.

        Raises:
            UsageError: the classes are not the labels and the blank, or ``nbest`` is not from 1 to ``beam_size``.
        """
        if not 1 <= nbest <= self.beam_size:
            problem, remedy = "a search cannot give so many hypotheses", "raise beam_size"
            raise UsageError(problem, got=f"nbest {nbest}", wanted=f"1 to {self.beam_size}, the beam", remedy=remedy)
        return searched(log_probs, lengths, self.labels, self._limits, self._words, nbest)


def searched(
    log_probs: npt.NDArray[np.floating],
    lengths: Ints,
    labels: Sequence[str],
    limits: Limits,
    words: WordScores | None,
    nbest: int,
) -> list[list[Hypothesis]]:
    """The best hypotheses of each utterance, of any number of utterances: as of `TextSearch.hypotheses`."""
    num, _, num_classes = log_probs.shape
    if num_classes != len(labels) + 1:
        wanted = f"{len(labels) + 1}: the labels and the blank"
        raise UsageError("the search has other labels than the model", got=f"{num_classes} classes", wanted=wanted)
    parts = [slice(first, first + _BLOCK) for first in range(0, num, _BLOCK)]
    return [each for part in parts for each in search(log_probs[part], lengths[part], limits, words, nbest, labels)]
