"""The verdict on a step: whether its losses and gradients are finite. If not, nothing of the step stays.

On a CPU the host reads it before the update. On an accelerator it stays there and guards the update; the host reads it
one step later, when the device has the next forward and backward pass to do. Both give the same weights, messages and
end of the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from nemo_lite.backends.pytorch.data import Batch
from nemo_lite.backends.pytorch.distributed import BACKWARD, Comm
from nemo_lite.backends.pytorch.engine.module_state import RunningStatistics
from nemo_lite.backends.pytorch.engine.objectives import Objective
from nemo_lite.backends.pytorch.engine.skipped_steps import Found, SkippedSteps
from nemo_lite.backends.pytorch.engine.step_guard import GuardedStep
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
    """

    step: int
    objective: Objective
    batches: Sequence[Batch]
    losses: Sequence[Tensor]
    gradients: Tensor


class Verdict(Protocol):
    """Decides whether steps count, and makes the updates of those that do."""

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

    def allows(self, computed: Computed) -> bool:
        """Whether all is finite. A host sync."""
        losses = computed.losses
        total = losses[0] if len(losses) == 1 else torch.stack(list(losses)).sum()
        with BACKWARD:  # a device may still be in it
            return math.isfinite(total.item()) and computed.gradients.item() == 0.0

    def update(self, computed: Computed, is_allowed: bool) -> None:
        """Make the update, or put back the statistics."""
        if is_allowed:
            self._skipped.none()
            objective = computed.objective
            self._precision.update(objective.optimizer, objective.update)
            return
        self._statistics.put_back()
        finite = [math.isfinite(loss.item()) for loss in computed.losses]
        self._skipped.add(Found(computed.step, computed.batches, finite))

    def settle(self) -> None:
        """All is known."""


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

    def allows(self, computed: Computed) -> bool:
        """True: the host does not know."""
        return True

    def update(self, computed: Computed, is_allowed: bool) -> None:
        """Settle the step before; then queue the update, which changes nothing if this step does not count."""
        self.settle()
        is_bad = torch.stack([loss.reshape(()) for loss in computed.losses]).isfinite().logical_not()
        is_bad = torch.cat([is_bad, (computed.gradients != 0).reshape(1)])  # NaN is not 0 either
        skip = is_bad.any().float()
        self._comm.any_on_device(skip)
        optimizer = computed.objective.optimizer
        guarded = GuardedStep(optimizer)
        self._precision.update(optimizer, lambda: guarded.step(skip), skip)
        self._statistics.put_back_where(skip)
        self._pending = _Pending(computed, guarded, HostCopy(torch.cat([is_bad, skip.reshape(1)])))

    def settle(self) -> None:
        """Read the verdict that is not known yet, if there is one."""
        if self._pending is None:
            return
        (computed, guarded, numbers), self._pending = self._pending, None
        with BACKWARD:  # the device may still be in it
            *is_bad, skip = numbers.values()
        if not skip:
            self._skipped.none()
            return
        guarded.take_back()
        finite = [not bad for bad in is_bad[: len(computed.losses)]]
        try:
            self._skipped.add(Found(computed.step, computed.batches, finite))
        except NonFiniteLossError:
            self._statistics.put_back()  # the forward pass of a step that will not be made may have moved them
            raise


def verdict_on(
    device: torch.device, precision: Precision, statistics: RunningStatistics, skipped: SkippedSteps, comm: Comm
) -> Verdict:
    """The form that suits a device: only a CPU's numbers can be read without waiting."""
    if device.type == "cpu":
        return HostVerdict(precision, statistics, skipped)
    return DeviceVerdict(precision, statistics, skipped, comm)
