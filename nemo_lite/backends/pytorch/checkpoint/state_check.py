"""Whether a training state is one of these optimizers: its numbers, and the shapes and types of its tensors.

torch takes a state of any shape, and fails steps later or trains on with it. Nothing is changed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from nemo_lite.errors import CheckpointError, NemoLiteError

# Any: what a file holds.

_MOST_STEPS = 2**53
_OF_PARAM_SHAPE = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "acc_delta")


def check_state(state: Mapping[str, Any], optimizers: Sequence[Optimizer], place: str) -> None:
    """See that counters are counts, and that each optimizer's state is one of its parameters.

    Args:
        state: what was read.
        optimizers: of this run; stay as they are.
        place: where it was read from, for messages.

    Raises:
        CheckpointError: it is not: the first difference.
    """
    for name in ("step", "epoch"):
        as_count(state.get(name), name, place)
    saved = state.get("optimizers", [])
    if not isinstance(saved, list):
        raise _misfit("optimizers", place, got=_brief(saved), wanted="a list")
    for name, kind in (("optimizer_names", list), ("precision", dict)):
        if not isinstance(state.get(name, kind()), kind):
            raise _misfit(name, place, got=_brief(state[name]), wanted=f"a {kind.__name__}")
    names = [type(optimizer).__name__ for optimizer in optimizers]
    if state.get("optimizer_names", names) != names:
        return  # whoever loads the state names the optimizers, which says more than a shape
    for number, (each, optimizer) in enumerate(zip(saved, optimizers, strict=False)):
        path = f"optimizers.{number}"
        if not isinstance(each, dict):
            raise _misfit(path, place, got=_brief(each), wanted="a mapping")
        _check_groups(each.get("param_groups"), optimizer, f"{path}.param_groups", place)
        _check_kept(each.get("state"), each["param_groups"], optimizer, f"{path}.state", place)


def as_count(value: Any, path: str, place: str) -> int:
    """A value of a state that counts something.

    Args:
        path: where it is in the state.
        place: where the state was read from, for messages.

    Raises:
        CheckpointError: it is no whole number from 0.
    """
    if type(value) is not int or not 0 <= value < _MOST_STEPS:
        raise _misfit(path, place, got=_brief(value), wanted="a number from 0")
    return value


@contextmanager
def misfits_told(place: str) -> Iterator[None]:
    """Around code that takes a state from a file: what it stumbles over is a state that does not fit.

    Raises:
        CheckpointError: in the place of any error of Python's that is not ours already.
    """
    try:
        yield
    except NemoLiteError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        problem = "the training state does not fit this run"
        got = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise CheckpointError(problem, place=place, got=got, remedy="take another checkpoint") from error


def _check_groups(groups: Any, optimizer: Optimizer, path: str, place: str) -> None:
    own = optimizer.param_groups
    if not isinstance(groups, list) or len(groups) != len(own):
        raise _misfit(path, place, got=_brief(groups), wanted=f"{len(own)} groups")
    for number, (group, ours) in enumerate(zip(groups, own, strict=True)):
        params = group.get("params") if isinstance(group, dict) else None
        if not isinstance(params, list) or len(params) != len(ours["params"]):
            raise _misfit(f"{path}.{number}", place, wanted=f"a group of {len(ours['params'])} parameters")
        for name, value in group.items():
            if name != "params" and name in ours and not _is_like(value, ours[name]):
                wanted = f"as this run's {_brief(ours[name])}"
                raise _misfit(f"{path}.{number}.{name}", place, got=_brief(value), wanted=wanted)


def _check_kept(kept: Any, groups: Sequence[Any], optimizer: Optimizer, path: str, place: str) -> None:
    if not isinstance(kept, dict):
        raise _misfit(path, place, got=_brief(kept), wanted="a mapping")
    keys = [key for group in groups for key in group["params"]]
    params: list[Tensor] = [param for group in optimizer.param_groups for param in group["params"]]
    if any(type(key) is not int for key in keys):
        raise _misfit(path, place, wanted="parameters by number")
    by_key = dict(zip(keys, params, strict=True))
    for key, values in kept.items():
        if not isinstance(values, dict) or key not in by_key:
            raise _misfit(f"{path}.{key}", place, got=_brief(values), wanted="the state of a parameter of this run")
        for name, value in values.items():
            if problem := _problem_of(name, value, by_key[key], type(optimizer).__name__):
                raise _misfit(f"{path}.{key}.{name}", place, got=_brief(value), wanted=problem)


def _problem_of(name: object, value: Any, param: Tensor, optimizer: str) -> str:
    """What a value kept for a parameter should be; "" for one that can be."""
    if name == "momentum_buffer" and value is None:  # SGD without momentum
        return ""
    is_single = name == "step" or (name == "exp_avg_sq" and optimizer == "Novograd")  # one number a parameter
    if name in _OF_PARAM_SHAPE and not is_single:
        fits = isinstance(value, Tensor) and value.shape == param.shape and value.is_floating_point()
        return "" if fits else f"a tensor of shape {tuple(param.shape)}"
    if isinstance(value, Tensor):  # of optimizers not known here: no larger than the parameter, along its axes
        fits = value.numel() == 1 or value.shape == param.shape
        fits = fits or (not is_single and 0 < value.numel() < param.numel() and {*value.shape} <= {1, *param.shape})
        return "" if fits else f"a tensor of shape {tuple(param.shape)}"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _MOST_STEPS
    is_text = isinstance(value, (str, bool)) and not is_single
    return "" if is_number or is_text else "a tensor or a number"


def _is_like(value: Any, ours: Any) -> bool:
    """Whether a setting of a group may stand where this run has ``ours``."""
    if isinstance(ours, bool) or isinstance(value, bool):
        return isinstance(value, bool) or value is None
    if isinstance(ours, (int, float)):
        is_number = isinstance(value, (int, float)) and math.isfinite(value)
        return is_number or (isinstance(value, Tensor) and value.numel() == 1)
    if isinstance(ours, (list, tuple)):
        is_row = isinstance(value, (list, tuple)) and len(value) == len(ours)
        return is_row and all(map(_is_like, value, ours))
    return value is None or isinstance(value, (bool, type(ours)))


def _misfit(path: str, place: str, *, wanted: str, got: str = "") -> CheckpointError:
    problem = f"the training state does not fit this run in {path}"
    return CheckpointError(problem, place=place, got=got, wanted=wanted, remedy="take another checkpoint")


def _brief(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (dict, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value)[:60] if not isinstance(value, int) or value.bit_length() < 200 else "a huge number"
