"""check_call: does a section of a file fit the parameters of a callable? Its answer is lines of text."""

from __future__ import annotations

import difflib
import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, NewType, TypeVar, Union, get_args, get_origin

from nemo_lite.config.values import Config, Keys, shown
from nemo_lite.errors import ConfigError, UnknownNameError, UsageError, did_you_mean

# Any: values are what a YAML file holds, annotations are what a user wrote.

T = TypeVar("T")
Misfit = tuple[Keys, Any, Any]  # where, the value, the annotation that it does not fit


def check_call(section: Config, target: Callable[..., Any], *, given: Collection[str] = ()) -> list[str]:
    """One line for each thing that keeps ``target(**section, **given)`` from being called.

    An unknown key (with the nearest known one), a required parameter that is missing (unless an unknown key looks like
    it misspelt: one mistake, one line), a value that does not fit the parameter's annotation. An int fits ``float``; a
    bool fits ``bool`` only; a list fits ``tuple``. Annotations that cannot be resolved are not checked.

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
    """The line that says that ``key`` is none of the known ones, with the nearest of them."""
    remedy = did_you_mean(key, known) or f"; known: {', '.join(sorted(known))}"
    return f"{section.place(key)}: {section.path_of(key)} is not a key{remedy}"


def raise_if(problems: Iterable[str]) -> None:
    """Raise one ConfigError with all the problems, if there are any: each once, from the top of a file to its end."""
    problems = sorted(dict.fromkeys(problems), key=_position)
    if problems:
        raise ConfigError(*problems)


def _position(problem: str) -> tuple[str, int, int]:
    match = re.match(r"(.*?):(\d+):(\d+): ", problem)
    return (match[1], int(match[2]), int(match[3])) if match else ("", 0, 0)


def build(target: Callable[..., T], section: Config, **given: Any) -> T:
    """``target(**section, **given)``, checked first.

    Raises:
        ConfigError: the section does not fit, or the target itself refused a value; names the place in the file.
    """
    raise_if(check_call(section, target, given=given))
    try:
        return target(**section.plain(), **given)
    except (UsageError, UnknownNameError) as error:
        text = str(error).removeprefix(f"{section.path}: ")
        raise ConfigError(f"{section.place()}: {section.path}: {text}") from error


def _function(target: Callable[..., Any]) -> Callable[..., Any]:
    # A class is asked for its own __init__: a metaclass with a __call__ would hide it from inspect.signature.
    entry = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    function: Callable[..., Any] = inspect.unwrap(entry)
    return function


def _parameters(target: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """The parameters that can be named, and whether any other name is taken too (``**kwargs``)."""
    parameters = list(inspect.signature(_function(target)).parameters.values())
    if isinstance(target, type):
        parameters = parameters[1:]
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _annotations(target: Callable[..., Any], names: Iterable[str]) -> dict[str, Any]:
    """The annotations that can be resolved; each on its own, so that one that cannot does not hide the others."""
    function = _function(target)
    raw = getattr(function, "__annotations__", {})
    found = {}
    for name in names:
        holder = types.SimpleNamespace(__annotations__={name: raw.get(name, Any)})
        try:
            found.update(typing.get_type_hints(holder, globalns=getattr(function, "__globals__", {})))
        except NameError:
            continue
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
    if isinstance(value, list):
        return _list_misfits(keys, value, annotation)
    if isinstance(value, Mapping):
        return _mapping_misfits(keys, value, annotation)
    fits = type(value) is wanted or (wanted is float and type(value) is int)
    return [] if fits else [(keys, value, annotation)]


def _union_misfits(keys: Keys, value: Any, annotation: Any) -> list[Misfit]:
    found = [_misfits(keys, value, option) for option in get_args(annotation)]
    if any(not misfits for misfits in found):
        return []
    # A list that fails inside one alternative only is told about the item, not about the list.
    inside = [misfits for misfits in found if all(place != keys for place, _, _ in misfits)]
    return inside[0] if len(inside) == 1 else [(keys, value, annotation)]


def _list_misfits(keys: Keys, value: list[Any], annotation: Any) -> list[Misfit]:
    wanted, options = get_origin(annotation) or annotation, get_args(annotation)
    if wanted is not tuple and not issubclass(list, wanted):
        return [(keys, value, annotation)]
    if wanted is tuple and options and options[-1] is not ...:
        if len(options) != len(value):
            return [(keys, value, annotation)]
    else:
        options = (options[0] if options else Any,) * len(value)
    pairs = enumerate(zip(value, options, strict=True))
    return [misfit for index, (item, option) in pairs for misfit in _misfits((*keys, index), item, option)]


def _mapping_misfits(keys: Keys, value: Mapping[str, Any], annotation: Any) -> list[Misfit]:
    wanted = get_origin(annotation) or annotation
    if not typing.is_typeddict(wanted) and not issubclass(dict, wanted):
        return [(keys, value, annotation)]
    option = get_args(annotation)[1] if len(get_args(annotation)) == 2 else Any
    return [misfit for key, item in value.items() for misfit in _misfits((*keys, key), item, option)]


def _words(annotation: Any) -> list[str]:
    """The strings that a Literal, or a union with one, allows."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [word for option in get_args(annotation) for word in _words(option)]
    return [word for word in get_args(annotation) if isinstance(word, str)]


def _wanted(annotation: Any) -> str:
    """An annotation in the words of a YAML file."""
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
