"""ContextNet as neural modules: an encoder of Jasper's blocks, and a decoder with a recurrent layer, for CTC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.models.jasper import Blocks, JasperEncoder, frames_type, init_weights
from nemo_asr.run.arguments import Channels, Classes, Splicing, refuse_too_large
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.backends.pytorch.streaming import Delay, State
from nemo_lite.base.ranges import Between
from nemo_lite.core.neural_types import AcousticEncodedRepresentation, AxisKind, AxisType, LogprobsType, NeuralType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape


class ContextNetEncoder(JasperEncoder):
    """A :class:`JasperEncoder` (with its arguments and ports) that does not mask by default.

    ContextNet's blocks are separable convolutions with squeeze-and-excitation (``se: true``); ``se_context_size`` is
    an older name of their key ``se_context_window``.

    Source: Han et al., "ContextNet", Interspeech 2020.

    Args:
        jasper: each block has the keys of :class:`JasperBlockSpec`.
        activation: hardtanh, relu, selu or swish.
        feat_in: features of a frame.
        normalization_mode: batch, layer, group or instance.
        residual_mode: add, max, stride_add or stride_last, for blocks that have none of their own.
        norm_groups: groups of ``group`` normalisation; -1: one for each channel.
        conv_mask: keep padding out of convolutions and averages. With False an utterance's encoding depends on how far
            its batch is padded.
        frame_splicing: frames that were stacked into one; D is ``feat_in * frame_splicing``.
        init_mode: xavier_uniform, xavier_normal, kaiming_uniform or kaiming_normal.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        ConfigError, UsageError, UnknownNameError: as :class:`JasperEncoder`.
    """

    def __init__(
        self,
        jasper: Blocks,
        activation: str,
        feat_in: Channels,
        normalization_mode: str = "batch",
        residual_mode: str = "add",
        norm_groups: Annotated[int, Between(1, 65_536, also=(-1,))] = -1,
        conv_mask: bool = False,
        frame_splicing: Splicing = 1,
        init_mode: str = "xavier_uniform",
        name: str | None = None,
    ) -> None:
        super().__init__(
            jasper=jasper,
            activation=activation,
            feat_in=feat_in,
            normalization_mode=normalization_mode,
            residual_mode=residual_mode,
            norm_groups=norm_groups,
            conv_mask=conv_mask,
            frame_splicing=frame_splicing,
            init_mode=init_mode,
            name=name,
        )


class ContextNetDecoderForCTC(TrainableNM):
    """A recurrent layer (LSTM) over the frames, one linear layer on each, and log-softmax.

    Shapes: B utterances, C channels, U frames, ``num_classes + 1`` classes of which the last is CTC's blank. A frame
    depends on those before it, so padding behind an utterance changes nothing.

    Args:
        feat_in: channels of the encoder's output.
        num_classes: labels, without the blank.
        hidden_size: of the recurrent layer.
        init_mode: of the linear layer: xavier_uniform, xavier_normal, kaiming_uniform or kaiming_normal.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UnknownNameError: an unknown initialisation.
    """

    is_ctc = True

    def __init__(
        self,
        feat_in: Channels,
        num_classes: Classes,
        hidden_size: Annotated[int, Between(1, 65_536)] = 640,
        init_mode: str = "xavier_uniform",
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self._feat_in, self._num_classes = feat_in, num_classes + 1
        refuse_too_large("ContextNetDecoderForCTC", hidden_size * (4 * (feat_in + hidden_size) + num_classes + 1))
        self.rnn = nn.LSTM(feat_in, hidden_size, batch_first=True)
        self.clf = nn.Linear(hidden_size, self._num_classes)
        init_weights(self.clf, init_mode, "ContextNetDecoderForCTC")

    @property
    def input_ports(self) -> Ports:
        return {"encoder_output": frames_type(self._feat_in, AcousticEncodedRepresentation())}

    @property
    def output_ports(self) -> Ports:
        axes = AxisType(AxisKind.Batch), AxisType(AxisKind.Time), AxisType(AxisKind.Dimension, self._num_classes)
        return {"output": NeuralType(axes, LogprobsType())}

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, _, time = shapes["encoder_output"]
        return {"output": (batch, time, self._num_classes)}

    def forward(self, encoder_output: Tensor) -> Tensor:
        """(B, C, U) -> (B, U, num_classes + 1), natural logarithms of probabilities, in float32 at least."""
        states, _ = self.rnn(encoder_output.transpose(1, 2))
        return self._log_probs(states)

    def _log_probs(self, states: Tensor) -> Tensor:
        scores: Tensor = self.clf(states)
        return F.log_softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))

    def stream_problem(self) -> str:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        return ""

    def stream_delay(self) -> Delay:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        return Delay()

    def initial_state(self, batch: int) -> State:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        zeros = self.clf.weight.new_zeros(1, batch, self.rnn.hidden_size)
        return {"hidden": zeros, "cell": zeros}

    def step(self, encoder_output: Tensor, *, state: State, last: bool) -> tuple[tuple[Tensor, ...], State]:
        """The next frames (B, C, U) to (B, U, num_classes + 1)."""
        if not encoder_output.shape[2]:
            return (encoder_output.new_zeros(encoder_output.shape[0], 0, self._num_classes),), state
        states, (hidden, cell) = self.rnn(encoder_output.transpose(1, 2), (state["hidden"], state["cell"]))
        return (self._log_probs(states),), {"hidden": hidden, "cell": cell}
