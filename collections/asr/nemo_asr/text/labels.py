"""What the labels of a model say about its texts: which characters, which case, which error rate. No text is read here.

Labels are characters, or pieces of words (subwords). What asks for a vocabulary takes them as a sequence in the order
of their ids, and learns from the functions here what each writes; the CTC blank is the class behind the last one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from nemo_lite.errors import UsageError

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
