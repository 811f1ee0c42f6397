"""Ordinals, dates, years and percentages of languages that inflect numbers: Slavic languages, Finnish, Hungarian.

A number is read where the ending that is written on it, or the words beside it, leave one form. All others that need a
form are `unread`: no cardinal is put in their place. num2words has all cases of Russian and Finnish ordinals, the
nominative in Polish, Ukrainian, Belarusian, Slovene and Hungarian, and no ordinals in Czech, Slovak and Serbian, whose
days of the month are written here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache

from nemo_asr.run.text.numbers import number_words

Say = Callable[[re.Match[str]], "str | None"]
Rule = tuple[re.Pattern[str], Say]

_MONTHS = {  # as they stand behind a day
    "ru": "января|февраля|марта|апреля|мая|июня|июля|августа|сентября|октября|ноября|декабря",
    "uk": "січня|лютого|березня|квітня|травня|червня|липня|серпня|вересня|жовтня|листопада|грудня",
    "be": "студзеня|лютага|сакавіка|красавіка|мая|траўня|чэрвеня|ліпеня|жніўня|верасня|кастрычніка|лістапада|снежня",
    "pl": "stycznia|lutego|marca|kwietnia|maja|czerwca|lipca|sierpnia|września|października|listopada|grudnia",
    "cs": "ledna|února|března|dubna|května|června|července|srpna|září|října|listopadu|prosince",
    "sk": "januára|februára|marca|apríla|mája|júna|júla|augusta|septembra|októbra|novembra|decembra",
    "sl": "januarja|februarja|marca|aprila|maja|junija|julija|avgusta|septembra|oktobra|novembra|decembra",
    "sr": "januara|februara|marta|aprila|maja|juna|jula|avgusta|septembra|oktobra|novembra|decembra",
    "fi": "(?:tammi|helmi|maalis|huhti|touko|kesä|heinä|elo|syys|loka|marras|joulu)kuuta",
    "hu": "január|február|március|április|május|június|július|augusztus|szeptember|október|november|december",
}
# Ordinals have a point here, days of the month too but in Polish. Elsewhere an ending shows them.
_WITH_POINT = frozenset({"pl", "cs", "sk", "sl", "sr", "fi", "hu", "is", "lv", "lt"})
_LOWER = "".join(chr(code) for code in range(ord("a"), 0x530) if chr(code).islower())
_NOT_WITHIN = r"(?<![\w.,/:-])"


def inflected_rules(language: str) -> Iterator[Rule]:
    """The rules of a language, in their order; none of languages of other kinds."""
    months = f"(?:{_MONTHS.get(language, '')})(?!\\w)"
    if language in _YEARS:
        nouns = "|".join(_YEARS[language])
        yield _rule(rf"(?P<number>[12][0-9]{{3}})(?= (?P<noun>{nouns})(?!\w))"), lambda match: _year(match, language)
    if language in _DAYS or language in _GENITIVES or language == "ru":
        point = "" if language in ("ru", "uk", "be", "pl") else r"\."
        yield _rule(rf"(?P<number>[0-9]{{1,2}}){point}(?= {months})"), lambda match: _day(match, language)
    if language in _PERCENT:
        yield _rule(r"(?P<number>[0-9]{1,12}) ?%(?!\w)"), lambda match: _percent(match, language)
    if language == "ru":
        yield _rule(r"(?P<number>[0-9]{1,4})-(?P<ending>[а-яё]{1,3})(?!\w)"), _russian_ending
    if language == "fi":
        yield _rule(rf"(?P<number>[0-9]{{1,2}})\.(?= {months})"), lambda match: _ordinal(match, "fi")
        yield _rule(r"(?P<number>[0-9]{1,4}):(?P<ending>[a-zäö]{1,8})(?!\w)"), _finnish_ending
    if language == "hu":
        yield (
            _rule(rf"(?P<number>[12][0-9]{{3}})\.(?= {months})"),
            lambda match: number_words(int(match["number"]), "hu"),
        )
        yield re.compile(rf"(?<!\w)(?P<month>{months}) (?P<number>[0-9]{{1,2}})\.(?! ?[{_LOWER}0-9])"), _hungarian_date
        yield _rule(r"(?P<number>[0-9]{1,12})-(?P<ending>[a-záéíóöőúüű]{1,5})(?!\w)"), _hungarian_ending
        yield _rule(rf"(?P<number>[0-9]{{1,3}})\.(?= [{_LOWER}])"), _hungarian_ordinal


@lru_cache(maxsize=8)
def unread(language: str) -> re.Pattern[str] | None:
    """Numbers, in a group, that would be read wrong as cardinals; None where a language has none.

    That is a number with an ending or a word on it (``5-летний``, ``2024:ssä``), one with a point before a word in
    lower case (``21. století``; a sentence begins with a capital), a day before its month, a year before its noun, and
    a date of numbers alone.
    """
    if language not in _WITH_POINT and language not in _MONTHS:
        return None
    kinds = [r"[0-9]+[-:](?=[^\W\d_])", r"[0-9]{1,4}\. ?[0-9]{1,2}\.(?: ?[0-9]{1,4})?\.?"]
    if language in _WITH_POINT:
        kinds.append(rf"[0-9]{{1,4}}\.(?= [{_LOWER}])")
    if language in _MONTHS:
        kinds.append(rf"[0-9]{{1,2}}(?= (?:{_MONTHS[language]})(?!\w))")
    if language in _YEARS:
        kinds.append(rf"[12][0-9]{{3}}(?= ?(?:(?:{'|'.join(_YEARS[language])})(?!\w)|[гр]\.|r\.))")
    return re.compile(rf"{_NOT_WITHIN}({'|'.join(kinds)})")


def _rule(pattern: str) -> re.Pattern[str]:
    return re.compile(_NOT_WITHIN + pattern)


def _word_before(match: re.Match[str]) -> str:
    """The word before a number, in lower case; "" where a mark or nothing stands there."""
    word = re.search(r"(?<!\w)([^\W\d_]+) $", match.string[max(0, match.start() - 30) : match.start()])
    return word[1].lower() if word else ""


def _word_after(match: re.Match[str]) -> str:
    word = re.match(r" ([^\W\d_]+)", match.string[match.end() : match.end() + 40])
    return word[1].lower() if word else ""


def _ordinal(match: re.Match[str], language: str) -> str:
    return number_words(int(match["number"]), language, "ordinal")


# Days and years: ordinals in the genitive, and in the locative behind prepositions.


_DAYS = {  # genitives of 1 to 19, 20, 30
    "cs": "prvního druhého třetího čtvrtého pátého šestého sedmého osmého devátého desátého jedenáctého dvanáctého "
    "třináctého čtrnáctého patnáctého šestnáctého sedmnáctého osmnáctého devatenáctého dvacátého třicátého",
    "sk": "prvého druhého tretieho štvrtého piateho šiesteho siedmeho ôsmeho deviateho desiateho jedenásteho "
    "dvanásteho trinásteho štrnásteho pätnásteho šestnásteho sedemnásteho osemnásteho devätnásteho dvadsiateho "
    "tridsiateho",
    "sr": "prvog drugog trećeg četvrtog petog šestog sedmog osmog devetog desetog jedanaestog dvanaestog trinaestog "
    "četrnaestog petnaestog šesnaestog sedamnaestog osamnaestog devetnaestog dvadesetog tridesetog",
}
# Endings of nominatives, and what is in their place.
_GENITIVES = {
    "pl": {"y": "ego", "i": "iego"},
    "uk": {"ій": "ього", "ий": "ого"},
    "be": {"трэці": "трэцяга", "другі": "другога", "ы": "ага"},
    "sl": {"i": "ega"},
}
_LOCATIVES = {"pl": {"y": "ym", "i": "im"}, "uk": {"ій": "ьому", "ий": "ому"}}
# The case of a year by the noun behind it; "roku" and "году" are of two cases.
_YEARS = {
    "ru": {"год": "n", "года": "g", "году": "p", "годом": "i"},
    "uk": {"року": "g", "році": "p"},
    "pl": {"roku": "g"},
}
_OTHER_YEARS = {"ru": ({"к", "ко", "по"}, "d"), "pl": ({"w", "we", "po", "o", "przy"}, "p")}
# Before a date in another case than the genitive; that of a Russian date that is the subject is known.
_OTHER_DATES = {
    "ru": frozenset(["к", "ко", "между", "перед"]),
    "uk": frozenset(["на", "по", "за", "між", "перед", "сьогодні", "завтра", "вчора", "це"]),
    "be": frozenset(["на", "па", "за", "між", "перад", "сёння", "заўтра", "ўчора", "гэта"]),
    "pl": frozenset(["na", "po", "za", "między", "przed", "ku", "jest", "dziś", "dzisiaj", "jutro", "wczoraj", "to"]),
    "cs": frozenset(["na", "po", "k", "ke", "mezi", "před", "je", "dnes", "zítra", "včera", "to"]),
    "sk": frozenset(["na", "po", "k", "ku", "medzi", "pred", "je", "dnes", "zajtra", "včera", "to"]),
    "sl": frozenset(["na", "po", "k", "med", "pred", "je", "danes", "jutri", "včeraj", "to"]),
    "sr": frozenset(["na", "po", "ka", "pred", "između", "je", "danas", "sutra", "juče", "to"]),
}
_NEUTER_DATES = frozenset(["на", "по", "за", "сегодня", "завтра", "вчера", "это"])


def _day(match: re.Match[str], language: str) -> str | None:
    day, before = int(match["number"]), _word_before(match)
    if not 1 <= day <= 31 or before in _OTHER_DATES[language]:
        return None
    if language == "ru":
        case = "n" if before in _NEUTER_DATES else "g"
        return number_words(day, "ru", "ordinal", case=case, gender="n")
    if language not in _DAYS:
        return _changed(number_words(day, language, "ordinal"), _GENITIVES[language])
    words = _DAYS[language].split()
    tens, ones = divmod(day, 10)
    if day < 20 or not ones:
        return words[day - 1] if day < 20 else words[17 + tens]
    first = words[17 + tens].removesuffix("og") if language == "sr" else words[17 + tens]
    return f"{first} {words[ones - 1]}"


def _year(match: re.Match[str], language: str) -> str:
    case, year = _YEARS[language][match["noun"]], int(match["number"])
    prepositions, other_case = _OTHER_YEARS.get(language, (set(), ""))
    if match["noun"] in ("году", "roku") and _word_before(match) in prepositions:
        case = other_case
    if language == "ru":
        return number_words(year, "ru", "ordinal", case=case, animate=False)
    endings = _GENITIVES if case == "g" else _LOCATIVES
    return _changed(number_words(year, language, "ordinal"), endings[language])


def _changed(words: str, endings: dict[str, str]) -> str:
    """Words with other endings; those of parts that are no ordinals are none of these."""
    changed = []
    for word in words.split():
        ending = next((ending for ending in endings if word.endswith(ending)), "")
        changed.append(word.removesuffix(ending) + endings.get(ending, ""))
    return " ".join(changed)


# Percentages. Where 1, 2 or all below 5 have another gender than num2words gives, these are not read.


_PERCENT = {
    "ru": ("процент", "процента", "процентов"),
    "uk": ("відсоток", "відсотки", "відсотків"),
    "be": ("працэнт", "працэнты", "працэнтаў"),
    "pl": ("procent", "procent", "procent"),
    "sr": ("posto", "posto", "posto"),
    "cs": ("", "", "procent"),
    "sk": ("", "", "percent"),
    "sl": ("", "", "odstotkov"),
}


def _percent(match: re.Match[str], language: str) -> str | None:
    number = int(match["number"])
    is_east_slavic = language in ("ru", "uk", "be")
    few, teens = number % 100 if not is_east_slavic else number % 10, 10 < number % 100 < 20
    one, some, many = _PERCENT[language]
    word = many if teens or not 1 <= few <= 4 else one if few == 1 else some
    return f"{match['number']} {word}" if word else None


# Endings that are written on a number, as in Finnish "5:nnen" and Hungarian "5-ben".


_FEMININE_NOUN, _MASCULINE_NOUN = re.compile("(?:[еиыю]|[ое]й)$"), re.compile("(?:[^аеёиоуыэюяй]|[аиы]й)$")
_LOCATIVE = frozenset(["в", "во", "на", "о", "об", "при"])
_INSTRUMENTAL = frozenset(["с", "со", "над", "под", "перед", "между", "за"])
_PREPOSITIONS = (
    _LOCATIVE
    | _INSTRUMENTAL
    | {
        *("к", "ко", "по", "из", "от", "до", "для", "у", "около", "после", "без"),
    }
)


def _russian_ending(match: re.Match[str]) -> str | None:
    number, ending = int(match["number"]), match["ending"]
    if ending == "ти":
        cardinal = number_words(number, "ru", case="g")
        return cardinal if cardinal.endswith("ти") else None
    if ending in ("х", "ми") and (number < 20 or number % 10):
        return None  # a cardinal may be meant as well
    forms = {form for form in _russian_ordinals(number) if form.endswith(ending)}
    wanted = _shown_ending(ending, _word_before(match), _word_after(match)) if len(forms) > 1 else ""
    fitting = [form for form in forms if form.endswith(wanted)]
    return fitting[0] if len(fitting) == 1 else None


@lru_cache(maxsize=1024)
def _russian_ordinals(number: int) -> frozenset[str]:
    forms = set()
    for case in "ngdaip":
        forms.add(number_words(number, "ru", "ordinal", case=case, plural=True))
        forms.update(number_words(number, "ru", "ordinal", case=case, gender=gender) for gender in "mfn")
    return frozenset(forms)


def _shown_ending(ending: str, before: str, after: str) -> str | tuple[str, ...]:
    """The whole ending that the words beside a number show."""
    if ending == "й":
        if before in _PREPOSITIONS and _FEMININE_NOUN.search(after):
            return ("ой", "ей")
        return ("ый", "ий") if len(after) > 2 and _MASCULINE_NOUN.search(after) else ""
    if ending == "м":
        return ("ом", "ем") if before in _LOCATIVE else ("ым", "им") if before in _INSTRUMENTAL else ""
    if ending == "е":
        is_neuter = after in ("место", "число") or after in _MONTHS["ru"].split("|")
        return ("ое", "ье") if is_neuter else ("ые", "ьи") if after == "годы" else ""
    return ""


_FINNISH_CASES = ("nominative", "genitive", "partitive", "inessive", "elative", "illative", "adessive", "ablative",
                  "allative", "essive", "translative")  # fmt: skip


def _finnish_ending(match: re.Match[str]) -> str | None:
    number, ending = int(match["number"]), match["ending"]
    is_ordinal = re.match("s$|nn|nt|tt|nsi", ending) is not None
    for case in _FINNISH_CASES:
        words = number_words(number, "fi", "ordinal" if is_ordinal else "cardinal", case=case)
        if words.endswith(ending):
            return words
    return None


# Endings before which a numeral is as it is alone.
_HUNGARIAN_CASES = frozenset(
    {
        *("ban", "ben", "ba", "be", "ból", "ből", "tól", "től", "ról", "ről", "ra", "re", "nál", "nél"),
        *("hoz", "hez", "höz", "nak", "nek", "ig", "kor", "ként"),
    }
)
_HUNGARIAN_DAY = re.compile("j?(?:a|e|án|én|ára|ére|ától|étől|áig|éig)")


def _hungarian_ending(match: re.Match[str]) -> str | None:
    number, ending = int(match["number"]), match["ending"]
    if ending in _HUNGARIAN_CASES and number and not _follows_month(match):
        return f"{number_words(number, 'hu')}{ending}"
    if _HUNGARIAN_DAY.fullmatch(ending) and 1 <= number <= 31 and (ending[-1] == "n" or _follows_month(match)):
        return f"elsej{ending.removeprefix('j')}" if number == 1 else f"{_ordinal(match, 'hu')}{ending}"
    return None


def _follows_month(match: re.Match[str]) -> bool:
    return _word_before(match) in _MONTHS["hu"].split("|")


def _hungarian_date(match: re.Match[str]) -> str | None:
    words = _ordinal(match, "hu")
    if not 1 <= int(match["number"]) <= 31:
        return None
    day = "elseje" if words == "első" else f"{words}{'a' if words.endswith(('adik', 'odik')) else 'e'}"
    return f"{match['month']} {day}"


def _hungarian_ordinal(match: re.Match[str]) -> str | None:
    is_day = _follows_month(match) or _word_after(match) in ("között", "közötti", "után", "előtt", "óta", "körül")
    return None if is_day else _ordinal(match, "hu")
