"""NeuralModule: ports, connecting calls and recorded constructor arguments. No torch and no execution in this file."""

from __future__ import annotations

import inspect
import re
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from nemo_lite.core.graph import module_config
from nemo_lite.core.graph.nm_tensor import ModuleCall, NestedUse, NmTensor
from nemo_lite.core.graph.ports import Ports, check_ports, refuse_unless_connectable
from nemo_lite.core.graph.recording import Recorder, active_recorder, refuse_foreign
from nemo_lite.core.graph.shapes import Shape, shape_of
from nemo_lite.core.neural_types import ElementType
from nemo_lite.errors import CheckpointError, NeuralPortNameMismatchError, did_you_mean
from nemo_lite.utils import logging

# Any: arguments of constructors, which YAML and users give.

M = TypeVar("M", bound="NeuralModule")

# Keywords that every constructor of the first NeMo took; placement is now the factory's alone.
_FIRST_GENERATION_KEYWORDS = ("factory", "placement")


def _ports_of_class(cls: type, attribute: str) -> Ports | None:
    """The ports a class declares, if they can be read without an object; the others are checked with the object."""
    declared: Any = inspect.getattr_static(cls, attribute)
    if isinstance(declared, property):
        try:
            declared = declared.__get__(object.__new__(cls), cls)
        except Exception:  # the property needs attributes that the constructor sets
            return None
    ports: Ports = declared
    return ports


class NeuralModuleMeta(type):
    """Checks ports when a class is made, and records the constructor's arguments when an object is made."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(name, bases, namespace, **kwargs)
        for attribute in ("input_ports", "output_ports"):
            ports = _ports_of_class(cls, attribute)
            if ports is not None:
                cls._check_ports(attribute, ports)

    def __call__(cls: type[M], *args: Any, **kwargs: Any) -> M:  # type: ignore[misc]  # a metaclass' cls is a class
        signature = inspect.signature(cls.__init__)
        if not {p for p in signature.parameters if p in _FIRST_GENERATION_KEYWORDS}:
            kwargs = {key: value for key, value in kwargs.items() if key not in _FIRST_GENERATION_KEYWORDS}
        kwargs = _known_arguments(cls.__name__, signature, kwargs)
        arguments = _bound(signature, args, kwargs)
        module: M = type.__call__(cls, *args, **kwargs)
        object.__setattr__(module, "_init_params", arguments)
        for attribute in ("input_ports", "output_ports"):
            if _ports_of_class(cls, attribute) is None:
                cls._check_ports(attribute, getattr(module, attribute))
        return module

    def _check_ports(cls, attribute: str, ports: Ports) -> None:
        function: Callable[..., Any] | None = None
        if attribute == "input_ports":
            function = getattr(cls, cls.port_function, None)  # type: ignore[attr-defined]  # an attribute of the class
        check_ports(cls.__name__, ports, function)


class NeuralModule(metaclass=NeuralModuleMeta):
    """A typed module. Called on wires it connects; called on tensors it runs.

    Subclasses declare ``input_ports`` and ``output_ports`` as a property or a plain class attribute: a dictionary of
    :class:`NeuralType` in the order of the values. The names of the input ports are the parameters of ``forward``.

    Args:
        name: its name in DAGs, messages and checkpoints; without one, the class name in snake case.

    Attributes:
        converts: ``(from, to)`` of a module that turns one element type into another; type errors then suggest it.
        keep_float32: the call runs in float32, outside autocast and compiled regions: features and losses.
        keep_uncompiled: the call stays out of compiled regions, as that of a module with ``keep_float32`` does.
        training_only: augmentation: the identity in evaluation.
        of_one_object: a class that a backend made to change one object: it stands for its base everywhere else.
        port_function: the method whose parameters are the input ports.
        may_differ: arguments of the constructor that may differ between ranks: they change no output.
    """

    converts: ClassVar[tuple[type[ElementType], type[ElementType]] | None] = None
    keep_float32: ClassVar[bool] = False
    keep_uncompiled: ClassVar[bool] = False
    training_only: ClassVar[bool] = False
    of_one_object: ClassVar[bool] = False
    port_function: ClassVar[str] = "forward"
    may_differ: ClassVar[tuple[str, ...]] = ("name",)

    _init_params: dict[str, Any]
    _name: str | None = None

    def __init__(self, name: str | None = None) -> None:
        self._name = name

    @property
    def name(self) -> str:
        """Its name: the given one, or the class name in snake case."""
        return self._name or _snake_case(type(self).__name__)

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    @property
    def has_own_name(self) -> bool:
        """Whether a name was given; given names are unique in a DAG, others are numbered."""
        return self._name is not None

    @property
    def input_ports(self) -> Ports:
        """What it takes, by port, in the order of the values."""
        return {}

    @property
    def output_ports(self) -> Ports:
        """What it gives, by port, in the order of the values."""
        return {}

    @property
    def init_params(self) -> dict[str, Any]:
        """The constructor's arguments, defaults included, as they were when it was called."""
        return dict(self._init_params)

    @property
    def _disabled_deployment_input_ports(self) -> Iterable[str]:
        """Input ports that an exported module does not have."""
        return ()

    @property
    def _disabled_deployment_output_ports(self) -> Iterable[str]:
        """Output ports that an exported module does not have."""
        return ()

    def _prepare_for_deployment(self) -> tuple[Any, Any]:
        """Make this module, a copy, ready to be exported; examples of its input and output, or None."""
        return None, None

    @property
    def num_weights(self) -> int:
        """How many trainable numbers it holds."""
        return 0

    def is_trainable(self) -> bool:
        """Whether it is of a kind that has weights to train."""
        return False

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """Symbolic shapes of the outputs, from those of the inputs; the default knows what the port types say.

        Sizes of time axes are valid lengths: what the length port carries, without padding.
        """
        return {port: shape_of(ntype) for port, ntype in self.output_ports.items()}

    def connect(self, *args: NmTensor | Recorder, **wires: NmTensor | Recorder) -> Any:
        """Connect to wires, by port name or in port order. Inside ``with graph:`` the graph records the call.

        A graph given in place of a wire stands for its input of the port's name, which is made where it is missing.

        Returns:
            The output wire, or a named tuple ``<Class>Output`` of them in port order.

        Raises:
            NeuralPortNameMismatchError: a missing, superfluous or doubled input, a tensor beside wires, or the input of
                a graph that is not active.
            NeuralPortNmTensorMismatchError: a wire of a type that the port does not take.
            GraphConnectionError: a graph that is not active.
        """
        outputs = self.called_on(self._by_port(self.input_ports, args, wires)).outputs
        if len(outputs) == 1:
            return next(iter(outputs.values()))
        return _output_tuple(f"{type(self).__name__}Output", tuple(outputs))(**outputs)

    def called_on(self, inputs: Mapping[str, NmTensor], nested_in: tuple[NestedUse, ...] = ()) -> ModuleCall:
        """A checked call on wires by port; ``nested_in`` is the use of a graph that repeats it. Raises as connect."""
        refuse_foreign(self.name, inputs)
        refuse_unless_connectable(self.name, self.input_ports, inputs, _converters)
        call = ModuleCall(self, inputs, self.output_ports, nested_in)
        recorder = active_recorder()
        if recorder is not None:
            recorder.record(call)
        return call

    def _by_port(self, ports: Ports, args: tuple[Any, ...], wires: Mapping[str, Any]) -> dict[str, NmTensor]:
        if len(args) > len(ports):
            raise NeuralPortNameMismatchError(
                f"{len(args)} inputs are given", place=self.name, wanted=f"at most {len(ports)} ({', '.join(ports)})"
            )
        inputs = dict(zip(ports, args, strict=False))
        for port in (port for port in inputs if port in wires):
            raise NeuralPortNameMismatchError(f'input port "{port}" is given twice', place=self.name)
        inputs.update(wires)
        for port, value in inputs.items():
            if isinstance(value, Recorder) and port in ports:
                inputs[port] = value.input_for(self.name, port, ports[port])
            elif not isinstance(value, NmTensor):
                raise NeuralPortNameMismatchError(
                    f'input port "{port}" must be connected to a wire',
                    place=self.name,
                    got=type(value).__name__,
                    remedy="give wires only (to connect) or tensors only (to run)",
                )
        return {port: inputs[port] for port in {**ports, **inputs} if port in inputs}

    def serialize(self) -> dict[str, Any]:
        """Its configuration: ``{"header": {...}, "init_params": {...}}``, see ``module_config``."""
        return module_config.serialize(self)

    def fingerprint(self) -> Mapping[str, Any]:
        """What has to be the same on all ranks before they train together: values by readable names.

        By default its class, and its constructor's arguments but those of ``may_differ``. A module whose outputs depend
        on more (a file that it reads) adds that: see :mod:`nemo_lite.utils.digests`, and ``Content`` there.
        """
        arguments = {key: value for key, value in self.init_params.items() if key not in self.may_differ}
        return {self.name: type(self).__qualname__} | {f"{self.name}.{key}": each for key, each in arguments.items()}

    def export_to_config(self, config_file: str | Path) -> None:
        """Write its configuration as YAML.

        Raises:
            ConfigError: a constructor argument that YAML cannot hold.
        """
        module_config.write(self.serialize(), config_file)

    @classmethod
    def deserialize(
        cls: type[M],
        configuration: Mapping[str, Any],
        name: str | None = None,
        overwrite_params: Mapping[str, Any] | None = None,
    ) -> M:
        """A module of this class, or of a subclass, made from a configuration.

        Args:
            configuration: ``header`` and ``init_params``, as :meth:`serialize` gives them; it is left as it is.
            name: name of the new module.
            overwrite_params: constructor arguments that replace those of the configuration.

        Raises:
            ConfigError: a missing section, a class that is not known or not one of these, or arguments that the
                constructor does not take, lacks, or takes in another type.
        """
        return module_config.deserialize([*subclasses(cls)], configuration, name, overwrite_params or {})

    @classmethod
    def import_from_config(
        cls: type[M],
        config_file: str | Path,
        section_name: str | None = None,
        name: str | None = None,
        overwrite_params: Mapping[str, Any] | None = None,
    ) -> M:
        """A module made from a YAML file, or from one section of it. Raises as :meth:`deserialize` does."""
        return cls.deserialize(module_config.read(config_file, section_name), name, overwrite_params)


class WeightShareTransform(Enum):
    """How a weight is shared: as it is, or transposed."""

    SAME = 0
    TRANSPOSE = 1


def subclasses(cls: type[M]) -> Iterator[type[M]]:
    """The class and everything that derives from it, but for classes that a backend made for one object."""
    pending = [cls]
    while pending:
        found = pending.pop()
        if not found.of_one_object:
            yield found
        pending += found.__subclasses__()


def unique_names(modules: Iterable[M], place: str = "") -> dict[str, M]:
    """Modules by the name they are saved under: their own, or their class's.

    Args:
        modules: the modules; the same one twice is one.
        place: who asks, for the message.

    Raises:
        CheckpointError: two modules of one name.
    """
    found: dict[str, M] = {}
    for module in modules:
        name = str(module.name) if module.has_own_name else type(module).__name__
        if found.setdefault(name, module) is not module:
            problem = f'two modules would be saved as "{name}"'
            raise CheckpointError(problem, place=place, remedy="give each its own name=")
    return found


def _converters(source: ElementType, target: ElementType) -> Iterator[str]:
    for cls in subclasses(NeuralModule):
        if cls.converts and isinstance(source, cls.converts[0]) and issubclass(cls.converts[1], type(target)):
            yield cls.__name__


@cache
def _output_tuple(name: str, fields: tuple[str, ...]) -> type[Any]:
    """The named tuple of a class' outputs; made once, for making one takes longer than connecting."""
    return namedtuple(name, fields)


def _known_arguments(place: str, signature: inspect.Signature, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Without those that the constructor does not have: NeMo 0.9's took any, and YAML files of that time have them."""
    parameters = signature.parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return kwargs
    for key in kwargs.keys() - parameters.keys():
        near = did_you_mean(key, parameters.keys() - {"self"})
        logging.warning("%s: %s is not an argument%s; it is left out", place, key, near)
    return {key: value for key, value in kwargs.items() if key in parameters}


def _bound(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a constructor by name. Plain values are copied: what the caller or the module does to them later
    is not what was given."""
    try:
        bound = signature.bind(None, *args, **kwargs)
    except TypeError:
        return {}  # the call itself is about to say so, in Python's usual words
    bound.apply_defaults()
    values = dict(list(bound.arguments.items())[1:])
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            values.update(values.pop(parameter.name, {}))
    return {name: deepcopy(value) if module_config.is_plain(value) else value for name, value in values.items()}


def _snake_case(name: str) -> str:
    """``AudioToTextDataLayer`` -> ``audio_to_text_data_layer``; ``CTCLossNM`` -> ``ctc_loss``."""
    name = name.removesuffix("NM") or name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
