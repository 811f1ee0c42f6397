"""Ordinals, dates, times, units and money of languages other than English. Plain numbers are not here.

num2words has ordinals and years of many languages, and no units: the tables are ours. Rules rewrite what they know, and
leave the rest to `nemo_asr.run.text.numbers`. Languages that inflect numbers: `nemo_asr.run.text.inflected`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from nemo_asr.run.text.inflected import Rule, Say, inflected_rules, unread
from nemo_asr.run.text.numbers import number_words, speak_numbers, spoken_integer

_NOT_WITHIN = r"(?<![\w.,/:-])"
_AMOUNT = r"(?P<amount>[0-9]{1,3}(?:\.[0-9]{3})+(?![0-9])|[0-9]{1,12})(?:,(?P<fraction>[0-9]{1,6}))?"


def read_out(text: str, language: str, can_write: Callable[[str], bool]) -> str:
    """``text`` with ordinals, dates, units and numbers in words: `speak_numbers`, and the rules of the language before.

    What the labels cannot write stays as it is, so that it is counted.

    Args:
        text: any text.
        language: a code of `nemo_asr.run.text.languages.LANGUAGES`.
        can_write: whether the labels have all letters of some words.
    """
    for pattern, say in rules_of(language):
        text = pattern.sub(lambda match, say=say: _said(match, say, can_write), text)  # type: ignore[misc]
    kept = unread(language)
    if kept is None:
        return speak_numbers(text, language, can_write)
    pieces = kept.split(text)  # odd ones are kept
    return "".join(piece if i % 2 else speak_numbers(piece, language, can_write) for i, piece in enumerate(pieces))


def _said(match: re.Match[str], say: Say, can_write: Callable[[str], bool]) -> str:
    words = say(match)
    return match[0] if words is None or not can_write(_DIGITS.sub("", words)) else words


_DIGITS = re.compile(r"[0-9]+(?:[.,][0-9]+)*")


@lru_cache(maxsize=8)
def rules_of(language: str) -> tuple[Rule, ...]:
    """The rules of a language, in their order; none where none are known."""
    before = "[0-9A-Za-z.,/:)%°-]" if language in ("zh", "ja", "ko") else r"[\w.,/:)%°-]"
    minus = re.compile(rf"(?<!{before})(?<![0-9]\s){_MINUS}")
    below_zero: list[Rule] = [(minus, _constant(words)) for words in _BELOW_ZERO.get(language, ())]
    if language == "de":
        return (*below_zero, *_german())
    rules = [*below_zero, *inflected_rules(language)]
    if language in _ORDINALS:
        rules.append((re.compile(_NOT_WITHIN + _ORDINALS[language]), lambda match: _ordinal(match, language)))
    if language in _MONTHS:
        pattern = rf"{_NOT_WITHIN}(?P<number>[0-9]{{1,2}})\.(?= (?:{_MONTHS[language]})\b)"
        rules.append((re.compile(pattern, re.IGNORECASE), lambda match: _ordinal(match, language)))
    behind = "(?![A-Za-z])" if language in ("ja", "ko") else r"(?!\w)"
    if language in ("ja", "ko"):  # the scale is said before the number
        number = rf"(?P<number>(?:{_BELOW_ZERO[language][0]}|(?<![0-9.,])){_DECIMAL})\s?{_DEGREES['°F']}{behind}"
        rules.append((re.compile(number), _around(_FAHRENHEIT[language])))
    signs = _SIGNS.get(language, {})
    if language in _FAHRENHEIT and language not in ("ja", "ko"):
        signs = {**signs, "°F": _FAHRENHEIT[language]}
    for sign, words in signs.items():
        written = _DEGREES.get(sign) or re.escape(sign)
        rules.append(
            (re.compile(rf"(?<=[0-9])\s?{written}{behind}"), _constant(words if language == "ja" else f" {words}"))
        )
        rules.append((re.compile(rf"{written}\s?(?P<number>[0-9]+)(?![\w.,])"), _behind(words)))
    if language == "zh":  # the first of these that the labels can write
        for sign, forms in {"°C": ("摄氏度", "攝氏度", "度"), "°F": ("华氏度", "華氏度")}.items():
            degrees = re.compile(rf"(?<=[0-9])\s?{_DEGREES[sign]}(?![A-Za-z])")
            rules += [(degrees, _constant(words)) for words in forms]
    if language == "tr":
        rules.append(
            (
                re.compile(r"%\s?(?=[0-9])|(?<![\w.,])(?P<number>[0-9]+(?:,[0-9]+)?)\s?%"),
                lambda match: f"yüzde {match['number'] or ''}",
            )
        )
    return tuple(rules)


# Ordinals as they are written, where num2words can say them.
_ORDINALS = {
    "fr": r"(?P<number>[0-9]{1,4})(?P<ending>ers?|res?|ères?|nde?s?|de|èmes?|emes?|es?)\b",
    "es": r"(?P<number>[0-9]{1,4})\.?(?P<ending>[º°ªoa](?!\w))(?<![0-9][oa])",
    "pt": r"(?P<number>[0-9]{1,4})\.?(?P<ending>[º°ª](?!\w))",
    "it": r"(?P<number>[0-9]{1,4})\.?(?P<ending>[º°ª](?!\w))",
    "nl": r"(?P<number>[0-9]{1,4})(?P<ending>ste|de|e)\b",
    "sv": r"(?P<number>[0-9]{1,4}):(?P<ending>[ae]|te|de)\b",
    "tr": r"(?P<number>[0-9]{1,4})(?:'(?P<ending>[iıuü]?nc[iıuü])\b|\.(?= [a-zçğıöşü]))",
    "az": r"(?P<number>[0-9]{1,4})(?:-(?P<ending>[iıuü]?nc[iıuü]|c[iıuü])\b|\.(?= [a-zçəğıöşü]))",
}
_DEGREES = {"°C": "(?:°C|\u2103)", "°F": "(?:°F|\u2109)"}  # in East Asian texts one character
_DECIMAL = "[0-9]+(?:[.,][0-9]+)*"
# A sign before a number of degrees, or before the first of two: "-5 °C", "-10 bis -5 °C".
_MINUS = (
    r"[-\u2012\u2013\u2212]"
    rf"(?={_DECIMAL}(?:\s\w{{1,5}}\s[-\u2012\u2013\u2212]?{_DECIMAL})?\s?(?:°[CF]|\u2103|\u2109)(?![A-Za-z]))"
)
# How the sign is read; the first that the labels can write.
_BELOW_ZERO = {
    "de": ("minus ",), "fr": ("moins ",), "es": ("menos ",), "it": ("meno ",), "pt": ("menos ",), "nl": ("min ",),
    "sv": ("minus ",), "da": ("minus ",), "no": ("minus ",), "fi": ("miinus ",), "hu": ("mínusz ",), "tr": ("eksi ",),
    "ja": ("マイナス",), "ko": ("영하 ",), "zh": ("零下", "负", "負"),
}  # fmt: skip
# Degrees of the other scale; {} is the number, where words stand around it.
_FAHRENHEIT = {
    "fr": "degrés Fahrenheit", "es": "grados Fahrenheit", "it": "gradi Fahrenheit", "pt": "graus Fahrenheit",
    "nl": "graden Fahrenheit", "sv": "grader Fahrenheit", "da": "grader Fahrenheit", "no": "grader Fahrenheit",
    "fi": "fahrenheitastetta", "hu": "Fahrenheit-fok", "tr": "derece Fahrenheit", "ja": "華氏{}度", "ko": "화씨 {} 도",
}  # fmt: skip
_FEMININE = {"fr": {"premier": "première", "second": "seconde"}}
# Before these a number with a point is a day.
_MONTHS = {
    "da": "januar|februar|marts|april|maj|juni|juli|august|september|oktober|november|december",
    "no": "januar|februar|mars|april|mai|juni|juli|august|september|oktober|november|desember",
}
# Signs with one form of their words, whatever the number is.
_SIGNS: dict[str, dict[str, str]] = {
    "fr": {"%": "pour cent", "€": "euros", "$": "dollars", "°C": "degrés", "km/h": "kilomètres heure"},
    "es": {"%": "por ciento", "€": "euros", "$": "dólares", "°C": "grados", "km/h": "kilómetros por hora"},
    "it": {"%": "per cento", "€": "euro", "$": "dollari", "°C": "gradi", "km/h": "chilometri orari"},
    "pt": {"%": "por cento", "€": "euros", "$": "dólares", "°C": "graus", "km/h": "quilômetros por hora"},
    "ca": {"%": "per cent", "€": "euros"},
    "nl": {"%": "procent", "€": "euro", "$": "dollar", "°C": "graden", "km/h": "kilometer per uur"},
    "sv": {"%": "procent", "€": "euro", "$": "dollar", "°C": "grader", "km/h": "kilometer i timmen"},
    "da": {"%": "procent", "€": "euro", "$": "dollar", "°C": "grader"},
    "no": {"%": "prosent", "€": "euro", "$": "dollar", "°C": "grader"},
    "fi": {"%": "prosenttia", "€": "euroa", "$": "dollaria", "°C": "astetta"},
    "hu": {"%": "százalék", "€": "euró", "$": "dollár", "°C": "fok"},
    "tr": {"€": "avro", "$": "dolar", "°C": "derece", "km": "kilometre", "kg": "kilogram"},
    "az": {"%": "faiz", "€": "avro", "$": "dollar"},
    "id": {"%": "persen"},
    "vi": {"%": "phần trăm"},
    "ro": {"%": "la sută"},
    "ja": {"%": "パーセント", "°C": "度", "km": "キロメートル", "kg": "キログラム"},
    "ko": {"%": "퍼센트", "°C": "도", "km": "킬로미터", "kg": "킬로그램"},
}


def _constant(words: str) -> Say:
    return lambda match: words


def _around(words: str) -> Say:
    return lambda match: words.format(match["number"])


def _behind(words: str) -> Say:
    return lambda match: f"{match['number']} {words}"


def _ordinal(match: re.Match[str], language: str) -> str | None:
    words = number_words(int(match["number"]), language, "ordinal")
    ending = (match.groupdict().get("ending") or "").rstrip("s")
    if language == "tr":
        return spoken_integer(int(match["number"]), language, "ordinal")
    if language == "fr" and ending in ("re", "ère", "nde"):
        words = _FEMININE["fr"].get(words, words)
    elif language == "fr" and ending in ("nd",):
        words = "second"
    elif language in ("es", "pt", "it") and ending in ("ª", "a"):
        words = " ".join(f"{word[:-1]}a" if word.endswith("o") else word for word in words.split())
    return words


# German: ordinals take the ending that the word before them asks for.


_DE_MONTHS = (
    *("Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September", "Oktober", "November"),
    "Dezember",
)
_DE_SHORT = {"Jan": 0, "Feb": 1, "Mär": 2, "Apr": 3, "Jun": 5, "Jul": 6, "Aug": 7, "Sep": 8, "Sept": 8, "Okt": 9,
             "Nov": 10, "Dez": 11, "Jänner": 0}  # fmt: skip
_DE_ENDING_N = "am|vom|zum|zur|beim|im|dem|den|des|einem|einen|diesem|diesen|jedem|jeden|seit|ab|seinem|ihrem|meinem"
_DE_ENDING_E = "der|die|das|diese|dieser|dieses|jede|jeder|jedes"
_DE_BEFORE = rf"(?:(?<!\w)(?P<before>{_DE_ENDING_N}|{_DE_ENDING_E}) )?"
_DE_DATE_YEAR = r"(?: (?P<year>[12][0-9]{3})(?![0-9.,]*[0-9]))?"
_DE_UNITS = {
    "km/h": "Kilometer pro Stunde", "m/s": "Meter pro Sekunde", "km²": "Quadratkilometer", "m²": "Quadratmeter",
    "m³": "Kubikmeter", "km": "Kilometer", "cm": "Zentimeter", "mm": "Millimeter", "m": "Meter", "kg": "Kilogramm",
    "mg": "Milligramm", "g": "Gramm", "ml": "Milliliter", "l": "Liter", "kWh": "Kilowattstunden", "kW": "Kilowatt",
    "MW": "Megawatt", "W": "Watt", "V": "Volt", "Hz": "Hertz", "kHz": "Kilohertz", "MHz": "Megahertz",
    "GHz": "Gigahertz", "MB": "Megabyte", "GB": "Gigabyte", "TB": "Terabyte", "°C": "Grad Celsius",
    "\u2103": "Grad Celsius", "°F": "Grad Fahrenheit", "\u2109": "Grad Fahrenheit", "°": "Grad",
    "%": "Prozent", "€": "Euro", "EUR": "Euro", "$": "Dollar", "£": "Pfund", "CHF": "Franken", "min": "Minuten",
    "Min.": "Minuten", "Std.": "Stunden", "ha": "Hektar", "t": "Tonnen", "Mio.": "Millionen", "Mrd.": "Milliarden",
}  # fmt: skip
_DE_ONE = {
    "Minuten": "eine Minute", "Stunden": "eine Stunde", "Tonnen": "eine Tonne", "Millionen": "eine Million",
    "Milliarden": "eine Milliarde", "Kilowattstunden": "eine Kilowattstunde",
}  # fmt: skip
_DE_MONEY = ("Euro", "Dollar", "Pfund", "Franken")


def _german() -> tuple[Rule, ...]:
    months = "|".join([*_DE_MONTHS, *sorted(_DE_SHORT, key=len, reverse=True)])
    units = "|".join(map(re.escape, sorted(_DE_UNITS, key=len, reverse=True)))
    day = r"(?<![\w.,/:-])(?P<day>[0-9]{1,2})\."
    return (
        (re.compile(rf"{_DE_BEFORE}{day} ?(?P<month>{months})\b\.?{_DE_DATE_YEAR}", re.IGNORECASE), _german_date),
        (re.compile(rf"{_DE_BEFORE}{day} ?(?P<month>[0-9]{{1,2}})\. ?(?P<year>[12][0-9]{{3}})(?![0-9])", re.IGNORECASE),
         _german_date),
        (re.compile(rf"(?<!\w)(?P<before>{_DE_ENDING_N}) (?P<day>[0-9]{{1,2}})\. ?(?P<month>[0-9]{{1,2}})\.(?![0-9])",
                    re.IGNORECASE), _german_date),
        (re.compile(r"(?<![\w.,/:-])(?P<hour>[0-9]{1,2})(?:[:.](?P<minute>[0-9]{2}))? ?Uhr\b"), _german_time),
        (re.compile(r"(?<![\w.,/:-])(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?![\w:])"), _german_time),
        (re.compile(rf"(?<!\w)(?P<before>{_DE_ENDING_N}|{_DE_ENDING_E}) (?P<day>[0-9]{{1,4}})\.(?= [A-Za-zÄÖÜäöü])",
                    re.IGNORECASE), lambda match: _de_ordinal(int(match["day"]), match["before"])),
        (re.compile(rf"(?P<sign>[€$£]) ?{_AMOUNT}(?![\w])"), _german_quantity),
        (re.compile(rf"{_NOT_WITHIN}{_AMOUNT} ?(?P<sign>{units})(?!\w)"), _german_quantity),
    )  # fmt: skip


def _de_ordinal(number: int, before: str | None) -> str:
    words = number_words(number, "de", "ordinal")
    if before is None:
        return f"{words}r"
    lower = before.lower()
    return f"{before} {words}{'n' if lower in _DE_ENDING_N.split('|') else ''}"


def _german_date(match: re.Match[str]) -> str | None:
    day, month, year = int(match["day"]), match["month"], match.groupdict().get("year")
    if month.isdigit():
        number = int(month) - 1
    else:
        names = [name.lower() for name in _DE_MONTHS]
        short = {name.lower(): number for name, number in _DE_SHORT.items()}
        number = names.index(month.lower()) if month.lower() in names else short[month.lower()]
    if not (1 <= day <= 31 and 0 <= number < 12):
        return None
    said = f"{_de_ordinal(day, match['before'])} {_DE_MONTHS[number]}"
    return f"{said} {number_words(int(year), 'de', 'year')}" if year else said


def _german_time(match: re.Match[str]) -> str | None:
    hour, minute = int(match["hour"]), int(match["minute"] or 0)
    if hour > 24 or minute > 59:
        return None
    said = f"{'ein' if hour == 1 else number_words(hour, 'de')} Uhr"
    return f"{said} {number_words(minute, 'de')}" if minute else said


def _german_quantity(match: re.Match[str]) -> str | None:
    unit, fraction = _DE_UNITS[match["sign"]], match["fraction"]
    value = int(match["amount"].replace(".", ""))
    whole = "ein" if value == 1 else number_words(value, "de")
    if fraction is None:
        return _DE_ONE.get(unit, f"ein {unit}") if value == 1 else f"{whole} {unit}"
    if unit in _DE_MONEY and len(fraction) == 2:
        return f"{whole} {unit} {number_words(int(fraction), 'de')}" if int(fraction) else f"{whole} {unit}"
    digits = " ".join(number_words(int(digit), "de") for digit in fraction)
    return f"{number_words(value, 'de')} Komma {digits} {unit}"
