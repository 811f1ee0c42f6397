"""Config: a read-only mapping that knows the line and column of each key. No reading of files and no checks here."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter

# Any: values are what a YAML file holds.

Key = str | int
Keys = tuple[Key, ...]

_SHOWN_LENGTH = 60


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
        line, column = self._mark(keys)
        return f"{self.name}:{line}:{column}"

    def spot(self, keys: Keys) -> str:
        """As ``place``, within the file: ``line 12``."""
        return self.override_of(keys) or f"line {self._mark(keys)[0]}"

    def override_of(self, keys: Keys) -> str:
        """What set the value at ``keys``, or one around it; "" where that is the file."""
        prefixes = (keys[:length] for length in range(len(keys), 0, -1))
        return next((self.overrides[prefix] for prefix in prefixes if prefix in self.overrides), "")

    def _mark(self, keys: Keys) -> tuple[int, int]:
        while keys not in self.marks and keys:
            keys = keys[:-1]
        return self.marks.get(keys, (1, 1))


class Config(Mapping[str, Any]):
    """A mapping of a YAML file, read-only. Mappings inside are Config too, lists are lists.

    Two are equal if their values are equal; places do not count.
    """

    __slots__ = ("_homes", "_keys", "_source", "_values")

    def __init__(self, values: Mapping[str, Any], source: Source, keys: Keys = ()) -> None:
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
        rest = Config({key: value for key, value in self.items() if key not in left_out}, self._source, self._keys)
        rest._homes = self._homes
        return rest

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


def _plain(value: Any) -> Any:
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
            text += ("." if text else "") + _cut(key if re.fullmatch(r"[\w<>-]+", key) else json.dumps(key))
    return text


def shown(value: Any) -> str:
    """A value as YAML writes it, cut to a short line."""
    try:
        text = json.dumps(_plain(value), ensure_ascii=False, default=str)
    except ValueError:  # Python writes out 4300 digits at most
        text = "a number of thousands of digits"
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 3]}..."
