"""Ports of modules, kinds of modules, and what a module is to NeMo's scripts. No torch."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from nemo_lite.base.errors import (
    NeuralPortNameMismatchError,
    NeuralPortNmTensorMismatchError,
    NeuralTypeError,
    did_you_mean,
)
from nemo_lite.core.neural_types import ElementType, NeuralType, NeuralTypeComparisonResult

if TYPE_CHECKING:
    from nemo_lite.core.neural_types import NmTensor


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
Converters = Callable[[ElementType, ElementType], Iterable[str]]
"""Gives the names of modules that turn the first element type into the second."""


def check_ports(owner: str, ports: object, function: Callable[..., object] | None) -> None:
    """Refuse ports that are no ports, or whose names differ from the parameters of ``function``.

    Judging is pure and gives a reason; raising happens here and in ``refuse_unless_connectable``.

    Raises:
        NeuralTypeError: ``ports`` is not a dictionary of NeuralTypes, or a name that no parameter can have.
        NeuralPortNameMismatchError: a port without a parameter of its name, a needed parameter without a port, or an
            optional port whose parameter has no default.
    """
    if not isinstance(ports, Mapping) or any(not isinstance(t, NeuralType) for t in ports.values()):
        raise NeuralTypeError("ports must be a dictionary of NeuralTypes", place=owner, got=repr(ports)[:120])
    for port in ports:
        if function is None and isinstance(port, str) and port.isdecimal():
            continue  # an output is no parameter: NeMo's joined data layers may number theirs
        if not str(port).isidentifier() or keyword.iskeyword(port) or port.startswith("_"):
            raise NeuralTypeError(
                f'"{port}" cannot name a port', place=owner, remedy="use a name that a parameter could have"
            )
    if function is None:
        return
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    if any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters):
        return
    for problem, remedy in _differences(ports, parameters, function.__name__):
        raise NeuralPortNameMismatchError(problem, place=owner, remedy=remedy)


def _differences(
    ports: Mapping[str, NeuralType], parameters: Sequence[inspect.Parameter], function: str
) -> Iterator[tuple[str, str]]:
    """Problem and remedy where ports and parameters of a function differ."""
    names = sorted(parameter.name for parameter in parameters)
    for port in ports:
        if port not in names:
            remedy = f"parameters: {', '.join(names) or 'none'}{did_you_mean(port, names)}"
            yield f'input port "{port}" is not a parameter of {function}', remedy
    for parameter in parameters:
        name = parameter.name
        if parameter.default is not parameter.empty:
            continue
        if name not in ports:
            yield f'parameter "{name}" of {function} has no input port', "add the port, or give the parameter a default"
        elif ports[name].optional:
            remedy = "give the parameter a default: what it is when the port is not connected"
            yield f'the optional input port "{name}" is a parameter of {function} without a default', remedy


def refuse_unless_connectable(owner: str, ports: Ports, wires: Mapping[str, NmTensor], converters: Converters) -> None:
    """Check a connecting call: names, superfluous inputs, types, and that something is connected.

    Args:
        owner: the module's name, for the message.
        ports: the module's input ports.
        wires: port name -> wire.
        converters: for the remedy.

    Raises:
        NeuralPortNameMismatchError: a superfluous input, or none at all where some are needed.
        NeuralPortNmTensorMismatchError: a type that does not fit; shows both ends, both types and the known remedy.
    """
    if not wires:
        refuse_unconnected(owner, ports, wires)
    for name, wire in wires.items():
        if name not in ports:
            remedy = f"input ports: {', '.join(ports) or 'none'}{did_you_mean(name, ports)}"
            raise NeuralPortNameMismatchError(f'"{name}" is not an input port', place=owner, remedy=remedy)
        comparison = ports[name].takes(wire.ntype)
        if not comparison.fits:
            remedy = _remedy(comparison.result, ports[name], wire.ntype, converters)
            raise NeuralPortNmTensorMismatchError(
                f"{owner}.{name} cannot take {wire.place}",
                got=wire.ntype.brief,
                wanted=ports[name].brief,
                remedy=f"{comparison.reason}. {remedy}".strip(),
            )


def refuse_unconnected(owner: str, ports: Ports, wires: Mapping[str, NmTensor]) -> None:
    """Check that all inputs which a module needs are connected: when a DAG is made, not at the call.

    Raises:
        NeuralPortNameMismatchError: a missing input.
    """
    missing = [name for name, ntype in ports.items() if name not in wires and not ntype.optional]
    if missing:
        listed = ", ".join(f"{name} ({ports[name].brief})" for name in missing)
        raise NeuralPortNameMismatchError(
            "input ports are not connected", place=owner, got=", ".join(wires) or "nothing", wanted=listed
        )


def _remedy(result: NeuralTypeComparisonResult, port: NeuralType, wire: NeuralType, converters: Converters) -> str:
    if result is NeuralTypeComparisonResult.TRANSPOSE_SAME:
        if [axis.kind for axis in port.axes or ()] == [axis.kind for axis in wire.axes or ()]:
            return f"Convert between lists and tensors to {' '.join(map(str, port.axes or ()))}."
        return f"Transpose the axes to {' '.join(axis.letter for axis in port.axes or ())}."
    preprocessors = sorted(set(converters(wire.elements_type, port.elements_type)))
    if preprocessors:
        return f"A preprocessor is missing: {' or '.join(preprocessors)} turns one into the other."
    mine, other = port.elements_type.type_parameters, wire.elements_type.type_parameters
    if result is NeuralTypeComparisonResult.SAME_TYPE_INCOMPATIBLE_PARAMS and "freq" in mine:
        return (
            f"Use one sample rate for both: resample to {mine['freq']} Hz, or build the module for {other['freq']} Hz."
        )
    if result is NeuralTypeComparisonResult.DIM_INCOMPATIBLE:
        return "Give both modules the same size."
    if result is NeuralTypeComparisonResult.LESS:
        return f"Declare the output as {port.elements_type}, or let the port take {wire.elements_type}."
    return ""
