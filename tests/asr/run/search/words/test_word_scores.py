"""What words are worth, and word lists that a model's labels cannot use."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from toys.language_model import BigramModel

from nemo_asr.run.search.words import LEFT, Spelling, Weights, WordScores, weighted_phrases
from nemo_lite.base.errors import DataError, UsageError

SPELLING = Spelling(["a", "b", " "])
MODEL = BigramModel({("<s>", "ab"): -0.2, ("ab", "b"): -0.3, ("b", "</s>"): -0.1})
WEIGHTS = Weights(alpha=0.5, beta=0.25, hotword_weight=4.0, unknown_score=-7.0)


def closed(words, word, state=0):
    """The score of a word and the state behind it."""
    node = words.tree.nodes_of(word, SPELLING)[-1]
    scores, states = words.close(np.array([node]), np.array([state]))
    return float(scores[0]), int(states[0])


def hot_scores(phrases, spelling, text, labels=("a", "b", " ")):
    """What the hot phrases are worth behind each label of a text, and behind its end."""
    node, total, scores = np.array([[phrases.start]]), 0.0, []
    for label in text:
        ids = np.array([[labels.index(label)]])
        places = np.where(np.arange(len(labels) + 1) == ids, 0, -1)
        changes, entries, _ = phrases.changes(node, ids, places)
        total += changes.item()
        node = phrases.follow(entries)
        scores.append(total)
    return [*scores, total + phrases.end(node[0]).item()]


def test_a_word_has_the_models_natural_logarithm_its_bonus_and_that_of_unknown_and_hot_words():
    words = WordScores(SPELLING, None, MODEL, ["bb a"], WEIGHTS)
    score, state = closed(words, "ab", words.start())
    assert score == pytest.approx(0.5 * math.log(10) * -0.2 + 0.25)
    assert closed(words, "b", state)[0] == pytest.approx(0.5 * math.log(10) * -0.3 + 0.25)
    assert closed(words, "aaa")[0] == pytest.approx(0.5 * math.log(10) * -3 + 0.25 - 7)
    # A word of a hot phrase is no unknown word; the phrase counts apart.
    assert closed(words, "bb")[0] == pytest.approx(0.5 * math.log(10) * -3 + 0.25)
    assert words.so_far[LEFT] == -7
    assert hot_scores(words.phrases, SPELLING, "bb a") == pytest.approx([4 / 3, 8 / 3, 8 / 3, 4, 4])
    assert hot_scores(words.phrases, SPELLING, "bb b") == pytest.approx([4 / 3, 8 / 3, 8 / 3, 4 / 3, 0])


def test_a_lexicon_has_no_other_words():
    words = WordScores(SPELLING, ["ab", "b"], weights=WEIGHTS)
    assert closed(words, "ab") == (0.25, 0)
    assert closed(words, "ba")[0] == closed(words, "a")[0] == words.so_far[LEFT] == -math.inf
    nodes = np.array([words.tree.nodes_of(word, SPELLING)[-1] for word in ("ab", "a", "b")])
    assert words.complete(nodes).tolist() == [True, False, True]


def test_other_weights_change_the_scores_and_nothing_else():
    words = WordScores(SPELLING, None, MODEL, ["bb"], Weights())
    before = {word: closed(words, word) for word in ("ab", "b", "bb", "aaa")}
    words.use(WEIGHTS)
    made = WordScores(SPELLING, None, MODEL, ["bb"], WEIGHTS)
    for word, earlier in before.items():
        assert closed(words, word) == closed(made, word) != earlier
    assert words.so_far.tolist() == made.so_far.tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lexicon": ["ab", "cab"]}, r"words\.txt: the model's labels cannot spell words of the list: got 'cab'"),
        (
            {"hotwords": ["ab xy"]},
            r"hot words: the model's labels cannot spell words of the list: got 'ab xy' \(no label has x y\)",
        ),
        ({"hotwords": ["ab:101"]}, r"hot words: the weight of a hot word is out of range: got ab:101, wanted a weight"),
        ({"hotwords": ["ab"], "lexicon": ["b"]}, r"the lexicon lacks hot words: got ab; add them"),
        (
            {"model": BigramModel({("<s>", "AB"): -1.0, ("AB", "B"): -1.0})},
            r"the language model is of another vocabulary: got 2 words such as 'AB', which the labels cannot spell, "
            r"wanted words in the labels' letters and case",
        ),
        ({"model": MODEL, "lexicon": ["aa"]}, r"the language model knows no word of the lexicon: got 2 words such as"),
    ],
)
def test_words_that_cannot_be_used_are_refused(given, message):
    with pytest.raises(UsageError, match=message):
        WordScores(SPELLING, **given, place="words.txt")


def test_a_hot_word_that_is_refused_is_shown_in_one_case():
    with pytest.raises(UsageError, match=r"got 'NAIROBI' \(no label has B O R\)"):
        WordScores(Spelling(["A", "N", "I", " "]), hotwords=["Nairobi"], place="words.txt")


@pytest.mark.parametrize("given", [{"alpha": -0.1}, {"beta": math.nan}, {"unknown_score": 1.0}, {"alpha": 1000.0}])
def test_weights_out_of_range_are_refused(given):
    (name,) = given
    with pytest.raises(UsageError, match=f"Weights.{name} is .*, wanted float from -?[0-9]+ to [0-9]+"):
        Weights(**given)


def test_hot_words_have_weights_of_their_own_from_the_command_or_a_file(tmp_path):
    (tmp_path / "names.txt").write_text("# names\nab : 9.5\nba  bb\n")
    words = WordScores(SPELLING, hotwords=["a:2", f"@{tmp_path}/names.txt"], weights=replace(WEIGHTS, beta=0.0))
    gained = {text: hot_scores(words.phrases, SPELLING, text)[-1] for text in ("a", "ab", "ba", "ba bb", "aa", "a ab")}
    assert gained == {"a": 2.0, "ab": 9.5, "ba": 0.0, "ba bb": 4.0, "aa": 0.0, "a ab": 11.5}


@pytest.mark.parametrize(
    ("labels", "hot", "phrase"),
    [
        ("abi' ", "A\u2019B", "a'b"),
        ("ABI\u2019 ", "a'b", "A\u2019B"),
        ("abi ", "\uff41\uff42\uff1a8", "ab"),
        ("i\u0131 ", "I\u0130", "\u0131i"),
        ("\u00e9 ", "e\u0301", "\u00e9"),
        ("aAbB ", "aB", "aB"),
    ],
    ids=["case", "upper case", "width", "Turkish", "accent", "both cases"],
)
def test_hot_words_are_written_in_the_letters_of_the_labels(labels, hot, phrase):
    assert list(weighted_phrases([hot], Spelling([*labels]))) == [phrase]


@pytest.mark.parametrize("weight", ["x", "nan", "1e3", "", "3:"])
def test_a_weight_that_is_no_number_is_refused(weight):
    with pytest.raises(
        UsageError, match=r"hot words: the weight of a hot word is no number: got ab:.*, wanted a weight"
    ):
        weighted_phrases([f"ab:{weight}"], SPELLING)


def test_a_phrase_counts_that_ends_within_a_label():
    labels = ["\u4eba", "\u4eac", "\u4eac\u5317"]
    words = WordScores(Spelling(labels), hotwords=["\u4eba\u4eac:2"], weights=replace(WEIGHTS, beta=0.0))
    assert hot_scores(words.phrases, words.spelling, labels[::2], labels) == [1, 2, 2]


def test_a_mark_may_follow_a_hot_word_and_its_weight_counts_once():
    labels = ["a", "b", " ", ".", "?"]
    words = WordScores(Spelling(labels), hotwords=["ab:6"], weights=replace(WEIGHTS, beta=0.0))
    gained = {
        text: hot_scores(words.phrases, words.spelling, text, labels)[-1] for text in ("ab", "ab.", "ab? a", "a.b")
    }
    assert gained == {"ab": 6.0, "ab.": 6.0, "ab? a": 6.0, "a.b": 0.0}
    assert hot_scores(words.phrases, words.spelling, "ab.", labels) == [3.0, 6.0, 6.0, 6.0]


def test_a_list_of_hot_words_without_words_is_refused(tmp_path):
    (tmp_path / "names.txt").write_text("# none\n")
    with pytest.raises(DataError, match=r"names\.txt: the list has no words: wanted a word or phrase a line"):
        WordScores(SPELLING, hotwords=[f"@{tmp_path}/names.txt"])


def test_labels_with_a_colon_take_it_as_a_letter():
    spelling = Spelling([" ", "a", ":", "2"])
    words = WordScores(spelling, hotwords=["a:2"], weights=replace(WEIGHTS, beta=0.0))
    assert hot_scores(words.phrases, spelling, "a:2", " a:2")[-1] == 4
