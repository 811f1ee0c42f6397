"""Chinese numbers as they are read: integers, years, decimals, percentages, fractions. num2words has no Chinese."""

from __future__ import annotations

import re
from collections.abc import Callable

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
        words = _words(match)
        return next((each for each in (words, words.translate(_TRADITIONAL)) if can_write(each)), match[0])

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


def _words(match: re.Match[str]) -> str:
    if match["percent"]:
        return f"百分之{_decimal(match['percent'])}"
    if match["year"]:
        return _by_digits(match["year"])
    if match["pair"]:
        return "两"
    fraction = f".{match['fraction']}" if match["fraction"] else ""
    return _decimal(match["whole"].replace(",", "") + fraction)
