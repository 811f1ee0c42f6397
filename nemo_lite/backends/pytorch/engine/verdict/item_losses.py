"""StepItems: the losses of a step's single items: which are infinite and left out, and what each batch then weighs.

The mean over a batch's other items is `LossNM.mean_over_items`. All stays on the device; nobody is told in this file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from nemo_lite.backends.pytorch.data import Batch
from nemo_lite.backends.pytorch.distributed import Comm
from nemo_lite.backends.pytorch.nm import LossNM

FINITE, INFINITE, NAN = range(3)


class StepItems:
    """What became of the items of one step, on this rank and in number on all.

    An item with an infinite loss is left out, and every other item of the step has the same weight in the gradient,
    whatever its batch and rank: as if the item had not been there. If several losses of an item are summed, it counts
    as left out when one of them is infinite.

    Args:
        losses: the modules that may tell the losses of single items.
        num_items: of the step, on all ranks.
        is_alone: the step is one batch of one rank: its mean is the step's.

    Attributes:
        statuses: by micro-batch (B,): FINITE, INFINITE or NAN for each item; None where it is not known.
        num_left_out: on the device: how many items of all ranks are left out. None if no loss tells.
    """

    def __init__(self, losses: Sequence[LossNM], num_items: float, is_alone: bool) -> None:
        self._losses, self._num_items, self._is_alone = losses, num_items, is_alone
        self._left_out: list[Tensor] = []
        self.statuses: list[Tensor | None] = []
        self.num_left_out: Tensor | None = None

    def watch(self) -> None:
        """Before a forward pass: let the losses tell those of the items."""
        for module in self._losses:
            # Not as an attribute: at every step, torch's search among weights and modules would cost 2 microseconds.
            vars(module)["item_losses"] = []

    def weigh(self, batch: Batch, loss: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """After the forward pass of a micro-batch.

        Args:
            batch: its items.
            loss: their mean, a single number.
            factor: what the loss counts if no item is left out.

        Returns:
            The loss times the batch's weight, for the backward pass; and the loss, detached, or 0 if all of its items
            are left out of a step that has others.
        """
        told: list[Tensor] = []
        for module in self._losses:
            told += vars(module).pop("item_losses")
        status = _status_of(told, batch.num_items) if told else None
        self.statuses.append(status)
        detached = loss.detach()
        if status is None:
            return (loss if factor == 1.0 else loss * factor), detached
        is_left_out = (status == INFINITE).float()
        self._left_out.append(is_left_out.sum() if factor else is_left_out.new_zeros(()))
        if self._is_alone:
            return loss, detached
        share = 1.0 - is_left_out.mean()
        return loss * (share * factor), torch.where(share > 0, detached, 0.0)

    def agree(self, comm: Comm) -> Tensor | None:
        """After the last micro-batch: count over all ranks, which all call it.

        Returns:
            What the gradients are to be multiplied with, because fewer items share the step than its batches' factors
            say: 1 if none is left out. None: nothing to correct.
        """
        if not self._left_out:
            return None
        self.num_left_out = torch.stack(self._left_out).sum()
        if self._is_alone:
            return None
        comm.sum_on_device(self.num_left_out)
        return self._num_items / (self._num_items - self.num_left_out).clamp(min=1.0)

    def num_of_this_rank(self) -> float:
        """How many items of this rank are left out: a host read, for what travels with other numbers."""
        return float(torch.stack(self._left_out).sum()) if self._left_out else 0.0

    def take(self, num_left_out: float) -> Tensor | None:
        """:meth:`agree` where the number of all ranks has come with other numbers; what it gives."""
        if not self._left_out:
            return None
        self.num_left_out = self._left_out[0].new_tensor(num_left_out)
        return self._num_items / (self._num_items - self.num_left_out).clamp(min=1.0)

    def is_nothing_left(self) -> Tensor | None:
        """On the device: whether all items of the step are left out; None if no loss tells."""
        return None if self.num_left_out is None else self.num_left_out >= self._num_items

    @property
    def reason(self) -> str:
        """What an infinite loss means."""
        return "; ".join(dict.fromkeys(module.when_infinite for module in self._losses if module.when_infinite))


def _status_of(told: Iterable[Tensor], num_items: int) -> Tensor | None:
    """(B,) of all losses (B,) of a batch together; None if none has one number for each item."""
    status = None
    for losses in told:
        if losses.shape == (num_items,):
            own = losses.isinf() * INFINITE + losses.isnan() * NAN
            status = own if status is None else status.maximum(own)
    return status
