"""The training loop: steps, learning rates, counters and the ways to stop. It reads as the algorithm."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from nemo_lite.backends.pytorch.checkpoint.state import misfits_told
from nemo_lite.backends.pytorch.data.loaders import Batch, BatchLoader, length_of
from nemo_lite.backends.pytorch.data.order import seed_all, seed_of
from nemo_lite.backends.pytorch.distributed.activity import BACKWARD
from nemo_lite.backends.pytorch.distributed.batchnorm import adding_nothing
from nemo_lite.backends.pytorch.engine.averages import Averaging
from nemo_lite.backends.pytorch.engine.batches import StepBatches, StepBatchLoader, StepValues
from nemo_lite.backends.pytorch.engine.module_state import RunningStatistics, weights_not_finite
from nemo_lite.backends.pytorch.engine.objectives import Objective, refuse_unreached
from nemo_lite.backends.pytorch.engine.resuming import Pace
from nemo_lite.backends.pytorch.engine.run_state import RunState
from nemo_lite.backends.pytorch.engine.verdict import Computed, SkippedSteps, StepItems, verdict_on
from nemo_lite.backends.pytorch.placement import AheadOfUse
from nemo_lite.core.callbacks.base import CallbackList
from nemo_lite.core.run_options import LrPolicy, RunOptions
from nemo_lite.errors import UsageError, counted
from nemo_lite.interruption import name_of
from nemo_lite.utils import logging
from nemo_lite.utils.launch import as_typed

# LearningRates: the rate of each step, by a policy or as the optimizer has it, also after a run is resumed.


# Any: a training state is a tree of tensors, numbers and texts.


class LearningRates:
    """Sets the learning rate before each step.

    Args:
        objectives: of the run.
        policy: learning rate from (initial rate, step, epoch); ``None``: the optimizer's own, which callbacks may set.
    """

    def __init__(self, objectives: Sequence[Objective], policy: LrPolicy | None) -> None:
        self._objectives, self._policy = objectives, policy

    def set(self, objective: Objective, step: int, epoch: int) -> float:
        """Set the rates of a step; that of the first group of parameters."""
        groups = objective.optimizer.param_groups
        if self._policy is not None:
            for group, initial in zip(groups, objective.initial_lrs, strict=True):
                group["lr"] = self._policy(initial, step, epoch)
        rate: float = groups[0]["lr"]
        return rate

    def state_dict(self) -> dict[str, Any]:
        """Where the optimizers' rates come from, for a training state."""
        return {"rates": {"initial": self._initial(), "have_policy": self._policy is not None}}

    def load_state_dict(self, state: Mapping[str, Any], place: str = "") -> None:
        """Begin with the rates of this run, if those that the optimizers got from a checkpoint are not meant for it.

        They are not where a policy had set them and there is none now, or where the user gave others.
        """
        saved = state.get("rates")
        if saved is None or self._policy is not None:
            return
        if saved["have_policy"] or saved["initial"] != self._initial():
            self._put_back()

    def end(self) -> None:
        """The run is over: the rates are what they were before the policy, for another run of the same optimizers."""
        if self._policy is not None:
            self._put_back()

    def _put_back(self) -> None:
        for objective in self._objectives:
            for group, initial in zip(objective.optimizer.param_groups, objective.initial_lrs, strict=True):
                group["lr"] = initial

    def _initial(self) -> list[list[float]]:
        return [list(map(float, objective.initial_lrs)) for objective in self._objectives]


# When a run is over, also before it begins, and what it says when a signal ends it. Signals: elsewhere.


def total_steps(loader: BatchLoader, options: RunOptions) -> int | None:
    """Steps of a run, where that is known before it."""
    if options.num_epochs is None or (count := length_of(loader)) is None:
        return options.max_steps
    steps = math.ceil(count / options.batches_per_step) * options.num_epochs
    return steps if options.max_steps is None else min(steps, options.max_steps)


def check_what_is_left(state: RunState, options: RunOptions, policy: LrPolicy | None) -> None:
    """Say where a restored run goes on; or that there is nothing to train, or not at a rate above 0, and what to do.

    Raises:
        UsageError: there is not, after a checkpoint with ``must_go_on``. Without that it is a warning: a job that is
            started again and again until it is done ends well.
    """
    steps, epochs = state.steps_done, state.epochs_done
    error = options.nothing_left(steps, epochs)
    if error is None and state.restored:
        logging.info("Restored %s: going on at step %d, %s", state.restored, steps, state.position.words(epochs))
        for line in [*state.changes, *state.position.changes]:
            logging.info("%s", line)
    if error is None and steps and policy is not None and policy(1.0, steps, epochs) == 0.0:
        problem = "the schedule is over: the learning rate would be 0 for the rest"
        got = f"{counted(steps, 'step')} ({counted(epochs, 'epoch')}) done before"
        error = UsageError(problem, got=got, remedy="a schedule of its own begins with --init_from")
    if error is None:
        return
    if state.must_go_on:
        raise error
    text = str(error)
    logging.warning("%s", text[0].upper() + text[1:])


def interruption_text(state: RunState, number: int) -> str:
    """What a signal ended, where it is saved, where it will go on and how."""
    if state.steps_done == state.steps_before:
        return f"{name_of(number)}: stopped before the first step of this run; there is nothing new to save"
    stopped = f"{name_of(number)}: stopped after {counted(state.steps_done, 'step')}"
    if not state.saved:
        return f"{stopped}; nothing was saved: there is no CheckpointCallback that saves (--work_dir, --checkpoint_dir)"
    place = "" if state.is_epoch_over else f" {state.position.words(state.epochs_done)}"
    return f"{stopped}; saved {state.saved}. To go on{place}: {_how_to_go_on(state)}"


def _how_to_go_on(state: RunState) -> str:
    folder = Path(state.saved).parent
    is_elsewhere = bool(state.loaded_from) and Path(state.loaded_from) != folder
    command = "the same command"
    if state.world_size == 1:  # each process of several was started by a launcher, whose command is not known here
        command = _own_command() or command
    return f"{command} --load_dir {folder}" if is_elsewhere else command


def _own_command() -> str:
    """What was typed to start this process; "" in a notebook."""
    if Path(sys.argv[0]).is_file():
        return shlex.join(sys.orig_argv)
    return shlex.join(as_typed(sys.argv)) if sys.argv[0].startswith("nemo-lite ") else ""


# Counters: step, epoch and optimizers of the actions, which scripts of NeMo read and set. Nothing is counted here.


class Counters:
    """Base of the actions: what it shows is in their state."""

    _state: RunState

    @property
    def step(self) -> int:
        """Index of the step made last."""
        return self._state.step

    @step.setter
    def step(self, step: int) -> None:
        self._state.step = step

    @property
    def epoch(self) -> int:
        """Index of the epoch."""
        return self._state.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._state.epoch = epoch

    epoch_num = epoch

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers of the run, and those that were created."""
        return self._state.optimizers


# The training loop. Precision, ranks and callbacks are in the objects that it calls.


_NOTHING = nullcontext()
_AMOUNT = attrgetter("amount")
_STATISTICS_STEPS = 500
"""Steps whose batches are enough for a mean and a variance; fewer, if the epoch has fewer."""


class Training:
    """One run of training. Every rank has one, and all take the same decisions at the same steps.

    Args:
        objectives: taken in turn, one a step.
        loader: the batches of this rank.
        place_of: where item ``i`` of the data layer comes from, for messages.
        state: what callbacks see.
        tensors: of the step, part of ``state``.
        callbacks: notified of each moment.
        lr_policy: learning rate from (initial rate, step, epoch).
        options: when to end, and what to do on the way.
        is_sharded: weights are divided among the ranks.
    """

    def __init__(
        self,
        objectives: Sequence[Objective],
        loader: BatchLoader,
        place_of: Callable[[int], str],
        state: RunState,
        tensors: StepValues,
        callbacks: CallbackList,
        lr_policy: LrPolicy | None,
        options: RunOptions,
        is_sharded: bool = False,
    ) -> None:
        self._objectives = objectives
        self._state, self._tensors, self._callbacks = state, tensors, callbacks
        self._lr_policy, self._options = lr_policy, options
        self._rates = LearningRates(objectives, lr_policy)
        self._modules = [module for module in state.modules.values() if isinstance(module, nn.Module)]
        self._before_step = RunningStatistics(self._modules)
        # What zero-weight batches must not change; kept apart from what a skipped step puts back.
        self._before_zero_weight_batch = RunningStatistics(self._modules, own_only=True)
        self._ahead = AheadOfUse(state.device)
        self._batches = StepBatchLoader(loader, state.comm, options.batches_per_step, options.uneven, self._ahead)
        # Each rank of divided weights has gradients of its own; and a process alone agrees with nobody.
        self._agrees_early = not (is_sharded or self._batches.is_alone)
        scales_loss = state.precision.scales_loss
        self._skipped = SkippedSteps(state.comm, options, place_of, self._weights_not_finite, scales_loss)
        self._verdict = verdict_on(state.device, state.precision, self._before_step, self._skipped, state.comm)
        state.settle = self._verdict.settle
        state.position.account = getattr(loader, "account", None)
        state.position.pace = Pace(state.comm.world_size, options.batches_per_step, length_of(loader))
        state.position.digest = lambda done: self._batches.digest(state.epochs_done, done)
        about = (options.ema_decay, state.precision, state.comm, is_sharded, self._run_for_statistics)
        self._averaging = state.averaging = Averaging([*state.modules.values()], *about)
        state.parts = [state.position, self._averaging, self._rates, self._skipped]

    def run(self) -> None:
        """Train until a limit is reached or a callback asks to stop."""
        try:
            self._run()
        finally:
            self._rates.end()

    def _run(self) -> None:
        state, callbacks = self._state, self._callbacks
        callbacks.notify("on_action_start", state)
        with misfits_told(state.restored):
            callbacks.load_state_dict(state.saved_callbacks)
            state.position.check(state.epochs_done)
        if not state.is_stopping:
            check_what_is_left(state, self._options, self._lr_policy)
        while not self._is_done():
            state.epoch = state.epochs_done
            state.position.before_epoch(partial(self._reseed, state.epoch))
            callbacks.notify("on_epoch_start", state)
            self._epoch()
        self._skipped.report(state.steps_done)
        if state.steps_done > state.steps_before:  # the last update has no next step whose loss would show it
            self._skipped.check_weights(f"the run ended after {state.steps_done} steps")
        if state.stop_reason and not state.interrupted_by:
            logging.info("Stopped after step %d: %s", state.step, state.stop_reason)
        callbacks.notify("on_action_end", state)
        self._tensors.clear()
        state.position.close()
        self._batches.close()

    def _epoch(self) -> None:
        state = self._state
        state.position.before_first_batch()
        taken = self._batches.first(state.epoch, state.wishes, state.position.done)
        state.position.after_first_batch()
        state.agree(taken.wishes)
        if taken.is_over and state.position.done:  # other numbers of ranks have left fewer items than ranks
            state.epochs_done, state.position.done, state.is_epoch_over = state.epoch + 1, (), True
        elif taken.is_over:
            raise UsageError(
                f"the data layer gave no batch in epoch {state.epoch}",
                remedy="it has no items, fewer than a batch with drop_last, or an iterator that is used up: "
                "data_iterator must give a new one for each epoch",
            )
        # Checked here and not after the step, so that an epoch that ends with the run is complete.
        while not taken.is_over and not self._is_done():
            taken = self._step(taken)
        self._verdict.settle()
        self._batches.settle()
        if taken.is_over:
            self._batches.report()
            self._callbacks.notify("on_epoch_end", state)

    def _reseed(self, epoch: int) -> None:
        """Seed the generators, differently on each rank, for dropout; without a seed they go on."""
        if (seed := self._state.position.seed) is not None:
            seed_all(seed_of(seed, rank=self._state.comm.rank, epoch=epoch))

    def _weights_not_finite(self) -> list[str]:
        return weights_not_finite((module.label, module) for module in self._modules)

    def _is_done(self) -> bool:
        state = self._state
        return state.is_stopping or self._options.is_reached(state.steps_done, state.epochs_done)

    def _step(self, taken: StepBatches) -> StepBatches:
        """Make one optimizer step; the batches of the next one."""
        started, state, callbacks = time.perf_counter(), self._state, self._callbacks
        state.step = state.steps_done
        state.comm.at_step(state.step)
        objective = self._objectives[state.step % len(self._objectives)]
        callbacks.notify("on_step_start", state)
        state.learning_rate = self._rates.set(objective, state.step, state.epoch)
        objective.clear_gradients()
        self._before_step.keep()
        items = StepItems(objective.loss_modules, taken.num_items, taken.is_alone)
        losses: list[torch.Tensor] = []
        for number, (batch, factor) in enumerate(zip(taken.batches, taken.loss_factors(), strict=True), 1):
            losses.append(self._accumulate(objective, batch, factor, number == len(taken.batches), items, losses))
        left_out = self._batches.num_left_out()
        correction = items.agree(state.comm) if left_out is None else items.take(left_out)
        gradients = state.precision.finish_backward(
            objective.optimizer, objective.parameters, self._options.grad_norm_clip, correction
        )
        computed = Computed(state.step, objective, taken.batches, losses, gradients, items)
        is_allowed = self._verdict.allows(computed)
        # The next batches are fetched, and one exchange between the ranks decides on all that they must agree on.
        following = self._batches.following(are_finite=is_allowed, wishes=state.wishes)
        self._verdict.update(computed, is_allowed and following.was_finite)
        self._averaging.update(state.step)
        state.steps_done += 1
        state.is_epoch_over = following.is_over
        state.position.done = () if following.is_over else self._batches.done
        if following.is_over:
            # Before callbacks see the step's end: a checkpoint made then must hold it.
            state.epochs_done = state.epoch + 1
        state.agree(following.wishes)
        amount = sum(map(_AMOUNT, taken.batches[: taken.num_counted]))
        state.clock.add(time.perf_counter() - started + taken.first_wait, following.wait_seconds, amount)
        callbacks.notify("on_step_end", state)
        return following

    def _accumulate(
        self,
        objective: Objective,
        batch: Batch,
        factor: float,
        is_last: bool,
        items: StepItems,
        before: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """Forward and backward pass of one micro-batch, whose loss counts ``factor`` times; its loss.

        Args:
            before: the losses of the step's other micro-batches.
        """
        state = self._state
        self._callbacks.notify("on_batch_start", state)
        state.comm.at_step(state.step)  # a callback may have left an evaluation; gradients travel by another group
        self._tensors.clear()
        self._ahead.arrive(batch.values)
        with objective.module.sync_only_if(is_last), self._without_trace() if factor == 0.0 else _NOTHING:
            items.watch()
            with state.precision.forward():
                outputs = objective.module(*batch.values)
            loss = _total(outputs[: objective.num_losses])
            if objective.module.needs_reach_check:
                self._check_reach(objective, loss)
            weighted, judged = items.weigh(batch, loss, factor)
            if is_last and self._agrees_early:
                self._agree_early([*before, judged], items)
            with BACKWARD:  # marks the activity, for reports about ranks that hang
                state.precision.backward(weighted, is_last)
        self._tensors.set(loss, objective.calls, objective.returned_wires, (*batch.values, *outputs))
        self._callbacks.notify("on_batch_end", state)
        return judged

    def _agree_early(self, losses: Sequence[torch.Tensor], items: StepItems) -> None:
        """Begin the exchange between the ranks, which then runs beside the last backward pass.

        What is not known before that pass needs no exchange: averaged gradients are the same on all ranks, so each sees
        by itself whether they are finite.
        """
        are_finite = self._verdict.allows_losses(losses)
        if are_finite is not None:
            left_out = items.num_of_this_rank()
            self._batches.start(are_finite=are_finite, wishes=self._state.wishes, num_left_out=left_out)

    def _run_for_statistics(self, next_batch: Callable[[], None]) -> None:
        """Run the batches of an epoch, of the first steps of a long one, without gradients. All ranks call it.

        Args:
            next_batch: called before each batch that counts.
        """
        state = self._state
        self._reseed(state.epochs_done)
        taken = self._batches.first(state.epochs_done)
        for _ in range(_STATISTICS_STEPS):
            for number, batch in enumerate(taken.batches):
                counts = number < taken.num_counted
                if counts:
                    next_batch()
                self._ahead.arrive(batch.values)
                for objective in self._objectives:
                    with _NOTHING if counts else self._without_trace(), state.precision.forward():
                        objective.module(*batch.values)
            if taken.is_over:
                break
            taken = self._batches.following(are_finite=True)

    @contextmanager
    def _without_trace(self) -> Iterator[None]:
        """Around a zero-weight batch: it changes no statistics."""
        self._before_zero_weight_batch.keep()
        with adding_nothing(self._modules):
            yield
        self._before_zero_weight_batch.put_back()

    def _check_reach(self, objective: Objective, loss: torch.Tensor) -> None:
        objective.module.needs_reach_check = False
        reached: set[object] = {call.module for call in objective.calls}
        refuse_unreached(loss, [(module.label, module) for module in self._modules if module in reached])


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
