"""Amounts of money, numbers with units, ranges, telephone numbers and all other numerals as English words."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nemo_asr.run.text.english_numbers import (
    AMOUNT,
    CURRENCIES,
    DECIMAL,
    FRACTION,
    GROUPED,
    MAGNITUDES,
    PER,
    UNITS,
    UNITS_WITH_CASE,
    Rule,
    amount,
    cardinal,
    decimal,
    digits,
    is_bare_fraction,
    number,
    ordinal,
    plural,
    rule,
)

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
