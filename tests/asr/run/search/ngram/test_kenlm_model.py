"""Binaries of KenLM: the scores of the ARPA file that they were built from; what is refused."""

import sys
import threading
import time
from types import SimpleNamespace

import pytest
from toys.ngrams import TINY_BINARY

from nemo_asr.run.search.ngram import KenlmModel, is_kenlm_binary
from nemo_lite.base.errors import DataError, UsageError


@pytest.fixture
def path(tmp_path):
    (tmp_path / "a.binary").write_bytes(TINY_BINARY)
    return tmp_path / "a.binary"


def test_a_binary_scores_as_its_arpa_file(path):
    pytest.importorskip("kenlm", reason="an optional package reads binaries")
    assert is_kenlm_binary(path)
    model = KenlmModel(path)
    assert list(model.words) == ["a", "b"]
    score, after_a = model.score(model.start(), "a")
    assert score == pytest.approx(-0.1)
    assert model.score(after_a, "b")[0] == pytest.approx(-0.4, abs=1e-6)
    assert model.end(after_a) == pytest.approx(-0.7)
    assert model.score(after_a, "z")[0] == pytest.approx(-1.2)
    assert model.score(model.start(), "a")[1] == after_a


def test_damaged_binaries_and_those_without_words_are_refused(path):
    pytest.importorskip("kenlm", reason="an optional package reads binaries")
    path.write_bytes(TINY_BINARY[:200])
    with pytest.raises(DataError, match="KenLM cannot read the file"):
        KenlmModel(path)
    path.write_bytes(TINY_BINARY.replace(b"<unk>\0", b"<wnk>\0"))
    with pytest.raises(DataError, match=r"the binary of KenLM holds no words|KenLM cannot read"):
        KenlmModel(path)


def test_without_the_package_the_remedy_is_told(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kenlm", None)
    with pytest.raises(UsageError, match=r"needs a package; pip install ufal-kenlm, or give the ARPA file"):
        KenlmModel(path)


class _State:
    """In the place of KenLM's; its hash lets other threads go on."""

    def __init__(self):
        self.words = ()

    def __hash__(self):
        time.sleep(0.001)
        return hash(self.words)

    def __eq__(self, other):
        return self.words == other.words


class _Model:
    def __init__(self, path):
        pass

    def BeginSentenceWrite(self, state):  # noqa: N802 - KenLM's name
        state.words = ("<s>",)

    def BaseScore(self, state, word, after):  # noqa: N802 - KenLM's name
        after.words = (word,)
        return -1.0


def test_states_that_threads_meet_at_once_have_a_number_each(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kenlm", SimpleNamespace(Model=_Model, State=_State))
    model, numbers = KenlmModel(path), {}
    barrier = threading.Barrier(4)

    def score(names):
        barrier.wait()
        for name in names:
            numbers[name] = model.score(model.start(), name)[1]

    threads = [threading.Thread(target=score, args=([f"{k} {n}" for n in range(10)],)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers.values()) == list(range(1, 41))
    again = {name: model.score(model.start(), name)[1] for name in numbers}
    assert again == numbers
