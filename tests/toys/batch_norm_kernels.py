"""torch's CUDA kernels of synchronised batch normalisation, put together from ordinary operations, for a rehearsal.

As the kernels compute (``ATen/native/cuda/Normalization.cuh``), types included; on CPU tensors, and on the meta device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from nemo_lite.backends.pytorch.distributed import batchnorm


@contextmanager
def kernels_on_this_device() -> Iterator[None]:
    """Inside, synchronised batch normalisation takes the kernels, whatever device its input is on."""
    before = batchnorm._has_kernels
    batchnorm._has_kernels = lambda x: True
    try:
        with torch.library._scoped_library("aten", "IMPL") as library:
            for function in (_stats, _gather_stats_with_counts, _elemt, _backward_reduce, _backward_elemt):
                for key in ("CPU", "Meta"):
                    library.impl(f"batch_norm{function.__name__}", function, key)
            yield
    finally:
        batchnorm._has_kernels = before


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(-1, *[1] * (x.dim() - 2))


def _dims(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    assert x.numel(), "a grid of no blocks is an error"
    variance, mean = torch.var_mean(_wide(x), _dims(x), correction=0)
    return mean, torch.rsqrt(variance + eps)


def _gather_stats_with_counts(
    x: Tensor,
    means: Tensor,
    inverses: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    assert counts.dtype == (x if running_mean is None else running_mean).dtype, "the kernel refuses other types"
    average, squares = torch.zeros_like(means[0]), torch.zeros_like(means[0])
    num_values = torch.zeros((), dtype=torch.int32, device=x.device)
    for mean, inverse, count in zip(means.unbind(), inverses.unbind(), counts.unbind(), strict=True):
        variance = 1.0 / inverse
        variance = (variance * variance - eps) * count
        factor = 1.0 / (num_values + count)
        squares = squares + variance + (average - mean) ** 2 * num_values * count * factor
        average = num_values * factor * average + count * factor * mean
        num_values = (num_values + count).to(torch.int32)
    if running_mean is not None and running_var is not None:
        running_mean.copy_((1 - momentum) * running_mean + momentum * average)
        running_var.copy_((1 - momentum) * running_var + momentum * (squares / (num_values - 1)))
    return average, 1.0 / torch.sqrt(squares / num_values + eps)


def _elemt(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, inverse: Tensor, eps: float) -> Tensor:
    _see_types(x, mean, weight, bias)
    y = (_wide(x) - _per_channel(mean, x)) * _per_channel(inverse, x)
    y = y if weight is None else y * _per_channel(weight, x)
    return (y if bias is None else y + _per_channel(bias, x)).to(x.dtype)


def _backward_reduce(
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor, ...]:
    _see_types(x, mean, weight)
    assert (gradient.dtype, gradient.stride()) == (x.dtype, x.stride())
    assert (input_g, weight_g, bias_g) == (True, False, False), "gradients of weights are not made here"
    nothing = mean.new_empty(0)
    centred = _wide(x) - _per_channel(mean, x)
    return _wide(gradient).sum(_dims(x)), (_wide(gradient) * centred).sum(_dims(x)), nothing, nothing


def _backward_elemt(
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    _see_types(x, mean, weight, sum_dy, sum_dy_xmu)
    assert (gradient.dtype, gradient.stride(), count.dtype) == (x.dtype, x.stride(), torch.int32)
    share = 1.0 / count.sum().to(mean.dtype)
    slope = inverse * inverse * sum_dy_xmu * share
    centred = _wide(x) - _per_channel(mean, x)
    scale = inverse if weight is None else inverse * weight
    own = _wide(gradient) - _per_channel(sum_dy * share, x) - centred * _per_channel(slope, x)
    return (own * _per_channel(scale, x)).to(x.dtype)


def _see_types(x: Tensor, *of_channels: Any) -> None:
    assert x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last), "else slow, or wrong"
    wide = torch.promote_types(x.dtype, torch.float32)
    assert all(each is None or each.dtype == wide for each in of_channels)
