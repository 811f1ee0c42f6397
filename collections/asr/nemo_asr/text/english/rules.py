"""A rule of rewriting: a pattern, and the words for what it matches. Rules are applied one after another."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

Say = Callable[[re.Match[str]], str]


class Rule(NamedTuple):
    """What ``say`` makes of each match of ``pattern``. Time must be linear in the text's length: a pattern begins where
    no digit stands before, and repeats nothing without an end within itself."""

    pattern: re.Pattern[str]
    say: Say


def rule(pattern: str, say: Say | str, *, with_case: bool = False) -> Rule:
    """A rule whose words get a space on both sides. ``say`` may be the words themselves."""
    compiled = re.compile(pattern, 0 if with_case else re.IGNORECASE)
    if isinstance(say, str):
        words = f" {say} "
        return Rule(compiled, lambda _: words)
    function = say
    return Rule(compiled, lambda match: f" {function(match)} ")


def apply(rules: Iterable[Rule], text: str) -> str:
    """``text`` after all rules, in their order, with single spaces."""
    for pattern, say in rules:
        text = pattern.sub(say, text)
    return " ".join(text.split())
