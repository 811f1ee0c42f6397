"""A module's configuration as YAML and back. Nothing that a file names is imported: classes are found among the loaded ones."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ruamel.yaml import YAML

from nemo_lite.config import Config, load_config
from nemo_lite.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from nemo_lite.core.neural_module import NeuralModule

M = TypeVar("M", bound="NeuralModule")


def serialize(module: NeuralModule) -> dict[str, Any]:
    """``header`` (the class) and ``init_params`` (the constructor's arguments).

    Raises:
        ConfigError: an argument that is not None, text, a number, a list or a dictionary of such.
    """
    cls = type(module)
    params = {key: value for key, value in module.init_params.items() if not (key == "name" and value is None)}
    wrong = [
        f"{cls.__name__}.{key}: {type(value).__name__} cannot be written to YAML"
        for key, value in params.items()
        if not _is_plain(value)
    ]
    if wrong:
        raise ConfigError(*wrong)
    return {"header": {"full_spec": f"{cls.__module__}.{cls.__qualname__}"}, "init_params": params}


def write(configuration: Mapping[str, Any], path: str | Path) -> None:
    """Write a configuration as YAML."""
    with open(path, "w", encoding="utf-8") as file:
        YAML(typ="safe", pure=True).dump(dict(configuration), file)


def read(path: str | Path, section_name: str | None) -> dict[str, Any]:
    """Read a configuration, or one section of it.

    Raises:
        ConfigError: the file, or the section, is missing or is not a mapping.
    """
    config = load_config(path)
    if section_name is None:
        return config.plain()
    section = config.get(section_name)
    if not isinstance(section, Config):
        raise ConfigError(f"{path}: section {section_name} is missing{did_you_mean(section_name, config)}")
    return section.plain()


def deserialize(
    classes: Iterable[type[M]], configuration: Mapping[str, Any], name: str | None, overwrite_params: Mapping[str, Any]
) -> M:
    """Make a module of the one of these classes that the configuration names; see ``NeuralModule.deserialize``."""
    classes = list(classes)
    header, params = configuration.get("header"), configuration.get("init_params")
    if not isinstance(header, Mapping) or not isinstance(header.get("full_spec"), str):
        raise ConfigError(f"configuration of {classes[0].__name__}: header.full_spec is missing; it names the class")
    found = _find_class(classes, header["full_spec"])
    values = {**(params or {}), **overwrite_params}
    if name is not None:
        values["name"] = name
    parameters = inspect.signature(found.__init__).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        unknown = [key for key in values if key not in parameters]
        if unknown:
            raise ConfigError(
                *(f"{found.__name__}.{key} is not a key{did_you_mean(key, parameters)}" for key in unknown)
            )
    return found(**values)


def _find_class(classes: list[type[M]], full_spec: str) -> type[M]:
    known = {f"{c.__module__}.{c.__qualname__}": c for c in classes}
    if full_spec in known:
        return known[full_spec]
    # A full_spec written by NeMo names the same class at another place.
    same_name = [c for c in known.values() if c.__name__ == full_spec.rpartition(".")[2]]
    if len(same_name) == 1:
        return same_name[0]
    names = sorted(c.__name__ for c in known.values())
    raise ConfigError(
        f"full_spec {full_spec} is not a {classes[0].__name__} that is loaded"
        f"{did_you_mean(full_spec.rpartition('.')[2], names)}; import the package that defines it"
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (str, int, float, bool))
