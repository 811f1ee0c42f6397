"""The languages of texts: their codes, and which one the script of the labels tells. No text is read here."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from nemo_asr.run.text.forms import folded
from nemo_asr.run.text.labels import characters_of, is_mark
from nemo_lite.base.errors import UnknownNameError, UsageError

NO_LANGUAGE = "none"
# Those of num2words, a test compares them, and Chinese.
LANGUAGES = (
    *("am", "ar", "az", "be", "bn", "ca", "ce", "cs", "cy", "da", "de", "en", "eo", "es", "fa", "fi", "fr", "he", "hu"),
    *("id", "is", "it", "ja", "kn", "ko", "kz", "lt", "lv", "nl", "no", "pl", "pt", "ro", "ru", "sk", "sl", "sr", "sv"),
    *("te", "tet", "tg", "th", "tr", "uk", "vi", "zh"),
)
# Codes of ISO 639 for what num2words names otherwise.
_SAME = {"kk": "kz", "nb": "no", "nn": "no", "iw": "he", "cmn": "zh"}
_NAMES = """
    am amharic, ar arabic, az azerbaijani, be belarusian, bn bengali, ca catalan, ce chechen, cs czech, cy welsh,
    da danish, de german, en english, eo esperanto, es spanish, fa persian, fi finnish, fr french, he hebrew,
    hu hungarian, id indonesian, is icelandic, it italian, ja japanese, kn kannada, ko korean, kz kazakh,
    lt lithuanian, lv latvian, nl dutch, no norwegian, pl polish, pt portuguese, ro romanian, ru russian, sk slovak,
    sl slovenian, sr serbian, sv swedish, te telugu, tet tetum, tg tajik, th thai, tr turkish, uk ukrainian,
    vi vietnamese, zh chinese, zh mandarin
"""
_SAME |= {name: code for code, name in (each.split() for each in _NAMES.split(","))}
# Scripts that one language of the list is written in. Cyrillic, Arabic and Latin letters tell none; of Latin ones a to
# z without accents are taken as English.
_SCRIPTS = {
    "HANGUL": "ko",
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "KATAKANA-HIRAGANA": "ja",
    "THAI": "th",
    "HEBREW": "he",
    "TELUGU": "te",
    "KANNADA": "kn",
    "CJK": "zh",
}


def language_code(language: str) -> str:
    """The code of a language in ``LANGUAGES``, or ``none``; ``de-AT``, ``DE`` and ``German`` are ``de``.

    Raises:
        UsageError: it is not text.
        UnknownNameError: there is no such language.
    """
    if not isinstance(language, str):
        raise UsageError("the language is not text", place="language", got=repr(language), wanted='a code such as "de"')
    code = language.lower().replace("_", "-").split("-")[0]
    code = _SAME.get(code, code)
    if code not in LANGUAGES and code != NO_LANGUAGE:
        raise UnknownNameError("language", language, (NO_LANGUAGE, *LANGUAGES))
    return code


def language_of(labels: Iterable[str]) -> str:
    """The language that the labels' letters tell, or ``none``.

    Letters of a to z alone are English. Kana, Hangul, Thai, Hebrew, Telugu, Kannada and, without kana, Han tell theirs,
    also where Latin letters are among them.
    """
    letters = [c for c in map(folded, characters_of(labels)) if c.isalpha() or is_mark(c)]
    if letters and all(c.isascii() for c in letters):
        return "en"
    scripts = {unicodedata.name(c, "").split(" ")[0] for c in letters if not c.isascii()}
    languages = {_SCRIPTS.get(script, NO_LANGUAGE) for script in scripts - {"COMBINING", "IDEOGRAPHIC"}}
    if languages == {"ja", "zh"}:
        return "ja"
    return languages.pop() if len(languages) == 1 else NO_LANGUAGE
