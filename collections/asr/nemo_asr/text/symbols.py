"""Characters: kinds and cases, and how messages show them. No vocabulary in here."""

from __future__ import annotations

import unicodedata
from collections import Counter

from nemo_asr.text.labels import is_mark

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
