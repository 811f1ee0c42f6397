"""What happens when a class of modules, and a module, is made: ports are checked, arguments recorded, names given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

from nemo_lite.config.ranges import refuse_out_of_range
from nemo_lite.core.graph.module_config import is_plain
from nemo_lite.core.graph.ports import Ports, check_ports
from nemo_lite.errors import did_you_mean
from nemo_lite.utils import logging
from nemo_lite.utils.alive import AppState

if TYPE_CHECKING:
    from nemo_lite.core.graph.neural_module import NeuralModule

# Any: arguments of constructors, which YAML and users give.

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
            declared = declared.__get__(object.__new__(cls), cls)
        except Exception:  # the property needs attributes that the constructor sets
            return None
    ports: Ports = declared
    return ports


class NeuralModuleMeta(type):
    """Checks ports when a class is made; checks and records the constructor's arguments when an object is made."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(name, bases, namespace, **kwargs)
        for attribute in ("input_ports", "output_ports"):
            ports = _ports_of_class(cls, attribute)
            if ports is not None:
                cls._check_ports(attribute, ports)

    def __call__(cls: type[M], *args: Any, **kwargs: Any) -> M:  # type: ignore[misc]  # a metaclass' cls is a class
        signature = _signature_of(cls)
        kwargs = _known_arguments(cls, signature, kwargs) if kwargs else kwargs
        arguments = _bound(signature, args, kwargs)
        refuse_out_of_range(cls.__init__, arguments, cls.__name__)
        module: M = type.__call__(cls, *args, **kwargs)
        object.__setattr__(module, "_init_params", arguments)
        object.__setattr__(module, "_unique_name", AppState().register_module(module, module._name))
        for attribute in ("input_ports", "output_ports"):
            if _ports_of_class(cls, attribute) is None:
                cls._check_ports(attribute, getattr(module, attribute))
        return module

    @property
    def __signature__(cls) -> inspect.Signature:
        """What a call of the class takes, for ``inspect.signature`` and ``help``: the constructor's parameters."""
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]  # the constructor of this very class
        return signature.replace(parameters=[*signature.parameters.values()][1:], return_annotation=cls)

    def _check_ports(cls, attribute: str, ports: Ports) -> None:
        function: Callable[..., Any] | None = None
        if attribute == "input_ports":
            function = getattr(cls, cls.port_function, None)  # type: ignore[attr-defined]  # an attribute of the class
        check_ports(cls.__name__, ports, function)


def _signature_of(cls: type) -> inspect.Signature:
    """The constructor's signature; kept with the class, for reading it takes longer than making a small module."""
    constructor = cls.__init__  # type: ignore[misc]  # the constructor of this very class
    known: tuple[object, inspect.Signature] | None = cls.__dict__.get("_known_signature")
    if known is None or known[0] is not constructor:
        known = (constructor, inspect.signature(constructor))
        type.__setattr__(cls, "_known_signature", known)
    return known[1]


def without_unknown(place: str, given: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Keywords without those that a constructor does not have, which are warned of with the nearest name.

    Constructors of NeMo 0.9 took any, and YAML files of that time have them.
    """
    known = [*known]
    for key in (key for key in given if key not in known):
        logging.warning("%s: %s is not an argument%s; it is left out", place, key, did_you_mean(key, known))
    return {key: value for key, value in given.items() if key in known}


def _known_arguments(cls: type, signature: inspect.Signature, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keywords that a constructor has parameters for; all, if it takes further ones of its own."""
    parameters = [*signature.parameters.values()][1:]
    names = [p.name for p in parameters]
    if not {*FIRST_GENERATION_KEYWORDS} & {*names}:
        kwargs = {key: value for key, value in kwargs.items() if key not in FIRST_GENERATION_KEYWORDS}
    if any(p.kind is p.VAR_KEYWORD and p.name != _OF_THE_BASE for p in parameters):
        return kwargs
    return without_unknown(cls.__name__, kwargs, [name for name in names if name != _OF_THE_BASE])


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
    return {name: deepcopy(value) if is_plain(value) else value for name, value in values.items()}
