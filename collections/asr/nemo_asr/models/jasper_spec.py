"""One block of a Jasper encoder as its configuration has it: the keys, their defaults, and what is wrong with them.

No torch and no modules in this file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from nemo_lite.config import Config, check_call, raise_if
from nemo_lite.config.values import Keys, Source
from nemo_lite.errors import UsageError

ResidualMode = Literal["add", "max", "stride_add", "stride_last"]
RESIDUAL_MODES: tuple[ResidualMode, ...] = get_args(ResidualMode)


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
        se_interpolation_mode: how windowed averages are stretched to the number of frames.
        kernel_size_factor: multiplies ``kernel``.
        stride_last: only the last sub-block strides.
        se_context_size: an older name of ``se_context_window``, which ContextNet's files have.

    Raises:
        UsageError: a value out of its range, or keys that contradict each other.
    """

    filters: int
    repeat: int
    kernel: int | list[int]
    stride: int | list[int]
    dilation: int | list[int]
    dropout: float
    residual: bool
    residual_dense: bool = False
    residual_mode: ResidualMode | None = None
    groups: int = 1
    separable: bool = False
    heads: int = -1
    se: bool = False
    se_reduction_ratio: int = 8
    se_context_window: int = -1
    se_interpolation_mode: Literal["nearest", "linear", "area"] = "nearest"
    kernel_size_factor: float = 1.0
    stride_last: bool = False
    se_context_size: int | None = None

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise UsageError("; ".join(problems))

    def _problems(self) -> Iterator[str]:
        for key in ("filters", "repeat", "kernel", "stride", "dilation", "groups", "se_reduction_ratio"):
            value = getattr(self, key)
            numbers = [value] if isinstance(value, int) else value
            if len(numbers) != 1 or numbers[0] < 1:
                yield f"{key} is {value}, wanted one whole number of at least 1"
        if not 0 <= self.dropout < 1:
            yield f"dropout is {self.dropout}, wanted at least 0 and below 1"
        if not self.kernel_size_factor > 0:
            yield f"kernel_size_factor is {self.kernel_size_factor}, wanted more than 0"
        if self.residual_dense and not self.residual:
            yield "residual_dense is true, which needs residual: true"
        if self.heads != -1 and (self.heads < 1 or not self.separable):
            yield f"heads is {self.heads}, wanted -1, or at least 1 with separable: true"
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

    def strides(self, residual_mode: ResidualMode) -> list[int]:
        """The stride of each sub-block, under this residual mode."""
        stride = _only(self.stride)
        if self.stride_last or residual_mode == "stride_last":
            return [1] * (self.repeat - 1) + [stride]
        return [stride] * self.repeat


def read_blocks(jasper: Sequence[Mapping[str, Any]]) -> list[JasperBlockSpec]:
    """The blocks of an encoder, checked as a whole.

    Raises:
        ConfigError: everything that is wrong with any block, one line each: unknown keys, wrong types, ranges,
            contradictions; with file, line and column where a block is a :class:`Config`.
    """
    problems = [problem for index, block in enumerate(jasper) for problem in _problems_of(_placed(block, index))]
    raise_if(problems if jasper else ["JasperEncoder: jasper has no blocks"])
    return [JasperBlockSpec(**block) for block in jasper]


def _problems_of(block: Config) -> list[str]:
    problems = check_call(block, JasperBlockSpec)
    if not problems:
        try:
            JasperBlockSpec(**block)
        except UsageError as error:
            problems = [f"{block.place_to_blame()}: {block.path}: {error}"]
    return problems


def _placed(block: Mapping[str, Any], index: int) -> Config:
    return block if isinstance(block, Config) else Config(block, _InScript("JasperEncoder"), ("jasper", index))


class _InScript(Source):
    """The source of a block that was written in a script: no line is known."""

    def place(self, keys: Keys) -> str:
        return self.name


def _only(value: int | list[int]) -> int:
    return value if isinstance(value, int) else value[0]
