"""1-D convolutions over time: same padding, lengths in whole numbers, masks, and a fast depthwise form on CPU.

Weights keep the shape of ``nn.Conv1d``, (C_out, C_in / groups, K). No blocks, no normalisation, no ports in this file.

On CPU, tensors (B, C, T) that leave a depthwise convolution lie in memory as (B, T, C): a pointwise convolution is then
one matrix product. The order in memory never changes a result, and no caller needs to know it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp import custom_bwd, custom_fwd

from nemo_lite.errors import UsageError

# Frames for which one small matrix product computes the gradient of all taps. Of 16, 32 and 64 it was the fastest for
# 33 and 75 taps, and within a fifth of the fastest for 11.
_SEGMENT = 32


def same_padding(kernel_size: int, dilation: int) -> int:
    """Zeros on each side for which the number of frames is kept (at stride 1): ``dilation * (kernel_size - 1) / 2``.

    Raises:
        UsageError: the kernel is even, so no equal number of zeros on both sides does it.
    """
    if kernel_size % 2 == 0:
        raise UsageError("an even kernel has no same padding", got=str(kernel_size), wanted="an odd kernel size")
    return dilation * (kernel_size - 1) // 2


def valid_frames(lengths: Tensor, num_frames: int) -> Tensor:
    """(B, 1, T): True where a frame belongs to the utterance."""
    return (torch.arange(num_frames, device=lengths.device) < lengths.unsqueeze(1)).unsqueeze(1)


def masked(x: Tensor, lengths: Tensor) -> Tensor:
    """(B, C, T) with zeros in the frames behind each utterance."""
    return torch.where(valid_frames(lengths, x.shape[2]), x, 0.0)


def is_time_major(x: Tensor) -> bool:
    """Whether (B, C, T) lies in memory as (B, T, C)."""
    return x.transpose(1, 2).is_contiguous()


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
    ) -> None:
        if heads != -1:
            if not in_channels == out_channels == groups or in_channels % heads:
                got = f"{heads} heads, {in_channels} -> {out_channels} channels in {groups} groups"
                raise UsageError("heads must divide the channels of a depthwise convolution", got=got)
            in_channels = out_channels = groups = heads
        padding = same_padding(kernel_size, dilation)
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)
        self.heads = heads
        self._is_depthwise = in_channels == out_channels == groups and not bias
        self._is_pointwise = kernel_size == stride == groups == 1

    def forward(self, x: Tensor) -> Tensor:
        """(B, C_in, T) -> (B, C_out, ceil(T / stride))."""
        if self.heads == -1:
            return self._convolve(x)
        num_utterances, num_channels, num_frames = x.shape
        convolved = self._convolve(x.reshape(-1, self.heads, num_frames))
        return convolved.reshape(num_utterances, num_channels, -1)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Frames out for frames in, (B,) of whole numbers: floor((L + 2 p - d (k - 1) - 1) / s) + 1."""
        span = self.dilation[0] * (self.kernel_size[0] - 1) + 1
        return (lengths + 2 * int(self.padding[0]) - span) // self.stride[0] + 1

    def _convolve(self, x: Tensor) -> Tensor:
        # Compilers and exporters are to see the plain convolution; halves have no fast kernel on most CPUs.
        if x.device.type == "cpu" and self.weight.dtype.itemsize >= 4 and not torch.compiler.is_compiling():
            if self._is_depthwise:
                shape = (self.stride[0], int(self.padding[0]), self.dilation[0])
                convolved: Tensor = _Depthwise.apply(x, self.weight, *shape)  # type: ignore[no-untyped-call]  # torch's
                return convolved
            if self._is_pointwise and is_time_major(x):
                return F.linear(x.transpose(1, 2), self.weight.squeeze(2), self.bias).transpose(1, 2)
        return super().forward(x)


class MaskedConv1d(nn.Module):
    """A :class:`TimeConv1d` (with its arguments) that does not see the padding behind an utterance."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.conv = TimeConv1d(*args, **kwargs)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(B, C_in, T) and the valid frames (B,) of each utterance -> (B, C_out, ceil(T / stride))."""
        convolved: Tensor = self.conv(masked(x, lengths))
        return convolved

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """As :meth:`TimeConv1d.output_lengths`."""
        return self.conv.output_lengths(lengths)


class _Depthwise(torch.autograd.Function):
    """Depthwise convolution on CPU, in float32 even under autocast.

    aten has a fast kernel for the output and for the gradient of the input where channels are the innermost axis, and
    none for the gradient of the weights; that one is made of matrix products here.
    """

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]  # torch's
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, padding: int, dilation: int) -> Tensor:
        x = _as_image(x)
        ctx.shape = (stride, padding, dilation)
        ctx.save_for_backward(x, weight)
        window = (1, stride), (0, padding), (1, dilation)
        return F.conv2d(x, weight.unsqueeze(2), None, *window, groups=x.shape[1]).squeeze(2)

    @staticmethod
    @custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]  # torch's
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), gradient = ctx.saved_tensors, _as_image(gradients[0])
        stride, padding, dilation = ctx.shape
        x_gradient = weight_gradient = None
        if ctx.needs_input_grad[0]:
            # torch.nn.grad.conv2d_input would compute the same, but forgets that channels are innermost.
            convolution = ((1, stride), (0, padding), (1, dilation), False, (0, 0), x.shape[1])
            x_gradient, _, _ = torch.ops.aten.convolution_backward(
                gradient, x, weight.unsqueeze(2), None, *convolution, (True, False, False)
            )
            x_gradient = x_gradient.squeeze(2)
        if ctx.needs_input_grad[1]:
            weight_gradient = _weight_gradient(x, gradient, weight.shape[2], stride, padding, dilation)
        return x_gradient, weight_gradient, None, None, None


def _as_image(x: Tensor) -> Tensor:
    """(B, C, T) as (B, C, 1, T) with the channels innermost in memory."""
    return x.unsqueeze(2).contiguous(memory_format=torch.channels_last)


def _weight_gradient(x: Tensor, gradient: Tensor, num_taps: int, stride: int, padding: int, dilation: int) -> Tensor:
    """(C, 1, K): per channel and tap k, the sum over b and u of x[b, u*stride + k*dilation - padding] * gradient[b, u].

    The outputs are cut into segments of N frames. For a segment, (window of x)^T (gradient) holds the product of every
    pair of an input and an output frame; the sum over segments is one matrix product, and tap k is its k-th diagonal.
    """
    x, gradient = _channels_first(x), _channels_first(gradient)
    num_channels, num_utterances, num_frames = x.shape
    num_outputs = gradient.shape[2]
    length = min(_SEGMENT, num_outputs)
    num_segments = -(-num_outputs // length)
    window = (length - 1) * stride + (num_taps - 1) * dilation + 1
    padded = (num_segments - 1) * length * stride + window
    x = F.pad(x, (padding, padded - num_frames - padding)).unfold(2, window, length * stride)
    gradient = F.pad(gradient, (0, num_segments * length - num_outputs))
    windows = x.reshape(num_channels, num_utterances * num_segments, window).transpose(1, 2)
    pairs = torch.bmm(windows, gradient.reshape(num_channels, num_utterances * num_segments, length))
    # pairs is (C, window, N); output frame n meets tap k in row n * stride + k * dilation.
    strides = (window * length, dilation * length, stride * length + 1)
    return pairs.as_strided((num_channels, num_taps, length), strides).sum(2).unsqueeze(1)


def _channels_first(x: Tensor) -> Tensor:
    """(B, C, 1, T), channels innermost in memory, as a new (C, B, T)."""
    num_utterances, num_channels, _, num_frames = x.shape
    rows = x.permute(0, 2, 3, 1).reshape(num_utterances * num_frames, num_channels)
    return rows.t().contiguous().view(num_channels, num_utterances, num_frames)
