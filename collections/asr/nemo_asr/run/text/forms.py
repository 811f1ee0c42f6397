"""Texts in the forms of the labels' characters: other spellings of a letter, punctuation that the labels lack.

One text has many spellings: an apostrophe is U+0027, U+2019 or U+02BC, a digit is full-width or Arabic-Indic, an
Arabic word has its vowel marks or not. A model writes one of them, that of its labels.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from nemo_asr.run.text.labels import Marks

APOSTROPHES = "'\u2019\u02bc\u02bb\u05f3"
CLOSING_MARKS = ".,?!:;"  # stand right behind a word, and are no part of it


class _MarkForms(NamedTuple):
    """Forms of one mark.

    Attributes:
        forms: equal wherever they stand; the first one that is a label is what texts get.
        inner: forms of it within a word; elsewhere other marks, such as quotation marks, accents and signs.
        joins: whether the mark stands within one word, so that without a label for it nothing takes its place.
    """

    forms: str
    inner: str
    joins: bool


_FAMILIES = (
    _MarkForms(APOSTROPHES, "\u2018\u201b\u2032`\u00b4", joins=True),
    _MarkForms("-\u2010\u2011", "\u2012\u2013\u2212", joins=False),
    _MarkForms("\u00b7", "\u2027\u2219\u22c5\u2022", joins=True),  # Catalan: col·legi
)
# One letter in two alphabets or standards, which keyboards and old fonts write with the other's: the Arabic and the
# Persian kaf and yeh, comma below and cedilla, the Azerbaijani schwa; the zero of Chinese dates.
_SAME_LETTERS = (
    *("\u0643\u06a9\u06aa", "\u064a\u06cc", "\u0219\u015f", "\u0218\u015e", "\u021b\u0163", "\u021a\u0162"),
    *("\u0259\u01dd", "\u018f\u018e", "\u96f6\u3007"),
)
# What stands for the second one only where the labels lack the first: Arabic letters on other keyboards.
_INSTEAD = {"\u0649": "\u06cc", "\u0647": "\u06c1", "\u06c1": "\u0647", "\u06be": "\u0647", "\u06d5": "\u0647"}
_TAKEN_APART = {"\u06c0": "\u0647\u0654", "\u06c2": "\u06c1\u0654"}  # heh with hamza
# Unicode's kinds of other forms of a letter. Not superscripts, circles, squares and fractions: they say more.
_FORMS_OF_LETTERS = ("<compat>", "<font>", "<initial>", "<medial>", "<final>", "<isolated>")
_RADICALS = ("KANGXI RADICAL", "CJK RADICAL")  # in place of the characters, in texts out of PDF files
# Thai and Lao vowels in one, and the same in two parts, perhaps with the mark of a tone between them; the first part.
_TWO_PARTS = {
    "\u0e33": ("\u0e4d([\u0e48-\u0e4b]?)\u0e32", "\u0e4d"),
    "\u0eb3": ("\u0ecd([\u0ec8-\u0ecb]?)\u0eb2", "\u0ecd"),
    "\u0e41": ("\u0e40()\u0e40", "\u0e40\u0e40"),
    "\u0ec1": ("\u0ec0()\u0ec0", "\u0ec0\u0ec0"),
}
# Accents of Greek before 1982: two became the one of today, the others nothing.
_OLD_GREEK = {0x300: "\u0301", 0x342: "\u0301", 0x313: "", 0x314: "", 0x345: ""}
ZERO_WIDTH_SPACE = "\u200b"  # parts words
_OKINA = "\u02bb"  # a letter where no label is an apostrophe
_L_WITH_DOT = {"\u0140": "l\u00b7", "\u013f": "L\u00b7"}
# Hebrew acronyms have one of these before the last letter.
_GERSHAYIM = '\u05f4"\u201d\u201c'
_ACRONYM = re.compile(f"[{_GERSHAYIM}](?<=[\u05d0-\u05ea].)(?=[\u05d0-\u05ea])")  # a set first is searched fast
# Punctuation that is read aloud, as signs are.
_READ_ALOUD = frozenset("#%&@\u00a7\u00b6\u2030\u2031\u066a")
_TATWEEL = "\u0640"
_ARABIC_AND_HEBREW = re.compile("[\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u08ca-\u08ff]")
_PLAIN = re.compile("[A-Za-z0-9 ]*")


class Forms:
    """Writes the characters of texts in the forms that some labels have.

    Args:
        characters: those of the labels; each stays as it is.
        strip_marks: leave out the vowel marks of Arabic and Hebrew, and tatweel, the stroke that lengthens an Arabic
            word. None: the marks where no label is one of them, tatweel where it is no label.
        are_known: False where the characters are not all that a text may have: then every letter in another form, such
            as a ligature, is written in the usual one, and not only where the labels have that.

    Attributes:
        strips_labels: whether labels are left out: a model of these labels then writes what references have not.
    """

    def __init__(self, characters: Iterable[str], strip_marks: bool | None = None, *, are_known: bool = True) -> None:
        self._are_known = are_known
        labels = self._labels = frozenset(characters)
        has_marks, has_tatweel = any(map(_is_vowel_mark, labels)), _TATWEEL in labels
        self._strips_vowels = not has_marks if strip_marks is None else strip_marks
        self._strips_tatweel = not has_tatweel if strip_marks is None else strip_marks
        self.strips_labels = bool(strip_marks) and (has_marks or has_tatweel)
        digits = {unicodedata.decimal(label, -1): label for label in sorted(labels, reverse=True)}  # ASCII is the last
        self._digits = {value: label for value, label in digits.items() if value >= 0}
        self._has_spaces = " " in labels
        in_two_parts = [(whole, *parts) for whole, parts in _TWO_PARTS.items() if whole in labels or not are_known]
        self._two_parts = [(first, re.compile(pattern), rf"\1{whole}") for whole, pattern, first in in_two_parts]
        self._same: dict[str, str] = {}
        self._within: dict[str, str] = {}
        for forms, inner, joins in _FAMILIES:
            label_form = next((form for form in forms if form in labels), None)
            for form in set(forms + inner) - labels:
                if label_form is not None and form in forms:
                    self._same[form] = label_form
                elif (label_form is not None or joins) and form != _OKINA:
                    self._within[form] = label_form or ""
        self._inner = re.compile(f"[{re.escape(''.join(self._within))}]") if self._within else None
        self._quoted = _quotation(labels) if set(APOSTROPHES) & labels else None
        self._gershayim = next((mark for mark in _GERSHAYIM[:2] if mark in labels), "")
        self._unifying, self._spacing = _Table(self._unified), _Table(self._spaced)

    def unify(self, text: str) -> str:
        """``text`` with letters, widths and digits in the forms of the labels, without the marks that are stripped.

        Digits that the labels have in no form become ASCII. A zero-width space becomes a space.
        """
        is_usual = text.isascii() and all(digit.isascii() for digit in self._digits.values())
        if is_usual:
            return text
        for first, pattern, whole in self._two_parts:
            if first in text:
                text = pattern.sub(whole, text)
        return text.translate(self._unifying)

    def punctuate(self, text: str) -> str:
        """``text`` with apostrophes, hyphens and middle dots as the labels have them.

        Other punctuation that is no label becomes a space, and nothing where the space is no label. Signs that are read
        aloud, such as ``%``, stay, apart from words, so that they are counted as lost. Without a label for it, an
        apostrophe or a middle dot within a word is left out.
        """
        if _PLAIN.fullmatch(text):
            return text
        if self._quoted is not None:
            text = self._quoted.sub(r" \1 ", text)
        if self._inner is not None:
            text = self._inner.sub(self._inner_mark, text)
        if not text.isascii():
            text = _ACRONYM.sub(lambda match: match[0] if match[0] in self._labels else self._gershayim, text)
        return text.translate(self._spacing)

    def _unified(self, character: str) -> str:
        if (self._strips_tatweel and character == _TATWEEL) or (self._strips_vowels and _is_vowel_mark(character)):
            return ""
        if character in self._labels:
            return character
        if character == ZERO_WIDTH_SPACE:
            return " " if self._has_spaces else ""
        usual = _L_WITH_DOT.get(character) or _usual(character)
        if len(usual) > 1:
            return usual
        return self._digits.get(unicodedata.decimal(usual, -1)) or self._in_labels(usual)

    def _in_labels(self, character: str) -> str:
        """The form of a letter that the labels have; itself where they have none."""
        if same := self._same_letter(character):
            return same
        for form in _forms_of(character, self._are_known):
            letters = [c if self._has(c) else self._same_letter(c) for c in form]
            if all(letters):
                return "".join("" if self._strips(c) else c for c in letters)
        return character

    def _same_letter(self, character: str) -> str:
        """The letter of the labels that is this one in another alphabet, or ""; "" where the labels are not known."""
        family = "".join(letters for letters in _SAME_LETTERS if character in letters)
        others = (family + _INSTEAD.get(character, "")) if self._are_known else ""
        return next(filter(self._has, others.replace(character, "")), "")

    def _has(self, character: str) -> bool:
        is_label = not {character, character.lower(), character.upper()}.isdisjoint(self._labels)
        is_mark = not character.isalpha() or character in APOSTROPHES  # others see to them
        return not self._are_known or is_label or is_mark or self._strips(character)

    def _strips(self, character: str) -> bool:
        return self._strips_vowels and _is_vowel_mark(character)

    def _spaced(self, character: str) -> str:
        if character in self._labels:
            return character
        if character in self._same:
            return self._same[character]
        kind = unicodedata.category(character)
        if kind[0] not in "PS":
            return character
        gap = " " if self._has_spaces else ""
        return f"{gap}{character}{gap}" if character in _READ_ALOUD or kind in ("Sm", "Sc", "So") else gap

    def _inner_mark(self, match: re.Match[str]) -> str:
        around = match.string[match.start() - 1 : match.start()], match.string[match.end() : match.end() + 1]
        return self._within[match[0]] if all(map(_is_of_word, around)) else match[0]


class _Table(dict[int, str]):
    """A table for ``str.translate`` that is filled as characters come."""

    def __init__(self, replacement: Callable[[str], str]) -> None:
        super().__init__()
        self._replacement = replacement

    def __missing__(self, code: int) -> str:
        self[code] = text = self._replacement(chr(code))
        return text


def folded(text: str) -> str:
    """``text`` with full-width and half-width characters, and decimal digits of any script, in their usual forms."""
    return text if text.isascii() else text.translate(_FOLDING)


def _forms_of(character: str, are_known: bool) -> Iterator[str]:
    """What may be written for a letter: its usual form, its accents of today."""
    if character in _TAKEN_APART:
        yield _TAKEN_APART[character]
    kind, *codes = unicodedata.decomposition(character).split() or [""]
    name = unicodedata.name(character, "")
    is_form = kind in _FORMS_OF_LETTERS and (are_known or character not in _TWO_PARTS)
    if is_form and (character.isalpha() or name.startswith(_RADICALS)):
        yield "".join(chr(int(code, 16)) for code in codes)
    if are_known and name.startswith("GREEK ") and " WITH " in name:
        letters = unicodedata.normalize("NFD", character).translate(_OLD_GREEK)
        yield from (unicodedata.normalize("NFC", letters), letters[0])


def _usual(character: str) -> str:
    kind, *codes = unicodedata.decomposition(character).split() or [""]
    if kind in ("<wide>", "<narrow>"):
        return "".join(chr(int(code, 16)) for code in codes)
    value = unicodedata.decimal(character, -1)
    return character if value < 0 else str(value)


_FOLDING = _Table(_usual)


def _quotation(labels: frozenset[str]) -> re.Pattern[str] | None:
    """Words between single quotation marks: without this, a mark would become an apostrophe of its word."""
    opening = "".join(mark for mark in "'\u2018" if mark not in labels)
    marks, word_mark = "'\u2018\u2019", r"(?<=\w)['\u2018\u2019](?=\w)"
    quoted = rf"[{opening}](?<!\w.)(?=\w)([^{marks}]*(?:{word_mark}[^{marks}]*)*)['\u2019](?!\w)"
    return re.compile(quoted) if opening else None


def _is_of_word(character: str) -> bool:
    return character != "" and unicodedata.category(character)[0] in "LMN"


def _is_vowel_mark(character: str) -> bool:
    return _ARABIC_AND_HEBREW.match(character) is not None and unicodedata.category(character) == "Mn"


_LETTERS, _NO_WORDS = Forms(" ", strip_marks=False, are_known=False), Marks()


def plain_letters(text: str) -> str:
    """``text`` as labels are taken from it: its letters in their usual forms, without marks such as ``<unk>``."""
    return _LETTERS.unify(_NO_WORDS.left_out(text))
