"""TextSearch: hypotheses of any number of utterances."""

import numpy as np
import pytest

from nemo_asr.run.search.text_search import TextSearch
from nemo_asr.run.search.words import Weights
from nemo_lite.base.errors import UsageError

LABELS = [" ", "a", "b"]


def random_log_probs(num, frames=12):
    values = np.random.default_rng(0).normal(0, 2, (num, frames, len(LABELS) + 1))
    return values - np.log(np.exp(values).sum(axis=2, keepdims=True))


def test_many_utterances_are_searched_in_parts_with_the_same_result():
    values, ends = random_log_probs(70), np.arange(70) % 13
    search = TextSearch(LABELS, beam_size=4)
    together = search.hypotheses(values, ends, nbest=2)
    assert together[66] == search.hypotheses(values[66:67], ends[66:67], nbest=2)[0]
    assert len(together) == 70


def test_other_weights_change_the_words(tmp_path):
    (tmp_path / "words.txt").write_text("a\nb\nab\n")
    search, values, ends = TextSearch(LABELS, lexicon=tmp_path / "words.txt"), random_log_probs(1), np.array([12])
    counts = []
    for beta in (-9.0, 9.0):
        search.use(Weights(beta=beta))
        counts.append(search.hypotheses(values, ends)[0][0].ids.count(0))
    assert (counts[0] < counts[1], search.weights.beta) == (True, 9.0)


@pytest.mark.parametrize("nbest", [0, 5])
def test_more_hypotheses_than_the_beam_has_are_refused(nbest):
    with pytest.raises(UsageError, match=rf"got nbest {nbest}, wanted 1 to 4, the beam; raise beam_size"):
        TextSearch(LABELS, beam_size=4).hypotheses(random_log_probs(1), np.array([12]), nbest)
