"""check_call: compares a section of a file with a callable's parameters; gives one line of text for each problem."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, NewType, TypeVar, Union, get_args, get_origin

from nemo_lite.config.values import Config, Key, Keys, shown
from nemo_lite.errors import ConfigError, UnknownNameError, UsageError, did_you_mean

# Any: values are what a YAML file holds, annotations are what a user wrote.

T = TypeVar("T")
Misfit = tuple[Keys, Any, Any]  # keys that lead to the value, the value, the annotation that it does not fit


def check_call(section: Config, target: Callable[..., Any], *, given: Collection[str] = ()) -> list[str]:
    """One line for each problem with the call ``target(**section, **given)``.

    Problems are: an unknown key (the line names the nearest known one); a required parameter that is missing, unless an
    unknown key looks like its name misspelt; a value that does not fit the parameter's annotation. An int fits
    ``float``, a bool fits only ``bool``, a list fits ``tuple``. Annotations that cannot be resolved are not checked.

    Args:
        section: the keys.
        target: a class or a function.
        given: names of parameters that the caller supplies; the section must not have them.
    """
    parameters, takes_any = _parameters(target)
    annotations = _annotations(target, parameters)
    problems = []
    misspelt: set[str] = set()
    for key, value in section.items():
        if key in given:
            problems.append(f"{section.place(key)}: {section.path_of(key)} is set by the program; take it out")
        elif key in parameters:
            problems += _type_problems(section, key, value, annotations.get(key, Any))
        elif not takes_any:
            problems.append(unknown_key(section, key, parameters))
            misspelt.update(difflib.get_close_matches(key, parameters, n=1))
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


def _annotations(target: Callable[..., Any], names: Iterable[str]) -> dict[str, Any]:
    """The annotations that can be resolved. Resolves each alone: one that fails must not hide the others."""
    function = _function(target)
    raw = getattr(function, "__annotations__", {})
    found: dict[str, Any] = {}
    for name in names:
        holder = types.SimpleNamespace(__annotations__={name: raw.get(name, Any)})
        with contextlib.suppress(NameError):
            found |= typing.get_type_hints(holder, globalns=getattr(function, "__globals__", {}))
    return found


def _type_problems(section: Config, key: str, value: Any, annotation: Any) -> list[str]:
    return [
        f"{section.place(*keys)}: {section.path_of(*keys)} is {shown(item)}, wanted {_wanted(annotation)}"
        + (did_you_mean(item, _words(annotation)) if isinstance(item, str) else "")
        for keys, item, annotation in _misfits((key,), value, annotation)
    ]


def _misfits(keys: Keys, value: Any, annotation: Any) -> list[Misfit]:
    if isinstance(annotation, NewType):
        return _misfits(keys, value, annotation.__supertype__)
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _union_misfits(keys, value, annotation)
    if origin is Literal:
        fits = any(value == option and type(value) is type(option) for option in get_args(annotation))
        return [] if fits else [(keys, value, annotation)]
    wanted = origin or annotation
    if wanted in (Any, object) or not isinstance(wanted, type):
        return []
    inside = _inside(value, wanted, get_args(annotation))
    if inside is None:
        return [(keys, value, annotation)]
    return [misfit for key, item, option in inside for misfit in _misfits((*keys, key), item, option)]


def _union_misfits(keys: Keys, value: Any, annotation: Any) -> list[Misfit]:
    found = [_misfits(keys, value, option) for option in get_args(annotation)]
    if any(not misfits for misfits in found):
        return []
    # If exactly one alternative fits the list but not an item in it, report the item, not the list.
    inside = [misfits for misfits in found if all(where != keys for where, _, _ in misfits)]
    return inside[0] if len(inside) == 1 else [(keys, value, annotation)]


def _inside(value: Any, wanted: type, options: tuple[Any, ...]) -> Iterable[tuple[Key, Any, Any]] | None:
    """The values inside a list or mapping, each with its key and annotation; None if the value itself does not fit."""
    if isinstance(value, Mapping):
        option = options[1] if len(options) == 2 else Any
        fits = typing.is_typeddict(wanted) or issubclass(dict, wanted)
        return [(key, item, option) for key, item in value.items()] if fits else None
    if isinstance(value, list):
        if wanted is not tuple or not options or options[-1] is ...:
            options = (options[0] if options else Any,) * len(value)
        fits = (wanted is tuple or issubclass(list, wanted)) and len(options) == len(value)
        return zip(range(len(value)), value, options, strict=True) if fits else None
    return [] if type(value) is wanted or (wanted is float and type(value) is int) else None


def _words(annotation: Any) -> list[str]:
    """The strings that a Literal, or a union with one, allows."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [word for option in get_args(annotation) for word in _words(option)]
    return [word for word in get_args(annotation) if isinstance(word, str)]


def _wanted(annotation: Any) -> str:
    """An annotation in YAML's terms."""
    origin, options = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_wanted(option) for option in options)
    if origin is Literal:
        return " or ".join(shown(option) for option in options)
    if annotation in (None, type(None)):
        return "null"
    wanted = origin or annotation
    if not isinstance(wanted, type):
        return str(annotation)
    if wanted is tuple and options and options[-1] is not ...:
        return f"a list of {len(options)}: {', '.join(_wanted(option) for option in options)}"
    if wanted is tuple or (wanted is not dict and issubclass(list, wanted)):
        return f"a list of {_wanted(options[0])}" if options and options[0] is not Any else "a list"
    return "a mapping" if issubclass(dict, wanted) else wanted.__name__
