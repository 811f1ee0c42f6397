"""The encoder of Jasper and QuartzNet: blocks one behind the other, with ports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from math import prod
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from nemo_asr.models.jasper.block import ACTIVATIONS, JasperBlock
from nemo_asr.models.jasper.block_spec import RESIDUAL_MODES, Blocks, JasperBlockSpec, read_blocks
from nemo_asr.models.jasper.layers import Frames, frames_type, init_weights
from nemo_asr.run.arguments import Channels, Splicing, look_up, refuse_too_large
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.backends.pytorch.streaming import ChunkFrames, Delay, State, keyed, num_new, prefixed
from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.base.ranges import Between
from nemo_lite.core.neural_types import AcousticEncodedRepresentation, LengthsType, NeuralType, SpectrogramType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, ceil_div

_CHUNK = 10  # frames of the input that an exported graph takes at once, at least


class JasperEncoder(TrainableNM):
    """Stack of 1-D convolution blocks over spectrogram frames.

    Shapes: B utterances, D features, T frames in, C channels, U = ceil(T / stride) frames out.
    Source: Li et al., "Jasper", Interspeech 2019; separable blocks: Kriman et al., "QuartzNet", ICASSP 2020.

    Args:
        jasper: each block has the keys of :class:`JasperBlockSpec`.
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
            if torch.compiler.is_exporting():
                frames = [ChunkFrames.of_chunk(length, state["num_frames"] * self._stride)]
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


def spectrogram_ports(feat_in: int) -> Ports:
    """The inputs of an encoder that needs lengths: spectrogram frames (B, ``feat_in``, T), and valid frames (B,)."""
    return {"audio_signal": frames_type(feat_in, SpectrogramType()), "length": NeuralType("B", LengthsType())}


def encoded_ports(size: int, intermediate: int | None) -> Ports:
    """The outputs of an encoder; ``intermediate``: channels of a block inside whose output is given too."""
    outputs = frames_type(size, AcousticEncodedRepresentation())
    ports = {"outputs": outputs, "encoded_lengths": NeuralType("B", LengthsType())}
    if intermediate is None:
        return ports
    inside = frames_type(intermediate, AcousticEncodedRepresentation())
    return {**ports, "intermediate": inside, "intermediate_lengths": NeuralType("B", LengthsType())}


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
