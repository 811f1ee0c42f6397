"""Generators of random numbers, of Python and of NumPy: the seed that one draws for another."""

from __future__ import annotations

import random
from typing import TypeAlias

import numpy as np

NumbersRng: TypeAlias = random.Random | np.random.RandomState | np.random.Generator


def seed_from(rng: NumbersRng) -> int:
    """A seed of 31 bits, the next that a generator of Python or NumPy draws."""
    if isinstance(rng, random.Random):
        return rng.getrandbits(31)
    return int(rng.integers(2**31) if isinstance(rng, np.random.Generator) else rng.randint(2**31))


def generator_from(rng: NumbersRng | None) -> np.random.Generator | None:
    """NumPy's generator: the given one, or one whose seed another draws."""
    return rng if rng is None or isinstance(rng, np.random.Generator) else np.random.default_rng(seed_from(rng))
