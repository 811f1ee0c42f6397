"""Labels for a model of some texts, in any language: ``labels: auto`` or ``auto_punctuated`` of a configuration."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from nemo_asr.run.text.forms import APOSTROPHES, CLOSING_MARKS, folded, plain_letters
from nemo_asr.run.text.labels import is_letter, is_without_spaces, shown_symbols
from nemo_asr.run.text.languages import NO_LANGUAGE, language_code, language_of
from nemo_asr.run.text.readings import read_out
from nemo_lite.base.errors import DataError, counted

AUTO, PUNCTUATED = "auto", "auto_punctuated"
_MARKS = {*CLOSING_MARKS, *"\u00bf\u00a1\u3001\u3002\u060c\u061b\u061f\u0964"}  # that texts are punctuated with
_PUNCTUATED_SHARE = 0.01  # marks for each letter, from which on texts are taken as punctuated
# So many letters write nearly all texts of an alphabet; of Han or Hangul more, and there rare ones count too.
_MOST_LETTERS, _NEARLY_ALL = 200, 0.999
# Of an alphabet: letters of foreign names. Common Voice has a hundred of them in most languages of Europe.
_RARE_SHARE = 1 / 20_000
_SPOKEN_TEXTS = 20_000  # whose numbers are read out: their words have all letters that numbers need
_DIGIT = re.compile("[0-9]")
_MARK_IN_WORD = re.compile(rf"(?<=\w)[{APOSTROPHES}\u00b7](?=\w)")


class Proposal(NamedTuple):
    """Labels that texts need, and how they were chosen.

    Attributes:
        labels: the space, where words have spaces between them; then letters in the order of their code points, lower
            case unless they are punctuated; then digits and marks.
        language: of the texts, as far as the letters tell it, or ``none``.
        rare: letters that are no labels, because they are too rare to be learned, and how often each occurs.
        num_texts: how many texts were read.
        loses_marks: whether the texts have punctuation, which is not among the labels.
    """

    labels: list[str]
    language: str
    rare: Counter[str]
    num_texts: int
    loses_marks: bool = False

    def __str__(self) -> str:
        shown = "".join(label for label in self.labels if label != " ")
        more = "..." if len(shown) > 120 else ""
        text = f"{counted(len(self.labels), 'label')} of {counted(self.num_texts, 'text')}: {shown[:120]}{more}"
        if "0" in self.labels:
            text += "; digits are labels, because the letters tell no language that reads them out (--language CODE)"
        if self.loses_marks:
            text += f"; case and punctuation are left out (labels: {PUNCTUATED} keeps them)"
        return f"{text}; too rare to be labels: {shown_symbols(self.rare)}" if self.rare else text


def propose_labels(texts: Iterable[str], language: str | None = None, punctuated: bool = False) -> Proposal:
    """The labels of a model that writes these texts: in lower case and without punctuation, or with both.

    Letters, marks on them and apostrophes within words are labels. Numbers are read out where the language is known;
    else digits are labels, where texts have some. Texts whose letters are a to z are taken as English.

    Args:
        texts: the texts of a training set.
        language: see `nemo_asr.run.text.languages.language_code`; None: what the letters tell.
        punctuated: capitals, and marks such as the comma that are no rarer than letters may be, are labels too.

    Raises:
        DataError: no text has a letter.
        UnknownNameError: there is no such language.
    """
    letters, marks, capitals, closing = (Counter[str]() for _ in range(4))
    with_digits: list[str] = []
    num_texts = 0
    for text in texts:
        num_texts += 1
        usual = _usual(text)
        letters.update(usual)
        marks.update(_MARK_IN_WORD.findall(usual))
        written = Counter(unicodedata.normalize("NFC", text))
        closing.update({c: count for c, count in written.items() if folded(c) in _MARKS})
        capitals.update({c: count for c, count in written.items() if c != c.lower()})
        if len(with_digits) < _SPOKEN_TEXTS and _DIGIT.search(usual):
            with_digits.append(usual)
    letters = Counter({c: count for c, count in letters.items() if is_letter(c) and c not in APOSTROPHES})
    rare = _rare_among(letters)
    letters -= rare
    if not letters:
        raise DataError(
            "the texts have no letters", got=counted(num_texts, "text"), wanted="texts to propose labels of"
        )
    spoken = language_of(letters) if language is None else language_code(language)
    chosen = {*letters, *(string.ascii_lowercase if spoken == "en" else "")}
    digits = ""
    if spoken == NO_LANGUAGE and with_digits:
        digits = string.digits
    elif spoken != "en":
        words = (_usual(read_out(text, spoken, lambda _: True)) for text in with_digits)
        chosen |= {c for text in words for c in text if is_letter(c) and c not in APOSTROPHES and c not in rare}
    least = _RARE_SHARE * letters.total()
    if punctuated:  # also capitals that numbers read out at the beginning of a sentence have
        chosen |= {c.upper() for c in chosen if len(c.upper()) == 1}
        chosen |= {c for c, count in capitals.items() if count >= least and _usual(c) in chosen and folded(c) == c}
    widths = {folded(c): c for c, count in reversed(closing.most_common()) if count >= least}  # the usual one of each
    kept = sorted(widths.values()) if punctuated else []
    has_apostrophe = spoken == "en" or any(mark in marks for mark in APOSTROPHES)
    inner = ("'" if has_apostrophe else "") + ("\u00b7" if "\u00b7" in marks else "")
    without_spaces = sum(count for c, count in letters.items() if is_without_spaces(c))
    space = "" if 2 * without_spaces > letters.total() else " "
    loses_marks = not punctuated and closing.total() > _PUNCTUATED_SHARE * letters.total()
    return Proposal([*space, *sorted(chosen), *digits, *inner, *kept], spoken, rare, num_texts, loses_marks)


def _usual(text: str) -> str:
    """In lower case, composed, with usual widths. The dotted capital I would become two characters."""
    return unicodedata.normalize(
        "NFC", plain_letters(unicodedata.normalize("NFC", text)).replace("\u0130", "i").lower()
    )


def _rare_among(letters: Counter[str]) -> Counter[str]:
    """The rare letters of an alphabet; none of a script whose rare characters are part of it."""
    covered, usual = 0, 0
    for count in sorted(letters.values(), reverse=True):
        if covered >= _NEARLY_ALL * letters.total():
            break
        covered, usual = covered + count, usual + 1
    if usual > _MOST_LETTERS:
        return Counter()
    return Counter({c: count for c, count in letters.items() if count < _RARE_SHARE * letters.total()})
