"""Gradients between the backward pass and the update: whether they are finite, and clipping. Nothing is read back."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

_MARGIN = 1e-6  # as in torch.nn.utils.clip_grad_norm_
_ONE = torch.ones(())
_IS_SPARSE = attrgetter("is_sparse")


def dense_gradients(parameters: Sequence[torch.nn.Parameter]) -> list[Tensor]:
    """The gradients that are there; of a sparse one its values."""
    gradients = [gradient for parameter in parameters if (gradient := parameter.grad) is not None]
    if not any(map(_IS_SPARSE, gradients)):  # runs at every step: faster than a generator
        return gradients
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()  # the values of one that is not are a copy
    found = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return [gradient.values() if gradient.is_sparse else gradient for gradient in found]


def clip(gradients: list[Tensor], max_norm: float) -> Tensor:
    """Scale gradients (at least one) down, in place, to a norm of at most ``max_norm``; what :func:`not_finite` gives.

    The numbers are those of ``torch.nn.utils.clip_grad_norm_``.
    """
    norm = _norm_of(gradients)
    torch._foreach_mul_(gradients, (max_norm / (norm + _MARGIN)).clamp(max=1.0))
    return not_finite(gradients) if own_part(gradients[0]) is not gradients[0] else norm * 0.0


def multiply(gradients: list[Tensor], factor: Tensor) -> None:
    """Multiply gradients with a number on their device, in place."""
    torch._foreach_mul_([own_part(gradient) for gradient in gradients], factor)


def not_finite(gradients: list[Tensor]) -> Tensor:
    """0 if all gradients (at least one) are finite, otherwise another number or NaN. Of shards, this rank's count."""
    own = gradients if {*map(type, gradients)} == {Tensor} else [own_part(gradient) for gradient in gradients]
    if not own[0].is_cpu:
        return _norm_of(own) * 0.0
    # A third of the time of the norm, which a CPU takes tensor by tensor. (zeros_like takes a third of that of zeros.)
    found = torch.zeros_like(_ONE)
    torch._amp_foreach_non_finite_check_and_unscale_(own, found, _ONE)
    return found


def _norm_of(gradients: list[Tensor]) -> Tensor:
    """The 2-norm of all of them together; at least in float32, whose range a sum of squares of halves needs."""
    wide = torch.float64 if any(gradient.dtype == torch.float64 for gradient in gradients) else torch.float32
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2, dtype=wide)))
    return norm


def own_part(tensor: Any) -> Tensor:
    """Of a sharded tensor this rank's part, of any other itself. FSDP2 is not imported for it."""
    part: Tensor = getattr(tensor, "_local_tensor", tensor)
    return part
