"""Characters in messages."""

from collections import Counter

from nemo_asr.run.text.labels import is_letter, shown_symbols


def test_the_most_frequent_symbols_are_shown_and_invisible_ones_by_code_point():
    assert shown_symbols(Counter({"a": 1, "\u200b": 3})) == 'U+200B x3 "a" x1'


def test_letters_and_their_marks_are_letters():
    assert [is_letter(symbol) for symbol in ("a", "\u4eca", "\u0301", "5", "%", " ", "\u200b")] == [True] * 3 + [
        False
    ] * 4
