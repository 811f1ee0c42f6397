"""The training loop: it reads as the algorithm. Policy (precision, ranks, callbacks) lives in the objects it calls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn

from nemo_lite.backends.pytorch.data import Batch, BatchLoader, length_of
from nemo_lite.backends.pytorch.placement import to_device
from nemo_lite.backends.pytorch.state import RunState, StepValues
from nemo_lite.backends.pytorch.statistics import RunningStatistics
from nemo_lite.core.events import CallbackList
from nemo_lite.core.nm_tensor import ModuleCall, NmTensor
from nemo_lite.errors import NonFiniteLossError, UsageError
from nemo_lite.utils import logging

LrPolicy = Callable[[float, int, int], float]


@dataclass
class Objective:
    """What one optimizer minimises.

    Attributes:
        run: computes the losses, then the kept wires, from a batch.
        num_losses: how many of its outputs are losses; they are summed.
        kept: the wires of a batch, then those of its outputs.
        calls: the calls that ``run`` makes.
        optimizer: updates ``parameters``.
        parameters: what is clipped and updated.
        initial_lrs: learning rate of each parameter group before any policy.
    """

    run: Callable[..., tuple[Any, ...]]
    num_losses: int
    kept: Sequence[NmTensor]
    calls: Set[ModuleCall]
    optimizer: torch.optim.Optimizer
    parameters: Sequence[nn.Parameter]
    initial_lrs: Sequence[float]


@dataclass
class Limits:
    """When a run ends, and what it does on the way."""

    num_epochs: int | None
    max_steps: int | None
    batches_per_step: int = 1
    max_grad_norm: float | None = None
    stop_on_nan_loss: bool = False


class Training:
    """One run of training.

    Args:
        objectives: taken in turn, one a step.
        loader: the batches.
        place_of: where item ``i`` of the data layer comes from, for messages.
        state: what callbacks see.
        values: the step's tensors, part of ``state``.
        callbacks: told what happens.
        lr_policy: learning rate from (initial rate, step, epoch).
        limits: when to end.
    """

    def __init__(
        self,
        objectives: Sequence[Objective],
        loader: BatchLoader,
        place_of: Callable[[int], str],
        state: RunState,
        values: StepValues,
        callbacks: CallbackList,
        lr_policy: LrPolicy | None,
        limits: Limits,
    ) -> None:
        self._objectives, self._loader, self._place_of = objectives, loader, place_of
        self._state, self._values, self._callbacks = state, values, callbacks
        self._lr_policy, self._limits = lr_policy, limits
        self._statistics = RunningStatistics(m for m in state.modules.values() if isinstance(m, nn.Module))
        self._num_skipped = self._num_taken = 0
        self._started = self._wait_seconds = 0.0

    def run(self) -> None:
        """Train until a limit is reached or a callback asks to stop."""
        state, callbacks = self._state, self._callbacks
        callbacks.on_action_start(state)
        if self._is_done():
            done = "%d steps and %d epochs were done before this run"
            logging.warning(f"There is nothing left to train: {done}", state.steps_done, state.epochs_done)
        while not self._is_done():
            state.epoch, self._num_taken = state.epochs_done, 0
            callbacks.on_epoch_start(state)
            for batches in self._steps(self._loader.epoch(state.epoch)):
                if self._is_done():  # asked here and not behind the step: an epoch that ends with the run is complete
                    break
                self._step(batches)
            else:
                self._refuse_no_data()
                state.epochs_done = state.epoch + 1
                callbacks.on_epoch_end(state)
        if self._num_skipped:
            logging.warning(
                "%d of %d steps were skipped: their loss was not finite", self._num_skipped, state.steps_done
            )
        if state.stop_reason:
            logging.info("Stopped after step %d: %s", state.step, state.stop_reason)
        callbacks.on_action_end(state)
        self._values.clear()

    def _refuse_no_data(self) -> None:
        if not self._num_taken:
            raise UsageError(
                f"the data layer gave no batch in epoch {self._state.epoch}",
                remedy="it has no items, fewer than a batch with drop_last, or an iterator that is used up: "
                "data_iterator must give a new one for each epoch",
            )

    def _is_done(self) -> bool:
        state, limits = self._state, self._limits
        if limits.max_steps is not None and state.steps_done >= limits.max_steps:
            return True
        return bool(state.stop_reason) or (limits.num_epochs is not None and state.epochs_done >= limits.num_epochs)

    def _steps(self, batches: Iterable[Batch]) -> Iterator[list[Batch]]:
        """The batches of each step; the last step of an epoch takes what is left. The wait for data is timed."""
        batches = iter(batches)
        while True:
            self._started = time.perf_counter()
            group = list(islice(batches, self._limits.batches_per_step))
            self._wait_seconds = time.perf_counter() - self._started
            if not group:
                return
            yield group

    def _step(self, batches: list[Batch]) -> None:
        state, callbacks = self._state, self._callbacks
        state.step = state.steps_done
        objective = self._objectives[state.step % len(self._objectives)]
        callbacks.on_step_start(state)
        self._set_learning_rate(objective)
        objective.optimizer.zero_grad(set_to_none=True)
        self._statistics.keep()
        num_batches = len(batches)
        losses = [
            self._accumulate(objective, batch, num_batches, number == num_batches)
            for number, batch in enumerate(batches, 1)
        ]
        if state.comm.all_agree(_all_finite(losses)):
            state.precision.update(objective.optimizer, objective.parameters, self._limits.max_grad_norm)
        else:
            self._skip(batches, losses)
        state.steps_done += 1
        self._num_taken += num_batches
        if self._num_taken == length_of(self._loader):
            state.epochs_done = state.epoch + 1  # known before the step's end is told: a checkpoint made then holds it
        amount = sum([batch.amount for batch in batches])
        state.clock.add(time.perf_counter() - self._started, self._wait_seconds, amount)
        callbacks.on_step_end(state)

    def _accumulate(self, objective: Objective, batch: Batch, num_batches: int, is_last: bool) -> torch.Tensor:
        """Forward and backward of one batch, weighted by the real number of batches of its step; its loss."""
        state = self._state
        self._callbacks.on_batch_start(state)
        self._values.clear()
        values = to_device(batch.values, state.device)
        with state.comm.sync_only_if(is_last):
            with state.precision.forward():
                outputs = objective.run(*values)
            loss = _total(outputs[: objective.num_losses])
            state.precision.backward(loss if num_batches == 1 else loss / num_batches)
        detached = loss.detach()
        self._values.set(detached, objective.calls, objective.kept, (*values, *outputs))
        self._callbacks.on_batch_end(state)
        return detached

    def _set_learning_rate(self, objective: Objective) -> None:
        state = self._state
        if self._lr_policy is not None:
            for group, initial in zip(objective.optimizer.param_groups, objective.initial_lrs, strict=True):
                group["lr"] = self._lr_policy(initial, state.step, state.epoch)
        state.learning_rate = objective.optimizer.param_groups[0]["lr"]

    def _skip(self, batches: Sequence[Batch], losses: Sequence[torch.Tensor]) -> None:
        """Leave weights and running statistics as they were and say which items were in the batch.

        Raises:
            NonFiniteLossError: the run was told to stop then.
        """
        self._num_skipped += 1
        self._statistics.put_back()
        bad = [batch for batch, loss in zip(batches, losses, strict=True) if not torch.isfinite(loss)]
        places = [self._place_of(i) for batch in bad for i in batch.ids or ()]
        items = f"; in the batch: {', '.join(places[:5])}{', ...' if len(places) > 5 else ''}" if places else ""
        problem = f"the loss of step {self._state.step} is not finite{items}"
        if self._limits.stop_on_nan_loss:
            raise NonFiniteLossError(problem, remedy="the weights are those of the step before")
        logging.warning("%s; the step is skipped", problem)


def _total(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of the losses.

    Raises:
        UsageError: one that is not a single number, or none that depends on a weight that is trained.
    """
    for loss in losses:
        if loss.numel() != 1:
            got = f"shape {tuple(loss.shape)}"
            raise UsageError("a loss must be a single number", got=got, remedy="take its mean, or optimize a LossNM")
    total = losses[0] if len(losses) == 1 else torch.stack(list(losses)).sum()
    if not total.requires_grad:
        raise UsageError("no weight that the loss depends on is trained", remedy="unfreeze a module that leads to it")
    return total


def _all_finite(losses: Sequence[torch.Tensor]) -> bool:
    """Whether every loss is finite. A host sync, placed where the backward pass is already under way."""
    total = losses[0] if len(losses) == 1 else torch.stack(list(losses)).sum()
    return math.isfinite(total.item())
