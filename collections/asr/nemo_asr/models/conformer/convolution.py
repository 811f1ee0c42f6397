"""The convolution module of a layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.models.jasper.layers import BatchNorm, Frames, MaskedGroupNorm, TimeConv1d
from nemo_lite.backends.pytorch.streaming import ChunkFrames


class PointwiseConv1d(nn.Conv1d):
    """A convolution of one frame: a linear layer whose weight has the shape of a convolution's."""

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True) -> None:
        super().__init__(in_channels, out_channels, 1, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C_out)."""
        return F.linear(x, self.weight.squeeze(2), self.bias)


class ConvolutionModule(nn.Module):
    """Pointwise convolution and gate, depthwise convolution, normalisation, SiLU, pointwise convolution.

    Args:
        size: channels.
        kernel_size: frames that the depthwise convolution sees, odd.
        norm: batch_norm, layer_norm, or group_norm with the number of groups behind it.
        left: frames before a frame that it sees; the others of the kernel are behind it.
        use_bias: biases of the convolutions.
        pads_input: the zeros before an utterance stand before this module, as in WeNet, and not behind the gate, which
            makes something else of them where there are biases. For ``left`` of all frames.
    """

    def __init__(
        self, size: int, kernel_size: int, norm: str, left: int, use_bias: bool = True, pads_input: bool = False
    ) -> None:
        super().__init__()
        # The convolution has same padding: it sees further on the side where more is added.
        self._before, self._behind = max(left - kernel_size // 2, 0), max(kernel_size // 2 - left, 0)
        self._pads_input = pads_input and use_bias
        self._left = left
        self.pointwise_conv1 = PointwiseConv1d(size, 2 * size, bias=use_bias)
        self.depthwise_conv = TimeConv1d(size, size, kernel_size, groups=size, bias=use_bias)
        self.batch_norm = _normalization(norm, size)  # NeMo's name, whatever it is
        self.pointwise_conv2 = PointwiseConv1d(size, size, bias=use_bias)

    def forward(self, x: Tensor, frames: Frames) -> Tensor:
        """(B, T, D) to the same."""
        num_frames = x.shape[1]
        x = F.glu(self.pointwise_conv1(x), dim=2)
        x = frames.masked(x.transpose(1, 2)).transpose(1, 2)
        if self._pads_input:
            assert self.pointwise_conv1.bias is not None
            start = F.glu(self.pointwise_conv1.bias, dim=0).expand(x.shape[0], self._left, -1)
            x = self._convolved(torch.cat([start, x], dim=1))[:, self._before : self._before + num_frames]
        elif self._before or self._behind:
            x = self._convolved(F.pad(x, (0, 0, self._before, self._behind)))
            x = x[:, self._behind : self._behind + num_frames]
        else:
            x = self._convolved(x)
        return self._projected(x, frames)

    def _projected(self, x: Tensor, frames: Frames | None = None) -> Tensor:
        if isinstance(self.batch_norm, nn.LayerNorm):
            x = self.batch_norm(x)
        elif isinstance(self.batch_norm, MaskedGroupNorm):
            x = self.batch_norm(x.transpose(1, 2), frames).transpose(1, 2)
        else:
            x = self.batch_norm(x.transpose(1, 2)).transpose(1, 2)
        projected: Tensor = self.pointwise_conv2(F.silu(x))
        return projected

    def _convolved(self, x: Tensor) -> Tensor:
        """(B, T, D) to the same."""
        convolved: Tensor = self.depthwise_conv(x.transpose(1, 2)).transpose(1, 2)
        return convolved

    def stream_problem(self) -> str:
        """Why it cannot run in chunks; empty if it can."""
        if self._left < self.depthwise_conv.kernel_size[0] - 1:
            return "its convolutions see frames behind in each layer; conv_context_size: causal does not"
        if isinstance(self.batch_norm, MaskedGroupNorm):
            return "group normalisation averages over time; batch_norm and layer_norm do not"
        return ""

    def initial_state(self, batch: int) -> Tensor:
        """(B, S, D): what the depthwise convolution sees before the first frame."""
        return self._padding().expand(batch, self._left, -1)

    def _padding(self) -> Tensor:
        """(D,), of one frame."""
        bias = self.pointwise_conv1.bias
        if self._pads_input and bias is not None:
            return F.glu(bias.detach(), dim=0)
        return self.depthwise_conv.weight.new_zeros(self.depthwise_conv.num_channels)

    def step(self, x: Tensor, kept: Tensor, frames: ChunkFrames | None = None) -> tuple[Tensor, Tensor]:
        """The next frames (B, T, D), at least one, and those kept (B, S, D), to the same; ``frames``: in a graph."""
        x = torch.cat([kept, F.glu(self.pointwise_conv1(x), dim=2)], dim=1)
        if frames is not None:
            is_there = frames.is_there(x.shape[1] - self._left, self._left)
            x = torch.where(is_there.unsqueeze(2), x, self._padding())
        convolved = self.depthwise_conv.of_window(x.transpose(1, 2)).transpose(1, 2)
        return self._projected(convolved), x[:, x.shape[1] - self._left :]


def _normalization(norm: str, size: int) -> nn.Module:
    if norm == "layer_norm":
        return nn.LayerNorm(size)
    return BatchNorm(size) if norm == "batch_norm" else MaskedGroupNorm(int(norm.removeprefix("group_norm")), size)
