"""Dropout whose random numbers cost little on CPU.

Drawing them takes a fifth of a training step with torch's generator of Bernoulli numbers, which draws 64 bits for each;
16 bits do.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nemo_asr.models.jasper.frames import runs_on_cpu


def kept_at_random(shape: torch.Size, probability: float) -> tuple[Tensor, float]:
    """Bytes on CPU, 0 with a probability rounded to a multiple of 2 ** -16, else 1; and by what to multiply then."""
    count, threshold = shape.numel(), round(probability * 2**16)
    bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    kept = (bits[:count] >= threshold - 2**15).view(shape)
    return kept.view(torch.uint8), 2**16 / (2**16 - threshold)


def add_dropped(x: Tensor, y: Tensor, probability: float, factor: float = 1.0) -> Tensor:
    """``x + factor * dropout(y)``, of one shape."""
    if probability and runs_on_cpu(x):
        out: Tensor = _AddDropped.apply(x, y, probability, factor)  # type: ignore[no-untyped-call]  # torch's
        return out
    return torch.add(x, F.dropout(y, probability) if probability else y, alpha=factor)


class _AddDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, probability: float, factor: float) -> Tensor:
        kept, scale = kept_at_random(y.shape, probability)
        ctx.save_for_backward(kept)
        ctx.factor = factor * scale
        return torch.add(x, torch.mul(y, kept), alpha=ctx.factor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (kept,) = ctx.saved_tensors
        return gradients[0], torch.mul(gradients[0], kept).mul_(ctx.factor), None, None
