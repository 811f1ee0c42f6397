"""Abbreviations, titles, streets and Roman numerals as English words. What they mean is told by their neighbours."""

from __future__ import annotations

import re

from nemo_asr.run.text.english_dates import SHORT_MONTHS, month_name
from nemo_asr.run.text.english_numbers import Rule, cardinal, ordinal, rule, word_table

# With a point behind them, whatever stands beside them.
_ABBREVIATIONS = word_table(
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
_TITLES = word_table(
    """
    gov: governor, sen: senator, rep: representative, pres: president, pvt: private, adm: admiral,
    supt: superintendent, ln: lane
    """
)
# Before a number only.
_NUMBERED = word_table(
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
    rule(rf"\b({SHORT_MONTHS.title()})\.(?=\s|$|,)", lambda m: month_name(m[1]), with_case=True),
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
