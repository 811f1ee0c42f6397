"""normalize_english: the rules of this package, one after another, and what is left of signs and accents."""

from __future__ import annotations

import re
import string
import unicodedata
from functools import lru_cache

from anyascii import anyascii

from nemo_asr.text.english.dates import DATES
from nemo_asr.text.english.names import ABBREVIATIONS, WITH_CASE
from nemo_asr.text.english.numbers import digits
from nemo_asr.text.english.quantities import EARLY_RANGES, NUMERALS, QUANTITIES, TELEPHONES
from nemo_asr.text.english.rules import Rule, apply, rule

_SYMBOLS = {
    "+": "plus",
    "&": "and",
    "%": "percent",
    "@": "at",
    "=": "equals",
    "\u00d7": "times",
    "÷": "divided by",
    "±": "plus or minus",
    "§": "section",
    "€": "euros",
    "£": "pounds",
    "¥": "yen",
    "¢": "cents",
    "°": "degrees",
    "²": "squared",
    "³": "cubed",
}
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
        lowercase: False keeps the case of the letters; the words for numbers are lower-case anyhow.
    """
    text = " ".join(text.split())
    if not text.isascii():
        text = _ascii_signs(unicodedata.normalize("NFC", text), keep)
    text = say_numbers(say_abbreviations(text), keep)
    text = text.translate({ord(symbol): f" {word} " for symbol, word in _SYMBOLS.items() if symbol not in keep})
    text = without_accents(text.lower() if lowercase else text, keep)
    text = text.translate({ord(mark): " " for mark in string.punctuation if mark not in keep})
    words = (text.lower() if lowercase else text).split()
    return " ".join(word for word in words if word.strip(_APOSTROPHE))  # alone, it was a quotation mark


def say_abbreviations(text: str) -> str:
    """``text`` with abbreviations, streets and Roman numerals after names in words, and single spaces."""
    if _SMALL_LETTER.search(text):
        text = apply(WITH_CASE, text)
    return apply((*ABBREVIATIONS, *_WORD_SIGNS), text) if "." in text or "/" in text else text


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
    same = unicodedata.normalize("NFKC", character)
    return same if same.isascii() else character


@lru_cache(maxsize=1024)
def _ascii(character: str) -> str:
    """A Latin letter or a mark in ASCII; anything else as it is: its reading is not known here."""
    if _is_latin(character) or unicodedata.category(character)[0] in "PZ":
        return anyascii(character) or character
    return character


def _is_latin(character: str) -> bool:
    return character.isalpha() and "LATIN" in unicodedata.name(character, "")
