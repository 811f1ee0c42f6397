"""Parameter groups: apart where a module has a learning rate of its own, or where some parameters do not decay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from nemo_lite.errors import UnknownNameError, UsageError

MODULE_LR = "module_lr"
DECAY_WEIGHTS_ONLY = "decay_weights_only"


def checked_module_lr(given: object, known: Iterable[str]) -> dict[str, float]:
    """``module_lr`` of the optimization parameters: learning rates by module name.

    Args:
        given: what the user gave.
        known: the names of the modules that are trained.

    Raises:
        UsageError: no dictionary of numbers from 0.
        UnknownNameError: no such module.
    """
    if not isinstance(given, Mapping):
        wanted = "a dictionary of learning rates by module name"
        raise UsageError("module_lr is of the wrong type", got=type(given).__name__, wanted=wanted)
    known = list(known)
    for name, rate in given.items():
        if name not in known:
            raise UnknownNameError("module", str(name), known, place=MODULE_LR)
        is_number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
        if not is_number or not 0 <= rate < math.inf:
            problem = "the learning rate is out of range"
            raise UsageError(problem, place=f"{MODULE_LR} {name}", got=repr(rate), wanted="a number from 0")
    return {name: float(rate) for name, rate in given.items()}


def parameter_groups(modules: Mapping[str, nn.Module], module_lr: Mapping[str, float]) -> list[dict[str, Any]]:
    """The parameters in groups: first those of modules without a rate of their own, then a group for each other module.

    Groups come in the order of the modules, so that a training state fits in whichever order rates were given. Each
    parameter is in one group, a frozen one too: it has no gradient, so the optimizer leaves it as it is until then.

    Args:
        modules: what is trained, by name.
        module_lr: learning rates by module name.

    Raises:
        UsageError: a parameter that two modules share, which would have two learning rates.
    """
    rates: dict[nn.Parameter, tuple[float | None, str]] = {}
    for name, module in modules.items():
        rate = module_lr.get(name)
        for parameter in module.parameters():
            other, its_name = rates.setdefault(parameter, (rate, name))
            if other != rate:
                raise UsageError(
                    "modules that share a weight have different learning rates",
                    place=MODULE_LR,
                    got=f"{_shown(other)} for {its_name}, {_shown(rate)} for {name}",
                    remedy="give both the same",
                )
    rest = [parameter for parameter, (rate, _) in rates.items() if rate is None]
    groups: list[dict[str, Any]] = [{"params": rest}] if rest else []
    for name in modules:
        own = [parameter for parameter, (rate, owner) in rates.items() if rate is not None and owner == name]
        if own:
            groups.append({"params": own, "lr": module_lr[name]})
    return groups


def is_decay_of_weights_only(given: object) -> bool:
    """``decay_weights_only`` of the optimization parameters; None is False.

    Raises:
        UsageError: no truth value.
    """
    if given is not None and not isinstance(given, bool):
        problem = "decay_weights_only is not a truth value"
        raise UsageError(problem, got=repr(given), wanted="True or False")
    return bool(given)


def decaying_weights_only(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The groups, each followed by one of its biases and of the gains of its norms, whose ``weight_decay`` is 0.

    These are the parameters with at most one dimension: decay pulls them to 0, where a gain switches its channel off,
    and they are too few to overfit. Source: Goyal et al., "Accurate, Large Minibatch SGD", 2017.

    Args:
        groups: what an optimizer takes, each with ``params``.
    """
    split: list[dict[str, Any]] = []
    for group in groups:
        weights = [parameter for parameter in group["params"] if parameter.ndim > 1]
        others = [parameter for parameter in group["params"] if parameter.ndim <= 1]
        split += [{**group, "params": weights}] if weights else []
        split += [{**group, "params": others, "weight_decay": 0.0}] if others else []
    return split


def _shown(rate: float | None) -> str:
    return "that of the run" if rate is None else f"{rate:g}"
