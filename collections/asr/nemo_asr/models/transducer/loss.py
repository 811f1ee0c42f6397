"""The losses of transducers: RNNT, TDT and multi-blank RNNT, over the joint in slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from nemo_asr.models.transducer.lattice import Durations, lattice_losses
from nemo_asr.models.transducer.sliced_joint import Kept, sliced_losses
from nemo_asr.run.arguments import Classes
from nemo_lite.backends.pytorch.nm import LossNM
from nemo_lite.base.errors import UsageError, counted
from nemo_lite.base.ranges import Between
from nemo_lite.core import Reference
from nemo_lite.core.neural_types import (
    AcousticEncodedRepresentation,
    EncodedRepresentation,
    LabelsType,
    LengthsType,
    LossType,
    NeuralType,
)
from nemo_lite.core.ports import Ports

LossName: TypeAlias = Literal["default", "rnnt", "tdt", "multiblank_rnnt"]
Reduction: TypeAlias = Literal["mean_batch", "mean", "mean_volume", "sum"]
_RNNT = Durations((1,), (0,))


class RNNTLoss(LossNM):
    """Minus the logarithm of the probability of all alignments of the labels with the frames.

    The logits of all nodes of the lattice never exist at once, see `sliced_joint`. The joint has
    ``num_classes`` labels and behind them the blank; with ``multiblank_rnnt`` the blanks of several frames stand
    between the two, the shortest next to the blank; with ``tdt`` the durations stand behind the blank.

    In training, an utterance whose labels no path holds is left out of its step and named: without a duration of 0
    each label takes a frame, and so does the blank at the end.

    Sources: see `lattice`; FastEmit: Yu et al., "FastEmit: Low-latency Streaming ASR with Sequence-level Emission
    Regularization", ICASSP 2021.

    Args:
        joint: whose projections and layers it calls.
        num_classes: labels without blanks.
        reduction: of the losses of a batch's utterances, over all micro-batches and ranks of a step: ``mean_batch``,
            their mean; ``mean``, the mean of each divided by its number of labels; ``mean_volume``, their sum divided
            by the number of all labels; ``sum``.
        loss_name: ``default`` is ``rnnt``.
        durations: of ``tdt``, in frames.
        sigma: of ``tdt`` and ``multiblank_rnnt``: taken from the log-probability of each label and blank, so that paths
            with fewer of them are favoured.
        omega: of ``tdt``: the probability that a call in training takes the RNNT loss of labels and blank.
        big_blank_durations: of ``multiblank_rnnt``: frames of each further blank.
        fastemit_lambda: how much more the gradients of labels count, so that they come earlier.
        clamp: the most that the gradient of an utterance's loss by a logit is, up or down; 0 or less: any.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UsageError: durations without those that they need, or a joint of another number of outputs.
    """

    keep_float32 = False  # the joint computes in the type of its projections, the rest in float32 or wider
    keep_uncompiled = True
    when_infinite = "no alignment of its text fits its frames, perhaps since it was trimmed or made faster"

    input_ports: Ports = {
        "encoded": NeuralType("B D T", AcousticEncodedRepresentation()),
        "states": NeuralType("B T D", EncodedRepresentation()),
        "labels": NeuralType("B T", LabelsType()),
        "num_frames": NeuralType("B", LengthsType()),
        "num_labels": NeuralType("B", LengthsType()),
    }
    output_ports: Ports = {"loss": NeuralType(None, LossType())}

    def __init__(
        self,
        joint: Reference[Any],
        num_classes: Classes,
        reduction: Reduction = "mean_batch",
        loss_name: LossName = "default",
        durations: Sequence[int] = (0, 1, 2, 3, 4),
        sigma: Annotated[float, Between(0, 10)] = 0.0,
        omega: Annotated[float, Between(0, 1)] = 0.0,
        big_blank_durations: Sequence[int] = (2, 4, 8),
        fastemit_lambda: Annotated[float, Between(0, 10)] = 0.0,
        clamp: Annotated[float, Between(-1, 1_000_000)] = -1.0,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        is_tdt, is_multiblank = loss_name == "tdt", loss_name == "multiblank_rnnt"
        if is_tdt and not (_are_different(durations, least=0) and 1 in durations):
            wanted = "different numbers of frames from 0 on, 1 among them, so that a path can end anywhere"
            raise UsageError("not durations of TDT", place=f"{self.label}.durations", got=str(durations), wanted=wanted)
        if is_multiblank and not _are_different(big_blank_durations, least=2):
            place, wanted = f"{self.label}.big_blank_durations", "different numbers of frames from 2 on"
            raise UsageError("not durations of blanks", place=place, got=str(big_blank_durations), wanted=wanted)
        big_blanks = tuple(big_blank_durations) if is_multiblank else ()
        self._durations = Durations(tuple(durations), tuple(durations)) if is_tdt else Durations((1, *big_blanks), (0,))
        self._num_classes, self._blank = num_classes, num_classes + len(big_blanks)
        num_outputs = self._blank + 1 + (len(durations) if is_tdt else 0)
        if (got := joint.module.joint_net[-1].out_features) != num_outputs:
            of = f"{num_classes} classes, the blank and {counted(num_outputs - num_classes - 1, 'other')}"
            problem = f"the joint does not fit the loss {loss_name}"
            remedy = "num_extra_outputs of the joint is the number of durations, or of further blanks"
            wanted = f"{num_outputs}: {of}"
            raise UsageError(problem, place=joint.module.label, got=f"{got} outputs", wanted=wanted, remedy=remedy)
        self._joint, self._reduction, self._is_tdt = joint, reduction, is_tdt
        self._sigma, self._omega = (sigma if is_tdt or is_multiblank else 0.0), (omega if is_tdt else 0.0)
        self._fastemit, self._clamp = fastemit_lambda, clamp
        # The same draws on all ranks, which make as many calls. A checkpoint holds its state.
        self._omega_draws = torch.Generator().manual_seed(0)

    def frames_needed(self, labels: Sequence[int]) -> int:
        """Frames without which a text of these label ids has no path."""
        return 1 if 0 in self._durations.labels else len(labels) + 1

    def _loss_function(  # type: ignore[override]  # each loss has parameters of its own
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
        if self._reduction == "sum":
            return self.sum_over_items(losses)
        if self._reduction == "mean_volume":
            return self.mean_over_items(losses, num_labels)
        return self.mean_over_items(losses / num_labels.clamp(min=1) if self._reduction == "mean" else losses)


def _are_different(durations: Sequence[int], least: int) -> bool:
    return len({*durations}) == len(durations) and all(duration >= least for duration in durations)
