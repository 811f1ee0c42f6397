"""The fused optimizers of NVIDIA's apex, for GPUs, where it is installed; otherwise our own of the same formula.

None of apex's classes was ever run with the real apex in the tests of this repository: they run against a small package
with the published signatures.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from nemo_lite.backends.pytorch.optim.options import Options, constructor_defaults
from nemo_lite.backends.pytorch.precision.apex_package import problem_with_apex
from nemo_lite.utils import LogMode, logging

# Any: options of optimizers are numbers, pairs of numbers and flags; apex has no types.

_DEVICES = ("cuda",)


def apex_or(own: Callable[..., Optimizer], name: str, apex_class: str, **fixed: Any) -> Callable[..., Optimizer]:
    """A constructor with the arguments of ``own``: of apex's class where it can be had, otherwise of ``own``.

    Which of the two it is, and why, is logged once.

    Args:
        own: what computes the same formula here.
        name: the optimizer's, for the log.
        apex_class: in ``apex.optimizers``.
        fixed: arguments of apex's class that make its formula the same.
    """

    defaults = constructor_defaults(own)

    def make(groups: list[Options], **options: Any) -> Optimizer:
        asked = {option: value for option, value in options.items() if value != defaults[option]}
        problem, made = _made(groups, apex_class, options, asked, fixed)
        which = f"not of apex: {problem}" if problem else f"apex.optimizers.{apex_class}"
        logging.info("%s: %s", name, which, mode=LogMode.ONCE)
        return own(groups, **options) if made is None else made

    constructor: Any = make
    constructor.__signature__ = inspect.signature(own)
    constructor.ranges = getattr(own, "ranges", {})
    return make


def _made(
    groups: list[Options], apex_class: str, options: Options, asked: Options, fixed: Options
) -> tuple[str, Optimizer | None]:
    """Why apex's optimizer cannot be had, or "" and the optimizer; ``asked``: the options that are not the defaults."""
    parameters = [parameter for group in groups for parameter in group["params"]]
    if any(parameter.device.type not in _DEVICES for parameter in parameters):
        return "its optimizers are for GPUs", None
    problem, _ = problem_with_apex("optimizers")
    if problem:
        return problem, None
    if any(type(parameter) not in (Tensor, nn.Parameter) for parameter in parameters):
        return "its optimizers do not take weights that are divided among ranks", None
    try:
        cls: Any = getattr(import_module("apex.optimizers"), apex_class)
        # apex knows amsgrad only to refuse it.
        known = set(inspect.signature(cls).parameters) - {"amsgrad"}
        if missing := [option for option in asked if option not in known]:
            return f"it has no {', '.join(missing)}", None
        optimizer: Optimizer = cls(groups, **{o: value for o, value in options.items() if o in known}, **fixed)
    except (ImportError, AttributeError, RuntimeError) as error:  # built without its CUDA extensions
        return f"it cannot be used here ({error})", None
    return "", optimizer
