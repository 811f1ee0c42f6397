"""A language model by its file: the format is told by the content."""

import numpy as np
import pytest
from toys.ngrams import TINY_ARPA, TINY_BINARY

from nemo_asr.run.search.ngram import load_language_model
from nemo_lite.base.errors import DataError


def test_arpa_files_and_binaries_answer_alike(tmp_path):
    pytest.importorskip("kenlm", reason="an optional package reads binaries")
    (tmp_path / "a").write_text(TINY_ARPA)
    (tmp_path / "b").write_bytes(TINY_BINARY)
    for name in "ab":
        model = load_language_model(tmp_path / name)
        words = np.array([list(model.words).index("a"), list(model.words).index("b"), -1])
        scores, states = model.score_batch(np.full(3, model.start()), words)
        assert scores == pytest.approx([-0.1, -1.0, -1.3], abs=1e-6)
        assert model.end_batch(states) == pytest.approx([-0.7, -0.25, -0.5], abs=1e-6)


@pytest.mark.parametrize(("name", "told"), [("none.arpa", "does not exist"), (".", "is a folder")])
def test_what_is_no_file_is_told(tmp_path, name, told):
    with pytest.raises(DataError, match=f"the language model {told}.*wanted an ARPA file or a binary of KenLM"):
        load_language_model(tmp_path / name)


def test_a_file_of_another_format_is_told(tmp_path):
    (tmp_path / "a.arpa").write_bytes(b"\x00\xff" * 3000)
    with pytest.raises(DataError, match=r"a\.arpa:1: this is no ARPA file"):
        load_language_model(tmp_path / "a.arpa")
