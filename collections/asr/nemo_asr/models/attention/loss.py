"""AttentionLoss: cross entropy of the labels of texts and their ends, with label smoothing."""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from nemo_asr.models.attention.decoder import AttentionDecoder
from nemo_asr.models.jasper.layers import BATCH, TIME, valid_frames
from nemo_lite.backends.pytorch.nm import LossNM
from nemo_lite.base.ranges import Between
from nemo_lite.core import Reference
from nemo_lite.core.neural_types import AxisKind, AxisType, LabelsType, LengthsType, LogprobsType, LossType, NeuralType
from nemo_lite.core.ports import Ports

Normalization: TypeAlias = Literal["mean_batch", "mean_volume"]


class AttentionLoss(LossNM):
    """Of each label of a text, and of its end, the distance between smoothed truth and the decoder's probabilities.

    The truth gives the right output ``1 - s`` and each of the V - 1 others ``s / (V - 1)``. A label's loss is
    ``KL(truth || probabilities)``, as in WeNet; without ``subtract_entropy`` the cross entropy, as in NeMo, which is
    more by the truth's entropy, so that gradients are the same. In evaluation s is 0.

    Source: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016, section 7.

    Args:
        attention: the decoder whose log-probabilities it takes.
        smoothing: s, what the other outputs share of the truth of each label.
        reduction: of the losses of a batch's utterances, over all micro-batches and ranks of a step: ``mean_batch``,
            their sum divided by the number of utterances, as in WeNet; ``mean_volume``, divided by the number of all
            labels and ends, as in NeMo, and in WeNet with ``length_normalized_loss``.
        subtract_entropy: a decoder that is as sure as the smoothed truth has a loss of 0, as in WeNet; False: cross
            entropy, as in NeMo.
        name: its name in DAGs, messages and checkpoints.
    """

    output_ports: Ports = {"loss": NeuralType(None, LossType())}
    why_weak_at_first = "a decoder that has not learned yet hears little of the frames, which passes by itself"
    num_ends = 1
    """The end of each text counts as one more label where losses are divided by the number of labels."""

    def __init__(
        self,
        attention: Reference[AttentionDecoder],
        smoothing: Annotated[float, Between(0, 1, below=True)] = 0.1,
        reduction: Normalization = "mean_batch",
        subtract_entropy: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self._end, self._num_outputs = attention.module.end, attention.module.num_outputs
        self._smoothing, self.reduction, self._subtracts = smoothing, reduction, subtract_entropy

    @property
    def input_ports(self) -> Ports:
        outputs = AxisType(AxisKind.Dimension, self._num_outputs)
        return {
            "labels": NeuralType("B T", LabelsType()),
            "log_probs": NeuralType((BATCH, TIME, outputs), LogprobsType()),
            "num_labels": NeuralType("B", LengthsType()),
        }

    def _loss_function(self, labels: Tensor, log_probs: Tensor, num_labels: Tensor) -> Tensor:
        """(B, U), (B, U + 1, outputs), (B,) -> scalar. Labels and lengths are of any integer type."""
        num_rows = log_probs.shape[1]
        places = torch.arange(num_rows, device=labels.device)
        padded = F.pad(labels.long(), (0, 1), value=self._end)
        targets = torch.where(places < num_labels.unsqueeze(1), padded, self._end)
        right = log_probs.gather(2, targets.unsqueeze(2)).squeeze(2)
        s, others = (self._smoothing if self.training else 0.0), self._num_outputs - 1
        losses = -right
        if s and others:
            of_others = log_probs.sum(2) - right
            losses = -(1 - s) * right - s / others * of_others
            if self._subtracts:
                losses = losses + (1 - s) * math.log(1 - s) + s * math.log(s / others)
        counts = num_labels.long() + self.num_ends
        is_valid = valid_frames(counts, num_rows).squeeze(1)
        sums = torch.where(is_valid, losses, 0.0).sum(1)
        return self.mean_over_items(sums, counts if self.reduction == "mean_volume" else None)
