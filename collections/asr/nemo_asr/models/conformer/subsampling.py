"""Subsampling: from frames of features to fewer, wider ones. A step of 2 has a kernel of 3 frames, one of 3 of 5.

Convolutions see zeros behind an utterance.
"""

from __future__ import annotations

from functools import reduce
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp import custom_bwd, custom_fwd

from nemo_asr.models.jasper.layers import are_full, runs_on_cpu, valid_frames
from nemo_lite.backends.pytorch.streaming import ChunkFrames, SlidingWindow, State, larger
from nemo_lite.base.errors import UsageError
from nemo_lite.core.shapes import Size, ceil_div, floor_div


class _Step(NamedTuple):
    """Frames before and behind the input of a layer, those that its kernel sees, and those from one to the next."""

    left: int
    right: int
    kernel: int = 3
    stride: int = 2

    def lengths(self, lengths: Tensor) -> Tensor:
        """(B,) valid frames -> (B,)."""
        return ((lengths + (self.left + self.right - self.kernel)) // self.stride + 1).clamp(min=0)

    def size(self, size: Size) -> Size:
        """The same of one size, which may be symbolic."""
        padding = self.left + self.right
        if padding == self.kernel - 1:
            return ceil_div(size, self.stride)
        return floor_div(size + (padding - self.kernel), self.stride) + 1


_SAME, _CAUSAL, _UNPADDED, _UNPADDED_THIRD = _Step(1, 1), _Step(2, 1), _Step(0, 0), _Step(0, 0, 5, 3)


class SteppingConv2d(nn.Conv2d):
    """A convolution with steps over time and frequency, (B, C, T, F); padded alike on both axes."""

    def __init__(self, in_channels: int, out_channels: int, step: _Step, groups: int = 1) -> None:
        padding = step.left if step.left == step.right else 0
        super().__init__(in_channels, out_channels, step.kernel, stride=step.stride, padding=padding, groups=groups)
        self.frames = step
        self._sides = () if padding == step.left else (step.left, step.right) * 2

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T, F) -> (B, C_out, T', F')."""
        x = F.pad(x, self._sides) if self._sides else x
        is_halving = self.stride == (2, 2) and self.groups == 1
        if not is_halving or not runs_on_cpu(x) or self.weight.dtype.itemsize < 4:  # halves have no fast kernel
            return super().forward(x)
        out: Tensor = _HalvingConv.apply(x, self.weight, self.bias, self.padding[0])
        return out

    @property
    def window(self) -> SlidingWindow:
        """The frames of the input that an output sees."""
        left, right, kernel, stride = self.frames
        return SlidingWindow(kernel, stride, left, right)


class _HalvingConv(torch.autograd.Function):
    """A convolution of 3 x 3 with steps of 2, over memory (B, T, F, C): there the kernels of CPUs are fast.

    Two are not, and are products of matrices: the gradient of the weight, one product for each value of a kernel, and
    all of a convolution with one channel in.
    """

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]  # torch's
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
        x, weight = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (x, weight))
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        if x.shape[1] > 1:
            return F.conv2d(x, weight, bias, 2, padding)
        windows = _windows(x, padding)
        shape = len(x), len(weight), *windows.shape[1:3]
        out = torch.empty(shape, dtype=x.dtype, memory_format=torch.channels_last)
        torch.addmm(bias, windows.flatten(0, 2), weight.view(-1, 9).t(), out=out.permute(0, 2, 3, 1).flatten(0, 2))
        return out

    @staticmethod
    @custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]  # torch's
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient, padding = gradients[0].contiguous(memory_format=torch.channels_last), ctx.padding
        of_x, of_bias = None, gradient.sum((0, 2, 3))
        if ctx.needs_input_grad[0]:
            arguments = None, [2, 2], [padding, padding], [1, 1], False, [0, 0], 1, [True, False, False]
            of_x, _, _ = torch.ops.aten.convolution_backward(gradient, x, weight, *arguments)
        by_frame = gradient.permute(0, 2, 3, 1)
        if x.shape[1] == 1:
            of_weight = _windows(x, padding).flatten(0, 2).t() @ by_frame.flatten(0, 2)
            return of_x, of_weight.t().view_as(weight), of_bias, None
        of_weight = weight.new_zeros(3, 3, *weight.shape[:2])
        num_frames, num_features = gradient.shape[2:]
        padded = x.new_zeros(x.shape[2] + 2 * padding, x.shape[3] + 2 * padding, x.shape[1])
        inner = padded[padding : padding + x.shape[2], padding : padding + x.shape[3]]
        for utterance, of_output in zip(x.permute(0, 2, 3, 1), by_frame, strict=True):
            inner.copy_(utterance)
            for row, column in product(range(3), range(3)):
                seen = padded[row : row + 2 * num_frames - 1 : 2, column : column + 2 * num_features - 1 : 2]
                of_weight[row, column].addmm_(of_output.flatten(0, 1).t(), seen.flatten(0, 1))
        return of_x, of_weight.permute(2, 3, 0, 1), of_bias, None


def _windows(x: Tensor, padding: int) -> Tensor:
    """(B, 1, T, F) -> (B, T', F', 9): what each output of a convolution sees."""
    return F.pad(x.squeeze(1), [padding] * 4).unfold(1, 3, 2).unfold(2, 3, 2).flatten(3)


class ConvSubsampling(nn.Module):
    """2-D convolutions that divide time and frequency by 2 or 3 several times, and one linear layer over what is left.

    Sources: striding: Dong et al., "Speech-Transformer", ICASSP 2018; vggnet: Yeh et al., "Transformer-Transducer",
    2019; dw_striding: Rekesh et al., "Fast Conformer", ASRU 2023; conv2d: WeNet.

    Args:
        kind: striding, dw_striding, vggnet or conv2d.
        factor: frames in for one out: a power of 2, with conv2d also 6.
        feat_in: features of a frame.
        feat_out: channels of an encoded frame.
        channels: of the convolutions.
        is_causal: pad two frames before and one behind, on both axes.
        is_masked: each convolution sees zeros behind an utterance.

    Raises:
        UsageError: no features are left.
    """

    def __init__(
        self,
        kind: str,
        factor: int,
        feat_in: int,
        feat_out: int,
        channels: int,
        is_causal: bool = False,
        is_masked: bool = True,
    ) -> None:
        super().__init__()
        self.is_masked = is_masked
        step = _UNPADDED if kind == "conv2d" else _CAUSAL if is_causal else _SAME
        thirds = [_UNPADDED_THIRD] if factor % 3 == 0 else []
        layers: list[nn.Module] = []
        for index, each in enumerate([*[step] * (factor.bit_length() - 1 - len(thirds)), *thirds]):
            inputs = channels if index else 1
            if kind == "vggnet":
                layers += [nn.Conv2d(inputs, channels, 3, padding=1), nn.ReLU()]
                layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2, ceil_mode=True)]
            elif kind == "dw_striding" and index:
                layers += [SteppingConv2d(channels, channels, each, groups=channels)]
                layers += [nn.Conv2d(channels, channels, 1), nn.ReLU()]
            else:
                layers += [SteppingConv2d(inputs, channels, each), nn.ReLU()]
        self.conv = nn.Sequential(*layers)
        self._steps = [found for layer in layers if (found := _step_of(layer))]
        self._feat_in = feat_in
        num_features = self.size(feat_in)
        assert isinstance(num_features, int)
        if num_features < 1:
            wanted = f"as many features as {kind} by {factor} needs for one"
            raise UsageError("feat_in is too small", place="ConformerEncoder", got=str(feat_in), wanted=wanted)
        self.out = nn.Linear(channels * num_features, feat_out)

    def size(self, size: Size) -> Size:
        """Frames out for frames in; of features the same."""
        for step in self._steps:
            size = step.size(size)
        return size

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, F) and valid frames (B,) -> (B, T', D) and (B,).

        Without padding, fewer frames than the kernels see become one frame, which is not valid.
        """
        if _UNPADDED in self._steps:
            least = reduce(lambda number, step: (number - 1) * step.stride + step.kernel, self._steps[::-1], 1)
            x = F.pad(x, (0, 0, 0, larger(least - x.shape[1], 0)))
        x = x.unsqueeze(1)
        if self.is_masked:
            x = _masked(x, lengths)
        for layer in self.conv:
            if isinstance(layer, nn.ReLU):
                x = _relu(x, lengths if self.is_masked else None)
                continue
            x = layer(x)
            if step := _step_of(layer):
                lengths = step.lengths(lengths)
        encoded: Tensor = self.out(x.transpose(1, 2).flatten(2))
        return encoded, lengths

    @property
    def windows(self) -> list[SlidingWindow]:
        """What its layers see, one behind the other."""
        return [window for layer in self.conv if (window := _window_of(layer))]

    def initial_state(self, batch: int, first: int | None = None) -> State:
        """Each layer sees its own padding before its first frame; ``first``: see `SlidingWindow.initial`."""
        state: dict[str, Tensor] = {}
        channels, size = 1, self._feat_in
        for index, layer in enumerate(self.conv):
            if window := _window_of(layer):
                state[str(index)] = window.initial((batch, channels, 0, size), 2, self.out.weight, first=first)
                first = None if first is None else window.first(first)
                if step := _step_of(layer):
                    divided = step.size(size)
                    assert isinstance(divided, int)
                    size = divided
            channels = layer.out_channels if isinstance(layer, nn.Conv2d) else channels
        return state

    def step(
        self, x: Tensor, state: State, last: bool, frames: ChunkFrames | None = None
    ) -> tuple[Tensor, State, ChunkFrames | None]:
        """The next frames (B, T, F), in a graph those of ``frames``, to (B, T', D) and theirs."""
        x, new_state = _hidden(x.unsqueeze(1), frames), {}
        for index, layer in enumerate(self.conv):
            if window := _window_of(layer):
                x, new_state[str(index)] = window.take(state[str(index)], x, 2, last)
                x = _of_window(layer, x)
                frames = frames and frames.behind(window)
            elif x.shape[2]:
                x = layer(x)
                if isinstance(layer, nn.ReLU):
                    x = _hidden(x, frames)
        return self.out(x.transpose(1, 2).flatten(2)), new_state, frames


def _step_of(layer: nn.Module) -> _Step | None:
    """How a layer of subsampling changes the number of frames; None: not at all."""
    if isinstance(layer, SteppingConv2d):
        return layer.frames
    return _SAME if isinstance(layer, nn.MaxPool2d) else None


def _window_of(layer: nn.Module) -> SlidingWindow | None:
    """The frames that an output of a layer of subsampling sees; None: that in its own place."""
    if isinstance(layer, SteppingConv2d):
        return layer.window
    if isinstance(layer, nn.MaxPool2d):
        return SlidingWindow(2, 2, 0, 1)  # 0 behind the last frame, as it pools what ReLU gives
    return SlidingWindow(3, 1, 1, 1) if isinstance(layer, nn.Conv2d) and layer.kernel_size[0] > 1 else None


def _of_window(layer: nn.Module, x: Tensor) -> Tensor:
    """A layer without padding along time: frames (B, C, T, F) of :func:`_window_of`, or none, to (B, C_out, T', F')."""
    if not x.shape[2]:
        return _of_window(layer, F.pad(x, (0, 0, 0, 5)))[:, :, :0]
    if isinstance(layer, nn.Conv2d):
        left, right = layer.frames[:2] if isinstance(layer, SteppingConv2d) else (1, 1)
        return F.conv2d(F.pad(x, (left, right)), layer.weight, layer.bias, layer.stride, 0, 1, layer.groups)
    pooled: Tensor = layer(x)
    return pooled


def _hidden(x: Tensor, frames: ChunkFrames | None) -> Tensor:
    """(B, C, T, F) of a chunk with zeros where frames are not of the recording."""
    return x if frames is None else torch.where(frames.is_there(x.shape[2])[:, None, :, None], x, 0.0)


def _masked(x: Tensor, lengths: Tensor) -> Tensor:
    """(B, C, T, F) with zeros behind each utterance."""
    if are_full(lengths, x.shape[2]):
        return x
    return torch.where(valid_frames(lengths, x.shape[2]).unsqueeze(3), x, 0.0)


def _relu(x: Tensor, lengths: Tensor | None) -> Tensor:
    """ReLU of a convolution's output (B, C, T, F), with zeros behind each utterance; on CPU it takes its place."""
    if runs_on_cpu(x):
        out: Tensor = _MaskedRelu.apply(x, None if lengths is None else lengths.tolist())
        return out
    return F.relu(x) if lengths is None else _masked(F.relu(x), lengths)


class _MaskedRelu(torch.autograd.Function):
    """The gradient is that of ReLU alone: what was set to 0 is not above 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lengths: list[int] | None) -> Tensor:
        out = x.relu_()
        for row, length in zip(out, lengths or [], strict=False):
            row[:, length:] = 0
        ctx.mark_dirty(out)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(gradients[0], out, 0), None


class StackingSubsampling(nn.Module):
    """Several frames side by side, and one linear layer over them; the last ones are filled up with zeros.

    Args:
        factor: frames in one.
        feat_in: features of a frame.
        feat_out: channels of an encoded frame.
        is_normed: normalise each frame first.
    """

    def __init__(self, factor: int, feat_in: int, feat_out: int, is_normed: bool = False) -> None:
        super().__init__()
        self.factor = factor
        self.pre_norm = nn.LayerNorm(feat_in) if is_normed else None
        self.proj_out = nn.Linear(factor * feat_in, feat_out)

    def size(self, num_frames: Size) -> Size:
        """Frames out for frames in."""
        return ceil_div(num_frames, self.factor)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, F) and valid frames (B,) -> (B, ceil(T / factor), D) and (B,)."""
        x = _masked(x.unsqueeze(1), lengths).squeeze(1)
        x = F.pad(x, (0, 0, 0, -x.shape[1] % self.factor))
        if self.pre_norm is not None:
            x = self.pre_norm(x)
        return self._stacked(x), (lengths + self.factor - 1) // self.factor

    def _stacked(self, x: Tensor) -> Tensor:
        encoded: Tensor = self.proj_out(x.reshape(x.shape[0], x.shape[1] // self.factor, self.factor * x.shape[2]))
        return encoded

    @property
    def windows(self) -> list[SlidingWindow]:
        """Frames that become one."""
        return [SlidingWindow(self.factor, self.factor, 0, self.factor - 1)]

    def initial_state(self, batch: int, first: int | None = None) -> State:
        """No frame waits for others."""
        return {"frames": self.proj_out.weight.new_zeros(batch, 0, self.proj_out.in_features // self.factor)}

    def step(
        self, x: Tensor, state: State, last: bool, frames: ChunkFrames | None = None
    ) -> tuple[Tensor, State, ChunkFrames | None]:
        """The next frames (B, T, F), in a graph those of ``frames``, to (B, T', D) and theirs."""
        x = torch.cat([state["frames"], _hidden(x.unsqueeze(1), frames).squeeze(1)], dim=1)
        if last:
            x = F.pad(x, (0, 0, 0, -x.shape[1] % self.factor))
        number = x.shape[1] // self.factor * self.factor
        whole, rest = x[:, :number], x[:, number:]
        normed = whole if self.pre_norm is None else self.pre_norm(whole)
        return self._stacked(normed), {"frames": rest}, frames and frames.behind(self.windows[0])


class LinearInput(nn.Linear):
    """As many frames out as in."""

    @property
    def windows(self) -> list[SlidingWindow]:
        """None: each frame is for itself."""
        return []

    def initial_state(self, batch: int, first: int | None = None) -> State:
        """Nothing is kept."""
        return {}

    def step(
        self, x: Tensor, state: State, last: bool, frames: ChunkFrames | None = None
    ) -> tuple[Tensor, State, ChunkFrames | None]:
        """The next frames (B, T, F) to (B, T, D)."""
        return super().forward(x), state, frames

    def size(self, num_frames: Size) -> Size:
        """Frames out for frames in."""
        return num_frames

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # as the others
        """(B, T, F) and valid frames (B,) -> (B, T, D) and (B,)."""
        return super().forward(x), lengths
