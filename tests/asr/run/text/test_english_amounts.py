"""Money, units, ranges and telephone numbers, where a neighbour decides."""

import pytest

from nemo_asr.run.text.english import normalize_english


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("5 in the morning", "five in the morning"),
        ("5 in. of rain", "five inches of rain"),
        ("5g and 50g and 5 g", "five g and fifty grams and five grams"),
        ("12V, 12v", "twelve volts twelve v"),
        ("4M, 4m, 221B, 1.5B", "four million four meters two hundred and twenty one b one point five billion"),
        ("10-3 = 7", "ten to three equals seven"),
        ("10 - 3 = 7", "ten minus three equals seven"),
        ("1-2-3", "one two three"),
        ("+10000", "plus ten thousand"),
        ("Albany, NY 12207", "albany ny one two two zero seven"),
        ("a $5 coin, $5", "a five dollar coin five dollars"),
        ("3/4 h", "three quarters of an hour"),
        ("1.2.3.4", "one point two point three point four"),
    ],
)
def test_a_neighbour_decides(text, words):
    assert normalize_english(text) == words
