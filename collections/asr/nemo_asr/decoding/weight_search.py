"""search_weights: alpha and beta with the fewest errors on a development set. What they weigh: ``word_scores``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nemo_asr.decoding.beam_search import BeamSearchCTCDecoder
from nemo_asr.decoding.texts import post_process_transcripts, text_of
from nemo_asr.decoding.word_scores import Weights
from nemo_lite import NeuralModuleFactory, NmTensor
from nemo_lite.errors import DataError
from nemo_lite.utils.files import write_atomically

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
    decoder: BeamSearchCTCDecoder,
    wires: Sequence[NmTensor],
    factory: NeuralModuleFactory,
    count: CountErrors,
    seed: int = 0,
) -> list[Trial]:
    """Try a grid of weights on a set, and let the decoder use the best: on all ranks the same.

    Rank 0 searches, over at most ``MOST_UTTERANCES`` utterances that ``seed`` draws.

    Args:
        decoder: with a language model.
        wires: log-probabilities, their lengths, transcripts and their lengths, of a DAG over the set.
        factory: runs the DAG.
        count: the errors of hypotheses against references.
        seed: of the draw.

    Returns:
        The trials, the best first; on ranks above 0 that one alone.

    Raises:
        DataError: the set has no utterances.
    """
    values = factory.infer(wires, verbose=False)  # None on ranks above 0
    trials: list[Trial] = []

    def run() -> list[float]:
        assert values is not None, "rank 0 has the values"
        trials.extend(_try_all(decoder, values, count, seed))
        return [trials[0].alpha, trials[0].beta, trials[0].errors]

    alpha, beta, errors = factory.from_first(run)
    decoder.use(Weights(alpha, beta, decoder.weights.hotword_weight, decoder.weights.unknown_score))
    return trials or [Trial(alpha, beta, int(errors))]


def _try_all(
    decoder: BeamSearchCTCDecoder, values: Sequence[Sequence[Tensor]], count: CountErrors, seed: int
) -> list[Trial]:
    """Over the whole grid; of equally good trials those come first whose neighbours are better."""
    log_probs, lengths, transcripts, transcript_lengths = values
    references = post_process_transcripts(transcripts, transcript_lengths, decoder.labels)
    if not references:
        raise DataError("the set for the weights has no utterances")
    utterances = [pair for batch in zip(log_probs, lengths, strict=True) for pair in zip(*batch, strict=True)]
    drawn = np.sort(np.random.default_rng(seed).permutation(len(references))[:MOST_UTTERANCES])
    texts = [references[position] for position in drawn]
    frames = [utterances[position][0][: int(utterances[position][1])] for position in drawn]
    ends, padded = torch.tensor([len(each) for each in frames]), pad_sequence(frames, batch_first=True)
    errors, given = np.zeros((len(ALPHAS), len(BETAS)), int), decoder.weights
    for (row, alpha), (column, beta) in _pairs():
        decoder.use(Weights(alpha, beta, given.hotword_weight, given.unknown_score))
        heard = [text_of(found[0].ids, decoder.labels) for found in decoder.search(padded, ends)]
        errors[row, column] = count(heard, texts)
    around = sliding_window_view(np.pad(errors, 1, mode="edge"), (3, 3)).sum(axis=(2, 3))
    trials = {(alpha, beta): (int(errors[r, c]), int(around[r, c])) for (r, alpha), (c, beta) in _pairs()}
    best = sorted(trials, key=lambda pair: (*trials[pair], pair))
    return [Trial(*pair, trials[pair][0]) for pair in best]


def _pairs() -> list[tuple[tuple[int, float], tuple[int, float]]]:
    return [(one, other) for one in enumerate(ALPHAS) for other in enumerate(BETAS)]


def write_weights(path: Path, source: str, trials: Sequence[Trial]) -> None:
    """Write the weights for ``--weights``, and all trials."""
    tried = [trial._asdict() for trial in trials]
    best = {"alpha": trials[0].alpha, "beta": trials[0].beta, "set": source, "trials": tried}
    write_atomically(path, lambda file: file.write_text(json.dumps(best, indent=1) + "\n", encoding="utf-8"))
