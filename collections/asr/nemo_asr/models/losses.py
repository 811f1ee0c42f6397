"""The CTC loss, and losses on intermediate blocks."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import torch
from torch import Tensor

from nemo_asr.models.jasper import JasperDecoderForCTC, valid_frames
from nemo_asr.run.arguments import Channels, Classes
from nemo_lite.backends.pytorch.nm import LossNM
from nemo_lite.base.ranges import Between
from nemo_lite.core import Reference
from nemo_lite.core.neural_types import AxisKind, AxisType, LabelsType, LengthsType, LogprobsType, LossType, NeuralType
from nemo_lite.core.ports import Ports

TOO_FEW_FRAMES = "its text needs more frames than it has, perhaps since it was trimmed or made faster"
"""Why a loss over alignments is infinite; in one wording, which a message about several losses has once."""


class CTCLossNM(LossNM):
    """Connectionist temporal classification: the mean over the batch of each utterance's negative log-likelihood.

    An utterance's loss is not divided by the length of its target. It is infinite if there are fewer frames than the
    target needs: one for each label, and one for the blank between equal neighbours. In training such an utterance is
    left out: the mean, and the gradient, are those of a batch without it.

    With label smoothing s an utterance's loss in training is ``(1 - s) * CTC + s * sum over its frames of
    KL(U || P(frame))``, where U gives all classes, the blank too, the same probability. In evaluation it is CTC alone,
    so that losses of evaluations can be compared.

    With ``skip_start`` training leaves out that many of the first frames of each utterance, or fewer: a number drawn
    for each anew, and at most half of the frames that its target does not need. So a model gains nothing by a guess of
    the first word in the first frames, which chunked attention with little in view else learns.

    Sources: Graves et al., "Connectionist Temporal Classification", ICML 2006; label smoothing after Kim et al.,
    "Improved Training for Online End-to-end Speech Recognition Systems", Interspeech 2018.

    Args:
        num_classes: labels without the blank, which is class ``num_classes``.
        zero_infinity: count an infinite loss, and its gradient, as zero, and divide by all utterances.
        label_smoothing: s, the share of the training loss that pulls each frame towards equal probabilities of all
            classes; from 0, below 1.
        skip_start: the most first frames that training leaves out of an utterance's loss; 0: none.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UsageError: label smoothing, or a number of frames, out of range.
    """

    is_ctc = True
    when_infinite = TOO_FEW_FRAMES

    def __init__(
        self,
        num_classes: Classes,
        zero_infinity: bool = False,
        label_smoothing: Annotated[float, Between(0, 1, below=True)] = 0.0,
        skip_start: Annotated[int, Between(0, 10_000)] = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self._blank, self._zero_infinity, self._smoothing = num_classes, zero_infinity, label_smoothing
        self._skip_start = skip_start

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

    def frames_needed(self, labels: Sequence[int]) -> int:
        """Frames without which a text of these label ids has no alignment."""
        return ctc_frames_needed(labels)

    def _loss_function(self, log_probs: Tensor, targets: Tensor, input_length: Tensor, target_length: Tensor) -> Tensor:
        """(B, T, classes), (B, U), (B,), (B,) -> scalar. Targets and lengths are of any integer type."""
        labels, frames, num_labels = targets.long(), input_length.long(), target_length.long()
        aligned = log_probs
        if self._skip_start and self.training:
            # A blank stands between equal neighbours: labels of each target that follow an equal one.
            is_label = torch.arange(1, labels.shape[1], device=labels.device) < num_labels.unsqueeze(1)
            needed = num_labels + ((labels[:, 1:] == labels[:, :-1]) & is_label).sum(1)
            skipped = torch.randint(self._skip_start + 1, frames.shape, device=frames.device)
            skipped = skipped.minimum((frames - needed).clamp(min=0) // 2)
            # Each utterance from its frame ``skipped`` on; its last one fills up.
            num_frames = log_probs.shape[1]
            numbers = skipped.unsqueeze(1) + torch.arange(num_frames, device=skipped.device)
            numbers = numbers.clamp(max=num_frames - 1).unsqueeze(2)
            aligned, frames = log_probs.gather(1, numbers.expand_as(log_probs)), frames - skipped
        losses = ctc_losses(aligned.transpose(0, 1), labels, frames, num_labels, self._blank)
        if self._zero_infinity:
            losses = torch.where(losses.isinf(), 0.0, losses)
        if self._smoothing and self.training:
            # The sum over an utterance's frames of KL(U || P).
            divergence = -math.log(log_probs.shape[2]) - log_probs.mean(2)
            is_valid = valid_frames(input_length, log_probs.shape[1]).squeeze(1)
            distance_from_uniform = torch.where(is_valid, divergence, 0.0).sum(1)
            losses = (1 - self._smoothing) * losses + self._smoothing * distance_from_uniform
        return self._reduced(losses, num_labels)

    def _reduced(self, losses: Tensor, num_labels: Tensor) -> Tensor:
        """(B,), (B,) -> scalar."""
        return self.mean_over_items(losses)


Reduction: TypeAlias = Literal["mean_batch", "mean", "mean_volume", "sum"]


def reduced(loss: LossNM, losses: Tensor, num_labels: Tensor, reduction: Reduction) -> Tensor:
    """(B,), labels of each utterance (B,) -> scalar, which the trainer makes that of all micro-batches and ranks.

    Args:
        loss: the module that has computed them.
        losses: of the utterances.
        num_labels: of their texts.
        reduction: ``mean_batch``: their mean; ``mean``: the mean of each divided by its number of labels;
            ``mean_volume``: their sum divided by the number of all labels; ``sum``.
    """
    if reduction == "sum":
        return loss.sum_over_items(losses)
    if reduction == "mean_volume":
        return loss.mean_over_items(losses, num_labels)
    return loss.mean_over_items(losses / num_labels.clamp(min=1) if reduction == "mean" else losses)


class AuxiliaryCTCLoss(CTCLossNM):
    """The CTC loss of a hybrid, beside that of its transducer or its attention decoder.

    Args:
        loss: the other one.
        num_classes, zero_infinity, name: as of `CTCLossNM`.
        weight: of this loss in the sum that is trained; that of the other one is ``1 - weight``.
        reduction: see `reduced`; None: that of the other loss. With another one the gradient of one head may be
            a hundred times that of the other.
    """

    def __init__(
        self,
        loss: Reference[Any],
        num_classes: Classes,
        weight: Annotated[float, Between(0, 1)] = 0.3,
        zero_infinity: bool = False,
        reduction: Reduction | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(num_classes, zero_infinity, name=name)
        self.weight = weight
        self.reduction: Reduction = reduction or loss.module.reduction
        # Ends that the other loss counts as labels: both losses are divided by the same number then.
        self._num_ends: int = getattr(loss.module, "num_ends", 0)

    def _reduced(self, losses: Tensor, num_labels: Tensor) -> Tensor:
        return reduced(self, losses, num_labels + self._num_ends, self.reduction)


def ctc_frames_needed(labels: Sequence[int]) -> int:
    """One for each label, and one for the blank between equal neighbours."""
    num_repeats: int = sum(map(operator.eq, labels, labels[1:]))
    return len(labels) + num_repeats


def ctc_losses(log_probs: Tensor, targets: Tensor, input_length: Tensor, target_length: Tensor, blank: int) -> Tensor:
    """(T, B, classes), (B, U), (B,), (B,) -> (B,), infinite where the frames do not suffice; the gradient is 0 there.

    ``F.ctc_loss`` calls the same kernel, but either hides which losses are infinite or gives them a gradient that is
    not a number. Nothing is read here: lengths stay where they are. The CUDA kernel of torch needs them on the host and
    waits for them. Lengths that are on the host already would not spare the wait: the kernel copies them to the device
    from pageable memory (``at::tensor`` in LossCTC.cu), forward and backward, and waits for the device in each copy.
    That of cuDNN would not, but takes at most 255 labels, and none longer than its utterance.
    """
    losses: Tensor = torch.ops.aten._ctc_loss.Tensor(log_probs, targets, input_length, target_length, blank, True)[0]
    return losses


class IntermediateDecoderForCTC(JasperDecoderForCTC):
    """From the intermediate output of an encoder to log-probabilities; used in training only.

    How its loss is added is in `nemo_asr/tasks/families.py`.

    It is a `JasperDecoderForCTC` under another name: checkpoints name files by the class, and the model's own decoder
    keeps its name. Its input has the channels of a block in the middle, so it cannot share the weights of that decoder,
    as it does in the source.

    Source: Lee and Watanabe, "Intermediate Loss Regularization for CTC-based Speech Recognition", ICASSP 2021.

    Args:
        feat_in, num_classes, name: as of `JasperDecoderForCTC`.
        share: of the training loss that its own loss has; the rest is that of the encoder's end.
    """

    def __init__(
        self,
        feat_in: Channels,
        num_classes: Classes,
        share: Annotated[float, Between(0, 1, above=True, below=True)] = 0.3,
        name: str | None = None,
    ) -> None:
        super().__init__(feat_in, num_classes, name=name)
        self.share = share
