"""The module classes that a model's YAML may name, and the role of each by its ports. No class is named in this file.

``register(GruEncoder)`` makes a class known: in ``nemo_asr/known_modules.py``, in a package or in a user's file.
Nothing is imported because a YAML file names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nemo_lite import NeuralModule
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


@dataclass(frozen=True)
class Known:
    """A registered class; ``older`` maps an argument that older files have to today's, with what each value became."""

    module_class: type[NeuralModule]
    role: str
    older: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)


KNOWN: dict[str, Known] = {}
DEFAULTS: dict[str, type[NeuralModule]] = {}
"""By role, what fills it where a file has no section for it."""
MODEL_NAMES: list[str] = []
"""Classes of whole models that a file's own header may name."""


def register(
    module_class: type[NeuralModule],
    *,
    role: str = "",
    default: bool = False,
    older_names: Iterable[str] = (),
    older_arguments: Mapping[str, tuple[str, Mapping[str, Any]]] | None = None,
) -> None:
    """Make a module class usable in YAML files, under its name.

    Args:
        module_class: the class. A class of the same name that was registered before is replaced.
        role: one of :data:`ROLES`; needed only where the ports cannot be read before the constructor has run.
        default: it fills its role in files without a section for it.
        older_names: further names that it has in older files.
        older_arguments: an argument of older files -> today's, and the value that each older value became.

    Raises:
        UsageError: the ports are of no role, or cannot be read without an object.
        UnknownNameError: another role.
    """
    if role and role not in ROLES:
        raise UnknownNameError("role", role, ROLES, place=module_class.__name__)
    known = Known(module_class, role or role_of(module_class), older_arguments or {})
    for name in (module_class.__name__, *older_names):
        KNOWN[name] = known
    if default:
        DEFAULTS[known.role] = module_class


def register_models(*names: str) -> None:
    """Make names of whole models known: files whose own header names one hold its sections."""
    MODEL_NAMES.extend(names)


def role_of(module_class: type[NeuralModule]) -> str:
    """The role whose element types the ports of this class have. Raises UsageError where there is none."""
    try:
        inputs, outputs = (_ports(module_class, attribute) for attribute in ("input_ports", "output_ports"))
    except Exception as error:
        problem, remedy = "its ports cannot be read before its constructor has run", "give register the role as well"
        raise UsageError(problem, place=module_class.__name__, got=str(error), remedy=remedy) from error
    taken = [type(p.elements_type) for p in inputs.values() if not p.optional]
    given = [type(p.elements_type) for p in outputs.values()]
    taken, given = ([kind for kind in kinds if kind is not LengthsType] for kinds in (taken, given))
    for role, (takes, gives) in ROLES.items():
        if _all_found(takes, taken) and len(takes) == len(taken) and _all_found(gives, given):
            return role
    names = [" and ".join(kind.__name__ for kind in kinds) or "nothing" for kinds in (taken, given)]
    raise UsageError(
        "its ports are of no role in a recipe",
        place=module_class.__name__,
        got=f"takes {names[0]}, gives {names[1]}",
        wanted="; ".join(f"{role}: {_written(takes)} -> {_written(gives)}" for role, (takes, gives) in ROLES.items()),
    )


def _all_found(wanted: Elements, kinds: list[type[ElementType]]) -> bool:
    return all(any(issubclass(kind, want) or issubclass(want, kind) for kind in kinds) for want in wanted)


def _written(elements: Elements) -> str:
    return " and ".join(element.__name__ for element in elements) or "nothing"


class _Unset(int):
    """Stands for what a constructor would have set. As a size it is 1: only element types are looked at."""

    def __getattr__(self, name: str) -> _Unset:
        return self


class _UnsetAttributes(dict[str, Any]):
    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> _Unset:
        return _Unset(1)


def _ports(module_class: type[NeuralModule], attribute: str) -> Ports:
    """The ports of a class, read from an object without its constructor: what they are of, not how large."""
    bare = object.__new__(module_class)
    bare.__dict__["_buffers"] = _UnsetAttributes()  # where nn.Module looks for attributes that the object lacks
    ports: Ports = getattr(bare, attribute)
    return ports
