"""An optimizer as a user would write it for the package: moved there it needs one line in `utils/optimizers.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from nemo_lite.backends.pytorch.foreach_optimizers import ForeachOptimizer, Options
from nemo_lite.utils.optimizers import OPTIMIZERS, register_optimizer


class Lion(ForeachOptimizer):
    """Lion: each step has the sign of a moving average. Source: Chen et al., "Symbolic Discovery", 2023.

    ``p = p - lr (sign(b1 m + (1 - b1) g) + wd p)``, then ``m = b2 m + (1 - b2) g``. ``cautious`` leaves out the
    components whose sign is not the gradient's.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        cautious: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "cautious": cautious})

    def _start(self, param: Tensor, group: Options, state: Options) -> None:
        state["exp_avg"] = torch.zeros_like(param)

    def _update(self, params: list[Tensor], grads: list[Tensor], group: Options) -> None:
        average = self.states_of(params, "exp_avg")
        updates = [update.sign_() for update in torch._foreach_lerp(average, grads, 1 - group["betas"][0])]
        if group["cautious"]:
            updates = [update * (update * grad > 0) for update, grad in zip(updates, grads, strict=True)]
        torch._foreach_lerp_(average, grads, 1 - group["betas"][1])
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, updates, alpha=-group["lr"])


@contextmanager
def registered_lion() -> Iterator[None]:
    """``lion`` is a known name within the block, by the line that the table would have."""
    register_optimizer("lion", Lion)
    try:
        yield
    finally:
        OPTIMIZERS.forget("lion")
