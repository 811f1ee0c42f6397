"""Beam search as a module of a DAG, NeMo's class for it, and the search for its weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nemo_asr.decoding.greedy import HypothesesType, post_process_predictions, post_process_transcripts
from nemo_asr.decoding.hypotheses import time_axis
from nemo_asr.run.options import SearchOptions
from nemo_asr.run.search.prefix_beam_search import (
    BeamSize,
    CutoffProb,
    Ints,
    LogProb,
    MaxLabels,
    SearchLimits,
    search,
)
from nemo_asr.run.search.search import Hypotheses, States
from nemo_asr.run.search.text_search import StreamedBeams, TextSearch
from nemo_asr.run.search.transducer_beam import TransducerBeam
from nemo_asr.run.search.word_beams import Hypothesis
from nemo_asr.run.search.words import Alpha, Beta, HotwordWeight, UnknownScore, Weights, word_scores
from nemo_asr.run.text.labels import text_of
from nemo_lite import NeuralModule, NeuralModuleFactory, NmTensor
from nemo_lite.backends.pytorch.nm import NonTrainableNM
from nemo_lite.base.errors import DataError, UsageError
from nemo_lite.base.files import write_atomically
from nemo_lite.base.ranges import Between
from nemo_lite.core.neural_types import LengthsType, LogprobsType, NeuralType, PredictionsType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol

# BeamSearchCTCDecoder: prefix beam search as a module, with a lexicon, a language model and hot words.
# The search itself is in ``prefix_beam_search``. ``BeamSearchDecoderWithLM`` is the same under NeMo 0.x's name.


FloatArray: TypeAlias = "npt.NDArray[np.float32]"


class WordSearchNM(NonTrainableNM):
    """A module that looks for words with a beam, by weights that may change. Derive, and set ``_search``."""

    _search: TextSearch | TransducerBeam

    @property
    def weights(self) -> Weights:
        """Those that it uses now."""
        return self._search.weights

    @property
    def beam_size(self) -> int:
        """As given."""
        return self._search.beam_size

    @property
    def options(self) -> SearchOptions:
        """The beam and the weights that it uses now."""
        weights = self.weights
        return SearchOptions(
            self.beam_size, alpha=weights.alpha, beta=weights.beta, hotword_weight=weights.hotword_weight
        )

    @property
    def num_bytes(self) -> int:
        """About what its words take in memory now; see `SearchOfWords`."""
        return self._search.num_bytes

    def use(self, weights: Weights) -> None:
        """Search with other weights from now on."""
        self._search.use(weights)


class BeamSearchCTCDecoder(WordSearchNM):
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
        hotwords: words and phrases that are more probable here than elsewhere.
        alpha: factor of the language model's logarithms.
        beta: added for each word.
        hotword_weight: added for each hot word or phrase.
        unknown_score: added for each word that the language model does not know.
        min_log_prob: natural logarithm; a less probable label begins no new hypothesis in that frame.
        name: the module's name.

    Attributes:
        labels: as given.

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
        labels: Sequence[str],
        beam_size: BeamSize = 16,
        lexicon: str | None = None,
        lm: str | None = None,
        hotwords: Sequence[str] = (),
        alpha: Alpha = Weights.alpha,
        beta: Beta = Weights.beta,
        hotword_weight: HotwordWeight = Weights.hotword_weight,
        unknown_score: UnknownScore = Weights.unknown_score,
        min_log_prob: LogProb = SearchLimits.min_log_prob,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        weights = alpha, beta, hotword_weight, unknown_score
        self._search: TextSearch = TextSearch(labels, beam_size, lexicon, lm, hotwords, *weights, min_log_prob)
        self.labels, self._blank = self._search.labels, len(labels)

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """How many labels are found, is not known before."""
        return {"predictions": (shapes["log_probs"][0], symbol("labels"))}

    def search(self, log_probs: Tensor, lengths: Tensor | None = None, nbest: int = 1) -> list[list[Hypothesis]]:
        """The best hypotheses of each utterance, with their scores; ``forward`` gives the first of each.

        Args:
            log_probs: (B, T, classes) natural logarithms.
            lengths: (B,) valid frames; None: all of them.
            nbest: most hypotheses of an utterance, at most ``beam_size``.

        Raises:
            UsageError: the classes are not the labels and the blank, or ``nbest`` is not from 1 to ``beam_size``.
        """
        return self._search.hypotheses(*arrays_of(log_probs, lengths), nbest)

    def several(self, nbest: int) -> NBestCTCDecoder:
        """A module that gives so many hypotheses of this search."""
        return NBestCTCDecoder(self, nbest)

    def recognise(self, states: States, nbest: int = 1) -> Hypotheses:
        """See `nemo_asr.run.search.search.Search`."""
        return self._search.recognise(states, nbest)

    def stream(self, most_frames: int) -> StreamedBeams:
        """See `nemo_asr.run.search.search.Search`."""
        return self._search.stream(most_frames)

    def forward(self, log_probs: Tensor, log_probs_length: Tensor | None = None) -> Tensor:
        """(B, T, classes) and valid frames (B,) -> (B, U) ids, blanks between equal ones and at the end."""
        rows = [_with_blanks(hypotheses[0].ids, self._blank) for hypotheses in self.search(log_probs, log_probs_length)]
        return torch.from_numpy(_padded(rows, self._blank)).to(log_probs.device)


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
        input_tensor: has no effect: ``log_probs`` may be one tensor, or an array for each utterance.
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
        vocab: Sequence[str],
        beam_width: BeamSize,
        alpha: Alpha,
        beta: Beta,
        lm_path: str | None,
        num_cpus: Annotated[int, Between(0, 1_000_000)],
        cutoff_prob: CutoffProb = 1.0,
        cutoff_top_n: MaxLabels = 40,
        input_tensor: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self._vocab = list(vocab)
        self._limits = SearchLimits(beam_width, -np.inf, cutoff_top_n, cutoff_prob)
        self._words = word_scores(vocab, None, lm_path, (), Weights(alpha, beta))

    def forward(
        self, log_probs: Tensor | Sequence[np.ndarray], log_probs_length: Tensor
    ) -> list[list[tuple[float, str]]]:
        """(B, T, classes) and (B,) valid frames -> for each utterance (score, text) of its hypotheses, best first."""
        width = self._limits.beam_size
        if isinstance(log_probs, Tensor):
            results = search(*arrays_of(log_probs, log_probs_length), self._limits, self._words, width, self._vocab)
        else:
            pairs = zip(log_probs, log_probs_length, strict=True)
            arrays = (arrays_of(torch.as_tensor(array)[None], end.reshape(1)) for array, end in pairs)
            results = [search(*pair, self._limits, self._words, width, self._vocab)[0] for pair in arrays]
        return [[(one.score, text_of(one.ids, self._vocab)) for one in hypotheses] for hypotheses in results]


class NBestCTCDecoder(NonTrainableNM):
    """The ``nbest`` most probable texts of each utterance, N of them: one search of a `BeamSearchCTCDecoder`.

    Where fewer texts were found, the others have a score of minus infinity.

    Args:
        decoder: searches.
        nbest: most hypotheses of an utterance, at most its beam.
        name: the module's name.
    """

    input_ports = BeamSearchCTCDecoder.input_ports
    output_ports: Ports = {
        "hypotheses": NeuralType("B D T", HypothesesType()),
        "scores": NeuralType("B D", LogprobsType()),
    }

    def __init__(self, decoder: BeamSearchCTCDecoder, nbest: BeamSize, name: str | None = None) -> None:
        super().__init__(name)
        self._decoder, self._nbest = decoder, nbest

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """How many labels are found, is not known before."""
        batch, labels = shapes["log_probs"][0], symbol("labels")
        several = batch, self._nbest
        return {"hypotheses": (*several, labels), "scores": several}

    def forward(self, log_probs: Tensor, log_probs_length: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, T, classes) and valid frames (B,) -> ids (B, N, U), their scores (B, N)."""
        hypotheses = self._decoder.search(log_probs, log_probs_length, self._nbest)
        none = Hypothesis([], -np.inf, -np.inf)
        several = [each for texts in hypotheses for each in [*texts, *[none] * (self._nbest - len(texts))]]
        shape = (len(hypotheses), self._nbest, -1)
        ids = torch.from_numpy(_padded([each.ids for each in several], -1)).reshape(shape)
        scores = torch.tensor([each.score for each in several], dtype=torch.float64).reshape(shape[:2])
        return ids.to(log_probs.device), scores.to(log_probs.device)


def arrays_of(log_probs: Tensor, lengths: Tensor | None) -> tuple[FloatArray, Ints]:
    """Log-probabilities (B, T, classes) and valid frames (B,), for the search; None: all frames."""
    values = log_probs.detach().float().cpu().numpy()
    ends = np.full(len(values), values.shape[1]) if lengths is None else lengths.detach().cpu().numpy()
    return values, ends


def _padded(rows: Sequence[Sequence[int]], padding: int) -> Ints:
    """(rows, longest), ``padding`` behind each."""
    padded = np.full((len(rows), max(map(len, rows), default=0) or 1), padding)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return padded


def _with_blanks(ids: Sequence[int], blank: int) -> list[int]:
    """The ids with a blank between equal neighbours, which would otherwise be merged."""
    row: list[int] = []
    for label in ids:
        row += [blank, label] if row and row[-1] == label else [label]
    return row


# search_weights: alpha and beta with the fewest errors on a development set. What they weigh: ``WordScores``.


ALPHAS = (0.0, 0.15, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)
BETAS = (-1.0, 0.0, 0.5, 1.0, 2.0, 3.0)
MOST_UTTERANCES = 500
"""Of larger sets so many are drawn."""

CountErrors: TypeAlias = Callable[[list[str], list[str]], int]


class Trial(NamedTuple):
    """Errors with some weights."""

    alpha: float
    beta: float
    errors: int


def search_weights(
    decoder: NeuralModule,
    inputs: Mapping[str, NmTensor],
    texts: Sequence[NmTensor],
    labels: Sequence[str],
    factory: NeuralModuleFactory,
    count: CountErrors,
    seed: int = 0,
) -> list[Trial]:
    """Try a grid of weights on a set, and let the decoder use the best: on all ranks the same.

    Rank 0 searches, over at most ``MOST_UTTERANCES`` utterances that ``seed`` draws.

    Args:
        decoder: a search for words with a language model, of any family.
        inputs: what it reads by its ports, of a DAG over the set: frames (B, T, ...), and their lengths.
        texts: transcripts and their lengths, of the same DAG.
        labels: the vocabulary.
        factory: runs the DAG.
        count: the errors of hypotheses against references.
        seed: of the draw.

    Returns:
        The trials, the best first; on ranks above 0 that one alone.

    Raises:
        DataError: the set has no utterances.
        UsageError: another decoder, which has no such weights.
    """
    if not isinstance(decoder, WordSearchNM):
        wanted = "a search for words with a beam: a WordSearchNM"
        raise UsageError("this search has no weights", place="search_weights", got=decoder.label, wanted=wanted)
    values = factory.infer([*inputs.values(), *texts], verbose=False)  # None on ranks above 0
    trials: list[Trial] = []

    def run() -> list[float]:
        assert values is not None, "rank 0 has the values"
        *of_inputs, transcripts, transcript_lengths = values
        references = post_process_transcripts(transcripts, transcript_lengths, labels)
        if not references:
            raise DataError("the set for the weights has no utterances")
        drawn = np.sort(np.random.default_rng(seed).permutation(len(references))[:MOST_UTTERANCES])
        rows = [[row for batch in batches for row in batch] for batches in of_inputs]
        of_drawn = [[of_input[place] for place in drawn] for of_input in rows]
        of_ports = {port: _batch(rows, decoder.input_ports[port]) for port, rows in zip(inputs, of_drawn, strict=True)}
        trials.extend(_try_all(decoder, of_ports, labels, [references[place] for place in drawn], count))
        return [trials[0].alpha, trials[0].beta, trials[0].errors]

    alpha, beta, errors = factory.from_first(run)
    decoder.use(replace(decoder.weights, alpha=alpha, beta=beta))
    return trials or [Trial(alpha, beta, int(errors))]


def _batch(rows: Sequence[Tensor], ntype: NeuralType) -> Tensor:
    """Rows of batches that were padded to several lengths, of lengths too, as one batch."""
    if isinstance(ntype.elements_type, LengthsType):
        return torch.stack([*rows])
    axis = time_axis(ntype)
    return pad_sequence([row.movedim(axis - 1, 0) for row in rows], batch_first=True).movedim(1, axis)


def _try_all(
    decoder: WordSearchNM,
    inputs: Mapping[str, Tensor],
    labels: Sequence[str],
    references: list[str],
    count: CountErrors,
) -> list[Trial]:
    """Over the whole grid; of equally good trials those come first whose neighbours are better."""
    grid, errors = list(product(ALPHAS, BETAS)), list[int]()
    for alpha, beta in grid:
        decoder.use(replace(decoder.weights, alpha=alpha, beta=beta))
        outputs = decoder.forward(**inputs)
        predictions = outputs[0] if isinstance(outputs, tuple) else outputs  # they come first
        errors.append(count(post_process_predictions([predictions], labels), references))
    table = np.reshape(errors, (len(ALPHAS), len(BETAS)))
    around = sliding_window_view(np.pad(table, 1, mode="edge"), (3, 3)).sum(axis=(2, 3))
    ranked = sorted(zip(errors, around.flat, grid, strict=True))
    return [Trial(*weights, number) for number, _, weights in ranked]


def write_weights(path: Path, source: str, trials: Sequence[Trial]) -> None:
    """Write the weights for ``--weights``, and all trials."""
    tried = [trial._asdict() for trial in trials]
    best = {"alpha": trials[0].alpha, "beta": trials[0].beta, "set": source, "trials": tried}
    write_atomically(path, lambda file: file.write_text(json.dumps(best, indent=1) + "\n", encoding="utf-8"))
