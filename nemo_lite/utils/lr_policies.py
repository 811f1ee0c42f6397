"""Learning-rate policies: pure functions ``policy(initial_lr, step, epoch) -> lr``.

No torch and no optimizers here: the training loop writes the result into the parameter groups.

In all formulas L is the initial rate, s the step (0 at the first), T ``total_steps``, w the warm-up steps and
m ``min_lr``. While s < w every policy gives ``L * (s + 1) / (w + 1)``; once s > T it gives 0 (the hold policies: m).
:class:`WarmupLR` and :class:`NoamAnnealing` have formulas of their own instead.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, InitVar, dataclass, field

from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.base.ranges import NotNegativeFloat, PositiveFloat, Share, check_number


class LRPolicy(ABC):
    """Base of all policies; subclass it, or :class:`WarmupPolicy`, for a policy of your own."""

    @abstractmethod
    def __call__(self, initial_lr: float, step: int, epoch: int) -> float:
        """The learning rate at one optimizer step.

        Args:
            initial_lr: the rate that the user gave, L.
            step: optimizer steps taken so far, s.
            epoch: epochs completed so far.
        """

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({arguments})"


@dataclass(eq=False, repr=False)
class WarmupPolicy(LRPolicy):
    """Linear warm-up, then L.

    Args:
        total_steps: T; None for a training without an end (``self.total_steps`` is then infinite).
        warmup_steps: w.
        warmup_ratio: w as a share of T, instead of ``warmup_steps``.

    Raises:
        UsageError: w given both ways, a share without T, or a value out of range.
    """

    total_steps: float = None  # type: ignore[assignment]  # None when given, a number when made
    _: KW_ONLY
    warmup_steps: float = None  # type: ignore[assignment]  # likewise
    warmup_ratio: InitVar[float | None] = None

    def __post_init__(self, warmup_ratio: float | None) -> None:
        self.total_steps = _total_steps(self.total_steps)
        self.warmup_steps = _steps_of("warmup", self.warmup_steps, warmup_ratio, self.total_steps)

    def __call__(self, initial_lr: float, step: int, epoch: int) -> float:
        if step < self.warmup_steps:
            return initial_lr * (step + 1) / (self.warmup_steps + 1)
        if step > self.total_steps:
            return self._lr_after_the_end()
        return self._get_lr(initial_lr, step, epoch)

    def _get_lr(self, initial_lr: float, step: int, epoch: int) -> float:
        """The rate for w <= s <= T. Subclasses override this."""
        return initial_lr

    def _lr_after_the_end(self) -> float:
        return 0.0


@dataclass(eq=False, repr=False)
class WarmupHoldPolicy(WarmupPolicy):
    """Linear warm-up, then L; m after T. A base for policies that hold L for a while before they decay.

    Args:
        total_steps: T; None for a training without an end.
        min_lr: m.
        warmup_steps: w.
        warmup_ratio: w as a share of T.
        hold_steps: steps to hold L after the warm-up.
        hold_ratio: the same as a share of T.

    ``self.hold_steps`` is the step at which holding ends: w + hold, or 0 when neither argument is given.
    """

    min_lr: float = 0.0
    _: KW_ONLY
    hold_steps: float = None  # type: ignore[assignment]  # None when given, a number when made
    hold_ratio: InitVar[float | None] = None

    def __post_init__(self, warmup_ratio: float | None, hold_ratio: float | None) -> None:
        super().__post_init__(warmup_ratio)
        check_number("min_lr", self.min_lr, NotNegativeFloat)
        is_held = self.hold_steps is not None or hold_ratio is not None
        held = _steps_of("hold", self.hold_steps, hold_ratio, self.total_steps)
        self.hold_steps = self.warmup_steps + held if is_held else 0.0

    def __call__(self, initial_lr: float, step: int, epoch: int) -> float:
        if self.warmup_steps <= step < self.hold_steps:
            return initial_lr
        return super().__call__(initial_lr, step, epoch)

    def _lr_after_the_end(self) -> float:
        return self.min_lr


@dataclass(eq=False, repr=False)
class _Annealing(WarmupPolicy):
    """A policy that needs T."""

    total_steps: float = field()  # no default

    def __post_init__(self, warmup_ratio: float | None) -> None:
        check_number("total_steps", self.total_steps, PositiveFloat)
        super().__post_init__(warmup_ratio)

    def _progress(self, step: int) -> float:
        """``(s - w) / (T - w)``."""
        return _share(step - self.warmup_steps, self.total_steps - self.warmup_steps)


@dataclass(eq=False, repr=False)
class _AnnealingToFloor(_Annealing):
    """A policy that needs T and takes m."""

    min_lr: float = 0.0

    def __post_init__(self, warmup_ratio: float | None) -> None:
        super().__post_init__(warmup_ratio)
        check_number("min_lr", self.min_lr, NotNegativeFloat)


@dataclass(eq=False, repr=False)
class SquareAnnealing(_AnnealingToFloor):
    """``max(m, L * ((T - s) / (T - w))^2)``; m is 1e-5 unless given."""

    min_lr: float = 1e-5

    def _get_lr(self, initial_lr: float, step: int, epoch: int) -> float:
        return max(self.min_lr, initial_lr * (1.0 - self._progress(step)) ** 2)


class SquareRootAnnealing(_AnnealingToFloor):
    """``max(m, L * ((T - s) / T)^0.5)``: the warm-up does not shift the curve."""

    def _get_lr(self, initial_lr: float, step: int, epoch: int) -> float:
        return max(self.min_lr, initial_lr * math.sqrt(1.0 - step / self.total_steps))


class CosineAnnealing(_AnnealingToFloor):
    """``m + (L - m) * (1 + cos(pi * (s - w) / (T - w))) / 2``.

    Raises:
        UsageError: when called with an L below m.
    """

    def _get_lr(self, initial_lr: float, step: int, epoch: int) -> float:
        if initial_lr < self.min_lr:
            raise UsageError(
                "the initial learning rate is below min_lr",
                place="CosineAnnealing",
                got=f"lr {initial_lr}",
                wanted=f"at least {self.min_lr}",
                remedy="raise lr, or lower min_lr",
            )
        half_wave = 0.5 * (1.0 + math.cos(math.pi * self._progress(step)))
        return self.min_lr + (initial_lr - self.min_lr) * half_wave


class WarmupAnnealing(_Annealing):
    """``L * max(0, (T - s) / (T - w))``: a straight line to 0."""

    def _get_lr(self, initial_lr: float, step: int, epoch: int) -> float:
        return initial_lr * max(0.0, 1.0 - self._progress(step))


class InverseSquareRootAnnealing(_Annealing):
    """``L / ((s + 1) / (w + 1))^0.5``. The same with ``warmup_steps=w - 1`` is :class:`WarmupLR`, up to T."""

    def _get_lr(self, initial_lr: float, step: int, epoch: int) -> float:
        return initial_lr / math.sqrt((step + 1) / (self.warmup_steps + 1))


@dataclass(eq=False, repr=False)
class WarmupLR(LRPolicy):
    """WeNet's ``warmuplr``: ``L * w^0.5 * min(n^-0.5, n * w^-1.5)`` with n = s + 1; ``L * n^-0.5`` where w is 0.

    The rate rises to L at n = w and falls with the root of n, without an end.
    Source: `wenet/utils/scheduler.py`, class WarmupLR.

    Args:
        total_steps: T; the rate does not depend on it.
        warmup_steps: w.

    Raises:
        UsageError: a value out of range.
    """

    total_steps: float = None  # type: ignore[assignment]  # None when given, a number when made
    _: KW_ONLY
    warmup_steps: float = 25000

    def __post_init__(self) -> None:
        self.total_steps = _total_steps(self.total_steps)
        check_number("warmup_steps", self.warmup_steps, NotNegativeFloat)

    def __call__(self, initial_lr: float, step: int, epoch: int) -> float:
        number, w = step + 1, self.warmup_steps
        if w == 0:
            return float(initial_lr * number**-0.5)
        return float(initial_lr * w**0.5 * min(number**-0.5, number * w**-1.5))


@dataclass(eq=False, repr=False)
class NoamAnnealing(LRPolicy):
    """``L * d_model^-0.5 * min(n^-0.5, n * w^-1.5)`` with n = max(s, 1), after n = w at least m.

    L is a factor and no rate: 2 or 5 are usual. The rate rises to ``L * (d_model * w)^-0.5`` at n = w and falls with
    the root of n, without an end. Where w is 0 it falls from the first step.
    Sources: Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 5.3; steps and m as in NeMo 1.x.

    Args:
        total_steps: T; the rate does not depend on it.
        d_model: channels of the model.
        warmup_steps: w.
        min_lr: m.

    Raises:
        UsageError: a value out of range.
    """

    total_steps: float = None  # type: ignore[assignment]  # None when given, a number when made
    _: KW_ONLY
    d_model: float = 512
    warmup_steps: float = 10000
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        self.total_steps = _total_steps(self.total_steps)
        check_number("d_model", self.d_model, PositiveFloat)
        check_number("warmup_steps", self.warmup_steps, NotNegativeFloat)
        check_number("min_lr", self.min_lr, NotNegativeFloat)

    def __call__(self, initial_lr: float, step: int, epoch: int) -> float:
        number, w = max(step, 1), self.warmup_steps
        rising = number * w**-1.5 if w else math.inf
        lr = initial_lr * self.d_model**-0.5 * min(number**-0.5, rising)
        return float(lr if step <= w else max(lr, self.min_lr))


@dataclass(eq=False, repr=False)
class PolynomialDecayAnnealing(_AnnealingToFloor):
    """``m + (L - m) * (1 - s' / d)^power`` with s' = s - w and d = T - w.

    Args:
        total_steps: T.
        min_lr: m.
        power: the exponent.
        cycle: stretch d to its next multiple that reaches s', instead of staying at m once s' has passed d.
        warmup_steps: w.
        warmup_ratio: w as a share of T.
    """

    power: float = 1.0
    cycle: bool = False

    def __post_init__(self, warmup_ratio: float | None) -> None:
        super().__post_init__(warmup_ratio)
        check_number("power", self.power, NotNegativeFloat)

    def _get_lr(self, initial_lr: float, step: int, epoch: int) -> float:
        left = _polynomial(step - self.warmup_steps, self.total_steps - self.warmup_steps, self.power, self.cycle)
        return self.min_lr + (initial_lr - self.min_lr) * left


@dataclass(eq=False, repr=False)
class PolynomialHoldDecayAnnealing(WarmupHoldPolicy):
    """Warm-up, hold, then ``m + (L - m) * (1 - s' / d)^power`` with s' = s - h and d = T - max(w, h).

    h is the step at which holding ends. As in NeMo, h is 0 when no hold is given, whatever w: pass ``hold_steps=0``
    to let the decay begin where the warm-up ends.

    Args:
        total_steps: T.
        min_lr: m.
        power: the exponent.
        cycle: see :class:`PolynomialDecayAnnealing`.
        warmup_steps: w.
        warmup_ratio: w as a share of T.
        hold_steps: steps to hold L after the warm-up.
        hold_ratio: the same as a share of T.
    """

    total_steps: float = field()  # no default
    power: float = 1.0
    cycle: bool = False

    def __post_init__(self, warmup_ratio: float | None, hold_ratio: float | None) -> None:
        check_number("total_steps", self.total_steps, PositiveFloat)
        super().__post_init__(warmup_ratio, hold_ratio)
        check_number("power", self.power, NotNegativeFloat)

    def _get_lr(self, initial_lr: float, step: int, epoch: int) -> float:
        decay_steps = self.total_steps - max(self.warmup_steps, self.hold_steps)
        left = _polynomial(step - self.hold_steps, decay_steps, self.power, self.cycle)
        return self.min_lr + (initial_lr - self.min_lr) * left


_POLICIES: dict[str, type[LRPolicy]] = {
    "CosineAnnealing": CosineAnnealing,
    "InverseSquareRootAnnealing": InverseSquareRootAnnealing,
    "NoamAnnealing": NoamAnnealing,
    "PolynomialDecayAnnealing": PolynomialDecayAnnealing,
    "PolynomialHoldDecayAnnealing": PolynomialHoldDecayAnnealing,
    "SquareAnnealing": SquareAnnealing,
    "SquareRootAnnealing": SquareRootAnnealing,
    "WarmupAnnealing": WarmupAnnealing,
    "WarmupHoldPolicy": WarmupHoldPolicy,
    "WarmupLR": WarmupLR,
    "WarmupPolicy": WarmupPolicy,
    "warmuplr": WarmupLR,  # WeNet's name
}


def register_lr_policy(name: str, policy: type[LRPolicy]) -> None:
    """Make a policy known by name: to ``--lr_policy``, to ``scheduler`` and ``lr_policy`` of a YAML file.

    Args:
        name: its name there.
        policy: a subclass of :class:`LRPolicy`, which takes ``total_steps``; its other arguments need a default.

    Raises:
        UsageError: it takes no ``total_steps``.
    """
    if "total_steps" not in inspect.signature(policy).parameters:
        raise UsageError("a policy by name must take total_steps", place=name, got=policy.__name__)
    _POLICIES[name] = policy


def get_all_lr_classes() -> dict[str, type[LRPolicy]]:
    """Every policy by its name."""
    return dict(_POLICIES)


def get_lr_policy(name: str, /, **arguments: object) -> LRPolicy:
    """The policy called ``name``, made with ``arguments``.

    Raises:
        UnknownNameError: no such policy, or it has no such argument.
        UsageError: a needed argument is missing, or a value is out of range.
    """
    policies = get_all_lr_classes()
    if name not in policies:
        raise UnknownNameError("lr policy", name, policies)
    signature = inspect.signature(policies[name])
    for argument in arguments:
        if argument not in signature.parameters:
            raise UnknownNameError("argument", argument, signature.parameters, place=name)
    if "total_steps" not in arguments and signature.parameters["total_steps"].default is inspect.Parameter.empty:
        raise UsageError("total_steps is missing", place=name, remedy="give the number of optimizer steps")
    return policies[name](**arguments)


def _polynomial(step: float, decay_steps: float, power: float, cycle: bool) -> float:
    if cycle and step > 0 and decay_steps > 0:
        decay_steps *= math.ceil(step / decay_steps)
    return float((1.0 - min(_share(step, decay_steps), 1.0)) ** power)


def _share(steps: float, span: float) -> float:
    """``steps / span``; 1 (the end) when the warm-up is as long as the training, so that no span is left."""
    return steps / span if span > 0 else 1.0


def _total_steps(steps: float | None) -> float:
    return math.inf if steps is None else check_number("total_steps", steps, PositiveFloat)


def _steps_of(stage: str, steps: float | None, ratio: float | None, total_steps: float) -> float:
    if steps is not None and ratio is not None:
        raise UsageError(f"{stage}_steps and {stage}_ratio are both given", remedy="give one of them")
    if steps is not None:
        return check_number(f"{stage}_steps", steps, NotNegativeFloat)
    if ratio is None:
        return 0
    if math.isinf(total_steps):
        raise UsageError(f"{stage}_ratio is a share of total_steps, which is missing", remedy="give total_steps")
    return int(check_number(f"{stage}_ratio", ratio, Share) * total_steps)
