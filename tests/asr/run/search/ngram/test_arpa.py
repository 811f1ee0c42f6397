"""ARPA files: written and read, compressed, and refused with the line at which they are damaged."""

import gzip

import numpy as np
import pytest
from toys.ngrams import TINY_ARPA, random_texts

from nemo_asr.run.search.ngram import NgramCounter, estimate, read_arpa, write_arpa
from nemo_lite.base.errors import DataError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.arpa"


def test_a_model_is_read_as_it_was_written(path):
    counter = NgramCounter(3)
    for text in [*random_texts(80), ["größe", "日本"]]:
        counter.add(text)
    written = estimate(counter).tables
    write_arpa(path, written)
    read = read_arpa(path)
    assert read.words == written.words
    for mine, theirs in zip(read.orders, written.orders, strict=True):
        for column, other in zip(mine, theirs, strict=True):
            assert np.allclose(column, other, atol=1e-6)


def test_what_is_written_begins_as_every_reader_wants(path):
    counter = NgramCounter(2)
    counter.add(["a"])
    write_arpa(path, estimate(counter).tables)
    assert path.read_text().splitlines()[:6] == [
        "\\data\\",
        "ngram 1=4",
        "ngram 2=2",
        "",
        "\\1-grams:",
        "-0.3802112\ta\t-0.30103",
    ]
    assert path.read_text().endswith("\n\n\\end\\\n")


def test_a_compressed_file_is_read_too_and_a_cut_one_is_told(path):
    path.write_bytes(packed := gzip.compress(TINY_ARPA.encode()))
    assert read_arpa(path).words == ["a", "b"]
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match="the compressed file is damaged"):
        read_arpa(path)


def test_a_file_without_unk_gives_unknown_words_what_kenlm_gives_them(path):
    path.write_text(TINY_ARPA.replace("-1.0\t<unk>\n", "").replace("1=5", "1=4"))
    tables = read_arpa(path)
    assert tables.orders[0].log_probs[tables.unknown] == -100


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("\\data\\", "\\dta\\", r"a\.arpa:2: this is no ARPA file: got '.*dta.*', wanted .*data"),
        ("ngram 2=3", "ngram 3=3", r":4: the header is damaged: got 'ngram 3=3', wanted ngram 2=NUMBER"),
        ("ngram 2=3", "ngram 2=-3", ":4: the header is damaged"),
        ("ngram 1=5\nngram 2=3\n", "", r":4: the order is out of range: got 0, wanted 1 to 10"),
        ("ngram 2=3", "ngram 2=99999", r":6: the header says more n-grams than the file holds"),
        ("ngram 1=5", "ngram 1=4", r":11: the section before has more n-grams than the header says"),
        ("ngram 1=5", "ngram 1=6", r":12: the section of order 1 has fewer n-grams than the header says"),
        ("ngram 2=3", "ngram 2=2", r":16: the section has more n-grams than the header says: got '-0\.25.*b </s>'"),
        ("-0.6\ta\t-0.2", "-0.6\ta b\t-0.2", r":10: the line is damaged: got '-0\.6.*', wanted a number, 1 word"),
        ("-0.6\ta", "-O.6\ta", ":10: the line is damaged"),
        ("-0.6\ta", "nan\ta", ":10: the numbers are out of range: got nan and -0.2"),
        ("-0.6\ta", "0.6\ta", ":10: the numbers are out of range: got 0.6"),
        ("a\t-0.2", "a\t-1e999", ":10: the numbers are out of range: got -0.6 and -inf"),
        ("-0.4\ta b", "-0.4\ta b\t-0.1", ":15: the numbers are out of range"),
        ("-0.4\ta b", "-0.4\ta z", ":15: the word is not listed among the single words: got 'z'"),
        ("-0.4\ta b", "-0.4\tb </s>", ":16: the n-gram is listed twice"),
        ("-0.7\tb", "-0.7\ta", ":11: the word is listed twice: got 'a'"),
        ("\t</s>\n-0.6", "\t</S>\n-0.6", ":7: the words have no </s>"),
        ("\\2-grams:", "\\3-grams:", ":13: the section before has more n-grams than the header says"),
        ("b </s>\n\n\\end\\", "", ":16: the line is damaged"),
        ("-0.25\tb </s>\n\n\\end\\\n", "", ":16: the file ends too early"),
        ("\n\\end\\\n", "", ":17: the file ends too early"),
        ("-0.7\tb", "-0.7\t\udcff", ":11: the word is not UTF-8"),
        ("\ta b", "\t" + "a" * 70000, ":15: the line is damaged"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(path, old, new, told):
    assert old in TINY_ARPA
    path.write_text(TINY_ARPA.replace(old, new, 1), encoding="utf-8", errors="surrogateescape")
    with pytest.raises(DataError, match=told) as caught:
        read_arpa(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_an_n_gram_whose_beginning_is_missing_is_told(path):
    longer = "ngram 3=1\n\n\\1-grams:", "\n\\3-grams:\n-0.1\tb a b\n\n\\end\\"
    text = TINY_ARPA.replace("\n\\1-grams:", longer[0]).replace("\n\\end\\", longer[1])
    path.write_text(text)
    with pytest.raises(DataError, match=":20: the n-gram without its last word is not listed among the shorter ones"):
        read_arpa(path)
