"""The layer, and its feed-forward modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp import custom_bwd, custom_fwd

from nemo_asr.models.conformer.convolution import ConvolutionModule
from nemo_asr.models.conformer.self_attention import Hidden, add_dropped, kept_at_random
from nemo_asr.models.jasper.layers import Frames, runs_on_cpu
from nemo_lite.backends.pytorch.streaming import ChunkFrames, State


class FeedForward(nn.Module):
    """Linear, SiLU, dropout, linear."""

    def __init__(self, size: int, hidden_size: int, dropout: float, use_bias: bool = True) -> None:
        super().__init__()
        self.dropout = dropout
        self.linear1 = nn.Linear(size, hidden_size, bias=use_bias)
        self.linear2 = nn.Linear(hidden_size, size, bias=use_bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to the same."""
        hidden, last = self.linear1(x), self.linear2
        if self.training and self.dropout and runs_on_cpu(x):
            out: Tensor = _SiluDropoutLinear.apply(hidden, last.weight, last.bias, self.dropout)
        else:
            out = last(F.dropout(F.silu(hidden), self.dropout, self.training))
        return out


class _SiluDropoutLinear(torch.autograd.Function):
    """Of the wide tensors, the input is kept, and a byte for each value that dropout keeps."""

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]  # torch's
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
        kept, ctx.scale = kept_at_random(x.shape, dropout)
        ctx.save_for_backward(x, weight, kept)
        out = F.linear(F.silu(x).mul_(kept), weight).mul_(ctx.scale)
        return out if bias is None else out.add_(bias)

    @staticmethod
    @custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]  # torch's
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, kept = ctx.saved_tensors
        gradient = gradients[0].flatten(0, 1)
        of_bias = gradient.sum(0) if ctx.needs_input_grad[2] else None
        gradient = gradient * ctx.scale
        of_weight = gradient.t() @ F.silu(x).mul_(kept).flatten(0, 1)
        of_hidden = (gradient @ weight).view(x.shape).mul_(kept)
        return torch.ops.aten.silu_backward(of_hidden, x), of_weight, of_bias, None


class Dropouts(NamedTuple):
    """Probabilities: inside of feed-forward modules, and behind each module."""

    inside: float = 0.0
    feed_forward: float = 0.0
    attention: float = 0.0
    convolution: float = 0.0


class Residuals(NamedTuple):
    """What a module's input and output are multiplied by before they are added."""

    feed_forward: tuple[float, float] = (1.0, 0.5)
    convolution: tuple[float, float] = (1.0, 1.0)


_USUAL = Residuals()


class ConformerLayer(nn.Module):
    """Half a feed-forward module, attention, convolution, the other half; each adds to its input, normalised before.

    Args:
        size: channels.
        feed_forward_size: channels inside of a feed-forward module.
        attention: the attention module.
        convolution: the convolution module.
        dropouts: probability of each dropout.
        use_bias: biases of the feed-forward modules.
        residuals: in which shares modules add to their input.
        norm: makes the normalisation of so many channels.
    """

    def __init__(
        self,
        size: int,
        feed_forward_size: int,
        attention: nn.Module,
        convolution: nn.Module,
        dropouts: Dropouts,
        use_bias: bool = True,
        residuals: Residuals = _USUAL,
        norm: Callable[[int], nn.LayerNorm] = nn.LayerNorm,
    ) -> None:
        super().__init__()
        self.norm_feed_forward1 = norm(size)
        self.feed_forward1 = FeedForward(size, feed_forward_size, dropouts.inside, use_bias)
        self.norm_self_att = norm(size)
        self.self_attn = attention
        self.norm_conv = norm(size)
        self.conv = convolution
        self.norm_feed_forward2 = norm(size)
        self.feed_forward2 = FeedForward(size, feed_forward_size, dropouts.inside, use_bias)
        self.dropouts, self.residuals = dropouts, residuals
        self.norm_out = norm(size)

    def forward(self, x: Tensor, frames: Frames, positions: Tensor | None, hidden: Hidden | None) -> Tensor:
        """(B, T, D) to the same."""
        dropouts, of_halves = self.dropouts if self.training else Dropouts(), self.residuals.feed_forward
        x = _added(x, self.feed_forward1(self.norm_feed_forward1(x)), dropouts.feed_forward, of_halves)
        x = add_dropped(x, self.self_attn(self.norm_self_att(x), positions, hidden), dropouts.attention)
        x = self._convolved(x, frames, dropouts.convolution)
        x = _added(x, self.feed_forward2(self.norm_feed_forward2(x)), dropouts.feed_forward, of_halves)
        normed: Tensor = self.norm_out(x)
        return normed

    def _convolved(self, x: Tensor, frames: Frames, dropout: float) -> Tensor:
        return _added(x, self.conv(self.norm_conv(x), frames), dropout, self.residuals.convolution)

    def stream_problem(self) -> str:
        """Why its convolution cannot run in chunks; empty if it can."""
        return self._conv().stream_problem()

    def _conv(self) -> ConvolutionModule:
        assert isinstance(self.conv, ConvolutionModule), "only these run in chunks"
        return self.conv

    def initial_state(self, batch: int) -> State:
        """No frames that attention sees, and those of the convolution."""
        size = self.norm_out.weight.shape[0]
        return {"attention": self.norm_out.weight.new_zeros(batch, 0, size), "conv": self._conv().initial_state(batch)}

    def step(
        self,
        x: Tensor,
        positions: Tensor,
        hidden: Hidden,
        state: State,
        most_kept: int,
        frames: ChunkFrames | None = None,
    ) -> tuple[Tensor, State]:
        """The next frames (B, T, D), at least one, to the same; ``most_kept`` frames stay for attention."""
        x = x + 0.5 * self.feed_forward1(self.norm_feed_forward1(x))
        normed = self.norm_self_att(x)
        seen = torch.cat([state["attention"], normed], dim=1)
        x = x + self.self_attn(normed, positions, hidden, seen)
        convolved, conv = self._conv().step(self.norm_conv(x), state["conv"], frames)
        x = x + convolved
        x = x + 0.5 * self.feed_forward2(self.norm_feed_forward2(x))
        return self.norm_out(x), {"attention": seen[:, max(seen.shape[1] - most_kept, 0) :], "conv": conv}


def _added(x: Tensor, y: Tensor, dropout: float, shares: tuple[float, float]) -> Tensor:
    """The input and the output of a module, each times its share."""
    return add_dropped(x if shares[0] == 1.0 else x * shares[0], y, dropout, shares[1])
