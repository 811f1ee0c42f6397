"""Synchronised batch normalisation: statistics over all ranks of a group, on GPU and CPU, for as long as a run trains.

What happens to running statistics between steps is in the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from nemo_lite.base.errors import UsageError

_LAYERS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

SHARDED = "of_sharded_weights"
"""A class attribute of modules whose weights are divided among the ranks. Reading it does not import FSDP2."""


def make_groups(world_size: int, group_size: int, timeout: timedelta | None = None) -> dist.ProcessGroup | None:
    """This rank's group of ``group_size`` consecutive ranks; ``None``, all ranks, for 0 or ``world_size``.

    Every rank calls it, because torch makes every group on all ranks in the same order.

    Args:
        world_size: number of ranks.
        group_size: ranks of a group.
        timeout: of a collective in the group; by default torch's.

    Raises:
        UsageError: ``group_size`` does not divide ``world_size``.
    """
    if group_size < 0 or (group_size and world_size % group_size):
        raise UsageError(
            "the groups of synchronised batch normalisation must divide the processes",
            place="synced_batchnorm_groupsize",
            got=f"{group_size} for {world_size} processes",
            wanted=", ".join(str(size) for size in range(1, world_size + 1) if world_size % size == 0),
        )
    if group_size in (0, world_size):
        return None
    firsts = range(0, world_size, group_size)
    groups = [dist.new_group(list(range(first, first + group_size)), timeout=timeout) for first in firsts]
    own = groups[dist.get_rank() // group_size]
    assert isinstance(own, dist.ProcessGroup)  # of the others this rank is no member
    return own


@contextmanager
def synced_batchnorm(modules: Iterable[nn.Module], group: dist.ProcessGroup | None) -> Iterator[None]:
    """Inside, batch normalisation in training mode takes mean and variance over all ranks of ``group``.

    Every ``nn.BatchNorm1d``, ``2d`` and ``3d`` of the modules stays the same object, with its parameters, buffers and
    names; only its class changes. A subclass with its own ``forward`` keeps it: what ``super().forward`` gives is
    synchronised. Evaluation mode does not change. Ranks may have different numbers of elements, also none; all must run
    the same layers in the same order.

    Args:
        modules: what trains.
        group: the ranks; ``None``: all.

    Raises:
        UsageError: (in ``forward``, on CPUs) the group has fewer than two values per channel.
    """
    parts = dict.fromkeys(part for module in modules for part in module.modules())
    layers: list[nn.Module] = [part for part in parts if isinstance(part, _LAYERS)]
    before = [type(layer) for layer in layers]
    if dist.get_world_size(group) > 1:
        synced = {cls: _synced(cls, group or dist.group.WORLD) for cls in dict.fromkeys(before)}
        for layer, cls in zip(layers, before, strict=True):
            layer.__class__ = synced[cls]
    try:
        yield
    finally:
        for layer, cls in zip(layers, before, strict=True):
            layer.__class__ = cls


@contextmanager
def adding_nothing(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, synchronised layers of these modules take part in the collectives and add no values of their own."""
    layers = [layer for module in modules for layer in module.modules() if isinstance(layer, _Synced)]
    for layer in layers:
        layer._adds_nothing = True
    try:
        yield
    finally:
        for layer in layers:
            layer._adds_nothing = False


def is_synced(layer: nn.Module) -> bool:
    """Whether the layer takes its statistics over several ranks now."""
    return isinstance(layer, _Synced)


def is_sharded(modules: Iterable[nn.Module]) -> bool:
    """Whether any part's weights are divided among the ranks: its forward is a collective."""
    return any(hasattr(type(part), SHARDED) for module in modules for part in module.modules())


def needs_all_ranks(modules: Iterable[nn.Module], in_training: bool = True) -> bool:
    """Whether a forward of any of these modules is a collective, which all ranks must call equally often.

    Args:
        modules: they and all their parts are looked at.
        in_training: as in training; in evaluation, batch normalisation exchanges nothing.
    """
    roots = list(modules)
    return is_sharded(roots) or (in_training and any(is_synced(part) for module in roots for part in module.modules()))


def _synced(cls: type[nn.Module], group: object) -> type[nn.Module]:
    """The class under its own name, with :class:`_Synced` between it and torch's forward."""
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls, _Synced), {**names, "_synced_over": group})


class _Synced(_BatchNorm):
    """Comes right before torch's ``_BatchNorm`` in a layer's method resolution order."""

    _synced_over: ClassVar[Any]
    _adds_nothing = False

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) -> (N, C, ...)."""
        if not self.training:
            return super().forward(x)
        self._check_input_dim(x)
        if not self._adds_nothing:
            return self._over_group(x)
        # Normalised by itself; an empty batch calls the collectives, forward and backward, that the other ranks call.
        alone: Tensor = torch.batch_norm(x, self.weight, self.bias, None, None, True, 0.0, self.eps, False)
        return alone + self._over_group(x[:0]).sum()

    def _over_group(self, x: Tensor) -> Tensor:
        factor, group = self._count_batch(), self._synced_over
        running_mean, running_var = (self.running_mean, self.running_var) if self.track_running_stats else (None, None)
        if _has_kernels(x):
            by_kernels: Any = _NormaliseByKernels.apply
            output: Tensor = by_kernels(x, self.weight, self.bias, running_mean, running_var, factor, self.eps, group)
            return output
        y, mean, variance, count = _Normalise.apply(x, self.weight, self.bias, self.eps, group)
        if running_mean is not None and running_var is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), factor)
            running_var.lerp_((variance * count / (count - 1)).to(running_var.dtype), factor)
        return y  # type: ignore[no-any-return]  # torch's

    def _count_batch(self) -> float:
        """Count this batch; the weight of its statistics in the running ones."""
        if self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                return 1.0 / float(self.num_batches_tracked)
        return self.momentum or 0.0


class _Normalise(torch.autograd.Function):
    """Batch normalisation over a group of ranks. Also gives mean, variance and count.

    torch's is for GPUs only. It waits for the device at each layer, to leave out ranks without values, and sends the
    statistics of such a rank in another type than the others under autocast; here all are float64.
    :class:`_NormaliseByKernels` does the same on a GPU.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, group: dist.ProcessGroup
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean, variance, count = _moments(wide, group)
        inverse = torch.rsqrt(variance + eps).to(wide.dtype)
        normalised = (wide - _per_channel(mean.to(wide.dtype), x)) * _per_channel(inverse, x)
        ctx.save_for_backward(normalised, inverse, weight, count)
        ctx.group, ctx.dtype = group, x.dtype
        ctx.mark_non_differentiable(mean, variance, count)
        ctx.types = [None if tensor is None else tensor.dtype for tensor in (weight, bias)]
        y = normalised if weight is None else normalised * _per_channel(weight, x)
        y = y if bias is None else y + _per_channel(bias, x)
        # A copy, because backward needs `normalised` and the next layer may write into its input.
        return y.to(x.dtype, copy=y is normalised), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        normalised, inverse, weight, count = ctx.saved_tensors
        gradient = gradients[0].to(normalised.dtype)
        dims = _all_but_channels(gradient)
        # A rank's own sums are its gradients of bias and weight; the group's sums go into the gradient of the input.
        local = torch.stack([gradient.sum(dims), (gradient * normalised).sum(dims)])
        means = local.to(torch.float64, copy=True)
        dist.all_reduce(means, group=ctx.group)
        of_gradient, of_product = (means / count).to(gradient.dtype)
        scale = inverse if weight is None else inverse * weight
        correction = _per_channel(of_gradient, gradient) + normalised * _per_channel(of_product, gradient)
        of_weight, of_bias = (
            local[row].to(dtype) if dtype else None for row, dtype in zip((1, 0), ctx.types, strict=True)
        )
        return ((gradient - correction) * _per_channel(scale, gradient)).to(ctx.dtype), of_weight, of_bias, None, None


class _NormaliseByKernels(torch.autograd.Function):
    """Batch normalisation over a group of ranks by torch's CUDA kernels for it. It updates the running statistics.

    They read and write values in the type of the input and compute in float32 (float64 for float64). So the forward
    pass moves 3 times the input and the backward pass 5 times; in bfloat16 :class:`_Normalise` moves 34 times each.
    The host waits for nothing, and all ranks send one type: see :data:`_NO_VALUES`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        factor: float,
        eps: float,
        group: dist.ProcessGroup,
    ) -> Tensor:
        formats = (torch.channels_last, torch.channels_last_3d)
        lies_so = (layout for layout in formats if x.is_contiguous(memory_format=layout))
        ctx.memory_format = next(lies_so, torch.contiguous_format)  # the kernels take input and gradient to lie alike
        x = x.contiguous(memory_format=ctx.memory_format)
        dtype, num_channels = torch.promote_types(x.dtype, torch.float32), x.shape[1]
        if x.numel():
            own_mean, own_inverse = torch.batch_norm_stats(x, eps)
            local = torch.cat([own_mean, own_inverse, own_mean.new_full((1,), x.numel() // num_channels)])
        else:
            local = torch.zeros(2 * num_channels + 1, dtype=dtype, device=x.device)
            local[num_channels:-1] = 1.0
            local[-1] = _NO_VALUES
        gathered = local.new_empty((group.size(), len(local)))
        dist.all_gather(list(gathered.unbind()), local, group=group)
        means, inverses, counts = gathered[:, :num_channels], gathered[:, num_channels:-1], gathered[:, -1]
        # The kernel takes running statistics of the type of the counts; where there are none, it takes that type from
        # its first argument.
        wide_mean, wide_var = (None if tensor is None else tensor.to(dtype) for tensor in (running_mean, running_var))
        mean, inverse = torch.batch_norm_gather_stats_with_counts(
            local, means, inverses, wide_mean, wide_var, factor, eps, counts
        )
        for running, updated in ((running_mean, wide_mean), (running_var, wide_var)):
            if running is not None and updated is not None and updated is not running:
                running.copy_(updated)
        ctx.save_for_backward(x, weight, mean, inverse, counts.to(torch.int32))
        ctx.group, ctx.types = group, [None if tensor is None else tensor.dtype for tensor in (weight, bias)]
        if not x.numel():
            return torch.empty_like(x)
        scale, offset = (None if tensor is None else tensor.to(dtype) for tensor in (weight, bias))
        return torch.batch_norm_elemt(x, scale, offset, mean, inverse, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse, counts = ctx.saved_tensors
        scale = None if weight is None else weight.to(mean.dtype)
        gradient = gradients[0].contiguous(memory_format=ctx.memory_format)
        # A rank's own sums are its gradients of bias and weight; the group's sums go into the gradient of the input.
        of_bias, of_product = torch.zeros_like(mean), torch.zeros_like(mean)
        if x.numel():
            of_bias, of_product, _, _ = torch.batch_norm_backward_reduce(
                gradient, x, mean, inverse, scale, input_g=True, weight_g=False, bias_g=False
            )
        sums = torch.cat([of_bias, of_product])
        dist.all_reduce(sums, group=ctx.group)
        if x.numel():
            bias_sum, product_sum = sums.chunk(2)
            gradient = torch.batch_norm_backward_elemt(gradient, x, mean, inverse, scale, bias_sum, product_sum, counts)
        of_weight = of_product * inverse
        of_parameters = (
            None if dtype is None else tensor.to(dtype)
            for tensor, dtype in zip((of_weight, of_bias), ctx.types, strict=True)
        )
        return (gradient, *of_parameters, None, None, None, None, None)


_NO_VALUES = 1e-30
"""The count that a rank without values sends to the kernel, which divides by the number of values up to each rank.

With 0, a first rank without values would make everything NaN; torch's own layer leaves out such ranks, for which its
host waits. The kernel sums counts as integers, so this one adds nothing to them; it weighs what comes with it by 1e-30
against the values of the other ranks.
"""


def _has_kernels(x: Tensor) -> bool:
    return x.is_cuda


def _moments(x: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (C,), variance (C,) and number of values per channel () over all ranks, in float64.

    Squares are summed around each rank's own mean and then moved to the common mean, so that nothing cancels for values
    far from zero. One collective.
    """
    dims, num_values = _all_but_channels(x), x.numel() // x.shape[1]
    own_mean = x.sum(dims) / max(num_values, 1)
    squares = (x - _per_channel(own_mean, x)).square().sum(dims)
    local = torch.cat([own_mean.double(), squares.double(), own_mean.new_full((1,), num_values, dtype=torch.float64)])
    of_all = [torch.empty_like(local) for _ in range(group.size())]
    dist.all_gather(of_all, local, group=group)
    gathered, num_channels = torch.stack(of_all), x.shape[1]
    means, sums, counts = gathered[:, :num_channels], gathered[:, num_channels:-1], gathered[:, -1:]
    count = counts.sum()
    # Elsewhere the host would wait for the device: there the result is not finite, and the step is left out.
    if x.device.type == "cpu" and count < 2:
        raise UsageError(
            "batch normalisation needs at least two values per channel",
            got=f"{int(count)} on {group.size()} ranks",
            remedy="use larger batches",
        )
    mean = (counts * means).sum(0) / count
    return mean, (sums + counts * (means - mean).square()).sum(0) / count, count


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    """(C,) so that it goes with (N, C, ...)."""
    return values.view(-1, *[1] * (x.dim() - 2))
