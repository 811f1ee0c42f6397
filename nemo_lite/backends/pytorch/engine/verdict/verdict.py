"""The verdict on a step: whether its losses and gradients are finite. If not, nothing of the step stays.

On a CPU the host reads it before the update. On an accelerator it stays there and guards the update; the host reads it
one step later, when the device has the next forward and backward pass to do. Both give the same weights, messages and
end of the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from nemo_lite.backends.pytorch.data import Batch
from nemo_lite.backends.pytorch.distributed import BACKWARD, Comm
from nemo_lite.backends.pytorch.engine.module_state import RunningStatistics
from nemo_lite.backends.pytorch.engine.objectives import Objective
from nemo_lite.backends.pytorch.engine.verdict.item_losses import StepItems
from nemo_lite.backends.pytorch.engine.verdict.skipped_steps import Found, SkippedSteps
from nemo_lite.backends.pytorch.engine.verdict.step_guard import GuardedStep
from nemo_lite.backends.pytorch.placement import HostCopy
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.errors import NonFiniteLossError


class Computed(NamedTuple):
    """A step after its last backward pass.

    Attributes:
        step: its index.
        objective: whose weights it updates.
        batches: this rank's, by micro-batch.
        losses: of the micro-batches, one number each.
        gradients: one number on the device: 0 if all gradients are finite.
        items: those of the batches.
    """

    step: int
    objective: Objective
    batches: Sequence[Batch]
    losses: Sequence[Tensor]
    gradients: Tensor
    items: StepItems


class Verdict(Protocol):
    """Decides whether steps count, and makes the updates of those that do."""

    def allows_losses(self, losses: Sequence[Tensor]) -> bool | None:
        """Before the last backward pass: whether this rank's losses are finite; None: the host does not know."""

    def allows(self, computed: Computed) -> bool:
        """Whether this rank's losses and gradients are finite, as far as the host can know without waiting."""

    def update(self, computed: Computed, is_allowed: bool) -> None:
        """Make the update, or leave the step out.

        Args:
            computed: the step.
            is_allowed: what :meth:`allows` says on all ranks together.

        Raises:
            NonFiniteLossError: so many steps in a row did not count, or the options allow none.
        """

    def settle(self) -> None:
        """Wait for what is not known yet of the last step, and tell about it. All ranks call it.

        Raises:
            NonFiniteLossError: see :meth:`update`.
        """


class HostVerdict:
    """The host reads each verdict before the update.

    Args:
        precision: updates.
        statistics: kept before the step.
        skipped: is told of steps that do not count.
    """

    def __init__(self, precision: Precision, statistics: RunningStatistics, skipped: SkippedSteps) -> None:
        self._precision, self._statistics, self._skipped = precision, statistics, skipped

    def allows_losses(self, losses: Sequence[Tensor]) -> bool | None:
        """Whether they are finite. On a CPU no host sync."""
        return math.isfinite(_total(losses))

    def allows(self, computed: Computed) -> bool:
        """Whether all is finite. On a CPU no host sync: it has made the backward pass."""
        if not (math.isfinite(_total(computed.losses)) and computed.gradients.item() == 0.0):
            return False
        nothing_left = computed.items.is_nothing_left()
        return nothing_left is None or not nothing_left.item()

    def update(self, computed: Computed, is_allowed: bool) -> None:
        """Make the update, or put back the statistics."""
        if is_allowed:
            self._skipped.none()
            num_left_out = computed.items.num_left_out
            if num_left_out is not None and num_left_out.item():
                self._skipped.left_out(_found(computed))
            objective = computed.objective
            self._precision.update(objective.optimizer, objective.update)
            return
        self._statistics.put_back()
        self._skipped.add(_found(computed))

    def settle(self) -> None:
        """All is known."""


def _total(losses: Sequence[Tensor]) -> float:
    total = losses[0] if len(losses) == 1 else torch.stack(list(losses)).sum()
    return float(total.item())


def _found(computed: Computed) -> Found:
    """Host syncs."""
    finite = [math.isfinite(loss.item()) for loss in computed.losses]
    statuses = [None if status is None else status.tolist() for status in computed.items.statuses]
    return Found(computed.step, computed.batches, finite, statuses, computed.items.reason)


class _Pending(NamedTuple):
    computed: Computed
    guarded: GuardedStep
    numbers: HostCopy


class DeviceVerdict:
    """The device guards each update by the verdict; the host reads it before the update of the next step.

    By then the next forward and backward pass are queued, so the device does not wait for the host. As the host knows
    all earlier verdicts at an update, nothing that it counts (an optimizer's steps) is wrong then.

    Args:
        precision: updates.
        statistics: kept before the step.
        skipped: is told of steps that do not count.
        comm: the ranks.
    """

    def __init__(self, precision: Precision, statistics: RunningStatistics, skipped: SkippedSteps, comm: Comm) -> None:
        self._precision, self._statistics, self._skipped, self._comm = precision, statistics, skipped, comm
        self._pending: _Pending | None = None
        self._guarded: dict[torch.optim.Optimizer, GuardedStep] = {}

    def allows_losses(self, losses: Sequence[Tensor]) -> bool | None:
        """None: the host does not know."""
        return None

    def allows(self, computed: Computed) -> bool:
        """True: the host does not know."""
        return True

    def update(self, computed: Computed, is_allowed: bool) -> None:
        """Settle the step before; then queue the update, which changes nothing if this step does not count."""
        self.settle()
        items = computed.items
        is_bad = torch.stack([loss.reshape(()) for loss in computed.losses]).isfinite().logical_not()
        is_bad = torch.cat([is_bad, (computed.gradients != 0).reshape(1)])  # NaN is not 0 either
        skip, nothing_left = is_bad.any(), items.is_nothing_left()
        skip = (skip if nothing_left is None else skip | nothing_left).float()
        self._comm.any_on_device(skip)
        optimizer = computed.objective.optimizer
        guarded = self._guarded.setdefault(optimizer, GuardedStep(optimizer))
        self._precision.update(optimizer, lambda: guarded.step(skip), skip)
        self._statistics.put_back_where(skip)
        numbers = [is_bad, skip.reshape(1), *(status for status in items.statuses if status is not None)]
        if items.num_left_out is not None:
            numbers.append(items.num_left_out.reshape(1))
        self._pending = _Pending(computed, guarded, HostCopy(torch.cat([part.float() for part in numbers])))

    def settle(self) -> None:
        """Read the verdict that is not known yet, if there is one."""
        if self._pending is None:
            return
        (computed, guarded, numbers), self._pending = self._pending, None
        with BACKWARD:  # the device may still be in it
            read = iter(numbers.values())
        finite, items = [next(read) == 0 for _ in computed.losses], computed.items
        _, skip = next(read), next(read)
        statuses = [None if status is None else list(islice(read, len(status))) for status in items.statuses]
        found = Found(computed.step, computed.batches, finite, statuses, items.reason)
        if not skip:
            self._skipped.none()
            if next(read, 0.0):
                self._skipped.left_out(found)
            return
        guarded.take_back()
        try:
            self._skipped.add(found)
        except NonFiniteLossError:
            self._statistics.put_back()  # the forward pass of a step that will not be made may have moved them
            raise


def verdict_on(
    device: torch.device,
    precision: Precision,
    statistics: RunningStatistics,
    skipped: SkippedSteps,
    comm: Comm,
) -> Verdict:
    """The form that suits a device: only a CPU's numbers can be read without waiting."""
    if device.type == "cpu":
        return HostVerdict(precision, statistics, skipped)
    return DeviceVerdict(precision, statistics, skipped, comm)
