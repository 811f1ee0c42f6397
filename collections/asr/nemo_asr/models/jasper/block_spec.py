"""One block of an encoder as its configuration has it: the keys, their defaults, and what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_type_hints

from nemo_asr.run.arguments import Channels
from nemo_lite.base.config import Checked, Config, Keys, Source, check_call, raise_if, unknown_key
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between, refuse_out_of_range
from nemo_lite.utils import logging

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


Block: TypeAlias = Annotated[Mapping[str, Any], Checked(block_problems)]
Blocks: TypeAlias = Sequence[Block]
