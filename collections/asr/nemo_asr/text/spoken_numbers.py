"""Numbers in texts of any language but English, in words where the labels can write these. No dates, no units."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from nemo_asr.text.chinese_numbers import speak_chinese
from nemo_asr.text.number_words import number_words

# Longer numbers (accounts, telephone numbers) are read digit by digit.
_MAX_CARDINAL_DIGITS = 12
_POINT_LANGUAGES = frozenset({"bn", "he", "ja", "kn", "ko", "te", "th"})
# Thousands stand apart by a space, in manifests mostly a plain one.
_SPACE_LANGUAGES = frozenset(
    {
        *("be", "ca", "cs", "da", "de", "eo", "es", "fi", "fr", "hu", "it", "kz", "lt", "lv", "no", "pl", "pt"),
        *("ru", "sk", "sv", "tg", "uk"),
    }
)
_WITHOUT_SPACES = frozenset({"ja", "th"})
# How a decimal mark is said, where num2words says whole, mark and digits one after another. Its decimals of the other
# languages are incomplete (Italian leaves them out), so a decimal stays as it is there and its digits are lost.
_MARKS = {
    "da": "komma", "de": "Komma", "es": "coma", "fi": "pilkku", "fr": "virgule", "he": "נקודה", "it": "virgola",
    "ja": "点", "ko": "점", "nl": "komma", "no": "komma", "pt": "vírgula", "sv": "komma", "th": "จุด",
}  # fmt: skip
_YEARS = frozenset({"de", "nl"})  # "neunzehnhundert", not "eintausendneunhundert"


def speak_numbers(text: str, language: str, can_write: Callable[[str], bool]) -> str:
    """``text`` with its numbers in words. A number whose words the labels cannot write stays, so that it is counted.

    Thousands may be grouped in the way of the language: ``1.000.000`` and ``3,5`` in German, ``1,000,000`` and ``3.5``
    in Korean, ``1 000 000`` in French. Digits in other groups of three that a telephone number may have are read group
    by group. Ordinals, dates, times, units and signs are not read.

    Args:
        text: any text.
        language: a code of `nemo_asr.text.languages.LANGUAGES`.
        can_write: whether the labels have all letters of some words.
    """
    if language == "zh":
        return speak_chinese(text, can_write)

    def say(match: re.Match[str]) -> str:
        words = _words(match["whole"], match["fraction"], language)
        if words is None or not can_write(words):
            return match[0]
        return words if language in _WITHOUT_SPACES else f" {words} "

    return _pattern(language in _POINT_LANGUAGES, language in _SPACE_LANGUAGES).sub(say, text)


@lru_cache(maxsize=3)
def _pattern(has_point: bool, has_space: bool) -> re.Pattern[str]:
    # U+066B and U+066C are the marks of Arabic digits.
    group, mark = (",", r"\.") if has_point else (r"[.\u00a0\u202f\u066c]", "[,\u066b]")
    # Not "0 800 123 456" or "8 495 123 45 67": groups of other lengths beside it make it a telephone number.
    spaced = r"(?<![0-9+.,:/])(?<![0-9][ -])[1-9][0-9]{0,2}(?: [0-9]{3})+(?! ?[0-9])|" if has_space else ""
    whole = rf"(?P<whole>{spaced}[0-9]{{1,3}}(?:{group}[0-9]{{3}})+(?![0-9])|[0-9]+)"
    return re.compile(rf"{whole}(?:{mark}(?P<fraction>[0-9]+))?")


@lru_cache(maxsize=4096)
def _words(whole: str, fraction: str | None, language: str) -> str | None:
    """In words; None where these are not known."""
    plain = re.sub("[^0-9]", "", whole)
    try:
        if len(plain) > _MAX_CARDINAL_DIGITS or (plain[0] == "0" and len(plain) > 1):
            said = [_integer(int(digit), language) for digit in plain]
        elif len(whole) == 4 and 1100 <= int(plain) <= 1999 and language in _YEARS:
            said = [number_words(int(plain), language, "year")]
        else:
            said = [_integer(int(plain), language)]
        if fraction is not None:
            said += [_MARKS[language], *(_integer(int(digit), language) for digit in fraction)]
    # num2words does not know every number in every language, and says so by errors of all these classes.
    except (ArithmeticError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError):
        return None
    return ("" if language in _WITHOUT_SPACES else " ").join(said)


def _integer(number: int, language: str) -> str:
    words = " ".join(number_words(number, language).split())
    if not words or not all(character.isalpha() or not character.isalnum() for character in words):
        raise ValueError(words)
    return words
