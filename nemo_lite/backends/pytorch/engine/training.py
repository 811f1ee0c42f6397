"""The training loop: steps, learning rates, counters and the ways to stop. It reads as the algorithm."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import torch
from torch import nn

from nemo_lite.backends.pytorch.checkpoint.fitting import misfits_told
from nemo_lite.backends.pytorch.data.loaders import Batch
from nemo_lite.backends.pytorch.distributed.batchnorm import adding_nothing, needs_all_ranks
from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.distributed.contract import RunContract
from nemo_lite.backends.pytorch.distributed.process import BACKWARD
from nemo_lite.backends.pytorch.distributed.replicas import CopyComparison
from nemo_lite.backends.pytorch.engine.averages import Averaging
from nemo_lite.backends.pytorch.engine.batches import StepBatches
from nemo_lite.backends.pytorch.engine.checkpoints import Checkpoints, SavedPart
from nemo_lite.backends.pytorch.engine.evaluation import Evaluations
from nemo_lite.backends.pytorch.engine.lanes import Lane, PlacesOfLanes, refuse_no_batch
from nemo_lite.backends.pytorch.engine.module_state import RunningStatistics, weights_not_finite
from nemo_lite.backends.pytorch.engine.objectives import LoweredObjective, refuse_unreached
from nemo_lite.backends.pytorch.engine.rehearsal import rehearse
from nemo_lite.backends.pytorch.engine.resuming import Pace, Position
from nemo_lite.backends.pytorch.engine.state import NO_WISHES, RunState, StepValues, ValuesOfLanes, Wishes
from nemo_lite.backends.pytorch.engine.verdict import ComputedStep, SkippedSteps, Verdict
from nemo_lite.backends.pytorch.generators import seed_all, seed_of
from nemo_lite.backends.pytorch.lowering import Lowering, lower
from nemo_lite.backends.pytorch.placement import AheadOfUse
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.backends.pytorch.tensor_codec import Tree
from nemo_lite.base.errors import UsageError, counted
from nemo_lite.base.interruption import name_of
from nemo_lite.base.launch import as_typed
from nemo_lite.core.callbacks.base import CallbackList, is_overridden
from nemo_lite.core.run_options import LrPolicy, RunOptions
from nemo_lite.utils import logging


class LearningRates:
    """Sets the learning rate before each step.

    Args:
        objectives: of the run.
        policy: learning rate from (initial rate, step, epoch); ``None``: the optimizer's own, which callbacks may set.
    """

    def __init__(self, objectives: Sequence[LoweredObjective], policy: LrPolicy | None) -> None:
        self._objectives, self._policy = objectives, policy

    def set(self, objective: LoweredObjective, step: int, epoch: int) -> float:
        """Set the rates of a step; that of the first group of parameters."""
        groups = objective.optimizer.param_groups
        if self._policy is not None:
            for group, initial in zip(groups, objective.initial_lrs, strict=True):
                group["lr"] = self._policy(initial, step, epoch)
        rate: float = groups[0]["lr"]
        return rate

    def state_dict(self) -> dict[str, object]:
        """Where the optimizers' rates come from, for a training state."""
        return {"rates": {"initial": self._initial(), "have_policy": self._policy is not None}}

    def load_state_dict(self, state: Mapping[str, Tree], place: str = "") -> None:
        """Begin with the rates of this run, if those that the optimizers got from a checkpoint are not meant for it.

        They are not where a policy had set them and there is none now, or where the user gave others.
        """
        saved = state.get("rates")
        if saved is None or self._policy is not None:
            return
        if saved["have_policy"] or saved["initial"] != self._initial():
            self._put_back()

    def jump(self, state: RunState) -> str:
        """The rates of the last step and of the next, where another schedule makes them far apart; else ""."""
        if self._policy is None or len(self._objectives) > 1 or not state.steps_done:
            return ""
        initial, last, epoch = self._objectives[0].initial_lrs[0], state.learning_rate, state.epochs_done
        expected = self._policy(initial, state.steps_done - 1, epoch - state.is_epoch_over)
        following = self._policy(initial, state.steps_done, epoch)
        if math.isclose(expected, last, rel_tol=1e-6) or 0.5 * last <= following <= 2.0 * last:
            return ""
        return (
            f"learning rate: the last step had {last:.2e}, the next has {following:.2e}: the schedule, its length or "
            "its rate is not that of the checkpoint"
        )

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


def total_steps(lane: Lane, options: RunOptions) -> int | None:
    """Steps of a run, where that is known before it."""
    if options.num_epochs is None or (count := lane.loader.num_rounds) is None:
        return options.max_steps
    steps = math.ceil(count / lane.batches_per_step) * options.num_epochs
    return steps if options.max_steps is None else min(steps, options.max_steps)


def check_what_is_left(
    state: RunState,
    checkpoints: Checkpoints,
    position: Position,
    options: RunOptions,
    policy: LrPolicy | None,
    rates: LearningRates,
) -> None:
    """Say where a restored run goes on; or that there is nothing to train, or not at a rate above 0, and what to do.

    Raises:
        UsageError: there is not, after a checkpoint with ``must_go_on``. Without that it is a warning: a job that is
            started again and again until it is done ends well.
    """
    steps, epochs = state.steps_done, state.epochs_done
    error = options.nothing_left(steps, epochs)
    if error is None and checkpoints.restored:
        logging.info("Restored %s: going on at step %d, %s", checkpoints.restored, steps, position.words(epochs))
        for line in [*checkpoints.changes, *position.changes]:
            logging.info("%s", line)
        if checkpoints.changes and (jump := rates.jump(state)):
            logging.warning("%s", jump)
    if error is None and steps and policy is not None and policy(1.0, steps, epochs) == 0.0:
        problem = "the schedule is over: the learning rate would be 0 for the rest"
        got = f"{counted(steps, 'step')} ({counted(epochs, 'epoch')}) done before"
        error = UsageError(problem, got=got, remedy="a schedule of its own begins with --init_from")
    if error is None:
        return
    if checkpoints.must_go_on:
        raise error
    text = str(error)
    logging.warning("%s", text[0].upper() + text[1:])


def interruption_text(number: int, steps: int, steps_before: int, saved: str, place: str, how_to_go_on: str) -> str:
    """A line for the log: what a signal ended, where it is saved, where it will go on and how.

    Args:
        number: of the signal.
        steps, steps_before: done when it ended, and when it began.
        saved: path of the checkpoint; "" without.
        place: in the epoch.
        how_to_go_on: a command.
    """
    if steps == steps_before:
        return f"{name_of(number)}: stopped before the first step of this run; there is nothing new to save"
    stopped = f"{name_of(number)}: stopped after {counted(steps, 'step')}"
    if not saved:
        return f"{stopped}; nothing was saved: there is no CheckpointCallback that saves (--work_dir, --checkpoint_dir)"
    return f"{stopped}; saved {saved}. To go on{place}: {how_to_go_on}"


def how_to_go_on(saved: str, loaded_from: str, world_size: int) -> str:
    """The command that goes on from a checkpoint."""
    command = "the same command"
    if world_size == 1:  # each process of several was started by a launcher, whose command is not known here
        if Path(sys.argv[0]).is_file():  # no notebook
            command = shlex.join(sys.orig_argv)
        elif sys.argv[0].startswith("nemo-lite "):
            command = shlex.join(as_typed(sys.argv))
    folder = Path(saved).parent
    return f"{command} --load_dir {folder}" if loaded_from and Path(loaded_from) != folder else command


_STATISTICS_STEPS = 500
"""Steps whose batches are enough for a mean and a variance; fewer, if the epoch has fewer."""


class Training:
    """One run of training. Every rank has one, and all take the same decisions at the same steps.

    Args:
        comm: the ranks.
        device: where modules run.
        precision: in what.
        lanes: the objectives and their data.
        state: what callbacks see.
        tensors: of the step, part of ``state``.
        ahead: copies batches to the device.
        callbacks: notified of each moment.
        lr_policy: learning rate from (initial rate, step, epoch).
        options: when to end, and what to do on the way.
        lowering: how evaluated DAGs become modules.
        contract: of the run, stored in checkpoints.
        seed: of the generators, see `Position`.
        is_sharded: weights are divided among the ranks.

    Attributes:
        evaluations, checkpoints: services for the callbacks.
    """

    def __init__(
        self,
        comm: Comm,
        device: torch.device,
        precision: Precision,
        lanes: Sequence[Lane],
        state: RunState,
        tensors: StepValues | ValuesOfLanes,
        ahead: AheadOfUse,
        callbacks: CallbackList,
        lr_policy: LrPolicy | None,
        options: RunOptions,
        lowering: Lowering,
        contract: Callable[[], RunContract],
        seed: int | None = None,
        is_sharded: bool = False,
    ) -> None:
        self._comm, self._precision, self._lanes = comm, precision, lanes
        self._state, self._tensors, self._callbacks = state, tensors, callbacks
        self._ahead, self._lr_policy, self._options = ahead, lr_policy, options
        self._modules = [module for module in state.modules.values() if isinstance(module, nn.Module)]
        self._before_step = RunningStatistics(self._modules)
        # What zero-weight batches must not change; kept apart from what a skipped step puts back.
        self._before_zero_weight_batch = RunningStatistics(self._modules, own_only=True)
        self._main = main = lanes[0]
        # Each rank of divided weights has gradients of its own; and a process alone agrees with nobody.
        self._agrees_early = not (is_sharded or main.batches.is_alone)
        self._skipped = SkippedSteps(comm, options, self._weights_not_finite, precision.scales_loss)
        on_host = device.type == "cpu"  # only a CPU's numbers can be read without waiting
        self._verdict = Verdict(precision, self._before_step, self._skipped, comm, on_host)
        objectives = [objective for lane in lanes for objective in lane.objectives]
        self._rates = LearningRates(objectives, lr_policy)
        self._losses = dict.fromkeys(module for objective in objectives for module in objective.loss_modules)
        self._position = Position(
            comm,
            device,
            state.modules,
            Pace(comm.world_size, main.batches_per_step, main.loader.num_rounds),
            lambda done: main.batches.digest(state.epochs_done, done),
            main.loader.account,
            seed,
        )
        self._places = PlacesOfLanes(comm, lanes[1:])
        # Not where a pass is an exchange between ranks, nor where it would be compiled for this batch.
        self._may_rehearse = lowering is lower and not (is_sharded or needs_all_ranks(self._modules))
        self._averaging = state.averaging = Averaging(
            [*state.modules.values()], options.ema_decay, precision, comm, is_sharded, self._run_for_statistics
        )
        layers = dict.fromkeys(lane.data_layer for lane in lanes)
        self._copies = [CopyComparison(comm, layer.copied(), layer.label, layer.place_of) for layer in layers]
        self.evaluations = Evaluations(
            comm, device, precision, lowering, state, callbacks, self._verdict.settle, self._copies
        )
        parts: list[SavedPart] = [self._position, self._averaging, self._rates, self._skipped, self._places]
        self.checkpoints = Checkpoints(comm, state, self.evaluations, precision, callbacks, parts, contract)

    def run(self) -> None:
        """Train until a limit is reached or a callback asks to stop."""
        for module in self._losses:
            module.item_losses = []
        try:
            self._run()
        finally:
            for module in self._losses:
                module.item_losses = None
            self._rates.end()
            self.checkpoints.close()
            self.evaluations.close()
            for lane in self._lanes:
                lane.tensors.clear()
                lane.batches.close()  # also behind an error, which a notebook keeps, and with it this object

    def compare_copies(self, seconds: float) -> None:
        """End the comparison of the training data on the machines, which may take so long."""
        for comparison in self._copies:
            comparison.compare(seconds)

    def interruption_text(self, number: int) -> str:
        """A line for the log about the end of the run by this signal."""
        state, checkpoints = self._state, self.checkpoints
        place = "" if state.is_epoch_over else f" {self._position.words(state.epochs_done)}"
        command = how_to_go_on(checkpoints.saved, checkpoints.loaded_from, state.world_size)
        return interruption_text(number, state.steps_done, checkpoints.steps_before, checkpoints.saved, place, command)

    def _run(self) -> None:
        state, callbacks, checkpoints = self._state, self._callbacks, self.checkpoints
        callbacks.notify("on_action_start", state)
        with misfits_told(checkpoints.restored):
            callbacks.load_state_dict(checkpoints.of_callbacks)
            self._position.check(state.epochs_done)
            self._places.check()
        if not state.is_stopping:
            check_what_is_left(state, checkpoints, self._position, self._options, self._lr_policy, self._rates)
        if not self._is_done() and self._may_rehearse:
            self._rehearse()
        while not self._is_done():
            state.epoch = state.epochs_done
            self._position.before_epoch(partial(self._reseed, state.epoch))
            callbacks.notify("on_epoch_start", state)
            self._epoch()
        for lane in self._lanes[1:]:
            if lane.has_begun:
                lane.batches.settle()
        self._skipped.report(state.steps_done)
        if state.steps_done > checkpoints.steps_before:  # the last update has no next step whose loss would show it
            self._skipped.check_weights(f"the run ended after {state.steps_done} steps")
        if state.stop_reason and not state.interrupted_by:
            logging.info("Stopped after %s: %s", counted(state.steps_done, "step"), state.stop_reason)
        callbacks.notify("on_action_end", state)
        self._position.close()

    def _rehearse(self) -> None:
        """Run the largest batch of each data layer, so that a lack of memory shows before the first step."""
        for lane in self._lanes:
            batch = lane.data_layer.largest_batch()
            if batch is None:
                continue
            for objective in lane.objectives:
                rehearse(
                    objective,
                    batch,
                    self._state.modules,
                    self._precision,
                    lane.data_layer.label,
                    lane.batches_per_step,
                )

    def _epoch(self) -> None:
        state = self._state
        main = self._main
        self._position.before_first_batch()
        first = main.next = main.batches.first(state.epoch, state.wishes, self._position.done)
        for lane in self._lanes[1:]:
            if not lane.has_begun:
                lane.begin()
        self._position.after_first_batch()
        state.agree(first.wishes)
        if first.is_over and self._position.done:  # other numbers of ranks have left fewer items than ranks
            state.epochs_done, self._position.done, state.is_epoch_over = state.epoch + 1, (), True
        else:
            refuse_no_batch(first, state.epoch)
        # Checked here and not after the step, so that an epoch that ends with the run is complete.
        while not main.next.is_over and not self._is_done():
            self._step()
        self._verdict.settle()
        main.batches.settle()
        if main.next.is_over:
            main.batches.report()
            self._callbacks.notify("on_epoch_end", state)

    def _reseed(self, epoch: int) -> None:
        """Seed the generators, differently on each rank, for dropout; without a seed they go on."""
        if (seed := self._position.seed) is not None:
            seed_all(seed_of(seed, rank=self._comm.rank, epoch=epoch))

    def _weights_not_finite(self) -> list[str]:
        return weights_not_finite((module.label, module) for module in self._modules)

    def _is_done(self) -> bool:
        state = self._state
        return state.is_stopping or self._options.is_reached(state.steps_done, state.epochs_done)

    def _step(self) -> None:
        """Make one step: update each objective whose turn it is."""
        started, state, callbacks = time.perf_counter(), self._state, self._callbacks
        state.step = state.steps_done
        self._comm.at_step(state.step)
        callbacks.notify("on_step_start", state)
        waited = amount = 0.0
        wishes: Wishes | None = None
        for lane in self._lanes:
            if (state.step + 1) % lane.every == 0:
                taken, following = self._update(lane)
                waited += following.wait_seconds
                amount += sum([batch.amount for batch in taken.counted])
                started -= taken.first_wait
                wishes = wishes.joined(following.wishes) if wishes else following.wishes
        if self._options.ema_decay is not None:
            self._averaging.update(state.step)
        state.steps_done += 1
        if state.is_epoch_over:
            # Before callbacks see the step's end: a checkpoint made then must hold it.
            state.epochs_done = state.epoch + 1
        state.agree(wishes or NO_WISHES)
        state.clock.add(time.perf_counter() - started, waited, amount)
        callbacks.notify("on_step_end", state)

    def _update(self, lane: Lane) -> tuple[StepBatches, StepBatches]:
        """Update the objective of a lane; its batches, and those of its next update."""
        state, taken = self._state, lane.next
        objective = lane.objectives[state.step % len(lane.objectives)]
        rate = self._rates.set(objective, state.step, state.epoch)
        if lane is self._main:
            state.learning_rate = rate
        for half in objective.halves:  # the optimizer does not hold them
            half.grad = None
        if is_overridden(objective.optimizer, "zero_grad", torch.optim.Optimizer):  # by its class, or on it by apex
            objective.optimizer.zero_grad(set_to_none=True)
        else:  # zero_grad itself takes 6 microseconds more, for torch's profiler
            for parameter in objective.parameters:
                parameter.grad = None
        self._before_step.keep()
        computed = ComputedStep(state.step, objective, taken, lane.data_layer.place_of)
        for number, (batch, factor) in enumerate(zip(taken.batches, taken.loss_factors(), strict=True), 1):
            self._accumulate(lane, computed, batch, factor, is_last=number == len(taken.batches))
        correction = computed.correction(self._comm, lane.batches.item_sums())
        computed.gradients = self._precision.finish_backward(
            objective.optimizer, objective.parameters, self._options.grad_norm_clip, correction
        )
        is_allowed = self._verdict.allows(computed)
        # The next batches are fetched, and one exchange between the ranks decides on all that they must agree on.
        following = lane.batches.following(are_finite=is_allowed, wishes=state.wishes)
        self._verdict.update(computed, is_allowed and following.was_finite)
        if lane is self._main:
            state.is_epoch_over, lane.next = following.is_over, following
            self._position.done = () if following.is_over else lane.batches.done
        else:
            lane.go_on(following)
        return taken, following

    def _accumulate(self, lane: Lane, computed: ComputedStep, batch: Batch, factor: float, is_last: bool) -> None:
        """Forward and backward pass of one micro-batch of a step, whose loss counts ``factor`` times."""
        state, objective = self._state, computed.objective
        self._callbacks.notify("on_batch_start", state)
        self._comm.at_step(state.step)  # a callback may have left an evaluation; gradients travel by another group
        lane.tensors.clear()
        self._ahead.arrive(batch.values)
        with objective.module.sync_only_if(is_last), self._without_trace() if factor == 0.0 else nullcontext():
            computed.begin_batch()
            with self._precision.forward():
                outputs = objective.module(*batch.values)
            loss = _total(outputs[: objective.num_losses])
            if objective.module.needs_reach_check:
                objective.module.needs_reach_check = False
                reached: set[object] = {call.module for call in objective.calls}
                refuse_unreached(loss, [(module.label, module) for module in self._modules if module in reached])
            weighted = computed.weighted(batch, loss, factor)
            if is_last and self._agrees_early:
                # The exchange between the ranks runs beside the last backward pass. What is not known before that pass
                # needs none: averaged gradients are the same on all ranks, so each sees whether they are finite.
                are_finite = self._verdict.allows_losses(computed)
                if are_finite is not None:
                    sums = computed.item_sums()
                    lane.batches.start(are_finite=are_finite, wishes=state.wishes, item_sums=sums)
            with BACKWARD:  # marks the activity, for reports about ranks that hang
                self._precision.backward(weighted, is_last)
        if isinstance(self._tensors, ValuesOfLanes):
            self._tensors.latest = lane.tensors
        lane.tensors.set(loss, objective.calls, objective.returned_wires, (*batch.values, *outputs))
        self._callbacks.notify("on_batch_end", state)

    def _run_for_statistics(self, next_batch: Callable[[bool], None]) -> None:
        """Run the batches of an epoch, of the first steps of a long one, without gradients. All ranks call it.

        Args:
            next_batch: called before each batch with whether it counts.
        """
        if len(self._lanes) > 1:
            problem = "averages of weights do not go with several objectives that have data of their own"
            raise UsageError(problem, remedy="leave one of the two out")
        state, lane = self._state, self._main
        self._reseed(state.epochs_done)
        taken = lane.batches.first(state.epochs_done)
        for _ in range(_STATISTICS_STEPS):
            for number, batch in enumerate(taken.batches):
                counts = number < taken.num_counted
                next_batch(counts)
                self._ahead.arrive(batch.values)
                for objective in lane.objectives:
                    with nullcontext() if counts else self._without_trace(), self._precision.forward():
                        objective.module(*batch.values)
            if taken.is_over:
                break
            taken = lane.batches.following(are_finite=True)

    @contextmanager
    def _without_trace(self) -> Iterator[None]:
        """Around a zero-weight batch: it changes no statistics."""
        self._before_zero_weight_batch.keep()
        with adding_nothing(self._modules):
            yield
        self._before_zero_weight_batch.put_back()


def _total(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of the losses.

    Raises:
        UsageError: one that is not a single number, or none that depends on a weight that is trained.
    """
    for loss in losses:
        if loss.numel() != 1:
            got = f"shape {tuple(loss.shape)}"
            raise UsageError("a loss must be a single number", got=got, remedy="take its mean, or optimize a LossNM")
    numbers = [loss.reshape(()) if loss.dim() else loss for loss in losses]  # one of shape (1,) is a number too
    total = numbers[0] if len(numbers) == 1 else torch.stack(numbers).sum()
    if not total.requires_grad:
        raise UsageError("no weight that the loss depends on is trained", remedy="unfreeze a module that leads to it")
    return total
