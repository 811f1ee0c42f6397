"""A beam search while frames come: the hypotheses and scores of the search over all frames, and what it keeps."""

from __future__ import annotations

import numpy as np
import pytest
from toys.language_model import BigramModel

from nemo_asr.run.search.prefix_beam_search import SearchLimits, StreamedSearch, search
from nemo_asr.run.search.words import Spelling, WordScores
from nemo_lite.base.errors import UsageError

LETTERS = ["a", "b", " "]
PIECES = ["\u2581a", "b", "\u2581ab"]
CHARACTERS = ["中", "国", "人", "民"]
MODEL = BigramModel({("<s>", "ab"): -0.2, ("ab", "b"): -0.3, ("b", "ab"): -0.6, ("b", "</s>"): -0.1}, other=-1.5)
CHINESE = BigramModel({("<s>", "中国"): -0.2, ("中国", "人民"): -0.3}, other=-1.5)
SEARCHES = {
    "labels": (LETTERS, None),
    "lexicon, language model, hot words": (LETTERS, WordScores(Spelling(LETTERS), ["ab", "b"], MODEL, ["ab"])),
    "language model": (LETTERS, WordScores(Spelling(LETTERS), None, MODEL)),
    "hot phrase": (LETTERS, WordScores(Spelling(LETTERS), hotwords=["ab b"])),
    "subwords": (PIECES, None),
    "words of subwords": (PIECES, WordScores(Spelling(PIECES), ["ab", "a"], MODEL)),
    "words without spaces": (
        CHARACTERS,
        WordScores(Spelling(CHARACTERS), ["中国", "人民", "中国人", "民"], CHINESE, ["中国人"]),
    ),
    "language model without spaces": (CHARACTERS, WordScores(Spelling(CHARACTERS), None, CHINESE)),
}


def log_probs_of(num_frames, num_classes, rng):
    """Some frames have nothing but the blank, at the beginning and at the end too."""
    values = rng.normal(scale=3, size=(num_frames, num_classes))
    values[rng.random(num_frames) < 0.4, -1] += 12
    return (values - np.log(np.exp(values).sum(1, keepdims=True))).astype(np.float32)


@pytest.mark.parametrize("name", SEARCHES)
def test_chunks_of_any_size_give_the_hypotheses_of_the_whole_with_the_same_scores(name):
    labels, words = SEARCHES[name]
    num_settled = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        num_frames = int(rng.integers(1, 60))
        log_probs = log_probs_of(num_frames, len(labels) + 1, rng)
        limits = SearchLimits(int(rng.integers(3, 12)), min_log_prob=-5.0)
        (whole,) = search(log_probs[None], [num_frames], limits, words, 3, labels)
        stream, first = StreamedSearch(limits, words, labels), 0
        while first < num_frames:
            end = first + int(rng.integers(0, 9))
            stream.accept(log_probs[first:end])
            first = end
            stream.finish()  # a question changes nothing
            if seed % 2:
                stream.settle(first - 3)
        found = stream.finish(3)
        assert [(stream.settled + one.ids, *one[1:3]) for one in found] == [tuple(one[:3]) for one in whole]
        assert all(len(one.frames) == len(one.ids) and (np.diff(one.frames) > 0).all() for one in found)
        num_settled += len(stream.settled)
    assert num_settled > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
def test_a_stream_without_end_keeps_the_last_word_of_what_all_hypotheses_share(name):
    labels, words = SEARCHES[name]
    rng, stream = np.random.default_rng(1), StreamedSearch(SearchLimits(1), words, labels)
    kept = []
    for _ in range(40):
        stream.accept(log_probs_of(12, len(labels) + 1, rng))
        stream.settle(stream.num_frames)
        kept.append(len(stream.best()[0]))
    assert len(stream.settled) > 10
    assert max(kept) < 40


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if "spaces" in name else []) for name in SEARCHES]
)
def test_hypotheses_that_differ_for_long_lose_their_old_labels_and_no_score(name):
    labels, words = SEARCHES[name]
    num_cut = num_equal = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        log_probs = log_probs_of(120, len(labels) + 1, rng)
        limits = SearchLimits(6, min_log_prob=-5.0)
        stream, whole = (StreamedSearch(limits, words, labels) for _ in range(2))
        for first in range(0, 120, 6):
            stream.accept(log_probs[first : first + 6])
            whole.accept(log_probs[first : first + 6])
            if stream.num_frames - stream.oldest > 24:
                stream.commit(stream.num_frames - 12)
                num_cut += 1
            for each, other in zip(stream._found, whole._found, strict=True):
                assert other.ids[len(other.ids) - len(each.ids) :] == each.ids
        for scores in ("with_blank", "with_label", "key"):
            assert np.array_equal(getattr(stream._beams, scores), getattr(whole._beams, scores))
        assert np.array_equal(stream._beams.words.score, whole._beams.words.score)
        num_equal += stream.settled + stream.finish()[0].ids == whole.finish()[0].ids
        assert len(stream.best()[0]) < len(whole.best()[0])
    assert num_cut > 6
    assert num_equal >= 4


def test_two_texts_as_probable_as_each_other_do_not_grow_with_the_stream():
    """Nobody says which of two words was said first, and the search keeps both for ever."""
    frames = np.full((2 * 400, 4), 1e-6)
    frames[1::2, 3] = 1.0
    frames[::4, 2], frames[2::4, 1] = 1.0, 1.0  # " b b b b"
    frames[2, :2] = 0.5
    log_probs = np.log(frames)
    ((whole,),) = search(log_probs[None], [len(frames)], SearchLimits(4), None, 1, LETTERS)
    sizes = {}
    for commits in (True, False):
        stream = StreamedSearch(SearchLimits(4), None, LETTERS)
        for first in range(0, len(frames), 10):
            stream.accept(log_probs[first : first + 10])
            stream.settle(stream.num_frames)
            if commits and stream.num_frames - stream.oldest > 80:
                stream.commit(stream.num_frames - 40)
        sizes[commits] = max(len(one.ids) for one in stream._found)
        assert stream.settled + stream.finish()[0].ids == whole.ids
    assert sizes[True] < 60 < 390 < sizes[False]


def test_a_word_without_end_is_cut(monkeypatch):
    monkeypatch.setattr("nemo_asr.run.search.prefix_beam_search._LONGEST_WORD", 20)
    frames = np.full((200, 4), 1e-6)
    frames[::2, 0], frames[1::2, 3] = 1.0, 1.0
    stream = StreamedSearch(SearchLimits(4), WordScores(Spelling(LETTERS), None, MODEL), LETTERS)
    for first in range(0, 200, 10):
        stream.accept(np.log(frames[first : first + 10]))
        stream.commit(stream.num_frames - 20)
        assert len(stream.best()[0]) <= 20 + 5
    assert stream.settled + stream.finish()[0].ids == [0] * 100


def test_the_best_hypothesis_may_be_within_a_word_and_the_last_one_may_not():
    labels, frames = ["a", "b", "c"], np.full((2, 4), 1e-4)
    frames[0, 0], frames[1, 1] = 1, 1
    search = StreamedSearch(SearchLimits(), None, labels)
    search.accept(np.log(frames))
    assert search.best() == ([0, 1], [0, 1])
    words = WordScores(Spelling(labels), ["a", "abc"])
    search = StreamedSearch(SearchLimits(min_log_prob=-20.0), words, labels)
    search.accept(np.log(frames))
    assert search.best()[0] == [0, 1]
    assert search.finish()[0].ids == [0]
    search.accept(np.log([[1e-4, 1e-4, 1, 1e-4]]))
    assert search.finish()[0].ids == [0, 1, 2]


@pytest.mark.parametrize("name", ["letters", "characters"])
def test_a_last_word_that_is_none_is_left_out_as_of_the_whole_where_its_beginning_was_long_ago(name):
    labels, words, spoken = {
        "letters": (LETTERS, ["ab", "abba"], "ab abb"),
        "characters": (CHARACTERS, ["中国", "人民中国"], "中国人民中"),
    }[name]
    scores, limits = WordScores(Spelling(labels), words), SearchLimits(1, min_log_prob=-20.0)
    frames = np.full((2 * len(spoken), len(labels) + 1), 1e-4)
    frames[np.arange(0, len(frames), 2), [labels.index(letter) for letter in spoken]] = 1.0
    frames[1::2, -1] = 1.0
    stream = StreamedSearch(limits, scores, labels)
    for end, log_probs in enumerate(np.log(frames), 1):
        stream.accept(log_probs[None])
        stream.settle(end)
        ((whole,),) = search(np.log(frames[:end])[None], [end], limits, scores, 1, labels)
        assert stream.settled + stream.finish()[0].ids == whole.ids
    assert "".join(labels[label] for label in whole.ids) in ("ab", "中国")


def test_classes_that_are_not_the_labels_are_refused():
    with pytest.raises(UsageError, match="other labels than the model: got 3 classes, wanted 4"):
        StreamedSearch(SearchLimits(), None, LETTERS).accept(np.zeros((1, 3)))
