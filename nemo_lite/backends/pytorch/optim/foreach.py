"""Base of our own optimizers: updates over lists of tensors, options with ranges."""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, TypeAlias, TypeGuard, TypeVar

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from nemo_lite.backends.pytorch.placement import replace_where
from nemo_lite.backends.pytorch.precision import own_part
from nemo_lite.errors import UsageError

# The options of an optimizer: their defaults, and the checks of given values. The names are in create.py.


# Any: torch keeps numbers, pairs of numbers, flags and tensors in such dictionaries.
Options: TypeAlias = "dict[str, Any]"
# Bounds of a number: the lowest value, and the value that it stays below.
Range: TypeAlias = "tuple[float, float]"

NO_DEFAULT = inspect.Parameter.empty
_RANGES: dict[str, Range] = {"betas": (0, 1)}
_ANY_OTHER: Range = (0, math.inf)


def constructor_defaults(optimizer: Callable[..., object]) -> Options:
    """The arguments of a constructor behind the first (the parameters), with their defaults or ``NO_DEFAULT``."""
    _, *parameters = inspect.signature(optimizer).parameters.values()
    return {each.name: each.default for each in parameters}


def check_options(name: str, options: Mapping[str, object], optimizer: Callable[..., object]) -> None:
    """Raise UsageError for a value of another type than the constructor's default, or for a number out of range.

    A tuple must have the length of the default. A number must be finite and at least 0, each of ``betas`` also below
    1; a class with other bounds says so: ``ranges = {"decay_rate": (-1, 0)}`` is from -1, below 0. Where the default
    is None or there is none, the type is not checked.
    """
    defaults, ranges = constructor_defaults(optimizer), _RANGES | getattr(optimizer, "ranges", {})
    for option, value in options.items():
        default = defaults.get(option)
        like = value if default in (None, NO_DEFAULT) else default
        bounds = ranges.get(option, _ANY_OTHER)
        if not _fits(value, like, bounds):
            problem, wanted = _expected(like, bounds)
            raise UsageError(f"{option} of {name} {problem}", got=repr(value), wanted=wanted)


def _fits(value: object, like: object, bounds: Range) -> bool:
    if isinstance(like, (tuple, list)):
        if not isinstance(value, (tuple, list)) or len(value) != len(like):
            return False
        return all(_fits(one, other, bounds) for one, other in zip(value, like, strict=True))
    if not _is_number(like):
        return isinstance(value, type(like))
    return _is_number(value) and bounds[0] <= value < bounds[1]


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _expected(like: object, bounds: Range) -> tuple[str, str]:
    """What an error says of a value that does not fit, and what it wants instead."""
    within = f"from {bounds[0]:g}" + (f", below {bounds[1]:g}" if bounds[1] < math.inf else "")
    if isinstance(like, (tuple, list)):
        return "are out of range", f"{len(like)} numbers {within}"
    if _is_number(like):
        return "is out of range", f"a number {within}"
    if isinstance(like, bool):
        return "is not a truth value", "True or False"
    return "is of the wrong type", type(like).__name__


# Base of the optimizers over lists of tensors (``torch._foreach_*``), and what they share. No formulas in here.


class ForeachOptimizer(Optimizer):
    """Base of optimizers that update many tensors at once; ``lamb.py`` is the example.

    A subclass gives ``_update``, and ``_start`` unless its state is Adam's. ``state["step"]`` is counted here: in
    ``_update`` it is 1 at a parameter's first step. A step must not read a value back from the device: the host would
    wait for it.

    On an accelerator the device decides whether a step counts. An ``_update`` that changes weights and states only
    inside :meth:`changing` says so with :func:`can_be_left_out`; for any other, weights and states are copied before
    each step.
    """

    ranges: ClassVar[Mapping[str, Range]] = {}  # bounds of options, where `check_options` has others
    _skip: Tensor | None = None

    def __init__(self, params: ParamsT, defaults: Options) -> None:
        check_options(type(self).__name__, defaults, type(self))
        super().__init__(params, defaults)

    def __setstate__(self, state: Options) -> None:
        own = dict(state.get("defaults") or self.defaults)  # torch adds one of its own to them
        super().__setstate__(state)
        # States written by NeMo lack the options that it keeps outside the groups.
        for group in self.param_groups:
            for option, value in own.items():
                group.setdefault(option, value)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient; gradients are left as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for params in _alike(group["params"]):
                for param in params:
                    state = self.state[param]
                    if not state:
                        state["step"] = 0
                        self._start(param, group, state)
                    state["step"] += 1
                self._update(params, [grad_of(param) for param in params], group)
        return loss

    @property
    def can_skip(self) -> bool:
        """Whether :meth:`step_unless` may be called."""
        return getattr(type(self)._update, _MARK, False)

    def step_unless(self, skip: Tensor) -> None:
        """A step that leaves weights and tensors of the states as they are if ``skip``, on the device, is not 0.

        The numbers that are counted on the host (``state["step"]``) and new states stay: put them back.
        """
        self._skip = skip
        try:
            self.step()
        finally:
            self._skip = None

    @contextmanager
    def changing(self, tensors: list[Tensor]) -> Iterator[list[Tensor]]:
        """Yields the tensors to change in the place of these: themselves, or copies while the device decides.

        The copies replace the tensors at the end, unless the step is left out, and are freed.

        Args:
            tensors: of one device and dtype.
        """
        if self._skip is None:
            yield tensors
            return
        # A product and not a clone: DTensor has no clone for lists.
        copies = list(torch._foreach_mul(tensors, 1.0))
        yield copies
        replace_where(self._skip == 0, [*map(own_part, tensors)], [*map(own_part, copies)])
        copies.clear()  # also where the caller still has the list

    def states_of(self, params: list[Tensor], key: str) -> list[Any]:
        """One entry of each parameter's state."""
        return [self.state[param][key] for param in params]

    def _start(self, param: Tensor, group: Options, state: Options) -> None:
        """Fill the state of a parameter that has its first gradient; here with Adam's two moving averages."""
        state.update(exp_avg=torch.zeros_like(param), exp_avg_sq=torch.zeros_like(param))
        if group.get("amsgrad"):
            state["max_exp_avg_sq"] = torch.zeros_like(param)

    @abstractmethod
    def _update(self, params: list[Tensor], grads: list[Tensor], group: Options) -> None:
        """One step for parameters of one device and dtype."""


_Update = TypeVar("_Update", bound=Callable[..., None])
_MARK = "can_be_left_out"


def can_be_left_out(update: _Update) -> _Update:
    """Marks an ``_update`` that changes weights and states only inside ``changing``. One that overrides it is not."""
    setattr(update, _MARK, True)
    return update


def adam_moments(
    optimizer: ForeachOptimizer, params: list[Tensor], grads: list[Tensor], group: Options
) -> tuple[list[Tensor], list[Tensor]]:
    """Both moving averages after this step, without bias correction."""
    beta1, beta2 = group["betas"]
    first, second = optimizer.states_of(params, "exp_avg"), optimizer.states_of(params, "exp_avg_sq")
    with optimizer.changing(first) as new:
        torch._foreach_lerp_(new, grads, 1 - beta1)
    with optimizer.changing(second) as new:
        torch._foreach_mul_(new, beta2)
        torch._foreach_addcmul_(new, grads, grads, value=1 - beta2)
    return first, second


def norms(tensors: tuple[Tensor, ...] | list[Tensor]) -> list[Tensor]:
    """The 2-norm of each."""
    return list(torch._foreach_norm(tensors, 2, dtype=norm_dtype(tensors[0])))


def norm_dtype(tensor: Tensor) -> torch.dtype:
    """Float32 for half types, whose range a sum of squares leaves."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def grad_of(param: Tensor) -> Tensor:
    """The gradient, which must be there and dense."""
    if param.grad is None or param.grad.is_sparse:
        raise UsageError("this optimizer cannot use sparse gradients", remedy="make the layer with sparse=False")
    return param.grad


def _alike(params: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    """The parameters that have a gradient, by device and dtype: what one list operation can take."""
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for param in params:
        if param.grad is not None:
            alike.setdefault((param.device, param.dtype), []).append(param)
    return alike.values()
