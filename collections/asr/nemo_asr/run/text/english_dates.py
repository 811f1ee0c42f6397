"""Dates, times and decades as English words."""

from __future__ import annotations

import re

from nemo_asr.run.text.english_numbers import cardinal, number, ordinal, plural, rule, short_year, year

_MONTH_NAMES = "january|february|march|april|may|june|july|august|september|october|november|december"
_MONTHS = [month.capitalize() for month in _MONTH_NAMES.split("|")]
SHORT_MONTHS = "jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec"
MONTH = rf"(?:{_MONTH_NAMES}|{SHORT_MONTHS})\b"
DAYS = {day[:3]: day for day in ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")}
_TH = r"(?:st|nd|rd|th)?"
_DAY = r"(?P<day>[0-9]{1,2})"
_YEAR = r"(?:,?\s(?P<year>[12][0-9]{3})\b)?"
_HALF = r"(?:\s?(?P<half>[ap])\.?\s?m\b\.?)"


def month_name(name: str) -> str:
    return next(month for month in _MONTHS if month.lower().startswith(name[:3].lower()))


def _is_day(day: str) -> bool:
    return 1 <= int(day) <= 31


def _month_day(month: str, day: str, year_numeral: str | None) -> str:
    return f"{month} {ordinal(int(day))} {short_year(year_numeral) if year_numeral else ''}"


def _day_month(day: str, of: str, month: str, year_numeral: str | None) -> str:
    return f"{ordinal(int(day))} {of} {month} {short_year(year_numeral) if year_numeral else ''}"


def _say_day(match: re.Match[str]) -> str:
    day = DAYS[match["day"].lower()]
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
    said = f"{month_name(match['month'])} {ordinal(int(match['day']))}"
    if match["last"]:
        said += f" to {ordinal(int(match['last']))}"
    return f"{said} {year(int(match['year'])) if match['year'] else ''}"


def _say_day_month(match: re.Match[str]) -> str:
    if not _is_day(match["day"]):
        return match[0]
    first = f"{ordinal(int(match['first']))} to " if match["first"] else ""
    return first + _day_month(match["day"], match["of"] or "", month_name(match["month"]), match["year"])


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
    rule(rf"\b(?P<day>{'|'.join(DAYS)})(?:s|rs|urs|nes)?\.,?\s(?={MONTH}|[0-9])", _say_day),
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
