"""Optimizers by name: the table of the command line and of ``create_optimizer``, and their options. No torch here.

To add one, write it in `nemo_lite/backends/pytorch/optimizers.py`, where names are looked up, and add a line to the
table; or call :func:`register_optimizer`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, TypeGuard

from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.base.ranges import Between

# Any: options are numbers, pairs of numbers and flags; constructors are of the backend.

# Imported when a constructor is asked for: the names alone are for --help, which shall not wait for torch.
_MODULE = "nemo_lite.backends.pytorch.optimizers"
# Arguments of constructors that are no options by name; every optimizer takes ``lr``.
_NOT_BY_NAME = ("lr", "luc_eps")
_NO_DEFAULT = inspect.Parameter.empty
_RANGES = {"betas": Between(0, 1, below=True)}
_ANY_OTHER = Between(0, math.inf, below=True)


class Optimizers(Mapping[str, Mapping[str, Any]]):
    """The options of each optimizer beside ``lr``, with their defaults, by the optimizer's name."""

    def __init__(self, names: Mapping[str, str], **defaults: Mapping[str, object]) -> None:
        self._constructors: dict[str, str | Callable[..., Any]] = dict(names)
        self._defaults = dict(defaults)

    def __iter__(self) -> Iterator[str]:
        return iter(self._constructors)

    def __len__(self) -> int:
        return len(self._constructors)

    def __contains__(self, name: object) -> bool:
        return name in self._constructors

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        options = {**constructor_defaults(self.constructor_of(name)), **self._defaults.get(name, {})}
        return {option: default for option, default in options.items() if option not in _NOT_BY_NAME}

    def constructor_of(self, name: str) -> Callable[..., Any]:
        """The class or function that makes the optimizer of this name.

        Raises:
            UnknownNameError: there is none.
        """
        if name not in self._constructors:
            raise UnknownNameError("optimizer", name, self._constructors)
        constructor = self._constructors[name]
        if isinstance(constructor, str):
            constructor = self._constructors[name] = getattr(import_module(_MODULE), constructor)
        return constructor

    def register(self, name: str, optimizer: Callable[..., Any], **defaults: object) -> None:
        """See :func:`register_optimizer`."""
        options = {**constructor_defaults(optimizer), **defaults}
        without = [option for option, default in options.items() if default is _NO_DEFAULT]
        if without:
            problem = f"arguments without a default: {', '.join(without)}"
            raise UsageError(problem, place=f"optimizer {name}", remedy="give each argument a default")
        self._constructors[name], self._defaults[name] = optimizer, defaults

    def forget(self, name: str) -> None:
        """Undo :meth:`register`."""
        del self._constructors[name], self._defaults[name]


OPTIMIZERS = Optimizers(
    {
        "sgd": "sgd",
        "adam": "adam",
        "fused_adam": "fused_adam",
        "fused_sgd": "fused_sgd",
        "adam_w": "AdamW",
        "novograd": "Novograd",
        "fused_novograd": "fused_novograd",
        "lamb": "Lamb",
        "fused_lamb": "fused_lamb",
    },
    novograd={"betas": (0.95, 0.25)},
    fused_novograd={"betas": (0.95, 0.25)},
)


def register_optimizer(name: str, optimizer: Callable[..., Any], **defaults: object) -> None:
    """Make an optimizer known to ``factory.train(optimizer=name)``, and to ``--optimizer`` of the scripts.

    Args:
        name: its name there.
        optimizer: a class or function. It takes the parameters (groups of them), ``lr``, and options. Each but the
            first needs a default, which also says what type a given value must have.
        defaults: where the name's defaults differ from the constructor's.

    Raises:
        UsageError: an argument without a default, or ``*args`` or ``**kwargs``.
    """
    OPTIMIZERS.register(name, optimizer, **defaults)


def constructor_defaults(optimizer: Callable[..., object]) -> dict[str, object]:
    """The arguments of a constructor behind the first (the parameters), with their defaults or Parameter.empty."""
    _, *parameters = inspect.signature(optimizer).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters}


def check_options(name: str, options: Mapping[str, object], optimizer: Callable[..., object]) -> None:
    """Raise UsageError for a value of another type than the constructor's default, or for a number out of range.

    A tuple must have the length of the default. A number must be finite and at least 0, each of ``betas`` also below
    1; a class with other bounds says so: ``ranges = {"decay_rate": Between(-1, 0, below=True)}``. Where the default
    is None or there is none, the type is not checked.
    """
    defaults, ranges = constructor_defaults(optimizer), _RANGES | getattr(optimizer, "ranges", {})
    for option, value in options.items():
        default = defaults.get(option)
        like = value if default in (None, _NO_DEFAULT) else default
        bounds = ranges.get(option, _ANY_OTHER)
        if not _fits(value, like, bounds):
            problem, wanted = _expected(like, bounds)
            raise UsageError(f"{option} of {name} {problem}", got=repr(value), wanted=wanted)


def _fits(value: object, like: object, bounds: Between) -> bool:
    if isinstance(like, (tuple, list)):
        if not isinstance(value, (tuple, list)) or len(value) != len(like):
            return False
        return all(_fits(one, other, bounds) for one, other in zip(value, like, strict=True))
    if not _is_number(like):
        return isinstance(value, type(like))
    return _is_number(value) and not bounds.refuses(value)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _expected(like: object, bounds: Between) -> tuple[str, str]:
    """What an error says of a value that does not fit, and what it wants instead."""
    if isinstance(like, (tuple, list)):
        return "are out of range", f"{len(like)} numbers {bounds}"
    if _is_number(like):
        return "is out of range", f"a number {bounds}"
    if isinstance(like, bool):
        return "is not a truth value", "True or False"
    return "is of the wrong type", type(like).__name__
