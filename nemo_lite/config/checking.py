"""check_call: compares a section of a file with a callable's parameters; gives one line of text for each problem."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NewType, TypeVar, Union, get_args, get_origin

from nemo_lite.config.ranges import RANGES, Checked, Finite, annotations_of, got, wanted
from nemo_lite.config.values import Config, Key, Keys
from nemo_lite.errors import ConfigError, UnknownNameError, UsageError, did_you_mean, nearest

# Any: values are what a YAML file holds, annotations are what a user wrote.

T = TypeVar("T")
Misfit = tuple[Keys, Any, Any]  # keys that lead to the value, the value, the annotation that it does not fit

_FINITE_ONLY = Finite()
_FINITE = Annotated[float, _FINITE_ONLY]
# Of one section; to look for the nearest of known keys takes a while for each.
_MAX_UNKNOWN_KEYS = 20


def check_call(section: Config, target: Callable[..., Any], *, given: Collection[str] = ()) -> list[str]:
    """One line for each problem with the call ``target(**section, **given)``.

    Problems are: an unknown key (the line names the nearest known one); a required parameter that is missing, unless an
    unknown key looks like its name misspelt; a value that does not fit the parameter's annotation. An int fits
    ``float``, a bool fits only ``bool``, a list fits ``tuple``. Ranges in annotations count, see ``ranges``; NaN and
    infinity fit only where a range has them. Annotations that cannot be resolved are not checked.

    Args:
        section: the keys.
        target: a class or a function.
        given: names of parameters that the caller supplies; the section must not have them.
    """
    parameters, takes_any = _parameters(target)
    annotations = annotations_of(_function(target))
    problems = []
    misspelt: set[str] = set()
    unknown = [] if takes_any else [key for key in section if key not in parameters and key not in given]
    told = {*unknown[:_MAX_UNKNOWN_KEYS]}
    for key, value in section.items():
        if key in given:
            problems.append(f"{section.place(key)}: {section.path_of(key)} is set by the program; take it out")
        elif key in parameters:
            problems += _type_problems(section, key, value, annotations.get(key, Any))
        elif takes_any:
            problems += _type_problems(section, key, value, Any)
        elif key in told:
            problems.append(unknown_key(section, key, parameters))
            misspelt.update(nearest(key, parameters))
    if more := unknown[_MAX_UNKNOWN_KEYS:]:
        problems.append(f"{section.place(more[0])}: {len(more)} more keys of {section.path} are not known")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in {*section, *given, *misspelt}:
            problems.append(f"{section.place()}: {section.path_of(name)} is missing")
    return problems


def unknown_key(section: Config, key: str, known: Collection[str]) -> str:
    """The line for an unknown key; it names the nearest known one, or all."""
    remedy = did_you_mean(key, known) or f"; known: {', '.join(sorted(known))}"
    return f"{section.place(key)}: {section.path_of(key)} is not a key{remedy}"


def raise_if(problems: Iterable[str]) -> None:
    """Raise one ConfigError with all problems, if there are any: each once, in the order of lines and columns."""
    problems = sorted(dict.fromkeys(problems), key=_position)
    if problems:
        raise ConfigError(*problems)


def _position(problem: str) -> tuple[str, int, int]:
    match = re.match(r"(.*?):(\d+):(\d+): ", problem)
    return (match[1], int(match[2]), int(match[3])) if match else ("", 0, 0)


def build(target: Callable[..., T], section: Config, **given: Any) -> T:
    """``target(**section, **given)``, checked first.

    Raises:
        ConfigError: the section does not fit, or the target itself refused a value; with the place in the file.
    """
    raise_if(check_call(section, target, given=given))
    try:
        return target(**section.plain(), **given)
    except (UsageError, UnknownNameError) as error:
        text = str(error).removeprefix(f"{section.path}: ")
        path = f"{section.path}: " if section.path else ""  # that of a section which the file leaves out is empty
        raise ConfigError(f"{section.place_to_blame()}: {path}{text}") from error


def _function(target: Callable[..., Any]) -> Callable[..., Any]:
    # Not inspect.signature of the class itself: a metaclass with a __call__ would hide __init__.
    entry = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    function: Callable[..., Any] = inspect.unwrap(entry)
    return function


def _parameters(target: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """The parameters that can be given by name, and whether there is ``**kwargs``."""
    parameters = list(inspect.signature(_function(target)).parameters.values())
    if isinstance(target, type):
        parameters = parameters[1:]
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _type_problems(section: Config, key: str, value: Any, annotation: Any) -> list[str]:
    problems = [
        f"{section.place(*keys)}: {section.path_of(*keys)} is {got(item, annotation)}, wanted {wanted(annotation)}"
        + (did_you_mean(item, _words(annotation)) if isinstance(item, str) else "")
        for keys, item, annotation in _misfits((key,), value, annotation)
    ]
    return problems or [*_problems_inside(value, annotation)]


def _problems_inside(value: Any, annotation: Any) -> Iterator[str]:
    """What the functions say that check the keys of mappings."""
    origin, options = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        for option in options:
            yield from _problems_inside(value, option)
    elif origin is Annotated:
        for mark in options[1:]:
            if isinstance(mark, Checked) and isinstance(value, Config):
                yield from mark.check(value)
        yield from _problems_inside(value, options[0])
    elif isinstance(value, list) and options:
        for item in value:
            yield from _problems_inside(item, options[0])


def _misfits(keys: Keys, value: Any, annotation: Any) -> list[Misfit]:
    if isinstance(annotation, NewType):
        return _misfits(keys, value, annotation.__supertype__)
    origin = get_origin(annotation)
    if origin is Annotated:
        return _range_misfits(keys, value, annotation)
    if origin in (Union, types.UnionType):
        return _union_misfits(keys, value, annotation)
    if origin is Literal:
        fits = any(value == option and type(value) is type(option) for option in get_args(annotation))
        return [] if fits else [(keys, value, annotation)]
    kind = origin or annotation
    if kind in (Any, object) or not isinstance(kind, type):
        return [(where, item, _FINITE) for where, item in _not_finite(keys, value)]
    if kind is float and isinstance(value, float):
        return [(keys, value, _FINITE)] if _FINITE_ONLY.refuses(value) else []
    inside = _inside(value, kind, get_args(annotation))
    if inside is None:
        return [(keys, value, annotation)]
    return [misfit for key, item, option in inside for misfit in _misfits((*keys, key), item, option)]


def _range_misfits(keys: Keys, value: Any, annotation: Any) -> list[Misfit]:
    base, *marks = get_args(annotation)
    ranges = [mark for mark in marks if isinstance(mark, RANGES)]
    if any(each.refuses(value) for each in ranges):
        return [(keys, value, annotation)]
    if ranges and base is float and type(value) is float:
        return []  # also infinity, where the range has it
    return [(where, item, annotation if where == keys else other) for where, item, other in _misfits(keys, value, base)]


def _not_finite(keys: Keys, value: Any) -> Iterable[tuple[Keys, float]]:
    if _FINITE_ONLY.refuses(value):
        yield keys, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _not_finite((*keys, key), item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _not_finite((*keys, index), item)


def _union_misfits(keys: Keys, value: Any, annotation: Any) -> list[Misfit]:
    found = [_misfits(keys, value, option) for option in get_args(annotation)]
    if any(not misfits for misfits in found):
        return []
    # If exactly one alternative fits the list but not an item in it, report the item, not the list.
    inside = [misfits for misfits in found if all(where != keys for where, _, _ in misfits)]
    return inside[0] if len(inside) == 1 else [(keys, value, annotation)]


def _inside(value: Any, kind: type, options: tuple[Any, ...]) -> Iterable[tuple[Key, Any, Any]] | None:
    """The values inside a list or mapping, each with its key and annotation; None if the value itself does not fit."""
    if isinstance(value, Mapping):
        option = options[1] if len(options) == 2 else Any
        fits = typing.is_typeddict(kind) or issubclass(dict, kind)
        return [(key, item, option) for key, item in value.items()] if fits else None
    if isinstance(value, list):
        if kind is not tuple or not options or options[-1] is ...:
            options = (options[0] if options else Any,) * len(value)
        fits = (kind is tuple or issubclass(list, kind)) and len(options) == len(value)
        return zip(range(len(value)), value, options, strict=True) if fits else None
    return [] if type(value) is kind or (kind is float and type(value) is int) else None


def _words(annotation: Any) -> list[str]:
    """The strings that a Literal, or a union with one, allows."""
    if get_origin(annotation) is Annotated:
        return _words(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [word for option in get_args(annotation) for word in _words(option)]
    return [word for word in get_args(annotation) if isinstance(word, str)]
