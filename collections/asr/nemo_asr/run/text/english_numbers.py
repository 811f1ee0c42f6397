"""Numerals and units as English words, and the rules by which they get into a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from nemo_asr.run.text.numbers import number_words

Say = Callable[[re.Match[str]], str]


class Rule(NamedTuple):
    """What ``say`` makes of each match of ``pattern``. Time must be linear in the text's length: a pattern begins where
    no digit stands before, and repeats nothing without an end within itself."""

    pattern: re.Pattern[str]
    say: Say


def rule(pattern: str, say: Say | str, *, with_case: bool = False) -> Rule:
    """A rule whose words get a space on both sides. ``say`` may be the words themselves."""
    compiled = re.compile(pattern, 0 if with_case else re.IGNORECASE)
    if isinstance(say, str):
        words = f" {say} "
        return Rule(compiled, lambda _: words)
    function = say
    return Rule(compiled, lambda match: f" {function(match)} ")


def apply(rules: Iterable[Rule], text: str) -> str:
    """``text`` after all rules, in their order, with single spaces."""
    for pattern, say in rules:
        text = pattern.sub(say, text)
    return " ".join(text.split())


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
    century, last_two = divmod(number, 100)
    if not 1000 < number < 10000 or (century % 10 == 0 and last_two < 10):
        return cardinal(number)
    if last_two == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if last_two < 10 else ''}{cardinal(last_two)}"


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


def word_table(text: str) -> dict[str, str]:
    """Of ``km kms: kilometer, cm: centimeter`` the words for each abbreviation."""
    entries = (entry.split(":") for entry in text.split(","))
    return {abbreviation: words.strip() for abbreviations, words in entries for abbreviation in abbreviations.split()}


def _units(text: str) -> dict[str, tuple[str, str]]:
    """The same as one and several: ``foot | feet``, or with an s behind it."""
    pairs = ((abbreviation, words.partition(" | ")) for abbreviation, words in word_table(text).items())
    return {abbreviation: (one, several or f"{one}s") for abbreviation, (one, _, several) in pairs}


# abbreviation -> one, several. All are written after a number.
UNITS = _units(
    """
    km kms: kilometer, cm: centimeter, mm: millimeter, nm: nanometer, m: meter, mi: mile, yd yds: yard,
    ft: foot | feet, in.: inch | inches,
    km² sq.km sqkm: square kilometer, m² sq.m sqm: square meter, cm²: square centimeter,
    ft² sq.ft sqft: square foot | square feet, mi² sq.mi: square mile,
    m³: cubic meter, cm³: cubic centimeter, ft³ cu.ft: cubic foot | cubic feet,
    kg kgs: kilogram, mg: milligram, µg μg mcg: microgram, g: gram, lb lbs: pound, oz: ounce, fl.oz: fluid ounce,
    l: liter, ml: milliliter, cl: centiliter, gal: gallon, tsp: teaspoon, tbsp: tablespoon, qt qts: quart,
    h hr hrs: hour, min mins: minute, sec secs: second, ms: millisecond, yr yrs: year, wk wks: week,
    mph: mile per hour | miles per hour, kph kmh: kilometer per hour | kilometers per hour,
    mpg: mile per gallon | miles per gallon, rpm: revolution per minute | revolutions per minute,
    bpm: beat per minute | beats per minute, fps: frame per second | frames per second,
    hz: hertz | hertz, khz: kilohertz | kilohertz, mhz: megahertz | megahertz, ghz: gigahertz | gigahertz,
    kb: kilobyte, mb: megabyte, gb: gigabyte, tb: terabyte, kbps: kilobit per second | kilobits per second,
    mbps: megabit per second | megabits per second, gbps: gigabit per second | gigabits per second,
    kw: kilowatt, mw: megawatt, gw: gigawatt, kwh: kilowatt hour, mah: milliampere hour, kv: kilovolt,
    hp: horsepower | horsepower, cal: calorie, kcal: kilocalorie,
    db: decibel, px: pixel, mp: megapixel, psi: pound per square inch | pounds per square inch,
    °c ºc: degree celsius | degrees celsius, °f ºf: degree fahrenheit | degrees fahrenheit, ° º deg: degree,
    pct: percent | percent
    """
)
# Abbreviations of one letter that mean a unit in this case only.
UNITS_WITH_CASE = {"W": ("watt", "watts"), "V": ("volt", "volts"), "L": ("liter", "liters")}
# After a slash: kilometers/hour.
PER = word_table(
    """
    h hr hour: hour, min minute: minute, s sec second: second, s²: second squared, day: day, night: night,
    wk week: week, mo month: month, yr year: year, kg: kilogram, lb: pound, oz: ounce, gal gallon: gallon,
    l: liter, dl: deciliter, ml: milliliter, mi mile: mile, person: person, m²: square meter,
    m³: cubic meter
    """
)
# sign -> one, several, one part, several parts.
CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
    "₽": ("ruble", "rubles", "kopeck", "kopecks"),
    "₩": ("won", "won", "jeon", "jeon"),
    "₺": ("lira", "lira", "kurus", "kurus"),
    "¢": ("cent", "cents", "", ""),
    "usd": ("u s dollar", "u s dollars", "cent", "cents"),
    "us$": ("u s dollar", "u s dollars", "cent", "cents"),
    "cad": ("canadian dollar", "canadian dollars", "cent", "cents"),
    "aud": ("australian dollar", "australian dollars", "cent", "cents"),
    "eur": ("euro", "euros", "cent", "cents"),
    "gbp": ("british pound", "british pounds", "penny", "pence"),
    "jpy": ("japanese yen", "japanese yen", "sen", "sen"),
    "chf": ("swiss franc", "swiss francs", "rappen", "rappen"),
    "inr": ("indian rupee", "indian rupees", "paisa", "paise"),
}
MAGNITUDES = word_table("k: thousand, m mn mm: million, b bn: billion, t tn: trillion")
