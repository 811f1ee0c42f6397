"""AdamW in NeMo's form, which differs from torch's."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from nemo_lite.backends.pytorch.optim.foreach import ForeachOptimizer, Options, adam_moments, can_be_left_out


class AdamW(ForeachOptimizer):
    """Adam with decoupled weight decay, in NeMo's form: the bias correction scales the decay too, but not eps.

    With ``s = lr sqrt(1 - b2^t) / (1 - b1^t)`` a step is ``p = p - s (wd p + m / (sqrt(v) + eps))``.
    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        betas: b1 and b2.
        eps: see above.
        weight_decay: wd.
        amsgrad: use the largest v so far.

    Raises:
        UsageError: a value out of range, or (in ``step``) a sparse gradient.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(params, defaults)

    @can_be_left_out
    def _update(self, params: list[Tensor], grads: list[Tensor], group: Options) -> None:
        first, second = adam_moments(self, params, grads, group)
        if group["amsgrad"]:
            largest = self.states_of(params, "max_exp_avg_sq")
            with self.changing(largest) as new:
                torch._foreach_maximum_(new, second)
            second = largest
        denominators = torch._foreach_sqrt(second)
        torch._foreach_add_(denominators, group["eps"])
        beta1, beta2 = group["betas"]
        sizes = [group["lr"] * math.sqrt(1 - beta2**t) / (1 - beta1**t) for t in self.states_of(params, "step")]
        with self.changing(params) as new:
            if group["weight_decay"]:
                torch._foreach_mul_(new, [1 - size * group["weight_decay"] for size in sizes])
            torch._foreach_addcdiv_(new, first, denominators, [-size for size in sizes])
