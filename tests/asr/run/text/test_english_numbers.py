"""Numerals as English words."""

import pytest

from nemo_asr.run.text import english_numbers as numbers


@pytest.mark.parametrize(
    ("say", "argument", "words"),
    [
        (numbers.cardinal, 1001, "one thousand and one"),
        (numbers.ordinal, 112, "one hundred and twelfth"),
        (numbers.digits, "1-0x", "one zero"),
        (numbers.year, 1066, "ten sixty six"),
        (numbers.year, 2100, "twenty one hundred"),
        (numbers.year, 79, "seventy nine"),
        (numbers.short_year, "05", "oh five"),
        (numbers.number, "1080", "one thousand and eighty"),
        (numbers.number, "999999999999999", "nine " * 14 + "nine"),
        (numbers.decimal, "1,000.50", "one thousand point five zero"),
        (numbers.amount, "3 7/8", "three and seven eighths"),
        (numbers.amount, "24/7", "twenty four seven"),
        (numbers.plural, "sixty", "sixties"),
        (numbers.plural, "six", "sixes"),
    ],
)
def test_numerals_are_said(say, argument, words):
    assert say(argument) == words


@pytest.mark.parametrize(("numeral", "is_one"), [("1/2", True), ("2 1/2", False), ("9/11", False), ("0.5", False)])
def test_a_bare_fraction_has_no_whole_number(numeral, is_one):
    assert numbers.is_bare_fraction(numeral) is is_one
