"""Generators of random numbers, of Python, NumPy and torch: the seed that one draws for another."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch

# Any: attributes of a user's objects, and states of generators.

NumbersRng: TypeAlias = random.Random | np.random.RandomState | np.random.Generator


def seed_from(rng: NumbersRng) -> int:
    """A seed of 31 bits, the next that a generator of Python or NumPy draws."""
    if isinstance(rng, random.Random):
        return rng.getrandbits(31)
    return int(rng.integers(2**31) if isinstance(rng, np.random.Generator) else rng.randint(2**31))


def generator_from(rng: NumbersRng | None) -> np.random.Generator | None:
    """NumPy's generator: the given one, or one whose seed another draws."""
    return rng if rng is None or isinstance(rng, np.random.Generator) else np.random.default_rng(seed_from(rng))


# Generators that belong to a user's object, which draws from them by itself.


_MOST_PARTS = 64  # longer lists and dictionaries hold data
_OURS = f"{__package__}."
_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, torch.Generator)
_lock = threading.RLock()  # two threads may have one object


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)  # a thread that held it is not in the fork


def generators_of(owner: object) -> list[Any]:
    """The generators from which the methods of an object can draw, each once.

    They are attributes of the object or its class, or globals that a method names; in short lists, tuples and
    dictionaries too, and in objects whose class is of the same module, or of this package.
    """
    found: dict[int, Any] = {}
    seen: set[int] = set()
    pending: list[Any] = [owner]
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, _GENERATORS):
            if not isinstance(value, random.SystemRandom):  # which has no seed
                found[id(value)] = value
        elif isinstance(value, (dict, list, tuple)):
            if len(value) <= _MOST_PARTS:
                pending += value.values() if isinstance(value, dict) else value
        elif type(value).__module__ == type(owner).__module__ or type(value).__module__.startswith(_OURS):
            pending += _within(value)
    return list(found.values())


def _within(owner: object) -> Iterator[Any]:
    """What an object and its class hold, and the globals that its methods name."""
    yield from getattr(owner, "__dict__", {}).values()
    for base in type(owner).__mro__[:-1]:
        for value in vars(base).values():
            function = getattr(value, "__wrapped__", value)
            names = getattr(getattr(function, "__code__", None), "co_names", ())
            if not names:
                yield value
            for name in names:
                if isinstance(named := function.__globals__.get(name), _GENERATORS):
                    yield named


@contextmanager
def seeded_from(rng: NumbersRng, generators: Iterable[Any]) -> Iterator[None]:
    """Inside, what some generators draw follows from the next seed of another; afterwards they are as they were.

    Threads do this one after the other.

    Args:
        rng: draws the seed.
        generators: of Python, NumPy or torch.
    """
    generators, seed = list(generators), seed_from(rng)
    with _lock:
        before = [_state_of(generator) for generator in generators]
        reseed(generators, seed)
        try:
            yield
        finally:
            for generator, state in zip(generators, before, strict=True):
                _set_state(generator, state)


def reseed(generators: Iterable[Any], *seeds: int) -> None:
    """Let each generator draw anew, each something else, from these seeds."""
    for number, generator in enumerate(generators):
        sequence = np.random.SeedSequence([*seeds, number])
        if isinstance(generator, random.Random):
            generator.seed(int(sequence.generate_state(1, np.uint64)[0]))
        elif isinstance(generator, torch.Generator):
            generator.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(sequence).state
        else:
            bits = getattr(np.random, generator.get_state(legacy=False)["bit_generator"])
            generator.set_state(bits(sequence).state)


def _state_of(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state() if isinstance(generator, torch.Generator) else generator.get_state(legacy=False)


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)
