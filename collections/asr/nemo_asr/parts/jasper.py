"""NeMo's layers of Jasper: the arguments and results of NeMo around those of ``models/``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nemo_asr.models import jasper as jasper_blocks
from nemo_asr.models import jasper as squeeze_excite
from nemo_asr.models.jasper import Frames, read_blocks, same_padding
from nemo_asr.models.speaker import pooled
from nemo_lite.errors import UsageError

__all__ = [
    "GroupShuffle",
    "JasperBlock",
    "MaskedConv1d",
    "SqueezeExcite",
    "StatsPoolLayer",
    "Swish",
    "compute_new_kernel_size",
    "get_same_padding",
    "init_weights",
    "jasper_activations",
]

Swish = nn.SiLU
jasper_activations = jasper_blocks.ACTIVATIONS


def init_weights(m: nn.Module, mode: str = "xavier_uniform") -> None:
    """Draw the weights of a convolution or a linear layer anew; ``module.apply`` calls this for each.

    Raises:
        UnknownNameError: there is no initialisation of this name.
    """
    if isinstance(m, (nn.Conv1d, nn.Linear)):
        jasper_blocks.init_weights(m, mode, "init_weights")


def compute_new_kernel_size(kernel_size: int, kernel_width: float) -> int:
    """``kernel_size * kernel_width`` rounded down, at least 1, then up to the next odd number."""
    return max(int(kernel_size * kernel_width), 1) | 1


def get_same_padding(kernel_size: int, stride: int, dilation: int) -> int:
    """Zeros on each side that keep the number of frames at stride 1.

    Raises:
        UsageError: stride and dilation are both above 1, or the kernel is even.
    """
    if stride > 1 and dilation > 1:
        got = f"stride {stride} and dilation {dilation}"
        raise UsageError("only one of stride and dilation may be above 1", place="get_same_padding", got=got)
    return same_padding(kernel_size, dilation)


class MaskedConv1d(nn.Module):
    """A convolution over time that is not to see what lies behind an utterance.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias: as those of ``nn.Conv1d``.
        heads: filters that the channels of a depthwise convolution share; -1: none is shared.
        use_mask: write zeros behind each utterance first.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        groups: int = 1,
        heads: int = -1,
        bias: bool = False,
        use_mask: bool = True,
    ) -> None:
        super().__init__()
        if heads != -1 and not in_channels == out_channels == groups:
            raise UsageError("heads need a depthwise convolution", place="MaskedConv1d", got=f"{groups} groups")
        self.heads, self.use_mask = heads, use_mask
        sizes = (heads, heads) if heads != -1 else (in_channels, out_channels)
        shared = groups if heads == -1 else heads
        self.conv = nn.Conv1d(*sizes, kernel_size, stride, padding, dilation, shared, bias)

    def get_seq_len(self, lens: Tensor) -> Tensor:
        """(B,) frames out of so many frames in."""
        window = self.conv.dilation[0] * (self.conv.kernel_size[0] - 1) + 1
        return (lens + 2 * int(self.conv.padding[0]) - window) // self.conv.stride[0] + 1

    def forward(self, x: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C_in, T) and the valid frames (B,) -> (B, C_out, U) and the valid frames."""
        if self.use_mask:
            x, lens = Frames(lens).masked(x), self.get_seq_len(lens)
        if self.heads == -1:
            return self.conv(x), lens
        out: Tensor = self.conv(x.reshape(-1, self.heads, x.shape[2]))
        return out.reshape(x.shape[0], x.shape[1], -1), lens


class GroupShuffle(jasper_blocks.GroupShuffle):
    """Deals the channels of each group out over all groups.

    Args:
        groups: how many.
        channels: channels in all.
    """

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__(groups)
        self.channels_per_group = channels // groups


class SqueezeExcite(squeeze_excite.SqueezeExcite):
    """Squeeze-and-excitation over all frames of a batch; see `nemo_asr.models.jasper.SqueezeExcite`."""

    def forward(self, x: Tensor, frames: Frames | None = None) -> Tensor:
        """(B, C, T) -> (B, C, T)."""
        return super().forward(x, frames or _all_frames(x))


class StatsPoolLayer(nn.Module):
    """Mean and standard deviation of each channel over time, and with ``gram`` the products of pairs of channels.

    Args:
        gram: products of pairs of channels only.
        super_vector: products, mean and deviation.
    """

    def __init__(self, gram: bool = False, super_vector: bool = False) -> None:
        super().__init__()
        self.mode = "superVector" if super_vector else "gram" if gram else "xvector"

    def forward(self, encoder_output: Tensor) -> Tensor:
        """(B, C, T) -> (B, 2C), or (B, C * C), or (B, C * C + 2C)."""
        return pooled(encoder_output, None, self.mode)


class JasperBlock(jasper_blocks.JasperBlock):
    """A block of Jasper; its arguments are NeMo's, see `JasperBlockSpec` for what they mean.

    Args:
        inplanes: channels in.
        planes: channels out.
        padding: "same".
        residual_panes: channels of the inputs that a dense block adds.
    """

    def __init__(
        self,
        inplanes: int,
        planes: int,
        repeat: int = 3,
        kernel_size: int | Sequence[int] = 11,
        kernel_size_factor: float = 1,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        padding: str = "same",
        dropout: float = 0.2,
        activation: nn.Module | None = None,
        residual: bool = True,
        groups: int = 1,
        separable: bool = False,
        heads: int = -1,
        normalization: str = "batch",
        norm_groups: int = 1,
        residual_mode: str = "add",
        residual_panes: Sequence[int] = (),
        conv_mask: bool = False,
        se: bool = False,
        se_reduction_ratio: int = 16,
        se_context_window: int | None = None,
        se_interpolation_mode: str = "nearest",
        stride_last: bool = False,
    ) -> None:
        if padding != "same":
            raise UsageError("padding is not supported", place="JasperBlock", got=str(padding), wanted='"same"')
        (spec,) = read_blocks(
            [
                {
                    **{"filters": planes, "repeat": repeat, "kernel": kernel_size, "stride": stride},
                    **{"dilation": dilation, "dropout": dropout, "residual": residual, "groups": groups},
                    **{"residual_dense": bool(residual_panes), "residual_mode": residual_mode, "separable": separable},
                    **{"heads": heads, "se": se, "se_reduction_ratio": se_reduction_ratio},
                    "se_context_window": -1 if se_context_window is None else se_context_window,
                    "se_interpolation_mode": se_interpolation_mode,
                    **{"kernel_size_factor": kernel_size_factor, "stride_last": stride_last},
                }
            ]
        )
        super().__init__(
            inplanes,
            spec,
            activation=activation or nn.Hardtanh(0.0, 20.0),
            normalization_mode=normalization,
            norm_groups=norm_groups,
            residual_channels=residual_panes,
            conv_mask=conv_mask,
        )
        self.conv_mask = conv_mask

    def forward(  # type: ignore[override]  # one pair in, as in NeMo
        self, input_: tuple[list[Tensor], Tensor | None]
    ) -> tuple[list[Tensor], Tensor]:
        """Inputs (B, C, T), the block's own last, and the valid frames (B,) -> the same of the next block."""
        inputs, lens = input_
        frames = _all_frames(inputs[-1]) if lens is None else Frames(lens.long(), self.conv_mask)
        outputs, out_frames = super().forward([frames.masked(x) for x in inputs], frames)
        return outputs, out_frames.lengths


def _all_frames(x: Tensor) -> Frames:
    return Frames(torch.full((x.shape[0],), x.shape[2], device=x.device), is_masking=False)
