"""YAML to checked values: files with line and column of every key, types of arguments, overriding."""

from __future__ import annotations

import functools
import inspect
import io
import json
import math
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import CollectionStartEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.representer import SafeRepresenter

from nemo_lite.base.errors import (
    ConfigError,
    NemoLiteError,
    UnknownNameError,
    UsageError,
    did_you_mean,
    nearest,
)
from nemo_lite.base.files import FileKind, read_text
from nemo_lite.base.ranges import annotations_of, cut, is_out_of_range, ranges_of, wanted
from nemo_lite.base.ranges import shown as shown

# Config: a read-only mapping that knows the line and column of each key. No reading of files and no checks here.


# Any: values are what a YAML file holds.

Key = str | int
Keys = tuple[Key, ...]


@dataclass(frozen=True)
class Source:
    """One file: its name, line and column of each value (from 1), and which values have an anchor.

    ``overrides`` are the places of values that do not come from the file: ``--set KEY=VALUE``.
    """

    name: str
    marks: dict[Keys, tuple[int, int]] = field(default_factory=dict)
    anchored: set[Keys] = field(default_factory=set)
    overrides: dict[Keys, str] = field(default_factory=dict)

    def place(self, keys: Keys) -> str:
        """``file:line:col`` of the value at ``keys``, or of the nearest value around it that the file has."""
        overridden = self.override_of(keys)
        if overridden:
            return overridden
        line, column = self.mark(keys)
        return f"{self.name}:{line}:{column}"

    def spot(self, keys: Keys) -> str:
        """As ``place``, within the file: ``line 12``."""
        return self.override_of(keys) or f"line {self.mark(keys)[0]}"

    def override_of(self, keys: Keys) -> str:
        """The setting of the value at ``keys``, or one around it; "" where that is the file."""
        prefixes = (keys[:length] for length in range(len(keys), 0, -1))
        return next((self.overrides[prefix] for prefix in prefixes if prefix in self.overrides), "")

    def mark(self, keys: Keys) -> tuple[int, int]:
        """Line and column of the value at ``keys``, or of the nearest value around it that the file has."""
        while keys not in self.marks and keys:
            keys = keys[:-1]
        return self.marks.get(keys, (1, 1))


class Config(Mapping[str, Any]):
    """A mapping of a YAML file, read-only. Mappings inside are Config too, lists are lists.

    Two are equal if their values are equal; places do not count.
    """

    __slots__ = ("_homes", "_keys", "_source", "_values")

    def __init__(self, values: Mapping[str, object], source: Source, keys: Keys = ()) -> None:
        self._values = dict(values)
        self._source = source
        self._keys = keys
        self._homes: dict[str, Keys] = {}  # for a key from another mapping: the keys of that mapping

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Config({self.place()}, {self.plain()})"

    @property
    def source(self) -> Source:
        """The file that it is from."""
        return self._source

    @property
    def path(self) -> str:
        """The dotted path inside the file, such as ``JasperEncoder.jasper[2]``; empty for the whole file."""
        return self.path_of()

    def path_of(self, *keys: Key) -> str:
        """The dotted path of a value inside this mapping."""
        return dotted(self._full(keys))

    def place(self, *keys: Key) -> str:
        """``file:line:col`` of this mapping, or of the value that ``keys`` lead to.

        A value in a mapping has its key's place; one that a merge key brought has the place where it is written.
        """
        return self._source.place(self._full(keys))

    def place_to_blame(self) -> str:
        """``place()``; or what set a value inside this mapping from outside, because the file alone may be right."""
        inside = (place for keys, place in self._source.overrides.items() if keys[: len(self._keys)] == self._keys)
        return next(inside, self.place())

    def spot(self, *keys: Key) -> str:
        """As ``place``, for a text that names the file already: ``line 12``, or what set the value."""
        return self._source.spot(self._full(keys))

    def tells_place(self, problem: str) -> bool:
        """Whether a problem begins with a place of this file."""
        return problem.startswith((f"{self._source.name}:", *self._source.overrides.values()))

    def _full(self, keys: Keys) -> Keys:
        home = self._homes.get(keys[0], self._keys) if keys and isinstance(keys[0], str) else self._keys
        return home + keys

    def anchored(self, key: str) -> bool:
        """Whether the value of ``key`` has an anchor, so that aliases in the file can refer to it."""
        return (*self._keys, key) in self._source.anchored

    def overridden(self, key: str) -> bool:
        """Whether the value of ``key``, or one inside it, does not come from the file."""
        full = self._full((key,))
        return any(keys[: len(full)] == full for keys in self._source.overrides)

    def without(self, *keys: str) -> Config:
        """This mapping without some keys."""
        left_out = frozenset(keys)  # a hostile file has thousands of keys: no search in a tuple for each
        remaining = Config({key: value for key, value in self.items() if key not in left_out}, self._source, self._keys)
        remaining._homes = self._homes
        return remaining

    def overlaid(self, other: Config) -> Config:
        """Both mappings, of one file; ``other`` wins where both have a key. Each key keeps its place."""
        both = Config({**self, **other}, self._source, self._keys)
        both._homes = {key: owner._full((key,))[:-1] for owner in (self, other) for key in owner}
        return both

    def plain(self) -> dict[str, Any]:
        """A deep copy in dicts, lists and scalars."""
        return {key: _plain(value) for key, value in self._values.items()}

    def as_yaml(self) -> str:
        """The values as YAML 1.2, aliases filled in, without comments: reading it gives an equal mapping."""
        yaml = YAML(typ="safe", pure=True)
        yaml.Representer = _QuotingRepresenter
        yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # missing in ruamel's annotation
        yaml.default_flow_style = None  # lists of scalars in one line
        yaml.width = 120
        values = self.plain()
        # ruamel.yaml writes these as they are and reads them as line ends; then everything is escaped.
        yaml.allow_unicode = not re.search("[\x85\u2028\u2029\ufeff]", json.dumps(values, ensure_ascii=False))
        text = io.StringIO()
        yaml.dump(values, text)
        return text.getvalue()


class _QuotingRepresenter(SafeRepresenter):
    """Quotes text that is not a plain word: ruamel.yaml itself does not in places where ``?0`` or ``:0`` need it."""


def _represented(representer: SafeRepresenter, text: str) -> ScalarNode:
    style = None if re.fullmatch(r"\w[\w./ -]*", text) else '"'
    node: ScalarNode = representer.represent_scalar("tag:yaml.org,2002:str", text, style)
    return node


_QuotingRepresenter.add_representer(str, _represented)


def _plain(value: object) -> object:
    if isinstance(value, Config):
        return value.plain()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def dotted(keys: Keys) -> str:
    """``("JasperEncoder", "jasper", 2)`` as ``JasperEncoder.jasper[2]``."""
    text = ""
    for key in keys:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += ("." if text else "") + cut(key if re.fullmatch(r"[\w<>-]+", key) else json.dumps(key))
    return text


# check_call: compares a section of a file with a callable's parameters; gives one line of text for each problem.


# Any: values are what a YAML file holds, annotations are what a user wrote.

T = TypeVar("T")

Misfit = tuple[Keys, object, str]  # keys that lead to the value, the value, and what was wanted

# Of one section; to look for the nearest of known keys takes a while for each.
_MAX_UNKNOWN_KEYS = 20


@dataclass(frozen=True)
class Checked:
    """A mapping whose keys a function checks: given the section of a file, it returns a line for each problem."""

    check: Callable[[Any], list[str]]


def check_call(section: Config, target: Callable[..., object], *, given: Collection[str] = ()) -> list[str]:
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
    reported = set(unknown[:_MAX_UNKNOWN_KEYS])
    for key, value in section.items():
        if key in given:
            problems.append(f"{section.place(key)}: {section.path_of(key)} is set by the program; take it out")
        elif key in parameters:
            problems += _type_problems(section, key, value, annotations.get(key, Any))
        elif takes_any:
            problems += _type_problems(section, key, value, Any)
        elif key in reported:
            problems.append(unknown_key(section, key, parameters))
            misspelt.update(nearest(key, parameters))
    if more := unknown[_MAX_UNKNOWN_KEYS:]:
        problems.append(f"{section.place(more[0])}: {len(more)} more keys of {section.path} are not known")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in {*section, *given, *misspelt}:
            problems.append(f"{section.place()}: {section.path_of(name)} is missing")
    return problems


def unknown_key(section: Config, key: str, known: Collection[str], remedy: str = "") -> str:
    """The line for an unknown key; it names the nearest known one, and the remedy; or all, where there is neither."""
    remedy = f"{did_you_mean(key, known)}{remedy}" or f"; known: {', '.join(sorted(known))}"
    return f"{section.place(key)}: {section.path_of(key)} is not a key{remedy}"


def raise_if(problems: Iterable[str]) -> None:
    """Raise one ConfigError with all problems, if there are any: each once, in the order of lines and columns."""
    problems = sorted(dict.fromkeys(problems), key=_position)
    if problems:
        raise ConfigError(*problems)


def _position(problem: str) -> tuple[str, int, int]:
    match = re.match(r"(.*?):(\d+):(\d+): ", problem)
    return (match[1], int(match[2]), int(match[3])) if match else ("", 0, 0)


def build(target: Callable[..., T], section: Config, **given: object) -> T:
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


def _function(target: Callable[..., object]) -> Callable[..., object]:
    # Not inspect.signature of the class itself: a metaclass with a __call__ would hide __init__.
    entry = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    function: Callable[..., object] = inspect.unwrap(entry)
    return function


def _parameters(target: Callable[..., object]) -> tuple[dict[str, inspect.Parameter], bool]:
    """The parameters that can be given by name, and whether there is ``**kwargs``."""
    parameters = list(inspect.signature(_function(target)).parameters.values())
    if isinstance(target, type):
        parameters = parameters[1:]
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _type_problems(section: Config, key: str, value: object, annotation: object) -> list[str]:
    problems = [
        f"{section.place(*keys)}: {section.path_of(*keys)} is {shown(item)}, wanted {text}"
        + (did_you_mean(item, _words(annotation)) if isinstance(item, str) else "")
        for keys, item, text in _misfits((key,), value, annotation)
    ]
    return problems or [*_problems_inside(value, annotation)]


def _problems_inside(value: object, annotation: object) -> Iterator[str]:
    """The problems that the functions find which check the keys of mappings."""
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


def _misfits(keys: Keys, value: object, annotation: object) -> list[Misfit]:
    origin, options = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        ranges = ranges_of(annotation)
        if is_out_of_range(value, annotation):
            return [(keys, value, wanted(annotation))]
        if ranges and options[0] is float and isinstance(value, float):
            return []  # also infinity, where the range has it
        misfits = _misfits(keys, value, options[0])
        return [(where, item, wanted(annotation) if where == keys else text) for where, item, text in misfits]
    if origin in (Union, types.UnionType):
        by_option = [_misfits(keys, value, option) for option in options]
        if not all(by_option):
            return []
        # If exactly one alternative fits the list but not an item in it, report the item, not the list.
        inside_of = [of_one for of_one in by_option if all(where != keys for where, _, _ in of_one)]
        return inside_of[0] if len(inside_of) == 1 else [(keys, value, wanted(annotation))]
    if origin is Literal:
        fits = any(value == option and type(value) is type(option) for option in options)
        return [] if fits else [(keys, value, wanted(annotation))]
    kind = origin or annotation
    kind = kind if isinstance(kind, type) and kind is not Any else object
    if isinstance(value, float) and kind in (object, float):
        return [] if math.isfinite(value) else [(keys, value, "float that is finite")]
    if kind is object and not isinstance(value, (Mapping, list)):
        return []
    inside = _inside(value, kind, options)
    if inside is None:
        return [(keys, value, wanted(annotation))]
    return [misfit for key, item, option in inside for misfit in _misfits((*keys, key), item, option)]


def _inside(value: object, kind: type, options: tuple[object, ...]) -> Iterable[tuple[Key, object, object]] | None:
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


def _words(annotation: object) -> list[str]:
    """The strings that a Literal, or a union with one, allows."""
    if get_origin(annotation) is Annotated:
        return _words(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [word for option in get_args(annotation) for word in _words(option)]
    return [word for word in get_args(annotation) if isinstance(word, str)]


# load_config: reads a YAML 1.2 file into a Config, within bounds. It does not know what the values should be.
# ruamel.yaml composes the file into nodes with positions. This module turns the nodes into values itself, because it
# reports all duplicate keys at once, knows the place of merged keys and limits what aliases expand to. It makes plain
# values only, so that no tag runs code.


# Any: ruamel.yaml is not annotated, and values are what a YAML file holds.

# A list of 15,000 labels is within these bounds; the Chinese characters of our largest file are 3,755. To read what is
# just within them takes 1 s of processor time.
MAX_BYTES = 1 << 19
MAX_DEPTH = 64
MAX_VALUES = 100_000
MAX_COST = 16_000
_LARGEST_INT = 2**63 - 1
# Escapes can write them; no path may hold the first, and no file in UTF-8 the others, which are halves of characters.
_UNUSABLE = re.compile("[\0\ud800-\udfff]")


_KIND = FileKind(
    "the configuration", MAX_BYTES, lambda problem, **details: ConfigError(str(NemoLiteError(problem, **details)))
)

_TAG = "tag:yaml.org,2002:"
_COLLECTIONS = {f"{_TAG}map", f"{_TAG}seq"}
_NUMBERS = {f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float")}  # all that the constructor has to make
_TEXTS = {f"{_TAG}{kind}" for kind in ("str", "timestamp")}
_MERGE = f"{_TAG}merge"


def load_config(path: str | os.PathLike[str], *, number_keys: bool = False) -> Config:
    """Read a YAML file whose top level is a mapping.

    Numbers and words are those of YAML 1.2: ``1e-3`` is a number, ``no`` is text. Dates stay text.

    Args:
        path: the file.
        number_keys: keys may be integers too, and are read as text: ``0: a`` as ``"0": a``.

    Raises:
        ConfigError: the file is missing (with near names in its folder), larger than MAX_BYTES, nested deeper than
            MAX_DEPTH, has more values than MAX_COST (a list or a mapping counts as three, an anchor as one), grows
            beyond MAX_VALUES through aliases, is not UTF-8 or not YAML, has a key twice, or a whole number of more than
            64 bits.
    """
    name = os.fspath(path)
    return parse_config(_text(Path(path), name), name, number_keys=number_keys)


def parse_config(text: str, name: str, *, number_keys: bool = False) -> Config:
    """As ``load_config``, from a text; ``name`` stands for the file in messages.

    Raises:
        ConfigError: as there.
    """
    source = Source(name)
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{name}: larger than {MAX_BYTES} bytes, which no configuration needs to be")
    config = parse_value(text, source, number_keys=number_keys)
    if not isinstance(config, Config):
        raise ConfigError(f"{source.place(())}: {shown(config)} where a mapping of sections was expected")
    return config


def parse_value(text: str, source: Source, keys: Keys = (), *, number_keys: bool = False) -> object:
    """The value that a YAML text holds: a Config, a list or a scalar. ``keys`` lead to it in its file, the source.

    Raises:
        ConfigError: as for ``load_config``.
    """
    constructor = YAML(typ="safe", pure=True).constructor
    values = _Values(source, constructor, _TEXTS | {f"{_TAG}int"} if number_keys else _TEXTS)
    value = values.value(_compose(text, source.name), keys)
    if values.problems():
        raise ConfigError(*values.problems())
    return value


@functools.lru_cache(maxsize=16)  # a start reads a configuration four times: options, task, labels, modules
def _compose(text: str, name: str) -> Node:
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _BoundedComposer
    try:
        node = yaml.compose(text)
    except MarkedYAMLError as error:
        mark, context = error.problem_mark or error.context_mark, ""
        if error.context and error.context_mark:
            context = f"{error.context} (line {error.context_mark.line + 1}): "
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise ConfigError(f"{place}: cannot be parsed: {' '.join(f'{context}{error.problem}'.split())}") from None
    except AssertionError:  # ruamel.yaml's, for a version other than 1.1 and 1.2
        raise ConfigError(f"{name}: its %YAML line asks for a version that is not read here; take it out") from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{name}:{line}: character {error.character:#04x} has no place in YAML") from None
    if not isinstance(node, Node):
        raise ConfigError(f"{name}: the file is empty, a mapping of sections was expected")
    return node


class _BoundedComposer(Composer):
    """Stops at MAX_DEPTH, which comes long before the interpreter's recursion limit, and at MAX_COST."""

    def __init__(self, loader: object = None) -> None:
        super().__init__(loader=loader)
        self.nesting = self.cost = 0
        self.warn_double_anchors = False

    def compose_node(self, parent: object, index: object) -> Node | None:
        self.nesting += 1
        event = self.parser.peek_event()
        self.cost += 1 + 2 * isinstance(event, CollectionStartEvent) + bool(getattr(event, "anchor", None))
        if self.nesting > MAX_DEPTH:
            raise ComposerError(None, None, f"nested deeper than {MAX_DEPTH} levels", event.start_mark)
        if self.cost > MAX_COST:
            problem = f"more than {MAX_COST} values (a list or mapping counts as three, an anchor as one)"
            raise ComposerError(None, None, problem, event.start_mark)
        node: Node | None = super().compose_node(parent, index)
        self.nesting -= 1
        return node


class _Values:
    """Turns nodes into values and collects the problems."""

    def __init__(self, source: Source, constructor: Any, key_tags: set[str]) -> None:
        self.source = source
        self._key_tags = key_tags
        self._problems: dict[tuple[int, int], str] = {}  # by place: a mapping that is merged twice reports once
        self._constructor = constructor
        self._anchored: dict[int, Keys] = {}  # by the node's id
        self._count = 0

    def problems(self) -> list[str]:
        """One line each, from the top of the file to its end."""
        return [text for _, text in sorted(self._problems.items())]

    def value(self, node: Node, keys: Keys) -> object:
        self._spend(node, keys)
        self.source.marks.setdefault(keys, _mark(node))
        # An alias is the anchored node itself, visited again: the first visit gives the anchor's own place.
        if node.anchor and self._anchored.setdefault(id(node), keys) == keys:
            self.source.anchored.add(keys)
        if node.tag not in (_TEXTS | _NUMBERS if isinstance(node, ScalarNode) else _COLLECTIONS):
            self._problem(node, f"{dotted(keys)} has the tag {_short(node.tag)}, which is not read here")
        if isinstance(node, MappingNode):
            values = {}
            for key, (key_node, value_node) in self._entries(node, keys).items():
                self.source.marks[(*keys, key)] = _mark(key_node)
                values[key] = self.value(value_node, (*keys, key))
            return Config(values, self.source, keys)
        if isinstance(node, SequenceNode):
            return [self.value(item, (*keys, index)) for index, item in enumerate(node.value)]
        return self._number(node, keys) if node.tag in _NUMBERS else self._text(node, keys)

    def _spend(self, node: Node, keys: Keys) -> None:
        self._count += 1
        if self._count > MAX_VALUES:
            self._stop(node, f"more than {MAX_VALUES} values once aliases are filled in")
        if len(keys) > MAX_DEPTH:
            self._stop(node, f"nested deeper than {MAX_DEPTH} levels once aliases are filled in")

    def _entries(self, node: MappingNode, keys: Keys, merges: int = 0) -> dict[str, tuple[Node, Node]]:
        """The nodes of keys and values, by key: a mapping's own, then those it merges; the first one counts."""
        if merges > MAX_DEPTH:
            self._stop(node, f"merges more than {MAX_DEPTH} mappings within each other")
        entries: dict[str, tuple[Node, Node]] = {}
        merged: dict[str, tuple[Node, Node]] = {}
        for key_node, value_node in node.value:
            self._spend(key_node, keys)
            key, is_scalar = key_node.value, isinstance(key_node, ScalarNode)
            if key_node.tag == _MERGE:
                sources = value_node.value if isinstance(value_node, SequenceNode) else [value_node]
                if all(isinstance(source, MappingNode) for source in sources):
                    for source in sources:
                        merged = self._entries(source, keys, merges + 1) | merged
                else:
                    self._problem(value_node, "<< can merge a mapping or a list of mappings only")
            elif is_scalar and _UNUSABLE.search(key):
                self._text(key_node, (*keys, key))
            elif not is_scalar or key_node.tag not in self._key_tags:
                what = f"key {key}" if is_scalar else "a list or a mapping as a key"
                self._problem(key_node, f"{what} is not text; write it in quotes")
            elif key in entries:
                first, _ = _mark(entries[key][0])
                self._problem(key_node, f"{dotted((*keys, key))} is given twice (first on line {first})")
            else:
                entries[key] = (key_node, value_node)
        return entries | {key: pair for key, pair in merged.items() if key not in entries}

    def _text(self, node: Node, keys: Keys) -> str:
        text = str(node.value)
        if unusable := _UNUSABLE.search(text):
            self._problem(node, f"{dotted(keys)} holds {ord(unusable[0]):#06x}, which is no character of a text")
        return text

    def _number(self, node: Node, keys: Keys) -> object:
        try:
            number = self._constructor.construct_object(node)
        except (ValueError, LookupError, OverflowError, YAMLError):
            self._problem(node, f"{dotted(keys)} is {shown(node.value)}, which does not fit its tag {_short(node.tag)}")
            return None
        if isinstance(number, int) and abs(number) > _LARGEST_INT:
            self._problem(node, f"{dotted(keys)} is {shown(node.value)}, wanted a number of at most 64 bits")
        return number

    def _problem(self, node: Node, text: str) -> None:
        line, column = _mark(node)
        self._problems.setdefault((line, column), f"{self.source.name}:{line}:{column}: {text}")

    def _stop(self, node: Node, text: str) -> NoReturn:
        self._problem(node, text)
        raise ConfigError(*self.problems())


def _short(tag: str | None) -> str:
    return str(tag).replace(_TAG, "!!")


def _mark(node: Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _text(path: Path, name: str) -> str:
    if not os.path.lexists(path):
        raise ConfigError(_missing(path, name))
    return read_text(path, _KIND, place=name)


def _missing(path: Path, name: str) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"{name}: no such file, there is no folder {folder}"
    files = sorted(entry.name for entry in folder.iterdir() if entry.suffix in {".yaml", ".yml"})
    near = nearest(path.name, files, count=3)
    if near:
        return f"{name}: no such file (did you mean {' or '.join(near)}?)"
    listing = f"has {', '.join(files)}" if files else "has no YAML file"
    return f"{name}: no such file; {folder} {listing}"


# override: a configuration with some values set from outside, as ``--set KEY=VALUE`` does. No checks of keys here.


# Any: values are what a YAML file holds.


def override(config: Config, settings: Sequence[str]) -> Config:
    """A whole file's mapping with other values; those that come from here have ``--set KEY=VALUE`` as their place.

    Args:
        config: the mapping of :func:`load_config`.
        settings: each ``KEY=VALUE``. ``JasperEncoder.jasper.0.dropout`` (also ``JasperEncoder.jasper[0].dropout``) is a
            key; the value is YAML: a number, text, a list such as ``[1, 2]``, ``null``. A key that the file does not
            have is added: whether anything takes it is for those who check the file.

    Raises:
        ConfigError: one line for each setting that cannot be read, leads to no item of a list, leads through a value
            that holds no others, or sets what another one sets.
    """
    if not settings:
        return config
    source = Source(config.source.name, config.source.marks, config.source.anchored)
    values = config.plain()
    problems: list[str] = []
    for setting in settings:
        try:
            _set(values, setting, source)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
    return Config({key: _with_places(item, source, (key,)) for key, item in values.items()}, source)


def _set(values: dict[str, object], setting: str, source: Source) -> None:
    """Set one value in the plain mappings and lists of a file, and note its place."""
    path, equals, text = setting.partition("=")
    place = f"--set {setting}"
    words = [word.strip() for word in re.sub(r"\[(\d+)\]", r".\1", path).split(".")]
    if not equals or not all(words):
        raise ConfigError(f"{place}: is not KEY=VALUE, such as JasperEncoder.jasper.0.dropout=0.1")
    if not text.strip() or text.lstrip().startswith("#"):
        raise ConfigError(f"{place}: has no value; write null for none, '\"\"' for empty text")
    holder: Any = values
    keys: Keys = ()
    for word in words[:-1]:
        key = _key_of(word, holder, keys, place)
        keys = (*keys, key)
        if isinstance(holder, dict) and holder.get(word) is None:  # a new section, or one that is empty in the file
            source.overrides.setdefault(keys, place)
            holder[word] = {}
        holder = holder[key]
    key = _key_of(words[-1], holder, keys, place)
    keys = (*keys, key)
    before = [other for other_keys, other in source.overrides.items() if other_keys[: len(keys)] == keys]
    if before:
        raise ConfigError(f"{place}: {dotted(keys)} is set already: {before[0]}; leave one out")
    source.overrides[keys] = place
    try:
        holder[key] = _plain(parse_value(text, Source(place), keys))
    except ConfigError as error:  # its place is a line and a column of the value, which is one line
        mark = re.compile(rf"^{re.escape(place)}(:\d+)+")
        raise ConfigError(*(mark.sub(lambda _: place, problem) for problem in error.problems)) from None


def _key_of(word: str, holder: object, keys: Keys, place: str) -> Key:
    """The key or the index that a word stands for in a mapping or a list, which ``keys`` lead to."""
    if isinstance(holder, dict):
        return word
    if not isinstance(holder, list):
        raise ConfigError(f"{place}: {dotted(keys)} is {shown(holder)}, which has no {word}")
    if not word.isdecimal() or int(word) >= len(holder):
        items = f"{len(holder)} items, 0 to {len(holder) - 1}" if holder else "no items"
        raise ConfigError(f"{place}: {word} is not an item of {dotted(keys)}, which has {items}")
    return int(word)


def _with_places(value: object, source: Source, keys: Keys) -> object:
    """Plain values with their places in a source."""
    if isinstance(value, list):
        return [_with_places(item, source, (*keys, index)) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return Config({key: _with_places(item, source, (*keys, key)) for key, item in value.items()}, source, keys)
    return value
