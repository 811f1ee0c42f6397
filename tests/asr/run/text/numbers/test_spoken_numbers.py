"""Numbers of other languages than English."""

import time

import pytest

from nemo_asr.run.text.languages import LANGUAGES
from nemo_asr.run.text.numbers import speak_numbers


def spoken(text, language, can_write=lambda words: True):
    return " ".join(speak_numbers(text, language, can_write).split())


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("de", "1984 und 1.000.000", "neunzehnhundertvierundachtzig und eine Million"),
        ("de", "3,14", "drei Komma eins vier"),
        ("de", "007", "null null sieben"),
        ("fr", "80 et 1\u202f000", "quatre-vingts et mille"),
        ("fr", "1 000 000 et 12 500,5", "un million et douze mille cinq cents virgule cinq"),
        ("pl", "12 500", "dwanaście tysięcy pięćset"),
        ("sv", "12 500", "tolvtusen femhundra"),
        ("hu", "12 500", "tizenkettőezer-ötszáz"),
        ("nl", "12 500", "twaalf vijfhonderd"),  # groups by a point
        # Other groups beside those of three: telephone numbers, and numbers side by side.
        ("fr", "0 800 123", "zéro huit cents cent vingt-trois"),
        ("fr", "+48 601 234", "+ quarante-huit six cent un deux cent trente-quatre"),
        ("ru", "495 123 45", "четыреста девяносто пять сто двадцать три сорок пять"),
        ("fr", "en 2024 500 fois", "en deux mille vingt-quatre cinq cents fois"),
        ("ar", "1\u066c000", "ألف"),
        ("es", "1.234,5", "mil doscientos treinta y cuatro coma cinco"),
        ("it", "3,5", "tre virgola cinque"),
        ("ru", "25 \u0438 3,5", "двадцать пять \u0438 3,5"),  # how decimals are said depends on their case
        ("ja", "25\u65e5", "二十五\u65e5"),
        ("ko", "1,000 3.5", "천 삼 점 오"),
        ("th", "25", "ยี่สิบห้า"),
        # Marks stay beside the words, for models that write them.
        ("de", "5, 6; 7!", "fünf, sechs; sieben!"),
        ("es", "\u00bf5?", "\u00bfcinco?"),
    ],
)
def test_numbers_are_read_in_the_language_and_grouped_in_its_way(language, text, words):
    assert spoken(text, language) == words


def test_small_numbers_are_words_in_every_language():
    for language in {*LANGUAGES} - {"en"}:
        assert not any(character.isdigit() for character in spoken("0 7 25 100", language)), language


def test_a_number_that_the_labels_cannot_write_stays():
    assert spoken("5 und 21", "de", lambda words: "ü" not in words) == "5 und einundzwanzig"


@pytest.mark.parametrize("language", ["de", "ja", "zh"])
def test_a_text_of_thirty_thousand_digits_is_read_in_less_than_two_seconds(language):
    start = time.process_time()
    speak_numbers("7" * 30_000, language, lambda words: True)
    assert time.process_time() - start < 2
