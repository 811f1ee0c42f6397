"""Losses of several uses: sequences, classes, real values, sums of losses. CTC is the speech collection's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from nemo_lite.backends.pytorch.nm import LossNM
from nemo_lite.config.ranges import Between, Items, Letters
from nemo_lite.core.graph.ports import Ports
from nemo_lite.core.neural_types import (
    LabelsType,
    LogitsType,
    LogprobsType,
    LossType,
    MaskType,
    NeuralType,
    RegressionValuesType,
)
from nemo_lite.errors import MissingOptionError, UnknownNameError, UsageError

LOSS = NeuralType(None, LossType())
Weight: TypeAlias = Annotated[float, Between(-1_000_000, 1_000_000)]
Word: TypeAlias = Annotated[str, Letters(64)]
_REDUCTIONS = ("mean", "sum", "none")


def _check_reduction(reduction: str, place: str) -> str:
    if reduction not in _REDUCTIONS:
        raise UnknownNameError("reduction", reduction, _REDUCTIONS, place=place)
    return reduction


class SequenceLoss(LossNM):
    """Cross-entropy of sequences with label smoothing: padding does not count.

    A position's loss is ``-((1 - s) * log p(target) + s * mean(log p))`` with s = ``smoothing_coef``.
    Source: Szegedy et al., "Rethinking the Inception Architecture", CVPR 2016, section 7.

    Args:
        pad_id: positions with this target do not count.
        smoothing_coef: s.
        sample_wise: divide the sum by the number of sequences, instead of positions.
        aux_ctc: add the CTC loss of the same log-probabilities.
        ctc_initial_coef: its weight.
        ctc_blank_id: its blank.
        eps: added to the number of positions.
        name: its name.

    Raises:
        MissingOptionError: an AssertionError: ``aux_ctc`` without ``ctc_blank_id``.
    """

    input_ports = {"log_probs": NeuralType("B T D", LogprobsType()), "targets": NeuralType("B T", LabelsType())}
    output_ports = {"loss": LOSS}

    def __init__(
        self,
        pad_id: Annotated[int, Between(-(2**31), 2**31 - 1)] = 0,
        smoothing_coef: Annotated[float, Between(0, 1)] = 0.0,
        sample_wise: bool = False,
        aux_ctc: bool = False,
        ctc_initial_coef: Weight = 0.1,
        ctc_blank_id: Annotated[int, Between(0, 2**31 - 1)] | None = None,
        eps: Annotated[float, Between(0, 1)] = 1e-5,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if aux_ctc and ctc_blank_id is None:
            raise MissingOptionError("aux_ctc needs the blank", place=self.label, remedy="give ctc_blank_id")
        self._pad, self._smoothing, self._sample_wise, self._eps = pad_id, smoothing_coef, sample_wise, eps
        self._blank, self._ctc_coef = ctc_blank_id if aux_ctc else None, ctc_initial_coef

    def _loss_function(self, log_probs: Tensor, targets: Tensor) -> Tensor:
        """(B, T, classes), (B, T) -> scalar."""
        targets = targets.long()
        counted = targets != self._pad
        chosen = log_probs.gather(2, targets.unsqueeze(2)).squeeze(2)
        gains = (1 - self._smoothing) * chosen + self._smoothing * log_probs.mean(2)
        # Not a product with the mask: a log-probability of minus infinity times 0 is not a number.
        total = -torch.where(counted, gains, 0.0).sum()
        loss = total / (len(targets) if self._sample_wise else counted.sum() + self._eps)
        if self._blank is None:
            return loss
        frames = torch.full((len(targets),), log_probs.shape[1], device=targets.device)
        ctc = F.ctc_loss(log_probs.transpose(0, 1), targets, frames, counted.sum(1), self._blank, zero_infinity=True)
        return loss + self._ctc_coef * ctc


class _MaskedLogitsLoss(LossNM):
    """A loss between logits and labels, over all positions or over those of a mask.

    Args:
        logits_ndim: axes of the logits.
        weight: one weight for each class.
        reduction: mean, sum or none.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UsageError: fewer axes than the loss needs.
        UnknownNameError: an unknown reduction.
    """

    _least_axes: ClassVar[int] = 0  # of the logits
    _weight: Tensor | None

    def __init__(
        self,
        logits_ndim: Annotated[int, Between(1, 16)] = 2,
        weight: Annotated[Sequence[Weight], Items(0, 1_000_000)] | None = None,
        reduction: Word = "mean",
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self._num_axes, self._reduction = logits_ndim, _check_reduction(reduction, type(self).__name__)
        weights = None if weight is None else torch.tensor(weight, dtype=torch.float32)
        self.register_buffer("_weight", weights, persistent=False)
        if logits_ndim < self._least_axes:
            problem, wanted = "logits have a batch and a class axis", f"{self._least_axes} or more"
            raise UsageError(problem, got=f"logits_ndim={logits_ndim}", wanted=wanted)

    @property
    def output_ports(self) -> Ports:
        return {"loss": LOSS}

    def _ports(self, num_label_axes: int) -> Ports:
        axes = ["B"] + ["ANY"] * (self._num_axes - 1)
        of_labels = axes[:num_label_axes]
        return {
            "logits": NeuralType(axes, LogitsType()),
            "labels": NeuralType(of_labels, LabelsType()),
            "loss_mask": NeuralType(of_labels, MaskType(), optional=True),
        }


class CrossEntropyLossNM(_MaskedLogitsLoss):
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

    _least_axes = 2

    @property
    def input_ports(self) -> Ports:
        return self._ports(self._num_axes - 1)

    def _loss_function(self, logits: Tensor, labels: Tensor, loss_mask: Tensor | None = None) -> Tensor:
        """(B, ..., classes), (B, ...), a mask (B, ...) whose values above 0.5 count -> scalar; 0 if nothing counts."""
        logits, labels = logits.flatten(0, -2), labels.flatten().long()
        if loss_mask is not None:
            counted = loss_mask.flatten() > 0.5
            logits, labels = logits[counted], labels[counted]
        if not len(labels) and self._reduction == "mean":
            return logits.sum()
        return F.cross_entropy(logits, labels, weight=self._weight, reduction=self._reduction)


class BCEWithLogitsLossNM(_MaskedLogitsLoss):
    """Binary cross-entropy between logits and labels of the same shape, over all values or over those of a mask.

    Args:
        logits_ndim: axes of logits, labels and mask.
        weight: a factor for each class: for the values along the last axis.
        reduction: mean, sum or none.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UnknownNameError: an unknown reduction.
    """

    @property
    def input_ports(self) -> Ports:
        return self._ports(self._num_axes)

    def _loss_function(self, logits: Tensor, labels: Tensor, loss_mask: Tensor | None = None) -> Tensor:
        """(B, ...), (B, ...), a mask (B, ...) whose values above 0.5 count -> scalar; 0 if nothing counts."""
        weight = None if self._weight is None else self._weight.expand_as(logits)
        if loss_mask is not None:
            counted = loss_mask > 0.5
            logits, labels = logits[counted], labels[counted]
            weight = None if weight is None else weight[counted]
        if not labels.numel() and self._reduction == "mean":
            return logits.sum()
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), weight, reduction=self._reduction)


class MSELoss(LossNM):
    """Mean squared error of one number for each item.

    Args:
        reduction: mean, sum or none.
        name: its name.

    Raises:
        UnknownNameError: an unknown reduction.
    """

    input_ports = {"preds": NeuralType("B", RegressionValuesType()), "labels": NeuralType("B", LabelsType())}
    output_ports = {"loss": LOSS}

    def __init__(self, reduction: Word = "mean", name: str | None = None) -> None:
        super().__init__(name=name)
        self._reduction = _check_reduction(reduction, "MSELoss")

    def _loss_function(self, preds: Tensor, labels: Tensor) -> Tensor:
        """(B,), (B,) -> scalar."""
        return F.mse_loss(preds, labels.to(preds.dtype), reduction=self._reduction)


class LossAggregatorNM(LossNM):
    """The sum of losses, each with a weight.

    Args:
        num_inputs: how many; their ports are ``loss_1``, ``loss_2``, ...
        weights: one for each; by default all are 1.
        name: its name.

    Raises:
        UsageError: not one weight for each loss.
    """

    def __init__(
        self,
        num_inputs: Annotated[int, Between(0, 1_000)] = 2,
        weights: Annotated[Sequence[Weight], Items(0, 1_000)] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if weights is not None and len(weights) != num_inputs:
            got, wanted = f"{len(weights)} weights", f"{num_inputs}, one for each loss"
            raise UsageError("weights do not fit the losses", place=self.label, got=got, wanted=wanted)
        factors = [1.0] * num_inputs if weights is None else [float(weight) for weight in weights]
        self._weights = {f"loss_{number}": factor for number, factor in enumerate(factors, 1)}

    @property
    def input_ports(self) -> Ports:
        return dict.fromkeys(self._weights, LOSS)

    @property
    def output_ports(self) -> Ports:
        return {"loss": LOSS}

    def _loss_function(self, **losses: Tensor) -> Tensor:
        """Scalars -> scalar."""
        return torch.stack([self._weights[port] * loss for port, loss in losses.items()]).sum()
