"""The losses of transducers: RNNT, TDT and multi-blank RNNT, over the joint in slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from nemo_asr.models.jasper.layers import BATCH, TIME
from nemo_asr.models.losses import TOO_FEW_FRAMES, Reduction, reduced
from nemo_asr.models.transducer.joint import RNNTJoint
from nemo_asr.models.transducer.lattice import Durations, lattice_losses
from nemo_asr.models.transducer.sliced_joint import Kept, sliced_losses
from nemo_lite.backends.pytorch.nm import LossNM
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between
from nemo_lite.core import Reference
from nemo_lite.core.neural_types import (
    AxisKind,
    AxisType,
    EncodedRepresentation,
    LabelsType,
    LengthsType,
    LossType,
    NeuralType,
)
from nemo_lite.core.ports import Ports

_RNNT = Durations((1,), (0,))


class RNNTLoss(LossNM):
    """Minus the logarithm of the probability of all alignments of the labels with the frames.

    The joint network says which loss it is: with durations that of TDT, with big blanks that of multi-blank RNNT, else
    that of RNNT. The logits of all nodes of the lattice never exist at once, see `sliced_joint`.

    In training, an utterance whose labels no path holds is left out of its step and named: without a duration of 0
    each label takes a frame, and so does the blank at the end.

    Sources: see `lattice`; FastEmit: Yu et al., "FastEmit: Low-latency Streaming ASR with Sequence-level Emission
    Regularization", ICASSP 2021.

    Args:
        joint: whose projections and layers it calls, and whose durations count.
        reduction: of the losses of a batch's utterances, over all micro-batches and ranks of a step: ``mean_batch``,
            their mean; ``mean``, the mean of each divided by its number of labels; ``mean_volume``, their sum divided
            by the number of all labels; ``sum``.
        sigma: with durations or big blanks: taken from the log-probability of each label and blank, so that paths with
            fewer of them are favoured.
        omega: with durations: the probability that a call in training takes the RNNT loss of labels and blank.
        fastemit_lambda: how much more the gradients of labels count, so that they come earlier.
        clamp: the most that the gradient of an utterance's loss by a logit is, up or down; 0 or less: any.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UsageError: durations twice, or none of one frame: then no path of some utterances ends with them.
    """

    keep_float32 = False  # the joint computes in the type of its projections, the rest in float32 or wider
    keep_uncompiled = True
    when_infinite = TOO_FEW_FRAMES

    output_ports: Ports = {"loss": NeuralType(None, LossType())}

    def __init__(
        self,
        joint: Reference[RNNTJoint],
        reduction: Reduction = "mean_batch",
        sigma: Annotated[float, Between(0, 10)] = 0.0,
        omega: Annotated[float, Between(0, 1)] = 0.0,
        fastemit_lambda: Annotated[float, Between(0, 10)] = 0.0,
        clamp: Annotated[float, Between(-1, 1_000_000)] = -1.0,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        durations, big_blanks = joint.module.durations, joint.module.big_blank_durations
        is_tdt = bool(durations)
        if any(len({*each}) < len(each) for each in (durations, big_blanks)) or (is_tdt and 1 not in durations):
            wanted = "different numbers of frames, 1 among them, so that a path can end anywhere"
            got = str(list(durations or big_blanks))
            raise UsageError("no loss has these durations", place=joint.module.label, got=got, wanted=wanted)
        self._durations = Durations(durations, durations) if is_tdt else Durations((1, *big_blanks), (0,))
        self._num_classes, self._blank = joint.module.num_labels, joint.module.blank
        self._joint, self.reduction, self._is_tdt = joint, reduction, is_tdt
        self._sigma, self._omega = (sigma if is_tdt or big_blanks else 0.0), (omega if is_tdt else 0.0)
        self._fastemit, self._clamp = fastemit_lambda, clamp
        # The same draws on all ranks, which make as many calls. A checkpoint holds its state.
        self._omega_draws = torch.Generator().manual_seed(0)

    @property
    def input_ports(self) -> Ports:
        joint = self._joint.module
        size = AxisType(AxisKind.Dimension, joint.pred_hidden)
        return {
            "encoded": joint.input_ports["encoder_output"],
            "states": NeuralType((BATCH, TIME, size), EncodedRepresentation()),
            "labels": NeuralType("B T", LabelsType()),
            "num_frames": NeuralType("B", LengthsType()),
            "num_labels": NeuralType("B", LengthsType()),
        }

    def frames_needed(self, labels: Sequence[int]) -> int:
        """Frames without which a text of these label ids has no path."""
        return 1 if 0 in self._durations.labels else len(labels) + 1

    def _loss_function(
        self, encoded: Tensor, states: Tensor, labels: Tensor, num_frames: Tensor, num_labels: Tensor
    ) -> Tensor:
        """(B, D, T), (B, U + 1, P), (B, U), (B,), (B,) -> scalar. Labels and lengths are of any integer type."""
        joint, num_frames, num_labels = self._joint.module, num_frames.long(), num_labels.long()
        durations = self._durations
        if self._omega and self.training:
            (drawn,) = torch.rand(1, generator=self._omega_draws, device="cpu").tolist()
            durations = _RNNT if drawn < self._omega else durations
        of_sigma = self._sigma if durations is self._durations else 0.0
        num_blanks = 1 if self._is_tdt else len(durations.blanks)

        def losses_of(kept: Tensor) -> Tensor:
            """(B, T, U + 1, blanks, label and durations) -> (B,)."""
            tokens, of_durations = kept[..., : num_blanks + 1] - of_sigma, kept[..., num_blanks + 1 :]
            blanks, label = tokens[..., :num_blanks], tokens[..., num_blanks:]
            label = (1 + self._fastemit) * label - self._fastemit * label.detach()
            if self._is_tdt and durations is self._durations:
                blanks, label = blanks + of_durations, label + of_durations
            return lattice_losses(blanks, label, num_frames, num_labels, durations)

        # Behind the last label there is none: its column may be any.
        label_columns = F.pad(labels.long(), (0, 1)).clamp(0, self._num_classes - 1).unsqueeze(2)
        blank_columns = self._blank - torch.arange(num_blanks, device=labels.device)
        columns = torch.cat([blank_columns.expand(*label_columns.shape[:2], -1), label_columns], 2)
        losses = sliced_losses(
            joint.enc(encoded.transpose(1, 2)),
            joint.pred(states),
            joint.joint_net,
            Kept(columns, self._blank + 1),
            losses_of,
            self._clamp,
        )
        return reduced(self, losses, num_labels, self.reduction)
