"""Ranges of arguments, said once, beside the parameter: ``Annotated[int, Between(1, 4096)]``. No files in here.

``check_call`` compares the keys of a file with them, :func:`refuse_out_of_range` the arguments of a script; both say
the same line. The tables of the reference are written from them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, Literal, NewType, ParamSpec, TypeVar, Union, get_args, get_origin

from nemo_lite.config.values import Keys, dotted, shown
from nemo_lite.errors import OutOfRangeError

# Any: arguments are what YAML and users give, annotations are what a user wrote.

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Between:
    """Numbers from ``least`` to ``most``. NaN is in no range, infinity only where it is an end.

    Args:
        least: the first number of the range.
        most: the last one.
        above: ``least`` itself does not belong.
        below: ``most`` itself does not belong.
        also: single numbers that mean something else, such as -1 for all.
    """

    least: float
    most: float
    above: bool = False
    below: bool = False
    also: tuple[float, ...] = ()

    def __str__(self) -> str:
        if self.least == self.most:
            text = _number(self.least)
        elif math.isinf(self.most):
            text = f"{'above' if self.above else 'from'} {_number(self.least)} on"
        else:
            start = f"above {_number(self.least)}, " if self.above else f"from {_number(self.least)}"
            end = f"below {_number(self.most)}" if self.below else f"{'up ' * self.above}to {_number(self.most)}"
            text = f"{start}{end}" if self.above else f"{start}{', ' if self.below else ' '}{end}"
        return " or ".join([text, *map(_number, self.also)])

    def refuses(self, value: object) -> bool:
        """Whether it is a number outside of the range."""
        if not isinstance(value, Real) or isinstance(value, bool):
            return False
        number: Any = value  # whole numbers stay whole: they may be too large for a float
        from_least = number > self.least if self.above else number >= self.least
        to_most = number < self.most if self.below else number <= self.most
        return not (from_least and to_most) and number not in self.also


WAITING_SECONDS = Between(0, 604_800, above=True)
"""How long processes may wait for each other: up to a week."""


@dataclass(frozen=True)
class Letters:
    """Texts of at most so many letters."""

    most: int

    def __str__(self) -> str:
        return f"of at most {self.most} letters"

    def refuses(self, value: object) -> bool:
        """Whether it is a longer text."""
        return isinstance(value, str) and len(value) > self.most


@dataclass(frozen=True)
class Items:
    """Lists and mappings of so many items."""

    least: int
    most: int

    def __str__(self) -> str:
        start = f"{self.least} to " if self.least else "at most "
        count = f"{start * (self.least != self.most)}{self.most}"
        return f"({count} item{'s' * (self.most != 1)})"

    def refuses(self, value: object) -> bool:
        """Whether it is a list or a mapping of fewer or more."""
        counted = isinstance(value, (Sequence, Mapping)) and not isinstance(value, (str, bytes))
        return counted and not self.least <= len(value) <= self.most  # type: ignore[arg-type]  # it is counted


@dataclass(frozen=True)
class Finite:
    """Any number but NaN and infinity: what a file may give where there is no range."""

    def __str__(self) -> str:
        return "that is finite"

    def refuses(self, value: object) -> bool:
        """Whether it is another number."""
        return isinstance(value, float) and not math.isfinite(value)


@dataclass(frozen=True)
class Checked:
    """A mapping whose keys a function checks: given the section of a file, it returns a line for each problem."""

    check: Callable[[Any], list[str]]


RANGES = (Between, Letters, Items, Finite)


def annotations_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The annotations that can be resolved, with their ranges, by parameter.

    Each is resolved alone: one that fails must not hide the others.
    """
    return _resolved(inspect.unwrap(function))


@functools.lru_cache(maxsize=1024)  # of each constructor once: resolving takes longer than making a small module
def _resolved(function: Callable[..., Any]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for name, raw in getattr(function, "__annotations__", {}).items():
        holder = types.SimpleNamespace(__annotations__={name: raw})
        with contextlib.suppress(NameError):
            names = getattr(function, "__globals__", {})
            found |= typing.get_type_hints(holder, globalns=names, include_extras=True)
    return types.MappingProxyType(found)


def refuse_out_of_range(function: Callable[..., Any], arguments: Mapping[str, Any], place: str) -> None:
    """Refuse the first of a call's arguments that is outside of the range beside its parameter. Types do not count.

    Args:
        function: whose annotations are read.
        arguments: by name.
        place: who is called, for the message: a class's name.

    Raises:
        OutOfRangeError: ``place.argument is 0, wanted int from 1 to 4096``.
    """
    annotations = annotations_of(function)
    for name, value in arguments.items():
        if name in annotations:
            for keys, item, annotation in _strays((name,), value, annotations[name]):
                raise OutOfRangeError(f"{place}.{dotted(keys)}", got(item, annotation), wanted(annotation))


def is_out_of_range(value: object, annotation: Any) -> bool:
    """Whether a value, or one in it, is outside of its range. Types do not count."""
    return any(_strays((), value, annotation))


def within_ranges(constructor: Callable[P, T]) -> Callable[P, T]:
    """A constructor that refuses arguments outside of their ranges. Neural modules do so without it."""
    signature = inspect.signature(constructor)

    @functools.wraps(constructor)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        with contextlib.suppress(TypeError):  # the call itself says so, in Python's usual words
            bound = dict(signature.bind(*args, **kwargs).arguments)
            refuse_out_of_range(constructor, bound, type(bound.pop("self", None)).__name__)
        return constructor(*args, **kwargs)

    return checked


def _strays(keys: Keys, value: Any, annotation: Any) -> Iterator[tuple[Keys, Any, Any]]:
    """The values outside of their range, each with its keys and annotation."""
    origin, options = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, NewType):
        yield from _strays(keys, value, annotation.__supertype__)
    elif origin is Annotated:
        if any(isinstance(mark, RANGES) and mark.refuses(value) for mark in options[1:]):
            yield keys, value, annotation
        else:
            yield from _strays(keys, value, options[0])
    elif origin in (Union, types.UnionType):
        found = [[*_strays(keys, value, option)] for option in options if _may_hold(value, option)]
        if found and all(found):
            inside = [strays for strays in found if all(where != keys for where, _, _ in strays)]
            yield from inside[0] if len(inside) == 1 else [(keys, value, annotation)]
    elif isinstance(value, Mapping) and len(options) == 2:
        for key, item in value.items():
            yield from _strays((*keys, str(key)), item, options[1])
    elif isinstance(value, (list, tuple)) and options:
        each = options if origin is tuple and options[-1] is not ... else (options[0],) * len(value)
        for index, (item, option) in enumerate(zip(value, each, strict=False)):
            yield from _strays((*keys, index), item, option)


def _may_hold(value: object, annotation: Any) -> bool:
    """Whether values of this kind (numbers, texts, lists, mappings, others) have their range in an annotation."""
    if get_origin(annotation) is Annotated:
        return _may_hold(value, get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return value in get_args(annotation) if isinstance(value, (str, int, float)) else False
    wanted = get_origin(annotation) or annotation
    if not isinstance(wanted, type):
        return wanted is Any
    if isinstance(value, Real) and not isinstance(value, bool):
        return wanted in (int, float)
    return isinstance(value, wanted)


def wanted(annotation: Any) -> str:
    """An annotation in YAML's terms, with its ranges: ``int from 1 to 4096 or null``."""
    origin, options = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return " ".join([wanted(options[0]), *(str(mark) for mark in options[1:] if isinstance(mark, RANGES))])
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


def got(value: Any, annotation: Any) -> str:
    """A value that does not fit an annotation, with its size where that is too much or too little."""
    options = get_args(annotation)
    kinds = options if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    marks = [mark for kind in kinds if get_origin(kind) is Annotated for mark in get_args(kind)[1:]]
    sized = [mark for mark in marks if isinstance(mark, (Letters, Items)) and mark.refuses(value)]
    unit = "letters" if isinstance(value, str) else "items"
    return f"{shown(value)} ({len(value)} {unit})" if sized else shown(value)


def without_range(annotation: Any, has_range: bool = False) -> list[str]:
    """What in an annotation has no range, of numbers, texts, lists and mappings; empty where everything has one."""
    origin, options = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, NewType):
        return without_range(annotation.__supertype__)
    if origin is Annotated:
        is_checked = any(isinstance(mark, Checked) for mark in options[1:])
        return [] if is_checked else without_range(options[0], any(isinstance(mark, RANGES) for mark in options[1:]))
    if origin in (Union, types.UnionType):
        return [each for option in options for each in without_range(option)]
    kind = origin or annotation
    is_plain = kind in (int, float, str, Any)
    is_list = isinstance(kind, type) and (issubclass(list, kind) or issubclass(dict, kind) or kind is tuple)
    if not is_plain and not (is_list and kind is not object):
        return []
    is_fixed = kind is tuple and options and options[-1] is not ...
    inside = options[1:] if isinstance(kind, type) and issubclass(dict, kind) else options
    missing = [each for option in inside if option is not ... for each in without_range(option)]
    return [wanted(annotation)] * (not has_range and not is_fixed) + missing


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
