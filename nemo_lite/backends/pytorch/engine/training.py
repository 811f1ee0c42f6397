"""The training loop. Precision, ranks and callbacks are in the objects that it calls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from nemo_lite.backends.pytorch.data import Batch, BatchLoader
from nemo_lite.backends.pytorch.distributed import BACKWARD, adding_nothing
from nemo_lite.backends.pytorch.engine.module_state import RunningStatistics
from nemo_lite.backends.pytorch.engine.objectives import Objective, refuse_unreached
from nemo_lite.backends.pytorch.engine.run_state import RunState
from nemo_lite.backends.pytorch.engine.step_batches import StepBatches, StepBatchLoader
from nemo_lite.backends.pytorch.engine.step_values import StepValues
from nemo_lite.backends.pytorch.placement import to_device
from nemo_lite.core.callbacks.base import CallbackList
from nemo_lite.core.run_options import LrPolicy, RunOptions
from nemo_lite.errors import NonFiniteLossError, UsageError
from nemo_lite.utils import logging

_NOTHING = nullcontext()


@dataclass
class _Skipped:
    """Steps whose loss was not finite."""

    total: int = 0
    in_a_row: int = 0


class Training:
    """One run of training. Every rank has one, and all take the same decisions at the same steps.

    Args:
        objectives: taken in turn, one a step.
        loader: the batches of this rank.
        place_of: where item ``i`` of the data layer comes from, for messages.
        state: what callbacks see.
        values: the step's tensors, part of ``state``.
        callbacks: notified of each moment.
        lr_policy: learning rate from (initial rate, step, epoch).
        options: when to end, and what to do on the way.
        reseed: called with the index of each epoch before it starts.
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
        options: RunOptions,
        reseed: Callable[[int], None],
    ) -> None:
        self._objectives, self._place_of = objectives, place_of
        self._state, self._values, self._callbacks = state, values, callbacks
        self._lr_policy, self._options, self._reseed = lr_policy, options, reseed
        self._modules = [module for module in state.modules.values() if isinstance(module, nn.Module)]
        self._statistics = RunningStatistics(self._modules)
        # What zero-weight batches must not change; kept apart from what a skipped step puts back.
        self._idle = RunningStatistics(self._modules, own_only=True)
        self._batches = StepBatchLoader(loader, state.comm, options.batches_per_step, options.uneven)
        self._skipped = _Skipped()

    def run(self) -> None:
        """Train until a limit is reached or a callback asks to stop."""
        state, callbacks = self._state, self._callbacks
        callbacks.notify("on_action_start", state)
        if self._is_done():
            done = "%d steps and %d epochs were done before this run"
            logging.warning(f"There is nothing left to train: {done}", state.steps_done, state.epochs_done)
        while not self._is_done():
            state.epoch = state.epochs_done
            self._reseed(state.epoch)
            callbacks.notify("on_epoch_start", state)
            self._epoch()
        if self._skipped.total:
            skipped = "%d of %d steps were skipped: their loss was not finite"
            logging.warning(skipped, self._skipped.total, state.steps_done)
        if state.stop_reason:
            logging.info("Stopped after step %d: %s", state.step, state.stop_reason)
        callbacks.notify("on_action_end", state)
        self._values.clear()

    def _epoch(self) -> None:
        state = self._state
        taken = self._batches.first(state.epoch)
        if taken.is_over:
            raise UsageError(
                f"the data layer gave no batch in epoch {state.epoch}",
                remedy="it has no items, fewer than a batch with drop_last, or an iterator that is used up: "
                "data_iterator must give a new one for each epoch",
            )
        # Checked here and not after the step, so that an epoch that ends with the run is complete.
        while not taken.is_over and not self._is_done():
            taken = self._step(taken)
        self._batches.settle()
        if taken.is_over:
            self._batches.report()
            self._callbacks.notify("on_epoch_end", state)

    def _is_done(self) -> bool:
        state, options = self._state, self._options
        if options.max_steps is not None and state.steps_done >= options.max_steps:
            return True
        return state.is_stopping or (options.num_epochs is not None and state.epochs_done >= options.num_epochs)

    def _step(self, taken: StepBatches) -> StepBatches:
        """Make one optimizer step; the batches of the next one."""
        started, state, callbacks = time.perf_counter(), self._state, self._callbacks
        state.step = state.steps_done
        state.comm.at_step(state.step)
        objective = self._objectives[state.step % len(self._objectives)]
        callbacks.notify("on_step_start", state)
        self._set_learning_rate(objective)
        objective.optimizer.zero_grad(set_to_none=True)
        self._statistics.keep()
        losses = [
            self._accumulate(objective, batch, weight, number == len(taken.batches))
            for number, (batch, weight) in enumerate(zip(taken.batches, taken.weights(), strict=True), 1)
        ]
        # The next batches are fetched, and one exchange between the ranks decides on all that they must agree on.
        following = self._batches.following(are_finite=_all_finite(losses), stop=bool(state.stop_reason))
        if following.was_finite:
            self._skipped.in_a_row = 0
            state.precision.update(objective.optimizer, objective.parameters, self._options.grad_norm_clip)
        else:
            self._skip(taken.batches, losses)
        state.steps_done += 1
        if following.is_over:
            state.epochs_done = state.epoch + 1  # before on_step_end: a checkpoint made there must hold it
