"""Checks of arguments that several modules share."""

from __future__ import annotations

from nemo_lite.errors import UsageError


def check_least(place: str = "", **limits: tuple[float, float]) -> None:
    """Refuse numbers below their least; each is given as ``name=(value, least)``.

    Raises:
        UsageError: the first one that is too small.
    """
    for argument, (value, least) in limits.items():
        if value < least:
            raise UsageError(f"{argument} is too small", place=place, got=str(value), wanted=f"{least} or more")
