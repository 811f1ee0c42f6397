"""English as it is spoken: dates, money, units, names and numbers in words."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

from anyascii import anyascii

from nemo_asr.run.text.english_amounts import EARLY_RANGES, NUMERALS, QUANTITIES, TELEPHONES
from nemo_asr.run.text.english_dates import DATES, DAYS, SHORT_MONTHS
from nemo_asr.run.text.english_names import ABBREVIATIONS, WITH_CASE
from nemo_asr.run.text.english_numbers import Rule, apply, digits, rule, word_table

_SYMBOLS = word_table(
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
_NO_ENDS = "".join(rf"(?<!\b{word}\.)" for word in [*SHORT_MONTHS.title().replace("?", "").split("|"), "Vol", "Fig"])
_NO_ENDS += "".join(rf"(?<!\b{day.title()}\.)" for day in DAYS) + r"(?<!\b[A-Za-z]\.)(?<!\b[A-Za-z]{2}\.)"
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
