"""Parts: the sections of a model's YAML, in any schema of NeMo 0.x, as a class and its arguments for each role.

A section is either the arguments of the class that its key names (NeMo 0.9), or ``header`` and ``init_params`` (since
0.10). A file that is one header itself is a model: its ``init_params`` hold the sections. Class names are looked up in
the registry; nothing is imported because a file says so. Whether arguments fit is checked in ``connection_check``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from nemo_asr.tasks.families import FAMILIES
from nemo_asr.tasks.registry import FAMILY_OF_TASK, KNOWN, MODEL_NAMES, TASKS, defaults_of
from nemo_asr.training_options import TRAINING_KEYS
from nemo_lite import NeuralModule
from nemo_lite.config import Config, shown, unknown_key
from nemo_lite.errors import did_you_mean

MODEL_KEYS = ("model", "name", "family", "sample_rate", "labels", "tokenizer", "language")

_MOST_SECTIONS = 100  # with those that are only there for their anchors
DATA_ROLES = ("train", "eval")
_PACKAGES = ("nemo_asr", "nemo_lite", "nemo")
_HEADER_KEYS = ("header", "init_params")
_ROLES_OF_MODEL = {
    "preprocessor_params": "preprocessor",
    "encoder_params": "encoder",
    "decoder_params": "decoder",
    "spec_augment_params": "augmentation",
}


@dataclass(frozen=True)
class Part:
    """A class, the arguments that the file has for it, those that follow from its older spelling, and its family."""

    target: type[NeuralModule]
    params: Config
    implied: Mapping[str, Any] = field(default_factory=dict)
    family: str = FAMILY_OF_TASK[TASKS[0]]


class Parts:
    """The parts of a file, whichever schema it has, and what is wrong with its sections.

    Attributes:
        by_role: the parts; the data layer has two, ``train`` and ``eval``. A role that the file leaves out and that has
            a default is there with no arguments.
        family: the name that the file says, or that of its data layer.
        repeated: keys of the file that are there only for the values that others repeat with aliases.
        problems: one line each.
    """

    def __init__(self, config: Config) -> None:
        self.by_role: dict[str, Part] = {}
        self.repeated: list[str] = []
        self.problems: list[str] = []
        self._config = config
        if set(_HEADER_KEYS) <= config.keys():
            self._read_model()
        elif len(config) > _MOST_SECTIONS:
            self.problems.append(
                f"{config.place()}: the file has {len(config)} sections, wanted at most {_MOST_SECTIONS}"
            )
        else:
            for key in config:
                if key not in (*MODEL_KEYS, *TRAINING_KEYS):
                    self._read_section(key)
        self.family = self._family()
        roles = FAMILIES[self.family].roles
        for role, target in defaults_of(self.family).items():
            for filled_role in DATA_ROLES if role == "data layer" else (role,):
                self.by_role.setdefault(filled_role, Part(target, config.without(*config)))
        for role in [role for role in self.by_role if role not in (*roles, *DATA_ROLES)]:
            part = self.by_role.pop(role)
            name = part.target.__name__
            self.problems.append(f"{part.params.place()}: {name} is a {role}, which family {self.family} has not")
        for role, signals in roles.items():
            if signals.needed and role not in self.by_role and not self.problems:
                examples = [entry.module_class.__name__ for entry in KNOWN.values() if entry.role == role]
                such_as = f", such as {examples[0]}" if examples else ""
                self.problems.append(f"{config.place()}: the {role}'s section is missing{such_as}")

    def _family(self) -> str:
        """The family that the file names; without one, that of its data layer."""
        data_layers = [part for role, part in self.by_role.items() if role in DATA_ROLES]
        of_data = data_layers[0].family if data_layers else FAMILY_OF_TASK[TASKS[0]]
        name = self._config.get("family", of_data)
        if name in FAMILIES:
            return str(name)
        remedy = did_you_mean(str(name), FAMILIES)
        self._report(self._config, f"is {shown(name)}, wanted one of {', '.join(FAMILIES)}{remedy}", "family")
        return of_data

    def _read_section(self, key: str) -> None:
        section = self._config[key]
        if isinstance(section, Config) and "header" in section:
            name, params = self._with_header(self._config, key)
        else:
            name, params = key, section
        if name not in KNOWN:
            if name == key and not self._config.anchored(key):
                self.problems.append(unknown_key(self._config, key, [*KNOWN, *MODEL_KEYS, *TRAINING_KEYS]))
            elif name == key and self._config.overridden(key):
                self._report(self._config, "is only repeated by others; set it where it is used", key)
            elif name == key:
                self.repeated.append(key)
        elif isinstance(params, Config):
            self._add(name, params, key)
        elif params is not None:  # an empty section of an optional module switches it off
            self._report(self._config, "holds no mapping of arguments", key)

    def _read_model(self) -> None:
        self._class_name(self._config, MODEL_NAMES)
        self._refuse_other_keys(self._config.without("tokenizer", "family"))
        sections = self._config["init_params"]
        if not isinstance(sections, Config):
            self._report(self._config, "holds no sections", "init_params")
            return
        for key, section in sections.items():
            role = _ROLES_OF_MODEL.get(key)
            if role is None:
                self.problems.append(unknown_key(sections, key, _ROLES_OF_MODEL))
            elif section is not None:
                name, params = self._with_header(sections, key)
                if name in KNOWN and KNOWN[name].role != role:
                    self._report(sections, f"names {name}, which is no {role}", key)
                elif params is not None:
                    self._set(role, self._part(name, params), sections, key)

    def _with_header(self, parent: Config, key: str) -> tuple[str, Config | None]:
        """The class that a section's header names, and its arguments; ``("", None)`` where they cannot be used."""
        section = parent[key]
        if not isinstance(section, Config) or "header" not in section:
            self._report(parent, "has no header that names its class", key)
            return "", None
        self._refuse_other_keys(section)
        name = self._class_name(section, KNOWN)
        params = section.get("init_params")
        if params is None:
            params = section.without(*section)
        if not isinstance(params, Config):
            self._report(section, "holds no mapping of arguments", "init_params")
            return "", None
        return (name, params) if name else ("", None)

    def _class_name(self, section: Config, names: Collection[str]) -> str:
        """The class that a header names; '' and a problem, if it is none of the known ones."""
        header = section["header"]
        spec = header.get("full_spec") if isinstance(header, Config) else None
        if not isinstance(spec, str):
            self._report(section, "has no full_spec, the class' name", "header")
            return ""
        package, name = spec.split(".")[0], spec.rsplit(".")[-1]
        own_package = KNOWN[name].module_class.__module__.split(".")[0] if name in KNOWN else ""
        if name in names and package in (*_PACKAGES, own_package):
            return name
        remedy = did_you_mean(name, names) or f"; known: {', '.join(names)}"
        self._report(section, f'"{spec[:100]}" is not a class for this{remedy}', "header", "full_spec")
        return ""

    def _add(self, name: str, params: Config, key: str) -> None:
        role = KNOWN[name].role
        if role != "data layer":
            self._set(role, self._part(name, params), self._config, key)
            return
        shared = params.without(*DATA_ROLES)
        for role_of_data in [
            role_of_data for role_of_data in DATA_ROLES if key.endswith(f"_{role_of_data}")
        ] or DATA_ROLES:
            own_params = params.get(role_of_data)
            if own_params is not None and not isinstance(own_params, Config):
                self._report(params, "holds no mapping of arguments", role_of_data)
            both = shared.overlaid(own_params) if isinstance(own_params, Config) else shared
            self._set(role_of_data, self._part(name, both), self._config, key)

    def _part(self, name: str, params: Config) -> Part:
        """The part, with the arguments of older files turned into today's."""
        entry, implied = KNOWN[name], {}
        for older, (newer, values) in entry.older.items():
            if older in params:
                value = params[older]
                if value not in values:
                    wanted = f"{' or '.join(values)}{did_you_mean(str(value), values)}"
                    self._report(params, f"is {shown(value)}, wanted {wanted}", older)
                implied[newer] = values.get(value, next(iter(values.values())))
        return Part(entry.module_class, params.without(*entry.older), implied, entry.family)

    def _set(self, role: str, part: Part, section: Config, key: str) -> None:
        if role in self.by_role:
            first = self.by_role[role].params
            problem = f"is a second {role}; another one is {first.path} ({first.spot()})"
            self._report(section, problem, key)
        self.by_role.setdefault(role, part)

    def _refuse_other_keys(self, section: Config) -> None:
        self.problems += [unknown_key(section, key, _HEADER_KEYS) for key in section if key not in _HEADER_KEYS]

    def _report(self, section: Config, problem: str, *keys: str) -> None:
        self.problems.append(f"{section.place(*keys)}: {section.path_of(*keys)} {problem}")
