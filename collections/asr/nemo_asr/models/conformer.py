"""Conformer from the bottom to the top: subsampling, positions, attention, convolution, layer, encoder. No decoders.

NVIDIA's Conformer and FastConformer and WeNet's Conformer and U2++ are settings of one encoder. Inside it tensors are
(B, T, D). Frames behind an utterance never reach its own: subsampling and convolutions see zeros there, attention
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import product
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp import custom_bwd, custom_fwd

from nemo_asr.arguments import Channels, refuse_too_large
from nemo_asr.models.jasper import (
    BatchNorm,
    Frames,
    MaskedGroupNorm,
    TimeConv1d,
    encoded_ports,
    frames_type,
    intermediate_of,
    runs_on_cpu,
)
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.backends.pytorch.streaming import (
    ChunkFrames,
    Delay,
    SlidingWindow,
    State,
    frames_in_graph,
    keyed,
    num_new,
    prefixed,
)
from nemo_lite.config import Between
from nemo_lite.core.neural_types import LengthsType, NeuralType, SpectrogramType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, Size, ceil_div, floor_div
from nemo_lite.errors import UsageError

_PLACE = "ConformerEncoder"

Probability: TypeAlias = Annotated[float, Between(0, 1, below=True)]
Context: TypeAlias = Annotated[int, Between(0, 1_000_000, also=(-1,))]  # encoded frames; -1: all
SubsamplingName: TypeAlias = Literal["striding", "dw_striding", "vggnet", "stacking", "stacking_norm", "conv2d"]
AttentionName: TypeAlias = Literal["rel_pos", "rel_pos_no_shift"]
ContextStyle: TypeAlias = Literal["regular", "chunked_limited"]


# Subsampling: from frames of features to fewer, wider ones. A step of 2 has a kernel of 3 frames.


class _Halving(NamedTuple):
    """Frames before and behind the input of a step that halves their number."""

    left: int
    right: int

    def lengths(self, lengths: Tensor) -> Tensor:
        """(B,) valid frames -> (B,)."""
        return ((lengths + (self.left + self.right - 3)) // 2 + 1).clamp(min=0)

    def size(self, size: Size) -> Size:
        """The same of one size, which may be symbolic."""
        padding = self.left + self.right
        return ceil_div(size, 2) if padding == 2 else floor_div(size + (padding - 3), 2) + 1


_SAME, _CAUSAL, _UNPADDED = _Halving(1, 1), _Halving(2, 1), _Halving(0, 0)


class HalvingConv2d(nn.Conv2d):
    """A convolution of 3 x 3 with steps of 2 over time and frequency, (B, C, T, F); padded alike on both axes."""

    def __init__(self, in_channels: int, out_channels: int, halving: _Halving, groups: int = 1) -> None:
        padding = halving.left if halving.left == halving.right else 0
        super().__init__(in_channels, out_channels, 3, stride=2, padding=padding, groups=groups)
        self.halving = halving
        self._sides = () if padding == halving.left else (*halving, *halving)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T, F) -> (B, C_out, T', F')."""
        x = F.pad(x, self._sides) if self._sides else x
        if self.groups > 1 or not runs_on_cpu(x) or self.weight.dtype.itemsize < 4:  # halves have no fast kernel
            return super().forward(x)
        out: Tensor = _HalvingConv.apply(x, self.weight, self.bias, self.padding[0])  # type: ignore[no-untyped-call]  # torch's
        return out

    @property
    def window(self) -> SlidingWindow:
        """The frames of the input that an output sees."""
        return SlidingWindow(3, 2, *self.halving)


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
    """2-D convolutions that halve time and frequency several times, and one linear layer over what is left.

    Sources: striding: Dong et al., "Speech-Transformer", ICASSP 2018; vggnet: Yeh et al., "Transformer-Transducer",
    2019; dw_striding: Rekesh et al., "Fast Conformer", ASRU 2023; conv2d: WeNet.

    Args:
        kind: striding, dw_striding, vggnet or conv2d.
        num_halvings: 2 for a quarter of the frames.
        feat_in: features of a frame.
        feat_out: channels of an encoded frame.
        channels: of the convolutions.
        is_causal: pad two frames before and one behind, on both axes.
        is_masked: each convolution sees zeros behind an utterance.
    """

    def __init__(
        self,
        kind: str,
        num_halvings: int,
        feat_in: int,
        feat_out: int,
        channels: int,
        is_causal: bool = False,
        is_masked: bool = True,
    ) -> None:
        super().__init__()
        self.halving = _UNPADDED if kind == "conv2d" else _CAUSAL if is_causal else _SAME
        self.num_halvings, self.is_masked = num_halvings, is_masked
        layers: list[nn.Module] = []
        for index in range(num_halvings):
            inputs = channels if index else 1
            if kind == "vggnet":
                layers += [nn.Conv2d(inputs, channels, 3, padding=1), nn.ReLU()]
                layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2, ceil_mode=True)]
            elif kind == "dw_striding" and index:
                layers += [HalvingConv2d(channels, channels, self.halving, groups=channels)]
                layers += [nn.Conv2d(channels, channels, 1), nn.ReLU()]
            else:
                layers += [HalvingConv2d(inputs, channels, self.halving), nn.ReLU()]
        self.conv = nn.Sequential(*layers)
        self._feat_in = feat_in
        num_features = self.size(feat_in)
        assert isinstance(num_features, int)
        self.out = nn.Linear(channels * num_features, feat_out)

    def size(self, size: Size) -> Size:
        """Frames out for frames in; of features the same."""
        for _ in range(self.num_halvings):
            size = self.halving.size(size)
        return size

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, F) and valid frames (B,) -> (B, T', D) and (B,).

        Without padding, fewer frames than the kernels see become one frame, which is not valid.
        """
        if self.halving == _UNPADDED:
            least = 2 ** (self.num_halvings + 1) - 1
            # torch.sym_max is for sizes that an exporter leaves open; it has no types.
            x = F.pad(x, (0, 0, 0, torch.sym_max(least - x.shape[1], 0)))  # type: ignore[no-untyped-call]
        x = x.unsqueeze(1)
        if self.is_masked:
            x = _masked(x, lengths)
        for layer in self.conv:
            if isinstance(layer, nn.ReLU):
                x = _relu(x, lengths if self.is_masked else None)
                continue
            x = layer(x)
            if isinstance(layer, (HalvingConv2d, nn.MaxPool2d)):
                lengths = self.halving.lengths(lengths)
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
                if window.stride > 1:
                    halved = self.halving.size(size)
                    assert isinstance(halved, int)
                    size = halved
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


def _window_of(layer: nn.Module) -> SlidingWindow | None:
    """The frames that an output of a layer of subsampling sees; None: that in its own place."""
    if isinstance(layer, HalvingConv2d):
        return layer.window
    if isinstance(layer, nn.MaxPool2d):
        return SlidingWindow(2, 2, 0, 1)  # 0 behind the last frame, as it pools what ReLU gives
    return SlidingWindow(3, 1, 1, 1) if isinstance(layer, nn.Conv2d) and layer.kernel_size[0] > 1 else None


def _of_window(layer: nn.Module, x: Tensor) -> Tensor:
    """A layer without padding along time: frames (B, C, T, F) of :func:`_window_of`, or none, to (B, C_out, T', F')."""
    if not x.shape[2]:
        return _of_window(layer, F.pad(x, (0, 0, 0, 3)))[:, :, :0]
    if isinstance(layer, nn.Conv2d):
        sides = layer.halving if isinstance(layer, HalvingConv2d) else _SAME
        return F.conv2d(F.pad(x, sides), layer.weight, layer.bias, layer.stride, 0, 1, layer.groups)
    pooled: Tensor = layer(x)
    return pooled


def _hidden(x: Tensor, frames: ChunkFrames | None) -> Tensor:
    """(B, C, T, F) of a chunk with zeros where frames are not of the recording."""
    return x if frames is None else torch.where(frames.is_there(x.shape[2])[:, None, :, None], x, 0.0)


def _masked(x: Tensor, lengths: Tensor) -> Tensor:
    """(B, C, T, F) with zeros behind each utterance."""
    if are_full(lengths, x.shape[2]):
        return x
    return torch.where(_valid(lengths, x.shape[2])[:, None, :, None], x, 0.0)


def _relu(x: Tensor, lengths: Tensor | None) -> Tensor:
    """ReLU of a convolution's output (B, C, T, F), with zeros behind each utterance; on CPU it takes its place."""
    if runs_on_cpu(x):
        out: Tensor = _MaskedRelu.apply(x, None if lengths is None else lengths.tolist())  # type: ignore[no-untyped-call]  # torch's
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


def are_full(lengths: Tensor, num_frames: int) -> bool:
    """Whether it is known that no utterance is shorter than its batch; only on CPU is it looked at."""
    return runs_on_cpu(lengths) and int(lengths.min()) >= num_frames


def _valid(lengths: Tensor, num_frames: int) -> Tensor:
    """(B, T): True where a frame belongs to the utterance."""
    return torch.arange(num_frames, device=lengths.device) < lengths.unsqueeze(1)


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


# Dropout. On CPU drawing its random numbers takes a fifth of a training step with torch's generator of Bernoulli
# numbers, which draws 64 bits for each; 16 bits do.


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


# Attention: which frames see which, how far they are apart, and the attention itself.


class Hidden(NamedTuple):
    """Which frames do not see which, made once a batch.

    Attributes:
        keys: (B or 1, 1, T or 1, T), what is added to scores: 0 where a frame (third axis) sees another (last axis).
        rows: (B or 1, 1, T or 1, 1), True where a frame sees none.
    """

    keys: Tensor
    rows: Tensor

    def of_rows(self, rows: slice) -> Hidden:
        """The same for some frames."""
        return Hidden(*(part if part.shape[2] == 1 else part[:, :, rows] for part in self))


class AttentionContext(NamedTuple):
    """How far frames see: whole numbers, or tensors that were drawn.

    Frames are in chunks of ``chunk``. A frame sees its own chunk, ``left`` chunks before it and ``right`` behind it.
    """

    chunk: int | Tensor
    left: int | Tensor
    right: int | Tensor

    @property
    def is_full(self) -> bool:
        """Whether each frame sees all others; tensors are not looked at."""
        return all(isinstance(side, int) and side >= _ALL for side in (self.left, self.right))


_ALL = 1 << 30  # chunks: as many as there are

FULL_CONTEXT = AttentionContext(1, _ALL, _ALL)


_HIDDEN = -3e4  # a score whose exponential is 0 in every type, half types too, and which they can hold


def hidden_frames(lengths: Tensor, num_frames: int, context: AttentionContext) -> Hidden | None:
    """What each frame does not see: other than the frames of its utterance, within its context. None: it sees all.

    Args:
        lengths: (B,), valid frames.
        num_frames: T.
        context: how far frames see.
    """
    if context.is_full and are_full(lengths, num_frames):
        return None
    sees = _valid(lengths, num_frames)[:, None, None, :]
    if not context.is_full:
        chunk = torch.arange(num_frames, device=lengths.device) // context.chunk
        chunks_back = chunk.unsqueeze(1) - chunk
        sees = sees & (chunks_back <= context.left) & (chunks_back >= -context.right)
    is_hidden = sees.logical_not()
    return Hidden(is_hidden * _HIDDEN, is_hidden.all(-1, keepdim=True))


def position_embeddings(first: int | Tensor, count: int, step: int, size: int, device: torch.device) -> Tensor:
    """(count, size): sines and cosines, in turn, of the positions first, first + step, ...

    For several ``first`` (B, 1) it is (B, count, size).

    Source: Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.5.
    """
    positions = first + step * torch.arange(count, dtype=torch.float32, device=device)
    frequencies = torch.exp(torch.arange(0, size, 2, dtype=torch.float32, device=device) * (-math.log(1e4) / size))
    angles = positions.unsqueeze(-1) * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


_ALL_ROWS = slice(None)
_MOST_SCORES = 1 << 24  # 64 MB in float32; an hour of speech at once would have 2 ** 32 for each head


def _blocks(key: Tensor) -> list[slice]:
    """The queries in blocks, so that without gradients memory grows with the frames and not with their square."""
    num_utterances, num_heads, num_frames, _ = key.shape
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch._C._is_tracing():
        return [_ALL_ROWS]
    size = max(_MOST_SCORES // (num_utterances * num_heads * num_frames), 1)
    if size >= num_frames:
        return [_ALL_ROWS]
    return [slice(start, min(start + size, num_frames)) for start in range(0, num_frames, size)]


class RelPositionAttention(nn.Module):
    """Multi-head attention whose scores know how far two frames are apart.

    ``score = ((q + u) k + (q + v) p) / sqrt(d)``, with p of the distance (``is_shifted``), or, as WeNet has it, of the
    position of the key from the start of the utterance. A frame that sees none gets 0 from attention.

    Source: Dai et al., "Transformer-XL", ACL 2019, section 3.3.

    Args:
        num_heads: heads.
        size: channels.
        dropout: probability, of attention weights.
        use_bias: biases of queries, keys, values and output.
        is_shifted: p is that of the distance.
        pos_biases: u and v (heads, size / heads) of all layers together; None: the layer's own.
    """

    def __init__(
        self,
        num_heads: int,
        size: int,
        dropout: float = 0.0,
        use_bias: bool = True,
        is_shifted: bool = True,
        pos_biases: Sequence[nn.Parameter] | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.dropout, self._is_shifted = num_heads, dropout, is_shifted
        self.linear_q = nn.Linear(size, size, bias=use_bias)
        self.linear_k = nn.Linear(size, size, bias=use_bias)
        self.linear_v = nn.Linear(size, size, bias=use_bias)
        self.linear_out = nn.Linear(size, size, bias=use_bias)
        self.linear_pos = nn.Linear(size, size, bias=False)
        self.pos_bias_u, self.pos_bias_v = pos_biases or new_pos_biases(num_heads, size)

    def forward(self, x: Tensor, positions: Tensor, hidden: Hidden | None, context: Tensor | None = None) -> Tensor:
        """(B, T, D) to the same; positions (P, D) or (B, P, D) as :meth:`ConformerEncoder.positions` gives them.

        ``context`` (B, S, D) are the frames that are seen, of which x are the last; None: x alone.
        """
        seen = x if context is None else context
        query, key, value = (
            self._heads(self.linear_q(x)),
            self._heads(self.linear_k(seen)),
            self._heads(self.linear_v(seen)),
        )
        scale = query.shape[3] ** -0.5
        query = query * scale
        placed = self.linear_pos(positions)
        places = self._heads(placed if placed.dim() == 3 else placed.unsqueeze(0)).transpose(2, 3)
        pos_bias_u, pos_bias_v = ((bias * scale).unsqueeze(1) for bias in (self.pos_bias_u, self.pos_bias_v))
        with_u, with_v = query + pos_bias_u, query + pos_bias_v
        dropout = self.dropout if self.training else 0.0
        outputs = []
        for rows in _blocks(key):
            bias = with_v[:, :, rows] @ (self._of_rows(places, rows) if self._is_shifted else places)
            if self._is_shifted:
                bias = shifted(bias)
            hidden_here = None if hidden is None else hidden.of_rows(rows)
            outputs.append(attention(with_u[:, :, rows], key, value, bias, hidden_here, dropout))
        out = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
        attended: Tensor = self.linear_out(out.transpose(1, 2).flatten(2))
        return attended

    def _of_rows(self, places: Tensor, rows: slice) -> Tensor:
        """Of the distances T, ..., 1 - T (the last axis) those between the frames ``rows`` and all T."""
        if rows == _ALL_ROWS:
            return places
        num_frames = places.shape[3] // 2
        return places[..., num_frames - rows.stop : 2 * num_frames - rows.start]

    def _heads(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, heads, T, D / heads)."""
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


def new_pos_biases(num_heads: int, size: int) -> tuple[nn.Parameter, nn.Parameter]:
    """u and v, (heads, size / heads), zeros."""
    shape = num_heads, size // num_heads
    return nn.Parameter(torch.zeros(shape)), nn.Parameter(torch.zeros(shape))


def attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, hidden: Hidden | None, dropout: float) -> Tensor:
    """``softmax(query key + bias) value`` over the keys that a query sees; 0 where it sees none.

    Args:
        query: (B, H, T, D), scaled.
        key, value: (B, H, S, D).
        bias: (B, H, T, S).
        hidden: what queries do not see.
        dropout: probability, of attention weights.
    """
    if runs_on_cpu(query) and bias.requires_grad:
        # No kernel on CPU gives gradients of a bias.
        hidden_keys = None if hidden is None else hidden.keys
        out: Tensor = _Attention.apply(query, key, value, bias, hidden_keys, dropout)  # type: ignore[no-untyped-call]  # torch's
    else:
        added = bias if hidden is None else bias + hidden.keys.to(bias.dtype)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=added, dropout_p=dropout, scale=1.0)
    return out if hidden is None else out.masked_fill(hidden.rows, 0.0)


class _Attention(torch.autograd.Function):
    """Of the tensors that are as large as all scores, the weights are kept, and a byte for each that dropout keeps."""

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]  # torch's
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, hidden: Tensor | None, dropout: float
    ) -> Tensor:
        flat_query, flat_key, flat_value = (x.flatten(0, 1) for x in (query, key, value))
        scores = torch.baddbmm(bias.flatten(0, 1), flat_query, flat_key.transpose(1, 2)).view(bias.shape)
        if hidden is not None:
            scores.add_(hidden)
        weights, kept = scores.softmax(3).flatten(0, 1), None
        used = weights
        if dropout:
            kept, ctx.scale = kept_at_random(weights.shape, dropout)
            used = torch.mul(weights, kept)
        out = used @ flat_value
        ctx.save_for_backward(flat_query, flat_key, flat_value, weights, kept)
        return (out.mul_(ctx.scale) if dropout else out).view(query.shape)

    @staticmethod
    @custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]  # torch's
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, kept = ctx.saved_tensors
        shape, gradient = gradients[0].shape, gradients[0].flatten(0, 1)
        used = weights
        if kept is not None:
            gradient, used = gradient * ctx.scale, torch.mul(weights, kept)
        of_value = used.transpose(1, 2) @ gradient
        del used
        of_weights = gradient @ value.transpose(1, 2)
        if kept is not None:
            of_weights.mul_(kept)
        of_scores = torch._softmax_backward_data(of_weights, weights, 2, weights.dtype)
        of_query, of_key = of_scores @ key, of_scores.transpose(1, 2) @ query
        of_inputs = (x.unflatten(0, shape[:2]) for x in (of_query, of_key, of_value, of_scores))
        return *of_inputs, None, None


def shifted(scores: Tensor) -> Tensor:
    """From scores of distances (..., T, S + T) to scores of keys (..., T, S): ``out[i, j] = scores[i, T - i + j]``.

    The distances are S, ..., 1 - T; the last T of the S keys stand where the queries do. No value is copied.
    """
    if runs_on_cpu(scores) and scores.requires_grad:
        view: Tensor = _Shifted.apply(scores)  # type: ignore[no-untyped-call]  # torch's
        return view
    return _shifted(scores)


def _shifted(scores: Tensor) -> Tensor:
    num_queries, num_distances = scores.shape[-2:]
    flat = scores.flatten(-2)[..., num_queries:]
    return flat.view(*scores.shape[:-1], num_distances - 1)[..., : num_distances - num_queries]


class _Shifted(torch.autograd.Function):
    """:func:`_shifted` whose gradient is written once."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        ctx.shape = scores.shape
        return _shifted(scores)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = gradients[0].new_zeros(ctx.shape)
        _shifted(gradient).copy_(gradients[0])
        return gradient


# The other parts of a layer, and the layer.


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
            out: Tensor = _SiluDropoutLinear.apply(hidden, last.weight, last.bias, self.dropout)  # type: ignore[no-untyped-call]  # torch's
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


class ConformerLayer(nn.Module):
    """Half a feed-forward module, attention, convolution, the other half; each adds to its input, normalised before.

    Args:
        size: channels.
        feed_forward_size: channels inside of a feed-forward module.
        attention: the attention module.
        convolution: the convolution module.
        dropout: probability, behind each module.
        use_bias: biases of the feed-forward modules.
    """

    def __init__(
        self,
        size: int,
        feed_forward_size: int,
        attention: RelPositionAttention,
        convolution: ConvolutionModule,
        dropout: float,
        use_bias: bool = True,
    ) -> None:
        super().__init__()
        self.norm_feed_forward1 = nn.LayerNorm(size)
        self.feed_forward1 = FeedForward(size, feed_forward_size, dropout, use_bias)
        self.norm_self_att = nn.LayerNorm(size)
        self.self_attn = attention
        self.norm_conv = nn.LayerNorm(size)
        self.conv = convolution
        self.norm_feed_forward2 = nn.LayerNorm(size)
        self.feed_forward2 = FeedForward(size, feed_forward_size, dropout, use_bias)
        self.dropout = dropout
        self.norm_out = nn.LayerNorm(size)

    def forward(self, x: Tensor, frames: Frames, positions: Tensor, hidden: Hidden | None) -> Tensor:
        """(B, T, D) to the same."""
        dropout = self.dropout if self.training else 0.0
        x = add_dropped(x, self.feed_forward1(self.norm_feed_forward1(x)), dropout, 0.5)
        x = add_dropped(x, self.self_attn(self.norm_self_att(x), positions, hidden), dropout)
        x = add_dropped(x, self.conv(self.norm_conv(x), frames), dropout)
        x = add_dropped(x, self.feed_forward2(self.norm_feed_forward2(x)), dropout, 0.5)
        normed: Tensor = self.norm_out(x)
        return normed

    def initial_state(self, batch: int) -> State:
        """No frames that attention sees, and those of the convolution."""
        size = self.norm_out.weight.shape[0]
        return {"attention": self.norm_out.weight.new_zeros(batch, 0, size), "conv": self.conv.initial_state(batch)}

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
        convolved, conv = self.conv.step(self.norm_conv(x), state["conv"], frames)
        x = x + convolved
        x = x + 0.5 * self.feed_forward2(self.norm_feed_forward2(x))
        return self.norm_out(x), {"attention": seen[:, max(seen.shape[1] - most_kept, 0) :], "conv": conv}


class ConformerEncoder(TrainableNM):
    """Subsampling and a stack of Conformer layers over spectrogram frames.

    Shapes: B utterances, D features, T frames in, C channels, U frames out. U is ``ceil(T / subsampling_factor)``, but
    with causal subsampling ``T // 2 + 1`` after each halving, and with conv2d ``(T - 1) // 2``.

    The arguments are those of NeMo's class of this name; the last ones, and the names of their own, are for WeNet's.

    Sources: Gulati et al., "Conformer", Interspeech 2020; Rekesh et al., "Fast Conformer", ASRU 2023; Noroozi et al.,
    "Stateful Conformer with Cache-based Inference for Streaming ASR", ICASSP 2024 (contexts); Zhang et al., "Unified
    Streaming and Non-streaming Two-pass End-to-end Model", 2020 (dynamic chunks).

    Args:
        feat_in: features of a frame.
        n_layers: Conformer layers.
        d_model: channels inside.
        feat_out: channels of the output; with -1, or ``d_model``, there is no layer that changes them.
        causal_downsampling: subsampling sees no frames behind; for striding and dw_striding.
        subsampling: striding, dw_striding, vggnet, stacking, stacking_norm, or conv2d, WeNet's without padding.
        subsampling_factor: frames in for one out: a power of 2, or for stacking any; 1: one linear layer.
        subsampling_conv_chunking_factor: taken, and without effect.
        subsampling_conv_channels: of the convolutions of subsampling; -1: ``d_model``.
        reduction, reduction_position, reduction_factor: taken as NeMo's files have them; only their defaults are known.
        ff_expansion_factor: channels inside of feed-forward modules for one outside.
        self_attention_model: rel_pos, or rel_pos_no_shift, whose positions are counted from the start, as in WeNet.
        n_heads: heads of attention.
        att_context_size: encoded frames before and behind a frame that it sees, -1 for all; or several such pairs: one
            is drawn for each batch of a training, and the first is for evaluation.
        att_context_probs: the probability of each pair; None: all alike.
        att_context_style: regular, or chunked_limited: frames are in chunks of one more than the second number, see
            their own whole, and of those before it as many as fit into the first.
        xscaling: multiply what subsampling gives by the root of ``d_model``.
        untie_biases: each layer has its own biases of attention; False: all have the same.
        pos_emb_max_len: taken, and without effect: positions have no end.
        conv_kernel_size: frames that a depthwise convolution sees, odd.
        conv_norm_type: batch_norm, layer_norm, or group_normN with N groups.
        conv_context_size: frames before and behind that it sees; causal: none behind; None: as many on both sides.
        use_bias: biases in layers.
        dropout: probability, behind modules and inside feed-forward ones.
        dropout_pre_encoder: probability, behind subsampling.
        dropout_emb: probability, of position embeddings.
        dropout_att: probability, of attention weights.
        stochastic_depth_drop_prob: probability with which training leaves out the last layer.
        stochastic_depth_mode: linear: it grows from layer to layer; uniform: it is the same.
        stochastic_depth_start_layer: layers before which none is left out.
        sync_max_audio_length: taken, and without effect.
        subsampling_mask: convolutions of subsampling see zeros behind an utterance, as in NeMo since 2.5. False: what
            the one before made there, as before; then an utterance's encoding depends on its batch.
        conv_pads_input: zeros stand before the convolution module, as in WeNet; with ``conv_context_size: causal``.
        after_norm: normalise behind the last layer, as WeNet does.
        use_dynamic_chunk: draw the context of each batch of a training as WeNet does: half of them see all, the others
            chunks of 1 to 25 frames. Evaluation has ``att_context_size``.
        use_dynamic_left_chunk: draw also how many chunks before its own a frame sees.
        intermediate_block: a layer whose output is given as well, counted from 0, for intermediate CTC; -1 is that of
            half the depth, None none.
        name: its name in DAGs, messages and checkpoints.

    Attributes:
        context_frames: None: attention may see the whole utterance.

    Raises:
        UsageError: numbers that contradict each other; more weights than a model may have.
    """

    context_frames = None
    _context_table: Tensor
    _context_probs: Tensor

    def __init__(
        self,
        feat_in: Channels,
        n_layers: Annotated[int, Between(1, 256)],
        d_model: Channels,
        feat_out: Annotated[int, Between(1, 65_536, also=(-1,))] = -1,
        causal_downsampling: bool = False,
        subsampling: SubsamplingName = "striding",
        subsampling_factor: Annotated[int, Between(1, 64)] = 4,
        subsampling_conv_chunking_factor: int = 1,
        subsampling_conv_channels: Annotated[int, Between(1, 65_536, also=(-1,))] = -1,
        reduction: str | None = None,
        reduction_position: int | None = None,
        reduction_factor: int = 1,
        ff_expansion_factor: Annotated[int, Between(1, 64)] = 4,
        self_attention_model: AttentionName = "rel_pos",
        n_heads: Annotated[int, Between(1, 1_024)] = 4,
        att_context_size: tuple[Context, Context] | Sequence[tuple[Context, Context]] | None = None,
        att_context_probs: Sequence[Annotated[float, Between(0, 1)]] | None = None,
        att_context_style: ContextStyle = "regular",
        xscaling: bool = True,
        untie_biases: bool = True,
        pos_emb_max_len: int = 5000,
        conv_kernel_size: Annotated[int, Between(1, 1_001)] = 31,
        conv_norm_type: str = "batch_norm",
        conv_context_size: Literal["causal"] | tuple[int, int] | None = None,
        use_bias: bool = True,
        dropout: Probability = 0.1,
        dropout_pre_encoder: Probability = 0.1,
        dropout_emb: Probability = 0.1,
        dropout_att: Probability = 0.0,
        stochastic_depth_drop_prob: Probability = 0.0,
        stochastic_depth_mode: Literal["linear", "uniform"] = "linear",
        stochastic_depth_start_layer: Annotated[int, Between(1, 256)] = 1,
        sync_max_audio_length: bool = True,
        subsampling_mask: bool = True,
        conv_pads_input: bool = False,
        after_norm: bool = False,
        use_dynamic_chunk: bool = False,
        use_dynamic_left_chunk: bool = False,
        intermediate_block: Annotated[int, Between(-1, 256)] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        _check_choice("subsampling", subsampling, get_args(SubsamplingName))
        _check_choice("self_attention_model", self_attention_model, get_args(AttentionName))
        _check_choice("att_context_style", att_context_style, get_args(ContextStyle))
        if d_model % n_heads or d_model % 2:
            got = f"d_model {d_model}, n_heads {n_heads}"
            raise UsageError("n_heads must divide d_model", place=_PLACE, got=got, wanted="a multiple, and an even one")
        if conv_kernel_size % 2 == 0:
            got = str(conv_kernel_size)
            raise UsageError("conv_kernel_size is even", place=_PLACE, got=got, wanted="an odd number of frames")
        if reduction is not None or reduction_factor != 1:
            got = f"{reduction}, reduction_factor {reduction_factor}"
            raise UsageError("reduction is not known", place=_PLACE, got=got, wanted="null, reduction_factor 1")
        self._feat_in, self._feat_out = feat_in, d_model if feat_out == -1 else feat_out
        self._scale = math.sqrt(d_model) if xscaling else None
        self._is_shifted = self_attention_model == "rel_pos"
        self._contexts = _contexts(att_context_size, att_context_style)
        self._is_dynamic, self._draws_left = use_dynamic_chunk, use_dynamic_left_chunk
        self.register_buffer("_context_table", torch.tensor(self._contexts), persistent=False)
        self.register_buffer("_context_probs", _probabilities(att_context_probs, len(self._contexts)), persistent=False)
        channels = d_model if subsampling_conv_channels == -1 else subsampling_conv_channels
        of_layer = d_model * (d_model * (4 * ff_expansion_factor + 8) + conv_kernel_size)
        of_subsampling = 9 * channels**2 + (channels + subsampling_factor) * feat_in * d_model
        refuse_too_large(_PLACE, n_layers * of_layer + of_subsampling)
        self.pre_encode = _subsampling(
            subsampling, subsampling_factor, feat_in, d_model, channels, causal_downsampling, subsampling_mask
        )
        self.dropout_pre_encoder, self.dropout_emb = nn.Dropout(dropout_pre_encoder), nn.Dropout(dropout_emb)
        left = _frames_before(conv_context_size, conv_kernel_size)
        if conv_pads_input and left != conv_kernel_size - 1:
            problem, got = "conv_pads_input is for conv_context_size: causal", str(conv_context_size)
            raise UsageError(problem, place=_PLACE, got=got)
        _check_norm(conv_norm_type, d_model)
        shared = None if untie_biases else new_pos_biases(n_heads, d_model)
        self.layers = nn.ModuleList(
            ConformerLayer(
                d_model,
                d_model * ff_expansion_factor,
                RelPositionAttention(n_heads, d_model, dropout_att, use_bias, self._is_shifted, shared),
                ConvolutionModule(d_model, conv_kernel_size, conv_norm_type, left, use_bias, conv_pads_input),
                dropout,
                use_bias,
            )
            for _ in range(n_layers)
        )
        self._drop_probs = _drop_probs(
            n_layers, stochastic_depth_drop_prob, stochastic_depth_mode, stochastic_depth_start_layer
        )
        self.after_norm = nn.LayerNorm(d_model) if after_norm else None
        self.out_proj = nn.Linear(d_model, self._feat_out) if self._feat_out != d_model else None
        self._size = d_model
        block = intermediate_block
        self._intermediate = None if block is None else intermediate_of(block, n_layers, _PLACE)

    @property
    def input_ports(self) -> Ports:
        return {
            "audio_signal": frames_type(self._feat_in, SpectrogramType()),
            "length": NeuralType("B", LengthsType()),
        }

    @property
    def output_ports(self) -> Ports:
        return encoded_ports(self._feat_out, None if self._intermediate is None else self._size)

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, _, time = shapes["audio_signal"]
        num_frames = self.pre_encode.size(time)
        shapes_out = {"outputs": (batch, self._feat_out, num_frames), "encoded_lengths": (batch,)}
        if self._intermediate is None:
            return shapes_out
        return {**shapes_out, "intermediate": (batch, self._size, num_frames), "intermediate_lengths": (batch,)}

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, ...]:
        """(B, D, T) and valid frames (B,) -> (B, C, U) and valid frames (B,), int64.

        Frames of the output beyond the valid ones are undefined. With an intermediate block its output and its valid
        frames follow.
        """
        x, lengths = self.pre_encode(audio_signal.transpose(1, 2), length.long())
        if self._scale is not None:
            x = x * self._scale
        x = self.dropout_pre_encoder(x)
        num_frames = x.shape[1]
        frames = Frames(lengths, is_masking=not are_full(lengths, num_frames))
        positions = self.dropout_emb(self.positions(num_frames, num_frames, x.device)).to(x.dtype)
        hidden = hidden_frames(lengths, num_frames, self._context(num_frames, x.device))
        tapped: tuple[Tensor, ...] = ()
        for index, layer in enumerate(self.layers):
            out = layer(x, frames, positions, hidden)
            drop_prob = self._drop_probs[index]
            if self.training and drop_prob > 0:
                keeps = torch.rand((), device=x.device) >= drop_prob
                out = x + (out - x) * (keeps / (1 - drop_prob))
            x = out
            if index == self._intermediate:
                tapped = (x.transpose(1, 2), lengths)
        if self.after_norm is not None:
            x = self.after_norm(x)
        if self.out_proj is not None:
            x = self.out_proj(x)
        return x.transpose(1, 2), lengths, *tapped

    def positions(self, num_queries: int, num_keys: int, device: torch.device, first: int | Tensor = 0) -> Tensor:
        """Embeddings (P, D) for queries that are the last of the keys: of the distances ``num_keys`` to
        ``1 - num_queries``, or without the shift of the keys, the first of which is ``first``, from the start. With
        several ``first`` (B, 1) these are (B, P, D)."""
        if self._is_shifted:
            return position_embeddings(num_keys, num_keys + num_queries, -1, self._size, device)
        return position_embeddings(first, num_keys, 1, self._size, device)

    @property
    def att_context_sizes(self) -> list[tuple[int, int]]:
        """Frames before and behind in each context of training, -1: all; the first is that outside of training."""
        sizes = []
        for chunk, left, right in self._contexts:
            frames = -1 if left == _ALL else int(left) * int(chunk)
            sizes.append((frames, int(chunk) - 1 if right == 0 else -1 if right == _ALL else int(right)))
        return sizes

    def set_default_att_context_size(self, att_context_size: Sequence[int]) -> None:
        """The context outside of training: encoded frames before and behind a frame that it sees, in chunks.

        Raises:
            UsageError: the first number is no multiple of one more than the second.
        """
        left, right = att_context_size
        self._contexts = [*_contexts((left, right), "chunked_limited"), *self._contexts[1:]]

    def stream_problem(self) -> str:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        context = self._contexts[0]
        if context.is_full:
            return (
                "attention sees the whole utterance; att_context_style: chunked_limited does not, nor a model that was "
                "trained with chunks (U2++), with --att_context_size LEFT RIGHT"
            )
        if context.right != 0:
            return "each layer of regular attention looks ahead further; att_context_style: chunked_limited does not"
        return self._layers()[0].conv.stream_problem()

    def stream_delay(self) -> Delay:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        delays = [window.delay for window in self.pre_encode.windows]
        return reduce(Delay.then, [*delays, Delay(1, int(self._contexts[0].chunk) - 1)])

    def initial_state(self, batch: int) -> State:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        state = prefixed(self.pre_encode.initial_state(batch), "pre_encode")
        like = self._layers()[0].norm_out.weight
        state["waiting"] = like.new_zeros(batch, 0, self._size)  # encoded frames of a chunk that is not whole
        state["num_frames"] = torch.zeros(1, dtype=torch.int64, device=like.device)  # that went through the layers
        for index, layer in enumerate(self._layers()):
            state |= prefixed(layer.initial_state(batch), f"layers.{index}")
        return state

    def step(
        self, audio_signal: Tensor, length: Tensor, *, state: State, last: bool
    ) -> tuple[tuple[Tensor, ...], State]:
        """The next frames (B, D, T) to (B, C, U): those of chunks that are whole, at the end of the last one as well.

        Chunks are counted from the start, so the numbers do not depend on how frames arrive.
        """
        frames = frames_in_graph(length, state["num_frames"] * self.stream_delay().stride)
        before = keyed(state, "pre_encode")
        x, kept, frames = self.pre_encode.step(audio_signal.transpose(1, 2), before, last, frames)
        new_state = prefixed(kept, "pre_encode")
        if self._scale is not None:
            x = x * self._scale
        x = torch.cat([state["waiting"], x], dim=1)
        frames = frames and frames._replace(first=frames.first - state["waiting"].shape[1])
        context = self._contexts[0]
        chunk, left = int(context.chunk), int(context.left)
        number = x.shape[1] if last else x.shape[1] // chunk * chunk
        x, new_state["waiting"] = x[:, :number], x[:, number:]
        new_state["num_frames"] = state["num_frames"] + number
        tapped = x
        if number:
            num_kept = state["layers.0.attention"].shape[1]
            first: int | Tensor = 0
            if not self._is_shifted and frames is None:
                first = int(state["num_frames"]) - num_kept
            elif not self._is_shifted and frames is not None:
                first = (frames.first - num_kept - frames.start).unsqueeze(1)
            positions = self.positions(number, num_kept + number, x.device, first).to(x.dtype)
            of_key = torch.arange(num_kept + number, device=x.device) // chunk  # the chunk in which it is
            chunks_back = of_key[num_kept:].unsqueeze(1) - of_key
            sees = ((chunks_back >= 0) & (chunks_back <= left))[None, None]
            if frames is not None:
                sees = sees & frames.is_there(number, num_kept)[:, None, None]
            hidden = Hidden(torch.where(sees, 0.0, _HIDDEN), ~sees.any(-1, keepdim=True))
            for index, layer in enumerate(self._layers()):
                x, kept = layer.step(x, positions, hidden, keyed(state, f"layers.{index}"), left * chunk, frames)
                new_state |= prefixed(kept, f"layers.{index}")
                if index == self._intermediate:
                    tapped = x
            if self.after_norm is not None:
                x = self.after_norm(x)
        else:
            new_state |= {key: value for key, value in state.items() if key.startswith("layers.")}
        if self.out_proj is not None:
            x = self.out_proj(x)
        outputs: tuple[Tensor, ...] = (x.transpose(1, 2), num_new(x, 1) if frames is None else frames.left)
        if self._intermediate is not None:
            outputs = (*outputs, tapped.transpose(1, 2), outputs[1])
        return outputs, new_state

    def graph_problem(self) -> str:
        """See :class:`nemo_lite.backends.pytorch.streaming.StreamsInGraph`."""
        if problem := self.stream_problem():
            return problem
        if self._contexts[0].left == _ALL:
            return "attention sees all frames before; att_context_size with a number, or set_default_att_context_size"
        return ""

    @property
    def graph_chunk(self) -> int:
        """See :class:`nemo_lite.backends.pytorch.streaming.StreamsInGraph`: the frames of a chunk of attention."""
        return self.stream_delay().stride * int(self._contexts[0].chunk)

    @property
    def graph_late(self) -> int:
        """See :class:`nemo_lite.backends.pytorch.streaming.StreamsInGraph`: whole chunks of attention."""
        first, chunk = self._first(), int(self._contexts[0].chunk)
        return first % chunk - first

    def _first(self) -> int:
        """Where the frames begin that subsampling gives of a chunk in a graph."""
        return reduce(lambda first, window: window.first(first), self.pre_encode.windows, 0)

    def graph_state(self, batch: int) -> State:
        """See :class:`nemo_lite.backends.pytorch.streaming.StreamsInGraph`: zeros stand for what attention may see."""
        context, state = self._contexts[0], dict(self.initial_state(batch))
        state |= prefixed(self.pre_encode.initial_state(batch, first=0), "pre_encode")
        # Chunks of attention are counted from the first frame of the recording.
        state["waiting"] = state["waiting"].new_zeros(batch, self._first() % int(context.chunk), self._size)
        for index in range(len(self._layers())):
            key = f"layers.{index}.attention"
            state[key] = state[key].new_zeros(batch, int(context.left) * int(context.chunk), self._size)
        state["num_frames"] = state["num_frames"].expand(batch).clone()
        return state

    def _layers(self) -> list[ConformerLayer]:
        return [layer for layer in self.layers if isinstance(layer, ConformerLayer)]

    def _context(self, num_frames: int, device: torch.device) -> AttentionContext:
        """That of a batch: drawn in training, where there are several."""
        if self.training and self._is_dynamic:
            return drawn_context(num_frames, self._draws_left, device)
        if self.training and len(self._contexts) > 1:
            drawn = self._context_table[torch.multinomial(self._context_probs, 1)]
            return AttentionContext(*drawn.squeeze(0).unbind())
        return self._contexts[0]


def drawn_context(num_frames: int, draws_left: bool, device: torch.device) -> AttentionContext:
    """WeNet's draw: c from 1 to T - 1; above T / 2 frames see all, else chunks of c % 25 + 1 frames.

    Args:
        num_frames: T, of the batch.
        draws_left: draw the chunks before a frame's own that it sees, else it sees all.
        device: of the draws.
    """
    drawn = torch.randint(1, max(num_frames, 2), (), device=device)
    is_full = drawn > num_frames // 2
    chunk = torch.where(is_full, num_frames, drawn % 25 + 1)
    if not draws_left:
        return AttentionContext(chunk, _ALL, 0)
    most = (num_frames - 1) // chunk
    return AttentionContext(chunk, (torch.rand((), device=device) * most).long(), 0)


def _check_choice(argument: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise UsageError(f"{argument} is not known", place=_PLACE, got=given, wanted=f"one of {', '.join(known)}")


def _contexts(sizes: tuple[int, int] | Sequence[tuple[int, int]] | None, style: ContextStyle) -> list[AttentionContext]:
    given: Sequence[Any] = sizes or [(-1, -1)]
    pairs: Sequence[tuple[int, int]] = [(given[0], given[1])] if isinstance(given[0], int) else given
    contexts = []
    for left, right in pairs:
        if (left, right) == (-1, -1):
            contexts.append(FULL_CONTEXT)
        elif style == "regular" or right == -1:
            contexts.append(AttentionContext(1, _ALL if left == -1 else left, _ALL if right == -1 else right))
        elif left > 0 and left % (right + 1):
            problem, got = "the first number of att_context_size must be whole chunks", f"{[left, right]}"
            wanted = f"a multiple of {right + 1}, for one more than the second number"
            raise UsageError(problem, place=_PLACE, got=got, wanted=wanted)
        else:
            contexts.append(AttentionContext(right + 1, _ALL if left == -1 else left // (right + 1), 0))
    return contexts


def _probabilities(given: Sequence[float] | None, number: int) -> Tensor:
    if given is None:
        return torch.full((number,), 1 / number)
    if len(given) != number or abs(sum(given) - 1) > 1e-6:
        wanted = f"{number} that sum to 1, one for each pair of att_context_size"
        raise UsageError("att_context_probs is wrong", place=_PLACE, got=str(list(given)), wanted=wanted)
    return torch.tensor(given)


def _subsampling(
    kind: str, factor: int, feat_in: int, feat_out: int, channels: int, is_causal: bool, is_masked: bool
) -> ConvSubsampling | StackingSubsampling | LinearInput:
    if is_causal and kind not in ("striding", "dw_striding"):
        wanted = "striding or dw_striding"
        raise UsageError("causal_downsampling has no such subsampling", place=_PLACE, got=kind, wanted=wanted)
    if factor == 1:
        return LinearInput(feat_in, feat_out)
    if kind in ("stacking", "stacking_norm"):
        return StackingSubsampling(factor, feat_in, feat_out, kind == "stacking_norm")
    if factor & (factor - 1):
        raise UsageError("subsampling_factor is no power of 2", place=_PLACE, got=str(factor), wanted="2, 4, 8 or 16")
    return ConvSubsampling(kind, factor.bit_length() - 1, feat_in, feat_out, channels, is_causal, is_masked)


def _frames_before(context: str | tuple[int, int] | None, kernel_size: int) -> int:
    """Frames before a frame that a depthwise convolution sees."""
    if context is None:
        return kernel_size // 2
    if isinstance(context, str):
        return kernel_size - 1
    if min(context) < 0 or sum(context) != kernel_size - 1:
        wanted = f"causal, or two numbers that sum to {kernel_size - 1}, one less than conv_kernel_size"
        raise UsageError("conv_context_size is wrong", place=_PLACE, got=str(list(context)), wanted=wanted)
    return context[0]


def _check_norm(norm: str, size: int) -> None:
    groups = norm.removeprefix("group_norm")
    is_group = norm != groups and groups.isdecimal() and int(groups) > 0 and size % int(groups) == 0
    if norm not in ("batch_norm", "layer_norm") and not is_group:
        wanted = f"batch_norm, layer_norm or group_norm with a number that divides {size} behind it"
        raise UsageError("conv_norm_type is not known", place=_PLACE, got=norm, wanted=wanted)


def _drop_probs(num_layers: int, last: float, mode: str, start: int) -> list[float]:
    """The probability with which each layer is left out."""
    if start > num_layers:
        raise UsageError(
            "stochastic_depth_start_layer is too large", place=_PLACE, got=str(start), wanted=f"1 to {num_layers}"
        )
    several = num_layers - start
    dropped = [last if mode == "uniform" else last * (index + 1) / several for index in range(several)]
    return [0.0] * start + dropped
