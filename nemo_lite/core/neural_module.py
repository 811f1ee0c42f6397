"""NeuralModule: the checks of its class and ports, its calls on wires, the graphs that record them, its YAML."""

from __future__ import annotations

import inspect
import keyword
import os
import re
import sys
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, lru_cache
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar
from uuid import uuid4

from ruamel.yaml import YAML

from nemo_lite.base.aliases import substitute_of, value_of_ours
from nemo_lite.base.config import Config, Keys, Source, build, load_config, raise_if, shown, unknown_key
from nemo_lite.base.errors import (
    CheckpointError,
    ConfigError,
    ConfigStructureError,
    NeuralPortNameMismatchError,
    NeuralPortNmTensorMismatchError,
    NeuralTypeError,
    NotAWireError,
    UnknownClassError,
    did_you_mean,
)
from nemo_lite.base.files import write_atomically
from nemo_lite.base.ranges import refuse_out_of_range
from nemo_lite.core.app_state import AppState
from nemo_lite.core.neural_types import (
    ElementType,
    ModuleCall,
    NestedUse,
    NeuralType,
    NeuralTypeComparisonResult,
    NmTensor,
    Value,
)
from nemo_lite.core.ports import (
    HasType,
    NeuralInterface,
    OperationMode,
    Ports,
    PretrainedModelInfo,
)
from nemo_lite.core.shapes import Shape, shape_of
from nemo_lite.package_info import __version__
from nemo_lite.utils import logging

M = TypeVar("M", bound="NeuralModule")

# Keywords that every constructor of the first NeMo took; placement is now the factory's alone.
FIRST_GENERATION_KEYWORDS = ("factory", "placement")
# Where our own base classes take them; no argument of a module.
_OF_THE_BASE = "first_generation"


def _ports_of_class(cls: type, attribute: str) -> Ports | None:
    """The ports a class declares, if they can be read without an object; the others are checked with the object."""
    declared: Any = inspect.getattr_static(cls, attribute)
    if isinstance(declared, property):
        try:
            declared = declared.fget(None) if declared.fget else None
        except Exception:  # the property needs the object
            return None
    ports: Ports = declared
    return ports


_serials = count()


class NeuralModuleMeta(type):
    """Checks ports when a class is made; checks and records the constructor's arguments when an object is made."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, object], **kwargs: object) -> None:
        super().__init__(name, bases, namespace, **kwargs)
        for attribute in ("input_ports", "output_ports"):
            ports = _ports_of_class(cls, attribute)
            if ports is not None:
                cls._check_ports(attribute, ports)

    def __call__(cls: type[M], *args: Any, **kwargs: Any) -> M:  # type: ignore[misc]  # a metaclass' cls is a class
        signature = _signature_of(cls.__init__)
        kwargs = _known_arguments(cls, signature, kwargs) if kwargs else kwargs
        arguments = _bound(signature, args, kwargs)
        refuse_out_of_range(cls.__init__, arguments, cls.__name__)
        module: M = type.__call__(cls, *args, **kwargs)
        object.__setattr__(module, "_serial", next(_serials))
        object.__setattr__(module, "_init_params", arguments)
        object.__setattr__(module, "_unique_name", AppState().register_module(module, module._name))
        for attribute in ("input_ports", "output_ports"):
            if _ports_of_class(cls, attribute) is None:
                # Not getattr: torch makes another error of an AttributeError in a property.
                declared: Any = inspect.getattr_static(type(module), attribute)
                is_computed = isinstance(declared, property) and declared.fget is not None
                cls._check_ports(attribute, declared.fget(module) if is_computed else getattr(module, attribute))
        return module

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's parameters, for ``inspect.signature`` and ``help``."""
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]  # the constructor of this very class
        return signature.replace(parameters=[*signature.parameters.values()][1:], return_annotation=cls)

    def _check_ports(cls, attribute: str, ports: Ports) -> None:
        """Refuse ports that are no ports, or input ports whose names differ from the parameters of the function.

        Judging is pure and gives a reason; raising happens here and in ``refuse_unless_connectable``.

        Raises:
            NeuralTypeError: ``ports`` is not a dictionary of NeuralTypes, or a name that no parameter can have.
            NeuralPortNameMismatchError: a port without a parameter of its name, a needed parameter without a port, or
                an optional port whose parameter has no default.
        """
        owner = cls.__name__
        function: Callable[..., Any] | None = None
        if attribute == "input_ports":
            function = getattr(cls, cls.port_function, None)  # type: ignore[attr-defined]  # an attribute of the class
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


@lru_cache(maxsize=1024)  # of each constructor once: reading it takes longer than making a small module
def _signature_of(constructor: Callable[..., None]) -> inspect.Signature:
    return inspect.signature(constructor)


def without_unknown(place: str, arguments: Mapping[str, object], names: Iterable[str]) -> dict[str, object]:
    """Keywords without those that a constructor does not have, which are warned of with the nearest name.

    Constructors of NeMo 0.9 took any, and YAML files of that time have them.
    """
    names = list(names)
    for key in arguments:
        if key not in names:
            logging.warning("%s: %s is not an argument%s; it is left out", place, key, did_you_mean(key, names))
    return {key: value for key, value in arguments.items() if key in names}


def keywords_of(constructor: Callable[..., None]) -> list[str] | None:
    """The keywords that a constructor has parameters for; None if it takes further ones of its own."""
    parameters = [*_signature_of(constructor).parameters.values()][1:]
    if any(p.kind is p.VAR_KEYWORD and p.name != _OF_THE_BASE for p in parameters):
        return None
    return [p.name for p in parameters if p.name != _OF_THE_BASE]


def _known_arguments(cls: type, signature: inspect.Signature, kwargs: dict[str, Any]) -> dict[str, object]:
    """The keywords of a call that its constructor has parameters for; all, if it takes further ones of its own."""
    if not set(FIRST_GENERATION_KEYWORDS) & set(signature.parameters):
        kwargs = {key: value for key, value in kwargs.items() if key not in FIRST_GENERATION_KEYWORDS}
    known = keywords_of(cls.__init__)  # type: ignore[misc]  # of the class itself
    return kwargs if known is None else without_unknown(cls.__name__, kwargs, known)


def _bound(signature: inspect.Signature, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
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
    return {name: deepcopy(value) if is_plain(value) else value for name, value in values.items()}


class Recorder:
    """Takes down every connecting call while it is the active one."""

    operation_mode: OperationMode

    def input_for(self, owner: str, port: str, ntype: NeuralType) -> NmTensor:
        """The wire for an input port to which the recorder itself was given.

        Raises:
            GraphConnectionError: the recorder is not the active one.
        """
        raise NotImplementedError(f"{type(self).__name__} has no inputs")

    def record(self, call: ModuleCall) -> None:
        """Take down a call."""
        raise NotImplementedError(f"{type(self).__name__} records nothing")


def active_recorder() -> Recorder | None:
    """The recorder inside whose ``with`` this is, or None."""
    recorder: Recorder | None = AppState().active_graph
    return recorder


def refuse_foreign(owner: str, inputs: Mapping[str, NmTensor]) -> None:
    """Check that inputs of a graph are used inside of it.

    Raises:
        NeuralPortNameMismatchError: a wire is the input of a graph that is not the active one.
    """
    active = active_recorder()
    for port, wire in inputs.items():
        if wire.is_graph_input and wire.graph is not active:
            remedy = "call the module inside `with` of the graph whose input this is"
            raise NeuralPortNameMismatchError(
                f'"{port}" is given the input of a graph that is not active', place=owner, got=wire.name, remedy=remedy
            )


def refuse_unless_connectable(owner: str, ports: Ports, wires: Mapping[str, NmTensor]) -> None:
    """Check a connecting call: names, superfluous inputs, types, and that something is connected.

    Args:
        owner: the module's name, for the message.
        ports: the module's input ports.
        wires: port name -> wire.

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
            remedy = _remedy(comparison.result, ports[name], wire.ntype)
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


def _remedy(result: NeuralTypeComparisonResult, port: NeuralType, wire: NeuralType) -> str:
    if result is NeuralTypeComparisonResult.TRANSPOSE_SAME:
        if [axis.kind for axis in port.axes or ()] == [axis.kind for axis in wire.axes or ()]:
            return f"Convert between lists and tensors to {' '.join(map(str, port.axes or ()))}."
        return f"Transpose the axes to {' '.join(axis.letter for axis in port.axes or ())}."
    preprocessors = sorted(set(_converters(wire.elements_type, port.elements_type)))
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


def _converters(source: ElementType, target: ElementType) -> Iterator[str]:
    for cls in subclasses(NeuralModule):
        if cls.converts and isinstance(source, cls.converts[0]) and issubclass(cls.converts[1], type(target)):
            yield cls.__name__


# Any: arguments of constructors, which YAML and users give.


class NeuralModule(HasType, NeuralInterface, metaclass=NeuralModuleMeta):
    """A typed module. Called on wires it connects; called on tensors it runs.

    Subclasses declare ``input_ports`` and ``output_ports`` as a property or a plain class attribute: a dictionary of
    :class:`NeuralType` in the order of the values. The names of the input ports are the parameters of ``forward``.

    In the style of NeMo 0.8, a static method ``create_ports`` may return both dictionaries; it gets the constructor's
    arguments that it has parameters for.

    Args:
        name: its name in DAGs, messages and checkpoints. No other living module may have it.
        first_generation: ``factory`` and ``placement``, accepted and not used: the factory made last is in force.

    Attributes:
        converts: ``(from, to)`` of a module that turns one element type into another; type errors then suggest it.
        keep_float32: the call runs in float32, outside autocast and compiled regions: features and losses.
        keep_uncompiled: the call stays out of compiled regions, as that of a module with ``keep_float32`` does.
        training_only: augmentation: the identity in evaluation.
        of_one_object: a class that a backend made to change one object: it stands for its base everywhere else.
        port_function: the method whose parameters are the input ports.
        type: what sort of module it is: a ``ModuleType``.
        left_out: keywords that its constructors passed on and no base takes; a warning named them.
        may_differ: arguments of the constructor that may differ between ranks: they change no output.
    """

    converts: ClassVar[tuple[type[ElementType], type[ElementType]] | None] = None
    keep_float32: ClassVar[bool] = False
    keep_uncompiled: ClassVar[bool] = False
    training_only: ClassVar[bool] = False
    of_one_object: ClassVar[bool] = False
    port_function: ClassVar[str] = "forward"
    may_differ: ClassVar[tuple[str, ...]] = ("name",)

    # In NeMo 0.8 (ports in, ports out), from the constructor's arguments.
    create_ports: ClassVar[Callable[..., tuple[Ports, Ports]] | None] = None

    left_out: tuple[str, ...] = ()

    _init_params: dict[str, Any]
    _serial: int = 0  # the younger of two modules has the larger one
    _name: str | None = None
    _label: str = ""
    _unique_name: str = ""
    _id: str = ""
    _operation_mode: OperationMode = OperationMode.both

    def __init__(self, name: str | None = None, **first_generation: object) -> None:
        known = without_unknown(type(self).__name__, first_generation, ["name", *FIRST_GENERATION_KEYWORDS])
        self._name = name
        if len(known) < len(first_generation):
            self.left_out = tuple(first_generation.keys() - known.keys())

    def __str__(self) -> str:
        """The name under which its weights are saved: its own if it was given one, else its class's."""
        return self.label if self.has_own_name else type(self).__name__

    @property
    def name(self) -> str:
        """Its name, which no other living module has: the given one, or ``jasperencoder0``, ``jasperencoder1``, ..."""
        return self._unique_name or self.label

    @name.setter
    def name(self, name: str) -> None:
        AppState().modules.rename(self, name)
        self._name = self._unique_name = name

    @property
    def label(self) -> str:
        """How DAGs and messages call it: its given name, or its class' in snake case, which a DAG numbers."""
        return self._label or self._name or _snake_case(type(self).__name__)

    @label.setter
    def label(self, label: str) -> None:
        self._label = label

    @property
    def has_own_name(self) -> bool:
        """Whether a name was given; given names are unique, others are numbered."""
        return self._name is not None

    @property
    def unique_instance_id(self) -> str:
        """A text that no other module has, in any process."""
        if not self._id:
            self._id = str(uuid4())
        return self._id

    @property
    def operation_mode(self) -> OperationMode:
        """The purpose of the graph that it was called in last; ``both`` outside of graphs."""
        return self._operation_mode

    @operation_mode.setter
    def operation_mode(self, operation_mode: OperationMode) -> None:
        self._operation_mode = operation_mode
        self._enter(operation_mode)

    def _enter(self, operation_mode: OperationMode) -> None:
        """Follow a change of the mode; a module without torch has nothing to do."""

    @property
    def input_ports(self) -> Ports:
        """The types of its inputs, by port, in the order of the values."""
        return self._created_ports()[0]

    @property
    def output_ports(self) -> Ports:
        """The types of its outputs, by port, in the order of the values."""
        return self._created_ports()[1]

    def _created_ports(self) -> tuple[Ports, Ports]:
        """The ports of a ``create_ports`` in the style of NeMo 0.8; without one, none."""
        create = type(self).create_ports
        if create is None:
            return {}, {}
        parameters = inspect.signature(create).parameters.values()
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        names = {parameter.name for parameter in parameters}
        return create(**{name: value for name, value in self._init_params.items() if takes_all or name in names})

    @property
    def init_params(self) -> dict[str, Any]:
        """The constructor's arguments, defaults included, as they were when it was called."""
        return dict(self._init_params)

    def __validate_params(self, params: Mapping[str, object]) -> bool:
        """Whether a configuration can hold these arguments; as scripts of NeMo ask, by the mangled name."""
        return is_plain(params)

    @property
    def _disabled_deployment_input_ports(self) -> Iterable[str]:
        """Input ports that an exported module does not have."""
        return ()

    @property
    def _disabled_deployment_output_ports(self) -> Iterable[str]:
        """Output ports that an exported module does not have."""
        return ()

    def _prepare_for_deployment(self) -> tuple[Value, Value]:
        """Make this module, a copy, ready to be exported; examples of its input and output, or None."""
        return None, None

    local_parameters = init_params  # its name before NeMo 0.10

    @classmethod
    def list_pretrained_models(cls) -> list[PretrainedModelInfo]:
        """The trained models of this class that can be had by name: none."""
        return []

    @property
    def num_weights(self) -> int:
        """How many trainable numbers it holds."""
        return 0

    @property
    def referenced(self) -> list[NeuralModule]:
        """The modules that it was given as a :class:`Reference`."""
        # A copy at once: another thread that runs the module may set an attribute meanwhile.
        return [value.module for value in list(vars(self).values()) if isinstance(value, Reference)]

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
            NeuralPortNameMismatchError: a superfluous or doubled input, or the input of a graph that is not active. A
                missing input is an error of the DAG.
            NotAWireError: a tensor beside wires.
            NeuralPortNmTensorMismatchError: a wire of a type that the port does not take.
            GraphConnectionError: a graph that is not active.
        """
        outputs = self.called_on(self._by_port(self.input_ports, args, wires)).outputs
        if len(outputs) == 1:
            return next(iter(outputs.values()))
        return _output_tuple(f"{type(self).__name__}Output", tuple(outputs))(*outputs.values())

    def called_on(self, inputs: Mapping[str, NmTensor], nested_in: tuple[NestedUse, ...] = ()) -> ModuleCall:
        """A checked call on wires by port; ``nested_in`` is the use of a graph that repeats it. Raises as connect."""
        refuse_foreign(self.label, inputs)
        refuse_unless_connectable(self.label, self.input_ports, inputs)
        call = ModuleCall(self, inputs, self.output_ports, nested_in)
        recorder = active_recorder()
        if recorder is not None:
            recorder.record(call)
        return call

    def _by_port(self, ports: Ports, args: tuple[object, ...], wires: Mapping[str, object]) -> dict[str, NmTensor]:
        if len(args) > len(ports):
            raise NeuralPortNameMismatchError(
                f"{len(args)} inputs are given", place=self.label, wanted=f"at most {len(ports)} ({', '.join(ports)})"
            )
        inputs = dict(zip(ports, args, strict=False))
        for port in wires:
            if port in inputs:
                raise NeuralPortNameMismatchError(f'input port "{port}" is given twice', place=self.label)
        inputs.update(wires)
        connected: dict[str, NmTensor] = {}
        for port, value in inputs.items():
            if isinstance(value, Recorder) and port in ports:
                connected[port] = value.input_for(self.label, port, ports[port])
            elif isinstance(value, NmTensor):
                connected[port] = value
            else:
                raise NotAWireError(
                    f'input port "{port}" must be connected to a wire',
                    place=self.label,
                    got=type(value).__name__,
                    remedy="give wires only (to connect) or tensors only (to run)",
                )
        return {port: connected[port] for port in {**ports, **connected} if port in connected}

    def serialize(self) -> dict[str, object]:
        """Its configuration: ``header`` (the class, and the versions that wrote it) and ``init_params``.

        Raises:
            ConfigError: an argument that is not None, text, a number, a list or a dictionary of such.
        """
        cls = type(self)
        params = dict(self._serialize_configuration())
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

    def _serialize_configuration(self) -> dict[str, object]:
        """The ``init_params`` that are written. Classes with arguments that YAML cannot hold override it."""
        return self.init_params

    @classmethod
    def _deserialize_configuration(cls, init_params: dict[str, object]) -> dict[str, Any]:
        """The constructor's arguments from what :meth:`_serialize_configuration` gave."""
        return init_params

    def fingerprint(self) -> Mapping[str, object]:
        """The values that have to be the same on all ranks before they train together, by readable names.

        By default its class, and its constructor's arguments but those of ``may_differ``. A module whose outputs depend
        on more (a file that it reads) adds that: see :mod:`nemo_lite.base.files`, and ``Content`` there.
        """
        arguments = {key: value for key, value in self.init_params.items() if key not in self.may_differ}
        label = self.label
        return {label: type(self).__qualname__} | {f"{label}.{key}": value for key, value in arguments.items()}

    def compared_in_evaluation(self) -> Mapping[str, object]:
        """Constructor's arguments that should be the same in training and in evaluation, where both have such a module.

        By default all but those of ``may_differ``. A difference is logged before the first step.
        """
        return {key: value for key, value in self.init_params.items() if key not in self.may_differ}

    def export_to_config(self, config_file: str | Path) -> None:
        """Write its configuration as YAML.

        Raises:
            ConfigError: a constructor argument that YAML cannot hold.
        """
        write_configuration(self.serialize(), config_file)

    @classmethod
    def deserialize(
        cls: type[M],
        configuration: Mapping[str, object],
        name: str | None = None,
        overwrite_params: Mapping[str, object] | None = None,
    ) -> M:
        """A module of this class, or of a subclass, made from a configuration.

        Args:
            configuration: ``header`` and ``init_params``, as :meth:`serialize` gives them; it is left as it is.
            name: name of the new module.
            overwrite_params: constructor arguments that replace those of the configuration.

        Raises:
            ConfigStructureError: a missing section, a class that is not known or not one of these, or arguments that
                the constructor does not take, lacks, or takes in another type.
        """
        overwrite_params = overwrite_params or {}
        with _as_import_errors():
            config = _as_config(configuration, f"configuration of {cls.__name__}")
            header, params = config.get("header"), config.get("init_params") or {}
            if not isinstance(header, Mapping) or not isinstance(header.get("full_spec"), str):
                raise ConfigError(f"{config.place()}: header.full_spec is missing; it names the class")
            if not isinstance(params, Mapping):
                raise ConfigError(f"{config.place('init_params')}: init_params is {shown(params)}, wanted a mapping")
            target = _find_class(cls, header["full_spec"], config.place("header"))
            parameters = inspect.signature(target.__init__).parameters
            if name is not None and "name" in parameters:
                overwrite_params = {**overwrite_params, "name": name}
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
                overwritten = _as_config(overwrite_params, f"overwrite_params of {target.__name__}")
                names = parameters.keys() - {"self"}
                raise_if(unknown_key(overwritten, key, names) for key in overwritten if key not in names)
            kept = _as_config(params, config.place()).without(*overwrite_params)
            hook = "_deserialize_configuration"
            if any(hook in vars(base) for base in target.__mro__ if not base.__module__.startswith("nemo_lite.core.")):
                # What a class's own hook gives is not checked; without one the arguments are checked one by one.
                module = target(**target._deserialize_configuration({**kept.plain(), **overwrite_params}))
            else:
                module = build(target, kept, **overwrite_params)
            if name is not None and module.label != name:
                module.name = name
            return module

    @classmethod
    def import_from_config(
        cls: type[M],
        config_file: str | Path,
        section_name: str | None = None,
        name: str | None = None,
        overwrite_params: Mapping[str, object] | None = None,
    ) -> M:
        """A module made from a YAML file, or from one section of it. Raises as :meth:`deserialize` does."""
        with _as_import_errors():
            config = load_config(os.path.expanduser(config_file))
        if section_name is None:
            return cls.deserialize(config, name, overwrite_params)
        section = config.get(section_name)
        if not isinstance(section, Config):
            near = did_you_mean(section_name, config)
            raise ConfigStructureError(f"{config_file}: section {section_name} is missing{near}")
        return cls.deserialize(section, name, overwrite_params)


class Reference(Generic[M]):
    """Another module, given to the constructor of a module that calls it: a search that calls a decoder, say.

    Kept as an attribute it is no part of its holder: its weights are saved, counted and trained where it stands itself.
    A DAG counts it among its modules, so it is on the DAG's device and in its mode.

    Attributes:
        module: the module.
    """

    def __init__(self, module: M) -> None:
        self.module = module

    def __call__(self, *values: Any) -> Any:
        """The module's result for values."""
        return self.module(*values)

    def __repr__(self) -> str:  # the same on all ranks
        return f"Reference({self.module})"


def subclasses(cls: type[M]) -> Iterator[type[M]]:
    """The class and everything that derives from it, but for classes that a backend made for one object."""
    pending = [cls]
    while pending:
        candidate = pending.pop()
        if not candidate.of_one_object:
            yield candidate
        pending += candidate.__subclasses__()


def classes_by_name(cls: type[M]) -> dict[str, type[M]]:
    """:func:`subclasses` by name. The first of a name counts: torch.export leaves subclasses behind that copy it."""
    return {subclass.__name__: subclass for subclass in reversed([*subclasses(cls)])}


def unique_names(modules: Iterable[M], place: str = "") -> dict[str, M]:
    """Modules by the name they are saved under: their own, or their class's.

    Args:
        modules: the modules; the same one twice is one.
        place: who asks, for the message.

    Raises:
        CheckpointError: two modules of one name.
    """
    named: dict[str, M] = {}
    for module in modules:
        name = str(module)
        if named.setdefault(name, module) is not module:
            problem = f'two modules would be saved as "{name}"'
            raise CheckpointError(problem, place=place, remedy="give each its own name=")
    return named


@cache
def _output_tuple(name: str, fields: tuple[str, ...]) -> type[object]:
    """The named tuple of a class' outputs; made once, for making one takes longer than connecting."""
    return namedtuple(name, fields, rename=True)  # the port "1" is the field _0


@cache
def _snake_case(name: str) -> str:
    """``AudioToTextDataLayer`` -> ``audio_to_text_data_layer``; ``CTCLossNM`` -> ``ctc_loss``."""
    name = name.removesuffix("NM") or name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


class _NoFile(Source):
    """Where a configuration stands that is not from a file: the place of everything in it is its name."""

    def place(self, keys: Keys) -> str:
        return self.name


def is_plain(value: object) -> bool:
    """Whether YAML can hold a value: None, text, numbers, and lists and dictionaries of them."""
    if isinstance(value, Mapping):
        return all(type(key) is str and is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(is_plain(item) for item in value)
    return value is None or type(value) in (str, int, float, bool)


def write_configuration(configuration: Mapping[str, object], path: str | Path) -> None:
    """Write a configuration as YAML.

    Of what a file names only our own packages are imported; classes of others are found where they are loaded.

    Raises:
        UsageError: the folder cannot be written to.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel's annotation lacks the setting
    yaml.default_flow_style = False
    write_atomically(os.path.expanduser(path), lambda temporary: yaml.dump(_in_lists(configuration), temporary))


@contextmanager
def _as_import_errors() -> Iterator[None]:
    try:
        yield
    except ConfigStructureError:
        raise
    except ConfigError as error:
        raise ConfigStructureError(*error.problems) from error


def _as_config(mapping: Mapping[str, object], place: str) -> Config:
    if isinstance(mapping, Config):
        return mapping
    return Config({key: _in_lists(item) for key, item in mapping.items()}, _NoFile(place))


def _in_lists(value: object) -> object:
    """The same values, tuples as lists and mappings as dictionaries: what YAML has."""
    if isinstance(value, Mapping):
        return {key: _in_lists(item) for key, item in value.items()}
    return [_in_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _full_spec(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _find_class(base: type[M], full_spec: str, place: str) -> type[M]:
    """The base or the class below it that a file names."""
    value = value_of_ours(full_spec)  # what is imported by that is among the subclasses
    # The first of a name is the class itself: torch.export leaves subclasses behind that copy its module and name.
    by_spec = {_full_spec(cls): cls for cls in reversed([*subclasses(base)])}
    if full_spec in by_spec:
        return by_spec[full_spec]
    if isinstance(value, type) and issubclass(value, base):
        return value
    if isinstance(value, type) and issubclass(value, NeuralModule):
        raise UnknownClassError(f"{place}: full_spec {full_spec} is not a {base.__name__}; read it by {value.__name__}")
    # A full_spec written by NeMo names the same class at another place.
    name = full_spec.rpartition(".")[2]
    same_name = {spec: cls for spec, cls in by_spec.items() if cls.__name__ == name}
    if len(same_name) == 1:
        return next(iter(same_name.values()))
    if same_name:
        which = " or ".join(sorted(same_name))
        raise UnknownClassError(f"{place}: full_spec {full_spec} could be {which}; write which")
    near = did_you_mean(name, sorted(cls.__name__ for cls in by_spec.values()))
    substitute = substitute_of(full_spec)
    remedy = f"instead: {substitute}" if substitute else "import the package that defines it"
    raise UnknownClassError(f"{place}: full_spec {full_spec} is not a {base.__name__} that is loaded{near}; {remedy}")
