"""The batches of a step: the same number of steps on all ranks, and one exchange on what they must agree on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle, islice
from typing import NamedTuple

from nemo_lite.backends.pytorch.data.loaders import Batch, BatchLoader
from nemo_lite.backends.pytorch.data.order import Stretch, divided
from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.distributed.process import WAITING_FOR_DATA
from nemo_lite.backends.pytorch.engine.state import NO_WISHES, Wishes
from nemo_lite.backends.pytorch.placement import AheadOfUse
from nemo_lite.base.errors import UsageError, counted
from nemo_lite.base.interruption import flags_of, signal_in
from nemo_lite.core.run_options import Uneven
from nemo_lite.utils import logging


@dataclass(slots=True)
class StepBatches:
    """The batches that one optimizer step takes.

    Attributes:
        batches: this rank's, zero-weight batches last; empty when the epoch is over.
        num_counted: how many of them count; the others are older batches with weight zero.
        num_items: items of all ranks together.
        world_size: the number of ranks.
        is_over: the epoch has no further step, on any rank.
        was_finite: the step before was finite on all ranks.
        wishes: those of all ranks.
        wait_seconds: how long this rank waited for its batches.
        first_wait: the same where they are an epoch's first, 0 otherwise.
    """

    batches: list[Batch] = field(default_factory=list)
    num_counted: int = 0
    num_items: float = 0.0
    world_size: int = 1
    is_over: bool = False
    was_finite: bool = True
    wishes: Wishes = NO_WISHES
    wait_seconds: float = 0.0
    first_wait: float = 0.0

    @property
    def counted(self) -> list[Batch]:
        """The batches that count."""
        return self.batches[: self.num_counted]

    @property
    def is_alone(self) -> bool:
        """Whether the step is one batch of one rank."""
        return self.world_size == 1 and len(self.batches) == 1

    def loss_factors(self) -> list[float]:
        """The factor of each batch's mean loss, before the ranks' mean of the gradients is taken.

        Every item of a step has the same weight, whatever its batch and rank.
        """
        if self.is_alone:
            return [1.0]
        num_items = self.num_items or 1.0  # all batches of an iterator may be empty
        counted = [self.world_size * batch.num_items / num_items for batch in self.counted]
        return counted + [0.0] * (len(self.batches) - self.num_counted)


class _Sums(NamedTuple):
    """The numbers that ranks exchange at a step, summed over them.

    Attributes:
        not_finite: ranks that know that their losses or gradients of the step before are not all finite.
        stopping: ranks that want to stop.
        saving: ranks that want a checkpoint.
        items: of the batches that count.
        repeated_items: those of them that come again.
        batches: how many count.
        squared_batches: the square of a rank's number of them.
        out_of_batches: ranks that have no new batch.
        helpless: ranks that have none to repeat either; with ``join`` they are lent one.
    """

    not_finite: float
    stopping: float
    saving: float
    items: float
    repeated_items: float
    batches: float
    squared_batches: float
    out_of_batches: float
    helpless: float


class _StartedExchange(NamedTuple):
    """An exchange between the ranks that has begun.

    Attributes:
        batches: this rank's of the next step.
        wait_seconds: how long this rank waited for them.
        is_early: it was begun before the gradients of the present step were known.
        sums: the numbers of all ranks, summed; waits for them.
    """

    batches: list[Batch]
    wait_seconds: float
    is_early: bool
    sums: Callable[[], list[float]]


class StepBatchLoader:
    """Gives the batches of each step of an epoch: the same number of steps on all ranks.

    Every rank asks for its next batches while the step is still running. One exchange then tells all ranks at once
    whether the step was finite everywhere, whether someone asked to stop or to save, how many items the next step has,
    and who has none left. On a CPU it runs beside the last backward pass of the step.

    Args:
        loader: the batches of this rank.
        comm: the ranks.
        batches_per_step: micro-batches of a rank in a step; the last step of an epoch takes what is left.
        uneven: what happens when only some ranks have batches left, see `Uneven`; with ``pad`` the others repeat their
            last batches.
        ahead: starts to copy each batch as soon as it is there.

    Attributes:
        is_alone: there is no other rank to agree with.
    """

    def __init__(
        self, loader: BatchLoader, comm: Comm, batches_per_step: int, uneven: Uneven, ahead: AheadOfUse | None = None
    ) -> None:
        self._loader, self._comm, self._size, self._uneven = loader, comm, batches_per_step, uneven
        self._ahead = ahead
        self._batches: Iterator[Batch] = iter(())
        self._current: list[Batch] = []
        self._repeatable: list[Batch] = []
        self._epoch = self._step = self._start = 0
        self._before: Sequence[Stretch] = ()
        self._repeated = self._dropped = self._joined = 0.0
        self._early: _StartedExchange | None = None
        self.is_alone = comm.world_size == 1

    def first(self, epoch: int, wishes: Wishes = NO_WISHES, done: Sequence[Stretch] = ()) -> StepBatches:
        """The batches of the first step of an epoch, or of the first after the rounds that are done.

        Args:
            epoch: which epoch.
            wishes: see :meth:`following`.
            done: rounds that are not to come again.
        """
        self._batches = iter(self._loader.rest_of_epoch(epoch, done))
        self._epoch, self._step = epoch, 0
        self._before, self._start = divided(done, self._comm.world_size)
        self._repeated = self._dropped = self._joined = 0.0
        taken = self._next(True, wishes)
        taken.first_wait = taken.wait_seconds
        return taken

    @property
    def done(self) -> tuple[Stretch, ...]:
        """The rounds of the epoch that the steps before the present one have taken."""
        return (*self._before, Stretch(self._comm.world_size, self._start + self._step * self._size))

    def digest(self, epoch: int, done: Sequence[Stretch]) -> str:
        """A hash of the batches of an epoch, see ``BatchLoader.digest``."""
        return self._loader.digest(epoch, done)

    def start(
        self, *, are_finite: bool, wishes: Wishes = NO_WISHES, item_sums: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        """Take the next step's batches, and begin the exchange of :meth:`following`; a pass may run meanwhile.

        Args:
            are_finite: this rank's losses of the present step are finite.
            wishes: this rank's, so far.
            item_sums: this rank's of the present step, see ``ComputedStep.item_sums``.
        """
        self._early = self._begin(are_finite, wishes, item_sums, is_early=True)

    def item_sums(self) -> list[float] | None:
        """Wait for the exchange that was begun: the ``item_sums`` of all ranks, added. None: none was begun."""
        num = len(_Sums._fields)
        return None if self._early is None else self._early.sums()[num : num + 2]

    def following(self, *, are_finite: bool, wishes: Wishes = NO_WISHES) -> StepBatches:
        """The batches of the next step.

        Args:
            are_finite: this rank's losses and gradients of the present step are finite, as far as the host knows.
            wishes: this rank's; after :meth:`start` those given there.

        Raises:
            UsageError: ranks ran out of data, and ``uneven`` is ``error`` or there is nothing that they could repeat.
        """
        self._step += 1
        return self._next(are_finite, wishes)

    def _next(self, are_finite: bool, wishes: Wishes) -> StepBatches:
        if self.is_alone:  # no other rank to agree with; this runs at every step
            started = time.perf_counter()
            batches = self._taken_from(self._batches)
            num_items = sum([batch.num_items for batch in batches])
            wait_seconds = time.perf_counter() - started
            return StepBatches(batches, len(batches), num_items, 1, not batches, are_finite, wishes, wait_seconds)
        exchange, self._early = self._early, None
        if exchange is None:
            exchange = self._begin(are_finite, wishes, (0.0, 0.0), is_early=False)
        else:
            self._keep_repeatable(are_finite)
        return self._agreed(exchange)

    def _begin(
        self, are_finite: bool, wishes: Wishes, item_sums: tuple[float, float], *, is_early: bool
    ) -> _StartedExchange:
        """Take the batches, and begin to tell the other ranks."""
        started = time.perf_counter()
        batches = self._taken_from(self._batches)
        wait_seconds = time.perf_counter() - started
        if not batches and not self._repeatable:
            self._repeatable = self._earlier()
        if not is_early:
            self._keep_repeatable(are_finite)
        # Early, it is not known yet which batch may be repeated: see _with_repeated.
        mine = self._numbers(are_finite, wishes, batches, batches if is_early else self._counted(batches))
        finish = self._comm.start_sum([*mine, *item_sums, *flags_of(wishes.signal)])
        return _StartedExchange(batches, wait_seconds, is_early, cache(finish))

    def _keep_repeatable(self, are_finite: bool) -> None:
        """Batches with a loss or a gradient that is not finite are not repeated, if there are others."""
        if are_finite or not self._repeatable:
            self._repeatable = self._current or self._repeatable

    def _counted(self, batches: list[Batch]) -> list[Batch]:
        """The batches of this rank that count in the next step."""
        return batches or (self._repeatable if self._uneven == "pad" else [])

    def _numbers(
        self, are_finite: bool, wishes: Wishes, batches: Sequence[Batch], counted: Sequence[Batch]
    ) -> list[float]:
        """This rank's :class:`_Sums`."""
        is_out = not batches
        items, count = float(sum([batch.num_items for batch in counted])), float(len(counted))
        is_helpless, again = is_out and not (self._repeatable or self._current), items if is_out else 0.0
        mine = _Sums(not are_finite, wishes.stop, wishes.save, items, again, count, count**2, is_out, is_helpless)
        return [*map(float, mine)]

    def _with_repeated(self, all_ranks: _Sums, batches: list[Batch]) -> _Sums:
        """The sums with the batches that are repeated: an exchange more, at the end of an epoch of uneven data."""
        numbers = self._numbers(True, NO_WISHES, batches, self._counted(batches))
        again = _Sums(*self._comm.sum(numbers))
        return again._replace(not_finite=all_ranks.not_finite, stopping=all_ranks.stopping, saving=all_ranks.saving)

    def _agreed(self, exchange: _StartedExchange) -> StepBatches:
        """The step that all ranks make next, from what they told each other."""
        num, world_size, sums, batches = len(_Sums._fields), self._comm.world_size, exchange.sums(), exchange.batches
        all_ranks, stop_signal = _Sums(*sums[:num]), signal_in(sums[num + 2 :])
        out = all_ranks.out_of_batches
        if exchange.is_early and self._uneven == "pad" and out not in (0, world_size):
            all_ranks = self._with_repeated(all_ranks, batches)
        counted = self._counted(batches)
        taken = StepBatches(
            world_size=world_size,
            was_finite=all_ranks.not_finite == 0,
            wishes=Wishes(all_ranks.stopping > 0, all_ranks.saving > 0, stop_signal),
            wait_seconds=exchange.wait_seconds,
        )
        taken.is_over = out == world_size or (out > 0 and self._uneven == "drop")
        if taken.is_over:
            self._dropped += all_ranks.items if out < world_size else 0
            return taken
        if out:
            self._check_can_go_on(out, all_ranks.helpless)
            if all_ranks.helpless:
                lent = self._lent(batches)
                self._repeatable = self._repeatable or lent
            self._joined += out if self._uneven == "join" else 0
            self._repeated += all_ranks.repeated_items
        taken.batches, taken.num_counted, taken.num_items = counted, len(counted), all_ranks.items
        self._current = counted
        # The ranks do not have the same number of batches: the variance of these numbers is not 0.
        if world_size * all_ranks.squared_batches != all_ranks.batches**2:
            # Forward passes may exchange values (synchronised statistics, sharded weights): all ranks make as many.
            taken.batches = [*counted, *islice(cycle(counted or self._repeatable), self._size - len(counted))]
        return taken

    def _taken_from(self, batches: Iterator[Batch]) -> list[Batch]:
        """Those of a step, on their way to the device."""
        with WAITING_FOR_DATA:
            taken = list(islice(batches, self._size))
        if self._ahead is not None:
            for batch in taken:
                batch.values = self._ahead.start(batch.values)
        return taken

    def _earlier(self) -> list[Batch]:
        """This rank's last batches from before the place in the epoch at which the run was resumed, to be repeated."""
        for start in range(self._start - self._size, -1, -self._size):
            done = (*self._before, Stretch(self._comm.world_size, start))
            if batches := self._taken_from(self._loader.rest_of_epoch(self._epoch, done)):
                return batches
        return []

    def _lent(self, batches: Sequence[Batch]) -> list[Batch]:
        """A batch of another rank, for ranks that have had none: they take part with it, and its items do not count.

        All ranks call it: once, as a rank then has a batch that it can repeat.
        """
        values = None
        if batches:
            values = batches[0].values
            if self._ahead is not None:
                self._ahead.arrive(values)
        lent = self._comm.share(values)
        if lent is None:  # rank 0 has none either
            lent = self._comm.share(next((each for each in self._comm.gather(values) or () if each), None))
        assert lent is not None
        return [Batch(tuple(lent) if self._ahead is None else self._ahead.start(lent))]

    def _check_can_go_on(self, num_out: float, num_helpless: float) -> None:
        if self._uneven == "error" or (num_helpless and self._uneven != "join"):
            remedies = "join or drop" if num_helpless else "pad, drop or join"
            raise UsageError(
                f"{num_out:.0f} of {self._comm.world_size} ranks have no batch at step {self._step} of epoch "
                f"{self._epoch}, the others have",
                place=f"uneven={self._uneven}",
                remedy=f"choose {remedies}, use fewer ranks, or give the data layer more items",
            )

    def settle(self) -> None:
        """Let the ranks' loaders bring together what they noticed, also when the run ends within an epoch."""
        self._loader.settle(self._comm)

    def close(self) -> None:
        """End the data workers."""
        self._batches = iter(())
        self._loader.close()

    def report(self) -> None:
        """Log how many items the epoch repeated or left out to keep the ranks together."""
        left = self._loader.leftover(self._epoch)
        counts = [
            f"{counted(round(count), one, several)}{rest}"
            for count, one, several, rest in (
                (left.num_repeated + self._repeated, "item", "items", " came twice"),
                (left.num_dropped, "item was", "items were", " left out"),
                (self._dropped, "item or more was", "items or more were", " left out, because another rank had none"),
                (self._joined, "time", "times", " a rank without data took part with weight zero"),
            )
            if count
        ]
        if counts:
            logging.info("Epoch %d (uneven=%s): %s", self._epoch, self._uneven, ", ".join(counts))
