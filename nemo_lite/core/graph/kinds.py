"""What sort of module one is, and for what a graph runs: NeMo's enumerations. Nothing is decided here."""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar, NamedTuple


class ModuleType(Enum):
    """The sort of a module."""

    module = 0
    datalayer = 1
    trainable = 2
    loss = 3
    nontrainable = 4


class HasType:
    """Gives modules their type. Apart from them, because inside a class that sets it ``type[...]`` means it."""

    type: ClassVar[Any] = ModuleType.module  # Any: torch's modules have a method of this name


class OperationMode(Enum):
    """What a graph, and a module in it, are run for."""

    training = 0
    evaluation = 1
    both = 2


class ModelMode(Enum):
    """The same in the first NeMo."""

    train = 0
    eval = 1


class WeightShareTransform(Enum):
    """How a weight is shared: as it is, or transposed."""

    SAME = 0
    TRANSPOSE = 1


class PretrainedModelInfo(NamedTuple):
    """A trained model that can be had: its name, what it is, its parameters, and where it is."""

    pretrained_model_name: str
    description: str
    parameters: str
    location: str
