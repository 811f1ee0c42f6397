"""Numbers as words in many languages."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

from nemo_asr.run.text.forms import CLOSING_MARKS

# Whole numbers as words, in the languages of num2words. No texts here: where numbers are in them is said elsewhere.


Kind = Literal["cardinal", "ordinal", "year"]


@lru_cache(maxsize=8192)
def number_words(number: int, language: str, kind: Kind = "cardinal", **grammar: str | bool) -> str:
    """``number`` in words: ``fünfundzwanzig`` for 25 in ``de``.

    Args:
        number: not negative.
        language: a code of num2words: ``en``, ``de``, ``pt_BR``.
        kind: a cardinal or an ordinal number, or a year.
        grammar: of languages of which num2words has more forms: ``case="g", gender="f"`` of Russian.

    Raises:
        NotImplementedError: num2words does not know the language, or not this kind of number in it.
    """
    # Importing num2words reads 57 languages: only texts with numbers pay for it.
    import num2words

    return str(num2words.num2words(number, lang=language, to=kind, **grammar))


# Chinese numbers as they are read: integers, years, decimals, percentages, fractions. num2words has no Chinese.


_DIGITS = "零一二三四五六七八九"
_PLACES = ("", "十", "百", "千")
_GROUPS = ("", "万", "亿", "万亿")
_MAX_DIGITS = 16
_TRADITIONAL = str.maketrans("万亿点两", "萬億點兩")
# Before these, a 2 alone is 两.
_MEASURES = "个個次名位只隻条條张張本点點天周倍家种種人块塊岁歲年层層座台件份分秒"
_NUMBER = re.compile(
    r"(?P<percent>[0-9]{1,15}(?:\.[0-9]+)?)[%\uff05]"
    r"|(?P<year>[0-9]{4})(?=年)"
    rf"|(?<![0-9.,])(?P<pair>2)(?=[{_MEASURES}])"
    r"|(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.(?P<fraction>[0-9]+))?"
)


def speak_chinese(text: str, can_write: Callable[[str], bool]) -> str:
    """``text`` with its numbers in words: ``2024年有25%`` is ``二零二四年有百分之二十五``.

    In traditional characters where the labels have these. A number that the labels cannot write stays as it is.
    """

    def say(match: re.Match[str]) -> str:
        words = _chinese_words(match)
        return next((form for form in (words, words.translate(_TRADITIONAL)) if can_write(form)), match[0])

    return _NUMBER.sub(say, text)


def chinese_number(numeral: str) -> str:
    """A run of digits in words: ``10500`` is ``一万零五百``. Of more than 16, or with zeros before it: by digits."""
    if len(numeral) > _MAX_DIGITS or (numeral[0] == "0" and len(numeral) > 1):
        return _by_digits(numeral)
    if not int(numeral):
        return _DIGITS[0]
    said, is_gap = "", False
    first = -(-len(numeral) // 4)
    padded = numeral.zfill(first * 4)
    for group in range(first):
        four = padded[4 * group : 4 * group + 4]
        if not int(four):
            is_gap = bool(said)
            continue
        said += _DIGITS[0] if said and (is_gap or four[0] == "0") else ""
        said += _four(four) + _GROUPS[first - 1 - group]
        is_gap = False
    return said.removeprefix("一") if said.startswith("一十") else said


def _four(four: str) -> str:
    said, is_gap = "", False
    for place, digit in enumerate(four):
        if digit == "0":
            is_gap = bool(said)
            continue
        said += (_DIGITS[0] if is_gap else "") + _DIGITS[int(digit)] + _PLACES[3 - place]
        is_gap = False
    return said


def _by_digits(numeral: str) -> str:
    return "".join(_DIGITS[int(digit)] for digit in numeral)


def _decimal(numeral: str) -> str:
    whole, point, fraction = numeral.partition(".")
    return chinese_number(whole) + (f"点{_by_digits(fraction)}" if point else "")


def _chinese_words(match: re.Match[str]) -> str:
    if match["percent"]:
        return f"百分之{_decimal(match['percent'])}"
    if match["year"]:
        return _by_digits(match["year"])
    if match["pair"]:
        return "两"
    fraction = f".{match['fraction']}" if match["fraction"] else ""
    return _decimal(match["whole"].replace(",", "") + fraction)


# Numbers in texts of any language but English, in words where the labels can write these. No dates, no units.


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


_OPENING, _CLOSE = ("\u00bf", "\u00a1"), ("'", "\u2019", "\u02bc", *CLOSING_MARKS)  # stand right beside a number


def speak_numbers(text: str, language: str, can_write: Callable[[str], bool]) -> str:
    """``text`` with its numbers in words. A number whose words the labels cannot write stays, so that it is counted.

    Thousands may be grouped in the way of the language: ``1.000.000`` and ``3,5`` in German, ``1,000,000`` and ``3.5``
    in Korean, ``1 000 000`` in French. Digits in other groups of three that a telephone number may have are read group
    by group. Ordinals, dates, units: `nemo_asr.run.text.readings`.

    Args:
        text: any text.
        language: a code of `nemo_asr.run.text.languages.LANGUAGES`.
        can_write: whether the labels have all letters of some words.
    """
    if language == "zh":
        return speak_chinese(text, can_write)

    def say(match: re.Match[str]) -> str:
        words = _words(match["whole"], match["fraction"], language)
        if words is None or not can_write(words):
            return match[0]
        if language in _WITHOUT_SPACES:
            return words
        # The ending of a Turkish case stands behind an apostrophe: "1999'da".
        left = "" if match.string.endswith(_OPENING, 0, match.start()) else " "
        right = "" if match.string.startswith(_CLOSE, match.end()) else " "
        return f"{left}{words}{right}"

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


def spoken_integer(number: int, language: str, kind: Kind = "cardinal") -> str:
    """`number_words`, apart where num2words writes one word for what is written and read as several.

    Turkish writes each numeral by itself: ``yirmi beş``. Slovak keeps those below 100 together, and thousands and
    hundreds apart from what follows: ``tisíc dvesto tridsaťštyri``.
    """
    if language == "sk" and kind == "cardinal" and number % 1_000_000 >= 100:
        millions, rest = number - number % 1_000_000, number % 1_000_000
        thousands, hundreds, small = rest // 1000, rest % 1000 // 100, rest % 100
        parts = [number_words(millions, language)] if millions else []
        if thousands >= 100:
            parts += [spoken_integer(thousands, language), "tisíc"]
        elif thousands:
            parts.append(number_words(thousands * 1000, language))
        parts += [number_words(value, language) for value in (hundreds * 100, small) if value]
        return " ".join(parts)
    words = number_words(number, language, kind)
    if language == "da":  # num2words has one million in the plural
        words = re.sub(r"\ben (million|milliard)er\b", r"en \1", words)
    return " ".join(_TURKISH.findall(words)) if language == "tr" else words


# Of numerals of which one begins as another, the longer first. What is behind the last belongs to it: "birinci".
_TURKISH = re.compile(
    r"(?:sıfır|milyon|milyar|trilyon|bir|iki|üç|dört|beş|altmış|altı|yetmiş|yedi|seksen|sekiz|doksan|dokuz|yirmi|otuz|"
    r"kırk|elli|yüz|bin|on)(?:u?ncu|ü?ncü|i?nci|ı?ncı)?"
)


def _integer(number: int, language: str) -> str:
    words = " ".join(spoken_integer(number, language).split())
    if not words or not all(character.isalpha() or not character.isalnum() for character in words):
        raise ValueError(words)
    return words
