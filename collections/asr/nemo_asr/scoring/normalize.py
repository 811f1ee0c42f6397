"""Score normalisers: references and hypotheses in one form before they are compared. No texts of training in here.

A parser (`nemo_asr.text`) makes targets that a model can write. A score normaliser decides which differences between
two finished texts are errors; it changes both sides alike, and no model learns from it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from nemo_asr.run.text.english import normalize_english
from nemo_asr.run.text.forms import APOSTROPHES, Forms
from nemo_asr.run.text.labels import SCORE_NORMALIZERS
from nemo_asr.scoring.leaderboard import PREFIX, load_leaderboard
from nemo_lite.base.errors import UnknownNameError

Normalizer: TypeAlias = Callable[[str], str]

# Languages whose small i without a dot is another letter than the one with it.
_DOTLESS = frozenset({"tr", "az"})
# Any script: apostrophes within words stay, all other punctuation becomes a space.
_FORMS = Forms(" '", strip_marks=True, are_known=False)
# Vietnamese has two usual places for the mark of a tone on oa, oe, uy at the end of a syllable: hòa, hoà. Here the
# first vowel has it; the u of qu is none.
_TONE_MARKS = "\u0300\u0301\u0303\u0309\u0323"
_SECOND_VOWEL_MARKED = re.compile(
    f"(?<=o)([ae])([{_TONE_MARKS}])(?![^\\W_])|(?<=u)(?<!qu)(y)([{_TONE_MARKS}])(?![^\\W_])"
)
_WORD_LABEL = re.compile(r"(?<!\S)(<[^\s<>]+>|\[[^\s\[\]]+\])(?!\S)")


def score_normalizer(name: str, language: str = "none") -> Normalizer:
    """The function from a text to the text that is scored.

    Args:
        name: ``none``: texts as written (Unicode NFC), words apart by white space. ``basic``: any language, without
            case, punctuation, widths, ligatures and vowel marks of Arabic and Hebrew. ``english``: as ``basic``, and
            numbers, abbreviations, symbols as English words. ``whisper-like``: English as the normaliser published with
            Whisper leaves it: numbers as digits, contractions written out, American spelling, no fillers, nothing in
            brackets. ``leaderboard:FOLDER``: by a checkout of the public leaderboard's repository.
        language: of the texts, for ``basic``: the case of Turkish, the places of tone marks of Vietnamese.

    Raises:
        UnknownNameError: there is no such normaliser.
        UsageError: the folder is no such checkout, or what it needs is not installed.
    """
    if name.startswith(PREFIX):
        return load_leaderboard(name.removeprefix(PREFIX)).normalize
    if name not in SCORE_NORMALIZERS:
        raise UnknownNameError("score normaliser", name, SCORE_NORMALIZERS)
    of_name: dict[str, Normalizer] = {
        "none": lambda text: _single_spaces(unicodedata.normalize("NFC", text)),
        "basic": partial(basic, language=language),
        "english": _english,
        "whisper-like": whisper_like,
    }
    return of_name[name]


def _single_spaces(text: str) -> str:
    return " ".join(text.split())


def without_case(text: str, language: str = "none") -> str:
    """``text`` in lower case; of Turkish and Azerbaijani, ``I`` is the capital of the dotless letter."""
    if language in _DOTLESS:
        text = text.replace("I", "\u0131")
    return unicodedata.normalize("NFC", text.replace("\u0130", "i").lower())


def without_punctuation(text: str) -> str:
    """``text`` without punctuation, but for apostrophes within words; signs that are read aloud stay, as words."""
    pieces = _WORD_LABEL.split(text)  # odd pieces are labels such as <noise>
    words = [word for i, piece in enumerate(pieces) for word in ([piece] if i % 2 else _FORMS.punctuate(piece).split())]
    return " ".join(word for word in words if word.strip(APOSTROPHES))


def basic(text: str, language: str = "none") -> str:
    """``text`` of any language in one form: see `score_normalizer`. No letter becomes one of another word."""
    text = unicodedata.normalize("NFC", _FORMS.unify(unicodedata.normalize("NFC", text)))
    # Soft hyphens, byte order marks, joiners: they are not seen.
    visible = text if text.isascii() else "".join(c for c in text if unicodedata.category(c) != "Cf")
    visible = without_case(visible, language)
    if language == "vi":
        visible = _with_tones_on_first_vowels(visible)
    # Apostrophes at the ends of words are mostly quotation marks.
    return " ".join(word.strip(APOSTROPHES) for word in without_punctuation(visible).split())


def _with_tones_on_first_vowels(text: str) -> str:
    return unicodedata.normalize("NFC", _SECOND_VOWEL_MARKED.sub(_moved, unicodedata.normalize("NFD", text)))


def _moved(match: re.Match[str]) -> str:
    vowel, tone = match[1] or match[3], match[2] or match[4]
    return tone + vowel


def _english(text: str) -> str:
    return normalize_english(_FORMS.unify(text))


# Whisper's English, rule by rule (A. Radford et al., "Robust speech recognition via large-scale weak supervision",
# 2022, appendix C). The rules are ours: tests hold phrases of which the published normaliser gives the same.


_BRACKETED = ((re.compile(r"[<\[][^>\]]*[>\]]"), ">]"), (re.compile(r"\([^)]+\)"), ")"))  # each with its ends
_FILLERS = re.compile(r"\b(?:hmm|mm|mhm|mmm|uh|um)\b")
_CONTRACTIONS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"\bwon't\b", "will not"),
        (r"\bcan't\b", "can not"),
        (r"\blet's\b", "let us"),
        (r"\bain't\b", "aint"),
        (r"\by'all\b", "you all"),
        (r"\bwanna\b", "want to"),
        (r"\bgotta\b", "got to"),
        (r"\bgonna\b", "going to"),
        (r"\bi'ma\b", "i am going to"),
        (r"\bimma\b", "i am going to"),
        (r"\bwoulda\b", "would have"),
        (r"\bcoulda\b", "could have"),
        (r"\bshoulda\b", "should have"),
        (r"\bma'am\b", "madam"),
        (r"\bmr\b", "mister"),
        (r"\bmrs\b", "missus"),
        (r"\bst\b", "saint"),
        (r"\bdr\b", "doctor"),
        (r"\bprof\b", "professor"),
        (r"\bcapt\b", "captain"),
        (r"\bgov\b", "governor"),
        (r"\bald\b", "alderman"),
        (r"\bgen\b", "general"),
        (r"\bsen\b", "senator"),
        (r"\brep\b", "representative"),
        (r"\bpres\b", "president"),
        (r"\brev\b", "reverend"),
        (r"\bhon\b", "honorable"),
        (r"\basst\b", "assistant"),
        (r"\bassoc\b", "associate"),
        (r"\blt\b", "lieutenant"),
        (r"\bcol\b", "colonel"),
        (r"\bjr\b", "junior"),
        (r"\bsr\b", "senior"),
        (r"\besq\b", "esquire"),
        (r"'d been\b", " had been"),
        (r"'s been\b", " has been"),
        (r"'d gone\b", " had gone"),
        (r"'s gone\b", " has gone"),
        (r"'d done\b", " had done"),
        (r"'s got\b", " has got"),
        (r"n't\b", " not"),
        (r"'re\b", " are"),
        (r"'s\b", " is"),
        (r"'d\b", " would"),
        (r"'ll\b", " will"),
        (r"'t\b", " not"),
        (r"'ve\b", " have"),
        (r"'m\b", " am"),
    )
)
_NUMERIC_SIGNS = ".%$\u00a2\u20ac\u00a3"
# Letters that NFKD does not take apart.
_LETTERS = str.maketrans(
    {"\u0153": "oe", "\u00f8": "o", "\u00e6": "ae", "\u00df": "ss", "\u0111": "d", "\u00f0": "d", "\u00fe": "th",
     "\u0142": "l"}
)  # fmt: skip


def whisper_like(text: str) -> str:
    """English ``text`` as `score_normalizer` says of ``whisper-like``."""
    text = text.lower()
    for pattern, ends in _BRACKETED:
        end = max(map(text.rfind, ends)) + 1  # from a bracket behind it all the rest would be searched for an end
        text = pattern.sub("", text[:end]) + text[end:]
    text = re.sub("[\u2018\u2019\u02bc]", "'", text)
    text = re.sub(r"(?<!\s)\s+'", "'", _FILLERS.sub("", text))
    for pattern, words in _CONTRACTIONS:
        text = pattern.sub(words, text)
    text = re.sub(r"(\d),(?=\d)", r"\1", text)
    text = re.sub(r"\.(?!\d)", " ", text)
    text = "".join(map(_plain, unicodedata.normalize("NFKD", text.translate(_LETTERS))))
    text = " ".join(american(word) for word in digits_for_words(text).split())
    # Signs that belong to no number.
    text = re.sub(r"[.$\u00a2\u20ac\u00a3](?!\d)", " ", text)
    return _single_spaces(re.sub(r"(?<!\d)%", " ", text))


def _plain(character: str) -> str:
    kind = unicodedata.category(character)
    if character in _NUMERIC_SIGNS or kind[0] not in "MSP":
        return character
    return "" if kind == "Mn" else " "


_FROM_ONE = (
    *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen"),
    *("fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_FROM_TWENTY = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ONES = {word: value for value, word in enumerate(_FROM_ONE, start=1)}
_TENS = {word: 10 * value for value, word in enumerate(_FROM_TWENTY, start=2)}
_POWERS = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_ZEROS = ("zero", "oh", "o")
_REPEATS = {"double": 2, "triple": 3}
_SMALL_ORDINALS = {
    "first": 1, "second": 2, "third": 3, "fifth": 5, "eighth": 8, "ninth": 9, "twelfth": 12,
    **{f"{word}th": value for word, value in _ONES.items() if word not in
       ("one", "two", "three", "five", "eight", "nine", "twelve")},
}  # fmt: skip
_TENTHS = {f"{word.removesuffix('y')}ieth": value for word, value in _TENS.items()}
_NUMERAL = re.compile(r"[0-9]+(?:\.[0-9]+)?")
# The sign that a word behind a number becomes, and where it stands.
_SIGN_BEFORE = {
    "dollar": "$", "dollars": "$", "euro": "\u20ac", "euros": "\u20ac", "pound": "\u00a3", "pounds": "\u00a3",
    "cent": "\u00a2", "cents": "\u00a2",
}  # fmt: skip


_SIGNED = re.compile(rf"([$\u20ac\u00a3])([0-9]+(?:\.[0-9]+)?) ({'|'.join(_POWERS)})\b")


def digits_for_words(text: str) -> str:
    """English numbers in words as digits: ``twenty five dollars`` is ``$25``, ``nineteen ninety nine`` ``1999``.

    A one alone stays a word, as it mostly is a pronoun or an article.
    """
    text = re.sub(r"\bper cent\b", "percent", text)
    text = re.sub(r"\band a half\b", "point five", text)
    text = re.sub(r"([a-z])([0-9])", r"\1 \2", text)
    text = re.sub(r"([0-9])(?!(?:st|nd|rd|th|s)\b)([a-z])", r"\1 \2", text)
    text = _SIGNED.sub(lambda match: f"{match[1]}{_product(match[2], _POWERS[match[3]])}", text)
    words, out, place = text.split(), [], 0
    while place < len(words):
        numeral, after = _number_at(words, place)
        if not numeral:
            out.append(words[place])
            place += 1
            continue
        unit = words[after] if after < len(words) else ""
        if numeral[-1].isdigit() and unit == "percent":
            numeral, after = f"{numeral}%", after + 1
        elif numeral[-1].isdigit() and unit in _SIGN_BEFORE:
            numeral, after = f"{_SIGN_BEFORE[unit]}{numeral}", after + 1
        out.append(numeral)
        place = after
    joined = re.sub(r"([\u20ac\u00a3$][0-9]+) (?:and )?\u00a2([0-9]{1,2})\b", _with_cents, " ".join(out))
    joined = re.sub(r"[\u20ac\u00a3$]0\.([0-9]{1,2})\b", lambda match: f"\u00a2{int(match[1])}", joined)
    return re.sub(r"\b1(s?)\b(?![.%])(?<![.$\u20ac\u00a3\u00a2]1)", r"one\1", joined)


def _with_cents(match: re.Match[str]) -> str:
    return f"{match[1]}.{int(match[2]):02d}"


def _number_at(words: list[str], place: int) -> tuple[str, int]:
    """The number that begins at a word, in digits, and the place behind it; an empty text where none begins."""
    start, numeral = place, ""
    while place < len(words):
        word = words[place]
        if word in _ZEROS and (word == "zero" or numeral or _begins_number(words, place + 1)):
            numeral, place = f"{numeral}0", place + 1
            continue
        if word in _REPEATS and (digit := _digit(words, place + 1)):
            numeral, place = numeral + digit * _REPEATS[word], place + 2
            continue
        value, after, ending = _cardinal_at(words, place)
        if after == place or (numeral and _NUMERAL.fullmatch(word)):
            break
        numeral, place = f"{numeral}{value}{ending}", after
        if ending or _NUMERAL.fullmatch(words[after - 1]):
            return numeral, place
    if place == start:
        return "", start
    return _with_decimals(words, place, numeral)


def _with_decimals(words: list[str], place: int, numeral: str) -> tuple[str, int]:
    if place < len(words) and words[place] == "point":
        decimals, after = "", place + 1
        while digit := _digit(words, after):
            decimals, after = decimals + digit, after + 1
        if decimals:
            numeral, place = f"{numeral}.{decimals}", after
            if place < len(words) and words[place] in _POWERS:
                return _product(numeral, _POWERS[words[place]]), place + 1
    return numeral, place


def _product(numeral: str, power: int) -> str:
    """Exact: ``2.5`` times a million is ``2500000``."""
    whole, _, decimals = numeral.partition(".")
    value = int(whole + decimals) * power
    scale = 10 ** len(decimals)
    quotient, rest = divmod(value, scale)
    return f"{quotient}.{str(rest).zfill(len(decimals)).rstrip('0')}" if rest else str(quotient)


def _digit(words: list[str], place: int) -> str:
    word = words[place] if place < len(words) else ""
    value = _ONES.get(word, 10)
    return "0" if word in _ZEROS else str(value) if value < 10 else word if re.fullmatch("[0-9]", word) else ""


def _begins_number(words: list[str], place: int) -> bool:
    word = words[place] if place < len(words) else ""
    return word in _ONES or word in _TENS or word in _ZEROS


def _cardinal_at(words: list[str], place: int) -> tuple[str, int, str]:
    """A cardinal or ordinal in digits, the place behind it, and the ending of an ordinal or a plural."""
    word = words[place]
    if _NUMERAL.fullmatch(word):
        after = place + 1
        while after < len(words) and words[after] in _POWERS:
            word, after = _product(word, _POWERS[words[after]]), after + 1
        return word, after, ""
    total, group, after, last = 0, None, place, 10**15
    while after < len(words):
        word = words[after]
        joined = after + 1 if group is not None or total else after
        if word == "and" and joined > after and (total or (group or 0) >= 100) and joined < len(words):
            part = _below_100(words, joined)
            if part[1] == joined or (group or 0) % 100:
                break
            after = joined
            continue
        power = re.sub("(?:th|s)$", "", word)
        ending = word[len(power) :]
        if power == "hundred" and (group is None or 0 < group < 100):
            group, after = (group or 1) * 100, after + 1
        elif power in _POWERS and _POWERS[power] < last and (group or not total):
            total, group, last, after = total + (group or 1) * _POWERS[power], None, _POWERS[power], after + 1
        else:
            power = ""
        if power and ending:
            return str(total + (group or 0)), after, ending
        if power:
            continue
        if group is not None and group % 100:
            break
        value, behind, ending = _below_100(words, after)
        if behind == after:
            break
        group, after = (group or 0) + value, behind
        if ending:
            return str(total + group), after, _ordinal_ending(total + group) if ending == "th" else ending
    found = total + (group or 0)
    return (str(found), after, "") if after > place else ("", place, "")


def _below_100(words: list[str], place: int) -> tuple[int, int, str]:
    word = words[place]
    following = words[place + 1] if place + 1 < len(words) else ""
    if word in _TENS:
        if 0 < _ONES.get(following, 10) < 10:
            return _TENS[word] + _ONES[following], place + 2, ""
        if 0 < _SMALL_ORDINALS.get(following, 10) < 10:
            return _TENS[word] + _SMALL_ORDINALS[following], place + 2, "th"
        return _TENS[word], place + 1, ""
    if word in _ONES:
        return _ONES[word], place + 1, ""
    if word in _SMALL_ORDINALS or word in _TENTHS:
        return (_SMALL_ORDINALS.get(word) or _TENTHS[word]), place + 1, "th"
    if word.endswith("ies") and f"{word[:-3]}y" in _TENS:
        return _TENS[f"{word[:-3]}y"], place + 1, "s"
    return 0, place, ""


def _ordinal_ending(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


# British spellings by their endings; the stems decide, so that "four" and "wise" stay.
_OUR_STEMS = (
    "arb|ard|arm|behavi|cand|clam|col|demean|enam|endeav|fav|ferv|flav|harb|hon|hum|lab|neighb|od|parl|ranc|rig|rum|"
    "savi|sav|splend|succ|tum|val|vap|vig"
)
_NOT_ISE = (
    "advert|adv|ar|br|chast|circumc|comprom|compr|conc|dem|desp|dev|disgu|enterpr|exc|exerc|franch|gu|improv|ju|mort|no|"
    "otherw|parad|po|prec|prem|prom|pra|prec|pr|ra|rev|r|superv|surm|surpr|telev|treat|tort|w|likew|clockw|appra|bru|cru|"
    "expert|val|porpo|turquo|rej|l|mali|chem|anywa|ro"
)
_SPELLINGS = (
    (
        re.compile(
            rf"((?:dis|un|mis|re)?(?:{_OUR_STEMS}))our(?=s|ed|ing|er|ers|ite|able|ably|ful|less|hood|ly|ist|y|$)"
        ),
        r"\1or",
    ),
    (re.compile(r"(cent|theat|lit|fib|calib|somb|lust|spect|meag|met|sab|goit)re(s?)$"), r"\1er\2"),
    (re.compile(rf"^(?!(?:{_NOT_ISE})is)([a-z]{{3,}})is(e|ed|es|er|ers|ing|ation|ations|able)$"), r"\1iz\2"),
    (re.compile(r"(anal|paral|catal)ys(e|ed|es|er|ers|ing)$"), r"\1yz\2"),
    (re.compile(r"(travel|cancel|label|model|level|signal|fuel|total|tunnel|channel|marvel|counsel|quarrel|jewel|dial|"
                r"equal|rival|shovel|pencil|pedal|panel|funnel|duel|grovel|snorkel|unravel|bevel)l(ed|ing|er|ers|ery|or|ors)$"),
     r"\1\2"),
    (re.compile(r"(dial|catal|anal|monol|epil|prol)ogue(s?)$"), r"\1og\2"),
    (re.compile(r"(def|off|pret)ence(s?)$"), r"\1ense\2"),
    (re.compile(r"^(instal|enrol|fulfil|distil|enthral)(ment|ments|s|)$"), r"\1l\2"),
)  # fmt: skip
_SPELLED = {
    "grey": "gray", "greys": "grays", "plough": "plow", "tyre": "tire", "tyres": "tires", "cheque": "check",
    "cheques": "checks", "licence": "license", "practise": "practice", "practised": "practiced",
    "practising": "practicing", "programme": "program", "programmes": "programs", "mould": "mold",
    "aluminium": "aluminum", "jewellery": "jewelry", "pyjamas": "pajamas", "sceptical": "skeptical",
    "sceptic": "skeptic", "moustache": "mustache", "storey": "story", "storeys": "stories", "ageing": "aging",
    "judgement": "judgment", "acknowledgement": "acknowledgment", "manoeuvre": "maneuver", "anaemia": "anemia",
    "anaesthetic": "anesthetic", "foetus": "fetus", "paediatric": "pediatric", "encyclopaedia": "encyclopedia",
    "mum": "mom", "cosy": "cozy", "draught": "draft", "gaol": "jail", "axe": "ax", "glamour": "glamor",
    "woollen": "woolen", "marvellous": "marvelous", "sulphur": "sulfur", "tonne": "ton", "tonnes": "tons",
}  # fmt: skip


def american(word: str) -> str:
    """The American spelling of a British word: ``colour`` is ``color``; other words stay."""
    if word in _SPELLED:
        return _SPELLED[word]
    for pattern, replacement in _SPELLINGS:
        word = pattern.sub(replacement, word)
    return word
