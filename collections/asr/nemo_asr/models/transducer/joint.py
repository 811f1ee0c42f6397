"""RNNTJoint: from an encoded frame and a state of the prediction network to scores of the next label, or of a blank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from torch import Tensor, nn

from nemo_asr.models.jasper.layers import BATCH, TIME, frames_type
from nemo_asr.models.transducer.prediction import Dropout
from nemo_asr.run.arguments import Channels, Classes, refuse_too_large
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.base.config import Checked, check_call
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between
from nemo_lite.core.neural_types import AcousticEncodedRepresentation, AxisKind, AxisType, NeuralType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape

_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


@dataclass(frozen=True)
class JointnetSpec:
    """The keys of ``jointnet``.

    Args:
        joint_hidden: size in which frames and states are added.
        pred_hidden: size of the states of the prediction network.
        encoder_hidden: channels of the encoder; in a recipe they follow from it.
        activation: relu, tanh or sigmoid, of the sum.
        dropout: probability, behind the activation.
    """

    joint_hidden: Channels
    pred_hidden: Channels
    encoder_hidden: Channels | None = None
    activation: Literal["relu", "tanh", "sigmoid"] = "relu"
    dropout: Dropout = 0.0


class RNNTJoint(TrainableNM):
    """Frames and states, each projected to ``joint_hidden``, added; an activation; a linear layer of scores.

    The outputs are the labels, big blanks if there are some, the blank, and one for each of the ``durations``. The
    module itself projects frames, once for a whole recording: the search, which reads them, gets it by reference and
    calls ``pred`` and ``joint_net``. The loss reads encoded frames, and calls ``enc`` too.

    Sources: Graves, "Sequence Transduction with Recurrent Neural Networks", 2012; durations: Xu et al., "Efficient
    Sequence Transduction by Jointly Predicting Tokens and Durations", ICML 2023; big blanks: Xu et al., "Multi-blank
    Transducers for Speech Recognition", ICASSP 2023.

    Args:
        jointnet: the keys of `JointnetSpec`.
        num_classes: labels, without any blank.
        durations: frames by which a label or a blank may go on, each with an output of its own (TDT); empty: a label
            stays at its frame, and a blank goes on by one.
        big_blank_durations: frames by which further blanks go on; each has an output in front of the blank.
        num_extra_outputs: as many as there are durations, or big blanks.
        feat_in: ``encoder_hidden``, where that is not given.
        vocabulary: the labels, if they are known.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UsageError: the extra outputs are not the durations, or no size of the encoder is given.
    """

    is_framewise = True
    context_frames = 0

    def __init__(
        self,
        jointnet: Annotated[Mapping[str, Any], Checked(lambda section: check_call(section, JointnetSpec))],
        num_classes: Classes,
        durations: Sequence[Annotated[int, Between(0, 1_000)]] = (),
        big_blank_durations: Sequence[Annotated[int, Between(2, 1_000)]] = (),
        num_extra_outputs: Annotated[int, Between(0, 1_000)] | None = None,
        feat_in: Channels | None = None,
        vocabulary: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        spec = JointnetSpec(**jointnet)
        self.durations, self.big_blank_durations = tuple(durations), tuple(big_blank_durations)
        if self.durations and self.big_blank_durations:
            problem, remedy = "a joint network has durations or big blanks", "leave one of the two out"
            raise UsageError(problem, place="RNNTJoint", got="both", remedy=remedy)
        if self.durations and max(self.durations) == 0:
            problem, wanted = "no duration leads on", "one above 0"
            raise UsageError(problem, place="RNNTJoint.durations", got=str(list(self.durations)), wanted=wanted)
        extra = len(self.durations) + len(self.big_blank_durations)
        if num_extra_outputs not in (None, extra):
            problem, got = "num_extra_outputs are not the durations", f"{num_extra_outputs}, of {extra} durations"
            raise UsageError(problem, place="RNNTJoint", got=got, wanted=str(extra))
        encoder_hidden = spec.encoder_hidden or feat_in
        if encoder_hidden is None:
            raise UsageError("the size of encoded frames is missing", place="RNNTJoint", wanted="feat_in")
        self.num_labels, self.blank = num_classes, num_classes + len(self.big_blank_durations)
        self.joint_hidden, self.pred_hidden, self._encoder_hidden = spec.joint_hidden, spec.pred_hidden, encoder_hidden
        num_outputs = num_classes + 1 + extra
        refuse_too_large("RNNTJoint", spec.joint_hidden * (encoder_hidden + spec.pred_hidden + num_outputs))
        self.pred = nn.Linear(spec.pred_hidden, spec.joint_hidden)
        self.enc = nn.Linear(encoder_hidden, spec.joint_hidden)
        dropout = [nn.Dropout(spec.dropout)] if spec.dropout else []
        head = nn.Linear(spec.joint_hidden, num_outputs)
        self.joint_net: nn.Sequential = nn.Sequential(_ACTIVATIONS[spec.activation](), *dropout, head)
        # Weights with a row for each label, which fine-tuning takes over by label.
        self.label_tensors = [f"joint_net.{len(self.joint_net) - 1}.{part}" for part in ("weight", "bias")]

    @property
    def input_ports(self) -> Ports:
        return {"encoder_output": frames_type(self._encoder_hidden, AcousticEncodedRepresentation())}

    @property
    def output_ports(self) -> Ports:
        size = AxisType(AxisKind.Dimension, self.joint_hidden)
        return {"frames": NeuralType((BATCH, TIME, size), AcousticEncodedRepresentation())}

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, _, time = shapes["encoder_output"]
        return {"frames": (batch, time, self.joint_hidden)}

    def forward(self, encoder_output: Tensor) -> Tensor:
        """(B, C, T) -> (B, T, joint_hidden)."""
        frames: Tensor = self.enc(encoder_output.transpose(1, 2))
        return frames
