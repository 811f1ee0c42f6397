"""One block of a Jasper encoder as its configuration has it: the keys, their defaults, and what is wrong with them.

No torch and no modules in this file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from nemo_lite.config import Config, check_call, raise_if, unknown_key
from nemo_lite.config.values import Keys, Source
from nemo_lite.errors import UsageError
from nemo_lite.utils import logging

ResidualMode = Literal["add", "max", "stride_add", "stride_last"]
RESIDUAL_MODES: tuple[ResidualMode, ...] = get_args(ResidualMode)
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

    Blocks that a script wrote, or read by itself, are taken as NeMo takes them: a key that is not known is left out
    with a warning, 0 and 1 are truth values, and 4.0 is a whole number.

    Raises:
        ConfigError: everything that is wrong with any block, one line each: wrong types, ranges, contradictions; where
            a block is a :class:`Config`, also unknown keys, and file, line and column.
    """
    blocks = [_placed(block, index) for index, block in enumerate(jasper)]
    raise_if([each for block in blocks for each in _problems_of(block)] or _NO_BLOCKS[: not blocks])
    return [JasperBlockSpec(**block) for block in blocks]


def _problems_of(block: Config) -> list[str]:
    problems = check_call(block, JasperBlockSpec)
    if not problems:
        try:
            JasperBlockSpec(**block)
        except UsageError as error:
            problems = [f"{block.place_to_blame()}: {block.path}: {error}"]
    return problems


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
    kind = JasperBlockSpec.__annotations__[key]
    if kind == "bool" and value in (0, 1):
        return bool(value)
    if isinstance(value, list):
        return [_converted(key, item) for item in value]
    whole = isinstance(value, float) and (key == "kernel" or value.is_integer())
    return int(value) if whole and kind.startswith("int") else value


class _InScript(Source):
    """The source of a block that was written in a script: no line is known."""

    def place(self, keys: Keys) -> str:
        return self.name


def _only(value: int | list[int]) -> int:
    return value if isinstance(value, int) else value[0]
