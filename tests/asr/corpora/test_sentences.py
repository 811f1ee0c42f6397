"""Sentences of the synthetic corpus."""

from numpy.random import default_rng

from nemo_asr.corpora.espeak import VOCABULARY, new_sentence, sentence


def test_sentences_use_the_whole_vocabulary_and_nothing_else():
    rng = default_rng(0)
    words = {word for _ in range(2000) for word in sentence(rng).split()}
    assert words == set(VOCABULARY)
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 93


def test_a_new_sentence_is_not_a_known_one():
    known = {"go", "no"}
    assert new_sentence(default_rng(3), known) not in known


def test_dates_are_said_as_people_do():
    rng = default_rng(5)
    texts = {sentence(rng) for _ in range(3000)}
    dates = [text.split() for text in texts if "nineteen" in text.split()[2:]]
    assert any(len(date) == 6 for date in dates)
    assert all(word not in ("zero", "oh") for date in dates for word in date)
