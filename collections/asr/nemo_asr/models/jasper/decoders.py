"""Decoders, with ports: log-probabilities of labels for CTC, and classes of whole utterances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.models.jasper.layers import BATCH, TIME, TimeConv1d, frames_type, init_weights, valid_frames
from nemo_asr.run.arguments import Channels, Classes, refuse_too_large
from nemo_asr.run.text.labels import is_piece
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.core.neural_types import (
    AcousticEncodedRepresentation,
    AxisKind,
    AxisType,
    LengthsType,
    LogitsType,
    LogprobsType,
    NeuralType,
)
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape


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
        return {"output": NeuralType((BATCH, TIME, classes), LogprobsType())}

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
        return {"logits": NeuralType((BATCH, AxisType(AxisKind.Dimension, self._num_classes)), LogitsType())}

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return {"logits": (shapes["encoder_output"][0], self._num_classes)}

    def forward(self, encoder_output: Tensor, encoded_lengths: Tensor | None = None) -> Tensor:
        """(B, C, U) and valid frames (B,) -> (B, num_classes)."""
        x, is_mean = encoder_output, self._pooling_type == "avg"
        if encoded_lengths is None:
            pooled = x.mean(2) if is_mean else x.amax(2)
        else:
            valid = valid_frames(encoded_lengths, x.shape[2])
            if is_mean:
                pooled = torch.where(valid, x, 0.0).sum(2) / encoded_lengths.clamp(min=1).unsqueeze(1).to(x.dtype)
            else:
                pooled = torch.where(valid, x, -torch.inf).amax(2)
        logits: Tensor = self.decoder_layers(pooled)
        return logits if self._return_logits else torch.softmax(logits, dim=-1)
