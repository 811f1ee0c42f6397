"""BeamSearchCTCDecoder: prefix beam search as a module, with a lexicon, a language model and hot words.

The search itself is in ``prefix_beam_search``. ``BeamSearchDecoderWithLM`` is the same under NeMo 0.x's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
import torch
from torch import Tensor

from nemo_asr.arguments import FilePath, Label, Labels
from nemo_asr.decoding.language_model import BatchedLanguageModel
from nemo_asr.decoding.lexicon import read_words
from nemo_asr.decoding.ngram import load_language_model
from nemo_asr.decoding.prefix_beam_search import (
    BeamSize,
    CutoffProb,
    Hypothesis,
    Limits,
    LogProb,
    MaxLabels,
    search,
)
from nemo_asr.decoding.spelling import Spelling
from nemo_asr.decoding.texts import text_of
from nemo_asr.decoding.word_scores import Alpha, Beta, HotwordWeight, UnknownScore, Weights, WordScores
from nemo_lite.backends.pytorch.nm import NonTrainableNM
from nemo_lite.config.ranges import Between, Items
from nemo_lite.core.neural_types import LengthsType, LogprobsType, NeuralType, PredictionsType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol
from nemo_lite.errors import UsageError

HotWords: TypeAlias = Annotated[Sequence[Label], Items(0, 10_000)]
_BLOCK = 64  # utterances that are searched together, which bounds memory


class BeamSearchCTCDecoder(NonTrainableNM):
    """The most probable labels of each utterance, all their alignments together: prefix beam search, on the CPU.

    Without a lexicon, a language model and hot words it looks for labels alone. With one of them it looks for words.
    Scores are natural logarithms: that of the sounds, plus ``alpha`` times that of the language model, plus ``beta``
    for each word.

    Sources: see ``prefix_beam_search``; unknown words are handled as in pyctcdecode.

    Args:
        labels: the vocabulary, without the blank, which is the last class.
        beam_size: hypotheses of an utterance that go on after each frame.
        lexicon: the only words that there may be: a text file with a word a line.
        lm: a language model: an ARPA file, perhaps compressed by gzip, or a binary of KenLM.
        hotwords: words that are more probable here than elsewhere; of phrases each word counts.
        alpha: factor of the language model's logarithms.
        beta: added for each word.
        hotword_weight: added for each hot word.
        unknown_score: added for each word that the language model does not know.
        min_log_prob: natural logarithm; a less probable label begins no new hypothesis in that frame.
        name: the module's name.

    Attributes:
        labels: as given.
        weights: those that it uses now.

    Raises:
        UsageError: a number is out of range; the labels cannot spell a word of the lexicon, a hot word, or any word of
            the language model.
        DataError: a file cannot be read.
    """

    input_ports: Ports = {
        "log_probs": NeuralType("B T D", LogprobsType()),
        "log_probs_length": NeuralType("B", LengthsType(), optional=True),
    }
    output_ports: Ports = {"predictions": NeuralType("B T", PredictionsType())}

    def __init__(
        self,
        labels: Labels,
        beam_size: BeamSize = 16,
        lexicon: FilePath | None = None,
        lm: FilePath | None = None,
        hotwords: HotWords = (),
        alpha: Alpha = Weights.alpha,
        beta: Beta = Weights.beta,
        hotword_weight: HotwordWeight = Weights.hotword_weight,
        unknown_score: UnknownScore = Weights.unknown_score,
        min_log_prob: LogProb = Limits.min_log_prob,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.labels, self.weights = list(labels), Weights(alpha, beta, hotword_weight, unknown_score)
        self._limits, self._blank = Limits(beam_size, min_log_prob), len(labels)
        self._words = word_scores(labels, lexicon, lm, hotwords, self.weights)

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """How many labels are found, is not known before."""
        return {"predictions": (shapes["log_probs"][0], symbol("labels"))}

    def use(self, weights: Weights) -> None:
        """Search with other weights from now on."""
        self.weights = weights
        if self._words:
            self._words = self._words.with_weights(weights)

    def search(self, log_probs: Tensor, lengths: Tensor | None = None, nbest: int = 1) -> list[list[Hypothesis]]:
        """The best hypotheses of each utterance, with their scores; ``forward`` gives the first of each.

        Args:
            log_probs: (B, T, classes) natural logarithms.
            lengths: (B,) valid frames; None: all of them.
            nbest: most hypotheses of an utterance, at most ``beam_size``.

        Raises:
            UsageError: the classes are not the labels and the blank.
        """
        return searched(log_probs, lengths, self._blank, self._limits, self._words, nbest)

    def forward(self, log_probs: Tensor, log_probs_length: Tensor | None = None) -> Tensor:
        """(B, T, classes) and valid frames (B,) -> (B, U) ids, blanks between equal ones and at the end."""
        rows = [_with_blanks(found[0].ids, self._blank) for found in self.search(log_probs, log_probs_length)]
        predictions = np.full((len(rows), max(map(len, rows), default=0) or 1), self._blank)
        for row, ids in zip(predictions, rows, strict=True):
            row[: len(ids)] = ids
        return torch.from_numpy(predictions).to(log_probs.device)


class BeamSearchDecoderWithLM(NonTrainableNM):
    """NeMo 0.x's beam search: its arguments and results. `BeamSearchCTCDecoder` does more.

    It runs on any number of ranks, on the CPU.

    Args:
        vocab: the labels, without the blank, which is the last class.
        beam_width: hypotheses of an utterance that go on after each frame.
        alpha: factor of the language model's natural logarithms.
        beta: added for each word.
        lm_path: ARPA file or binary of KenLM; None: no language model.
        num_cpus: has no effect: all utterances of a batch are searched at once.
        cutoff_prob: only the most probable classes of a frame that together have this probability begin new hypotheses.
        cutoff_top_n: most of them.
        input_tensor: whether ``log_probs`` is one tensor; otherwise it is an array for each utterance.
        name: the module's name.

    Raises:
        UsageError: as of `BeamSearchCTCDecoder`.
        DataError: likewise.
    """

    input_ports: Ports = {
        "log_probs": NeuralType("B T D", LogprobsType()),
        "log_probs_length": NeuralType("B", LengthsType()),
    }
    output_ports: Ports = {"predictions": NeuralType("B T", PredictionsType())}

    def __init__(
        self,
        vocab: Labels,
        beam_width: BeamSize,
        alpha: Alpha,
        beta: Beta,
        lm_path: FilePath | None,
        num_cpus: Annotated[int, Between(0, 1_000_000)],
        cutoff_prob: CutoffProb = 1.0,
        cutoff_top_n: MaxLabels = 40,
        input_tensor: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self._vocab, self._is_tensor = list(vocab), input_tensor
        self._limits = Limits(beam_width, -np.inf, cutoff_top_n, cutoff_prob)
        self._words = word_scores(vocab, None, lm_path, (), Weights(alpha, beta))

    def forward(
        self, log_probs: Tensor | Sequence[np.ndarray], log_probs_length: Tensor
    ) -> list[list[tuple[float, str]]]:
        """(B, T, classes) and (B,) valid frames -> for each utterance (score, text) of its hypotheses, best first."""
        blank, width = len(self._vocab), self._limits.beam_size
        if isinstance(log_probs, Tensor):
            found = searched(log_probs, log_probs_length, blank, self._limits, self._words, width)
        else:
            pairs = zip(log_probs, log_probs_length, strict=True)
            each = ((torch.as_tensor(array)[None], end.reshape(1)) for array, end in pairs)
            found = [searched(*pair, blank, self._limits, self._words, width)[0] for pair in each]
        return [[(one.score, text_of(one.ids, self._vocab)) for one in hypotheses] for hypotheses in found]


def word_scores(
    labels: Sequence[str],
    lexicon: str | Path | None,
    lm: str | Path | None,
    hotwords: Sequence[str],
    weights: Weights,
) -> WordScores | None:
    """What words are worth to a search; None where only sounds count.

    Raises:
        UsageError: as of `BeamSearchCTCDecoder`.
        DataError: likewise.
    """
    if lexicon is None and lm is None and not hotwords:
        return None
    model: BatchedLanguageModel | None = None if lm is None else load_language_model(lm)
    words = None if lexicon is None else read_words(lexicon)
    return WordScores(Spelling(labels), words, model, hotwords, weights, place=str(lexicon or ""))


def searched(
    log_probs: Tensor, lengths: Tensor | None, blank: int, limits: Limits, words: WordScores | None, nbest: int
) -> list[list[Hypothesis]]:
    """The best hypotheses of each utterance: as of `BeamSearchCTCDecoder.search`."""
    num, longest, num_classes = log_probs.shape
    if num_classes != blank + 1:
        wanted = f"{blank + 1}: the labels and the blank"
        raise UsageError("the search has other labels than the model", got=f"{num_classes} classes", wanted=wanted)
    values = log_probs.detach().float().cpu().numpy()
    ends = np.full(num, longest) if lengths is None else lengths.detach().cpu().numpy()
    parts = [slice(first, first + _BLOCK) for first in range(0, num, _BLOCK)]
    return [each for part in parts for each in search(values[part], ends[part], limits, words, nbest)]


def _with_blanks(ids: Sequence[int], blank: int) -> list[int]:
    """The ids with a blank between equal neighbours, which would otherwise be merged."""
    row: list[int] = []
    for label in ids:
        row += [blank, label] if row and row[-1] == label else [label]
    return row
