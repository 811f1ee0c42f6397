"""override: a configuration with some values set from outside, as ``--set KEY=VALUE`` does. No checks of keys here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nemo_lite.config.loading import parse_value
from nemo_lite.config.values import Config, Keys, Source, dotted, shown
from nemo_lite.errors import ConfigError

# Any: values are what a YAML file holds.


@dataclass(frozen=True)
class _Setting:
    """``KEY=VALUE``: where it is given, the words and numbers that lead to the value, and the value's text."""

    place: str
    words: tuple[str, ...]
    value: str


def override(config: Config, settings: Sequence[str]) -> Config:
    """A whole file's mapping with other values; those that come from here have ``--set KEY=VALUE`` as their place.

    Args:
        config: what ``load_config`` gave.
        settings: each ``KEY=VALUE``. ``JasperEncoder.jasper.0.dropout`` (also ``JasperEncoder.jasper[0].dropout``) is a
            key; the value is YAML: a number, text, a list such as ``[1, 2]``, ``null``. A key that the file does not
            have is added: whether anything takes it is for those who check the file.

    Raises:
        ConfigError: one line for each setting that cannot be read, leads to no item of a list, leads through a value
            that holds no others, or sets what another one sets.
    """
    source = Source(config.source.name, config.source.marks, config.source.anchored)
    problems: list[str] = []
    values: Any = Config(config, source)
    for setting in settings:
        try:
            values = _with(values, _read(setting), source)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
    moved: Config = _moved(values, source, ())
    return moved


def _read(setting: str) -> _Setting:
    key, equals, value = setting.partition("=")
    place = f"--set {setting}"
    words = tuple(word.strip() for word in re.sub(r"\[(\d+)\]", r".\1", key).split("."))
    if not equals or not all(words):
        raise ConfigError(f"{place}: is not KEY=VALUE, such as JasperEncoder.jasper.0.dropout=0.1")
    if not value.strip() or value.lstrip().startswith("#"):
        raise ConfigError(f"{place}: has no value; write null for none, '\"\"' for empty text")
    return _Setting(place, words, value)


def _with(values: Any, setting: _Setting, source: Source, keys: Keys = ()) -> Any:
    """``values``, which ``keys`` lead to, with the value of a setting in place of the one that it had."""
    depth = len(keys)
    if depth == len(setting.words):
        before = [place for other, place in source.overrides.items() if other[:depth] == keys]
        if before:
            raise ConfigError(f"{setting.place}: {dotted(keys)} is set already: {before[0]}; leave one out")
        source.overrides[keys] = setting.place
        return _value_of(setting, keys)
    word = setting.words[depth]
    if isinstance(values, list):
        if not word.isdecimal() or int(word) >= len(values):
            items = f"{len(values)} items, 0 to {len(values) - 1}" if values else "no items"
            raise ConfigError(f"{setting.place}: {word} is not an item of {dotted(keys)}, which has {items}")
        index = int(word)
        return [*values[:index], _with(values[index], setting, source, (*keys, index)), *values[index + 1 :]]
    if values is None:  # a new section, or one that is empty in the file
        source.overrides.setdefault(keys, setting.place)
        values = Config({}, source, keys)
    if not isinstance(values, Config):
        raise ConfigError(f"{setting.place}: {dotted(keys)} is {shown(values)}, which has no {word}")
    return Config({**values, word: _with(values.get(word), setting, source, (*keys, word))}, source, keys)


def _value_of(setting: _Setting, keys: Keys) -> Any:
    try:
        return parse_value(setting.value, Source(setting.place), keys)
    except ConfigError as error:  # its place is a line and a column of the value, which is one line
        mark = re.compile(rf"^{re.escape(setting.place)}(:\d+)+")
        raise ConfigError(*(mark.sub(lambda _: setting.place, problem) for problem in error.problems)) from None


def _moved(value: Any, source: Source, keys: Keys) -> Any:
    """The same values with all their places in one source."""
    if isinstance(value, list):
        return [_moved(item, source, (*keys, index)) for index, item in enumerate(value)]
    if isinstance(value, Config):
        return Config({key: _moved(item, source, (*keys, key)) for key, item in value.items()}, source, keys)
    return value
