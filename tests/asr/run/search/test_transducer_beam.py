"""The search of transducers with a beam against an enumeration of all paths, greedy search, streams and words."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
from toys.language_model import BigramModel
from toys.transducer_networks import ChosenNetworks, RandomNetworks, log_softmax, numbered, random_frames

from nemo_asr.run.search.search import States
from nemo_asr.run.search.transducer import FRAMES, GreedyTransducer
from nemo_asr.run.search.transducer_beam import TransducerBeam
from nemo_asr.run.search.words import Spelling, Weights, WordScores
from nemo_asr.run.text.labels import text_of
from nemo_lite.base.errors import UsageError

KINDS = {
    "RNN-T": {},
    "TDT": {"durations": [0, 1, 2]},
    "TDT without 0": {"durations": [1, 2]},
    "TDT with gaps": {"durations": [0, 1, 3]},
    "big blanks": {"big_blank_durations": [2, 4]},
}
LABELS = ["a", "b"]
ALL = {"beam_size": 10_000, "min_log_prob": -1000.0}


def states(num_frames, seed=0) -> States:
    return {FRAMES: random_frames(num_frames, seed)}


def all_paths(networks, frames, max_symbols):
    """The natural logarithm of the probability of each sequence of labels: the sum over all its paths."""
    blanks = {networks.blank: 1}
    blanks |= {networks.blank - 1 - k: step for k, step in enumerate(networks.big_blank_durations)}
    memories, known, sums = {(): networks.beginning(1)}, {}, defaultdict(list)

    def go_on(frame, num_here, ids, log_prob):
        if frame >= len(frames):
            sums[ids].append(log_prob)
            return
        if (frame, ids) not in known:
            (scores,) = networks.scores(frames[frame : frame + 1], memories[ids])
            parts = scores[: networks.blank + 1], scores[networks.blank + 1 :]
            known[frame, ids] = log_softmax(parts[0]), log_softmax(parts[1]) if len(parts[1]) else []
        of_outputs, of_steps = known[frame, ids]
        for output, score in enumerate(of_outputs):
            is_label = output not in blanks
            if is_label and num_here == max_symbols:
                continue
            steps = [0] if is_label else [blanks[output]]
            with_steps = [(step, 0.0) for step in steps]
            if networks.durations:
                pairs = zip(networks.durations, of_steps, strict=True)
                with_steps = [(step, of_step) for step, of_step in pairs if is_label or step]
            longer = (*ids, output) if is_label else ids
            if longer not in memories:
                memories[longer] = networks.after(np.array([output]), memories[ids])
            for step, of_step in with_steps:
                here = num_here + 1 if is_label and step == 0 else 0
                go_on(frame + step, here, longer, log_prob + score + of_step)

    go_on(0, 0, (), 0.0)
    return {ids: float(np.logaddexp.reduce(values)) for ids, values in sums.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_frames", [1, 3, 5])
def test_a_wide_beam_has_the_texts_and_scores_of_an_enumeration_of_all_paths(kind, num_frames):
    networks = RandomNetworks(num_frames, num_labels=2, **KINDS[kind])
    given = states(num_frames, seed=1)
    wanted = all_paths(networks, given[FRAMES], max_symbols=2)
    search = TransducerBeam(networks, LABELS, max_symbols=2, **ALL)
    found = search.recognise(given, nbest=len(wanted)).scored
    assert {tuple(ids): score for ids, score in found} == pytest.approx(wanted, abs=1e-9)
    assert [score for _, score in found] == pytest.approx(sorted(wanted.values(), reverse=True))
    if not networks.durations:  # all that can be said together
        assert np.logaddexp.reduce(list(wanted.values())) <= 1e-9


@pytest.mark.parametrize("durations", [(), (0, 1, 2, 4)], ids=["RNN-T", "TDT"])
def test_where_each_output_is_sure_the_best_text_is_that_of_greedy_search_with_its_times(durations):
    def sure(frame, before):
        output = len(before) % 2 if 2 * len(before) <= frame else 2
        step = (frame + len(before)) % 3 + 1
        return [50.0 * (output == each) for each in range(3)] + [
            50.0 * (step == each) for each in range(len(durations))
        ]

    networks, given = ChosenNetworks(sure, 2, durations), {FRAMES: numbered(20)}
    best = TransducerBeam(networks, LABELS, beam_size=3).recognise(given).best
    greedy = GreedyTransducer(networks).recognise(given).best
    assert (best.ids, best.starts, best.ends) == (greedy.ids, greedy.starts, greedy.ends)
    assert best.log_probs == pytest.approx(greedy.log_probs, abs=1e-5)
    assert len(best.ids) > 3


@pytest.mark.parametrize("kind", ["RNN-T", "TDT", "big blanks"])
@pytest.mark.parametrize("chunk", [1, 7])
def test_a_stream_has_the_labels_of_the_whole_recording_and_parts_go_on(kind, chunk):
    networks, given = RandomNetworks(2, num_labels=2, **KINDS[kind]), states(30)
    search = TransducerBeam(networks, LABELS, beam_size=4)
    whole = search.recognise(given).best
    stream = search.stream(100)
    for first in range(0, 30, chunk):
        assert stream.accept({FRAMES: given[FRAMES][first : first + chunk]}, lambda _: False) == min(chunk, 30 - first)
    assert stream.end(30) == whole
    assert stream.ids() == whole.ids
    stream, first = search.stream(100), 0
    while first < 30:
        counted = iter(range(1, 100))
        number = stream.accept({FRAMES: given[FRAMES][first : first + 9]}, lambda _, c=counted: next(c) == 7)
        stream.end(number)
        first += number
    assert stream.ids() == whole.ids


def test_a_label_is_spoken_for_all_its_frames():
    networks = ChosenNetworks(
        lambda frame, before: [9, 0, 0, 0, 0, 9] if frame == 1 else [0, 9, 0, 9, 0, 0], 1, (0, 1, 2, 3)
    )
    heard = []
    for search in (GreedyTransducer(networks), TransducerBeam(networks, ["a"], beam_size=2)):
        heard.append([])
        search.stream(9).accept({FRAMES: numbered(6)}, lambda is_spoken: heard[-1].append(is_spoken))
    assert heard == [[False, True, True, True, False, False]] * 2


WORDS = ["a", "b", " "]
BIGRAMS = {("<s>", "ab"): -0.2, ("<s>", "b"): -1.0, ("ab", "b"): -0.3, ("b", "ab"): -0.6, ("b", "</s>"): -0.1}
MODEL = BigramModel(BIGRAMS, other=-1.5)


def word_score(text, weights, known, model):
    """What the words of a text are worth, word by word."""
    state, total = model.start() if model else 0, 0.0
    for word in text.split():
        total += weights.beta
        if model:
            score, state = model.score(state, word)
            total += weights.alpha * math.log(10) * score + (0 if word in known else weights.unknown_score)
    return total + (weights.alpha * math.log(10) * model.end(state) if model else 0.0)


def with_words(monkeypatch, networks, labels, words, **options):
    """The search with words that are no file's."""
    search = TransducerBeam(networks, labels, **options)
    monkeypatch.setattr(search, "_words", words)
    return search


@pytest.mark.parametrize("kind", ["RNN-T", "TDT"])
@pytest.mark.parametrize("with_model", [False, True])
def test_with_a_language_model_scores_are_those_of_the_sounds_and_of_the_words(kind, with_model, monkeypatch):
    weights = Weights(alpha=0.7, beta=0.4, unknown_score=-2.0)
    networks, given = RandomNetworks(7, num_labels=3, **KINDS[kind]), states(3)
    model = MODEL if with_model else None
    lexicon = None if with_model else ["ab", "b"]
    words = WordScores(Spelling(WORDS), lexicon, model, weights=weights)
    search = with_words(monkeypatch, networks, WORDS, words, max_symbols=2, **ALL)
    wanted = defaultdict(list)
    for ids, score in all_paths(networks, given[FRAMES], max_symbols=2).items():
        text = text_of(ids, WORDS)
        written = "".join(WORDS[label] for label in ids)
        if "  " in written or written.startswith(" ") or (lexicon and not set(text.split()) <= set(lexicon)):
            continue
        wanted[text.strip()].append(score + word_score(text, weights, MODEL.words, model))
    wanted = {text: float(np.logaddexp.reduce(scores)) for text, scores in wanted.items()}
    found = search.recognise(given, nbest=len(wanted)).scored
    assert {text_of(ids, WORDS): score for ids, score in found} == pytest.approx(wanted, abs=1e-9)


def test_hot_words_make_a_text_more_probable_by_their_weight():
    networks, given, options = RandomNetworks(7, num_labels=3), states(3), {"beta": 0.0, "max_symbols": 2, **ALL}
    plain, hot = (
        dict(_texts(TransducerBeam(networks, WORDS, hotwords=[words], **options), given)) for words in ("ab:0", "ab:3")
    )
    assert hot["ab"] - plain["ab"] == pytest.approx(3.0)
    assert hot["ba"] == pytest.approx(plain["ba"])


def _texts(search, given):
    return [(text_of(ids, WORDS), score) for ids, score in search.recognise(given, nbest=2000).scored]


def test_where_labels_have_no_spaces_words_of_a_lexicon_are_found_in_the_best_of_all_ways(monkeypatch):
    labels, networks, given = ["你", "好"], RandomNetworks(1, num_labels=2), states(4)
    words = WordScores(Spelling(labels), ["你好", "好"], None, weights=Weights(beta=0.5))
    search = with_words(monkeypatch, networks, labels, words, max_symbols=2, **ALL)
    found = {text_of(ids, labels): score for ids, score in search.recognise(given, nbest=500).scored}
    all_ids = all_paths(networks, given[FRAMES], max_symbols=2)
    sounds = {text_of(ids, labels): score for ids, score in all_ids.items()}
    wanted = {
        text: score + 0.5 * text.count("好") for text, score in sounds.items() if "你" not in text.replace("你好", "")
    }
    assert found == pytest.approx(wanted, abs=1e-9)


def test_files_of_words_are_read_as_by_the_search_of_ctc(tmp_path):
    (tmp_path / "words.txt").write_text("abba\n")
    networks = RandomNetworks(0, num_labels=3)
    search = TransducerBeam(networks, WORDS, lexicon=tmp_path / "words.txt", min_log_prob=-100.0)
    ids = search.recognise(states(12)).best.ids
    assert set(text_of(ids, WORDS).split()) == {"abba"}
    search.use(Weights(beta=-50.0))
    assert not search.recognise(states(12)).best.ids
    assert search.num_bytes > 0
    with pytest.raises(UsageError, match="the model's labels cannot spell words of the list"):
        TransducerBeam(networks, WORDS, hotwords=["xyz"])


@pytest.mark.parametrize("nbest", [0, 5])
def test_more_hypotheses_than_the_beam_has_are_refused(nbest):
    with pytest.raises(UsageError, match=rf"got nbest {nbest}, wanted 1 to 4, the beam; raise beam_size"):
        TransducerBeam(RandomNetworks(), ["a", "b", "c"], beam_size=4).recognise(states(2), nbest)


def test_a_beam_of_0_is_refused():
    with pytest.raises(UsageError, match="beam_size"):
        TransducerBeam(RandomNetworks(), ["a", "b", "c"], beam_size=0)


def test_a_recording_without_frames_says_nothing():
    found = TransducerBeam(RandomNetworks(), ["a", "b", "c"]).recognise(states(0), 3)
    assert found.best.ids == []
    assert [list(ids) for ids, _ in found.scored] == [[]]


def test_a_head_that_never_says_blank_moves_on_and_ends():
    networks = ChosenNetworks(lambda frame, before: [9.0, 0.0, 0.0, 9.0, 0.0], 2, (0, 1))
    labels = TransducerBeam(networks, LABELS, beam_size=4, max_symbols=3).recognise({FRAMES: numbered(4)}).best
    assert max(np.bincount(labels.starts)) <= 3
    assert max(labels.starts) == 3


@pytest.mark.parametrize("search", [GreedyTransducer, lambda networks: TransducerBeam(networks, LABELS)])
def test_scores_that_are_no_numbers_are_one_line(search):
    with_nan = {FRAMES: np.full_like(random_frames(3, 0), np.nan)}
    with pytest.raises(
        UsageError, match=r"gives scores that are no numbers \(NaN\): got \d+ of \d+; take a checkpoint"
    ):
        search(RandomNetworks(num_labels=len(LABELS))).recognise(with_nan)
