"""Kinds of modules and graphs, the type of their ports, and what a module is to NeMo's scripts. No torch."""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar, NamedTuple

from nemo_lite.core.neural_types import NeuralType


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
    """The purpose of a graph, and of a module in it."""

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


class NeuralInterface:
    """Base of modules and graphs. Any: calls connect wires or run values."""

    @property
    def name(self) -> str:
        """Its name, which no other living object of its kind has."""
        raise NotImplementedError(f"{type(self).__name__} has no name")

    @property
    def input_ports(self) -> dict[str, NeuralType]:
        """The types of its inputs, by port."""
        raise NotImplementedError(f"{type(self).__name__} has no input_ports")

    @property
    def output_ports(self) -> dict[str, NeuralType]:
        """The types of its outputs, by port."""
        raise NotImplementedError(f"{type(self).__name__} has no output_ports")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} cannot be called")


Ports = dict[str, NeuralType]
