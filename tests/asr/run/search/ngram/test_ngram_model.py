"""Look-up with back-off: sums done by hand, many at once as one at a time, and KenLM's scores."""

import numpy as np
import pytest
from toys.ngrams import TINY_ARPA, random_texts

from nemo_asr.run.search.ngram import NgramCounter, NgramModel, estimate, read_arpa, write_arpa


@pytest.fixture(scope="module")
def random_model(tmp_path_factory):
    """A model of order 4 and its file."""
    counter = NgramCounter(4)
    for text in random_texts(300):
        counter.add(text)
    path = tmp_path_factory.mktemp("arpa") / "random.arpa"
    write_arpa(path, estimate(counter).tables)
    return NgramModel(read_arpa(path)), path


def test_scores_are_the_file_s_and_back_off_adds_weights(tmp_path):
    (tmp_path / "a.arpa").write_text(TINY_ARPA)
    model = NgramModel(read_arpa(tmp_path / "a.arpa"))
    assert (list(model.words), model.order) == (["a", "b"], 2)
    start = model.start()
    score, after_a = model.score(start, "a")
    assert score == pytest.approx(-0.1)
    score, after_b = model.score(after_a, "b")
    assert score == pytest.approx(-0.4)
    assert model.end(after_b) == pytest.approx(-0.25)
    assert model.score(start, "b") == pytest.approx((-0.3 - 0.7, after_b))
    assert model.score(after_b, "a") == pytest.approx((-0.6, after_a))  # b has no weight
    assert model.end(after_a) == pytest.approx(-0.2 - 0.5)
    score, after_unknown = model.score(after_a, "z")
    assert score == pytest.approx(-0.2 - 1.0)
    assert model.score(after_unknown, "b")[0] == pytest.approx(-0.7)


def test_many_at_once_are_scored_as_one_at_a_time(random_model):
    model, _ = random_model
    rng = np.random.default_rng(0)
    states = np.full(200, model.start())
    for _ in range(5):
        words = rng.integers(-1, len(model.words), 200)
        names = ["?" if word < 0 else model.words[word] for word in words]
        single = [model.score(state, name) for state, name in zip(states.tolist(), names, strict=True)]
        scores, states = model.score_batch(states, words)
        assert scores.tolist() == pytest.approx([score for score, _ in single], abs=1e-9)
        assert states.tolist() == [state for _, state in single]
        assert model.end_batch(states).tolist() == pytest.approx([model.end(state) for state in states.tolist()])


def test_scores_are_kenlm_s(random_model):
    kenlm = pytest.importorskip("kenlm", reason="the reference is an optional package")
    model, path = random_model
    reference = kenlm.Model(str(path))
    for text in [*random_texts(100, seed=1), ["a", "unknown", "b", "c"], ["unknown"]]:
        state, total = model.start(), 0.0
        for word in text:
            score, state = model.score(state, word)
            total += score
        assert total + model.end(state) == pytest.approx(reference.score(" ".join(text)), abs=1e-4)
