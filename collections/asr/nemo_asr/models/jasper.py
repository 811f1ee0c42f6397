"""Jasper and QuartzNet as neural modules: the encoder and the decoders, with ports. Layers: `jasper_blocks`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Annotated, Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.arguments import Channels, Classes, Labels, Splicing, Word, look_up, refuse_too_large
from nemo_asr.models.convolution import TimeConv1d
from nemo_asr.models.frames import Frames, valid_frames
from nemo_asr.models.jasper_blocks import ACTIVATIONS, JasperBlock, init_weights
from nemo_asr.models.jasper_spec import RESIDUAL_MODES, JasperBlockSpec, block_problems, read_blocks
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.config.ranges import Between, Checked, Items
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

Block: TypeAlias = Annotated[Mapping[str, Any], Checked(block_problems)]
Blocks: TypeAlias = Annotated[Sequence[Block], Items(0, 256)]  # the largest models have 23

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
        activation: Word,
        feat_in: Channels,
        normalization_mode: Word = "batch",
        residual_mode: Word = "add",
        norm_groups: Annotated[int, Between(1, 65_536, also=(-1,))] = -1,
        conv_mask: bool = True,
        frame_splicing: Splicing = 1,
        init_mode: Word = "xavier_uniform",
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
        self._intermediate = None if intermediate_block is None else _intermediate_of(intermediate_block, len(specs))
        self._intermediate_filters = 0 if self._intermediate is None else specs[self._intermediate].filters
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
        outputs = frames_type(self._feat_out, AcousticEncodedRepresentation())
        ports = {"outputs": outputs, "encoded_lengths": NeuralType("B", LengthsType())}
        if self._intermediate is None:
            return ports
        intermediate = frames_type(self._intermediate_filters, AcousticEncodedRepresentation())
        return {**ports, "intermediate": intermediate, "intermediate_lengths": NeuralType("B", LengthsType())}

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, _, time = shapes["audio_signal"]
        known = {"outputs": (batch, self._feat_out, ceil_div(time, self._stride)), "encoded_lengths": (batch,)}
        if self._intermediate is None:
            return known
        intermediate = (batch, self._intermediate_filters, ceil_div(time, self._intermediate_stride))
        return {**known, "intermediate": intermediate, "intermediate_lengths": (batch,)}

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
        own = {_oldest_name(name): name for name in self.state_dict()}
        return {own.get(_oldest_name(name), name): value for name, value in tensors.items()}


# encoder.1.mconv.0.conv.weight today, encoder.1.mconv.0.weight with conv_mask: false, encoder.1.conv.0.weight in 0.8
_PART = re.compile(r"^(encoder\.\d+\.)m?(conv|res|out)((?:\.\d+)+)(?:\.conv)?(?=\.)")


def _oldest_name(name: str) -> str:
    return _PART.sub(r"\1\2\3", name)


def _intermediate_of(block: int, num_blocks: int) -> int:
    """The index of the intermediate block; -1 stands for the block of half the depth, as in Lee and Watanabe."""
    if not -1 <= block < num_blocks - 1:
        wanted = f"a block before the last one, 0 to {num_blocks - 2}, or -1 for that of half the depth"
        raise UsageError("no such intermediate block", place="JasperEncoder", got=str(block), wanted=wanted)
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
    context_frames = 0

    def __init__(
        self,
        feat_in: Channels,
        num_classes: Classes,
        init_mode: Word = "xavier_uniform",
        vocabulary: Labels | None = None,
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
    if twice:
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
        init_mode: Word = "xavier_uniform",
        return_logits: bool = True,
        pooling_type: Word = "avg",
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


def frames_type(size: int, element: ElementType) -> NeuralType:
    """(B, size, T) of an element: what encoders take and give."""
    return NeuralType((_BATCH, AxisType(AxisKind.Dimension, size), _TIME), element)
