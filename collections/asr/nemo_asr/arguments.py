"""Checks of arguments that several modules share."""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping
from typing import TypeAlias, TypeVar

import numpy as np

from nemo_lite.errors import UnknownNameError, UsageError

V = TypeVar("V")

# A recipe fills these in, so none of them can be the source of the data.
_FILLED_IN = ("labels", "vocabulary", "num_classes", "sample_rate", "batch_size")


NumbersRng: TypeAlias = random.Random | np.random.RandomState | np.random.Generator


def seed_from(rng: NumbersRng) -> int:
    """A seed of 31 bits, the next that a generator of Python or NumPy draws."""
    if isinstance(rng, random.Random):
        return rng.getrandbits(31)
    return int(rng.integers(2**31) if isinstance(rng, np.random.Generator) else rng.randint(2**31))


def generator_from(rng: NumbersRng | None) -> np.random.Generator | None:
    """NumPy's generator: the given one, or one whose seed another draws."""
    return rng if rng is None or isinstance(rng, np.random.Generator) else np.random.default_rng(seed_from(rng))


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


def parameters_of(target: type) -> list[str]:
    """The names of a constructor's parameters."""
    return list(inspect.signature(target.__init__).parameters)[1:]  # type: ignore[misc]  # of the class itself


def source_argument(data_layer: type) -> str:
    """The name of a data layer's source: always the first argument of its constructor, a manifest or an archive.

    Raises:
        UsageError: there is no argument, or the first is one that a recipe fills in otherwise.
    """
    first = next(iter(parameters_of(data_layer)), "none")
    if first in ("none", *_FILLED_IN):
        raise UsageError("its first argument must be the source of the data", place=data_layer.__name__, got=first)
    return first
