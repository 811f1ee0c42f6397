"""LAMB."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from nemo_lite.backends.pytorch.optim.foreach import ForeachOptimizer, Options, adam_moments, can_be_left_out, norms


class Lamb(ForeachOptimizer):
    """LAMB: Adam's direction, with the length of each tensor's update in proportion to the tensor's own.

    ``r = m' / (sqrt(v') + eps) + wd p`` with m' and v' corrected for their bias; ``p = p - lr |p| / |r| r``, where the
    ratio is 1 if either norm is 0. Source: You et al., "Large Batch Optimization for Deep Learning", ICLR 2020.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        betas: b1 and b2.
        eps: see above.
        weight_decay: wd.

    Raises:
        UsageError: a value out of range, or (in ``step``) a sparse gradient.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @can_be_left_out
    def _update(self, params: list[Tensor], grads: list[Tensor], group: Options) -> None:
        first, second = adam_moments(self, params, grads, group)
        beta1, beta2 = group["betas"]
        steps = self.states_of(params, "step")
        denominators = torch._foreach_div(second, [1 - beta2**t for t in steps])
        torch._foreach_sqrt_(denominators)
        torch._foreach_add_(denominators, group["eps"])
        updates = torch._foreach_div(first, [1 - beta1**t for t in steps])
        torch._foreach_div_(updates, denominators)
        if group["weight_decay"]:
            torch._foreach_add_(updates, params, alpha=group["weight_decay"])
        of_params, of_updates = torch.stack(norms(params)), torch.stack(norms(updates))
        ratios = torch.where((of_params > 0) & (of_updates > 0), of_params / of_updates, 1.0)
        torch._foreach_mul_(updates, list(ratios.unbind()))
        with self.changing(params) as new:
            torch._foreach_add_(new, updates, alpha=-group["lr"])
