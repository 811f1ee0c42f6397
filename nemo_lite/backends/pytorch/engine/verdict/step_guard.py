"""GuardedStep: a step of an optimizer that the device may leave out, without a host read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import is_
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from nemo_lite.backends.pytorch.optim import ForeachOptimizer
from nemo_lite.backends.pytorch.precision import own_part
from nemo_lite.backends.pytorch.snapshot import Snapshot

# Any: states and groups of optimizers hold tensors, numbers and lists.
_Values: TypeAlias = "dict[str, Any]"


class GuardedStep:
    """Lets any optimizer make steps such that the device decides whether each counts.

    torch's fused optimizers are told by their ``found_inf``, our own by ``step_unless``. For all others, weights and
    states are kept before the step and put back by the device. What an optimizer counts on the host
    (``state["step"]``), and a state that the step began, is put back by :meth:`take_back`, which must come before the
    next step.

    Args:
        optimizer: one whose ``step`` needs no closure.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        # What the step changed on the host: for each dictionary of the optimizer the old values, and the new keys.
        self._changed: list[tuple[_Values, _Values, set[str]]] = []
        self._started: list[Tensor] = []
        self._kept, self._kept_of = Snapshot([]), list[Tensor]()

    def step(self, skip: Tensor) -> None:
        """Make the step; nothing changes if ``skip``, one number on the device, is 1 and not 0."""
        groups, state = self._optimizer.param_groups, self._optimizer.state
        parameters = [p for group in groups for p in group["params"] if p.grad is not None]
        self._started = [parameter for parameter in parameters if not state.get(parameter)]
        holders = [*groups, *(state[parameter] for parameter in parameters if state.get(parameter))]
        before = [{key: value for key, value in holder.items() if key != "params"} for holder in holders]
        # torch's optimizers count their steps in tensors in host memory. Those of groups are learning rates.
        counts: list[_Values] = [{} for _ in holders]
        if isinstance(self._optimizer, ForeachOptimizer) and self._optimizer.can_skip:
            self._optimizer.step_unless(skip)
        elif self._takes_found_inf(parameters):
            self._step_fused(skip)
        else:
            counts[len(groups) :] = [_copied(values, skip.device) for values in before[len(groups) :]]
            self._step_and_put_back([own_part(parameter) for parameter in parameters], holders, before, skip)
        self._changed = []
        for holder, old, copies in zip(holders, before, counts, strict=True):
            numbers = {key: value for key, value in old.items() if _is_replaced(value, holder[key])}
            new_keys = holder.keys() - old.keys() - {"params"}
            if numbers or copies or new_keys:
                self._changed.append((holder, numbers | copies, new_keys))

    def take_back(self) -> None:
        """The host has learned that the step did not count: put back what it changed on the host."""
        for values, old, new_keys in self._changed:
            values.update(old)
            for key in new_keys:
                values.pop(key, None)
        for parameter in self._started:
            self._optimizer.state.pop(parameter, None)

    def _takes_found_inf(self, parameters: Iterable[Tensor]) -> bool:
        # torch's constructors set the first; a state that is loaded may have changed the second.
        supports_scaling = getattr(self._optimizer, "_step_supports_amp_scaling", False)
        is_fused = supports_scaling and all(group.get("fused") for group in self._optimizer.param_groups)
        return is_fused and all(own_part(parameter) is parameter for parameter in parameters)

    def _step_fused(self, skip: Tensor) -> None:
        fused: Any = self._optimizer
        fused.grad_scale, fused.found_inf = None, skip  # as torch.amp.GradScaler tells them
        try:
            fused.step()
        finally:
            del fused.grad_scale, fused.found_inf

    def _step_and_put_back(
        self, weights: Sequence[Tensor], holders: Sequence[_Values], before: Sequence[_Values], skip: Tensor
    ) -> None:
        tensors = [*weights, *_on(skip.device, before)]
        is_as_before = len(tensors) == len(self._kept_of) and all(map(is_, tensors, self._kept_of))
        if not is_as_before:  # as where a step began states, or replaced their tensors
            self._kept, self._kept_of = Snapshot(tensors), tensors
        self._kept.keep()
        self._optimizer.step()
        after = [
            {key: holder[key] for key, value in values.items() if not _is_on_host(value)}
            for holder, values in zip(holders, before, strict=True)
        ]
        self._kept.put_back_where(skip, [*weights, *_on(skip.device, after)])


def _is_replaced(value: object, new: object) -> bool:
    """Whether a number, or None, has become another one or a tensor."""
    return _is_on_host(value) and not (_is_on_host(new) and value == new)


def _is_on_host(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float))


def _on(device: torch.device, holders: Iterable[Mapping[str, Any]]) -> list[Tensor]:
    """The tensors on a device in some dictionaries, also in lists there."""
    values = [value for holder in holders for value in holder.values()]
    flat = [one for value in values for one in (value if isinstance(value, (list, tuple)) else [value])]
    return [own_part(one) for one in flat if isinstance(one, Tensor) and one.device == device]


def _copied(values: Mapping[str, Any], but: torch.device) -> _Values:
    """Copies of the tensors that are not on a device."""
    return {key: value.clone() for key, value in values.items() if isinstance(value, Tensor) and value.device != but}
