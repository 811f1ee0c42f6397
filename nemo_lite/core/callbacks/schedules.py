"""Callbacks that change modules by a schedule: attributes over the steps of a run, unfreezing at an epoch or step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.core.callbacks.action_state import TbWriter
from nemo_lite.core.callbacks.base import ActionCallback
from nemo_lite.core.trackers import curves_of
from nemo_lite.utils import logging

# Any: an attribute may have any value.


class ValueMethod:
    """How a value moves within a policy's steps, of which the first is 0. Any function of (step, number) will do."""

    class Const:
        """Always ``value``."""

        def __init__(self, value: object) -> None:
            self.value = value

        def __call__(self, step: int, total_steps: int) -> object:
            return self.value

    class Linear:
        """In a straight line from ``a`` at the first step to ``b`` at the last."""

        def __init__(self, a: float, b: float) -> None:
            self.a, self.b = a, b

        def __call__(self, step: int, total_steps: int) -> float:
            return self.a + step / max(total_steps - 1, 1) * (self.b - self.a)


class ValuePolicy(NamedTuple):
    """One stretch of a schedule: ``method`` acts from step ``start`` to before step ``end``.

    A float is a share of all steps, an int is a step: ``1.0`` is the end, ``1`` the second step.
    """

    method: Callable[[int, int], Any]
    start: float
    end: float


class ValueSetterCallback(ActionCallback):
    """Sets an attribute of a module before each step, by a schedule. After its end the last value stays.

    With several ranks it does so on all, and rank 0 writes the value to TensorBoard.

    Args:
        module: whose attribute.
        arg_name: which attribute.
        policies: the stretches of the schedule, from the first step to ``total_steps`` without gaps; by default the
            attribute keeps its value.
        total_steps: length of the schedule; by default that of the run.
        tb_writer: writes ``param/<Class>.<attribute>``; by default the factory's writer.

    Attributes:
        place: ``Class.attribute``.

    Raises:
        UnknownNameError: the module has no such attribute.
        UsageError: when training starts: stretches with gaps, or a length that is not known.
    """

    Method = ValueMethod
    Policy = ValuePolicy

    def __init__(
        self,
        module: object,
        arg_name: str,
        policies: Sequence[ValuePolicy] | None = None,
        total_steps: int | None = None,
        tb_writer: TbWriter | None = None,
    ) -> None:
        if not hasattr(module, arg_name):
            raise UnknownNameError("attribute", arg_name, vars(module), place=type(module).__name__)
        self.module, self.arg_name, self.place = module, arg_name, f"{type(module).__name__}.{arg_name}"
        constant = [ValuePolicy(ValueMethod.Const(getattr(module, arg_name)), 0, 1.0)]
        self.policies = list(constant if policies is None else policies)
        self.total_steps, self.tb_writer = total_steps, tb_writer
        self._schedule: list[tuple[Callable[[int, int], Any], int, int]] = []
        self._is_first_step = True

    def fingerprint(self) -> Mapping[str, object]:
        """The attribute that it sets, and its schedule."""
        stretches = [(type(p.method), getattr(p.method, "__dict__", {}), p.start, p.end) for p in self.policies]
        return {"sets": self.place, "policies": stretches, "total_steps": self.total_steps}

    def on_action_start(self) -> None:
        """Turn shares into steps."""
        self._is_first_step = True
        total = self.action.total_steps if self.total_steps is None else self.total_steps
        if total is None:
            raise UsageError("the length of the schedule is not known", place=self.place, remedy="give total_steps")
        self._schedule = [(p.method, _step_at(p.start, total), _step_at(p.end, total)) for p in self.policies]
        ends = [0, *(end for _, _, end in self._schedule)]
        starts = [*(start for _, start, _ in self._schedule), total]
        if starts != ends:
            got = ", ".join(f"{start} to {end}" for _, start, end in self._schedule) or "none"
            raise UsageError("the policies leave gaps or overlap", place=self.place, got=got, wanted=f"0 to {total}")

    def on_iteration_start(self) -> None:
        """Set the value of this step."""
        step = self.step
        if self._is_first_step and self._schedule:  # a run that is resumed behind the end has the last value, too
            step = min(step, self._schedule[-1][2] - 1)
        self._is_first_step = False
        for method, start, end in self._schedule:
            if start <= step < end:
                value = method(step - start, end - start)
                setattr(self.module, self.arg_name, value)
                curves, numbers = curves_of(self.tb_writer, self.action), {f"param/{self.place}": value}
                self.action.on_first(functools.partial(curves.write_numbers, numbers, self.step))


class UnfreezeCallback(ActionCallback):
    """Unfreezes modules once: at the start of an epoch or of a step, or of a later one when training is resumed there.

    Freeze them before training starts: ``module.freeze()``. While a module is frozen it is in evaluation mode, so its
    batch normalisation keeps its running statistics and its dropout is off. The optimizer holds frozen weights too and
    leaves them as they are; from the step at which they are unfrozen on it updates them, at the learning rate that the
    policy then has.

    Args:
        modules: the modules.
        start_epoch: index of the epoch.
        start_step: index of the step, instead of an epoch.

    Raises:
        UsageError: ``modules`` is not a list, or both an epoch and a step.
    """

    def __init__(self, modules: Sequence[Any], start_epoch: int = 0, start_step: int | None = None) -> None:
        if not isinstance(modules, (list, tuple)):
            raise UsageError("modules must be a list", place="UnfreezeCallback", got=type(modules).__name__)
        if start_epoch and start_step is not None:
            got = f"start_epoch {start_epoch} and start_step {start_step}"
            raise UsageError("when to unfreeze must be said once", place="UnfreezeCallback", got=got)
        self.modules, self.start_epoch, self.start_step = list(modules), start_epoch, start_step
        self._is_done = False

    def fingerprint(self) -> Mapping[str, object]:
        """The modules that it unfreezes, and when."""
        names = [module.label for module in self.modules]
        return {"modules": names, "start_epoch": self.start_epoch, "start_step": self.start_step}

    def on_action_start(self) -> None:
        """Forget an earlier run."""
        self._is_done = False

    def on_epoch_start(self) -> None:
        """Unfreeze when the epoch has come."""
        if self.start_step is None and self.epoch_num >= self.start_epoch:
            self._unfreeze(f"Epoch {self.epoch_num}")

    def on_iteration_start(self) -> None:
        """Unfreeze when the step has come."""
        if self.start_step is not None and self.step >= self.start_step:
            self._unfreeze(f"Step {self.step}")

    def _unfreeze(self, when: str) -> None:
        if self._is_done:
            return
        self._is_done = True
        for module in self.modules:
            module.unfreeze()
        names = ", ".join(module.label for module in self.modules)
        self.action.on_first(lambda: logging.info("%s: unfroze %s", when, names))


def _step_at(point: float, total_steps: int) -> int:
    return int(point * total_steps) if isinstance(point, float) else point
