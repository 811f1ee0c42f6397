"""The module classes that a model's YAML may name, and the role of each. No class is named in this file.

``register(MyModule)`` makes a class known: in ``nemo_asr/known_modules.py``, in a package or in a user's file.
Nothing is imported because a YAML file names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nemo_asr.arguments import source_argument
from nemo_lite import DataLayerNM, LossNM, NeuralModule
from nemo_lite.core import (
    AcousticEncodedRepresentation,
    AudioSignal,
    ElementType,
    LabelsType,
    LengthsType,
    LogprobsType,
    LossType,
    Ports,
    PredictionsType,
    SpectrogramType,
)
from nemo_lite.errors import UnknownNameError, UsageError

Elements = tuple[type[ElementType], ...]

# A role: what its module takes, and what it gives. Lengths, optional inputs and further outputs do not count.
ROLES: dict[str, tuple[Elements, Elements]] = {
    "data layer": ((), (AudioSignal,)),
    "preprocessor": ((AudioSignal,), (SpectrogramType,)),
    "multiplier": ((SpectrogramType, LabelsType), (SpectrogramType, LabelsType)),
    "augmentation": ((SpectrogramType,), (SpectrogramType,)),
    "encoder": ((SpectrogramType,), (AcousticEncodedRepresentation,)),
    "decoder": ((AcousticEncodedRepresentation,), (LogprobsType,)),
    "loss": ((LogprobsType, LabelsType), (LossType,)),
    "greedy": ((LogprobsType,), (PredictionsType,)),
}

# What a recipe's model gives for a recording: its text, or a class of a list. The data layer decides.
TASKS = ("transcription", "classification")

_ROLES_OF_BASES: dict[type[NeuralModule], str] = {DataLayerNM: "data layer", LossNM: "loss"}


class OlderArgument(NamedTuple):
    """What became of an argument of older files: today's argument, and today's value of each older value."""

    newer: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Known:
    """A registered class, its role, the arguments that older files have, and the task that it is of."""

    module_class: type[NeuralModule]
    role: str
    older: Mapping[str, OlderArgument] = field(default_factory=dict)
    task: str = TASKS[0]


KNOWN: dict[str, Known] = {}
DEFAULTS: dict[str, dict[str, type[NeuralModule]]] = {task: {} for task in TASKS}
"""By task and role, what fills it where a file has no section for it."""
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
) -> None:
    """Make a module class usable in YAML files, under its name.

    Args:
        module_class: the class. A class of the same name that was registered before is replaced.
        role: one of :data:`ROLES`; needed where the ports are properties, which only an object has.
        default: it fills its role in files without a section for it.
        older_names: further names that it has in older files.
        older_arguments: arguments of older files, and what became of each.
        task: one of :data:`TASKS`: of a data layer, that of the recipes which have it; else, where it is a default.

    Raises:
        UsageError: the ports are of no role, or are properties and ``role`` is missing; or the first argument of a data
            layer is not its source.
        UnknownNameError: another role or task.
    """
    if role and role not in ROLES:
        raise UnknownNameError("role", role, ROLES, place=module_class.__name__)
    if task not in TASKS:
        raise UnknownNameError("task", task, TASKS, place=module_class.__name__)
    known = Known(module_class, role or role_of(module_class), older_arguments or {}, task)
    if known.role == "data layer":
        source_argument(module_class)
    for name in (module_class.__name__, *older_names):
        KNOWN[name] = known
    if default:
        DEFAULTS[task][known.role] = module_class


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
    inputs, outputs = (getattr(module_class, ports) for ports in ("input_ports", "output_ports"))
    if isinstance(inputs, property) or isinstance(outputs, property):
        problem, remedy = "its ports cannot be read before its constructor has run", "give register the role as well"
        raise UsageError(problem, place=module_class.__name__, got="properties", remedy=remedy)
    taken, given = _values_of(inputs), _values_of(outputs)
    for role, (takes, gives) in ROLES.items():
        if _all_found(takes, taken) and len(takes) == len(taken) and _all_found(gives, given):
            return role
    raise UsageError(
        "its ports are of no role in a recipe",
        place=module_class.__name__,
        got=f"takes {_written(taken)}, gives {_written(given)}",
        wanted="; ".join(f"{role}: {_written(takes)} -> {_written(gives)}" for role, (takes, gives) in ROLES.items()),
    )


def _values_of(ports: Ports) -> Elements:
    kinds = [type(port.elements_type) for port in ports.values() if not port.optional]
    return tuple(kind for kind in kinds if kind is not LengthsType)


def _all_found(wanted: Elements, kinds: Elements) -> bool:
    return all(any(issubclass(kind, want) or issubclass(want, kind) for kind in kinds) for want in wanted)


def _written(elements: Elements) -> str:
    return " and ".join(element.__name__ for element in elements) or "nothing"
