"""What is alive: objects that something refers to, found without a registry, and names that are free among them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import count
from typing import TypeVar

from nemo_lite.errors import NameTakenError

T = TypeVar("T")


def living(kind: type[T]) -> Iterator[T]:
    """All objects of a class: the garbage collector knows them, so no list of our own keeps them alive."""
    for each in gc.get_objects():
        # The type, not isinstance: objects of other packages may run code when they are asked for their class.
        if issubclass(type(each), kind):
            yield each


def free_name(given: str | None, stem: str, taken: set[str]) -> str:
    """The name that was given, or the stem with the first free number from 0.

    Raises:
        NameTakenError: the given name is taken.
    """
    if given is None:
        return next(name for name in (f"{stem}{number}" for number in count()) if name not in taken)
    if given in taken:
        problem = f'there is something else named "{given}"'
        raise NameTakenError(problem, place=stem, remedy="give it another name, or drop the old one first")
    return given
