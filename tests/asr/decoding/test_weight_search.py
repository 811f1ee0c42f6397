"""Weights with the fewest errors on a set; all ranks use them, and their file says them."""

from __future__ import annotations

import json

import pytest
import torch
from toys.language_model import BigramModel

from nemo_asr.decoding.beam_search import ALPHAS, BETAS, BeamSearchCTCDecoder, search_weights, write_weights
from nemo_asr.run.search.words import Spelling, WordScores
from nemo_asr.run.text.labels import text_of
from nemo_asr.scoring.rates import count_errors
from nemo_lite.base.errors import DataError

LABELS = ["a", "b", " "]
MODEL = BigramModel({("<s>", "ab"): -0.1, ("ab", "b"): -0.1, ("b", "</s>"): -0.1, ("aa", "aa"): -2})


class OneRank:
    """Stands for the factory: gives values of wires, as on rank 0 or another one."""

    def __init__(self, values, first=None):
        self._values, self._first = values, first

    def infer(self, wires, verbose):
        return self._values

    def from_first(self, make):
        self.made = make() if self._first is None else self._first
        return self.made


def values_of(num):
    """Batches of what sounds like "aa b" where "ab b" was said, all a little different."""
    generator = torch.Generator().manual_seed(0)
    sounds = torch.zeros(num, 5, 4)
    for frame, label in enumerate((0, 3, 0, 2, 1)):
        sounds[:, frame, label] = 8.0
    sounds[:, 2, 1] = 6.5
    log_probs = (sounds + torch.randn(sounds.shape, generator=generator)).log_softmax(2)
    transcripts = torch.tensor([[0, 1, 2, 1]]).expand(num, 4)
    every = log_probs, torch.full((num,), 5), transcripts, torch.full((num,), 4)
    return [[each[:3], each[3:]] for each in every]


def decoder_of():
    decoder = BeamSearchCTCDecoder(LABELS)
    decoder._search._words = WordScores(Spelling(LABELS), None, MODEL, weights=decoder.weights)
    return decoder


def count(heard, said):
    return count_errors(heard, said).errors


def test_the_best_weights_are_used_by_all_ranks_and_written(tmp_path):
    decoder, values = decoder_of(), values_of(8)
    rank = OneRank(values)
    trials = search_weights(decoder, [], rank, count)
    assert len(trials) == len(ALPHAS) * len(BETAS)
    assert [trial.errors for trial in trials] == sorted(trial.errors for trial in trials)
    without = next(trial for trial in trials if trial.alpha == 0 and trial.beta == 0)
    assert trials[0].errors < without.errors
    # What is used now makes as many errors as its trial says.
    log_probs = torch.cat(values[0])
    heard = [text_of(found[0].ids, LABELS) for found in decoder.search(log_probs)]
    assert count(heard, ["ab b"] * 8) == trials[0].errors
    other = decoder_of()
    (told,) = search_weights(other, [], OneRank(None, rank.made), count)
    assert (told, other.weights) == (trials[0], decoder.weights)
    write_weights(tmp_path / "weights.json", "dev.json", trials)
    written = json.loads((tmp_path / "weights.json").read_text())
    assert (written["alpha"], written["beta"], written["set"]) == (trials[0].alpha, trials[0].beta, "dev.json")
    assert written["trials"][0]["errors"] == trials[0].errors


def test_a_set_without_utterances_is_refused():
    empty = [[torch.zeros(0, 5, 4)], [torch.zeros(0)], [torch.zeros(0, 4, dtype=torch.int64)], [torch.zeros(0)]]
    with pytest.raises(DataError, match="the set for the weights has no utterances"):
        search_weights(decoder_of(), [], OneRank(empty), count)
