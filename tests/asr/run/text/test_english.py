"""English as it is spoken: a table of phrases, and what holds for any text."""

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_asr.run.text.english import accented_letters, normalize_english

PHRASES = [
    line.split("\t") for line in Path(__file__).with_name("phrases.tsv").read_text(encoding="utf-8").splitlines()
]


def test_the_table_has_at_least_three_hundred_phrases_each_once():
    assert len(PHRASES) >= 300
    assert len({written for written, _ in PHRASES}) == len(PHRASES)


def test_each_phrase_of_the_table_is_read_as_it_is_spoken():
    read = {written: normalize_english(written) for written, _ in PHRASES}
    assert {written: read[written] for written, spoken in PHRASES if read[written] != spoken} == {}


def test_what_is_spoken_already_stays_as_it_is():
    changed = [spoken for _, spoken in PHRASES if normalize_english(spoken) != spoken]
    assert changed == []


@settings(deadline=None)  # the first number imports num2words
@given(st.text(max_size=60))
@pytest.mark.slow
def test_english_never_fails_and_writes_single_spaces(text):
    normal = normalize_english(text)
    assert normal == " ".join(normal.split())
    assert not any(character.isascii() and character.isdigit() for character in normal)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="0123456789.,:/-$%'+ apmkthsdKMIVX\u00bd\u00b0", max_size=40))
def test_signs_and_digits_in_any_order_become_words(text):
    assert not any(character.isdigit() for character in normalize_english(text))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", ["1", "1,234", "1.", "$1", "1/2 ", "1-", "1:2", "\u00bd", "Jan. 1 ", "Henry V ", "5 km/h "]
)
def test_the_time_grows_linearly_with_the_text(piece):
    def seconds(size):
        text = (piece * size)[:size]
        start = time.process_time()
        normalize_english(text)
        return time.process_time() - start

    normalize_english("1")  # imports num2words
    short, long = min(seconds(1_500) for _ in range(3)), seconds(12_000)
    assert long < 30 * short + 0.05  # 8 times as much text; a quadratic rule takes 64 times as long


def test_a_text_of_thirty_thousand_digits_takes_less_than_two_seconds():
    start = time.process_time()
    assert normalize_english("7" * 30_000) == " ".join(["seven"] * 30_000)
    assert time.process_time() - start < 2


def test_letters_of_other_scripts_and_signs_without_a_word_stay_for_the_parser_to_count():
    assert (
        normalize_english("hi \u043c\u0438\u0440 \u4eca\u5929 \U0001f600 \u0663")
        == "hi \u043c\u0438\u0440 \u4eca\u5929 \U0001f600 three"
    )


def test_latin_letters_with_accents_become_ascii_and_are_told():
    assert normalize_english("Stra\u00dfe, Caf\u00e9") == "strasse, cafe".replace(",", "")
    assert accented_letters("Stra\u00dfe, Caf\u00e9 \u043c", keep="") == ["\u00df", "\u00e9"]
    assert accented_letters("Caf\u00e9", keep="\u00e9") == []
    assert normalize_english("Caf\u00e9", keep="\u00e9") == "caf\u00e9"


def test_a_text_without_capitals_tells_no_names():
    assert normalize_english("henry viii i said") == "henry viii i said"
    assert normalize_english("HENRY VIII I SAID") == "henry viii i said"


def test_the_case_is_kept_where_asked():
    assert normalize_english("Dr. No owes $5 To Me", lowercase=False) == "doctor No owes five dollars To Me"


def test_marks_that_are_labels_stay():
    assert normalize_english("A-b & 5%, c.", keep="-&,.%") == "a-b & five %, c."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Caf\u00e9 na\u00efve \u201cquotes\u201d \u2013 dash\u2026", "cafe naive quotes dash"),
        ("5% + 3 & more", "five percent plus three and more"),
        ("110 Cornell Tech", "one hundred and ten cornell tech"),
        ("1,234,567", "one million two hundred and thirty four thousand five hundred and sixty seven"),
        ("1,2,3", "one two three"),
        ("the 21st and the 3rd", "the twenty first and the third"),
        ("3.14 .5 -2 5-10", "three point one four point five minus two five to ten"),
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
        ("14th of Jul. 1999", "fourteenth of july nineteen ninety nine"),
        ("Mr. & Mrs. St. John, no. 5", "mister and missus saint john number five"),
        ("no. thanks", "no thanks"),
        ("mp3 4x4", "mp three four x four"),
        ("\u00bd", "one half"),
        ("it's", "it's"),
    ],
)
def test_english_reads(text, words):
    assert normalize_english(text) == words
