"""The module classes that a model's YAML may name, and the role of each. No class is named in this file.

``register(MyModule)`` makes a class known: in ``nemo_asr/tasks/known_modules.py``, in a package or in a user's file.
Nothing is imported because a YAML file names it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from nemo_asr.argparse import AsrArgParser
from nemo_asr.run.arguments import source_argument
from nemo_asr.run.options import TRAINING_KEYS
from nemo_asr.tasks.family import FAMILIES, FAMILY_OF_TASK, Elements, Role, tell_of_replacing, written
from nemo_lite import DataLayerNM, LossNM, NeuralModule
from nemo_lite.base.config import Config, shown, unknown_key
from nemo_lite.base.errors import UnknownNameError, UsageError, did_you_mean
from nemo_lite.base.options import option_in_place_of, our_name
from nemo_lite.core import LengthsType, Ports

TASKS = tuple(FAMILY_OF_TASK)

_ROLES_OF_BASES: dict[type[NeuralModule], str] = {DataLayerNM: "data layer", LossNM: "loss"}


class OlderArgument(NamedTuple):
    """What became of an argument of older files: today's argument, and today's value of each older value."""

    newer: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Known:
    """A registered class, its role, the arguments that files of NeMo have beside its own, and the family it is of."""

    module_class: type[NeuralModule]
    role: str
    older: Mapping[str, OlderArgument] = field(default_factory=dict)
    without_effect: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    family: str = FAMILY_OF_TASK[TASKS[0]]


KNOWN: dict[str, Known] = {}
DEFAULTS: dict[str, dict[str, type[NeuralModule]]] = {}
"""By family and role, what fills it where a file has no section for it."""
MODEL_NAMES: list[str] = []
"""Classes of whole models that a file's own header may name."""


def register(
    module_class: type[NeuralModule],
    *,
    role: str = "",
    default: bool = False,
    older_names: Iterable[str] = (),
    older_arguments: Mapping[str, OlderArgument] | None = None,
    without_effect: Mapping[str, Sequence[Any]] | None = None,
    task: str = TASKS[0],
    family: str = "",
) -> None:
    """Make a module class usable in YAML files, under its name.

    Args:
        module_class: the class. A class of the same name that was registered before is replaced, and a line says so.
        role: of some family; needed where the ports are properties, which only an object has.
        default: it fills its role in files without a section for it.
        older_names: further names that it has in older files.
        older_arguments: arguments of older files, and what became of each.
        without_effect: arguments of NeMo's files that change nothing here, and what each may be; nothing: anything.
        task: one of :data:`TASKS`: of a data layer, that of the recipes which have it; else, where it is a default.
        family: that in which it is the default; by default that of the task.

    Raises:
        UsageError: the ports are of no role, or are properties and ``role`` is missing; or the first argument of a data
            layer is not its source.
        UnknownNameError: another role, task or family.
    """
    place = module_class.__name__
    for kind, name, names in (("role", role, dict(_all_roles())), ("task", task, TASKS), ("family", family, FAMILIES)):
        if name and name not in names:
            raise UnknownNameError(kind, name, names, place=place)
    family = family or FAMILY_OF_TASK[task]
    entry = Known(module_class, role or role_of(module_class), older_arguments or {}, without_effect or {}, family)
    if entry.role == "data layer":
        source_argument(module_class)
    for name in (module_class.__name__, *older_names):
        if name in KNOWN:
            tell_of_replacing(name, KNOWN[name].module_class, module_class)
        KNOWN[name] = entry
    if default:
        DEFAULTS.setdefault(family, {})[entry.role] = module_class


def defaults_of(family: str) -> dict[str, type[NeuralModule]]:
    """By role, what fills it where a file has no section for it: also the defaults of families that it derives from."""
    kind = FAMILIES[family]
    defaults = {"data layer": DEFAULTS[FAMILY_OF_TASK[kind.task]]["data layer"]}
    for name, other in FAMILIES.items():
        if isinstance(kind, type(other)):
            defaults.update(DEFAULTS.get(name, {}))
    return {**defaults, **DEFAULTS.get(family, {})}


def _all_roles() -> Iterator[tuple[str, Role]]:
    """The roles of all families; two of them may have roles of one name."""
    for family in FAMILIES.values():
        yield from family.roles.items()


def register_models(*names: str) -> None:
    """Make names of whole models known: files whose own header names one hold its sections."""
    MODEL_NAMES.extend(names)


def role_of(module_class: type[NeuralModule]) -> str:
    """The role of a class: that of its base for data layers and losses, else by the element types of its ports.

    Raises:
        UsageError: the ports are of no role, or are properties.
    """
    for base, role in _ROLES_OF_BASES.items():
        if issubclass(module_class, base):
            return role
    ports = [getattr(module_class, name) for name in ("input_ports", "output_ports")]
    if any(isinstance(declared, property) for declared in ports):
        problem, remedy = "its ports cannot be read before its constructor has run", "give register the role as well"
        raise UsageError(problem, place=module_class.__name__, got="properties", remedy=remedy)
    taken, outputs = map(_values_of, ports)
    for name, signals in _all_roles():
        if _all_found(signals.takes, taken) and len(signals.takes) == len(taken) and _all_found(signals.gives, outputs):
            return name
    raise UsageError(
        "its ports are of no role in a recipe",
        place=module_class.__name__,
        got=f"takes {written(taken)}, gives {written(outputs)}",
        wanted="; ".join(dict.fromkeys(f"{name}: {signals}" for name, signals in _all_roles())),
    )


def _values_of(ports: Ports) -> Elements:
    kinds = [type(port.elements_type) for port in ports.values() if not port.optional]
    return tuple(kind for kind in kinds if kind is not LengthsType)


def _all_found(kinds_of_role: Elements, kinds: Elements) -> bool:
    return all(any(issubclass(kind, want) or issubclass(want, kind) for kind in kinds) for want in kinds_of_role)


# Parts: the sections of a model's YAML, in any schema of NeMo 0.x, as a class and its arguments for each role.
# A section is either the arguments of the class that its key names (NeMo 0.9), or ``header`` and ``init_params``
# (since 0.10). A file that is one header itself is a model: its ``init_params`` hold the sections. Whether arguments
# fit is checked in ``connection_check``.


MODEL_KEYS = ("model", "name", "family", "sample_rate", "labels", "tokenizer", "language")

_MOST_SECTIONS = 100  # with those that are only there for their anchors
DATA_ROLES = ("train", "eval")
_PACKAGES = ("nemo_asr", "nemo_lite", "nemo")
_HEADER_KEYS = ("header", "init_params")
_OF_YOUR_OWN = "; one of your own needs --import FILE"
_ROLES_OF_MODEL = {
    "preprocessor_params": "preprocessor",
    "encoder_params": "encoder",
    "decoder_params": "decoder",
    "spec_augment_params": "augmentation",
}


@dataclass(frozen=True)
class ModuleSection:
    """A class, the arguments that the file has for it, those that follow from its older spelling, and its family."""

    target: type[NeuralModule]
    params: Config
    implied: Mapping[str, Any] = field(default_factory=dict)
    family: str = FAMILY_OF_TASK[TASKS[0]]


class ModuleSections:
    """The parts of a file, whichever schema it has, and what is wrong with its sections.

    Attributes:
        by_role: the parts; the data layer has two, ``train`` and ``eval``. A role that the file leaves out and that has
            a default is there with no arguments.
        family: the name that the file says, or that of its data layer.
        repeated: keys of the file that are there only for the values that others repeat with aliases.
        problems: one line each.
    """

    def __init__(self, config: Config) -> None:
        self.by_role: dict[str, ModuleSection] = {}
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
                self.by_role.setdefault(filled_role, ModuleSection(target, config.without(*config)))
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
        remedy = f"{did_you_mean(str(name), FAMILIES)}{_OF_YOUR_OWN}"
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
                self.problems.append(self._unknown(key))
            elif name == key and self._config.overridden(key):
                self._report(self._config, "is only repeated by others; set it where it is used", key)
            elif name == key:
                self.repeated.append(key)
        elif isinstance(params, Config):
            self._add(name, params, key)
        elif params is not None:  # an empty section of an optional module switches it off
            self._report(self._config, "holds no mapping of arguments", key)

    def _unknown(self, key: str) -> str:
        groups: Sequence[Any] = AsrArgParser.groups
        for member in (member for group in groups for member in fields(group)):
            if member.name == our_name(key):
                (option, *_) = member.metadata.get("names") or [f"--{member.name}"]
                return f"{self._config.place(key)}: {key} is no key of a model; the command line has it: {option}"
        section = self._config[key]
        of_a_class = key[:1].isupper() and (section is None or isinstance(section, Config))
        option = option_in_place_of(key)
        in_place = f"; in place of it: {option} on the command line" if option else ""
        known = [*KNOWN, *MODEL_KEYS, *TRAINING_KEYS]
        return unknown_key(self._config, key, known, _OF_YOUR_OWN if of_a_class else in_place)

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
        of_your_own = _OF_YOUR_OWN if names is KNOWN else ""
        remedy = f"{did_you_mean(name, names)}{of_your_own}" or f"; known: {', '.join(names)}"
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

    def _part(self, name: str, params: Config) -> ModuleSection:
        """The part, with the arguments of older files turned into today's, and without those that have no effect."""
        entry, implied = KNOWN[name], {}
        for older, (newer, values) in entry.older.items():
            if older in params:
                value = params[older]
                if value not in values:
                    wanted = f"{' or '.join(values)}{did_you_mean(str(value), values)}"
                    self._report(params, f"is {shown(value)}, wanted {wanted}", older)
                implied[newer] = values.get(value, next(iter(values.values())))
        for argument, allowed in entry.without_effect.items():
            if argument in params and allowed and params[argument] not in allowed:
                wanted = " or ".join(map(shown, allowed))
                self._report(params, f"is {shown(params[argument])}, wanted {wanted}", argument)
        own = params.without(*entry.older, *entry.without_effect)
        return ModuleSection(entry.module_class, own, implied, entry.family)

    def _set(self, role: str, part: ModuleSection, section: Config, key: str) -> None:
        if role in self.by_role:
            first = self.by_role[role].params
            problem = f"is a second {role}; another one is {first.path} ({first.spot()})"
            self._report(section, problem, key)
        self.by_role.setdefault(role, part)

    def _refuse_other_keys(self, section: Config) -> None:
        self.problems += [unknown_key(section, key, _HEADER_KEYS) for key in section if key not in _HEADER_KEYS]

    def _report(self, section: Config, problem: str, *keys: str) -> None:
        self.problems.append(f"{section.place(*keys)}: {section.path_of(*keys)} {problem}")
