"""Whole numbers in words."""

import pytest

from nemo_asr.run.text.numbers import number_words


@pytest.mark.parametrize(
    ("number", "language", "kind", "words"),
    [
        (25, "en", "cardinal", "twenty-five"),
        (25, "de", "cardinal", "fünfundzwanzig"),
        (3, "fr", "ordinal", "troisième"),
    ],
)
def test_numbers_are_said_in_each_language(number, language, kind, words):
    assert number_words(number, language, kind) == words


def test_an_unknown_language_is_refused():
    with pytest.raises(NotImplementedError):
        number_words(1, "xx")
