"""LARC: the learning rate of each tensor follows the sizes of the tensor and of its gradient, around any optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from nemo_lite.backends.pytorch.optim.foreach import Options, norms
from nemo_lite.errors import UsageError
from nemo_lite.utils import logging

DEFAULT_ETA = 0.02
_EPS = 1e-8


def larc_options(given: Options) -> float | None:
    """``larc_eta`` if ``larc`` is asked for, otherwise None.

    Raises:
        UsageError: ``larc`` is no truth value, or ``larc_eta`` is no number above 0.
    """
    larc, eta = given.get("larc"), given.get("larc_eta")
    if larc not in (None, True, False):
        raise UsageError("larc is not a truth value", got=repr(larc), wanted="True or False")
    if eta is not None and not (isinstance(eta, (int, float)) and not isinstance(eta, bool) and 0 < eta < float("inf")):
        raise UsageError("larc_eta is out of range", got=repr(eta), wanted="a number above 0")
    if eta is not None and larc is None:
        logging.warning("larc_eta has no effect without larc; give larc=True, or leave it out")
    return float(eta or DEFAULT_ETA) if larc else None


def add_larc(optimizer: Optimizer, eta: float) -> None:
    """From now on, each step of an optimizer scales the gradients by LARC first.

    For a tensor p with gradient g, the group's weight decay wd and learning rate lr: the gradient becomes
    ``(g + wd p) min(rate / lr, 1)`` with ``rate = eta |p| / (|g| + wd |p| + 1e-8)``, and the optimizer itself decays
    nothing; so its rate is ``min(rate, lr)``. Where |p| or |g| is 0, g stays as it is.

    Source: You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks", 2017 (LARS, whose rate is
    multiplied with lr); clipped to lr as in NVIDIA's LARC, with its constants.

    Args:
        optimizer: any; its gradients are changed in place.
        eta: the trust coefficient.
    """
    decays: list[Any] = []

    def scale(optimizer: Optimizer, *unused: object) -> None:
        decays[:] = [group.get("weight_decay") for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            _scale_gradients(group, eta)
            if "weight_decay" in group:
                group["weight_decay"] = 0.0

    def restore(optimizer: Optimizer, *unused: object) -> None:
        for group, decay in zip(optimizer.param_groups, decays, strict=True):
            if decay is not None:
                group["weight_decay"] = decay

    optimizer.register_step_pre_hook(scale)
    optimizer.register_step_post_hook(restore)


@torch.no_grad()
def _scale_gradients(group: Options, eta: float) -> None:
    """Nothing is read back from the device."""
    params: list[Tensor] = [parameter for parameter in group["params"] if parameter.grad is not None]
    if not params:
        return
    grads: list[Tensor] = [parameter.grad for parameter in params if parameter.grad is not None]
    decay, of_params, of_grads = group.get("weight_decay", 0.0), torch.stack(norms(params)), torch.stack(norms(grads))
    rates = eta * of_params / (of_grads + decay * of_params + _EPS)
    counts = (of_params > 0) & (of_grads > 0)
    if decay:
        added = torch._foreach_mul(params, list((decay * counts).to(of_params.dtype).unbind()))
        torch._foreach_add_(grads, added)
    factors = torch.where(counts, (rates / group["lr"]).clamp(max=1.0), 1.0)
    torch._foreach_mul_(grads, list(factors.unbind()))
