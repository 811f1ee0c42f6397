"""NeMo's functions that clean English texts: the rules of ``text/english``, in NeMo's steps and signatures."""

from __future__ import annotations

from collections.abc import Mapping

from nemo_asr.text.english import say_abbreviations, say_numbers, without_accents


def clean_text(
    string: str,
    table: Mapping[int, str | int | None],
    punctuation_to_replace: Mapping[str, str],
    abbreviation_version: str | None = None,
) -> str:
    """An English text as it is spoken, in small letters and with single spaces.

    Args:
        string: the text.
        table: what becomes of the remaining punctuation, as of ``str.maketrans``.
        punctuation_to_replace: a mark and its word: ``{"+": "plus"}``.
        abbreviation_version: taken for NeMo's sake; there is one list of abbreviations.
    """
    text = say_numbers(clean_abbreviations(" ".join(string.split()), abbreviation_version))
    text = clean_punctuations(without_accents(text.lower()), table, punctuation_to_replace)
    return " ".join(text.split())


def clean_numbers(string: str) -> str:
    """``string`` with numbers, dates, money and units in words."""
    return say_numbers(string)


def clean_abbreviations(string: str, version: str | None = None, expanded: bool = False) -> str:
    """``string`` with abbreviations in words; ``version`` and ``expanded`` are taken for NeMo's sake."""
    return say_abbreviations(string)


def clean_punctuations(
    string: str, table: Mapping[int, str | int | None], punctuation_to_replace: Mapping[str, str]
) -> str:
    """``string`` with the words of ``punctuation_to_replace`` for its marks, then with ``table``."""
    for mark, word in punctuation_to_replace.items():
        string = string.replace(mark, f" {word} ")
    return string.translate(table)


def warn_common_chars(string: str) -> None:
    """Nothing: NeMo warned here that pounds and euros are not read; `clean_text` reads them."""
