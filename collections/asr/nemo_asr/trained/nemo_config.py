"""Sections and values of the configuration in a `.nemo` file."""

from __future__ import annotations

from typing import Any

from nemo_lite.base.config import Config

# Any: values of YAML.


def section_of(config: Config, key: str) -> Config | None:
    """The section of this key, if it is one."""
    section = config.get(key)
    return section if isinstance(section, Config) else None


def section_at(config: Config, path: str) -> Config | None:
    """The section at a path with dots, if it is one."""
    found: Config | None = config
    for key in path.split("."):
        found = section_of(found, key) if found is not None else None
    return found


def resolved(config: Config, value: Any) -> Any:
    """A value, where it stands for that of another key: ``${model_defaults.filters}``, ``${model.sample_rate}``."""
    for _ in range(8):
        if not (isinstance(value, str) and value.startswith("${") and value.endswith("}")):
            break
        target: Any = config
        for key in value[2:-1].removeprefix("model.").split("."):
            target = target.get(key) if isinstance(target, Config) else None
        value = target
    return value
