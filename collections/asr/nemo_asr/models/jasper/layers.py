"""Layers over the frames of a padded batch: which frames are valid, convolution over time, normalisation of channels.

Between the layers of an encoder a tensor is zero behind each utterance wherever a convolution reads it.
Weights of convolutions keep the shape of ``nn.Conv1d``, (C_out, C_in / groups, K).
On CPU, tensors (B, C, T) that leave a depthwise convolution lie in memory as (B, T, C): a pointwise convolution is then
one matrix product. The order in memory never changes a result, and no caller needs to know it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp import custom_bwd, custom_fwd
from torch.nn.modules.batchnorm import _BatchNorm

from nemo_asr.run.arguments import look_up
from nemo_lite.backends.pytorch.streaming import SlidingWindow
from nemo_lite.base.errors import UsageError
from nemo_lite.core.neural_types import AxisKind, AxisType, ElementType, NeuralType

BATCH, TIME = AxisType(AxisKind.Batch), AxisType(AxisKind.Time)


def frames_type(size: int, element: ElementType) -> NeuralType:
    """(B, size, T) of an element: what encoders take and give."""
    return NeuralType((BATCH, AxisType(AxisKind.Dimension, size), TIME), element)


def valid_frames(lengths: Tensor, num_frames: int) -> Tensor:
    """(B, 1, T): True where a frame belongs to the utterance."""
    return (torch.arange(num_frames, device=lengths.device) < lengths.unsqueeze(1)).unsqueeze(1)


def runs_on_cpu(x: Tensor) -> bool:
    """Whether kernels made for the CPU may be called; compilers and exporters are to see plain operations."""
    # Compiling comes before tracing: a compiler ends its graph at the call that torch.jit.is_tracing() makes too.
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not torch._C._is_tracing()


def are_full(lengths: Tensor, num_frames: int) -> bool:
    """Whether it is known that no utterance is shorter than its batch; only on CPU is it looked at."""
    return runs_on_cpu(lengths) and int(lengths.min()) >= num_frames


def is_time_major(x: Tensor) -> bool:
    """Whether (B, C, T) lies in memory as (B, T, C)."""
    return x.transpose(1, 2).is_contiguous()


class Frames:
    """Of a padded batch (B, C, T), each utterance has the first ``lengths`` frames.

    What is made of the lengths is made once, for all layers at one frame rate.

    Args:
        lengths: (B,), whole numbers.
        is_masking: False: what lies behind an utterance is left as it is.
    """

    def __init__(self, lengths: Tensor, is_masking: bool = True) -> None:
        self.lengths, self.is_masking = lengths, is_masking
        self._valid: Tensor | None = None
        self._padding: Tensor | None = None
        self._strided: dict[int, Frames] = {}

    def strided(self, stride: int) -> Frames:
        """Of the output of a convolution with same padding: ``ceil(length / stride)``."""
        if stride == 1:
            return self
        if stride not in self._strided:
            self._strided[stride] = Frames((self.lengths - 1) // stride + 1, self.is_masking)
        return self._strided[stride]

    def valid(self, num_frames: int) -> Tensor:
        """(B, 1, T): True where a frame belongs to the utterance."""
        if self._valid is None:
            self._valid = valid_frames(self.lengths, num_frames)
        return self._valid

    def padding(self, num_frames: int) -> Tensor | None:
        """(N,): ``b * T + t`` of each frame behind an utterance; None if nothing is masked. For tensors on CPU only."""
        if self._padding is None and self.is_masking:
            self._padding = torch.from_numpy(np.flatnonzero(~self.valid(num_frames).numpy()))
        return self._padding

    def masked(self, x: Tensor) -> Tensor:
        """(B, C, T) with zeros behind each utterance."""
        return torch.where(self.valid(x.shape[2]), x, 0.0) if self.is_masking else x


def clear(rows: Tensor, padding: Tensor | None) -> Tensor:
    """Write zeros into the frames ``padding`` of contiguous (B, T, C), in place, and return it."""
    if padding is not None:
        rows.view(-1, rows.shape[2]).index_fill_(0, padding, 0.0)  # a view, or an error: never a copy
    return rows


def same_padding(kernel_size: int, dilation: int) -> int:
    """Zeros on each side for which the number of frames is kept (at stride 1): ``dilation * (kernel_size - 1) / 2``.

    Raises:
        UsageError: the kernel is even, so no equal number of zeros on both sides does it.
    """
    if kernel_size % 2 == 0:
        raise UsageError("an even kernel has no same padding", got=str(kernel_size), wanted="an odd kernel size")
    return dilation * (kernel_size - 1) // 2


class TimeConv1d(nn.Conv1d):
    """A convolution over time with same padding: T frames in, ``ceil(T / stride)`` out.

    Args:
        in_channels: channels in.
        out_channels: channels out.
        kernel_size: odd number of frames.
        stride: frames between two outputs.
        dilation: frames between two taps.
        groups: groups of channels that do not see each other.
        heads: for a depthwise convolution, how many filters its channels share; -1: none is shared.
        bias: add a bias to each channel.
        later_taps: taps behind an output's frame, at most half of them; None: half.

    Raises:
        UsageError: an even kernel, or heads that do not divide the channels of a depthwise convolution.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        heads: int = -1,
        bias: bool = False,
        later_taps: int | None = None,
    ) -> None:
        num_channels = in_channels
        if heads != -1:
            if not in_channels == out_channels == groups or in_channels % heads:
                got = f"{heads} heads, {in_channels} -> {out_channels} channels in {groups} groups"
                raise UsageError("heads must divide the channels of a depthwise convolution", got=got)
            in_channels = out_channels = groups = heads
        padding = same_padding(kernel_size, dilation)
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)
        self.heads, self.num_channels = heads, num_channels
        # The same padding, with so many frames more before the input: then an output sees earlier frames.
        self.later = 0 if later_taps is None else padding - dilation * later_taps
        self.is_depthwise = in_channels == out_channels == groups
        self._is_pointwise = kernel_size == stride == groups == 1

    def forward(self, x: Tensor, frames: Frames | None = None) -> Tensor:
        """(B, C_in, T) -> (B, C_out, U = ceil(T / stride)); given ``frames`` of U, with zeros behind each utterance."""
        if not self.later:
            return self._padded(x, frames)
        num_frames = -(-x.shape[2] // self.stride[0])
        out = self._padded(F.pad(x, (self.later, 0)), None)[:, :, :num_frames]
        return out if frames is None else frames.masked(out)

    def _padded(self, x: Tensor, frames: Frames | None) -> Tensor:
        """With same padding, whatever `later` is."""
        # Halves have no fast kernel on most CPUs.
        if runs_on_cpu(x) and self.weight.dtype.itemsize >= 4:
            if self.is_depthwise and self.heads == -1:
                padding = None if frames is None else frames.padding(-(-x.shape[2] // self.stride[0]))
                steps = self.stride[0], self.dilation[0]
                out: Tensor = _Depthwise.apply(x, self.weight, self.bias, padding, *steps)
                return out
            if self._is_pointwise and is_time_major(x):
                out = F.linear(x.transpose(1, 2), self.weight.squeeze(2), self.bias).transpose(1, 2)
                return out if frames is None else frames.masked(out)
        by_heads = x if self.heads == -1 else x.reshape(-1, self.heads, x.shape[2])
        out = super().forward(by_heads)
        out = out if self.heads == -1 else out.reshape(x.shape[0], x.shape[1], -1)
        return out if frames is None else frames.masked(out)

    @property
    def window(self) -> SlidingWindow:
        """The frames of the input that an output sees."""
        span = self.dilation[0] * (self.kernel_size[0] - 1) + 1
        return SlidingWindow(span, self.stride[0], span // 2 + self.later, span // 2 - self.later)

    def of_window(self, x: Tensor) -> Tensor:
        """The convolution without padding: frames of :attr:`window` (B, C_in, T), or none, to (B, C_out, U)."""
        if not x.shape[2]:
            return x.new_zeros(x.shape[0], self.num_channels if self.heads != -1 else self.out_channels, 0)
        by_heads = x if self.heads == -1 else x.reshape(-1, self.heads, x.shape[2])
        out = F.conv1d(by_heads, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)
        return out if self.heads == -1 else out.reshape(x.shape[0], x.shape[1], -1)


class MaskedConv1d(nn.Module):
    """A :class:`TimeConv1d` (with its arguments) that is not to see the padding behind an utterance.

    Its input is zero there. So is the output of a depthwise one, which reaches beyond the end and which the pointwise
    one behind it reads; that of a pointwise one is zero of itself.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.conv = TimeConv1d(*args, **kwargs)
        self.stride = self.conv.stride

    def forward(self, x: Tensor, frames: Frames) -> Tensor:
        """(B, C_in, T), zero behind each utterance, and the frames of the output -> (B, C_out, ceil(T / stride))."""
        out: Tensor = self.conv(x, frames if self.conv.is_depthwise else None)
        return out


class _Depthwise(torch.autograd.Function):
    """Depthwise convolution with same padding on CPU, in float32 even under autocast.

    oneDNN has fast kernels for the output with frames along the width of an image, and for the gradient of the weights
    with frames along its height, where channels are the innermost axis and neither stride nor dilation is above 1.
    """

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]  # torch's
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Tensor | None, stride: int, dilation: int
    ) -> Tensor:
        ctx.shape = (x.shape[2], stride, dilation)
        phases = _phases(x.transpose(1, 2), dilation)
        ctx.save_for_backward(phases, weight, padding)
        if dilation == 1:
            rows = _correlated(phases, weight, bias, stride)
        else:
            rows = _joined(_correlated(phases, weight, bias), dilation, x.shape[2])[:, ::stride].contiguous()
        return clear(rows, padding).transpose(1, 2)

    @staticmethod
    @custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]  # torch's
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (phases, weight, padding), gradient = ctx.saved_tensors, gradients[0].transpose(1, 2)
        num_frames, stride, dilation = ctx.shape
        if padding is not None and len(padding):
            gradient = clear(gradient.clone(memory_format=torch.contiguous_format), padding)
        if stride > 1:  # as if the frames between had been computed, and nobody had read them
            of_some, (num_utterances, _, num_channels) = gradient, gradient.shape
            gradient = of_some.new_zeros(num_utterances, num_frames, num_channels)
            gradient[:, ::stride] = of_some
        of_bias = gradient.sum((0, 1)) if ctx.needs_input_grad[2] else None
        of_phases = _phases(gradient, dilation)
        of_input = of_weight = None
        if ctx.needs_input_grad[0]:
            of_input = _joined(_correlated(of_phases, weight.flip(2)), dilation, num_frames).transpose(1, 2)
        if ctx.needs_input_grad[1]:
            of_weight = _weight_gradient(phases, of_phases, weight)
        return of_input, of_weight, of_bias, None, None, None


def _phases(rows: Tensor, dilation: int) -> Tensor:
    """(B, T, C) as contiguous (B * dilation, ceil(T / dilation), C): a frame's taps are its neighbours there."""
    if dilation > 1:
        num_utterances, num_frames, num_channels = rows.shape
        padded = F.pad(rows, (0, 0, 0, -num_frames % dilation))
        rows = padded.view(num_utterances, -1, dilation, num_channels).transpose(1, 2).flatten(0, 1)
    return rows.contiguous()


def _joined(phases: Tensor, dilation: int, num_frames: int) -> Tensor:
    """What :func:`_phases` took apart: (B, T, C)."""
    if dilation == 1:
        return phases
    return phases.view(-1, dilation, *phases.shape[1:]).transpose(1, 2).flatten(1, 2)[:, :num_frames]


def _correlated(rows: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int = 1) -> Tensor:
    """(B, T, C), filters (C, 1, K) and biases (C,) -> (B, ceil(T / stride), C)."""
    image, padding = rows.unsqueeze(1).permute(0, 3, 1, 2), weight.shape[2] // 2
    out = F.conv2d(image, weight.unsqueeze(2), bias, (1, stride), (0, padding), groups=weight.shape[0])
    return out.permute(0, 2, 3, 1).squeeze(1)


def _weight_gradient(rows: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:
    """(C, 1, K): per channel and tap k, the sum over b and t of rows[b, t + k - K // 2] * gradient[b, t]."""
    images = (part.unsqueeze(2).permute(0, 3, 1, 2) for part in (gradient, rows))
    padding, num_channels = (weight.shape[2] // 2, 0), weight.shape[0]
    convolution = ((1, 1), padding, (1, 1), False, (0, 0), num_channels, (False, True, False))
    of_weight: Tensor = torch.ops.aten.convolution_backward(*images, weight.unsqueeze(3), None, *convolution)[1]
    # Flat first: an axis of one element may have any stride, and DDP wants those of the weights.
    return of_weight.flatten().view(weight.shape)


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


INIT_MODES: dict[str, Callable[[Tensor], Any]] = {
    "xavier_uniform": nn.init.xavier_uniform_,
    "xavier_normal": nn.init.xavier_normal_,
    "kaiming_uniform": partial(nn.init.kaiming_uniform_, nonlinearity="relu"),
    "kaiming_normal": partial(nn.init.kaiming_normal_, nonlinearity="relu"),
}


def init_weights(module: nn.Module, mode: str, place: str) -> None:
    """Draw the weights of all convolutions and linear layers of ``module`` anew; ``place`` is named in the error.

    Raises:
        UnknownNameError: there is no initialisation of this name.
    """
    draw = look_up("init_mode", mode, INIT_MODES, place)
    for layer in module.modules():
        # Without values there is nothing to draw, and torch would import its compiler for it, which takes 2 s.
        if isinstance(layer, (nn.Conv1d, nn.Linear)) and not layer.weight.is_meta:
            draw(layer.weight)
