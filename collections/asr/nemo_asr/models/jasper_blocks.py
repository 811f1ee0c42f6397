"""The blocks of Jasper and QuartzNet as plain ``nn.Module``s: activations, normalisations, the block itself.

The names of their parameters are those of NeMo 0.x, so that its weights load. No ports and no neural types here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nemo_asr.arguments import look_up
from nemo_asr.models.convolution import MaskedConv1d, TimeConv1d
from nemo_asr.models.frames import Frames, clear, is_time_major, runs_on_cpu
from nemo_asr.models.jasper_spec import JasperBlockSpec, ResidualMode
from nemo_asr.models.squeeze_excite import SqueezeExcite
from nemo_lite.errors import UsageError

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
            if isinstance(layer, (SqueezeExcite, MaskedGroupNorm)):
                return None
        for layer in self.mconv:
            convolution = layer.conv if isinstance(layer, MaskedConv1d) else layer
            if isinstance(convolution, TimeConv1d):
                total += frames_between * int(convolution.padding[0])
                frames_between *= convolution.stride[0]
        return total  # a residual has kernels of one frame

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


def _convolutions(
    convolution: Callable[..., nn.Module], in_channels: int, spec: JasperBlockSpec, stride: int
) -> list[nn.Module]:
    window = {"stride": stride, "dilation": spec.dilation_size}
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
