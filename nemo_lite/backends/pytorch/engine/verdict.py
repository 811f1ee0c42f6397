"""Whether a step counts: losses and gradients that are not finite, items left out, updates guarded on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from operator import is_
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from nemo_lite.backends.pytorch.checkpoint.fitting import as_count
from nemo_lite.backends.pytorch.data.loaders import Batch
from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.distributed.process import BACKWARD
from nemo_lite.backends.pytorch.engine.batches import StepBatches
from nemo_lite.backends.pytorch.engine.module_state import RunningStatistics
from nemo_lite.backends.pytorch.engine.objectives import LoweredObjective
from nemo_lite.backends.pytorch.foreach_optimizers import ForeachOptimizer
from nemo_lite.backends.pytorch.nm import ItemLosses
from nemo_lite.backends.pytorch.placement import HostCopy, Snapshot
from nemo_lite.backends.pytorch.precision import Precision, own_part
from nemo_lite.backends.pytorch.tensor_codec import Tree
from nemo_lite.base.errors import NonFiniteLossError, UsageError, counted
from nemo_lite.core.run_options import RunOptions
from nemo_lite.utils import logging

FINITE, INFINITE, NAN = range(3)


class ComputedStep:
    """A step on this rank: its batches, their losses, and the status of their items.

    The mean over a batch's other items is `LossNM.mean_over_items`. All stays on the device.

    An item with an infinite loss is left out, and every other item of the step has the weight in the gradient that its
    loss gives it, whatever its batch and rank: as if the item had not been there. If several losses of an item are
    summed, it counts as left out when one of them is infinite.

    Args:
        step: its index.
        objective: whose weights it updates.
        taken: the batches.
        place_of: where item ``i`` of the data layer comes from.

    Attributes:
        losses: of the micro-batches so far, one number each; 0 where all items of one are left out of a step that has
            others.
        statuses: by micro-batch (B,): FINITE, INFINITE or NAN for each item; None where it is not known.
        num_left_out: on the device: how many items of all ranks are left out. None if no loss tells.
        gradients: after the last backward pass, a number on the device: 0 if all gradients are finite.
    """

    gradients: Tensor

    def __init__(
        self, step: int, objective: LoweredObjective, taken: StepBatches, place_of: Callable[[int], str]
    ) -> None:
        self.step, self.objective, self.taken, self.place_of = step, objective, taken, place_of
        self.losses: list[Tensor] = []
        self.statuses: list[Tensor | None] = []
        self.num_left_out: Tensor | None = None
        self._left_out: list[Tensor] = []
        self._divisors: list[Tensor] = []
        self._is_sum = False

    def begin_batch(self) -> None:
        """Before a forward pass: forget what the losses told of the items of an earlier one."""
        for module in self.objective.loss_modules:
            if module.item_losses:
                module.item_losses.clear()

    def weighted(self, batch: Batch, loss: Tensor, factor: float) -> Tensor:
        """After the forward pass of a micro-batch: its loss times its weight, for the backward pass.

        Args:
            batch: its items.
            loss: their mean, a single number.
            factor: what the loss counts if no item is left out.
        """
        told = [
            each
            for module in self.objective.loss_modules
            for each in module.item_losses or ()
            if each.losses.shape == (batch.num_items,)
        ]
        status: Tensor | None = None  # (B,) of all losses that have one number for each item
        for losses, *_ in told:
            status_of_loss = losses.isinf() * INFINITE + losses.isnan() * NAN
            status = status_of_loss if status is None else status.maximum(status_of_loss)
        self.statuses.append(status)
        detached = loss.detach()
        if status is None:
            self.losses.append(detached)
            return loss if factor == 1.0 else loss * factor
        is_left_out = (status == INFINITE).float()
        self._left_out.append(is_left_out.sum() if factor else is_left_out.new_zeros(()))
        if self.taken.is_alone:
            self.losses.append(detached)
            return loss
        divisor = self._divisor(told, 1.0 - is_left_out)
        self._divisors.append(divisor if factor else torch.zeros_like(divisor))
        self.losses.append(torch.where(is_left_out.all(), 0.0, detached))
        return loss * (divisor / batch.num_items * factor)

    def _divisor(self, told: Sequence[ItemLosses], is_counted: Tensor) -> Tensor:
        """What divides the sum of the losses of a micro-batch's items; of a sum whether there is any.

        Raises:
            UsageError: several losses are divided by different numbers: no one factor corrects their gradients.
        """
        first, *others = told
        if any((each.is_sum, each.counts is None) != (first.is_sum, first.counts is None) for each in others):
            raise UsageError(
                "losses that are added are reduced in different ways, in steps of several batches or ranks",
                place=", ".join(module.label for module in self.objective.loss_modules if module.item_losses),
                wanted="means over utterances, means over labels, or sums, of all of them",
                remedy="give them the same reduction",
            )
        self._is_sum = first.is_sum
        if first.is_sum:
            return is_counted.max()
        return is_counted.sum() if first.counts is None else (is_counted * first.counts).sum()

    def item_sums(self) -> tuple[float, float]:
        """How many items of this rank are left out, and what divides the others' losses.

        A host read, for what travels with other numbers.
        """
        left_out, divisors = self._left_out, self._divisors
        return sum(each.item() for each in left_out), sum(each.item() for each in divisors)

    def correction(self, comm: Comm, item_sums: Sequence[float] | None = None) -> Tensor | None:
        """After the last micro-batch: count the items that are left out over all ranks, which all call it.

        Args:
            comm: the ranks.
            item_sums: those of all ranks, added, where they have come with other numbers.

        Returns:
            What the gradients are to be multiplied with, because something else divides the losses of the step than its
            batches' factors say: 1 where that is the number of items and none is left out. None: nothing to correct.
        """
        if not self._left_out:
            return None
        if self.taken.is_alone:
            (self.num_left_out,) = self._left_out
            return None
        sums = torch.stack([torch.stack(self._left_out).sum(), torch.stack(self._divisors).sum()])
        if item_sums is None:
            comm.sum_on_device(sums)
        else:
            sums = torch.stack([sums.new_tensor(each) for each in item_sums])
        self.num_left_out, divisor = sums.unbind()
        return self.taken.num_items / (torch.ones_like(divisor) if self._is_sum else divisor.clamp(min=1.0))

    def is_nothing_left(self) -> Tensor | None:
        """On the device: whether all items of the step are left out; None if no loss tells."""
        return None if self.num_left_out is None else self.num_left_out >= self.taken.num_items


# Any: states and groups of optimizers hold tensors, numbers and lists.
_Values: TypeAlias = "dict[str, Tree]"


class GuardedStep:
    """Lets any optimizer make steps such that the device decides whether each counts.

    torch's fused optimizers are told by their ``found_inf``, our own by ``step_unless``. For all others, weights and
    states are kept before the step and put back by the device. What an optimizer counts on the host
    (``state["step"]``), and a state that the step began, is put back by :meth:`take_back`, which must come before the
    next step.

    Args:
        optimizer: one whose ``step`` needs no closure.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        # What the step changed on the host: for each dictionary of the optimizer the old values, and the new keys.
        self._changed: list[tuple[_Values, _Values, set[str]]] = []
        self._started: list[Tensor] = []
        self._kept, self._kept_of = Snapshot([]), list[Tensor]()

    def step(self, skip: Tensor) -> None:
        """Make the step; nothing changes if ``skip``, one number on the device, is 1 and not 0."""
        groups, state = self._optimizer.param_groups, self._optimizer.state
        parameters = [p for group in groups for p in group["params"] if p.grad is not None]
        self._started = [parameter for parameter in parameters if not state.get(parameter)]
        holders = [*groups, *(state[parameter] for parameter in parameters if state.get(parameter))]
        before = [{key: value for key, value in holder.items() if key != "params"} for holder in holders]
        # torch's optimizers count their steps in tensors in host memory. Those of groups are learning rates.
        counts: list[_Values] = [{} for _ in holders]
        if isinstance(self._optimizer, ForeachOptimizer) and self._optimizer.can_skip:
            self._optimizer.step_unless(skip)
        elif self._takes_found_inf(parameters):
            fused: Any = self._optimizer
            fused.grad_scale, fused.found_inf = None, skip  # as torch.amp.GradScaler tells them
            try:
                fused.step()
            finally:
                del fused.grad_scale, fused.found_inf
        else:
            counts[len(groups) :] = [_copied(values, skip.device) for values in before[len(groups) :]]
            self._step_and_put_back([own_part(parameter) for parameter in parameters], holders, before, skip)
        self._changed = []
        for holder, old, copies in zip(holders, before, counts, strict=True):
            numbers = {key: value for key, value in old.items() if _is_replaced(value, holder[key])}
            new_keys = holder.keys() - old.keys() - {"params"}
            if numbers or copies or new_keys:
                self._changed.append((holder, numbers | copies, new_keys))

    def take_back(self) -> None:
        """The host has learned that the step did not count: put back what it changed on the host."""
        for values, old, new_keys in self._changed:
            values.update(old)
            for key in new_keys:
                values.pop(key, None)
        for parameter in self._started:
            self._optimizer.state.pop(parameter, None)

    def _takes_found_inf(self, parameters: Iterable[Tensor]) -> bool:
        # torch's constructors set the first; a state that is loaded may have changed the second.
        supports_scaling = getattr(self._optimizer, "_step_supports_amp_scaling", False)
        is_fused = supports_scaling and all(group.get("fused") for group in self._optimizer.param_groups)
        return is_fused and all(own_part(parameter) is parameter for parameter in parameters)

    def _step_and_put_back(
        self, weights: Sequence[Tensor], holders: Sequence[_Values], before: Sequence[_Values], skip: Tensor
    ) -> None:
        tensors = [*weights, *_on(skip.device, before)]
        is_as_before = len(tensors) == len(self._kept_of) and all(map(is_, tensors, self._kept_of))
        if not is_as_before:  # as where a step began states, or replaced their tensors
            self._kept, self._kept_of = Snapshot(tensors), tensors
        self._kept.keep()
        self._optimizer.step()
        after = [
            {key: holder[key] for key, value in values.items() if not _is_on_host(value)}
            for holder, values in zip(holders, before, strict=True)
        ]
        self._kept.put_back_where(skip, [*weights, *_on(skip.device, after)])


def _is_replaced(value: object, new: object) -> bool:
    """Whether a number, or None, has become another one or a tensor."""
    return _is_on_host(value) and not (_is_on_host(new) and value == new)


def _is_on_host(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float))


def _on(device: torch.device, holders: Iterable[Mapping[str, object]]) -> list[Tensor]:
    """The tensors on a device in some dictionaries, also in lists there."""
    values = [value for holder in holders for value in holder.values()]
    flat = [one for value in values for one in (value if isinstance(value, (list, tuple)) else [value])]
    return [own_part(one) for one in flat if isinstance(one, Tensor) and one.device == device]


def _copied(values: Mapping[str, object], but: torch.device) -> _Values:
    """Copies of the tensors that are not on a device."""
    return {key: value.clone() for key, value in values.items() if isinstance(value, Tensor) and value.device != but}


_SHOWN_ITEMS = 20
_SHOWN_OF_A_STEP = 5


class Findings(NamedTuple):
    """Numbers of a rank's step, read by the host.

    Attributes:
        computed: the step.
        finite_losses: which losses of its micro-batches are finite.
        statuses: by micro-batch, each item's, see `ComputedStep`; None where it is not known.
    """

    computed: ComputedStep
    finite_losses: Sequence[bool]
    statuses: Sequence[Sequence[float] | None]

    def places(self, status: int) -> list[str]:
        """Where the items with this status come from."""
        batches, place_of = self.computed.taken.batches, self.computed.place_of
        return [
            place_of(item)
            for batch, statuses in zip(batches, self.statuses, strict=True)
            if statuses is not None and batch.ids is not None
            for item, item_status in zip(batch.ids, statuses, strict=True)
            if item_status == status
        ]

    def suspects(self) -> tuple[list[str], bool, bool]:
        """The places of the items that the step is left out for; whether exactly these; whether a loss is it.

        Where it is not known which, they are all items of the batches whose loss is not finite.
        """
        exact = self.places(NAN) or self.places(INFINITE)
        if exact:
            return exact, True, True
        batches, place_of = self.computed.taken.batches, self.computed.place_of
        bad = [batch for batch, finite in zip(batches, self.finite_losses, strict=True) if not finite]
        return [place_of(item) for batch in bad for item in batch.ids or ()], False, bool(bad)


class SkippedSteps:
    """The steps whose loss or gradient is not finite, and the items that others leave out.

    A step is left out if its loss or gradient is not finite; an item is left out of its step if its own loss is
    infinite.

    Args:
        comm: the ranks.
        options: when it is too much.
        weights_not_finite: the names of the weights that are not finite on this rank.
        scales_loss: under a loss scale, a gradient that is not finite says that the scale is too high. Such a step is
            left out too, but it is no fault of the data or the weights.
    """

    def __init__(
        self,
        comm: Comm,
        options: RunOptions,
        weights_not_finite: Callable[[], Sequence[str]],
        scales_loss: bool = False,
    ) -> None:
        self._comm, self._options, self._scales_loss = comm, options, scales_loss
        self._weights_not_finite = weights_not_finite
        self._total = self._in_a_row = self._untold = 0
        self._num_left_out = 0
        self._left_out: set[str] = set()

    def state_dict(self) -> dict[str, object]:
        """The counts, for a training state."""
        counts = {"total": self._total, "in_a_row": self._in_a_row, "num_left_out": self._num_left_out}
        return {"skipped": {**counts, "left_out": sorted(self._left_out)}}

    def load_state_dict(self, state: Mapping[str, Tree], place: str = "") -> None:
        """Go on with the counts of :meth:`state_dict`."""
        if (saved := state.get("skipped")) is not None:
            names = ("total", "in_a_row", "num_left_out")
            counts = (as_count(saved[name], f"skipped.{name}", place) for name in names)
            self._total, self._in_a_row, self._num_left_out = counts
            self._left_out = {str(place_of_item) for place_of_item in saved["left_out"]}

    def none(self) -> None:
        """The last step counts."""
        if self._untold:
            logging.warning("%s skipped after it", counted(self._untold, "more step was", "more steps were"))
        self._in_a_row = self._untold = 0

    def left_out(self, findings: Findings) -> None:
        """Tell about the items that a step which counts leaves out. All ranks call it, if one of them has such."""
        for place in chain.from_iterable(self._comm.gather(findings.places(INFINITE)) or ()):
            self._tell_of_item(place, findings.computed)

    def add(self, findings: Findings) -> None:
        """Tell about a step that is left out. All ranks call it.

        Raises:
            NonFiniteLossError: the options say so, at the first such step or after so many in a row; or the weights
                that the step began with are not finite.
        """
        options, by_rank = self._options, self._comm.gather(findings.suspects())
        problem, is_of_loss = self._comm.share(_problem_of(findings.computed.step, by_rank))
        self.check_weights(problem)
        self._in_a_row += 1
        is_overflow = self._scales_loss and not is_of_loss
        if options.stop_on_nan_loss and not is_overflow:
            raise NonFiniteLossError(problem, remedy="the weights are those of the step before")
        if self._in_a_row >= options.max_nonfinite_steps:
            raise NonFiniteLossError(
                f"{problem}; it was step {self._in_a_row} in a row",
                remedy="the weights are those before them; lower the learning rate, or look at the items",
            )
        if is_overflow:
            logging.info("%s; the step is skipped, and the loss scale lowered", problem)
            return
        self._total += 1
        # Of several in a row the first is told; of a run that diverges the error tells the last.
        if self._in_a_row > 1:
            self._untold += 1
            return
        logging.warning("%s; the step is skipped", problem)

    def check_weights(self, problem: str) -> None:
        """See that the weights are finite. All ranks call it.

        Args:
            problem: what the error says first.

        Raises:
            NonFiniteLossError: they are not.
        """
        by_rank = self._comm.gather(list(self._weights_not_finite())) or ()
        names = self._comm.share(list(dict.fromkeys(chain.from_iterable(by_rank))))
        if names:
            got = f"NaN or infinity in {_shortened(names)}"
            remedy = "go on from a checkpoint saved before, with a lower learning rate"
            raise NonFiniteLossError(f"{problem}; the weights are not finite", got=got, remedy=remedy)

    def report(self, num_steps: int) -> None:
        """Say at the end how many of the run's steps were left out, and how many items of the others."""
        if self._num_left_out:
            left_out = "%s an item was left out of its step, because its loss was infinite (%s)"
            items = counted(len(self._left_out), "different item")
            logging.warning(left_out, counted(self._num_left_out, "time"), items)
        if self._total:
            skipped = "%d of %d steps were skipped: their loss or gradient was not finite"
            logging.warning(skipped, self._total, num_steps)

    def _tell_of_item(self, place: str, computed: ComputedStep) -> None:
        self._num_left_out += 1
        if place in self._left_out:
            return
        self._left_out.add(place)
        if len(self._left_out) > _SHOWN_ITEMS:
            return
        causes = [module.when_infinite for module in computed.objective.loss_modules if module.when_infinite]
        reason = f" ({'; '.join(dict.fromkeys(causes))})" if causes else ""
        last = "; further ones are only counted" if len(self._left_out) == _SHOWN_ITEMS else ""
        logging.warning("%s: its loss is infinite%s; step %d leaves it out%s", place, reason, computed.step, last)


def _problem_of(step: int, by_rank: Sequence[tuple[list[str], bool, bool]] | None) -> tuple[str, bool]:
    """A message about a step that is not finite, and whether a loss is it; ``by_rank``: what each rank suspects."""
    ranks = by_rank or ()
    if not any(is_of_loss for _, _, is_of_loss in ranks):
        return f"the gradient of step {step} is not finite", False
    problem = f"the loss of step {step} is not finite"
    for shows_exact, head in ((True, ""), (False, "in the batch: ")):
        texts = [
            f"{f'rank {rank}: ' if len(ranks) > 1 else ''}{_shortened(places)}"
            for rank, (places, is_exact, _) in enumerate(ranks)
            if places and is_exact == shows_exact
        ]
        problem += f"; {head}{'; '.join(texts)}" if texts else ""
    return problem, True


def _shortened(places: Sequence[str]) -> str:
    return f"{', '.join(places[:_SHOWN_OF_A_STEP])}{', ...' if len(places) > _SHOWN_OF_A_STEP else ''}"


class Verdict:
    """Decides whether steps count: whether losses and gradients are finite. If not, nothing of the step stays.

    On a CPU the host reads it before the update. On an accelerator it stays there and guards the update; the host reads
    it before the update of the next step. By then the next forward and backward pass are queued, so the device does not
    wait for the host. As the host knows all earlier verdicts at an update, nothing that it counts (an optimizer's
    steps) is wrong then. Both give the same weights, messages and end of the run.

    Args:
        precision: updates.
        statistics: kept before the step.
        skipped: is told of steps that do not count.
        comm: the ranks.
        on_host: the host can read numbers without waiting.
    """

    def __init__(
        self, precision: Precision, statistics: RunningStatistics, skipped: SkippedSteps, comm: Comm, on_host: bool
    ) -> None:
        self._precision, self._statistics, self._skipped, self._comm = precision, statistics, skipped, comm
        self._on_host = on_host
        self._guarded: dict[Optimizer, GuardedStep] = {}
        self._pending: tuple[ComputedStep, HostCopy] | None = None

    def allows_losses(self, computed: ComputedStep) -> bool | None:
        """Before the last backward pass: whether this rank's losses are finite; None: the host does not know."""
        return math.isfinite(_total(computed.losses)) if self._on_host else None

    def allows(self, computed: ComputedStep) -> bool:
        """Whether this rank's losses and gradients are finite, as far as the host can know without waiting."""
        if not self._on_host:
            return True
        if not (math.isfinite(_total(computed.losses)) and computed.gradients.item() == 0.0):
            return False
        nothing_left = computed.is_nothing_left()
        return nothing_left is None or not nothing_left.item()

    def update(self, computed: ComputedStep, is_allowed: bool) -> None:
        """Make the update, or leave the step out.

        Args:
            computed: the step.
            is_allowed: what :meth:`allows` says on all ranks together.

        Raises:
            NonFiniteLossError: so many steps in a row did not count, or the options allow none.
        """
        if not self._on_host:
            self._update_on_device(computed)
        elif is_allowed:
            self._skipped.none()
            num_left_out = computed.num_left_out
            if num_left_out is not None and num_left_out.item():
                self._skipped.left_out(_read(computed))
            optimizer = computed.objective.optimizer
            self._precision.update(optimizer, optimizer.step)
        else:
            self._statistics.put_back()
            self._skipped.add(_read(computed))

    def _update_on_device(self, computed: ComputedStep) -> None:
        """Settle the step before; then queue the update, which changes nothing if this step does not count."""
        self.settle()
        is_bad = torch.stack([loss.reshape(()) for loss in computed.losses]).isfinite().logical_not()
        is_bad = torch.cat([is_bad, (computed.gradients != 0).reshape(1)])  # NaN is not 0 either
        skip, nothing_left = is_bad.any(), computed.is_nothing_left()
        skip = (skip if nothing_left is None else skip | nothing_left).float()
        self._comm.any_on_device(skip)
        optimizer = computed.objective.optimizer
        guarded = self._guarded.setdefault(optimizer, GuardedStep(optimizer))
        self._precision.update(optimizer, lambda: guarded.step(skip), skip)
        self._statistics.put_back_where(skip)
        numbers = [is_bad, skip.reshape(1), *(status for status in computed.statuses if status is not None)]
        if computed.num_left_out is not None:
            numbers.append(computed.num_left_out.reshape(1))
        self._pending = computed, HostCopy(torch.cat([part.float() for part in numbers]))

    def settle(self) -> None:
        """Wait for what is not known yet of the last step, and tell about it. All ranks call it.

        Raises:
            NonFiniteLossError: see :meth:`update`.
        """
        if self._pending is None:
            return
        (computed, numbers), self._pending = self._pending, None
        with BACKWARD:  # the device may still be in it
            values = iter(numbers.values())
        finite = [next(values) == 0 for _ in computed.losses]
        _, skip = next(values), next(values)
        statuses = [None if status is None else list(islice(values, len(status))) for status in computed.statuses]
        findings = Findings(computed, finite, statuses)
        if not skip:
            self._skipped.none()
            if next(values, 0.0):
                self._skipped.left_out(findings)
            return
        self._guarded[computed.objective.optimizer].take_back()
        try:
            self._skipped.add(findings)
        except NonFiniteLossError:
            self._statistics.put_back()  # the forward pass of a step that will not be made may have moved them
            raise


def _total(losses: Sequence[Tensor]) -> float:
    total = losses[0] if len(losses) == 1 else torch.stack(list(losses)).sum()
    return float(total.item())


def _read(computed: ComputedStep) -> Findings:
    """Host syncs."""
    finite = [math.isfinite(loss.item()) for loss in computed.losses]
    return Findings(computed, finite, [None if status is None else status.tolist() for status in computed.statuses])
