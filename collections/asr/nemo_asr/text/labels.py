"""Labels of a model: characters, symbols, and the language that their script tells."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from nemo_asr.text.forms import folded
from nemo_lite.errors import UnknownNameError, UsageError

# What the labels of a model say about its texts: which characters, which case, which error rate. No text is read
# here.
# Labels are characters, or pieces of words (subwords). What asks for a vocabulary takes them as a sequence in the
# order of their ids, and learns from the functions here what each writes; the CTC blank is the class behind the last
# one.


METRICS = ("wer", "cer")

# The first words of the Unicode names of letters that are written without spaces between words.
_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO", "THAI", "LAO", "KHMER", "MYANMAR")


# What SentencePiece puts before a piece with which a word begins.
WORD_MARK = "\u2581"
# A piece that writes no part of a word: <unk>, </s>, <noise>, [SPN].
_BRACKETED = re.compile(rf"{WORD_MARK}?(?:<.+>|\[.+\])")


def is_piece(label: str) -> bool:
    """Whether a label is a piece of a word with SentencePiece's mark, as Citrinet's are."""
    return WORD_MARK in label


def spelled(label: str) -> str:
    """What a label writes: a piece with which a word begins writes the space before it."""
    return label.replace(WORD_MARK, " ")


def has_words(labels: Iterable[str]) -> bool:
    """Whether the labels can write a space: alone, or as the beginning of a piece."""
    return any(spelled(label).startswith(" ") for label in labels)


def characters_of(labels: Iterable[str]) -> Iterator[str]:
    """The characters that the labels write, repeated where several labels have them; without those of whole words.

    A whole word is a label such as ``<noise>``; among pieces, one in brackets.
    """
    labels = list(labels)
    if any(map(is_piece, labels)):
        parts = [spelled(label) for label in labels if not _BRACKETED.fullmatch(label)]
    else:
        parts = [label for label in labels if is_one_letter(label)]
    return (character for part in parts for character in part)


def is_mark(character: str) -> bool:
    """Whether it belongs to the character before it: an accent, a vowel sign."""
    return unicodedata.category(character).startswith("M")


def is_one_letter(label: str) -> bool:
    """Whether a label stands for one character, perhaps with marks that Unicode cannot compose with it."""
    return all(is_mark(character) for character in label[1:])


def case_of(labels: Iterable[str]) -> Literal["lower", "upper", "kept"]:
    """The case of the labels' letters; ``kept`` where they have both cases, or letters without case."""
    letters = list(characters_of(labels))
    has_lower, has_upper = any(c != c.upper() for c in letters), any(c != c.lower() for c in letters)
    if has_lower == has_upper:
        return "kept"
    return "lower" if has_lower else "upper"


def main_metric(labels: Iterable[str]) -> Literal["wer", "cer"]:
    """The error rate that counts for these labels: by characters (``cer``) where texts have no words to count.

    That is where no label writes a space, and where some letters are of a script that is written without spaces: Han,
    Kana, Thai, Lao, Khmer, Burmese. Word error rates of such texts count whole sentences.
    """
    labels = list(labels)
    without_spaces = (unicodedata.name(c, "").startswith(_WITHOUT_SPACES) for c in characters_of(labels))
    return "wer" if has_words(labels) and not any(without_spaces) else "cer"


def text_of(ids: Sequence[int], labels: Sequence[str]) -> str:
    """What label ids write.

    Raises:
        UsageError: an id is not a label.
    """
    if ids and not (min(ids) >= 0 and max(ids) < len(labels)):
        raise UsageError(
            "an id is outside the vocabulary",
            got=f"id {min(ids) if min(ids) < 0 else max(ids)}",
            wanted=f"0 to {len(labels) - 1} for labels, {len(labels)} for the blank",
            remedy="the model was made for other labels",
        )
    text = "".join([labels[i] for i in ids])
    return spelled(text).strip() if is_piece(text) else text


# The languages of texts: their codes, and which one the script of the labels tells. No text is read here.


NO_LANGUAGE = "none"
# Those of num2words, a test compares them, and Chinese.
LANGUAGES = (
    *("am", "ar", "az", "be", "bn", "ca", "ce", "cs", "cy", "da", "de", "en", "eo", "es", "fa", "fi", "fr", "he", "hu"),
    *("id", "is", "it", "ja", "kn", "ko", "kz", "lt", "lv", "nl", "no", "pl", "pt", "ro", "ru", "sk", "sl", "sr", "sv"),
    *("te", "tet", "tg", "th", "tr", "uk", "vi", "zh"),
)
# Codes of ISO 639 for what num2words names otherwise.
_SAME = {"kk": "kz", "nb": "no", "nn": "no", "iw": "he", "cmn": "zh"}
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
    """The code of a language in ``LANGUAGES``, or ``none``; ``de-AT`` and ``DE`` are ``de``.

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


# Characters: kinds and cases, and how messages show them. No vocabulary in here.


_SHOWN_SYMBOLS = 10

# Letters whose other case depends on the language: one of the labels tells, and what is changed before the usual rule.
OTHER_CASES = {
    "lower": {"\u0131": {"I": "\u0131", "\u0130": "i"}},  # Turkish: the dotless i is the small I
    "upper": {
        "\u0130": {"i": "\u0130", "\u0131": "I"},
        "\u1e9e": {"\u00df": "\u1e9e"},
    },  # the capital sharp s of German
    "kept": {},
}


def shown_symbols(counts: Counter[str]) -> str:
    """The most frequent symbols, each with its number; one that cannot be seen by its code point."""
    kinds = [f"{_shown(symbol)} x{count}" for symbol, count in counts.most_common(_SHOWN_SYMBOLS)]
    more = f" and {len(counts) - _SHOWN_SYMBOLS} more" if len(counts) > _SHOWN_SYMBOLS else ""
    return f"{' '.join(kinds)}{more}"


def is_letter(symbol: str) -> bool:
    """A letter, a mark on one, or a word-like label: no punctuation, sign, digit or white space."""
    return unicodedata.category(symbol[0])[0] in "LM"


def _shown(symbol: str) -> str:
    is_seen = symbol.isprintable() and not is_mark(symbol[0])
    return f'"{symbol}"' if is_seen else "".join(f"U+{ord(character):04X}" for character in symbol)


def spoken(symbol: str) -> str:
    """A letter, an accent or a digit; of other symbols nothing."""
    return symbol if unicodedata.category(symbol[0])[0] in "LMN" else ""
