"""What the labels of a model say about its texts: characters, cases, symbols, the error rate.

Labels are characters, or pieces of words (subwords). What asks for a vocabulary takes them as a sequence in the order
of their ids, and learns from the functions here what each writes; the CTC blank is the class behind the last one.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from nemo_lite.base.errors import UsageError

METRICS = ("wer", "cer")
# What `nemo_asr.scoring.normalize` makes of texts before they are compared.
SCORE_NORMALIZERS = ("none", "basic", "english", "whisper-like")

# The first words of the Unicode names of letters that are written without spaces between words.
_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO", "THAI", "LAO", "KHMER", "MYANMAR")


# What SentencePiece puts before a piece with which a word begins.
WORD_MARK = "\u2581"
# A byte of a letter of which a label has only a part: 0xE4 is U+EFE4. These characters are private ones of Unicode.
_FIRST_BYTE = 0xEF00
_LETTER_BYTES = re.compile("[\uef80-\uefff]+")
# A piece that writes no part of a word: <unk>, </s>, <noise>, [SPN].
_BRACKETED = re.compile(rf"{WORD_MARK}?(?:<.+>|\[.+\])")


def is_piece(label: str) -> bool:
    """Whether a label is a piece of a word with SentencePiece's mark, as Citrinet's are."""
    return WORD_MARK in label


def spelled(label: str) -> str:
    """What a label writes: a piece with which a word begins writes the space before it."""
    return label.replace(WORD_MARK, " ")


def label_of_bytes(content: bytes) -> str:
    """The label of some bytes of a text in UTF-8, which may begin or end inside of a letter.

    Letters that are there as a whole stand for themselves, but for those that have a meaning in labels. So
    :func:`in_letters` of labels that follow each other gives what their bytes write, whatever they are.
    """
    text = content.decode("utf-8", "surrogateescape")
    return "".join(
        "".join(chr(_FIRST_BYTE + byte) for byte in letter.encode("utf-8", "surrogateescape"))
        if "\udc80" <= letter <= "\udcff" or "\uef80" <= letter <= "\uefff" or letter == WORD_MARK
        else letter
        for letter in text
    )


def in_letters(text: str) -> str:
    """What labels write that follow each other: bytes become letters, and U+FFFD where they are none."""
    return _LETTER_BYTES.sub(
        lambda found: bytes(ord(each) - _FIRST_BYTE for each in found[0]).decode("utf-8", "replace"), text
    )


def has_words(labels: Iterable[str]) -> bool:
    """Whether the labels can write a space: alone, or as the beginning of a piece."""
    return any(spelled(label).startswith(" ") for label in labels)


def separator_of(labels: Iterable[str]) -> str:
    """What stands between two words of the labels: a space, or nothing."""
    return " " if has_words(labels) else ""


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
    return "wer" if has_words(labels) and not any(map(is_without_spaces, characters_of(labels))) else "cer"


def is_without_spaces(character: str) -> bool:
    """Whether it is of a script that is written without spaces between words."""
    return unicodedata.name(character, "").startswith(_WITHOUT_SPACES)


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
    return in_letters(spelled(text).strip() if is_piece(text) else text)


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


# What stands in a text for a sound or a remark: <unk>, [laughter], {NOISE}. Never longer than a few words.
_BRACKETS = {"<": r"<[^\s<>]{1,60}>", "[": r"\[[^\[\]]{1,60}\]", "{": r"\{[^{}]{1,60}\}"}


class Marks:
    """Finds the marks of texts that are no words: ``<unk>``, ``[laughter]``, ``{NOISE}``.

    Args:
        labels: one that is such a mark is none here, and none begins with a bracket that is a label.
    """

    def __init__(self, labels: Iterable[str] = ()) -> None:
        self._labels = frozenset(labels)
        kinds = [pattern for bracket, pattern in _BRACKETS.items() if bracket not in self._labels]
        self._mark = re.compile(rf"(?<!\w)(?:{'|'.join(kinds)})(?!\w)") if kinds else None

    def in_text(self, text: str) -> list[str]:
        """The marks of a text, in order."""
        if not ("<" in text or "[" in text or "{" in text) or self._mark is None:  # nearly every text ends here
            return []
        return [mark for mark in self._mark.findall(text) if mark not in self._labels]

    def left_out(self, text: str) -> str:
        """The text with a space in place of each mark; those that are labels stand apart from what is around them."""
        if not ("<" in text or "[" in text or "{" in text) or self._mark is None:
            return text
        return self._mark.sub(lambda match: f" {match[0]} " if match[0] in self._labels else " ", text)


def is_letter(symbol: str) -> bool:
    """A letter, a mark on one, or a word-like label: no punctuation, sign, digit or white space."""
    return unicodedata.category(symbol[0])[0] in "LM"


def _shown(symbol: str) -> str:
    is_seen = symbol.isprintable() and not is_mark(symbol[0])
    return f'"{symbol}"' if is_seen else "".join(f"U+{ord(character):04X}" for character in symbol)


def spoken(symbol: str) -> str:
    """A letter, an accent or a digit; of other symbols nothing."""
    return symbol if unicodedata.category(symbol[0])[0] in "LMN" else ""
