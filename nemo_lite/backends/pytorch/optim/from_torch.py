"""torch's own optimizers, in their fused form where there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from nemo_lite.backends.pytorch.optim.foreach import Options

# Devices for which torch has one kernel for all of a step.
_FUSED_DEVICES = ("cpu", "cuda")


def fused(optimizer: Callable[..., Optimizer]) -> Callable[..., Optimizer]:
    """Makes ``optimizer`` fused where all of its parameters allow it."""

    def make(groups: list[Options], **options: Any) -> Optimizer:
        params = [param for group in groups for param in group["params"]]
        can_fuse = all(param.is_floating_point() and param.device.type in _FUSED_DEVICES for param in params)
        # Weights that are divided among ranks are of a class of their own, for which torch has no fused SGD.
        if optimizer is torch.optim.SGD and any(type(param) not in (Tensor, nn.Parameter) for param in params):
            return optimizer(groups, **options, foreach=True)
        return optimizer(groups, **options, fused=True if can_fuse else None)

    return make


def sgd(groups: list[Options], **options: Any) -> Optimizer:
    """torch's SGD, for parameters of which some may get their first gradient later."""
    optimizer = fused(torch.optim.SGD)(groups, **options)
    optimizer.register_step_pre_hook(_start_momentum)
    return optimizer


def _start_momentum(optimizer: Optimizer, *unused: object) -> None:
    """Zero momentum for a parameter that has its first gradient, which gives the same first step.

    Without it torch's fused SGD ends in a TypeError if other parameters had theirs earlier (unfreezing does that).
    """
    for group in optimizer.param_groups:
        for param in group["params"] if group["momentum"] else ():
            if param.grad is not None and "momentum_buffer" not in optimizer.state[param]:
                optimizer.state[param]["momentum_buffer"] = torch.zeros_like(param)
