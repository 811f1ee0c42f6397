"""Jasper and QuartzNet from top to bottom: options of blocks, convolutions, blocks, encoder, decoders."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from math import prod
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_type_hints

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp import custom_bwd, custom_fwd
from torch.nn.modules.batchnorm import _BatchNorm

from nemo_asr.arguments import Channels, Classes, Splicing, look_up, refuse_too_large
from nemo_asr.text.labels import is_piece
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.backends.pytorch.streaming import (
    ChunkFrames,
    Delay,
    SlidingWindow,
    State,
    frames_in_graph,
    in_step,
    keyed,
    num_new,
    prefixed,
)
from nemo_lite.config import (
    Between,
    Checked,
    Config,
    Keys,
    Source,
    check_call,
    raise_if,
    refuse_out_of_range,
    unknown_key,
)
from nemo_lite.core.neural_types import (
    AcousticEncodedRepresentation,
    AxisKind,
    AxisType,
    ElementType,
    LengthsType,
    LogitsType,
    LogprobsType,
    NeuralType,
    SpectrogramType,
)
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, ceil_div
from nemo_lite.errors import UnknownNameError, UsageError
from nemo_lite.utils import logging

_T = TypeVar("_T")

# Frames: which frames of a padded batch belong to an utterance, and zeros in the others.
# Between the layers of an encoder a tensor is zero behind each utterance wherever a convolution reads it.


def valid_frames(lengths: Tensor, num_frames: int) -> Tensor:
    """(B, 1, T): True where a frame belongs to the utterance."""
    return (torch.arange(num_frames, device=lengths.device) < lengths.unsqueeze(1)).unsqueeze(1)


def runs_on_cpu(x: Tensor) -> bool:
    """Whether kernels made for the CPU may be called; compilers and exporters are to see plain operations."""
    # Compiling comes before tracing: a compiler ends its graph at the call that torch.jit.is_tracing() makes too.
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not torch._C._is_tracing()


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


# One block of a Jasper encoder as its configuration has it: the keys, their defaults, and what is wrong with them.


ResidualMode = Literal["add", "max", "stride_add", "stride_last"]
RESIDUAL_MODES: tuple[ResidualMode, ...] = get_args(ResidualMode)
_LONGEST_KERNEL = 10_001
_MOST_CONVOLUTIONS = 2_000  # of an encoder; Jasper 10x5 has 109, QuartzNet 15x5 168; to make as many takes 1 s
Kernel: TypeAlias = Annotated[int, Between(1, _LONGEST_KERNEL)]  # frames; the longest of QuartzNet has 87
Step: TypeAlias = Annotated[int, Between(1, 1_024)]
Window: TypeAlias = Annotated[int, Between(-1, 1_000_000)]
_NO_BLOCKS = ["JasperEncoder: jasper has no blocks"]


@dataclass(frozen=True)
class JasperBlockSpec:
    """The keys of one element of ``JasperEncoder(jasper=[...])``.

    Args:
        filters: output channels.
        repeat: sub-blocks, each a convolution, a normalisation, an activation and dropout.
        kernel: frames that a filter sees, a number or a list of one. An even one is rounded up to the next odd one, as
            NeMo 0.11 does: the window is then symmetric and the number of frames stays.
        stride: frames between two applications of a filter; of every sub-block, unless ``stride_last``.
        dilation: frames between two taps of a filter.
        dropout: probability, after each activation.
        residual: add the block's input, through a convolution of one frame, to the output of the last sub-block.
        residual_dense: add the inputs of all ``residual_dense`` blocks directly before this one as well.
        residual_mode: ``add``; ``max``; ``stride_add``: the residual strides as the sub-blocks do, and is added;
            ``stride_last``: as ``stride_add``, with ``stride_last`` on. By default the encoder's. For this block only.
        groups: groups of the convolutions (of the pointwise ones, if ``separable``), whose channels are then shuffled.
        separable: a depthwise convolution over time, then a pointwise one over channels.
        heads: depthwise filters; channels ``c`` and ``c + heads`` share one. -1: one filter for each channel.
        se: squeeze-and-excitation after the last sub-block.
        se_reduction_ratio: channels for one hidden unit of squeeze-and-excitation.
        se_context_window: frames that squeeze-and-excitation averages; below 1: the whole utterance.
        se_interpolation_mode: how windowed averages are stretched to the number of frames: nearest, linear or area, as
            in NeMo; causal: they are not, each frame has the window that ends with it, so that the encoder streams.
        kernel_size_factor: multiplies ``kernel``.
        stride_last: only the last sub-block strides.
        future_context: taps of a filter behind its frame, at most half of them; the others see frames before it, so
            that a stream waits less. -1, and the kernel or more: as many behind as before.
        se_context_size: an older name of ``se_context_window``, which ContextNet's files have.

    Raises:
        UsageError: a value out of its range, or keys that contradict each other.
    """

    filters: Channels
    repeat: Annotated[int, Between(1, 100)]
    kernel: Kernel | tuple[Kernel]
    stride: Step | tuple[Step]
    dilation: Step | tuple[Step]
    dropout: Annotated[float, Between(0, 1, below=True)]
    residual: bool
    residual_dense: bool = False
    residual_mode: ResidualMode | None = None
    groups: Channels = 1
    separable: bool = False
    heads: Annotated[int, Between(1, 65_536, also=(-1,))] = -1
    se: bool = False
    se_reduction_ratio: Channels = 8
    se_context_window: Window = -1
    se_interpolation_mode: Literal["nearest", "linear", "area", "causal"] = "nearest"
    kernel_size_factor: Annotated[float, Between(0, 100, above=True)] = 1.0
    stride_last: bool = False
    future_context: Annotated[int, Between(-1, _LONGEST_KERNEL)] = -1
    se_context_size: Window | None = None

    def __post_init__(self) -> None:
        refuse_out_of_range(type(self).__init__, vars(self), type(self).__name__)
        problems = list(self._problems())
        if problems:
            raise UsageError("; ".join(problems))

    def _problems(self) -> Iterator[str]:
        if self.kernel_size > _LONGEST_KERNEL:
            yield f"kernel times kernel_size_factor is {self.kernel_size}, wanted at most {_LONGEST_KERNEL}"
        if self.residual_dense and not self.residual:
            yield "residual_dense is true, which needs residual: true"
        if self.heads != -1 and not self.separable:
            yield f"heads is {self.heads}, wanted -1, or separable: true"
        if self.kernel_size // 2 < self.future_context < self.kernel_size:
            yield f"future_context is {self.future_context}, wanted at most {self.kernel_size // 2}, half of the kernel"
        if self.se and self.se_interpolation_mode == "causal" and self.se_window < 1:
            yield "se_interpolation_mode is causal, which needs se_context_window, the frames of a window"
        if self.se and self.filters < self.se_reduction_ratio:
            yield f"se_reduction_ratio is {self.se_reduction_ratio}, wanted at most filters ({self.filters})"

    @property
    def se_window(self) -> int:
        """Frames that squeeze-and-excitation averages; below 1: the whole utterance."""
        return self.se_context_window if self.se_context_size is None else self.se_context_size

    @property
    def kernel_size(self) -> int:
        """Frames that a filter sees: ``kernel * kernel_size_factor`` rounded down, then up to the next odd number."""
        return int(_only(self.kernel) * self.kernel_size_factor) | 1

    @property
    def dilation_size(self) -> int:
        """Frames between two taps of a filter."""
        return _only(self.dilation)

    @property
    def later_taps(self) -> int | None:
        """Taps of a filter behind its frame; None: half of them."""
        return self.future_context if 0 <= self.future_context < self.kernel_size else None

    def num_weights(self, num_channels: int, residual_channels: Sequence[int] = ()) -> int:
        """Weights of its convolutions, which are nearly all.

        Args:
            num_channels: of its input.
            residual_channels: of the inputs that are added to its output.
        """
        total = self.filters * sum(residual_channels)
        for _ in range(self.repeat):
            taps = num_channels if self.separable else num_channels * self.filters // self.groups
            total += taps * self.kernel_size + self.separable * num_channels * self.filters // self.groups
            num_channels = self.filters
        return total

    def strides(self, residual_mode: ResidualMode) -> list[int]:
        """The stride of each sub-block, under this residual mode."""
        stride = _only(self.stride)
        if self.stride_last or residual_mode == "stride_last":
            return [1] * (self.repeat - 1) + [stride]
        return [stride] * self.repeat


def read_blocks(jasper: Sequence[Mapping[str, Any]]) -> list[JasperBlockSpec]:
    """The blocks of an encoder, checked as a whole.

    Blocks that a script wrote, or read by itself, are taken as NeMo takes them: a key that is not known is left out
    with a warning, 0 and 1 are truth values, and 4.0 is a whole number.

    Raises:
        ConfigError: everything that is wrong with any block, one line each: wrong types, ranges, contradictions; where
            a block is a :class:`Config`, also unknown keys, and file, line and column.
    """
    blocks = [_placed(block, index) for index, block in enumerate(jasper)]
    raise_if([problem for block in blocks for problem in block_problems(block)] or _NO_BLOCKS[: not blocks])
    specs = [JasperBlockSpec(**block) for block in blocks]
    raise_if(_too_many(specs, blocks))
    return specs


def block_problems(block: Config) -> list[str]:
    """One line for each problem with the keys of one block."""
    problems = check_call(block, JasperBlockSpec)
    if not problems:
        try:
            JasperBlockSpec(**block)
        except UsageError as error:
            problems = [f"{block.place_to_blame()}: {block.path}: {error}"]
    return problems


def _too_many(specs: Sequence[JasperBlockSpec], blocks: Sequence[Config]) -> Iterator[str]:
    """The block with which an encoder has more convolutions than it may."""
    total = residuals = 0
    for spec, block in zip(specs, blocks, strict=True):
        residuals = residuals + 1 if spec.residual_dense else 0
        total += spec.repeat * (1 + spec.separable) + spec.residual * max(residuals, 1)
        if total > _MOST_CONVOLUTIONS:
            yield (
                f"{block.place()}: {block.path} brings the convolutions to {total}, wanted at most {_MOST_CONVOLUTIONS}"
            )
            return


def _placed(block: Mapping[str, Any], index: int) -> Config:
    if isinstance(block, Config):
        return block
    written = Config(block, _InScript("JasperEncoder"), ("jasper", index))
    unknown = [key for key in block if key not in JasperBlockSpec.__annotations__]
    for key in unknown:
        logging.warning("%s; it is left out", unknown_key(written, key, JasperBlockSpec.__annotations__))
    kept = {key: _converted(key, value) for key, value in block.items() if key not in unknown}
    return Config(kept, _InScript("JasperEncoder"), ("jasper", index))


def _converted(key: str, value: Any) -> Any:
    """What NeMo makes of a value: truth values of 0 and 1, whole numbers of floats, alone or in a list."""
    kind = _kinds()[key]
    if kind is bool and value in (0, 1):
        return bool(value)
    if isinstance(value, list):
        return [_converted(key, item) for item in value]
    whole = isinstance(value, float) and (value.is_integer() or (key == "kernel" and math.isfinite(value)))
    return int(value) if whole and int in (kind, *get_args(kind)) else value


@cache
def _kinds() -> dict[str, Any]:
    """The type of each key, without its range."""
    return get_type_hints(JasperBlockSpec)


class _InScript(Source):
    """The source of a block that was written in a script: no line is known."""

    def place(self, keys: Keys) -> str:
        return self.name


def _only(value: int | tuple[int]) -> int:
    return value if isinstance(value, int) else value[0]


# 1-D convolutions over time with same padding, and a fast depthwise form on CPU.
# Weights keep the shape of ``nn.Conv1d``, (C_out, C_in / groups, K).
# On CPU, tensors (B, C, T) that leave a depthwise convolution lie in memory as (B, T, C): a pointwise convolution is
# then one matrix product. The order in memory never changes a result, and no caller needs to know it.


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
                out: Tensor = _Depthwise.apply(x, self.weight, self.bias, padding, *steps)  # type: ignore[no-untyped-call]  # torch's
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


# Squeeze-and-excitation over the valid frames of each utterance.


class SqueezeExcite(nn.Module):
    """Scales each channel by what its mean over the valid frames, or over a window of them, says.

    Source: Hu et al., "Squeeze-and-Excitation Networks", CVPR 2018; windows: Han et al., "ContextNet", Interspeech
    2020.

    Args:
        channels: channels.
        reduction_ratio: channels for one hidden unit.
        context_window: frames of the window; below 1 it is the whole utterance.
        interpolation_mode: how the averages of windows are stretched to the number of frames: nearest, linear, area.
            Where a frame's window lies then depends on the length of the utterance. ``causal``: it ends with the frame;
            frames before the first one count as 0.
        activation: between the two linear layers.
    """

    def __init__(
        self,
        channels: int,
        reduction_ratio: int,
        context_window: int = -1,
        interpolation_mode: str = "nearest",
        activation: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.is_causal = interpolation_mode == "causal" and context_window > 0
        self._stretch = look_up("se_interpolation_mode", interpolation_mode, _INTERPOLATIONS)
        self.context_window = context_window
        self.fc = nn.Sequential(
            nn.Linear(channels, channels // reduction_ratio, bias=False),
            activation or nn.ReLU(),
            nn.Linear(channels // reduction_ratio, channels, bias=False),
        )

    def forward(self, x: Tensor, frames: Frames) -> Tensor:
        """(B, C, T) -> (B, C, T)."""
        num_frames = x.shape[2]
        if frames.is_masking:
            lengths, x = frames.lengths.clamp(1, num_frames), frames.masked(x)
        else:
            lengths = torch.full((x.shape[0],), num_frames, device=x.device)
        if self.context_window < 1:
            mean = x.sum(2, dtype=torch.promote_types(x.dtype, torch.float32)) / lengths.unsqueeze(1)
            return x * torch.sigmoid(self.fc(mean.to(x.dtype))).unsqueeze(2)
        if self.is_causal:
            return self.of_window(F.pad(x, (self.context_window - 1, 0)))
        scores = self.fc(self._window_means(x, lengths).transpose(1, 2)).transpose(1, 2)
        num_windows = (lengths - self.context_window + 1).clamp(min=1)
        frame = torch.arange(num_frames, device=x.device).unsqueeze(0)
        stretch = self._stretch(frame, num_windows.unsqueeze(1), lengths.unsqueeze(1))
        return x * torch.sigmoid(_stretched(scores, *stretch))

    @property
    def window(self) -> SlidingWindow:
        """The frames that a frame's mean is taken over, where it is causal."""
        return SlidingWindow(self.context_window, 1, self.context_window - 1)

    def of_window(self, x: Tensor) -> Tensor:
        """The same without padding, where it is causal: frames of :attr:`window` (B, C, T), or none, to (B, C, U)."""
        if not x.shape[2]:
            return x
        means = F.avg_pool1d(x, self.context_window, stride=1)
        scores = self.fc(means.transpose(1, 2)).transpose(1, 2)
        return x[:, :, self.context_window - 1 :] * torch.sigmoid(scores)

    def _window_means(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(B, C, windows in T frames), valid within the utterance; one shorter than a window has one."""
        missing = max(self.context_window - x.shape[2], 0)
        means = F.avg_pool1d(F.pad(x, (0, missing)), self.context_window, stride=1)
        share = lengths.clamp(max=self.context_window) / self.context_window
        return means / share.to(means.dtype)[:, None, None]


Stretch = tuple[Tensor, Tensor, Tensor]


def _stretched(values: Tensor, low: Tensor, high: Tensor, weight: Tensor) -> Tensor:
    """(B, C, N) -> (B, C, T): at frame t, ``(1 - weight[t]) * values[low[t]] + weight[t] * values[high[t]]``."""
    shape = (-1, values.shape[1], -1)
    at_low = values.gather(2, low.unsqueeze(1).expand(shape))
    at_high = values.gather(2, high.unsqueeze(1).expand(shape))
    return torch.lerp(at_low, at_high, weight.unsqueeze(1).to(values.dtype))


def _nearest(frame: Tensor, counts: Tensor, spans: Tensor) -> Stretch:
    index = (frame * counts // spans).minimum(counts - 1)
    return index, index, torch.zeros_like(index)


def _linear(frame: Tensor, counts: Tensor, spans: Tensor) -> Stretch:
    position = ((frame + 0.5) * (counts / spans) - 0.5).clamp(min=0).minimum(counts - 1)
    low = position.long()
    return low, (low + 1).minimum(counts - 1), position - low


def _area(frame: Tensor, counts: Tensor, spans: Tensor) -> Stretch:
    # There are no more values than frames, so a frame overlaps two of them at most.
    low = (frame * counts // spans).minimum(counts - 1)
    high = (((frame + 1) * counts + spans - 1) // spans - 1).minimum(counts - 1)
    return low, high, torch.full_like(low, 0.5, dtype=torch.float32)


# From frames (1, T), and N values and L frames of each utterance (B, 1) each: the values that a frame lies between, and
# the weight of the second, as F.interpolate places them; that function knows one length for the whole batch only.
_INTERPOLATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Stretch]] = {
    "nearest": _nearest,
    "linear": _linear,
    "area": _area,
    "causal": _nearest,  # there are as many windows as frames
}


# The blocks of Jasper and QuartzNet as plain ``nn.Module``s: activations, normalisations, the block itself.
# The names of their parameters are those of NeMo 0.x, so that its weights load.


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "hardtanh": nn.Hardtanh,
    "relu": nn.ReLU,
    "selu": nn.SELU,
    "swish": nn.SiLU,
}
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


def activated(activation: nn.Module, summands: Sequence[Tensor], frames: Frames) -> Tensor:
    """The activation of the sum of tensors (B, C, T), with zeros behind each utterance."""
    if isinstance(activation, nn.ReLU) and all(runs_on_cpu(x) and is_time_major(x) for x in summands):
        out: Tensor = _ReluOfSum.apply(frames.padding(summands[0].shape[2]), *summands)  # type: ignore[no-untyped-call]  # torch's
        return out
    return frames.masked(activation(reduce(torch.add, summands)))


class _ReluOfSum(torch.autograd.Function):
    """:func:`activated` for ReLU over time-major memory on CPU: one tensor is written, and the only one kept."""

    @staticmethod
    def forward(ctx: Any, padding: Tensor | None, *summands: Tensor) -> Tensor:
        out = reduce(torch.add, summands).relu_() if len(summands) > 1 else summands[0].relu()
        clear(out.transpose(1, 2), padding)
        ctx.save_for_backward(out)
        ctx.num_summands = len(summands)
        return out  # no view of another tensor: FSDP2 attaches its hook to what a block returns

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (out,) = ctx.saved_tensors
        gradient = torch.ops.aten.threshold_backward(gradients[0], out, 0)
        return None, *[gradient] * ctx.num_summands


class GroupShuffle(nn.Module):
    """Deals the channels of each group out over all groups, so that the next grouped convolution mixes them."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) -> (B, C, T): channel ``g * C/groups + i`` becomes ``i * groups + g``."""
        return x.reshape(x.shape[0], self.groups, -1, x.shape[2]).transpose(1, 2).flatten(1, 2)


class JasperBlock(nn.Module):
    """Sub-blocks of convolution, normalisation, activation and dropout, with residual connections around them.

    Args:
        in_channels: channels of the block's input.
        spec: the block's keys.
        activation: shared by all sub-blocks.
        normalization_mode: batch, layer, group or instance.
        norm_groups: groups of ``group`` normalisation; -1: one for each channel.
        residual_mode: the encoder's, for a block that has none of its own.
        residual_channels: channels of the inputs that a dense block adds, its own last; empty if it is not dense.
        conv_mask: keep padding out of convolutions, squeeze-and-excitation and group statistics.
        place: the block's name in errors.

    Raises:
        UsageError: a residual that cannot have as many frames as the output; groups that do not divide the channels.
        UnknownNameError: an unknown normalisation.
    """

    def __init__(
        self,
        in_channels: int,
        spec: JasperBlockSpec,
        *,
        activation: nn.Module,
        normalization_mode: str = "batch",
        norm_groups: int = -1,
        residual_mode: ResidualMode = "add",
        residual_channels: Sequence[int] = (),
        conv_mask: bool = True,
        place: str = "JasperBlock",
    ) -> None:
        super().__init__()
        mode = spec.residual_mode or residual_mode
        strides = spec.strides(mode)
        self.stride = prod(strides)
        if spec.residual and self.stride > 1:
            _check_frames(mode, self.stride, bool(residual_channels), place)
        if in_channels % spec.groups or spec.filters % spec.groups:
            got = f"groups {spec.groups}, {in_channels} -> {spec.filters} channels"
            raise UsageError("groups must divide the channels in and out", place=place, got=got)
        self.is_dense, self.takes_maximum = bool(residual_channels), mode == "max"
        self._num_channels = spec.filters
        convolution = MaskedConv1d if conv_mask else TimeConv1d
        norm = partial(make_normalization, normalization_mode, spec.filters, norm_groups, place)
        # By its type: torch.export puts proxies in the place of modules, of which no two are the same object.
        self._activation_type = type(activation)
        self.mconv = nn.ModuleList()
        for index, stride in enumerate(strides):
            if index > 0:
                self.mconv.extend([activation, nn.Dropout(spec.dropout)])
            channels = spec.filters if index else in_channels
            self.mconv.extend(_convolutions(convolution, channels, spec, stride))
            self.mconv.append(norm())
            if spec.groups > 1:
                self.mconv.append(GroupShuffle(spec.groups))
        if spec.se:
            keys = spec.se_reduction_ratio, spec.se_window, spec.se_interpolation_mode
            self.mconv.append(SqueezeExcite(spec.filters, *keys, activation))
        residual_channels = (residual_channels or [in_channels]) if spec.residual else []
        self.res = nn.ModuleList(
            nn.ModuleList([convolution(channels, spec.filters, 1, stride=self.stride), norm()])
            for channels in residual_channels
        )
        self.mout = nn.Sequential(activation, nn.Dropout(spec.dropout))

    def forward(self, inputs: list[Tensor], frames: Frames) -> tuple[list[Tensor], Frames]:
        """Inputs (B, C, T), the last one the block's own and those before for dense residuals, zero behind utterances.

        Returns:
            The inputs of the next block, zero behind utterances, and their frames.
        """
        out, out_frames = self._run(self.mconv, inputs[-1], frames)
        summands = [out]
        for branch, added in zip(self.res, inputs if self.is_dense else inputs[-1:], strict=False):
            assert isinstance(branch, nn.ModuleList)
            summands.append(self._run(branch, added, frames)[0])
        if self.takes_maximum:
            summands = [reduce(torch.maximum, summands)]
        activation, dropout = self.mout
        out = dropout(activated(activation, summands, out_frames))
        return ([*inputs, out] if self.is_dense else [out]), out_frames

    @property
    def context_frames(self) -> int | None:
        """Frames of the input on each side that a frame of the output depends on; None: on all of them."""
        total, frames_between = 0, 1
        for layer in self.modules():
            if isinstance(layer, MaskedGroupNorm) or (isinstance(layer, SqueezeExcite) and not layer.is_causal):
                return None
        for over_time in map(_over_time, self.mconv):
            if over_time is not None:
                total += frames_between * over_time.window.before
                frames_between *= over_time.window.stride
        return total  # a residual has kernels of one frame

    def stream_problem(self) -> str:
        """Why it cannot run in chunks; empty if it can."""
        for layer in self.modules():
            if isinstance(layer, SqueezeExcite) and not layer.is_causal:
                return (
                    "squeeze-and-excitation averages frames that follow from the length of the whole utterance; "
                    "se_interpolation_mode: causal with se_context_window does not"
                )
            if isinstance(layer, MaskedGroupNorm):
                return "its normalisation averages over time; normalization_mode: batch does not"
        return ""

    def stream_delay(self) -> Delay:
        """When its outputs are there."""
        delay = Delay()
        for _, layer in _strided_or_wide(self.mconv):
            delay = delay.then(layer.window.delay)
        return delay  # a residual has kernels of one frame

    def initial_state(self, batch: int, firsts: Sequence[int] | None = None) -> tuple[State, int]:
        """What layers see before the first frame, and which sums wait for their summands: nothing.

        Args:
            batch: streams.
            firsts: in a graph, where each of the inputs begins; see `StreamsInGraph`.

        Returns:
            The state; and in a graph where the outputs begin: as late as the latest summand.
        """
        state, ends, like = {}, {}, next(self.mconv.parameters())
        for name, layers in self._branches():
            first = None if firsts is None else self._input_of(name, firsts)
            for index, layer in _strided_or_wide(layers):
                channels = layer.num_channels if isinstance(layer, TimeConv1d) else self._num_channels
                state[f"{name}.{index}"] = layer.window.initial((batch, channels, 0), 2, like, first=first)
                first = None if first is None else layer.window.first(first)
            ends[name] = first or 0
        latest = min(ends.values())
        for name, end in ends.items():
            state[f"{name}.ahead"] = like.new_zeros(batch, self._num_channels, end - latest)
        return state, latest

    def step(
        self, inputs: list[Tensor], state: State, last: bool, frames: Sequence[ChunkFrames] = ()
    ) -> tuple[list[Tensor], State, list[ChunkFrames]]:
        """The next frames of the inputs (see ``forward``), which may be of several lengths, to those of its outputs.

        ``frames``: in a graph, of each input; they are given of each output then.
        """
        summands, new_state, ends = [], {}, []
        for name, layers in self._branches():
            x = self._input_of(name, inputs)
            there = self._input_of(name, frames) if frames else None
            for index, layer in enumerate(layers):
                key, over_time = f"{name}.{index}", _over_time(layer)
                if over_time is not None:
                    if key in state:
                        if there is not None:
                            x = torch.where(there.is_there(x.shape[2]).unsqueeze(1), x, 0.0)
                            there = there.behind(over_time.window)
                        x, new_state[key] = over_time.window.take(state[key], x, 2, last)
                    x = over_time.of_window(x)
                elif x.shape[2]:
                    x = layer(x)
            summands.append(x)
            ends.extend([there] if there is not None else [])
        names = [name for name, _ in self._branches()]
        summands, ahead = in_step([state[f"{name}.ahead"] for name in names], summands, 2)
        new_state |= {f"{name}.ahead": frames for name, frames in zip(names, ahead, strict=True)}
        out = reduce(torch.maximum if self.takes_maximum else torch.add, summands)
        out = self.mout(out)
        latest = sorted(ends, key=lambda there: there.first)[:1]
        if self.is_dense:
            return [*inputs, out], new_state, [*frames, *latest]
        return [out], new_state, latest

    def _branches(self) -> list[tuple[str, Iterable[nn.Module]]]:
        """Sequences of layers whose outputs are added, by name."""
        branches = [(f"res.{index}", branch.children()) for index, branch in enumerate(self.res)]
        return [("mconv", self.mconv), *branches]

    def _input_of(self, branch: str, inputs: Sequence[_T]) -> _T:
        """What a branch takes: the block's own input, but dense residuals one of those before."""
        if branch == "mconv" or not self.is_dense:
            return inputs[-1]
        return inputs[int(branch.removeprefix("res."))]

    def _run(self, layers: Iterable[nn.Module], x: Tensor, frames: Frames) -> tuple[Tensor, Frames]:
        for layer in layers:
            if isinstance(layer, (MaskedConv1d, TimeConv1d)):
                frames = frames.strided(layer.stride[0])
                x = layer(x, frames)
            elif isinstance(layer, (SqueezeExcite, MaskedGroupNorm)):
                x = layer(x, frames)
            elif isinstance(layer, self._activation_type):
                x = activated(layer, [x], frames)
            else:
                x = layer(x)
        return x, frames


def _over_time(layer: nn.Module) -> TimeConv1d | SqueezeExcite | None:
    """What sees other frames than that in its own place, if a layer does."""
    layer = layer.conv if isinstance(layer, MaskedConv1d) else layer
    return layer if isinstance(layer, (TimeConv1d, SqueezeExcite)) else None


def _strided_or_wide(layers: Iterable[nn.Module]) -> Iterator[tuple[int, TimeConv1d | SqueezeExcite]]:
    """The layers that have to keep frames between chunks, with their places."""
    for index, layer in enumerate(map(_over_time, layers)):
        if layer is not None and (layer.window.span, layer.window.stride) != (1, 1):
            yield index, layer


def _convolutions(
    convolution: Callable[..., nn.Module], in_channels: int, spec: JasperBlockSpec, stride: int
) -> list[nn.Module]:
    window = {"stride": stride, "dilation": spec.dilation_size, "later_taps": spec.later_taps}
    if not spec.separable:
        return [convolution(in_channels, spec.filters, spec.kernel_size, groups=spec.groups, **window)]
    return [
        convolution(in_channels, in_channels, spec.kernel_size, groups=in_channels, heads=spec.heads, **window),
        convolution(in_channels, spec.filters, 1, groups=spec.groups),
    ]


def _check_frames(mode: str, stride: int, is_dense: bool, place: str) -> None:
    """UsageError if a block that strides has a residual with other frames than its output."""
    if is_dense:
        problem = "a residual_dense block cannot stride: the blocks behind it add its input"
        remedy = "stride in a block before or after the dense ones"
    elif mode in ("add", "max"):
        problem, remedy = f'residual_mode "{mode}" needs as many frames out as in', "use residual_mode: stride_add"
    else:
        return
    raise UsageError(problem, place=place, got=f"stride {stride}", remedy=remedy)


# Jasper and QuartzNet as neural modules: the encoder and the decoders, with ports. Their layers are above.


_CHUNK = 10  # frames of the input that an exported graph takes at once, at least

Block: TypeAlias = Annotated[Mapping[str, Any], Checked(block_problems)]
Blocks: TypeAlias = Sequence[Block]

_BATCH, _TIME = AxisType(AxisKind.Batch), AxisType(AxisKind.Time)


class JasperEncoder(TrainableNM):
    """Stack of 1-D convolution blocks over spectrogram frames.

    Shapes: B utterances, D features, T frames in, C channels, U = ceil(T / stride) frames out.
    Source: Li et al., "Jasper", Interspeech 2019; separable blocks: Kriman et al., "QuartzNet", ICASSP 2020.

    Args:
        jasper: the blocks; their keys are the arguments of :class:`JasperBlockSpec`.
        activation: hardtanh, relu, selu or swish.
        feat_in: features of a frame.
        normalization_mode: batch, layer, group or instance.
        residual_mode: add, max, stride_add or stride_last, for blocks that have none of their own.
        norm_groups: groups of ``group`` normalisation; -1: one for each channel.
        conv_mask: keep padding out of convolutions and averages.
        frame_splicing: frames that were stacked into one; D is ``feat_in * frame_splicing``.
        init_mode: xavier_uniform, xavier_normal, kaiming_uniform or kaiming_normal.
        intermediate_block: a block whose output is given as well, counted from 0, for intermediate CTC; -1 is that of
            half the depth, None none.
        name: its name in DAGs, messages and checkpoints.

    Attributes:
        context_frames: frames before and behind it that the encoding of a frame depends on; None where it depends on
            the whole utterance (squeeze-and-excitation, normalisation over time). Long recordings are cut by it.

    Raises:
        ConfigError: unknown keys, wrong types and values of the blocks, all at once.
        UsageError: a residual that cannot have as many frames as what it is added to; no such intermediate block.
        UnknownNameError: an unknown activation, mode or initialisation.
    """

    def __init__(
        self,
        jasper: Blocks,
        activation: str,
        feat_in: Channels,
        normalization_mode: str = "batch",
        residual_mode: str = "add",
        norm_groups: Annotated[int, Between(1, 65_536, also=(-1,))] = -1,
        conv_mask: bool = True,
        frame_splicing: Splicing = 1,
        init_mode: str = "xavier_uniform",
        intermediate_block: Annotated[int, Between(-1, 256)] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if residual_mode not in RESIDUAL_MODES:
            raise UnknownNameError("residual_mode", residual_mode, RESIDUAL_MODES, place="JasperEncoder")
        self._feat_in, self._conv_mask = feat_in * frame_splicing, conv_mask
        settings = {
            "activation": look_up("activation", activation, ACTIVATIONS, "JasperEncoder")(),
            "normalization_mode": normalization_mode,
            "norm_groups": norm_groups,
            "residual_mode": residual_mode,
            "conv_mask": conv_mask,
        }
        specs = read_blocks(jasper)
        blocks = list(_blocks(specs, self._feat_in, settings))
        self._feat_out = specs[-1].filters
        self._intermediate = None if intermediate_block is None else intermediate_of(intermediate_block, len(specs))
        self._intermediate_filters = None if self._intermediate is None else specs[self._intermediate].filters
        self._stride = prod(block.stride for block in blocks)
        self._intermediate_stride = prod(block.stride for block in blocks[: (self._intermediate or 0) + 1])
        self.encoder = nn.Sequential(*blocks)
        self.context_frames = _context_of(blocks)
        init_weights(self.encoder, init_mode, "JasperEncoder")

    @property
    def input_ports(self) -> Ports:
        length = NeuralType("B", LengthsType(), optional=not self._conv_mask)
        return {"audio_signal": frames_type(self._feat_in, SpectrogramType()), "length": length}

    @property
    def output_ports(self) -> Ports:
        return encoded_ports(self._feat_out, self._intermediate_filters)

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, _, time = shapes["audio_signal"]
        shapes_out = {"outputs": (batch, self._feat_out, ceil_div(time, self._stride)), "encoded_lengths": (batch,)}
        if self._intermediate_filters is None:
            return shapes_out
        intermediate = (batch, self._intermediate_filters, ceil_div(time, self._intermediate_stride))
        return {**shapes_out, "intermediate": intermediate, "intermediate_lengths": (batch,)}

    def on_values(self, *args: Any, **kwargs: Any) -> Any:
        """Without lengths, as classifiers of NeMo connect it with ``conv_mask`` off, a DAG still gets both outputs."""
        if len(args) < 2 and kwargs.get("length") is None:
            signal: Tensor = args[0] if args else kwargs["audio_signal"]
            kwargs["length"] = torch.full(signal.shape[:1], signal.shape[2], device=signal.device)
        return super().on_values(*args, **kwargs)

    def forward(self, audio_signal: Tensor, length: Tensor | None = None) -> tuple[Tensor, ...] | Tensor:
        """(B, D, T) and valid frames (B,) -> (B, C, U) and valid frames (B,), int64; without lengths (B, C, U) alone.

        Frames of the output beyond the valid ones are undefined. Without lengths every frame is valid. With an
        intermediate block its output and its valid frames follow.
        """
        valid = torch.full_like(audio_signal[:, 0, 0], audio_signal.shape[2]) if length is None else length
        frames = Frames(valid.long(), self._conv_mask)
        block_inputs = [frames.masked(audio_signal)]
        tapped: tuple[Tensor, ...] = ()
        for index, block in enumerate(self.encoder):
            block_inputs, frames = block(block_inputs, frames)
            if index == self._intermediate:
                tapped = (block_inputs[-1], frames.lengths)
        return block_inputs[-1] if length is None else (block_inputs[-1], frames.lengths, *tapped)

    def stream_problem(self) -> str:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        if not self._conv_mask:
            return "what stands behind an utterance changes its last frames; conv_mask: true takes the same weights"
        return next((problem for block in self._blocks() if (problem := block.stream_problem())), "")

    def stream_delay(self) -> Delay:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        return reduce(Delay.then, [block.stream_delay() for block in self._blocks()])

    def initial_state(self, batch: int) -> State:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        states = [prefixed(block.initial_state(batch)[0], str(index)) for index, block in enumerate(self._blocks())]
        return {key: value for state in states for key, value in state.items()}

    def step(
        self, audio_signal: Tensor, length: Tensor | None = None, *, state: State, last: bool
    ) -> tuple[tuple[Tensor, ...], State]:
        """The next frames (B, D, T) to (B, C, U), with as many outputs as ``forward`` has with lengths."""
        new_state: dict[str, Tensor] = {}
        inputs, frames = [audio_signal], list[ChunkFrames]()
        if length is not None and "num_frames" in state:  # in a graph
            there = frames_in_graph(length, state["num_frames"] * self._stride)
            frames.extend([there] if there else [])
            new_state["num_frames"] = state["num_frames"] + audio_signal.shape[2] // self._stride
        tapped: tuple[Tensor, ...] = ()
        for index, block in enumerate(self._blocks()):
            inputs, kept, frames = block.step(inputs, keyed(state, str(index)), last, frames)
            new_state |= prefixed(kept, str(index))
            if index == self._intermediate:
                tapped = (inputs[-1], frames[-1].left if frames else num_new(inputs[-1], 2))
        return (inputs[-1], frames[-1].left if frames else num_new(inputs[-1], 2), *tapped), new_state

    def graph_problem(self) -> str:
        """See :class:`nemo_lite.backends.pytorch.streaming.StreamsInGraph`."""
        return self.stream_problem()

    @property
    def graph_chunk(self) -> int:
        """See :class:`nemo_lite.backends.pytorch.streaming.StreamsInGraph`: about 0.1 s of usual frames."""
        return self._stride * -(-_CHUNK // self._stride)

    @property
    def graph_late(self) -> int:
        """See :class:`nemo_lite.backends.pytorch.streaming.StreamsInGraph`: what convolutions see behind a frame."""
        return -self._in_graph(1)[1]

    def graph_state(self, batch: int) -> State:
        """See :class:`nemo_lite.backends.pytorch.streaming.StreamsInGraph`."""
        return self._in_graph(batch)[0]

    def _in_graph(self, batch: int) -> tuple[State, int]:
        """In a graph: what is kept between chunks, zeros at first, and where the outputs begin."""
        state, firsts = {"num_frames": torch.zeros(batch, dtype=torch.int64)}, [0]
        for index, block in enumerate(self._blocks()):
            kept, first = block.initial_state(batch, firsts)
            state |= prefixed(kept, str(index))
            firsts = [*firsts, first] if block.is_dense else [first]
        return state, firsts[-1]

    def _blocks(self) -> list[JasperBlock]:
        return [block for block in self.encoder if isinstance(block, JasperBlock)]

    @property
    def _disabled_deployment_input_ports(self) -> Iterable[str]:
        return ("length",)

    @property
    def _disabled_deployment_output_ports(self) -> Iterable[str]:
        return ("encoded_lengths", "intermediate", "intermediate_lengths")

    def _prepare_for_deployment(self) -> tuple[Tensor, None]:
        self._conv_mask = False  # without lengths every frame is valid
        return torch.randn(16, self._feat_in, 256), None

    def renamed_weights(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The tensors by today's names, where they have those of NeMo 0.8, or of the other ``conv_mask``."""
        names = {_oldest_name(name): name for name in self.state_dict()}
        return {names.get(_oldest_name(name), name): value for name, value in tensors.items()}


# encoder.1.mconv.0.conv.weight today, encoder.1.mconv.0.weight with conv_mask: false, encoder.1.conv.0.weight in 0.8
_PART = re.compile(r"^(encoder\.\d+\.)m?(conv|res|out)((?:\.\d+)+)(?:\.conv)?(?=\.)")


def _oldest_name(name: str) -> str:
    return _PART.sub(r"\1\2\3", name)


def intermediate_of(block: int, num_blocks: int, place: str = "JasperEncoder") -> int:
    """The index of the intermediate block; -1 stands for the block of half the depth, as in Lee and Watanabe.

    Raises:
        UsageError: it is not before the last one.
    """
    if not -1 <= block < num_blocks - 1:
        wanted = f"a block before the last one, 0 to {num_blocks - 2}, or -1 for that of half the depth"
        raise UsageError("no such intermediate block", place=place, got=str(block), wanted=wanted)
    return max(num_blocks // 2 - 1, 0) if block == -1 else block


def _context_of(blocks: Iterable[JasperBlock]) -> int | None:
    """Frames on each side that the blocks see together."""
    total, frames_between = 0, 1
    for block in blocks:
        if block.context_frames is None:
            return None
        total += frames_between * block.context_frames
        frames_between *= block.stride
    return total


def _blocks(specs: Iterable[JasperBlockSpec], num_channels: int, settings: Mapping[str, Any]) -> Iterator[JasperBlock]:
    residual: list[int] = []
    num_weights = 0
    for index, spec in enumerate(specs):
        residual = [*residual, num_channels] if spec.residual_dense else []
        num_weights += spec.num_weights(num_channels, residual or [num_channels] * spec.residual)
        refuse_too_large(f"JasperEncoder.jasper[{index}]", num_weights)
        yield JasperBlock(
            num_channels, spec, residual_channels=residual, place=f"JasperEncoder.jasper[{index}]", **settings
        )
        num_channels = spec.filters


class JasperDecoderForCTC(TrainableNM):
    """One linear layer over channels, frame by frame, and log-softmax.

    Shapes: B utterances, C channels, U frames, ``num_classes + 1`` classes of which the last is CTC's blank.

    Args:
        feat_in: channels of the encoder's output.
        num_classes: labels, without the blank.
        init_mode: xavier_uniform, xavier_normal, kaiming_uniform or kaiming_normal.
        vocabulary: the labels, if they are known.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UsageError: a vocabulary of another length than ``num_classes``, or with a label twice.
        UnknownNameError: an unknown initialisation.
    """

    is_ctc = True
    is_framewise = True
    context_frames = 0

    def __init__(
        self,
        feat_in: Channels,
        num_classes: Classes,
        init_mode: str = "xavier_uniform",
        vocabulary: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if vocabulary is not None:
            _check_vocabulary(vocabulary, num_classes)
        self.vocabulary = None if vocabulary is None else list(vocabulary)
        self._feat_in = feat_in
        self._num_classes = self._num_classes_with_blank = num_classes + 1
        refuse_too_large("JasperDecoderForCTC", feat_in * (num_classes + 1))
        self.decoder_layers = nn.Sequential(TimeConv1d(feat_in, self._num_classes_with_blank, 1, bias=True))
        init_weights(self.decoder_layers, init_mode, "JasperDecoderForCTC")

    @property
    def input_ports(self) -> Ports:
        return {"encoder_output": frames_type(self._feat_in, AcousticEncodedRepresentation())}

    @property
    def output_ports(self) -> Ports:
        classes = AxisType(AxisKind.Dimension, self._num_classes_with_blank)
        return {"output": NeuralType((_BATCH, _TIME, classes), LogprobsType())}

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, _, time = shapes["encoder_output"]
        return {"output": (batch, time, self._num_classes_with_blank)}

    def _prepare_for_deployment(self) -> tuple[Tensor, None]:
        return torch.randn(34, self._feat_in, 1), None

    def forward(self, encoder_output: Tensor) -> Tensor:
        """(B, C, U) -> (B, U, num_classes + 1), natural logarithms of probabilities, in float32 at least."""
        scores = self.decoder_layers(encoder_output).transpose(1, 2)
        return F.log_softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))


def _check_vocabulary(vocabulary: Sequence[str], num_classes: int) -> None:
    if len(vocabulary) != num_classes:
        got = f"{len(vocabulary)} labels, num_classes {num_classes}"
        remedy = "num_classes is the number of labels, without the blank"
        raise UsageError("vocabulary and num_classes differ", place="JasperDecoderForCTC", got=got, remedy=remedy)
    twice = [repr(label) for label, count in Counter(vocabulary).items() if count > 1]
    if twice and not any(map(is_piece, vocabulary)):  # pieces of several languages may be the same
        raise UsageError("a label is in the vocabulary twice", place="JasperDecoderForCTC", got=", ".join(twice))


_POOLINGS = ("avg", "max")


class JasperDecoderForClassification(TrainableNM):
    """Pools an utterance's frames into one vector and maps it to classes.

    Args:
        feat_in: channels of the encoder's output.
        num_classes: classes.
        init_mode: xavier_uniform, xavier_normal, kaiming_uniform or kaiming_normal.
        return_logits: give scores; otherwise probabilities.
        pooling_type: avg or max, over the valid frames where ``encoded_lengths`` is connected, else over all.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UnknownNameError: an unknown pooling or initialisation.
    """

    def __init__(
        self,
        *,
        feat_in: Channels,
        num_classes: Classes,
        init_mode: str = "xavier_uniform",
        return_logits: bool = True,
        pooling_type: str = "avg",
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if pooling_type not in _POOLINGS:
            raise UnknownNameError("pooling_type", pooling_type, _POOLINGS, place="JasperDecoderForClassification")
        self._feat_in, self._num_classes = feat_in, num_classes
        self._return_logits, self._pooling_type = return_logits, pooling_type
        refuse_too_large("JasperDecoderForClassification", feat_in * num_classes)
        self.decoder_layers = nn.Sequential(nn.Linear(feat_in, num_classes))
        init_weights(self.decoder_layers, init_mode, "JasperDecoderForClassification")

    @property
    def input_ports(self) -> Ports:
        return {
            "encoder_output": frames_type(self._feat_in, AcousticEncodedRepresentation()),
            "encoded_lengths": NeuralType("B", LengthsType(), optional=True),
        }

    @property
    def output_ports(self) -> Ports:
        return {"logits": NeuralType((_BATCH, AxisType(AxisKind.Dimension, self._num_classes)), LogitsType())}

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return {"logits": (shapes["encoder_output"][0], self._num_classes)}

    def forward(self, encoder_output: Tensor, encoded_lengths: Tensor | None = None) -> Tensor:
        """(B, C, U) and valid frames (B,) -> (B, num_classes)."""
        logits: Tensor = self.decoder_layers(self._pooled(encoder_output, encoded_lengths))
        return logits if self._return_logits else torch.softmax(logits, dim=-1)

    def _pooled(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        if lengths is None:
            return x.mean(2) if self._pooling_type == "avg" else x.amax(2)
        valid = valid_frames(lengths, x.shape[2])
        if self._pooling_type == "avg":
            return torch.where(valid, x, 0.0).sum(2) / lengths.clamp(min=1).unsqueeze(1).to(x.dtype)
        return torch.where(valid, x, -torch.inf).amax(2)


def encoded_ports(size: int, intermediate: int | None) -> Ports:
    """The outputs of an encoder; ``intermediate``: channels of a block inside whose output is given too."""
    outputs = frames_type(size, AcousticEncodedRepresentation())
    ports = {"outputs": outputs, "encoded_lengths": NeuralType("B", LengthsType())}
    if intermediate is None:
        return ports
    inside = frames_type(intermediate, AcousticEncodedRepresentation())
    return {**ports, "intermediate": inside, "intermediate_lengths": NeuralType("B", LengthsType())}


def frames_type(size: int, element: ElementType) -> NeuralType:
    """(B, size, T) of an element: what encoders take and give."""
    return NeuralType((_BATCH, AxisType(AxisKind.Dimension, size), _TIME), element)
