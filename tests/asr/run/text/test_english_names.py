"""Abbreviations and Roman numerals, where neighbours decide."""

import pytest

from nemo_asr.run.text.english import normalize_english


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Elizabeth I think so", "elizabeth i think so"),
        ("the part I like", "the part i like"),
        ("My CD and DVD", "my cd and dvd"),
        ("The IV drip", "the iv drip"),
        ("Pentium III", "pentium three"),
        ("Chapter IIII", "chapter iiii"),
        ("Robert Downey III", "robert downey the third"),
        ("Chapter XCIX", "chapter ninety nine"),
        ("Good morning, Dr.", "good morning doctor"),
        ("12 Mulholland Dr.", "twelve mulholland drive"),
        ("Visit St. Louis", "visit saint louis"),
        ("elm st.", "elm street"),
        ("st. john", "saint john"),
        ("on p. 4", "on page four"),
        ("the rep. of Oz", "the rep of oz"),
        ("Dec. was cold", "december was cold"),
    ],
)
def test_neighbours_decide(text, words):
    assert normalize_english(text) == words
