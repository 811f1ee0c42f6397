"""An optimizer that loads a state stays the one that this run made: its kernels, and tensors laid out for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

# Any: states and groups of optimizers hold tensors, numbers and flags.

_FLAGS = ("fused", "foreach", "capturable")
"""Options of torch's optimizers that choose a kernel, and so go with this run's devices and weights."""


def with_own_flags(optimizer: Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """A state whose groups have the optimizer's own choice of kernels in the place of the saved one.

    Args:
        optimizer: about to load the state; stays as it is.
        state: its ``state_dict()`` in this or another run; stays as it is.
    """
    groups = list(state["param_groups"])
    for number, (group, own) in enumerate(zip(groups, optimizer.param_groups, strict=False)):
        others = {option: value for option, value in group.items() if option not in _FLAGS}
        groups[number] = others | {flag: own[flag] for flag in _FLAGS if flag in own}
    return {**state, "param_groups": groups}


def lay_out_like_parameters(optimizer: Optimizer) -> None:
    """Give loaded states the strides of their parameters: files do not keep them, and fused kernels do not look."""
    for param, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == param.shape and value.stride() != param.stride():
                state[key] = torch.empty_like(param, dtype=value.dtype).copy_(value)
