"""The module classes that a model's YAML may name, and the role of each. No class is named in this file.

``register(MyModule)`` makes a class known: in ``nemo_asr/tasks/known_modules.py``, in a package or in a user's file.
Nothing is imported because a YAML file names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nemo_asr.arguments import source_argument
from nemo_asr.tasks.families import FAMILIES, Elements, Role, written
from nemo_lite import DataLayerNM, LossNM, NeuralModule
from nemo_lite.core import LengthsType, Ports
from nemo_lite.errors import UnknownNameError, UsageError

# The families of models that NeMo's files are for, which do not name one: by what the data layer gives.
FAMILY_OF_TASK = {"transcription": "ctc", "classification": "classification"}
TASKS = tuple(FAMILY_OF_TASK)

_ROLES_OF_BASES: dict[type[NeuralModule], str] = {DataLayerNM: "data layer", LossNM: "loss"}


class OlderArgument(NamedTuple):
    """What became of an argument of older files: today's argument, and today's value of each older value."""

    newer: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Known:
    """A registered class, its role, the arguments that older files have, and the family that it is of."""

    module_class: type[NeuralModule]
    role: str
    older: Mapping[str, OlderArgument] = field(default_factory=dict)
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
    task: str = TASKS[0],
    family: str = "",
) -> None:
    """Make a module class usable in YAML files, under its name.

    Args:
        module_class: the class. A class of the same name that was registered before is replaced.
        role: of some family; needed where the ports are properties, which only an object has.
        default: it fills its role in files without a section for it.
        older_names: further names that it has in older files.
        older_arguments: arguments of older files, and what became of each.
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
    entry = Known(module_class, role or role_of(module_class), older_arguments or {}, family)
    if entry.role == "data layer":
        source_argument(module_class)
    for name in (module_class.__name__, *older_names):
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
