"""Tables of n-grams: rows by key, words of rows."""

import numpy as np
from toys.ngrams import TINY_ARPA

from nemo_asr.run.search.ngram import MARKS, read_arpa, rows_of


def test_rows_are_found_by_key_and_missing_ones_are_told():
    assert rows_of(np.array([2, 5, 9]), np.array([9, 2, 3, 10])).tolist() == [2, 0, -1, -1]
    assert rows_of(np.zeros(0, np.int64), np.array([1])).tolist() == [-1]


def test_the_words_of_n_grams_follow_their_prefixes(tmp_path):
    (tmp_path / "a.arpa").write_text(TINY_ARPA)
    tables = read_arpa(tmp_path / "a.arpa")
    names = [*tables.words, *MARKS]
    assert [[names[i] for i in row] for row in tables.ids_of(2)] == [["a", "b"], ["b", "</s>"], ["<s>", "a"]]
