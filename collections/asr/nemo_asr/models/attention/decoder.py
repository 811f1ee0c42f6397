"""Attention decoders: encoded frames and the labels so far to the probabilities of the next one.

Arguments and names of weights are WeNet's, so its weights fit; see `nemo_asr.trained.wenet`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.models.attention.layers import (
    DecoderLayer,
    Seen,
    check_heads,
    check_sines,
    labels_before,
)
from nemo_asr.models.conformer.self_attention import (
    FULL_CONTEXT,
    HIDDEN_SCORE,
    hidden_frames,
    position_embeddings,
)
from nemo_asr.models.jasper.layers import BATCH, TIME, frames_type
from nemo_asr.run.arguments import Channels, Classes, refuse_too_large
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between
from nemo_lite.core.neural_types import (
    AcousticEncodedRepresentation,
    AxisKind,
    AxisType,
    LabelsType,
    LengthsType,
    LogprobsType,
    NeuralType,
)
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape

Dropout: TypeAlias = Annotated[float, Between(0, 1, below=True)]
_PLACE = "TransformerDecoder"
Layers: TypeAlias = Annotated[int, Between(1, 256)]
Heads: TypeAlias = Annotated[int, Between(1, 1_024)]
ActivationName: TypeAlias = Literal["relu", "gelu", "swish"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu}


class DecoderState(NamedTuple):
    """What a decoder remembers of B utterances with K hypotheses each.

    Attributes:
        frames: for each layer keys and values of the encoded frames, of B utterances.
        labels: for each layer keys and values of the labels so far, of B * K hypotheses.
        extra: what else a decoder remembers of B * K hypotheses.
    """

    frames: tuple[Seen, ...]
    labels: tuple[Seen, ...]
    extra: tuple[Tensor, ...] = ()

    @property
    def num_labels(self) -> int:
        """Labels so far."""
        return self.labels[0].keys.shape[2]

    def chosen(self, utterances: Tensor, hypotheses: Tensor) -> DecoderState:
        """Of some utterances (B',) and, of each, some hypotheses (B', K'), which count from 0 in each utterance."""
        width = len(self.labels[0].keys) // len(self.frames[0].keys)
        rows = (utterances.unsqueeze(1) * width + hypotheses).flatten()
        frames = self.frames
        if len(utterances) < len(frames[0].keys):
            frames = tuple(_rows_of(each, utterances) for each in frames)
        labels, extra = (_rows_of(each, rows) for each in self.labels), (part[rows] for part in self.extra)
        return DecoderState(frames, tuple(labels), tuple(extra))


def _rows_of(seen: Seen, rows: Tensor) -> Seen:
    hidden = seen.hidden
    return Seen(seen.keys[rows], seen.values[rows], hidden if hidden is None else hidden[rows])


class AttentionDecoder(TrainableNM):
    """Encoded frames (B, D, T) and labels (B, U) to log-probabilities (B, U + 1, outputs) of each next label.

    The first row is that of the first label, the last one that of the end. Outputs are the ``num_classes`` labels, the
    end, and perhaps others, which no text has. Derive, and write ``forward``, ``begin`` and ``step``.

    Attributes:
        num_classes: labels.
        end: the output behind the last label of a text.
        start: what stands before the first label: one input, or several.
        num_silent: outputs behind the end that it may say and that no text has.
        most_labels: that it can say; None: any number.
        labels_beyond: labels that a text may have more than its recording has encoded frames.
        times: outputs behind the end that are found between labels now: numbers of frames, from 0 on; empty: none.
        hears_padding: it attends to frames behind the valid ones too, which are not padding then.
        reverse_weight: share of a second decoder, which reads texts from the right to the left; 0: there is none.
        label_tensors: its weights with a row for each label, which fine-tuning takes over by label.
    """

    label_tensors: Sequence[str] = ()
    num_silent: int = 0
    most_labels: int | None = None
    labels_beyond: int = 0
    times: range = range(0)
    hears_padding: bool = False
    reverse_weight: float = 0.0

    def __init__(self, feat_in: int, num_classes: int, num_outputs: int, name: str | None) -> None:
        super().__init__(name=name)
        self.num_classes, self.end, self.num_outputs = num_classes, num_classes, num_outputs
        self.start: Sequence[int] = (self.end,)
        self._feat_in = feat_in

    @property
    def input_ports(self) -> Ports:
        return {
            "encoded": frames_type(self._feat_in, AcousticEncodedRepresentation()),
            "labels": NeuralType("B T", LabelsType()),
            "num_frames": NeuralType("B", LengthsType()),
            "num_labels": NeuralType("B", LengthsType()),
        }

    @property
    def output_ports(self) -> Ports:
        outputs = AxisType(AxisKind.Dimension, self.num_outputs)
        return {"log_probs": NeuralType((BATCH, TIME, outputs), LogprobsType())}

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, num_labels = shapes["labels"]
        return dict.fromkeys(self.output_ports, (batch, num_labels + 1, self.num_outputs))

    def forward(
        self, encoded: Tensor, labels: Tensor, num_frames: Tensor, num_labels: Tensor
    ) -> Tensor | tuple[Tensor, ...]:
        """Rows behind a text's end are padding."""
        raise NotImplementedError

    def begin(self, encoded: Tensor, num_frames: Tensor, width: int = 1) -> DecoderState:
        """In front of the start of ``width`` hypotheses for each utterance.

        Args:
            encoded: (B, D, T).
            num_frames: (B,).
            width: K.
        """
        raise NotImplementedError

    def step(self, labels: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Log-probabilities (B, K, outputs) of what comes behind one more label (B, K) of each hypothesis."""
        raise NotImplementedError


class SineEmbedding(nn.Sequential):
    """Labels to vectors, times the root of their size, plus sines and cosines of their positions.

    Source: Vaswani et al., "Attention Is All You Need", NeurIPS 2017, sections 3.4 and 3.5.

    Args:
        num_labels: inputs.
        size: channels.
        dropout: probability, of the sum.
    """

    def __init__(self, num_labels: int, size: int, dropout: float) -> None:
        super().__init__(nn.Embedding(num_labels, size))
        self._size, self._dropout = size, dropout

    def forward(self, labels: Tensor, first: int, num_positions: int) -> Tensor:  # type: ignore[override]  # of one input
        """(B, U) -> (B, U, D), of U positions from ``first`` on, or of one that all have."""
        positions = position_embeddings(first, num_positions, 1, self._size, labels.device)
        x: Tensor = self[0](labels) * math.sqrt(self._size)
        return F.dropout(x + positions.to(x.dtype), self._dropout, self.training)


class LabelLayers(nn.Module):
    """Embedding, layers and outputs of a decoder that reads texts in one direction.

    Args:
        embed: labels (B, U), the first position and the number of positions to (B, U, D).
        decoders: layers of size D.
        after_norm: behind the last of them.
        output_layer: (B, U, D) to scores (B, U, outputs).
    """

    def __init__(
        self, embed: nn.Module, decoders: Sequence[DecoderLayer], after_norm: nn.Module, output_layer: nn.Module
    ) -> None:
        super().__init__()
        self.embed, self.decoders = embed, nn.ModuleList(decoders)
        self.after_norm, self.output_layer = after_norm, output_layer

    def forward(self, encoded: Tensor, labels: Tensor, num_frames: Tensor) -> Tensor:
        """Frames (B, D, T) and inputs (B, U) to log-probabilities (B, U, outputs)."""
        num_labels = labels.shape[1]
        x, hidden = self.embed(labels, 0, num_labels), labels_before(num_labels, labels.device)
        for layer, frames in zip(self.decoders, self._frames(encoded, num_frames), strict=True):
            x = layer(x, hidden, frames)
        return self._log_probs(x)

    def begin(self, encoded: Tensor, num_frames: Tensor, width: int) -> DecoderState:
        """See `AttentionDecoder`."""
        frames = self._frames(encoded, num_frames)
        _, heads, _, size = frames[0].keys.shape
        nothing = frames[0].keys.new_zeros(len(encoded) * width, heads, 0, size)
        return DecoderState(frames, (Seen(nothing, nothing),) * len(frames))

    def step(self, labels: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """See `AttentionDecoder`."""
        return self._behind(self.embed(labels, state.num_labels, 1), None, state)

    def continued(self, labels: Tensor, state: DecoderState, left_out: int = 0) -> tuple[Tensor, DecoderState]:
        """Several more labels (B, U) of texts, one hypothesis each, to log-probabilities (B, U, outputs) behind each.

        Args:
            labels: those labels.
            state: before them.
            left_out: so many labels at the beginning of texts count for nothing: the others do not see them, and
                the positions begin behind them.
        """
        first, count = state.num_labels, labels.shape[1]
        labels_at, seen_at = (torch.arange(end, device=labels.device) for end in (count, first + count))
        labels_at = (labels_at + first).unsqueeze(1)
        is_hidden = (seen_at > labels_at) | ((seen_at < left_out) & (labels_at >= left_out))
        hidden = (is_hidden * HIDDEN_SCORE)[None, None]
        return self._behind(self.embed(labels, first - left_out, count), hidden, state)

    def _behind(self, x: Tensor, hidden: Tensor | None, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Embedded labels behind a state; ``hidden`` as of `DecoderLayer.continued`."""
        now = list[Seen]()
        for layer, before, frames in zip(self.decoders, state.labels, state.frames, strict=True):
            x, seen = layer.continued(x, before, hidden, frames)  # type: ignore[operator]  # a layer
            now.append(seen)
        return self._log_probs(x), DecoderState(state.frames, tuple(now))

    def _frames(self, encoded: Tensor, num_frames: Tensor) -> tuple[Seen, ...]:
        """Of each layer keys and values of the frames."""
        x = encoded.transpose(1, 2)
        hidden = hidden_frames(num_frames, x.shape[1], FULL_CONTEXT)
        return tuple(layer.src_attn.seen(x, hidden and hidden.keys) for layer in self.decoders)  # type: ignore[operator, union-attr]  # of layers

    def _log_probs(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.output_layer(self.after_norm(x)), -1)


class TransformerDecoder(AttentionDecoder):
    """A decoder of WeNet's recipes; with ``r_num_blocks`` one from the right to the left beside it (bitransformer).

    What the second one says of a label, from those behind it, is in the second output ``reversed_log_probs``, in the
    order of the text: row k is of label k, and the last one that nothing stands before the first.

    Sources: Vaswani et al., "Attention Is All You Need", NeurIPS 2017; Wu et al., "U2++: Unified Two-pass Bidirectional
    End-to-end Model for Speech Recognition", 2021.

    Args:
        feat_in: channels of the encoder, and of the decoder.
        num_classes: labels.
        attention_heads: heads of attention, which divide the channels.
        linear_units: channels inside of feed-forward modules.
        num_blocks: layers.
        r_num_blocks: layers of the second decoder; 0: there is none.
        reverse_weight: share of the second decoder in the loss; 0: it is neither trained nor computed.
        dropout_rate: probability, behind and inside of modules.
        positional_dropout_rate: probability, of embedded labels with their positions.
        self_attention_dropout_rate, src_attention_dropout_rate: probability, of attention weights to labels and frames.
        activation_type: of feed-forward modules.
        num_extra_outputs: outputs behind the end that no text has: WeNet's decoders have one for the blank.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UsageError: heads that do not divide the channels, or an odd number of these; a weight without a second decoder;
            more weights than a model may have.
    """

    def __init__(
        self,
        feat_in: Channels,
        num_classes: Classes,
        attention_heads: Heads = 4,
        linear_units: Channels = 2048,
        num_blocks: Layers = 6,
        r_num_blocks: Annotated[int, Between(0, 256)] = 0,
        reverse_weight: Annotated[float, Between(0, 1)] = 0.0,
        dropout_rate: Dropout = 0.1,
        positional_dropout_rate: Dropout = 0.1,
        self_attention_dropout_rate: Dropout = 0.0,
        src_attention_dropout_rate: Dropout = 0.0,
        activation_type: ActivationName = "relu",
        num_extra_outputs: Annotated[int, Between(0, 1_000)] = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(feat_in, num_classes, num_classes + 1 + num_extra_outputs, name)
        check_heads(_PLACE, attention_heads, feat_in)
        check_sines(_PLACE, feat_in)
        if reverse_weight and not r_num_blocks:
            problem, wanted = "there is no second decoder", "r_num_blocks above 0, or no reverse_weight"
            raise UsageError(problem, place=_PLACE, got=f"reverse_weight {reverse_weight}", wanted=wanted)
        of_layer = feat_in * (8 * feat_in + 2 * linear_units)
        num_decoders = 1 + (r_num_blocks > 0)
        of_outputs = 2 * self.num_outputs * feat_in * num_decoders
        refuse_too_large(_PLACE, (num_blocks + r_num_blocks) * of_layer + of_outputs)

        def layers(number: int) -> LabelLayers:
            decoders = [
                DecoderLayer(
                    feat_in,
                    attention_heads,
                    linear_units,
                    ACTIVATIONS[activation_type],
                    dropout=dropout_rate,
                    inner_dropout=dropout_rate,
                    label_dropout=self_attention_dropout_rate,
                    frame_dropout=src_attention_dropout_rate,
                )
                for _ in range(number)
            ]
            embed = SineEmbedding(self.num_outputs, feat_in, positional_dropout_rate)
            return LabelLayers(embed, decoders, nn.LayerNorm(feat_in), nn.Linear(feat_in, self.num_outputs))

        self.left_decoder = layers(num_blocks)
        self.right_decoder = layers(r_num_blocks) if r_num_blocks else None
        self.reverse_weight = reverse_weight
        if self.right_decoder is not None and not reverse_weight:
            self.right_decoder.requires_grad_(False)
        # Weights with a row for each label, which fine-tuning takes over by label.
        tensors = "embed.0.weight", "output_layer.weight", "output_layer.bias"
        sides = ("left_decoder", "right_decoder")[:num_decoders]
        self.label_tensors = [f"{side}.{tensor}" for side in sides for tensor in tensors]

    @property
    def output_ports(self) -> Ports:
        (log_probs,) = super().output_ports.values()
        return dict.fromkeys(("log_probs", "reversed_log_probs")[: 1 + bool(self.reverse_weight)], log_probs)

    def forward(
        self, encoded: Tensor, labels: Tensor, num_frames: Tensor, num_labels: Tensor
    ) -> Tensor | tuple[Tensor, ...]:
        """See `AttentionDecoder`."""
        labels = labels.long().clamp(0, self.num_classes - 1)
        start = labels.new_full((len(labels), 1), self.end)
        log_probs: Tensor = self.left_decoder(encoded, torch.cat([start, labels], 1), num_frames)
        if self.right_decoder is None or not self.reverse_weight:
            return log_probs
        # Label k from the left is label num_labels - 1 - k from the right; padding may be anything.
        last = num_labels.long().unsqueeze(1) - 1
        places = torch.arange(labels.shape[1] + 1, device=labels.device)
        backwards = last - places
        from_right = labels.gather(1, backwards[:, :-1].clamp(min=0))
        reversed_log_probs = self.right_decoder(encoded, torch.cat([start, from_right], 1), num_frames)
        order = torch.where(backwards < 0, places, backwards).unsqueeze(2)
        return log_probs, reversed_log_probs.gather(1, order.expand_as(reversed_log_probs))

    def begin(self, encoded: Tensor, num_frames: Tensor, width: int = 1) -> DecoderState:
        """See `AttentionDecoder`."""
        return self.left_decoder.begin(encoded, num_frames, width)

    def step(self, labels: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """See `AttentionDecoder`."""
        return self.left_decoder.step(labels, state)
