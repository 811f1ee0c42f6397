"""What people say to a spoken-command system, as in the AN4 recordings: spelling, numbers, dates, commands, names.

Texts only, as plain lower-case words; a spelled letter is a word of one letter.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Collection, Sequence

from numpy.random import Generator


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


LETTERS = tuple(string.ascii_lowercase)
DIGITS = _words("zero one two three four five six seven eight nine oh")
TEENS = _words("ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen")
TENS = _words("twenty thirty forty fifty sixty seventy eighty ninety")
MONTHS = _words("january february march april may june july august september october november december")
COMMANDS = _words("enter erase go help no repeat rubout start stop yes")
FIRST_NAMES = _words("mary john susan robert linda david karen peter")
LAST_NAMES = _words("smith johnson miller davis wilson taylor clark walker")
VOCABULARY = (*LETTERS, *DIGITS, *TEENS, *TENS, *MONTHS, *COMMANDS, *FIRST_NAMES, *LAST_NAMES)


def sentence(rng: Generator) -> str:
    """One utterance, of one to seven words."""
    kind = list(_KINDS)[rng.choice(len(_KINDS), p=list(_KINDS.values()))]
    return " ".join(kind(rng))


def new_sentence(rng: Generator, known: Collection[str]) -> str:
    """One utterance that is not among ``known``."""
    while True:
        text = sentence(rng)
        if text not in known:
            return text


def _pick(rng: Generator, words: Sequence[str]) -> str:
    return words[int(rng.integers(len(words)))]


def _some(rng: Generator, words: Sequence[str], least: int, most: int) -> list[str]:
    return [_pick(rng, words) for _ in range(rng.integers(least, most + 1))]


def _entry(rng: Generator) -> list[str]:
    return [_pick(rng, ("enter", "erase", "rubout")), *_some(rng, LETTERS + DIGITS, 2, 4)]


def _name(rng: Generator) -> list[str]:
    return [_pick(rng, FIRST_NAMES), *_some(rng, LETTERS, 0, 1), _pick(rng, LAST_NAMES)]


def _date(rng: Generator) -> list[str]:
    return [_pick(rng, MONTHS), *_below_hundred(rng, 1, 31), "nineteen", *_below_hundred(rng, 20, 99)]


def _below_hundred(rng: Generator, least: int, most: int) -> list[str]:
    tens, ones = divmod(int(rng.integers(least, most + 1)), 10)
    if tens == 1:
        return [TEENS[ones]]
    return ([TENS[tens - 2]] if tens else []) + ([DIGITS[ones]] if ones else [])


# What an utterance is, and the share of such utterances.
_KINDS: dict[Callable[[Generator], list[str]], float] = {
    lambda rng: _some(rng, LETTERS, 3, 6): 0.25,
    lambda rng: _some(rng, DIGITS, 3, 7): 0.2,
    lambda rng: _some(rng, COMMANDS, 1, 3): 0.1,
    _entry: 0.15,
    _name: 0.1,
    _date: 0.2,
}
