"""Whole numbers as words, in the languages of num2words. No texts here: where numbers are in them is said elsewhere."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

Kind = Literal["cardinal", "ordinal", "year"]


@lru_cache(maxsize=8192)
def number_words(number: int, language: str, kind: Kind = "cardinal") -> str:
    """``number`` in words: ``fünfundzwanzig`` for 25 in ``de``.

    Args:
        number: not negative.
        language: a code of num2words: ``en``, ``de``, ``pt_BR``.
        kind: a cardinal or an ordinal number, or a year.

    Raises:
        NotImplementedError: num2words does not know the language, or not this kind of number in it.
    """
    # Importing num2words reads 57 languages: only texts with numbers pay for it.
    import num2words

    return str(num2words.num2words(number, lang=language, to=kind))
