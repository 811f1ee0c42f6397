"""The options of an optimizer: their defaults, and the checks of given values. The names are in create.py."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeGuard

from nemo_lite.errors import UsageError

# Any: torch keeps numbers, pairs of numbers, flags and tensors in such dictionaries.
Options: TypeAlias = "dict[str, Any]"
# Bounds of a number: the lowest value, and the value that it stays below.
Range: TypeAlias = "tuple[float, float]"

NO_DEFAULT = inspect.Parameter.empty
_RANGES: dict[str, Range] = {"betas": (0, 1)}
_ANY_OTHER: Range = (0, math.inf)


def constructor_defaults(optimizer: Callable[..., object]) -> Options:
    """The arguments of a constructor behind the first (the parameters), with their defaults or ``NO_DEFAULT``."""
    _, *parameters = inspect.signature(optimizer).parameters.values()
    return {each.name: each.default for each in parameters}


def check_options(name: str, options: Mapping[str, object], optimizer: Callable[..., object]) -> None:
    """Raise UsageError for a value of another type than the constructor's default, or for a number out of range.

    A tuple must have the length of the default. A number must be finite and at least 0, each of ``betas`` also below
    1; a class with other bounds says so: ``ranges = {"decay_rate": (-1, 0)}`` is from -1, below 0. Where the default
    is None or there is none, the type is not checked.
    """
    defaults, ranges = constructor_defaults(optimizer), _RANGES | getattr(optimizer, "ranges", {})
    for option, value in options.items():
        default = defaults.get(option)
        like = value if default in (None, NO_DEFAULT) else default
        bounds = ranges.get(option, _ANY_OTHER)
        if not _fits(value, like, bounds):
            problem, wanted = _expected(like, bounds)
            raise UsageError(f"{option} of {name} {problem}", got=repr(value), wanted=wanted)


def _fits(value: object, like: object, bounds: Range) -> bool:
    if isinstance(like, (tuple, list)):
        if not isinstance(value, (tuple, list)) or len(value) != len(like):
            return False
        return all(_fits(one, other, bounds) for one, other in zip(value, like, strict=True))
    if not _is_number(like):
        return isinstance(value, type(like))
    return _is_number(value) and bounds[0] <= value < bounds[1]


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _expected(like: object, bounds: Range) -> tuple[str, str]:
    """What an error says of a value that does not fit, and what it wants instead."""
    within = f"from {bounds[0]:g}" + (f", below {bounds[1]:g}" if bounds[1] < math.inf else "")
    if isinstance(like, (tuple, list)):
        return "are out of range", f"{len(like)} numbers {within}"
    if _is_number(like):
        return "is out of range", f"a number {within}"
    if isinstance(like, bool):
        return "is not a truth value", "True or False"
    return "is of the wrong type", type(like).__name__
