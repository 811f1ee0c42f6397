"""What a search asks of a language model, one word at a time or many at once."""

from __future__ import annotations

import numpy as np
from toys.language_model import BigramModel

from nemo_asr.run.search.ngram import UNKNOWN, LanguageModel


def test_a_batch_is_scored_as_word_by_word_and_each_question_is_asked_once():
    asked = []

    class Counted(BigramModel):
        def score(self, state, word):
            asked.append((state, word))
            return super().score(state, word)

    model = BigramModel({("<s>", "one"): -0.1, ("one", "two"): -0.2, ("two", "</s>"): -0.3})
    batched: LanguageModel = Counted(model.scores)
    start, (one, two) = model.start(), (list(model.words).index(word) for word in ("one", "two"))
    after_one = model.score(start, "one")[1]
    states, words = np.array([start, start, after_one, start]), np.array([one, UNKNOWN, two, one])
    scores, following = batched.score_batch(states, words)
    expected = [model.score(state, name) for state, name in zip(states, ("one", "", "two", "one"), strict=True)]
    assert [*zip(scores, following, strict=True)] == expected
    assert sorted(asked) == sorted({(start, "one"), (start, ""), (after_one, "two")})
    assert batched.end_batch(following).tolist() == [model.end(state) for state in following]
