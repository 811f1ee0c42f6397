"""Losses of the ASR collection: CTC and cross-entropy. No decoding and no metrics in this file."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from nemo_lite.backends.pytorch.nm import LossNM
from nemo_lite.core.neural_types import (
    AxisKind,
    AxisType,
    LabelsType,
    LengthsType,
    LogitsType,
    LogprobsType,
    LossType,
    MaskType,
    NeuralType,
)
from nemo_lite.core.ports import Ports
from nemo_lite.errors import UnknownNameError, UsageError


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


_REDUCTIONS = ("mean", "sum", "none")


class CrossEntropyLossNM(LossNM):
    """Cross-entropy between logits and labels, over all positions or over those of a mask.

    Args:
        logits_ndim: axes of the logits; the last one counts classes, labels and mask have the others.
        weight: one weight for each class.
        reduction: mean, sum or none.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UsageError: fewer than two axes.
        UnknownNameError: an unknown reduction.
    """

    _weight: Tensor | None

    def __init__(
        self,
        logits_ndim: int = 2,
        weight: Sequence[float] | None = None,
        reduction: str = "mean",
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if logits_ndim < 2:
            problem = "logits have a batch and a class axis"
            raise UsageError(problem, got=f"logits_ndim={logits_ndim}", wanted="2 or more")
        if reduction not in _REDUCTIONS:
            raise UnknownNameError("reduction", reduction, _REDUCTIONS, place="CrossEntropyLossNM")
        self._num_axes, self._reduction = logits_ndim, reduction
        weights = None if weight is None else torch.tensor(weight, dtype=torch.float32)
        self.register_buffer("_weight", weights, persistent=False)

    @property
    def input_ports(self) -> Ports:
        positions = ["B"] + ["ANY"] * (self._num_axes - 2)
        return {
            "logits": NeuralType([*positions, "ANY"], LogitsType()),
            "labels": NeuralType(positions, LabelsType()),
            "loss_mask": NeuralType(positions, MaskType(), optional=True),
        }

    @property
    def output_ports(self) -> Ports:
        return {"loss": NeuralType(None, LossType())}

    def _loss_function(self, logits: Tensor, labels: Tensor, loss_mask: Tensor | None = None) -> Tensor:
        """(B, ..., classes), (B, ...), a mask (B, ...) whose values above 0.5 count -> scalar; 0 if nothing counts."""
        logits, labels = logits.flatten(0, -2), labels.flatten().long()
        if loss_mask is not None:
            counted = loss_mask.flatten() > 0.5
            logits, labels = logits[counted], labels[counted]
        if not len(labels) and self._reduction == "mean":
            return logits.sum()
        return F.cross_entropy(logits, labels, weight=self._weight, reduction=self._reduction)
