"""A module's configuration as YAML and back. Nothing that a file names is imported: only loaded classes are found."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ruamel.yaml import YAML

from nemo_lite.config import Config, Keys, Source, build, load_config, raise_if, shown, unknown_key
from nemo_lite.errors import ConfigError, ConfigStructureError, UnknownClassError, did_you_mean
from nemo_lite.files import write_atomically
from nemo_lite.package_info import __version__

if TYPE_CHECKING:
    from nemo_lite.core.neural_module import NeuralModule


# Any: values are what YAML and constructors take.

M = TypeVar("M", bound="NeuralModule")


class _NoFile(Source):
    """Where a configuration stands that is not from a file: the place of everything in it is its name."""

    def place(self, keys: Keys) -> str:
        return self.name


def serialize(module: NeuralModule) -> dict[str, Any]:
    """``header`` (the class, and the versions that wrote it) and ``init_params`` (the constructor's arguments).

    Raises:
        ConfigError: an argument that is not None, text, a number, a list or a dictionary of such.
    """
    cls = type(module)
    params = dict(module._serialize_configuration())
    if params.get("name") is None:
        params.pop("name", None)
    raise_if(
        f"{cls.__name__}.{key}: {type(value).__name__} cannot be written to YAML"
        for key, value in params.items()
        if not is_plain(value)
    )
    package = cls.__module__.partition(".")[0]
    header = {
        "nemo_core_version": __version__,
        "collection_type": package,
        "collection_version": str(getattr(sys.modules.get(package), "__version__", __version__)),
        "full_spec": _full_spec(cls),
    }
    return {"header": header, "init_params": params}


def is_plain(value: Any) -> bool:
    """Whether YAML can hold a value: None, text, numbers, and lists and dictionaries of them."""
    if isinstance(value, Mapping):
        return all(type(key) is str and is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(is_plain(item) for item in value)
    return value is None or type(value) in (str, int, float, bool)


def write(configuration: Mapping[str, Any], path: str | Path) -> None:
    """Write a configuration as YAML.

    Raises:
        UsageError: the folder cannot be written to.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel's annotation lacks the setting
    yaml.default_flow_style = False
    write_atomically(os.path.expanduser(path), lambda temporary: yaml.dump(_in_lists(configuration), temporary))


def read(path: str | Path, section_name: str | None) -> Config:
    """Read a configuration, or one section of it.

    Raises:
        ConfigStructureError: the file, or the section, is missing or is not a mapping.
    """
    with _as_import_errors():
        config = load_config(os.path.expanduser(path))
    if section_name is None:
        return config
    section = config.get(section_name)
    if not isinstance(section, Config):
        raise ConfigStructureError(f"{path}: section {section_name} is missing{did_you_mean(section_name, config)}")
    return section


@contextmanager
def _as_import_errors() -> Iterator[None]:
    try:
        yield
    except ConfigStructureError:
        raise
    except ConfigError as error:
        raise ConfigStructureError(*error.problems) from error


def deserialize(
    classes: list[type[M]], configuration: Mapping[str, Any], name: str | None, overwrite_params: Mapping[str, Any]
) -> M:
    """Make a module of the one of these classes that the configuration names; see ``NeuralModule.deserialize``."""
    with _as_import_errors():
        config = _as_config(configuration, f"configuration of {classes[0].__name__}")
        header, params = config.get("header"), config.get("init_params") or {}
        if not isinstance(header, Mapping) or not isinstance(header.get("full_spec"), str):
            raise ConfigError(f"{config.place()}: header.full_spec is missing; it names the class")
        if not isinstance(params, Mapping):
            raise ConfigError(f"{config.place('init_params')}: init_params is {shown(params)}, wanted a mapping")
        cls = _find_class(classes, header["full_spec"], config.place("header"))
        parameters = inspect.signature(cls.__init__).parameters
        if name is not None and "name" in parameters:
            overwrite_params = {**overwrite_params, "name": name}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            overwritten = _as_config(overwrite_params, f"overwrite_params of {cls.__name__}")
            names = parameters.keys() - {"self"}
            raise_if(unknown_key(overwritten, key, names) for key in overwritten if key not in names)
        kept = _as_config(params, config.place()).without(*overwrite_params)
        hook = "_deserialize_configuration"
        if any(hook in vars(base) for base in cls.__mro__ if not base.__module__.startswith("nemo_lite.core.")):
            # The result of a class's own hook is its own business; without one the arguments are checked one by one.
            module = cls(**cls._deserialize_configuration({**kept.plain(), **overwrite_params}))
        else:
            module = build(cls, kept, **overwrite_params)
        if name is not None and module.label != name:
            module.name = name
        return module


def _as_config(mapping: Mapping[str, Any], place: str) -> Config:
    return mapping if isinstance(mapping, Config) else Config(_in_lists(mapping), _NoFile(place))


def _in_lists(value: Any) -> Any:
    """The same values, tuples as lists and mappings as dictionaries: what YAML has."""
    if isinstance(value, Mapping):
        return {key: _in_lists(item) for key, item in value.items()}
    return [_in_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _full_spec(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _find_class(classes: list[type[M]], full_spec: str, place: str) -> type[M]:
    # The first of a name is the class itself: torch.export leaves subclasses behind that copy its module and name.
    by_spec = {_full_spec(cls): cls for cls in reversed(classes)}
    if full_spec in by_spec:
        return by_spec[full_spec]
    # A full_spec written by NeMo names the same class at another place.
    name = full_spec.rpartition(".")[2]
    same_name = {spec: cls for spec, cls in by_spec.items() if cls.__name__ == name}
    if len(same_name) == 1:
        return next(iter(same_name.values()))
    if same_name:
        which = " or ".join(sorted(same_name))
        raise UnknownClassError(f"{place}: full_spec {full_spec} could be {which}; write which")
    near = did_you_mean(name, sorted(cls.__name__ for cls in by_spec.values()))
    raise UnknownClassError(
        f"{place}: full_spec {full_spec} is not a {classes[0].__name__} that is loaded{near}; "
        "import the package that defines it"
    )
