"""English as it is spoken: dates, money, units, names and numbers in words."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

from anyascii import anyascii

from nemo_asr.run.text.numbers import number_words

# A rule of rewriting: a pattern, and the words for what it matches. Rules are applied one after another.


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


# Numerals as English words: cardinals, ordinals, years, decimals, fractions. What stands around them is not here.


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


# Units of measurement, their abbreviations, and amounts of money. Only words here: no texts.


def _table(text: str) -> dict[str, str]:
    """Of ``km kms: kilometer, cm: centimeter`` the words for each abbreviation."""
    entries = (entry.split(":") for entry in text.split(","))
    return {abbreviation: words.strip() for abbreviations, words in entries for abbreviation in abbreviations.split()}


def _units(text: str) -> dict[str, tuple[str, str]]:
    """The same as one and several: ``foot | feet``, or with an s behind it."""
    pairs = ((abbreviation, words.partition(" | ")) for abbreviation, words in _table(text).items())
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
PER = _table(
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
MAGNITUDES = _table("k: thousand, m mn mm: million, b bn: billion, t tn: trillion")


# Dates, times and decades as English words.


_MONTH_NAMES = "january|february|march|april|may|june|july|august|september|october|november|december"
_MONTHS = [month.capitalize() for month in _MONTH_NAMES.split("|")]
_SHORT_MONTHS = "jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec"
MONTH = rf"(?:{_MONTH_NAMES}|{_SHORT_MONTHS})\b"
_DAYS = {day[:3]: day for day in ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")}
_TH = r"(?:st|nd|rd|th)?"
_DAY = r"(?P<day>[0-9]{1,2})"
_YEAR = r"(?:,?\s(?P<year>[12][0-9]{3})\b)?"
_HALF = r"(?:\s?(?P<half>[ap])\.?\s?m\b\.?)"


def _month(name: str) -> str:
    return next(month for month in _MONTHS if month.lower().startswith(name[:3].lower()))


def _is_day(day: str) -> bool:
    return 1 <= int(day) <= 31


def _month_day(month: str, day: str, year_numeral: str | None) -> str:
    return f"{month} {ordinal(int(day))} {short_year(year_numeral) if year_numeral else ''}"


def _day_month(day: str, of: str, month: str, year_numeral: str | None) -> str:
    return f"{ordinal(int(day))} {of} {month} {short_year(year_numeral) if year_numeral else ''}"


def _say_day(match: re.Match[str]) -> str:
    day = _DAYS[match["day"].lower()]
    return day.capitalize() if match["day"][0].isupper() else day


def _say_iso(match: re.Match[str]) -> str:
    month, day = int(match["month"]), match["day"]
    if not (1 <= month <= 12 and _is_day(day)):
        return match[0]
    return _month_day(_MONTHS[month - 1], day, match["year"])


def _say_numeric(match: re.Match[str]) -> str:
    """Month first, as in America; day first where the first number is no month, and between points."""
    first, mark, second, written_year = match["first"], match["mark"], match["second"], match["year"]
    if (int(first) > 12 or mark == ".") and _is_day(first) and 1 <= int(second) <= 12:
        return _day_month(first, "of", _MONTHS[int(second) - 1], written_year)
    if 1 <= int(first) <= 12 and _is_day(second):
        return _month_day(_MONTHS[int(first) - 1], second, written_year)
    return match[0]


def _say_month_day(match: re.Match[str]) -> str:
    if not _is_day(match["day"]):
        return match[0]
    said = f"{_month(match['month'])} {ordinal(int(match['day']))}"
    if match["last"]:
        said += f" to {ordinal(int(match['last']))}"
    return f"{said} {year(int(match['year'])) if match['year'] else ''}"


def _say_day_month(match: re.Match[str]) -> str:
    if not _is_day(match["day"]):
        return match[0]
    first = f"{ordinal(int(match['first']))} to " if match["first"] else ""
    return first + _day_month(match["day"], match["of"] or "", _month(match["month"]), match["year"])


def _say_time(match: re.Match[str]) -> str:
    hour, minute, second = int(match["hour"]), int(match["minute"]), match["second"]
    if hour > 24 or minute > 59:
        return match[0]
    half = f"{match['half'].lower()} m" if match["half"] else ""
    if second:
        return f"{_clock(hour, minute)} and {cardinal(int(second))} second{'' if int(second) == 1 else 's'} {half}"
    if minute:
        return f"{_clock(hour, minute)} {half}"
    full_hour = "hundred" if hour > 12 else "o'clock"
    return f"{cardinal(hour)} {half or full_hour}"


def _clock(hour: int, minute: int) -> str:
    return f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}"


def _say_hour(match: re.Match[str]) -> str:
    first, hour = match["first"], int(match["hour"])
    if hour > 24 or int(first or 0) > 24:
        return match[0]
    return f"{f'{cardinal(int(first))} to ' if first else ''}{cardinal(hour)} {match['half'].lower()} m"


def _say_decade(match: re.Match[str]) -> str:
    numeral = match["decade"]
    return plural(year(int(numeral)) if len(numeral) == 4 else number(numeral))


def _say_named_year(match: re.Match[str]) -> str:
    return f"{match['before']} {year(int(match['year']))}"


def _say_era(match: re.Match[str]) -> str:
    return f"{year(int(match['year']))} {' '.join(match['era'].lower())}"


# The order matters: a later pattern would match a part of what an earlier one takes whole.
DATES = (
    rule(rf"\b(?P<day>{'|'.join(_DAYS)})(?:s|rs|urs|nes)?\.,?\s(?={MONTH}|[0-9])", _say_day),
    rule(r"(?<![0-9/-])(?P<year>[0-9]{4})(?P<mark>[-/])(?P<month>[0-9]{2})(?P=mark)(?P<day>[0-9]{2})\b", _say_iso),
    rule(
        r"(?<![0-9/.-])(?P<first>[0-9]{1,2})(?P<mark>[-/.])(?P<second>[0-9]{1,2})(?P=mark)(?P<year>[0-9]{4})(?![0-9/-])",
        _say_numeric,
    ),
    rule(
        r"(?<![0-9/.-])(?P<first>[0-9]{1,2})(?P<mark>/)(?P<second>[0-9]{1,2})/(?P<year>[0-9]{2})(?![0-9/-])",
        _say_numeric,
    ),
    rule(
        rf"\b(?P<month>{MONTH})\.?\s{_DAY}{_TH}(?:\s?-\s?(?P<last>[0-9]{{1,2}}){_TH})?\b(?![:./-]?[0-9]|,[0-9]){_YEAR}",
        _say_month_day,
    ),
    rule(
        rf"(?<![0-9/.:,-])(?:(?P<first>[0-9]{{1,2}}){_TH}\s?-\s?)?{_DAY}{_TH}[\s-](?:(?P<of>of)\s)?"
        rf"(?P<month>{MONTH})\.?{_YEAR}",
        _say_day_month,
    ),
    rule(
        rf"(?<![0-9:])(?P<hour>[0-9]{{1,2}}):(?P<minute>[0-9]{{2}})(?::(?P<second>[0-5][0-9]))?(?![0-9:]){_HALF}?",
        _say_time,
    ),
    rule(rf"(?<![0-9:.,])(?:(?<!-)(?P<first>[0-9]{{1,2}})\s?-\s?)?(?P<hour>[0-9]{{1,2}}){_HALF}", _say_hour),
    rule(r"(?<![0-9.,])'?(?<![0-9.,])(?P<decade>[0-9]{1,3}0)(?:'?s)\b", _say_decade),
    rule(r"\b(?P<before>in|since|until|before|after|year)\s(?P<year>10[1-9][0-9])(?![0-9,.:]*[0-9])", _say_named_year),
    rule(r"(?<![0-9.,])(?P<year>[0-9]{1,4})\s(?P<era>AD|BC|BCE|CE)\b", _say_era, with_case=True),
    rule(r"\bAD(?=\s[0-9])", "a d", with_case=True),
)


# Amounts of money, numbers with units, ranges, telephone numbers and all other numerals as English words.


_MAX_ORDINAL_DIGITS = 15
_WORD_MAGNITUDE = r"(?:[\s-]?(?P<magnitude>thousand|million|billion|trillion)\b)"
_LETTER_MAGNITUDE = rf"(?:(?P<letter>{'|'.join(sorted(MAGNITUDES, key=len, reverse=True))})\b)"
_MAGNITUDE = rf"(?:{_WORD_MAGNITUDE}|{_LETTER_MAGNITUDE})?"
_SIGNS = "[$€£¥₹₽₩₺]"
_CODES = "|".join(code for code in CURRENCIES if code.isalpha())
_PER = rf"(?:\s?/\s?(?P<per>{'|'.join(sorted(PER, key=len, reverse=True))})\b)?"
_NOT_WITHIN = r"(?<![0-9.,/:])"
_MINUS = r"(?:(?<![\w.)%])(?P<minus>-\s?))?"


def _per(match: re.Match[str]) -> str:
    return f" per {PER[match['per'].lower()]}" if match["per"] else ""


def _minus(match: re.Match[str]) -> str:
    return "minus " if match["minus"] else ""


def _say_money(match: re.Match[str]) -> str:
    """``two dollars and fifty cents``, ``twenty thousand dollars``, ``five to ten euros``."""
    groups = match.groupdict()
    one, many, one_part, many_parts = CURRENCIES[match["sign"].lower()]
    low, high = match["amount"], groups.get("upper")
    magnitude = match["magnitude"] or MAGNITUDES.get((match["letter"] or "").lower())
    if groups.get("bill"):
        many = one
    if match["sign"] == "€" and re.fullmatch(r"[0-9]+,[0-9]{2}", low):
        low = low.replace(",", ".")
    if magnitude or high:
        several = f" to {decimal(high)}" if high else ""
        said = f"{decimal(low)}{several} {magnitude or ''} {many}"
    else:
        said = _coins(low, one, many, one_part, many_parts)
    return f"{_minus(match)}{said}{_per(match)}{' ' + groups['bill'] if groups.get('bill') else ''}"


def _coins(numeral: str, one: str, many: str, one_part: str, many_parts: str) -> str:
    whole, _, fraction = numeral.partition(".")
    if len(fraction) != 2 or not one_part:
        return f"{decimal(numeral)} {one if numeral == '1' else many}"
    parts = int(fraction)
    said = [f"{number(whole)} {one if whole == '1' else many}"] if whole.strip("0") or not parts else []
    said += [f"{cardinal(parts)} {one_part if parts == 1 else many_parts}"] if parts else []
    return " and ".join(said)


def _say_quantity(match: re.Match[str]) -> str:
    one, many = UNITS_WITH_CASE.get(match["unit"]) or _UNITS_BY_LETTERS[_letters(match["unit"])]
    numeral = match["amount"]
    if is_bare_fraction(numeral):
        article = "an" if one[0] in "aeiou" or one.startswith("hour") else "a"
        return f"{amount(numeral)} of {article} {one}{_per(match)}"
    return f"{_minus(match)}{amount(numeral)} {one if match['hyphen'] or numeral == '1' else many}{_per(match)}"


def _say_height(match: re.Match[str]) -> str:
    feet, inches = int(match[1]), int(match[2])
    return f"{cardinal(feet)} {'foot' if feet == 1 else 'feet'} {cardinal(inches)} inch{'' if inches == 1 else 'es'}"


def _say_digit_groups(match: re.Match[str]) -> str:
    return ("plus " if match[0].startswith("+") else "") + digits(match[0])


def _say_dotted(match: re.Match[str]) -> str:
    """Versions ``one point two point three``; addresses of computers digit by digit."""
    parts = match[0].split(".")
    is_address = len(parts) == 4 and any(len(part) > 1 for part in parts)
    return " dot ".join(map(digits, parts)) if is_address else " point ".join(map(number, parts))


def _say_ordinal(match: re.Match[str]) -> str:
    numeral = match[1].replace(",", "")
    return ordinal(int(numeral)) if len(numeral) <= _MAX_ORDINAL_DIGITS else digits(numeral)


def _letters(unit: str) -> str:
    return re.sub(r"[.\s]", "", unit.lower())


def _unit_pattern(units: Iterable[str]) -> str:
    """Longest first. ``sq.ft`` is also written ``sq. ft.`` and ``sq ft``; ``in.`` only with its point."""

    def of(unit: str) -> str:
        if unit.endswith("."):
            return re.escape(unit)
        return re.sub(r"([°º])(?=.)", r"\1\\s?", unit).replace(".", r"\.?\s?")

    return "|".join(map(of, sorted(units, key=len, reverse=True)))


_UNITS_BY_LETTERS = {_letters(unit): names for unit, names in UNITS.items()}
# "5g" is a telephone network, "500g" and "5 g" are grams.
_ANY_UNIT = _unit_pattern([unit for unit in UNITS if unit[-1].isalpha() and unit != "g"])
_SIGN_UNIT = _unit_pattern([unit for unit in UNITS if not unit[-1].isalpha()])
_QUANTITY = rf"{_NOT_WITHIN}{_MINUS}(?P<amount>{AMOUNT})"
_SPACE = r"(?:\s|(?P<hyphen>-))?"

# Between hours and between amounts of money, before these become words.
EARLY_RANGES = (
    rule(r"(?<=[0-9][ap]m)\s?-\s?(?=[0-9])", "to"),
    rule(r"(?<=[ap]\.m\.)\s?-\s?(?=[0-9])", "to"),
    rule(r"(?<=:[0-9]{2})\s?-\s?(?=[0-9]{1,2}:[0-9])", "to"),
    rule(rf"(?<=[0-9kmb])\s?-\s?(?={_SIGNS}[0-9.])", "to"),
)
TELEPHONES = (
    rule(r"(?<![0-9+])\+[0-9]{1,3}(?:[\s.-]\(?[0-9]{2,5}\)?){2,5}(?![0-9])", _say_digit_groups),
    rule(r"(?<![0-9+])\+[0-9]{8,15}\b", _say_digit_groups),
    rule(r"(?<![\w.,(+-])(?:1[-.\s])?\(?[0-9]{3}\)?[-.\s][0-9]{3}[-.][0-9]{4}(?![\w-])", _say_digit_groups),
    rule(r"(?<![\w.,(+-])[0-9]{3}-(?:[0-9]{2}-)?[0-9]{4}(?![\w-])", _say_digit_groups),
    rule(r"(?<![\w.,+-])[0-9]{3,5}(?:-[0-9]{3,5}){2,5}(?![\w-])", _say_digit_groups),
    rule(r"(?<![\w.,-])[0-9]{4}(?:[\s-][0-9]{4}){3}(?![\w-])", _say_digit_groups),
    rule(r"(?<![\w.,-])[0-9]{5}-[0-9]{4}(?![\w-])", _say_digit_groups),
    rule(r"(?<=\b[A-Z]{2}\s)[0-9]{5}(?![\w-])", _say_digit_groups, with_case=True),
)
_MONEY = (
    rule(
        rf"{_MINUS}(?P<sign>us\$|{_SIGNS})\s?(?P<amount>[0-9]+,[0-9]{{2}}(?![0-9,])|{DECIMAL})"
        rf"(?:-(?P<upper>{DECIMAL}))?{_MAGNITUDE}(?:[\s-](?P<bill>bills?|notes?|coins?)\b)?{_PER}",
        _say_money,
    ),
    rule(
        rf"{_NOT_WITHIN}{_MINUS}(?P<amount>{DECIMAL})(?:-(?P<upper>{DECIMAL}))?{_MAGNITUDE}"
        rf"\s?(?P<sign>[$€£¥¢₹₽₩₺](?!\s?[0-9])|(?:{_CODES})\b){_PER}",
        _say_money,
    ),
)
_RANGES = (
    rule(r"(?<=[0-9])\s-\s(?=[0-9]{1,12}\s=)", "minus"),
    Rule(
        re.compile(rf"(?<![\w.,/-])({AMOUNT}%?)(?:-|\s-\s)(?={AMOUNT}(?![0-9/-]))"),
        lambda match: f"{match[1]} to ",
    ),
)
_UNITS = (
    rule(
        rf"{_NOT_WITHIN}([0-9]+\.[0-9]+(?=[KMB]\b)|{GROUPED}(?=M\b))([KMB])",
        lambda match: f"{decimal(match[1])} {MAGNITUDES[match[2].lower()]}",
        with_case=True,
    ),
    rule(r"(?<![0-9.,])([0-9]{1,2})'\s?([0-9]{1,2})(?:\"|'')", _say_height),
    rule(rf"{_QUANTITY}{_SPACE}(?P<unit>{_SIGN_UNIT}){_PER}(?!\w)", _say_quantity),
    rule(rf"{_QUANTITY}{_SPACE}(?P<unit>{_ANY_UNIT})(?!['\w])(?:\.(?=\s|$))?{_PER}", _say_quantity),
    rule(rf"{_QUANTITY}(?:(?P<hyphen>-)|\s|(?<=[0-9][0-9]))(?P<unit>g)\b(?!')\.?{_PER}", _say_quantity, with_case=True),
    rule(rf"{_QUANTITY}{_SPACE}(?P<unit>[WVL])\b(?!['-]){_PER}", _say_quantity, with_case=True),
)
QUANTITIES = (*_MONEY, *_RANGES, *_UNITS)
NUMERALS = (
    rule(r"(?<![\w.,])[0-9]{1,3}(?:\.[0-9]{1,3}){2,3}(?!\.?\w)", _say_dotted),
    rule(rf"(?<![0-9.,])({GROUPED})(?:st|nd|rd|th)\b", _say_ordinal),
    rule(rf"(?<![0-9.,/]){FRACTION}", lambda match: amount(match[0])),
    rule(r"(?<![\w.)])-\s?(?=\.?[0-9])", "minus"),
    rule(rf"(?<![0-9.,])({GROUPED})s\b", lambda match: plural(number(match[1]))),
    rule(DECIMAL, lambda match: decimal(match[0])),
)


# Abbreviations, titles, streets and Roman numerals as English words. What they mean is told by their neighbours.


# With a point behind them, whatever stands beside them.
_ABBREVIATIONS = _table(
    """
    mr: mister, mrs: missus, dr: doctor, drs: doctors, prof: professor, st: saint, jr: junior, sr: senior,
    co: company, ltd: limited, inc: incorporated, corp: corporation, bros: brothers, dept: department,
    univ: university, assn: association, rev: reverend, hon: honorable, esq: esquire, gen: general, col: colonel,
    maj: major, capt: captain, cmdr: commander, lt: lieutenant, sgt: sergeant, cpl: corporal, messrs: messieurs,
    mt: mount, ave: avenue, blvd: boulevard, rd: road, hwy: highway, pkwy: parkway, approx: approximately,
    vs: versus, etc: et cetera
    """
)
# Before a name only: alone they are words, or something else.
_TITLES = _table(
    """
    gov: governor, sen: senator, rep: representative, pres: president, pvt: private, adm: admiral,
    supt: superintendent, ln: lane
    """
)
# Before a number only.
_NUMBERED = _table(
    """
    no: number, nos: numbers, p pg: page, pp: pages, vol: volume, vols: volumes, ch chap: chapter, fig: figure,
    figs: figures, sec: section, art: article, apt: apartment, rm: room, ste: suite, ext: extension, rte: route,
    approx: approximately
    """
)
_DEGREES = {"ph.d": "p h d", "m.d": "m d", "b.sc": "b s c", "m.sc": "m s c"}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_RULERS = _words(
    """
    albert alexander alfonso benedict boniface carl carlos catherine charles christian clement constantine edward
    elizabeth eric ferdinand francis frederick george gregory gustav haakon harald henry innocent ivan james joseph
    julius leo leopold louis mary maximilian napoleon nicholas olav oscar otto paul peter philip pius ramesses
    ramses richard robert rudolf sixtus stephen thomas urban victor wilhelm william xerxes darius john david rama
    cleopatra ptolemy pedro umberto margaret
    """
)
_COUNTED = _words(
    """
    war chapter part act scene volume book section article title appendix phase type stage grade class level episode
    season round figure table rocky apollo mark bowl schedule tier division category unit lesson psalm canto group
    exhibit
    """
)
# Words with a capital at the beginning of a sentence: the numeral behind them belongs to no name.
_STARTERS = _words(
    """
    a an the my his her our their your this that these those it he she we they you i and but or so if in on at to of
    for from with by as is was are were be do does did not no yes then when where what who how why there here
    """
)
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_ROMAN = re.compile("M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
# Behind any name these are taken as numerals; other letters, such as those of "Malcolm X", may mean something else.
_COMMON_ROMANS = _words("II III IV VI VII VIII IX XI XII XIII XIV XV")
_AFTER_FIRST = r"(?=$|[.,;:!?)]|'s\b|\s(?:of|is|was|were|had|has|ruled|reigned|died|became|in|the|by)\b)"


def _roman(numeral: str) -> int:
    values = [_ROMAN_VALUES[letter] for letter in numeral]
    following = [*values[1:], 0]
    return sum(-value if value < after else value for value, after in zip(values, following, strict=True))


def _say_roman(match: re.Match[str]) -> str:
    before, name, numeral = match["before"] or "", match["name"], match["numeral"]
    key = name.lower()
    is_counted, is_ruler = key in _COUNTED, key in _RULERS
    is_named = is_counted or is_ruler or (numeral in _COMMON_ROMANS and key not in _STARTERS)
    if not is_named or not _ROMAN.fullmatch(numeral) or (numeral == "I" and match["is_first"] is None and key != "war"):
        return match[0]
    is_ordinal = not is_counted and (is_ruler or before.lower() in _RULERS)
    said = f"the {ordinal(_roman(numeral))}" if is_ordinal else cardinal(_roman(numeral))
    return f"{before}{' ' if before else ''}{name} {said}"


def _say_street(match: re.Match[str]) -> str:
    return f"{match[1]} street"


# A text without capitals does not tell names; one without small letters has no numerals that can be told from words.
_WORD = "[A-Z][a-z]+"
_STREET = r"[A-Z][a-z]+|[0-9]{1,3}(?:st|nd|rd|th)"
_NOT_A_STREET = r"(?!(?:Mr|Mrs|Ms|Dr|In|At|On|To|From|Near|Of|The|And|Mount|Lake|Port|Fort|Visit|Saint)\b)"
_SENTENCE = (
    "He|She|It|They|We|I|The|A|An|This|That|Then|And|But|In|On|At|My|His|Her|Their|You|There|When|Apt|Suite|Unit"
)
_STREET_ENDS = rf"(?=$|\s?[,;:!?)]|\s[a-z0-9(]|\s(?:{_SENTENCE}|[A-Z]{{2}}|[NSEW][EW]?)\b)"
WITH_CASE = (
    rule(rf"\b{_NOT_A_STREET}({_STREET})\sSt\.{_STREET_ENDS}", _say_street, with_case=True),
    rule(rf"(?<=[0-9]\s)({_WORD}(?:\s{_WORD})?)\sDr\.{_STREET_ENDS}", lambda m: f"{m[1]} drive", with_case=True),
    rule(rf"(?<=[0-9]\s)({_WORD}(?:\s{_WORD})?)\sCt\.{_STREET_ENDS}", lambda m: f"{m[1]} court", with_case=True),
    rule(rf"(?<=[0-9]\s)({_WORD}(?:\s{_WORD})?)\sPl\.{_STREET_ENDS}", lambda m: f"{m[1]} place", with_case=True),
    rule(rf"({_WORD})\sLn\.", lambda m: f"{m[1]} lane", with_case=True),
    rule(rf"\b({_SHORT_MONTHS.title()})\.(?=\s|$|,)", lambda m: _month(m[1]), with_case=True),
    rule(r"\b([A-Z][a-z]*)\sv\.(?=\s[A-Z])", lambda m: f"{m[1]} versus", with_case=True),
    Rule(
        re.compile(
            rf"(?:\b(?P<before>{_WORD})\s)?\b(?P<name>{_WORD})\s(?P<numeral>[IVXLCDM]{{1,15}})\b"
            rf"(?:(?P<is_first>{_AFTER_FIRST}))?"
        ),
        _say_roman,
    ),
)
ABBREVIATIONS = (
    rule(r"(?<![0-9])(?<![0-9][\s-])(?<!sq\s)(?<!sq\.)(?<!sq\.\s)(?<!cu\.\s)\bft\.", "fort"),
    rule(r"(?<=[0-9](?:st|nd|rd|th)\s)st\.|(?<=[a-z]\s)st\.(?=$|,)", "street"),
    rule(rf"\b({'|'.join(map(re.escape, _DEGREES))})\b\.?", lambda m: _DEGREES[m[1].lower()]),
    rule(rf"\b({'|'.join(_TITLES).title()})\.\s(?=[A-Z])", lambda m: _TITLES[m[1].lower()], with_case=True),
    rule(rf"\b({'|'.join(_NUMBERED)})\.\s?(?=[0-9])", lambda m: _NUMBERED[m[1].lower()]),
    rule(rf"\b({'|'.join(_ABBREVIATIONS)})\.", lambda m: _ABBREVIATIONS[m[1].lower()]),
)


# normalize_english: the rules of this package, one after another, and what is left of signs and accents.


_SYMBOLS = _table(
    """
    +: plus, &: and, %: percent, @: at, =: equals, \u00d7: times, ÷: divided by, ±: plus or minus, §: section,
    €: euros, £: pounds, ¥: yen, ¢: cents, °: degrees, ²: squared, ³: cubed
    """
)
# Other forms of the marks that the rules look for.
_SAME = str.maketrans(
    {
        "\u2018": "'", "\u2019": "'", "\u2032": "'", "\u02bc": "'", "\u2033": '"', "\u201c": '"', "\u201d": '"',
        "\u2010": "-", "\u2011": "-", "\u2012": "-", "\u2013": "-", "\u2014": " - ", "\u2212": "-", "\u2044": "/",
        "\u2103": "°C", "\u2109": "°F", "\uff05": "%",
    }
)  # fmt: skip
# Longer runs of digits are no numbers; read first, they cost the other patterns no time.
_LONG = Rule(re.compile(r"[0-9]{16,}"), lambda match: f" {digits(match[0])} ")
_BEFORE_NUMBERS = (
    rule(r"\bno\.\s?(?=[0-9])|№\s?(?=[0-9])|#\s?(?=[0-9])", "number"),
    rule(r"(?<=[0-9])\s?\u00d7\s?(?=[0-9.]{1,20}(?!\s?=|[0-9.]))", "by"),
)
_WORD_SIGNS = (
    rule(r"\bw/o(?=\s)", "without"),
    rule(r"\bw/(?=\s)", "with"),
    rule(r"\bc/o(?=\s)", "care of"),
    rule(r"\bwww\.(?=\w)", "w w w dot"),
    rule(r"(?<=\w)\.(?=(?:com|org|net|edu|gov|io)\b)", "dot"),
)
_EQUALS = (rule(r"(?<=[\w)])\s?=\s?(?=[\w(.-])", "equals"),)
# Stands for "a capital follows"; a character that no text has.
_CAPITAL = "\ufdd0"
_CAPITAL_LETTER = re.compile(rf"{_CAPITAL}\s*([a-z])")
_HAS_SENTENCES = re.compile(r"[A-Z]|[.?!]$")
# A number with which a sentence begins: not behind "No.", "p.m." or "Jan.".
_NO_ENDS = "".join(rf"(?<!\b{word}\.)" for word in [*_SHORT_MONTHS.title().replace("?", "").split("|"), "Vol", "Fig"])
_NO_ENDS += "".join(rf"(?<!\b{day.title()}\.)" for day in _DAYS) + r"(?<!\b[A-Za-z]\.)(?<!\b[A-Za-z]{2}\.)"
_SENTENCE_NUMBER = re.compile(rf"(^|[.?!]{_NO_ENDS} )(?=[$€£#]?[0-9]|No\. ?[0-9])")
_HALF_OF_DAY = re.compile(r"(?<= )([ap]) m(?=[ ,;:?!]|$)\.?")
_GAP_BEFORE_MARK = re.compile(r" ([.,;:?!]+)(?= |$)")
_APOSTROPHE = "'"
_SMALL_LETTER = re.compile(r"[a-z]")
_DIGIT = re.compile(r"[0-9]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_VULGAR_FRACTION = re.compile(r"(?<=[0-9])\s?([\u00bc-\u00be\u2150-\u215e])|([\u00bc-\u00be\u2150-\u215e])")


def normalize_english(text: str, keep: str = "'", lowercase: bool = True) -> str:
    """``text`` in words, separated by single spaces. Takes time in proportion to its length.

    Args:
        text: any text.
        keep: characters that stay as they are: the punctuation and the accented letters of the vocabulary. Other
            punctuation becomes a space; other Latin letters become ASCII, see :func:`accented_letters`. Letters of
            other scripts and signs without an English word stay, so that the parser counts them.
        lowercase: False keeps the case of the letters. Words for numbers are lower-case then, but at the beginning of a
            sentence, and names of months have a capital.

    Where ``.`` and the case are kept, abbreviations stay as they are written: ``Mr.``, ``p.m.``, ``www.example.com``.
    """
    text = " ".join(text.split())
    if not text.isascii():
        text = _ascii_signs(unicodedata.normalize("NFC", text), keep)
    written = text
    if not lowercase:
        text = _SENTENCE_NUMBER.sub(f"\\1{_CAPITAL}", text) if _HAS_SENTENCES.search(text) else text
    text = say_numbers(say_abbreviations(text, "" if lowercase else keep), keep)
    if "." in keep:
        text = _HALF_OF_DAY.sub(r"\1.m.", text)
        text = f"{text}." if written.endswith(".") and not text.endswith(".") else text
    if not lowercase:
        text = _CAPITAL_LETTER.sub(lambda match: match[1].upper(), text).replace(_CAPITAL, "")
    text = text.translate({ord(symbol): f" {word} " for symbol, word in _SYMBOLS.items() if symbol not in keep})
    text = without_accents(text.lower() if lowercase else text, keep)
    text = text.translate({ord(mark): " " for mark in string.punctuation if mark not in keep})
    words = (text.lower() if lowercase else text).split()
    text = " ".join(word for word in words if word.strip(_APOSTROPHE))  # alone, it was a quotation mark
    return _GAP_BEFORE_MARK.sub(lambda match: match[1] if match[1] in keep else match[0], text)


def say_abbreviations(text: str, keep: str = "") -> str:
    """``text`` with abbreviations, streets and Roman numerals after names in words, and single spaces.

    Where a point is one of ``keep``, what is written with a point stays.
    """
    if _SMALL_LETTER.search(text):
        text = apply(_without_points(WITH_CASE) if "." in keep else WITH_CASE, text)
    if "." not in text and "/" not in text:
        return text
    rules = (*ABBREVIATIONS, *_WORD_SIGNS)
    return apply(_without_points(rules) if "." in keep else rules, text)


def _without_points(rules: Iterable[Rule]) -> list[Rule]:
    return [rule for rule in rules if r"\." not in rule.pattern.pattern]


def say_numbers(text: str, keep: str = "") -> str:
    """``text`` with numbers, dates, money and units in words; an equals sign of ``keep`` stays."""
    if not _DIGIT.search(text):
        return text
    text = _LONG.pattern.sub(_LONG.say, text)
    for rules in (_BEFORE_NUMBERS, EARLY_RANGES, DATES, TELEPHONES, QUANTITIES):
        text = apply(rules, text)
    return apply(NUMERALS, text if "=" in keep else apply(_EQUALS, text))


def without_accents(text: str, keep: str = "") -> str:
    """``text`` with Latin letters and punctuation in ASCII, but for those of ``keep``."""
    if text.isascii():
        return text
    return _NOT_ASCII.sub(lambda match: match[0] if match[0] in keep else _ascii(match[0]), text)


def accented_letters(text: str, keep: str) -> list[str]:
    """The letters of ``text`` that :func:`normalize_english` writes in ASCII: ``é``, ``ø``, ``ß``."""
    if text.isascii():
        return []
    composed = unicodedata.normalize("NFC", text)
    kept = keep + keep.upper()
    return [letter for letter in _NOT_ASCII.findall(composed) if letter not in kept and _is_latin(letter)]


def _ascii_signs(text: str, keep: str) -> str:
    """Typographic marks, digits and fractions of other forms in those that the rules know."""
    text = text.translate({code: sign for code, sign in _SAME.items() if chr(code) not in keep})
    text = _VULGAR_FRACTION.sub(
        lambda match: " " + unicodedata.normalize("NFKC", match[1] or match[2]).replace("\u2044", "/"), text
    )
    return _NOT_ASCII.sub(lambda match: match[0] if match[0] in keep else _ascii_digit(match[0]), text)


@lru_cache(maxsize=1024)
def _ascii_digit(character: str) -> str:
    if not unicodedata.category(character).startswith("N") or character in _SYMBOLS:
        return character
    value = unicodedata.decimal(character, -1)
    same = unicodedata.normalize("NFKC", character) if value < 0 else str(value)
    return same if same.isascii() else character


@lru_cache(maxsize=1024)
def _ascii(character: str) -> str:
    """A Latin letter or a mark in ASCII; anything else as it is: its reading is not known here."""
    if _is_latin(character) or unicodedata.category(character)[0] in "PZ":
        return anyascii(character) or character
    return character


def _is_latin(character: str) -> bool:
    return character.isalpha() and "LATIN" in unicodedata.name(character, "")
