"""The search against an enumeration of all texts, a plain prefix beam search, and itself on single utterances."""

from __future__ import annotations

import itertools
import math
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from toys.beam_search import PrefixBeamSearch
from toys.language_model import BigramModel

from nemo_asr.run.search.prefix_beam_search import SearchLimits, _best, search
from nemo_asr.run.search.words import HotPhrases, Spelling, Weights, WordScores
from nemo_asr.run.text.labels import text_of
from nemo_lite.base.errors import UsageError

LABELS = ["a", "b", " "]
BLANK = len(LABELS)
ALL = SearchLimits(200, min_log_prob=-100.0)
BIGRAMS = {("<s>", "ab"): -0.2, ("<s>", "b"): -1.0, ("ab", "b"): -0.3, ("b", "ab"): -0.6, ("b", "</s>"): -0.1}
MODEL = BigramModel(BIGRAMS, other=-1.5)


def random_log_probs(num, longest, seed=0, classes=BLANK + 1):
    values = torch.from_numpy(np.random.default_rng(seed).normal(scale=2.0, size=(num, longest, classes)))
    return values.log_softmax(-1)


def all_ids(num_frames):
    """All sequences of labels that fit into so many frames."""
    for length in range(num_frames + 1):
        yield from (list(ids) for ids in itertools.product(range(BLANK), repeat=length))


def acoustic(log_probs, ids):
    """The log-probability of all paths of some labels together, as the loss computes it."""
    frames, target = log_probs[:, None], torch.tensor([ids], dtype=torch.int64)
    lengths = torch.tensor([len(log_probs)]), torch.tensor([len(ids)])
    return -float(torch.nn.functional.ctc_loss(frames, target, *lengths, blank=BLANK, reduction="none"))


def word_score(text, weights, known, model=None):
    """What the words of a text are worth, word by word."""
    state, total = model.start() if model else 0, 0.0
    for word in text.split():
        total += weights.beta
        if model:
            score, state = model.score(state, word)
            total += weights.alpha * math.log(10) * score + (0 if word in known else weights.unknown_score)
    return total + (weights.alpha * math.log(10) * model.end(state) if model else 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_the_best_labels_are_those_of_an_enumeration_with_the_score_of_the_loss(seed):
    (log_probs,) = random_log_probs(1, 5, seed)
    expected = {tuple(ids): acoustic(log_probs, ids) for ids in all_ids(5)}
    best = sorted(expected, key=expected.__getitem__, reverse=True)[:4]
    (found,) = search(log_probs[None].numpy(), [5], ALL, nbest=4)
    assert [tuple(one.ids) for one in found] == best
    assert [one.score for one in found] == pytest.approx([expected[ids] for ids in best], abs=1e-5)
    assert [one.acoustic_score for one in found] == [one.score for one in found]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lexicon", [None, ["ab", "b"]], ids=["any word", "lexicon"])
def test_with_a_language_model_the_best_text_is_that_of_an_enumeration(seed, lexicon):
    (log_probs,) = random_log_probs(1, 6, seed)
    weights = Weights(alpha=0.7, beta=0.5, unknown_score=-2.0)
    expected = {}
    for ids in all_ids(6):
        text = text_of(ids, LABELS)
        is_allowed = lexicon is None or set(text.split()) <= set(lexicon)
        if is_allowed and not text.startswith(" ") and "  " not in text:  # no space in front of a space
            score = acoustic(log_probs, ids) + word_score(text, weights, MODEL.words, MODEL)
            # A space at the end writes nothing: both sequences of labels are the text.
            expected[text.strip()] = np.logaddexp(score, expected.get(text.strip(), -math.inf))
    best = max(expected, key=expected.__getitem__)
    words = WordScores(Spelling(LABELS), lexicon, MODEL, weights=weights)
    ((found, *_),) = search(log_probs[None].numpy(), [6], ALL, words, labels=LABELS)
    assert text_of(found.ids, LABELS) == best
    assert found.score == pytest.approx(expected[best], abs=1e-5)


PIECES = ["\u2581a", "b", "\u2581ab"]  # "ab" is one piece, or two
# All its words can be written with these pieces.
MODEL_OF_PIECES = BigramModel({("<s>", "ab"): -0.2, ("ab", "a"): -0.3}, other=-1.5)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("model", [None, MODEL_OF_PIECES], ids=["sounds", "words"])
def test_of_subwords_a_text_has_the_probability_of_all_its_cuts_together(seed, model):
    (log_probs,) = random_log_probs(1, 5, seed)
    weights = Weights(alpha=0.7, beta=0.5, unknown_score=-2.0)
    words = None if model is None else WordScores(Spelling(PIECES), None, model, weights=weights)
    cuts, expected = {}, {}
    for ids in all_ids(5):
        text, score = text_of(ids, PIECES), acoustic(log_probs, ids)
        score += word_score(text, weights, model.words, model) if model else 0.0
        expected[text] = np.logaddexp(score, expected.get(text, -math.inf))
        cuts.setdefault(text, []).append((score, ids))
    (found,) = search(
        log_probs[None].numpy(), [5], SearchLimits(400, min_log_prob=-100.0), words, nbest=6, labels=PIECES
    )
    best = sorted(expected, key=expected.__getitem__, reverse=True)[:6]
    assert [text_of(one.ids, PIECES) for one in found] == best
    assert [one.score for one in found] == pytest.approx([expected[text] for text in best], abs=1e-5)
    assert [one.ids for one in found] == [max(cuts[text])[1] for text in best]
    assert any(len(cuts[text]) > 1 for text in best)


def test_the_most_probable_text_wins_also_where_each_of_its_cuts_is_less_probable_than_another_text():
    labels = ["\u2581a", "b", "\u2581ab", "\u2581d"]
    probabilities = np.full((1, 2, 5), 1e-9)
    probabilities[0, 0, [0, 2, 3]] = 0.35, 0.3, 0.35
    probabilities[0, 1, [1, 4]] = 0.4, 0.6
    # d 0.21, a 0.21, ab 0.18 as one piece and 0.14 as two
    (found,) = search(np.log(probabilities), [2], SearchLimits(16), nbest=3, labels=labels)
    assert text_of(found[0].ids, labels) == "ab"
    assert np.exp(found[0].score) == pytest.approx(0.32, abs=1e-6)
    assert found[0].ids == [2]
    assert len({text_of(one.ids, labels) for one in found}) == 3
    (apart,) = search(np.log(probabilities), [2], SearchLimits(16))
    assert text_of(apart[0].ids, labels) != "ab"


@pytest.mark.parametrize("width", [1, 2, 4, 16])
def test_a_narrow_beam_keeps_what_a_plain_prefix_beam_search_keeps(width):
    log_probs, lengths = random_log_probs(6, 12), [12, 11, 3, 7, 0, 12]
    found = search(log_probs.numpy(), lengths, SearchLimits(width, min_log_prob=-100.0))
    plain = PrefixBeamSearch(width)
    for hypotheses, frames, end in zip(found, log_probs, lengths, strict=True):
        assert tuple(hypotheses[0].ids) == plain._search(frames[:end].exp().tolist(), BLANK)


@pytest.mark.parametrize(
    "words", [None, WordScores(Spelling(LABELS), ["ab", "b"], MODEL, ["ab"])], ids=["sounds", "words"]
)
def test_an_utterance_does_not_depend_on_its_neighbours(words):
    """Also where a frame has equally probable labels, and where others have more labels that count."""
    log_probs = random_log_probs(5, 20).numpy()
    log_probs[1] = np.log(1 / 4)
    log_probs[2, 3:] = [-20.0, -20.0, -20.0, 0.0]
    lengths, limits = [20, 20, 18, 1, 0], SearchLimits(4, min_log_prob=-4.0)
    together = search(log_probs, lengths, limits, words, nbest=3)
    alone = [search(log_probs[[row], :end], [end], limits, words, nbest=3)[0] for row, end in enumerate(lengths)]
    assert together == alone


def test_frames_in_which_only_the_blank_is_probable_are_left_out_without_a_trace():
    """A label before and behind them comes twice; the score is nearly that of the search over all frames."""
    log_probs = np.log(np.full((1, 9, 4), 1e-4))
    log_probs[:, :, BLANK] = np.log(1 - 3e-4)
    log_probs[:, [1, 7], 0], log_probs[:, [1, 7], BLANK] = np.log(1 - 3e-4), np.log(1e-4)
    found, whole = (
        search(log_probs, [9], limits)[0][0] for limits in (SearchLimits(8), SearchLimits(8, min_log_prob=-50.0))
    )
    assert found.ids == whole.ids == [0, 0]
    assert found.score == pytest.approx(whole.score, abs=3e-3)
    (nothing,) = search(log_probs[:, :1], [1], SearchLimits(8))
    assert nothing[0].ids == []
    assert nothing[0].score == pytest.approx(np.log(1 - 3e-4))


def test_a_word_that_the_audio_cuts_off_is_no_word_of_the_lexicon():
    """ab, then an a: where no hypothesis ends with a word, the last one is left out."""
    log_probs = np.full((1, 5, 4), -40.0)
    log_probs[0, range(5), [0, 1, 2, 0, BLANK]] = 0.0
    words = WordScores(Spelling(LABELS), ["ab", "b"])
    ((found, *_),) = search(log_probs, [5], SearchLimits(4), words)
    assert text_of(found.ids, LABELS).split() == ["ab"]


def test_a_hot_word_is_found_where_another_one_is_a_little_more_probable():
    probabilities = np.full((1, 2, 4), 1e-3)
    probabilities[0, 0, :2], probabilities[0, 1, BLANK] = [0.6, 0.4], 1.0
    found = {
        hot: search(np.log(probabilities), [2], SearchLimits(4), WordScores(Spelling(LABELS), hotwords=hot))[0][0].ids
        for hot in ((), ("b",))
    }
    assert found == {(): [0], ("b",): [1]}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"beam_size": 0}, "beam_size"),
        ({"cutoff_prob": 0.0}, "cutoff_prob is 0.0, wanted float above 0, up to 1"),
        ({"min_log_prob": 0.5}, "min_log_prob is 0.5, wanted float from -inf, below 0"),
    ],
)
def test_limits_out_of_range_are_refused(given, message):
    with pytest.raises(UsageError, match=message):
        SearchLimits(**given)


def worth_of_phrases(text, phrases, has_words):
    """The weight of each phrase for each place where it stands, also within others."""
    text, gap = (f" {text} ", " ") if has_words else (text, "")
    patterns = [(p if p[0] >= "\u4e00" else gap + p) + ("" if p[-1] >= "\u4e00" else gap) for p in phrases]
    weights = dict(zip(patterns, phrases.values(), strict=True))
    return sum(weight * text.startswith(p, at) for p, weight in weights.items() for at in range(len(text)))


def all_cuts(text):
    """The ways to cut a text into words."""
    for places in itertools.product([False, True], repeat=max(len(text) - 1, 0)):
        ends = [place for place, is_end in enumerate(places, 1) if is_end]
        yield [text[a:b] for a, b in itertools.pairwise([0, *ends, len(text)])] if text else []


HOT = {
    "letters": (["a", "b", " "], {"a": 1.5, "b a": 3.0, "a b": 2.0, "ab": 1.0, "ab b a": 2.5}),
    "pieces": (["\u2581a", "b", "\u2581ab"], {"ab": 2.0, "abb a": 1.5, "a a": 3.0, "abb": 1.0}),
    "a piece of a space": (["\u2581", "b", "\u2581ab"], {"ab": 2.0, "b ab": 1.5, "bb": 3.0}),
    "no spaces": (
        ["\u5317", "\u4eac", "\u4eba"],
        {"\u5317\u4eac": 2.0, "\u4eac\u4eba": 1.5, "\u4eba\u4eba": 3.0, "\u4eac": 0.5},
    ),
    "both": (
        ["\u2581\u5317", "\u4eac", "\u2581a"],
        {"\u5317\u4eac": 2.0, "\u4eac a": 1.5, "a": 1.0, "\u4eac\u4eac": 3.0},
    ),
}


@pytest.mark.parametrize("kind", HOT)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("with_model", [False, True], ids=["phrases", "phrases and a language model"])
def test_a_text_gains_the_weight_of_each_hot_phrase_wherever_it_stands(kind, seed, with_model, monkeypatch):
    # Every node has a row; or one with more than two labels of its own; or none.
    few_labels, most_own = [(64, 8), (0, 2), (0, 8)][seed]
    monkeypatch.setattr("nemo_asr.run.search.words._FEW_LABELS", few_labels)
    monkeypatch.setattr("nemo_asr.run.search.words._MOST_OWN", most_own)
    labels, phrases = HOT[kind]
    (log_probs,), spelling, weights = random_log_probs(1, 6, seed), Spelling(labels), Weights(0.7, 0.5, unknown_score=0)
    words_of = {" ".join(p) if not spelling.has_words else p for p in phrases}  # test_segmentation has longer words
    known = {word: -0.3 for phrase in words_of for word in phrase.split() if spelling.can_spell(word)}
    model = BigramModel({("<s>", word): score for word, score in known.items()}, other=-1.5) if with_model else None
    allowed = {*known, *(phrases if with_model else []), *labels}
    expected = {}
    for ids in all_ids(6):
        written = "".join(labels[label] for label in ids).replace("\u2581", " ")
        if " " not in labels or not (written.startswith(" ") or "  " in written):
            words = written.split() if spelling.has_words else list(written)
            cuts = [words] if spelling.has_words else all_cuts("".join(words))
            score = acoustic(log_probs, ids)
            score += max(
                word_score(" ".join(cut), weights, known, model)
                for cut in cuts
                if spelling.has_words or set(cut) <= allowed
            )
            text = (" " if spelling.has_words else "").join(words)
            score += worth_of_phrases(text, phrases, spelling.has_words)
            key = written.strip()  # a piece of a space writes a second one
            expected[key] = np.logaddexp(score, expected.get(key, -math.inf))
    best = sorted(expected, key=expected.__getitem__, reverse=True)[:4]
    hot = [f"{phrase}:{weight}" for phrase, weight in phrases.items()]
    words = WordScores(spelling, None, model, hot, weights)
    (found,) = search(
        log_probs[None].numpy(), [6], SearchLimits(1100, min_log_prob=-100.0), words, nbest=4, labels=labels
    )
    assert [text_of(one.ids, labels) for one in found] == best
    assert [one.score for one in found] == pytest.approx([expected[text] for text in best], abs=1e-5)


@pytest.mark.parametrize("few_labels", [64, 0])
@pytest.mark.parametrize("kind", HOT)
def test_many_hot_phrases_give_what_they_give_when_little_is_kept(kind, few_labels, monkeypatch):
    labels, phrases = HOT[kind]
    log_probs, lengths = random_log_probs(5, 20).numpy(), [20] * 5
    found = []
    for kept, few, ahead in ((1 << 20, 64, 4096), (9, few_labels, 1)):
        monkeypatch.setattr("nemo_asr.run.search.words._MOST_KEPT", kept)
        monkeypatch.setattr("nemo_asr.run.search.words._FEW_LABELS", few)
        monkeypatch.setattr("nemo_asr.run.search.words._MOST_OWN", 1)
        monkeypatch.setattr("nemo_asr.run.search.words._AHEAD", ahead)
        found.append(search(log_probs, lengths, SearchLimits(8), WordScores(Spelling(labels), hotwords=list(phrases))))
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", range(5))
def test_the_best_of_many_scores_are_the_first_of_a_sort_also_where_some_are_equal(seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(-9, 0, size=(6, 40)).astype(float)
    values[rng.random((6, 40)) < seed / 5] = -np.inf
    values[0] = -np.inf
    chosen = _best(values, 8, values[:, rng.permutation(40)[: 12 if seed else 40]])
    expected = np.argsort(-values, axis=1, kind="stable")[:, :8]
    found, wanted = (np.take_along_axis(values, places, axis=1) for places in (chosen, expected))
    assert found.tolist() == wanted.tolist()
    assert chosen[found > -np.inf].tolist() == expected[found > -np.inf].tolist()


def test_threads_that_search_at_once_find_what_each_finds_alone(monkeypatch):
    labels, phrases = HOT["pieces"]
    monkeypatch.setattr("nemo_asr.run.search.words._FEW_LABELS", 0)
    monkeypatch.setattr("nemo_asr.run.search.words._AHEAD", 1)
    inputs = [random_log_probs(3, 20, seed).numpy() for seed in range(2)]

    def found(log_probs, words):
        return search(log_probs, [20] * 3, SearchLimits(8), words)

    alone = [found(log_probs, WordScores(Spelling(labels), hotwords=list(phrases))) for log_probs in inputs]
    shared, keep = WordScores(Spelling(labels), hotwords=list(phrases)), HotPhrases._keep

    def keep_slowly(*args):
        time.sleep(0.01)  # the other thread may work out labels between these two halves
        keep(*args)

    monkeypatch.setattr(HotPhrases, "_keep", keep_slowly)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(found, inputs, [shared] * 2)) == alone


def test_a_phrase_that_goes_on_counts_before_its_end():
    """Its first word alone is less probable than another; the beam of 2 keeps it."""
    probabilities = np.full((1, 4, 4), 1e-3)
    for frame, (first, second) in enumerate([(0.3, 0.7), (0.5, 0.5), (0.1, 0.9), (0.1, 0.9)]):
        probabilities[0, frame, [[0, 1], [1, 0], [2, 1], [1, 0]][frame]] = first, second
    plain = WordScores(Spelling(LABELS), weights=Weights(beta=0.0))
    hot = WordScores(Spelling(LABELS), hotwords=["ab b:9"], weights=Weights(beta=0.0))
    texts = [text_of(search(np.log(probabilities), [4], SearchLimits(2), w)[0][0].ids, LABELS) for w in (plain, hot)]
    assert texts[0] != texts[1] == "ab b"
