"""Weights with the fewest errors on a set; all ranks use them, and their file says them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from toys.language_model import BigramModel
from toys.random_transducers import TDT, config_of, random_transducer

from nemo_asr.decoding.beam_search import ALPHAS, BETAS, BeamSearchCTCDecoder, search_weights, write_weights
from nemo_asr.run.options import SearchOptions
from nemo_asr.run.search.transducer import FRAMES
from nemo_asr.run.search.words import Spelling, WordScores
from nemo_asr.run.text.labels import text_of
from nemo_asr.scoring.rates import count_errors
from nemo_asr.tasks.family import search_of
from nemo_lite.base.errors import DataError, UsageError

LABELS = ["a", "b", " "]
INPUTS = dict.fromkeys(BeamSearchCTCDecoder.input_ports)
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
    trials = search_weights(decoder, INPUTS, [], LABELS, rank, count)
    assert len(trials) == len(ALPHAS) * len(BETAS)
    assert [trial.errors for trial in trials] == sorted(trial.errors for trial in trials)
    without = next(trial for trial in trials if trial.alpha == 0 and trial.beta == 0)
    assert trials[0].errors < without.errors
    # What is used now makes as many errors as its trial says.
    log_probs = torch.cat(values[0])
    heard = [text_of(found[0].ids, LABELS) for found in decoder.search(log_probs)]
    assert count(heard, ["ab b"] * 8) == trials[0].errors
    other = decoder_of()
    (told,) = search_weights(other, INPUTS, [], LABELS, OneRank(None, rank.made), count)
    assert (told, other.weights) == (trials[0], decoder.weights)
    write_weights(tmp_path / "weights.json", "dev.json", trials)
    written = json.loads((tmp_path / "weights.json").read_text())
    assert (written["alpha"], written["beta"], written["set"]) == (trials[0].alpha, trials[0].beta, "dev.json")
    assert written["trials"][0]["errors"] == trials[0].errors


def test_a_set_without_utterances_is_refused():
    empty = [[torch.zeros(0, 5, 4)], [torch.zeros(0)], [torch.zeros(0, 4, dtype=torch.int64)], [torch.zeros(0)]]
    with pytest.raises(DataError, match="the set for the weights has no utterances"):
        search_weights(decoder_of(), INPUTS, [], LABELS, OneRank(empty), count)


def test_the_weights_of_a_transducer_are_found_over_its_own_frames(tmp_path):
    model = random_transducer(tmp_path, config_of(TDT))
    (tmp_path / "words.arpa").write_text(
        "\\data\\\nngram 1=4\n\n\\1-grams:\n-1\t<s>\n-1\t</s>\n-0.1\tcab\n-2\tba\n\n\\end\\\n"
    )
    labels, options = model.recipe.labels, SearchOptions(4, lm=str(tmp_path / "words.arpa"))
    decoder: Any = search_of(model.modules, labels, options)
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(length, 24, generator=generator) for length in (9, 14, 20, 12)]
    decoder.use(replace(decoder.weights, alpha=1.5, beta=-1.0))
    said = [list(decoder.recognise({FRAMES: row.numpy()}).best.ids) for row in rows]
    decoder.use(replace(decoder.weights, alpha=0.0, beta=3.0))
    assert said != [list(decoder.recognise({FRAMES: row.numpy()}).best.ids) for row in rows]

    def batch(of_batch, texts):  # what is behind an utterance counts for nothing
        frames = torch.nn.utils.rnn.pad_sequence(of_batch, batch_first=True, padding_value=9.0)
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
        return frames, torch.tensor([*map(len, of_batch)]), ids, torch.tensor([*map(len, texts)])

    values = [*zip(batch(rows[:2], said[:2]), batch(rows[2:], said[2:]), strict=True)]
    trials = search_weights(decoder, dict.fromkeys(decoder.input_ports), [], labels, OneRank(values), count)
    assert trials[0].errors == 0 < trials[-1].errors
    assert (decoder.weights.alpha, decoder.weights.beta) == trials[0][:2]
    assert decoder.options.alpha == trials[0].alpha  # as the report says it
    with pytest.raises(UsageError, match=r"this search has no weights: got transducer_search, wanted a search for wo"):
        search_weights(search_of(model.modules, labels), {}, [], labels, OneRank(values), count)
