"""The CTC loss. No decoding and no metrics in this file."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from nemo_lite.backends.pytorch.nm import LossNM
from nemo_lite.core.neural_types import (
    AxisKind,
    AxisType,
    LabelsType,
    LengthsType,
    LogprobsType,
    LossType,
    NeuralType,
)
from nemo_lite.core.ports import Ports


class CTCLossNM(LossNM):
    """Connectionist temporal classification: the mean over the batch of each utterance's negative log-likelihood.

    An utterance's loss is not divided by the length of its target. It is infinite if there are fewer frames than the
    target needs: one for each label, and one for the blank between equal neighbours.

    Source: Graves et al., "Connectionist Temporal Classification", ICML 2006.

    Args:
        num_classes: labels without the blank, which is class ``num_classes``.
        zero_infinity: count an infinite loss, and its gradient, as zero.
        name: its name in DAGs, messages and checkpoints.
    """

    def __init__(self, num_classes: int, zero_infinity: bool = False, name: str | None = None) -> None:
        super().__init__(name=name)
        self._blank, self._zero_infinity = num_classes, zero_infinity

    @property
    def input_ports(self) -> Ports:
        classes = AxisType(AxisKind.Dimension, self._blank + 1)
        return {
            "log_probs": NeuralType((AxisType(AxisKind.Batch), AxisType(AxisKind.Time), classes), LogprobsType()),
            "targets": NeuralType("B T", LabelsType()),
            "input_length": NeuralType("B", LengthsType()),
            "target_length": NeuralType("B", LengthsType()),
        }

    @property
    def output_ports(self) -> Ports:
        return {"loss": NeuralType(None, LossType())}

    def _loss_function(self, log_probs: Tensor, targets: Tensor, input_length: Tensor, target_length: Tensor) -> Tensor:
        """(B, T, classes), (B, U), (B,), (B,) -> scalar. Targets and lengths are of any integer type."""
        # Nothing is read here: lengths stay where they are. The CUDA kernel of torch needs them on the host and waits
        # for them; that of cuDNN would not, but takes at most 255 labels, and none longer than its utterance.
        losses = F.ctc_loss(
            log_probs.transpose(0, 1),
            targets.long(),
            input_length.long(),
            target_length.long(),
            blank=self._blank,
            reduction="none",
            zero_infinity=self._zero_infinity,
        )
        return losses.mean()
