"""Numerals as English words: cardinals, ordinals, years, decimals, fractions. What stands around them is not here."""

from __future__ import annotations

import re

from nemo_asr.text.number_words import number_words

GROUPED = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
DECIMAL = rf"(?:{GROUPED}(?:\.[0-9]+)?|\.[0-9]+)"
# A fraction, perhaps after a whole number.
FRACTION = r"(?:(?:[0-9]{1,4}\s)?[0-9]{1,3}/[0-9]{1,4}(?![0-9/]))"
AMOUNT = rf"(?:{FRACTION}|{DECIMAL})"

# Longer numbers (accounts, serial numbers) are read digit by digit; commas show that it is an amount.
_MAX_CARDINAL_DIGITS, _MAX_GROUPED_DIGITS = 12, 15
# The denominators that are said as ordinals; "9/11" and "24/7" are no fractions.
_DENOMINATORS = {*range(2, 11), 12, 15, 16, 20, 25, 30, 32, 40, 50, 60, 64, 100, 128, 1000}
_DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_DIGIT_WORDS = {str(digit): name for digit, name in enumerate(_DIGIT_NAMES)}
_MIXED = re.compile(r"(?:([0-9]+)\s)?([0-9]+)/([0-9]+)")


def cardinal(number: int) -> str:
    """``one hundred and ten``."""
    return _plain(number_words(number, "en"))


def ordinal(number: int) -> str:
    """``one hundred and tenth``."""
    return _plain(number_words(number, "en", "ordinal"))


def digits(numeral: str) -> str:
    """Digit by digit; what is no digit in ``numeral`` is left out."""
    return " ".join(_DIGIT_WORDS[digit] for digit in numeral if digit in _DIGIT_WORDS)


def year(number: int) -> str:
    """1984 is nineteen eighty four, 1900 nineteen hundred, 1905 nineteen oh five, 2004 two thousand and four."""
    century, rest = divmod(number, 100)
    if not 1000 < number < 10000 or (century % 10 == 0 and rest < 10):
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def short_year(numeral: str) -> str:
    """A year of two digits as it is said: ``ninety nine``, ``oh five``; one of four as `year`."""
    if len(numeral) > 2:
        return year(int(numeral))
    return f"{'oh ' if numeral.startswith('0') else ''}{cardinal(int(numeral))}"


def number(numeral: str) -> str:
    """A run of digits, perhaps with commas between the thousands; four digits without a comma are read as a year."""
    plain = numeral.replace(",", "")
    has_commas = plain != numeral
    longest = _MAX_GROUPED_DIGITS if has_commas else _MAX_CARDINAL_DIGITS
    if len(plain) > longest or (plain[0] == "0" and len(plain) > 1):
        return digits(plain)
    value = int(plain)
    is_year = not has_commas and (1100 <= value <= 1999 or 2010 <= value <= 2099)
    return year(value) if is_year else cardinal(value)


def decimal(numeral: str) -> str:
    """``three point one four``, ``point five``, or a whole number."""
    whole, point, fraction = numeral.partition(".")
    said = number(whole) if whole else ""
    return f"{said} point {digits(fraction)}".strip() if point else said


def is_fraction(numerator: int, denominator: int) -> bool:
    """Whether these are said as a fraction: ``three quarters``."""
    return 0 < numerator < denominator and denominator in _DENOMINATORS


def fraction(numerator: int, denominator: int) -> str:
    """``one half``, ``three quarters``, ``five eighths``."""
    part = {2: "half", 4: "quarter"}.get(denominator) or ordinal(denominator)
    if numerator > 1:
        part = "halves" if denominator == 2 else f"{part}s"
    return f"{cardinal(numerator)} {part}"


def mixed(whole: str, numerator: int, denominator: int) -> str:
    """``two and a half``, ``one and three quarters``."""
    part = fraction(numerator, denominator)
    if numerator == 1:
        part = part.removeprefix("one ")
        part = f"{'an' if part.startswith('e') else 'a'} {part}"
    return f"{number(whole)} and {part}"


def amount(numeral: str) -> str:
    """What the pattern ``AMOUNT`` matches, in words. Numbers with a slash that are no fraction: one after another."""
    match = _MIXED.fullmatch(numeral)
    if match is None:
        return decimal(numeral)
    whole, numerator, denominator = match[1], int(match[2]), int(match[3])
    if not is_fraction(numerator, denominator):
        return " ".join(number(part) for part in match.groups() if part)
    return mixed(whole, numerator, denominator) if whole else fraction(numerator, denominator)


def is_bare_fraction(numeral: str) -> bool:
    """Whether it is a fraction without a whole number before it."""
    match = _MIXED.fullmatch(numeral)
    return match is not None and not match[1] and is_fraction(int(match[2]), int(match[3]))


def plural(words: str) -> str:
    """``twenties``, ``sixes``, ``hundreds``: the last word as several."""
    if words.endswith("y"):
        return f"{words[:-1]}ies"
    return f"{words}es" if words.endswith("x") else f"{words}s"


def _plain(words: str) -> str:
    return words.replace(",", "").replace("-", " ")
