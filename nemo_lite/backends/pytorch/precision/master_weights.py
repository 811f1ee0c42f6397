"""MasterWeights: an optimizer updates float32 weights while the modules compute with half ones (level O2).

Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018. A step: the halves' gradients become float32, the
optimizer updates the float32 weights, and the halves are rounded from them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import torch
from torch import Tensor, nn

from nemo_lite.backends.pytorch.precision.dtypes import HALVES, name_of
from nemo_lite.errors import UsageError


class MasterWeights:
    """The float32 weights of one optimizer.

    Until :meth:`release`, the optimizer's groups and states have the float32 weights in the place of the half ones.

    Args:
        optimizer: made over float32 parameters of modules that are half now.
        masters: the float32 parameters by the half ones.

    Raises:
        UsageError: the optimizer cannot have them: its parameters were half before, or it keeps them in other places
            than its groups.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, masters: Mapping[Tensor, nn.Parameter]) -> None:
        given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._optimizer = optimizer
        self._pairs = [(half, masters[half]) for half in given if half in masters]
        self._refuse_unfit(given)
        self._exchange(dict(self._pairs))

    @property
    def halves(self) -> list[Tensor]:
        """The modules' own parameters."""
        return [half for half, _ in self._pairs]

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Copy the gradients of the halves to the float32 weights."""
        narrow, wide = [], []
        for half, master in self._pairs:
            master.grad = None
            if half.grad is not None:
                master.grad = torch.empty_like(master)
                narrow.append(half.grad)
                wide.append(master.grad)
        if wide:
            torch._foreach_copy_(wide, narrow)

    @torch.no_grad()
    def hand_weights(self) -> None:
        """Round the float32 weights to the halves; after a step that was left out, this changes nothing."""
        if self._pairs:
            torch._foreach_copy_([half for half, _ in self._pairs], [master for _, master in self._pairs])

    def release(self) -> None:
        """Give the optimizer the modules' parameters again."""
        self._exchange({master: half for half, master in self._pairs})

    def _exchange(self, others: Mapping[Tensor, Tensor]) -> None:
        for group in self._optimizer.param_groups:
            group["params"][:] = [others.get(parameter, parameter) for parameter in group["params"]]
        for old, new in others.items():
            if old in self._optimizer.state:
                self._optimizer.state[new] = self._optimizer.state.pop(old)

    def _refuse_unfit(self, given: list[Tensor]) -> None:
        halves = dict(self._pairs)
        other = next((p for p in given if p not in halves and p.dtype in HALVES), None)
        place = f"optimizer {type(self._optimizer).__name__}"
        if other is not None:
            raise UsageError(
                "O2 needs float32 weights to update",
                place=place,
                got=f"parameters that were {name_of(other.dtype)} before the run",
                remedy="leave the modules in float32: O2 makes the half weights itself",
            )
        exchanged = {"param_groups", "state"}
        lists = {id(group["params"]) for group in self._optimizer.param_groups}
        others = {name: value for name, value in vars(self._optimizer).items() if name not in exchanged}
        kept = [name for name, value in others.items() if id(value) not in lists and _has_any(value, halves)]
        if kept:
            raise UsageError(
                "this optimizer cannot have master weights",
                place=place,
                got=f"parameters outside its param_groups, in {kept[0]}",
                remedy="use O1, or an optimizer by name",
            )


def _has_any(value: object, tensors: Container[Tensor]) -> bool:
    """Whether a value is one of the tensors, or a collection with one in it."""
    if isinstance(value, Tensor):
        return value in tensors
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    return isinstance(value, (list, tuple, set)) and any(_has_any(each, tensors) for each in value)
