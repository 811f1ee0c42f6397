"""Whether what was stored fits: the tensors of a module, the training state of a run; what may not be stored.

torch takes a training state of any shape, and fails steps later or trains on with it. No file is read here.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nemo_lite.backends.pytorch.distributed.comm import TensorPiece
from nemo_lite.base.errors import CheckpointError, NemoLiteError
from nemo_lite.utils import logging

TrainingState: TypeAlias = "dict[str, Any]"  # a tree of tensors, numbers and texts, see `tensor_codec`
OF_NEMO = "of_nemo"
_MAX_LISTED = 8
_WRAPPED = "module."  # what DataParallel and DDP put before each name of the module in them
_COUNT = "num_batches_tracked"


@runtime_checkable
class RenamesWeights(Protocol):
    """A module whose tensors had other names in older files."""

    def renamed_weights(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The same tensors by today's names; names that are not known stay."""


def fitted(module: nn.Module, tensors: Mapping[str, Tensor], place: str) -> dict[str, Tensor]:
    """The tensors for ``module.load_state_dict()``: all of them, by today's names.

    Older names become today's, counters of batch norm that a file of long ago lacks are the module's own, and what
    DataParallel put before the names is taken away. The log says which tensors change their type.

    Args:
        module: stays as it is.
        tensors: by name.
        place: where they come from, for messages.

    Raises:
        CheckpointError: names, shapes or kinds differ: all differences at once.
    """
    own_tensors = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    tensors = dict(with_todays_names(module, tensors))
    if own_tensors.keys() & tensors.keys():
        for name, value in own_tensors.items():
            if name.endswith(_COUNT):
                tensors.setdefault(name, value)
    check_fit(module, tensors, place)
    kinds = {(value.dtype, own_tensors[name].dtype) for name, value in tensors.items() if value.is_floating_point()}
    for stored, needed in sorted(kinds, key=str):
        if stored != needed:
            names = (str(dtype).removeprefix("torch.") for dtype in (stored, needed))
            logging.info("%s: its weights are %s; converted to %s", place, *names)
    return tensors


def fill_fitted(module: nn.Module, tensors: Mapping[str, Tensor], place: str) -> None:
    """Copy tensors into a module, whatever device it is on, once they are :func:`fitted`.

    Raises:
        CheckpointError: names, shapes or kinds differ: all differences at once; the module is as it was.
    """
    module.load_state_dict(fitted(module, tensors, place), strict=True)


def with_todays_names(module: nn.Module, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The same tensors by the names that ``module`` has for them today."""
    if tensors and all(name.startswith(_WRAPPED) for name in tensors) and not hasattr(module, _WRAPPED[:-1]):
        tensors = {name.removeprefix(_WRAPPED): value for name, value in tensors.items()}
    return module.renamed_weights(tensors) if isinstance(module, RenamesWeights) else tensors


def check_fit(module: nn.Module, tensors: Mapping[str, Tensor], place: str) -> None:
    """See that the tensors are those of ``module.state_dict()``: names, shapes, and whether they are floating.

    Args:
        module: stays as it is.
        tensors: by name.
        place: where they come from, for the message.

    Raises:
        CheckpointError: they are not: all differences at once.
    """
    wanted = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    name_of_module = type(module).__name__
    if wanted and tensors and not wanted.keys() & tensors.keys():
        raise CheckpointError(
            f"none of its {len(tensors)} tensors belongs to {name_of_module}",
            place=place,
            got=next(iter(tensors)),
            wanted=next(iter(wanted)),
            remedy="this is another module's file",
        )
    both = wanted.keys() & tensors.keys()
    problems = [
        _listed("missing", [f"{name} {shape_text(wanted[name])}" for name in wanted if name not in tensors]),
        _listed("unexpected", [f"{name} {shape_text(tensors[name])}" for name in tensors if name not in wanted]),
        _listed("different", [_difference(name, tensors[name], wanted[name]) for name in wanted if name in both]),
        _listed("tied in the module but not in the file", _wrongly_untied(wanted, tensors)),
    ]
    if any(problems):
        raise CheckpointError(
            f"does not fit {name_of_module}: " + "; ".join(filter(None, problems)),
            place=place,
            remedy="make the module with the configuration that the checkpoint was trained with",
        )


def _difference(name: str, got: Tensor, wanted: Tensor) -> str:
    if got.shape != wanted.shape:
        return f"{name} is {shape_text(got)}, the module has {shape_text(wanted)}"
    if got.is_floating_point() != wanted.is_floating_point():
        return f"{name} is {got.dtype}, the module has {wanted.dtype}"
    return ""


def _wrongly_untied(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> list[str]:
    first_names: dict[tuple[object, ...], str] = {}
    untied = []
    for name, tensor in wanted.items():
        first = first_names.setdefault(identity(tensor), name)
        if first != name and name in tensors and first in tensors and not torch.equal(tensors[name], tensors[first]):
            untied.append(f"{first} and {name}")
    return untied


def _listed(title: str, entries: list[str]) -> str:
    entries = [entry for entry in entries if entry]
    if not entries:
        return ""
    more = f" and {len(entries) - _MAX_LISTED} more" if len(entries) > _MAX_LISTED else ""
    return f"{title}: {', '.join(entries[:_MAX_LISTED])}{more}"


def shape_text(tensor: Tensor) -> str:
    """A shape for a message: ``(64, 3)``."""
    return f"({', '.join(map(str, tensor.shape))})"


def identity(tensor: Tensor) -> tuple[object, ...]:
    """Equal for two names of one tensor. One without memory (empty, or divided among ranks) is only itself."""
    if tensor.numel() == 0 or tensor.data_ptr() == 0:
        return (id(tensor),)
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())


_MOST_STEPS = 2**53
_KNOWN_PACKAGES = ("torch", "nemo_lite")
_OF_PARAM_SHAPE = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "acc_delta")


def check_state(state: TrainingState, optimizers: Sequence[Optimizer], place: str) -> None:
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
    for name, kind in (("optimizers", list), ("optimizer_names", list), ("precision", dict)):
        if not isinstance(state.get(name, kind()), kind):
            raise _misfit(name, place, got=_brief(state[name]), wanted=f"a {kind.__name__}")
    names = [type(optimizer).__name__ for optimizer in optimizers]
    if state.get("optimizer_names", names) != names:
        return  # whoever loads the state names the optimizers, which says more than a shape
    pairs = zip(state.get("optimizers", []), optimizers, strict=False)
    for number, (of_optimizer, optimizer) in enumerate(pairs):
        path = f"optimizers.{number}"
        if not isinstance(of_optimizer, dict):
            raise _misfit(path, place, got=_brief(of_optimizer), wanted="a mapping")
        _check_groups(of_optimizer.get("param_groups"), optimizer, f"{path}.param_groups", place)
        _check_kept(of_optimizer.get("state"), of_optimizer["param_groups"], optimizer, f"{path}.state", place)


def as_count(value: object, path: str, place: str) -> int:
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


def _check_groups(groups: object, optimizer: Optimizer, path: str, place: str) -> None:
    if not isinstance(groups, list) or len(groups) != len(optimizer.param_groups):
        raise _misfit(path, place, got=_brief(groups), wanted=f"{len(optimizer.param_groups)} groups")
    for number, (group, ours) in enumerate(zip(groups, optimizer.param_groups, strict=True)):
        params = group.get("params") if isinstance(group, dict) else None
        if not isinstance(params, list) or len(params) != len(ours["params"]):
            raise _misfit(f"{path}.{number}", place, wanted=f"a group of {len(ours['params'])} parameters")
        for name, value in group.items():
            if name != "params" and name in ours and not _is_like(value, ours[name]):
                wanted = f"as this run's {_brief(ours[name])}"
                raise _misfit(f"{path}.{number}.{name}", place, got=_brief(value), wanted=wanted)


def _check_kept(kept: object, groups: Sequence[TrainingState], optimizer: Optimizer, path: str, place: str) -> None:
    if not isinstance(kept, dict):
        raise _misfit(path, place, got=_brief(kept), wanted="a mapping")
    keys = [key for group in groups for key in group["params"]]
    params: list[Tensor] = [param for group in optimizer.param_groups for param in group["params"]]
    if any(type(key) is not int for key in keys):
        raise _misfit(path, place, wanted="parameters by number")
    if type(optimizer).__module__.partition(".")[0] not in _KNOWN_PACKAGES:
        return  # one of the user's may keep anything
    by_key = dict(zip(keys, params, strict=True))
    for key, values in kept.items():
        if not isinstance(values, dict) or key not in by_key:
            raise _misfit(f"{path}.{key}", place, got=_brief(values), wanted="the state of a parameter of this run")
        for name, value in values.items():
            if problem := _problem_of(name, value, by_key[key], type(optimizer).__name__):
                raise _misfit(f"{path}.{key}.{name}", place, got=_brief(value), wanted=problem)


def _problem_of(name: object, value: object, param: Tensor, optimizer: str) -> str:
    """The kind of value that is kept for a parameter under this name; "" where the value is of that kind."""
    if name == "momentum_buffer" and value is None:  # SGD without momentum
        return ""
    # One number a parameter.
    is_single = name == "step" or (optimizer == "Novograd" and name in ("exp_avg_sq", "max_exp_avg_sq"))
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


def _is_like(value: object, ours: object) -> bool:
    """Whether a setting of a group may stand where this run has ``ours``."""
    if isinstance(ours, bool) or isinstance(value, bool):
        return isinstance(value, bool) or value is None
    if isinstance(ours, (int, float)):
        is_number = isinstance(value, (int, float)) and (math.isfinite(value) or value == ours)
        return is_number or (isinstance(value, Tensor) and value.numel() == 1)
    if isinstance(ours, (list, tuple)):
        return isinstance(value, (list, tuple)) and len(value) == len(ours) and all(map(_is_like, value, ours))
    return value is None or isinstance(value, (bool, type(ours)))


def _misfit(path: str, place: str, *, wanted: str, got: str = "") -> CheckpointError:
    problem = f"the training state does not fit this run in {path}"
    return CheckpointError(problem, place=place, got=got, wanted=wanted, remedy="take another checkpoint")


def _brief(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (dict, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value)[:60] if not isinstance(value, int) or value.bit_length() < 200 else "a huge number"


def as_ours(state: TrainingState) -> TrainingState:
    """A training state; one of NeMo gets our names, and ``of_nemo`` says so."""
    if "optimizer_state" not in state or "optimizers" in state:
        return state
    epoch = state.get("epoch", state.get("epoch_num", 0))  # before 0.10 it was epoch_num
    return {"step": state.get("step", 0), "epoch": epoch, "optimizers": state["optimizer_state"], OF_NEMO: True}


def can_go_on(state: TrainingState, optimizers: Sequence[Optimizer]) -> bool:
    """Whether training goes on from this state: always from ours, whose misfits are errors, and from NeMo's if it fits.

    NeMo's says neither the kind of an optimizer nor the parameters' names: the shapes and what is kept must be right.
    """
    if not state.get(OF_NEMO):
        return "optimizers" in state
    saved = state["optimizers"]
    if not isinstance(saved, list) or len(saved) != len(optimizers):
        return False
    try:
        return all(_fits(state, optimizer) for state, optimizer in zip(saved, optimizers, strict=True))
    except (KeyError, TypeError, AttributeError, ValueError):
        return False


def _fits(saved: TrainingState, optimizer: Optimizer) -> bool:
    kind = type(optimizer).__name__
    for theirs, ours in zip(saved["param_groups"], optimizer.param_groups, strict=True):
        for key, param in zip(theirs["params"], ours["params"], strict=True):
            kept = saved["state"].get(key)
            if kept is None:
                continue
            if kind == "SGD":
                momentum = kept.get("momentum_buffer")
                if "exp_avg" in kept or (momentum is not None and momentum.shape != param.shape):
                    return False
            else:
                num_squares = 1 if kind == "Novograd" else param.numel()  # NovoGrad keeps one number a tensor
                if kept["exp_avg"].shape != param.shape or kept["exp_avg_sq"].numel() != num_squares:
                    return False
    return True


_MAX_NOT_FINITE = 3
_STATISTICS = ("running_mean", "running_var")  # torch's names in normalisation layers


def parameters_of_state(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters in ``module.state_dict()`` by their names there; a tied one under each of its names.

    A module may have a ``state_dict`` of its own, as wrapped ones do: in it and in files names are others than in
    ``named_parameters()``.
    """
    own = {id(parameter): parameter for parameter in module.parameters()}
    try:
        state = module.state_dict(destination=_FirstValues(), keep_vars=True)
    except TypeError:  # of the user's, without torch's arguments: tensors in the same memory
        at = {(parameter.data_ptr(), parameter.shape): parameter for parameter in own.values()}
        values = ((name, value) for name, value in module.state_dict().items() if isinstance(value, Tensor))
        return {name: at[place] for name, value in values if (place := (value.data_ptr(), value.shape)) in at}
    return {name: own[id(value)] for name, value in state.items() if id(value) in own}


class _FirstValues(OrderedDict[str, object]):
    """Keeps the first value of a key: behind it, hooks put float32 values in the place of half parameters."""

    def __init__(self) -> None:
        super().__init__()
        self._metadata: OrderedDict[str, object] = OrderedDict()  # as torch has it

    def __setitem__(self, key: str, value: object) -> None:
        if key not in self:
            super().__setitem__(key, value)


def refuse_not_finite(module: nn.Module, tensors: Mapping[str, object]) -> None:
    """Raise CheckpointError if a parameter or a running statistic is not finite, or a buffer NaN.

    Other buffers may hold infinities: masks do.

    Args:
        module: says which of the tensors are parameters.
        tensors: its ``state_dict()``, or this rank's pieces of it.
    """
    finite = {*parameters_of_state(module)}
    # Features of 1e30 give a finite loss and an infinite variance, with which nothing is recognised any more.
    finite |= {name for name in tensors if name.rpartition(".")[2] in _STATISTICS}
    bad = []
    for name, value in tensors.items():
        tensor = value.tensor if isinstance(value, TensorPiece) else value
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            is_bad = not tensor.isfinite().all() if name in finite else tensor.isnan().any()
            bad += [name] if is_bad else []
    if bad:
        more = f" and {len(bad) - _MAX_NOT_FINITE} more" if len(bad) > _MAX_NOT_FINITE else ""
        raise CheckpointError(
            "weights that are not finite are not saved",
            place=type(module).__name__,
            got=f"NaN or infinity in {', '.join(bad[:_MAX_NOT_FINITE])}{more}",
            remedy="the checkpoints saved before stay: go on from one of them with a lower learning rate",
        )
