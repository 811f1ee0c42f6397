"""Ordinals, dates, units and money as they are read."""

import time

import pytest

from nemo_asr.run.text.languages import LANGUAGES
from nemo_asr.run.text.numbers import spoken_integer
from nemo_asr.run.text.readings import read_out, rules_of


def read(text, language, can_write=lambda words: True):
    return " ".join(read_out(text, language, can_write).split())


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("tr", "25 kişi, %20 ve 2. kat", "yirmi beş kişi, yüzde yirmi ve ikinci kat"),
        ("tr", "1999'da 21'inci", "bin dokuz yüz doksan dokuz'da yirmi birinci"),
        ("sk", "1234 a 25", "tisíc dvesto tridsaťštyri a dvadsaťpäť"),
        ("de", "Am 3. Mai 2024", "Am dritten Mai zweitausendvierundzwanzig"),
        ("de", "der 1. Platz im 19. Jahrhundert", "der erste Platz im neunzehnten Jahrhundert"),
        ("de", "Es waren 3. Dann", "Es waren drei. Dann"),  # the end of a sentence
        ("de", "am 03.05.2024 und vom 1.2. an", "am dritten Mai zweitausendvierundzwanzig und vom ersten Februar an"),
        ("de", "am 32.5.2024", "am zweiunddreißig. fünf. zweitausendvierundzwanzig"),  # no date
        ("de", "14:30 Uhr und 1 Uhr", "vierzehn Uhr dreißig und ein Uhr"),
        ("de", "5,50 € für 3,5 km/h", "fünf Euro fünfzig für drei Komma fünf Kilometer pro Stunde"),
        ("de", "1 Min. bei 20 °C, 25%", "eine Minute bei zwanzig Grad Celsius, fünfundzwanzig Prozent"),
        ("fr", "le 1er mai, la 1re fois, 21ème", "le premier mai, la première fois, vingt et unième"),
        ("fr", "25 % de 3 €", "vingt-cinq pour cent de trois euros"),
        ("es", "el 1.º y la 2ª", "el primero y la segunda"),
        ("nl", "de 2e keer", "de tweede keer"),
        ("sv", "den 3:e maj", "den tredje maj"),
        ("da", "den 3. maj", "den tredje maj"),
        ("ja", "50%と5km", "五十パーセントと五キロメートル"),
        ("de", "von -10 bis -5 °C", "von minus zehn bis minus fünf Grad Celsius"),
        ("de", "Typ-5 °C, 3 -5 °C, -5 Personen", "Typ- fünf °C, drei - fünf °C, - fünf Personen"),  # no sign
        ("es", "-5 °C y -5°", "menos cinco grados y - cinco °"),
        ("ja", "-5℉", "華氏マイナス五度"),
        ("ko", "50%", "오십 퍼센트"),
    ],
)
def test_ordinals_dates_and_units_are_read_where_they_are_known(language, text, words):
    assert read(text, language) == words


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("ru", "во 2-й школе, на 5-й этаж, к 5-й роте", "во второй школе, на пятый этаж, к пятой роте"),
        ("ru", "1-е место, 90-е годы, в 10-м классе", "первое место, девяностые годы, в десятом классе"),
        ("ru", "с 5-м классом, 3-ю улицу, 5-ти дней", "с пятым классом, третью улицу, пяти дней"),
        ("ru", "3 мая, на 3 мая", "третьего мая, на третье мая"),
        (
            "ru",
            "к 2024 году, в 1999 году",
            "к две тысячи двадцать четвёртому году, в тысяча девятьсот девяносто девятом году",
        ),
        ("ru", "1 %, 22 %, 11 %", "один процент, двадцать два процента, одиннадцать процентов"),
        ("uk", "у 2024 році", "у дві тисячі двадцять четвертому році"),
        ("pl", "w 2024 roku", "w dwa tysiące dwudziestym czwartym roku"),
        ("be", "2 мая, 3 мая", "другога мая, трэцяга мая"),
        ("sr", "30. maja", "tridesetog maja"),
        ("fi", "3:nnessa, 21:stä, 5:n, 5:een", "kolmannessa, kahdestakymmenestäyhdestä, viiden, viiteen"),
        ("hu", "8-kor, 2024-ben, 3-án, május 1-jén", "nyolckor, kétezer-huszonnégyben, harmadikán, május elsején"),
        ("hu", "2024. május 3.", "kétezer-huszonnégy május harmadika"),
    ],
)
def test_inflected_numbers_are_read_where_their_form_is_shown(language, text, words):
    assert read(text, language) == words


@pytest.mark.parametrize(
    ("language", "text"),
    [
        *(("ru", text) for text in ("ученики 5-й школы", "2-х дней", "5-летний", "5-а класс", "в 2024 г.", "к 3 мая")),
        ("ru", "5-й или"),
        ("uk", "1-й день"),
        ("pl", "w 21. wieku"),
        ("pl", "dziś jest 3 maja"),
        ("cs", "na 2. místě"),
        ("cs", "3. 5. 2024"),
        ("cs", "32. května"),
        ("sr", "2024. godine"),
        ("fi", "5. kerroksessa"),
        ("fi", "2000-luvulla"),
        ("hu", "május 5. és 8. között"),
        ("hu", "május 31-ig"),
        ("hu", "3-at"),
        ("hu", "0-ban"),
        ("lv", "5. maijā"),
    ],
)
def test_a_number_whose_form_is_not_shown_stays(language, text):
    assert read(text, language) == text


@pytest.mark.parametrize("language", ["pl", "cs", "sk", "sl", "sr", "fi", "hu"])
def test_a_number_at_the_end_of_a_sentence_is_no_ordinal(language):
    number = read("21", language)
    assert read("A 21. A 21.", language) == f"A {number}. A {number}."


def test_days_of_a_month_are_in_the_genitive():
    for number in range(1, 32):
        for language, month in (("cs", "května"), ("sk", "mája"), ("sr", "maja"), ("sl", "maja")):
            words = read(f"{number}. {month}", language).split()
            assert words[-1] == month
            assert len(words) == (3 if number > 20 and number % 10 and language != "sl" else 2)
            assert all(
                word.endswith(("ého", "ího", "eho", "og", "eg", "ega", "dvadeset", "trideset")) for word in words[:-1]
            )


def test_every_turkish_and_slovak_number_is_the_one_of_num2words_but_for_spaces():
    for number in [*range(2000), *range(2000, 3_000_000, 7919)]:
        assert "".join(spoken_integer(number, "tr").split()) == spoken_glued(number, "tr")
    for number in [*range(2000), *range(2000, 1_000_000, 7919)]:
        assert "".join(spoken_integer(number, "sk").split()) == spoken_glued(number, "sk")


def spoken_glued(number, language):
    from num2words import num2words

    return "".join(num2words(number, lang=language).split())


def test_what_the_labels_cannot_write_stays():
    assert read("der 1. Mai, 25 %", "de", lambda words: "P" not in words) == "der erste Mai, fünfundzwanzig %"


@pytest.mark.long
@pytest.mark.parametrize("language", [language for language in LANGUAGES if rules_of(language)])
def test_a_long_text_is_read_in_time_that_grows_with_its_length(language):
    for text in ("1." * 15_000, "am 1. " * 5_000, "7" * 30_000, "5,5 " * 7_500, "5-й " * 7_500, "5. a " * 6_000):
        start = time.process_time()
        read_out(text, language, lambda words: True)
        assert time.process_time() - start < 3
