"""Ranges of numbers, said once, beside the parameter: ``Annotated[int, Between(1, 4096)]``.

They are for numbers whose wrong values would cost hours or all memory. `nemo_lite.base.config` compares the keys of a
file with them, `nemo_lite.base.options` the words of a command line, and the functions here the arguments of calls; a
file and a call are told the same line.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, cast, get_args, get_origin

from nemo_lite.base.errors import OutOfRangeError

# Any: what Python's typing has for annotations.

P = ParamSpec("P")
R = TypeVar("R")

LARGE = 2**62
"""An end of a range from here on is not worth telling."""
_SHOWN_LENGTH = 60


@dataclass(frozen=True)
class Between:
    """Numbers from ``least`` to ``most``. NaN is in no range, infinity only where it is an end.

    Args:
        least: the first number of the range.
        most: the last one.
        above: ``least`` itself does not belong.
        below: ``most`` itself does not belong.
        also: single numbers that mean something else, such as -1 for all.
        unit: of the numbers, for messages.
    """

    least: float
    most: float
    above: bool = False
    below: bool = False
    also: tuple[float, ...] = ()
    unit: str = ""

    def __str__(self) -> str:
        # 0 and 0.0 are written alike: Python gives one object for both annotations.
        least, most, *also = (f"{number:.15g}" for number in (self.least, self.most, *self.also))
        start = f"above {least}" if self.above else f"from {least}"
        if self.most >= LARGE:  # such an end is what fits into a number here, and nobody meets it
            end = "" if self.above else " on"
        elif self.below:
            end = f", below {most}"
        elif self.above:
            end = f", up to {most}"
        else:
            end = f" to {most}"
        return " or ".join([f"{start}{end} {self.unit}".rstrip(), *also])

    def refuses(self, value: object) -> bool:
        """Whether it is a number outside of the range."""
        if not isinstance(value, Real) or isinstance(value, bool):
            return False
        number: Any = value  # whole numbers stay whole: they may be too large for a float
        above_least = number > self.least if self.above else number >= self.least
        below_most = number < self.most if self.below else number <= self.most
        return not (above_least and below_most) and number not in self.also


# Counts and seeds have to fit into 63 bits, and floats into 32, so that one may compute with them.
PositiveInt = Annotated[int, Between(1, 2**63 - 1)]
NotNegativeInt = Annotated[int, Between(0, 2**63 - 1)]
PositiveFloat = Annotated[float, Between(0, 3.4e38, above=True)]
NotNegativeFloat = Annotated[float, Between(0, 3.4e38)]
Share = Annotated[float, Between(0, 1)]
ShareBelow1 = Annotated[float, Between(0, 1, below=True)]
StepsBetween = Annotated[int, Between(1, 2**63 - 1, also=(-1,))]
"""How many steps or epochs are between two actions; -1 for no such action."""
WaitingSeconds = Annotated[float, Between(0, 604_800, above=True, unit="seconds (a week)")]
"""How long processes may wait for each other: up to a week."""


def annotations_of(function: Callable[..., object]) -> Mapping[str, object]:
    """The annotations that can be resolved, with their ranges, by parameter.

    Each is resolved alone: one that fails must not hide the others.
    """
    return _resolved(inspect.unwrap(function))


@functools.lru_cache(maxsize=1024)  # of each constructor once: resolving takes longer than making a small module
def _resolved(function: Callable[..., object]) -> Mapping[str, object]:
    annotations: dict[str, object] = {}
    for name, raw in getattr(function, "__annotations__", {}).items():
        holder = types.SimpleNamespace(__annotations__={name: raw})
        with contextlib.suppress(NameError):
            names = getattr(function, "__globals__", {})
            annotations |= typing.get_type_hints(holder, globalns=names, include_extras=True)
    return types.MappingProxyType(annotations)


def ranges_of(annotation: object) -> list[Between]:
    """The ranges of an annotation, and of each alternative of a union. Those inside of lists are not among them."""
    options = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return [mark for mark in options if isinstance(mark, Between)]
    if get_origin(annotation) in (Union, types.UnionType):
        return [mark for option in options for mark in ranges_of(option)]
    return []


def is_out_of_range(value: object, annotation: object) -> bool:
    """Whether a number is in none of the ranges of its annotation. Numbers inside of lists are not looked at."""
    ranges = ranges_of(annotation)
    return bool(ranges) and all(interval.refuses(value) for interval in ranges)


def fits(value: object, annotation: object) -> bool:
    """Whether a value is a number of the type and the range of its annotation, or None where that may be."""
    origin, options = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(fits(value, option) for option in options)
    if origin is not Annotated:
        return value is None and annotation is types.NoneType
    is_number = isinstance(value, Integral if options[0] is int else Real) and not isinstance(value, bool)
    return is_number and not is_out_of_range(value, annotation)


def check_number(place: str, value: object, annotation: object) -> float:
    """A number that fits its annotation.

    Args:
        place: what it is, for the message: ``Class.argument``.
        value: what was given.
        annotation: such as ``PositiveInt | None``.

    Raises:
        OutOfRangeError: it is something else: ``place is 0, wanted int from 1 on or null``.
    """
    if not fits(value, annotation):
        raise OutOfRangeError(place, shown(value), wanted(annotation))
    return cast("float", value)


def refuse_out_of_range(
    function: Callable[..., object], arguments: Mapping[str, object], place: str = "", *, types_too: bool = False
) -> None:
    """Refuse the first number among a call's arguments that is outside of the range beside its parameter.

    Args:
        function: whose annotations are read.
        arguments: by name.
        place: who is called, for the message: a class's name; "" for options that users give without it.
        types_too: also refuse what is no number of the type. Else the errors of torch and Python serve for that.

    Raises:
        OutOfRangeError: ``place.argument is 0, wanted int from 1 to 4096``.
    """
    for name, annotation in annotations_of(function).items():
        if name in arguments and (types_too or is_out_of_range(arguments[name], annotation)) and ranges_of(annotation):
            check_number(f"{place}.{name}" if place else name, arguments[name], annotation)


def numbers_checked(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator of functions and constructors: `refuse_out_of_range` sees each call's arguments, and their types.

    Where an int belongs, a whole float is passed on as one: scripts compute steps with ``np.ceil`` and ``/``.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # the call itself says which arguments it has
            return function(*args, **kwargs)
        for name, annotation in annotations_of(function).items():
            value: Any = bound.arguments.get(name)
            is_float = isinstance(value, Real) and not isinstance(value, Integral) and math.isfinite(value)
            if is_float and not fits(value, annotation) and value == int(value) and fits(int(value), annotation):
                bound.arguments[name] = int(value)
        place = type(args[0]).__name__ if function.__name__ == "__init__" else function.__name__
        refuse_out_of_range(function, bound.arguments, place, types_too=True)
        return function(*bound.args, **bound.kwargs)

    return call


def wanted(annotation: object) -> str:
    """An annotation in YAML's terms, with its ranges: ``int from 1 to 4096 or null``."""
    origin, options = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return " ".join([wanted(options[0]), *map(str, ranges_of(annotation))])
    if origin in (Union, types.UnionType):
        return " or ".join(wanted(option) for option in options)
    if origin is Literal:
        return " or ".join(shown(option) for option in options)
    if annotation in (None, type(None)):
        return "null"
    kind = origin or annotation
    if not isinstance(kind, type):
        return str(annotation)
    if kind is tuple and options and options[-1] is not ...:
        return f"a list of {len(options)}: {', '.join(wanted(option) for option in options)}"
    if kind is tuple or (kind is not dict and issubclass(list, kind)):
        return f"a list of {wanted(options[0])}" if options and options[0] is not Any else "a list"
    return "a mapping" if issubclass(dict, kind) else kind.__name__


def shown(value: object) -> str:
    """A value as YAML writes it, cut to a short line."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=_plain)
    except ValueError:  # Python writes out 4300 digits at most
        text = "a number of thousands of digits"
    return cut(text)


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)


def cut(text: str) -> str:
    """A text cut to what a line can show."""
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 3]}..."
