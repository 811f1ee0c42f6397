"""Checks of arguments that several modules share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from nemo_lite.errors import UnknownNameError, UsageError

V = TypeVar("V")


def check_least(place: str = "", **limits: tuple[float, float]) -> None:
    """Refuse numbers below their least; each is given as ``name=(value, least)``.

    Raises:
        UsageError: the first one that is too small.
    """
    for argument, (value, least) in limits.items():
        if value < least:
            raise UsageError(f"{argument} is too small", place=place, got=str(value), wanted=f"{least} or more")


def look_up(kind: str, name: str, known: Mapping[str, V], place: str = "") -> V:
    """What stands under a name.

    Raises:
        UnknownNameError: nothing does; names the ``kind``, the nearest name and all known ones.
    """
    if name not in known:
        raise UnknownNameError(kind, name, known, place=place)
    return known[name]
