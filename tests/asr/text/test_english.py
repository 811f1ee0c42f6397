"""English as it is spoken: numbers, money, dates, abbreviations and symbols."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_asr.text.english import normalize_english


@settings(deadline=None)  # the first number imports inflect
@given(st.text(max_size=60))
@pytest.mark.slow
def test_english_never_fails_and_writes_single_spaces(text):
    normal = normalize_english(text)
    assert normal == " ".join(normal.split())
    assert not any(character.isascii() and character.isdigit() for character in normal)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Caf\u00e9 na\u00efve \u201cquotes\u201d \u2013 dash\u2026", "cafe naive quotes dash"),
        ("5% + 3 & more", "five percent plus three and more"),
        ("110 Cornell Tech", "one hundred and ten cornell tech"),
        ("1,234,567", "one million two hundred and thirty four thousand five hundred and sixty seven"),
        ("1,2,3", "one two three"),
        ("the 21st and the 3rd", "the twenty first and the third"),
        ("3.14 .5 -2 5-10", "three point one four point five minus two five ten"),
        ("1984 1900 1905", "nineteen eighty four nineteen hundred nineteen oh five"),
        ("2000 2004 2015", "two thousand two thousand and four twenty fifteen"),
        ("1066 soldiers", "one thousand and sixty six soldiers"),
        ("the 1980s and '90s", "the nineteen eighties and nineties"),
        ("555-1234", "five five five one two three four"),
        ("007", "zero zero seven"),
        ("12345678901234", "one two three four five six seven eight nine zero one two three four"),
        ("$1 $2.50 $0.01", "one dollar two dollars and fifty cents one cent"),
        ("$5.2 million, \u00a31, \u20ac10", "five point two million dollars one pound ten euros"),
        ("7:30 p.m. 7:05 12:00 5pm", "seven thirty p m seven oh five twelve o'clock five p m"),
        ("25:99", "twenty five ninety nine"),
        ("March 14, 2020", "march fourteenth twenty twenty"),
        ("2020-03-14", "march fourteenth twenty twenty"),
        ("3/14/2020", "march fourteenth twenty twenty"),
        ("13/14/2020", "thirteen fourteen twenty twenty"),
        ("14th of Jul. 1999", "fourteenth july nineteen ninety nine"),
        ("Mr. & Mrs. St. John, no. 5", "mister and missus saint john number five"),
        ("no. thanks", "no thanks"),
        ("mp3 4x4", "mp three four x four"),
        ("\u00bd", "one two"),
        ("it's", "it's"),
    ],
)
def test_english_reads(text, words):
    assert normalize_english(text) == words
