"""Probabilities from counts, compared with sums done by hand; every history's probabilities sum to 1."""

import numpy as np
import pytest
from toys.ngrams import random_texts

from nemo_asr.run.search.ngram import NgramCounter, NgramModel, discounts_of, estimate
from nemo_lite.base.errors import DataError


def estimated(texts, order):
    counter = NgramCounter(order)
    for text in texts:
        counter.add(text)
    return estimate(counter)


def probability(model, *words):
    """P(last word | those before it, from the start of a text)."""
    state = model.start()
    for word in words[:-1]:
        _, state = model.score(state, word)
    return 10 ** (model.end(state) if words[-1] == "</s>" else model.score(state, words[-1])[0])


def test_few_texts_are_smoothed_as_witten_and_bell_did():
    found = estimated([["a", "b"], ["a", "c"]], 2)
    assert found.discounts == [None, None]
    model = NgramModel(found.tables)
    # After how many words: a 1 (<s>), b 1, c 1, </s> 2; 4 different ones of 5 in all; 5 ids share what is left.
    single = {"a": (1 + 4 / 5) / 9, "b": (1 + 4 / 5) / 9, "</s>": (2 + 4 / 5) / 9, "other": (4 / 5) / 9}
    assert probability(model, "a", "b") == pytest.approx((1 + 2 * single["b"]) / 4)
    assert probability(model, "a", "a") == pytest.approx(2 / 4 * single["a"])
    assert probability(model, "a") == pytest.approx((2 + single["a"]) / 3)
    assert probability(model, "other") == pytest.approx(1 / 3 * single["other"])
    assert probability(model, "a", "b", "</s>") == pytest.approx((1 + single["</s>"]) / 2)


def test_discounts_are_those_of_modified_kneser_ney():
    # Y = 4 / (4 + 2*2); D1 = 1 - 2Y*2/4, D2 = 2 - 3Y*1/2, D3 = 3 - 4Y*1/1
    assert discounts_of(np.array([1, 1, 1, 1, 2, 2, 3, 4, 0, 9])) == pytest.approx((0.5, 1.25, 1.0))


@pytest.mark.parametrize("counts", [[], [5, 5], [1, 1, 2], [1, 2, 3, 3, 3], [*[1] * 10, 2, 3, 4, 4]])
def test_counts_that_give_no_discounts_are_told(counts):
    assert discounts_of(np.array(counts, np.int64)) is None


def test_single_words_are_smoothed_as_kneser_and_ney_did():
    found = estimated([["a", "b"], ["c", "d"], ["e", "e", "f", "f"], ["g", "g", "g"]], 1)
    assert found.discounts == [pytest.approx((0.5, 1.25, 1.0))]
    model = NgramModel(found.tables)
    left_over = (4 * 0.5 + 2 * 1.25 + 2 * 1.0) / 15  # of a to d, of e and f, of g and </s>
    assert probability(model, "a") == pytest.approx(0.5 / 15 + left_over / 9)
    assert probability(model, "g") == pytest.approx(2.0 / 15 + left_over / 9)
    assert probability(model, "</s>") == pytest.approx(3.0 / 15 + left_over / 9)
    assert probability(model, "other") == pytest.approx(left_over / 9)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_the_probabilities_after_every_history_sum_to_1(order):
    found = estimated(random_texts(200), order)
    assert order < 3 or found.discounts[-1] is not None
    model = NgramModel(found.tables)
    states = np.arange(sum(len(table.words) for table in found.tables.orders[:-1]) + 1)
    sums = 10 ** model.end_batch(states)
    for word in range(-1, len(model.words)):
        sums += 10 ** model.score_batch(states, np.full(len(states), word))[0]
    assert sums == pytest.approx(1.0, abs=1e-5)


def test_texts_without_words_are_an_error():
    with pytest.raises(DataError, match=r"dev\.json: there are no words .*: got 0 texts"):
        estimate(NgramCounter(3), "dev.json")
