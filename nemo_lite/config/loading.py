"""load_config: reads a YAML 1.2 file into a Config, within bounds. It does not know what the values should be.

ruamel.yaml composes the file into nodes with positions. This module turns the nodes into values itself, because it
reports all duplicate keys at once, knows the place of merged keys and limits what aliases expand to. It makes plain
values only, so that no tag runs code.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import CollectionStartEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from nemo_lite.config.values import Config, Keys, Source, dotted, shown
from nemo_lite.errors import ConfigError, NemoLiteError, nearest
from nemo_lite.untrusted import FileKind, read_text

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


def _config_error(problem: str, **details: str) -> ConfigError:
    return ConfigError(str(NemoLiteError(problem, **details)))


_KIND = FileKind("the configuration", MAX_BYTES, _config_error)

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


def parse_value(text: str, source: Source, keys: Keys = (), *, number_keys: bool = False) -> Any:
    """The value that a YAML text holds: a Config, a list or a scalar. ``keys`` lead to it in its file, the source.

    Raises:
        ConfigError: as for ``load_config``.
    """
    name = source.name
    _check_version(text, name)
    _check_brackets(text, name)
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _BoundedComposer
    values = _Values(source, yaml.constructor, _TEXTS | {f"{_TAG}int"} if number_keys else _TEXTS)
    value = values.value(_compose(yaml, text, name), keys)
    if values.problems():
        raise ConfigError(*values.problems())
    return value


def _compose(yaml: YAML, text: str, name: str) -> Node:
    try:
        node = yaml.compose(text)
    except MarkedYAMLError as error:
        raise ConfigError(_yaml_problem(error, name)) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{name}:{line}: character {error.character:#04x} has no place in YAML") from None
    if not isinstance(node, Node):
        raise ConfigError(f"{name}: the file is empty, a mapping of sections was expected")
    return node


class _BoundedComposer(Composer):
    """Stops at MAX_DEPTH, which comes long before the interpreter's recursion limit, and at MAX_COST."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader=loader)
        self.nesting = self.cost = 0
        self.warn_double_anchors = False

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.nesting += 1
        event = self.parser.peek_event()
        self.cost += 1 + 2 * isinstance(event, CollectionStartEvent) + bool(getattr(event, "anchor", None))
        if self.nesting > MAX_DEPTH:
            raise ComposerError(None, None, f"nested deeper than {MAX_DEPTH} levels", event.start_mark)
        if self.cost > MAX_COST:
            problem = f"more than {MAX_COST} values (a list or mapping counts as three, an anchor as one)"
            raise ComposerError(None, None, problem, event.start_mark)
        node = super().compose_node(parent, index)
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

    def value(self, node: Node, keys: Keys) -> Any:
        self._spend(node, keys)
        self.source.marks.setdefault(keys, _mark(node))
        # An alias is the anchored node itself, visited again: the first visit gives the anchor's own place.
        if node.anchor and self._anchored.setdefault(id(node), keys) == keys:
            self.source.anchored.add(keys)
        if node.tag not in (_TEXTS | _NUMBERS if isinstance(node, ScalarNode) else _COLLECTIONS):
            self._problem(node, f"{dotted(keys)} has the tag {_short(node.tag)}, which is not read here")
        if isinstance(node, MappingNode):
            return self._mapping(node, keys)
        if isinstance(node, SequenceNode):
            return [self.value(item, (*keys, index)) for index, item in enumerate(node.value)]
        return self._number(node, keys) if node.tag in _NUMBERS else self._text(node, keys)

    def _spend(self, node: Node, keys: Keys) -> None:
        self._count += 1
        if self._count > MAX_VALUES:
            self._stop(node, f"more than {MAX_VALUES} values once aliases are filled in")
        if len(keys) > MAX_DEPTH:
            self._stop(node, f"nested deeper than {MAX_DEPTH} levels once aliases are filled in")

    def _mapping(self, node: MappingNode, keys: Keys) -> Config:
        values = {}
        for key, (key_node, value_node) in self._entries(node, keys).items():
            self.source.marks[(*keys, key)] = _mark(key_node)
            values[key] = self.value(value_node, (*keys, key))
        return Config(values, self.source, keys)

    def _entries(self, node: MappingNode, keys: Keys, merges: int = 0) -> dict[str, tuple[Node, Node]]:
        """The nodes of keys and values, by key: a mapping's own, then those it merges; the first one counts."""
        if merges > MAX_DEPTH:
            self._stop(node, f"merges more than {MAX_DEPTH} mappings within each other")
        own: dict[str, tuple[Node, Node]] = {}
        merged: dict[str, tuple[Node, Node]] = {}
        for key_node, value_node in node.value:
            self._spend(key_node, keys)
            key, is_scalar = key_node.value, isinstance(key_node, ScalarNode)
            if key_node.tag == _MERGE:
                for source in self._merge_sources(value_node):
                    merged = self._entries(source, keys, merges + 1) | merged
            elif is_scalar and _UNUSABLE.search(key):
                self._text(key_node, (*keys, key))
            elif not is_scalar or key_node.tag not in self._key_tags:
                what = f"key {key}" if is_scalar else "a list or a mapping as a key"
                self._problem(key_node, f"{what} is not text; write it in quotes")
            elif key in own:
                first, _ = _mark(own[key][0])
                self._problem(key_node, f"{dotted((*keys, key))} is given twice (first on line {first})")
            else:
                own[key] = (key_node, value_node)
        return own | {key: pair for key, pair in merged.items() if key not in own}

    def _merge_sources(self, node: Node) -> list[MappingNode]:
        sources = node.value if isinstance(node, SequenceNode) else [node]
        if all(isinstance(source, MappingNode) for source in sources):
            return list(sources)
        self._problem(node, "<< can merge a mapping or a list of mappings only")
        return []

    def _text(self, node: Node, keys: Keys) -> str:
        text = str(node.value)
        if unusable := _UNUSABLE.search(text):
            self._problem(node, f"{dotted(keys)} holds {ord(unusable[0]):#06x}, which is no character of a text")
        return text

    def _number(self, node: Node, keys: Keys) -> Any:
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
    found = sorted(entry.name for entry in folder.iterdir() if entry.suffix in {".yaml", ".yml"})
    near = nearest(path.name, found, count=3)
    if near:
        return f"{name}: no such file (did you mean {' or '.join(near)}?)"
    listing = f"has {', '.join(found)}" if found else "has no YAML file"
    return f"{name}: no such file; {folder} {listing}"


def _check_version(text: str, name: str) -> None:
    """Refuse a %YAML directive other than 1.1 and 1.2: ruamel.yaml would raise an AssertionError."""
    match = re.search(r"^%YAML\b(?!\s+1\.[12]\s).*", text, re.MULTILINE)
    if match:
        line = text.count("\n", 0, match.start()) + 1
        raise ConfigError(f"{name}:{line}: {shown(match[0])} asks for a version that is not read here; take it out")


def _check_brackets(text: str, name: str) -> None:
    """Refuse deeply nested brackets before the scan, whose time grows with the square of the depth."""
    depth = 0
    for match in re.finditer(r"[\[{]|[\]}]", text):
        depth = depth + 1 if match[0] in "[{" else max(depth - 1, 0)
        if depth > MAX_DEPTH:
            before = text[: match.start()]
            line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
            raise ConfigError(f"{name}:{line}:{column}: nested deeper than {MAX_DEPTH} levels")


def _yaml_problem(error: MarkedYAMLError, name: str) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    context = f"{error.context} (line {error.context_mark.line + 1}): " if error.context and error.context_mark else ""
    return f"{place}: cannot be parsed: {' '.join(f'{context}{error.problem}'.split())}"
