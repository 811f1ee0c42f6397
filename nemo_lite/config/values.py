"""Config: a read-only mapping that knows the line and column of each key. No reading of files and no checks here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# Any: values are what a YAML file holds.

Key = str | int
Keys = tuple[Key, ...]

_SHOWN_LENGTH = 60


@dataclass(frozen=True)
class Source:
    """One file: its name, line and column of each value (from 1), and which values have an anchor."""

    name: str
    marks: dict[Keys, tuple[int, int]] = field(default_factory=dict)
    anchored: set[Keys] = field(default_factory=set)

    def place(self, keys: Keys) -> str:
        """``file:line:col`` of the value at ``keys``, or of the nearest value around it that the file has."""
        while keys not in self.marks and keys:
            keys = keys[:-1]
        line, column = self.marks.get(keys, (1, 1))
        return f"{self.name}:{line}:{column}"


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

    def line(self, *keys: Key) -> int:
        """The line of ``place(*keys)``."""
        return int(self.place(*keys).rsplit(":", 2)[1])

    def _full(self, keys: Keys) -> Keys:
        home = self._homes.get(keys[0], self._keys) if keys and isinstance(keys[0], str) else self._keys
        return home + keys

    def anchored(self, key: str) -> bool:
        """Whether the value of ``key`` has an anchor, so that aliases in the file can refer to it."""
        return (*self._keys, key) in self._source.anchored

    def without(self, *keys: str) -> Config:
        """This mapping without some keys."""
        rest = Config({key: value for key, value in self.items() if key not in keys}, self._source, self._keys)
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
            text += ("." if text else "") + (key if re.fullmatch(r"[\w<>-]+", key) else json.dumps(key))
    return text


def shown(value: Any) -> str:
    """A value as YAML writes it, cut to a short line."""
    text = json.dumps(_plain(value), ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 3]}..."
