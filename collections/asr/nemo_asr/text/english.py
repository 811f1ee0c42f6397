"""English text as it is spoken: numbers, money, dates, times, abbreviations and symbols as words. No labels here."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from anyascii import anyascii

if TYPE_CHECKING:
    import inflect

_ABBREVIATIONS = {
    "mr": "mister",
    "mrs": "missus",
    "dr": "doctor",
    "drs": "doctors",
    "prof": "professor",
    "st": "saint",
    "jr": "junior",
    "sr": "senior",
    "co": "company",
    "ltd": "limited",
    "rev": "reverend",
    "hon": "honorable",
    "esq": "esquire",
    "gen": "general",
    "col": "colonel",
    "maj": "major",
    "capt": "captain",
    "lt": "lieutenant",
    "sgt": "sergeant",
    "ft": "fort",
    "vs": "versus",
    "etc": "et cetera",
}
_SYMBOLS = {"+": "plus", "&": "and", "%": "percent"}
_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yen", "yen", "sen", "sen"),
}
_MONTH_NAMES = "january|february|march|april|may|june|july|august|september|october|november|december"
_MONTHS = _MONTH_NAMES.split("|")
_MONTH = rf"({_MONTH_NAMES}|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)\b\.?"
_GROUPED = r"\d{1,3}(?:,\d{3})+(?!\d)|\d+"

# Longer numbers (accounts, serial numbers) are read digit by digit; nobody says quadrillions.
_MAX_CARDINAL_DIGITS = 12


def normalize_english(text: str, keep: str = "'", lowercase: bool = True) -> str:
    """``text`` in words, separated by single spaces.

    Args:
        text: any text.
        keep: characters that stay as they are: the punctuation and the accented letters of the vocabulary. Other
            punctuation becomes a space; other accented letters become ASCII. A character for which no ASCII is known
            stays, so that the parser counts it.
        lowercase: False keeps the case of the letters; the words for numbers are lower-case anyhow.
    """
    if lowercase:
        text = text.lower()
    text = _MONEY.sub(_say_money, text)  # before the next step turns the euro sign into letters
    text = _NOT_ASCII.sub(lambda match: match[0] if match[0] in keep else anyascii(match[0]) or match[0], text)
    if lowercase:
        text = text.lower()  # some characters become capitals: the numero sign turns into "No"
    text = _NUMERO.sub(" number ", _ABBREVIATION.sub(lambda match: _ABBREVIATIONS[match[1].lower()] + " ", text))
    if _DIGIT.search(text):
        for pattern, say in _NUMERALS:
            text = pattern.sub(say, text)
    text = text.translate({ord(symbol): f" {word} " for symbol, word in _SYMBOLS.items() if symbol not in keep})
    text = text.translate({ord(mark): " " for mark in string.punctuation if mark not in keep})
    return " ".join(text.split())


@lru_cache(maxsize=1)
def _engine() -> inflect.engine:
    # Importing inflect takes 2.1 s (it type-checks itself through typeguard): only texts with numbers pay for it.
    import inflect

    return inflect.engine()


@lru_cache(maxsize=8192)
def _cardinal(number: int, ordinal: bool = False) -> str:
    numeral = _engine().ordinal(str(number)) if ordinal else str(number)
    return str(_engine().number_to_words(numeral)).replace(",", "").replace("-", " ")


def _ordinal(number: int) -> str:
    return _cardinal(number, ordinal=True)


def _digits(numeral: str) -> str:
    return " ".join(_cardinal(int(digit)) for digit in numeral if digit.isdigit())


def _year(number: int) -> str:
    """1984 is nineteen eighty four, 1900 nineteen hundred, 1905 nineteen oh five, 2004 two thousand and four."""
    century, rest = divmod(number, 100)
    if not (1100 <= number <= 1999 or 2010 <= number <= 2099):
        return _cardinal(number)
    if rest == 0:
        return f"{_cardinal(century)} hundred"
    return f"{_cardinal(century)} {'oh ' if rest < 10 else ''}{_cardinal(rest)}"


def _number(numeral: str) -> str:
    """A run of digits, perhaps with commas between the thousands."""
    plain = numeral.replace(",", "")
    if len(plain) > _MAX_CARDINAL_DIGITS or (plain[0] == "0" and len(plain) > 1):
        return _digits(plain)
    return _year(int(plain)) if len(numeral) == 4 else _cardinal(int(plain))


def _decimal(whole: str | None, fraction: str) -> str:
    return f"{_number(whole) if whole else ''} point {_digits(fraction)}".strip()


def _say_money(match: re.Match[str]) -> str:
    one, many, one_part, many_parts = _CURRENCIES[match["sign"]]
    whole, fraction, magnitude = match["whole"], match["fraction"], match["magnitude"]
    amount = _decimal(whole, fraction) if fraction else _number(whole)
    if magnitude:
        return f" {amount} {magnitude} {many} "
    if fraction is None or len(fraction) != 2:
        return f" {amount} {one if whole == '1' and not fraction else many} "
    parts = int(fraction)
    said = [f"{_number(whole)} {one if whole == '1' else many}"] if whole.strip("0") or not parts else []
    said += [f"{_cardinal(parts)} {one_part if parts == 1 else many_parts}"] if parts else []
    return f" {' and '.join(said)} "


def _say_date(month: int, day: int, year: str | None, as_written: str) -> str:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return as_written
    return f" {_MONTHS[month - 1]} {_ordinal(day)} {_year(int(year)) if year else ''} "


def _month_number(name: str) -> int:
    return next(number for number, month in enumerate(_MONTHS, 1) if month.startswith(name[:3].lower()))


def _say_day_month(match: re.Match[str]) -> str:
    day, month, year = match.groups()
    if not 1 <= int(day) <= 31:
        return match[0]
    return f" {_ordinal(int(day))} {_MONTHS[_month_number(month) - 1]} {_year(int(year)) if year else ''} "


def _say_time(match: re.Match[str]) -> str:
    hour, minute = int(match["hour"]), int(match["minute"] or 0)
    if hour > 24 or minute > 59:
        return match[0]
    half = f"{match['half'].lower()} m" if match["half"] else ""
    if minute:
        return f" {_cardinal(hour)} {'oh ' if minute < 10 else ''}{_cardinal(minute)} {half} "
    full_hour = "hundred" if hour > 12 else "o'clock"
    return f" {_cardinal(hour)} {half or full_hour} "


def _say_decade(match: re.Match[str]) -> str:
    words = _number(match[1])
    return f" {words[:-1]}ies " if words.endswith("y") else f" {words}s "


_DIGIT = re.compile(r"\d")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_ABBREVIATION = re.compile(rf"\b({'|'.join(_ABBREVIATIONS)})\.\s*", re.IGNORECASE)
_NUMERO = re.compile(r"\bno\.\s*(?=\d)", re.IGNORECASE)
_MONEY = re.compile(
    rf"(?P<sign>[$€£¥])\s?(?P<whole>{_GROUPED})(?:\.(?P<fraction>\d+))?"
    r"(?:\s?(?P<magnitude>thousand|million|billion|trillion)\b)?",
    re.IGNORECASE,
)
_ORDINAL_END = r"(?:st|nd|rd|th)?"


def _rule(pattern: str, say: Callable[[re.Match[str]], str]) -> tuple[re.Pattern[str], Callable[[re.Match[str]], str]]:
    return re.compile(pattern, re.IGNORECASE), say


# The order matters: a later pattern would match a part of what an earlier one takes whole.
_NUMERALS = (
    _rule(r"\b(\d{4})-(\d{2})-(\d{2})\b", lambda m: _say_date(int(m[2]), int(m[3]), m[1], m[0])),
    _rule(r"\b(\d{1,2})/(\d{1,2})/(\d{4})\b", lambda m: _say_date(int(m[1]), int(m[2]), m[3], m[0])),
    _rule(
        rf"\b{_MONTH}\s(\d{{1,2}}){_ORDINAL_END}\b(?![:.]\d)(?:,?\s(\d{{4}})\b)?",
        lambda m: _say_date(_month_number(m[1]), int(m[2]), m[3], m[0]),
    ),
    _rule(rf"\b(\d{{1,2}}){_ORDINAL_END}\s(?:of\s)?{_MONTH}(?:,?\s(\d{{4}})\b)?", _say_day_month),
    _rule(r"\b(?P<hour>\d{1,2}):(?P<minute>\d{2})\b(?:\s?(?P<half>[ap])\.?m\b\.?)?", _say_time),
    _rule(r"\b(?P<hour>\d{1,2})(?P<minute>)\s?(?P<half>[ap])\.?m\b\.?", _say_time),
    _rule(r"\b(?:\d{3}-)?\d{3}-\d{4}\b", lambda m: f" {_digits(m[0])} "),
    _rule(r"'?\b(\d{1,3}0)s\b", _say_decade),
    _rule(rf"\b({_GROUPED})(?:st|nd|rd|th)\b", lambda m: f" {_ordinal(int(m[1].replace(',', '')))} "),
    _rule(r"(?<![\w.)])-(?=[\d.]*\d)", lambda _: " minus "),
    _rule(rf"({_GROUPED})?\.(\d+)", lambda m: f" {_decimal(m[1], m[2])} "),
    _rule(_GROUPED, lambda m: f" {_number(m[0])} "),
)
