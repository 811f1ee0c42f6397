"""The block of Jasper and QuartzNet, a plain ``nn.Module``, and its activations.

The names of parameters are those of NeMo 0.x, so that its weights load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from nemo_asr.models.jasper.block_spec import JasperBlockSpec, ResidualMode
from nemo_asr.models.jasper.layers import (
    Frames,
    MaskedConv1d,
    MaskedGroupNorm,
    TimeConv1d,
    clear,
    is_time_major,
    make_normalization,
    runs_on_cpu,
)
from nemo_asr.models.jasper.squeeze_excite import SqueezeExcite
from nemo_lite.backends.pytorch.streaming import ChunkFrames, Delay, State, in_step
from nemo_lite.base.errors import UsageError

_T = TypeVar("_T")

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "hardtanh": nn.Hardtanh,
    "relu": nn.ReLU,
    "selu": nn.SELU,
    "swish": nn.SiLU,
}


def activated(activation: nn.Module, summands: Sequence[Tensor], frames: Frames) -> Tensor:
    """The activation of the sum of tensors (B, C, T), with zeros behind each utterance."""
    if isinstance(activation, nn.ReLU) and all(runs_on_cpu(x) and is_time_major(x) for x in summands):
        out: Tensor = _ReluOfSum.apply(frames.padding(summands[0].shape[2]), *summands)
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
