"""The tables of units."""

from nemo_asr.run.text.english import normalize_english
from nemo_asr.run.text.english_numbers import CURRENCIES, PER, UNITS, UNITS_WITH_CASE


def test_every_unit_is_read_as_one_and_as_several():
    for unit, (one, many) in {**UNITS, **UNITS_WITH_CASE}.items():
        if unit not in UNITS_WITH_CASE:
            assert normalize_english(f"1 {unit}") == f"one {one}", unit
        assert normalize_english(f"22 {unit}") == f"twenty two {many}", unit


def test_every_currency_sign_and_what_stands_after_a_slash_is_read():
    for sign, (_, many, *_) in CURRENCIES.items():
        assert normalize_english(f"22 {sign}" if sign.isalpha() or sign == "¢" else f"{sign}22") == f"twenty two {many}"
    for short, word in PER.items():
        assert normalize_english(f"$2/{short}") == f"two dollars per {word}"
