"""Normalisation of channels over the frames of a batch or of an utterance."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nemo_asr.models.jasper.frames import Frames, is_time_major, runs_on_cpu
from nemo_asr.run.arguments import look_up
from nemo_lite.base.errors import UsageError


class BatchNorm(nn.BatchNorm1d):
    """``nn.BatchNorm1d`` over (B, C, T) that does not slow down where channels are the innermost axis in memory."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, C, T)."""
        if not runs_on_cpu(x) or not is_time_major(x):
            return super().forward(x)
        rows = super().forward(x.transpose(1, 2).flatten(0, 1))
        return rows.view(x.shape[0], x.shape[2], x.shape[1]).transpose(1, 2)


def set_batch_norm_momentum(modules: Iterable[object], momentum: float | None) -> None:
    """Set the weight of a new batch in the running mean and variance of all batch normalisation.

    The statistics are ``(1 - momentum) * before + momentum * batch``. A short run on few steps needs a larger one than
    the usual 0.1.

    Args:
        modules: of a model; those that are no torch modules are passed over.
        momentum: above 0, up to 1; None changes nothing.

    Raises:
        UsageError: none of the modules has batch normalisation, or the momentum is out of range.
    """
    if momentum is None:
        return
    if not 0 < momentum <= 1:
        raise UsageError("momentum of batch normalisation is out of range", got=f"{momentum:g}", wanted="above 0, to 1")
    torch_modules = [module for module in modules if isinstance(module, nn.Module)]
    layers = [layer for module in torch_modules for layer in module.modules() if isinstance(layer, _BatchNorm)]
    if not layers:
        raise UsageError("the model has no batch normalisation, so bn_momentum has no effect", remedy="leave it out")
    for layer in layers:
        layer.momentum = momentum


class MaskedGroupNorm(nn.GroupNorm):
    """``nn.GroupNorm`` whose mean and variance are those of the valid frames, so that padding does not change them."""

    def forward(self, x: Tensor, frames: Frames | None = None) -> Tensor:
        """(B, C, T) -> (B, C, T); without frames all are valid."""
        if frames is None or not frames.is_masking:
            return super().forward(x)
        valid = frames.valid(x.shape[2]).unsqueeze(1)
        grouped = x.reshape(x.shape[0], self.num_groups, -1, x.shape[2])
        grouped = grouped.to(torch.promote_types(x.dtype, torch.float32))
        count = valid.sum((2, 3), keepdim=True).clamp(min=1) * grouped.shape[2]
        mean = torch.where(valid, grouped, 0.0).sum((2, 3), keepdim=True) / count
        centred = grouped - mean
        variance = torch.where(valid, centred.square(), 0.0).sum((2, 3), keepdim=True) / count
        normalised = (centred * torch.rsqrt(variance + self.eps)).flatten(1, 2).to(x.dtype)
        return normalised * self.weight.unsqueeze(1) + self.bias.unsqueeze(1)


# BatchNorm's numbers are NeMo's; "group" alone has a choice of groups.
_NORMALIZATIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "batch": lambda channels, groups: BatchNorm(channels, eps=1e-3, momentum=0.1),
    "layer": lambda channels, groups: MaskedGroupNorm(1, channels),
    "group": lambda channels, groups: MaskedGroupNorm(groups, channels),
    "instance": lambda channels, groups: MaskedGroupNorm(channels, channels),
}


def make_normalization(mode: str, num_channels: int, norm_groups: int, place: str) -> nn.Module:
    """The normalisation of this mode over ``num_channels``; ``norm_groups`` -1 means one group for each channel.

    Raises:
        UnknownNameError: there is no such mode.
        UsageError: ``norm_groups`` does not divide the channels.
    """
    make = look_up("normalization_mode", mode, _NORMALIZATIONS, place)
    groups = num_channels if norm_groups == -1 else norm_groups
    if mode == "group" and (groups < 1 or num_channels % groups):
        raise UsageError("norm_groups must divide the channels", place=place, got=f"{norm_groups} for {num_channels}")
    return make(num_channels, groups)
