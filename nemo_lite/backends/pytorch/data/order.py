"""Order of the items: which make which batch, a pure function of (lengths, seed, epoch, rank, world size).

In training the items of a round are chosen together and dealt to the ranks in turn, so the items that several rounds
take together do not depend on how many ranks share them. Where items differ in cost, all ranks have batches of equal
cost in the same round: a round lasts as long as its slowest rank. A cost is a number that grows with the work for an
item, such as its seconds of audio.

No file is read and no tensor is made here. A *round* is one batch on every rank.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from numbers import Integral
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from nemo_lite.base.errors import UnknownNameError, UsageError, counted
from nemo_lite.core.run_options import Uneven as Uneven

Rows: TypeAlias = "npt.NDArray[np.int64]"


@dataclass(frozen=True)
class Shard:
    """Which part of the data this rank gets, the base of every random draw on it, and what happens at uneven ends.

    Attributes:
        rank: this process, from 0.
        world_size: number of ranks.
        seed: base of the draws.
        uneven: what becomes of a training round with fewer items than ranks, see `Uneven`; with ``join`` such rounds
            come last, and the lowest ranks get an item each.

    Raises:
        UnknownNameError: ``uneven`` is none of these.
    """

    rank: int = 0
    world_size: int = 1
    seed: int = 0
    uneven: str = "pad"

    def __post_init__(self) -> None:
        if self.uneven not in get_args(Uneven):
            raise UnknownNameError("uneven", self.uneven, get_args(Uneven))


class Stretch(NamedTuple):
    """Rounds of an epoch that are done, all with one number of ranks.

    Attributes:
        world_size: the number of ranks.
        num_rounds: how many rounds.
    """

    world_size: int
    num_rounds: int


def divided(done: Sequence[Stretch], world_size: int) -> tuple[Sequence[Stretch], int]:
    """The stretches that this number of ranks does not go on with, and the rounds done of the one that it does."""
    if done and done[-1].world_size == world_size:
        return done[:-1], done[-1].num_rounds
    return done, 0


class Leftover(NamedTuple):
    """The items that do not fill the rounds of an epoch, over all ranks.

    Attributes:
        num_repeated: how many come a second time.
        num_dropped: how many do not come.
    """

    num_repeated: int = 0
    num_dropped: int = 0


@dataclass(frozen=True)
class Plan:
    """The batches of one rank in one epoch, by position.

    Attributes:
        batches: positions of the items of each batch.
        num_rounds: batches of the rank that has most; the same on all ranks.
        leftover: what became of the items that do not fill a round.
        numbers: in evaluation, the position of each batch in data order over all ranks; in training nothing.
    """

    batches: Sequence[Rows]
    num_rounds: int
    leftover: Leftover = field(default_factory=Leftover)
    numbers: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.batches)


@dataclass(frozen=True)
class Rounds:
    """The rounds of an epoch of training, for all ranks.

    Attributes:
        items: positions of the items of each round, which go to the ranks in turn.
        world_size: number of ranks.
        leftover: what became of the items that do not fill a round.
    """

    items: Sequence[Rows]
    world_size: int
    leftover: Leftover = field(default_factory=Leftover)

    def of_rank(self, rank: int) -> Plan:
        """The batches of one rank."""
        batches = [items[rank :: self.world_size] for items in self.items if len(items) > rank]
        return Plan(batches, len(self.items), self.leftover)


class Plans:
    """The plans of one rank by epoch, also of what is left of an epoch that began with other numbers of ranks.

    The rounds of the newest epoch are kept: its plan, its rest and its digests need the same ones.

    Args:
        num_items: all items.
        shard: this rank.
        make: the rounds of an epoch for the ranks of a shard and for the items at some positions, which ascend. It
            gives positions among these.
    """

    def __init__(self, num_items: int, shard: Shard, make: Callable[[int, Shard, Rows], Rounds]) -> None:
        self._num_items, self._shard, self._make = num_items, shard, make
        self._epoch: int | None = None
        self._kept: dict[tuple[tuple[Stretch, ...], int], Rounds] = {}
        self._digests: dict[tuple[tuple[Stretch, ...], int], str] = {}

    def __call__(self, epoch: int) -> Plan:
        return self.after(epoch, ())

    def after(self, epoch: int, done: Sequence[Stretch]) -> Plan:
        """The batches of this rank for the items that some rounds of the epoch have not taken.

        Args:
            epoch: which epoch.
            done: the rounds, in order. Each stretch was planned for the items that those before it had left.
        """
        return self._rounds(epoch, tuple(done), self._shard.world_size).of_rank(self._shard.rank)

    def digest(self, epoch: int, done: Sequence[Stretch]) -> str:
        """A hash of the plan that the last of these stretches follows on rank 0: of items, order and batches."""
        *before, (world_size, _) = done
        plan = self._rounds(epoch, tuple(before), world_size).of_rank(0)
        if (key := (tuple(before), world_size)) not in self._digests:
            lengths = np.array([len(plan), *map(len, plan.batches)], np.int64)
            self._digests[key] = hashlib.sha256(np.concatenate([lengths, *plan.batches]).tobytes()).hexdigest()[:16]
        return self._digests[key]

    def _rounds(self, epoch: int, done: tuple[Stretch, ...], world_size: int) -> Rounds:
        """The rounds that this number of ranks makes of the items that some rounds of the epoch have not taken."""
        if epoch != self._epoch:
            self._epoch, self._kept, self._digests = epoch, {}, {}
        if (key := (done, world_size)) not in self._kept:
            left = self._left(epoch, done)
            rounds = self._make(epoch, replace(self._shard, world_size=world_size), left)
            if len(left) < self._num_items:
                rounds = replace(rounds, items=[left[rows] for rows in rounds.items])
            self._kept[key] = rounds
        return self._kept[key]

    def _left(self, epoch: int, done: tuple[Stretch, ...]) -> Rows:
        if not done:
            return np.arange(self._num_items)
        *before, (world_size, num_rounds) = done
        left = self._left(epoch, tuple(before))
        taken = self._rounds(epoch, tuple(before), world_size).items[:num_rounds]
        return np.setdiff1d(left, np.concatenate([left[:0], *taken]))


def evaluation_plan(num_items: int, batch_size: int, shard: Shard) -> Plan:
    """The batches of one rank in evaluation: over the ranks every item once, nothing repeated or left out.

    Batches are blocks of the data, numbered in data order; number ``b`` is batch ``b // world_size`` of rank
    ``b % world_size``, so that one batch of each rank, in order of the ranks, is a stretch of the data. On several
    ranks they are as equal as blocks can be: few items do not all go to rank 0.

    Args:
        batch_size: most items of a batch; below 1, a rank's items are one batch.
    """
    rank, world_size = shard.rank, shard.world_size
    if world_size == 1:
        size = batch_size if batch_size > 0 else num_items
    else:
        num_rounds = -(-num_items // (batch_size * world_size)) if batch_size > 0 else 1
        size = -(-num_items // (max(num_rounds, 1) * world_size))
    size = max(size, 1)
    num_blocks = -(-num_items // size)
    numbers, rows = range(rank, num_blocks, world_size), np.arange(num_items)
    blocks = [rows[number * size : (number + 1) * size] for number in numbers]
    return Plan(blocks, -(-num_blocks // world_size), numbers=numbers)


def items_of_a_round(num_items: int, batch_size: int, world_size: int, drop_last: bool) -> int:
    """Items of a full training round, on all ranks together.

    With a batch size below 1 a round is the whole set; with ``drop_last`` the part of it that ranks share equally.
    """
    if batch_size < 1:
        per_rank = num_items // world_size if drop_last else -(-num_items // world_size)
        batch_size = max(per_rank, 1)
    return batch_size * world_size


def cut_into_rounds(order: Rows, round_items: int) -> Iterator[Rows]:
    """An order cut into rounds, the last one smaller where it does not come out even."""
    for start in range(0, len(order), round_items):
        yield order[start : start + round_items]


def evened_out(rounds: Iterable[Rows], shard: Shard, num_dropped: int = 0) -> Rounds:
    """Training rounds with an item for every rank, or those that ``shard.uneven`` allows.

    Args:
        rounds: positions of the items of each round, none of them empty.
        shard: the number of ranks, and what becomes of rounds with fewer items than ranks.
        num_dropped: items that were left out before.

    Raises:
        UsageError: there are such rounds, and ``uneven`` is ``error``.
    """
    rounds, world_size = list(rounds), shard.world_size
    short = [items for items in rounds if len(items) < world_size]
    num_repeated = 0
    if short and shard.uneven == "error":
        raise UsageError(
            f"{counted(sum(map(len, short)), 'item is', 'items are')} left over at the end of an epoch, for "
            f"{world_size} ranks",
            place="uneven=error",
            remedy="choose uneven=pad, drop or join, another batch_size, or drop_last",
        )
    if short and shard.uneven == "pad":
        rounds = [items if len(items) >= world_size else np.resize(items, world_size) for items in rounds]
        num_repeated = sum(world_size - len(items) for items in short)
    elif short:
        rounds = [items for items in rounds if len(items) >= world_size]
        if shard.uneven == "join":
            # Longest first: a rank that has nothing in one of them has nothing in those behind it.
            rounds += sorted(short, key=len, reverse=True)
        else:
            num_dropped += sum(map(len, short))
    return Rounds(rounds, world_size, Leftover(num_repeated, num_dropped))


Costs: TypeAlias = "npt.NDArray[np.floating[Any]]"

_STREAM_OF_SETS = 1 << 61  # draws of their own: no rank or epoch has this number
# Buckets come from a sort by cost plus noise that is new in each epoch. More noise: more padding, but other neighbours.
# Its mean is a multiple of the padding that the sort alone leaves: at 0.5 of it about half of the pairs of an epoch
# meet again in the next one, at 24 a fiftieth. Within that it is as large as the padding in all stays at 1.9 %; at
# 1.75 % with many ranks, which also wait for each other.
_PADDING, _LESS_PADDING, _LEAST_NOISE, _MOST_NOISE = 0.019, 0.0015, 0.75, 24.0
_UNITS = 1024  # of a thousandth of a cost, in which the noise is counted
_STEPS = 1 << 16  # different values of the noise


@dataclass(frozen=True)
class CostWords:
    """Words of a data layer's users for costs, for messages.

    Attributes:
        max_batch_cost: the argument that limits the cost of a batch.
        item: one item.
        unit: of a cost, with a space before it.
        remedy: what to do when the limit is less than the largest cost.
    """

    max_batch_cost: str = "max_batch_cost"
    item: str = "item"
    unit: str = ""
    remedy: str = "raise it"


@dataclass(frozen=True)
class Batching:
    """How items are gathered into batches.

    Attributes:
        batch_size: items in a batch on one rank; -1 for all of them.
        shuffle: in training, another order in each epoch.
        bucketing: in training, items of similar cost together.
        drop_last: in training, leave out the items that do not fill a round.
        max_batch_cost: with bucketing, no batch costs more, padding included (items x the largest cost); then
            ``batch_size`` is only an upper limit.
        words: for messages.

    Raises:
        UsageError: values that contradict each other.
    """

    batch_size: int
    shuffle: bool = True
    bucketing: bool = False
    drop_last: bool = False
    max_batch_cost: float | None = None
    words: CostWords = CostWords()

    def __post_init__(self) -> None:
        limit = self.words.max_batch_cost
        if not isinstance(self.batch_size, Integral) or (self.batch_size < 1 and self.batch_size != -1):
            raise UsageError("batch_size is a number above 0, or -1 for the whole set", got=str(self.batch_size))
        if self.max_batch_cost is not None and not self.bucketing:
            raise UsageError(f"{limit} needs bucketing", remedy="set bucketing to true")
        if self.max_batch_cost is not None and self.drop_last:
            raise UsageError(f"{limit} and drop_last exclude each other: such batches have no nominal size")


def plans(
    num_items: int,
    batching: Batching,
    shard: Shard,
    *,
    training: bool,
    costs: Costs | Callable[[int], Costs] | None = None,
) -> Callable[[int], Plan]:
    """The batches of one rank by epoch: see `training_rounds`, and in evaluation `evaluation_plan`.

    Args:
        costs: as of `training_rounds`, perhaps others in each epoch.
    """
    if training:

        def make(epoch: int, shard: Shard, items: Rows) -> Rounds:
            of_epoch = costs(epoch) if callable(costs) else costs
            return training_rounds(len(items), batching, shard, epoch, None if of_epoch is None else of_epoch[items])

        return Plans(num_items, shard, make)
    plan = evaluation_plan(num_items, batching.batch_size, shard)
    return lambda epoch: plan


class WeightedSets:
    """Which items an epoch has, where sets of them have weights: a pure function of (sets, weights, seed, epoch).

    An epoch has as many places as there are items, and each set has its share of them, exact but for one place. A set
    goes through its items in passes, each in another order, from one epoch into the next: at any time no item of it
    has come more than once more often than another. Places are numbered set by set.

    Args:
        starts: (sets + 1,) the first item of each set, and the number of all.
        weights: of each set.
        seed: base of the draws.
        shuffle: another order in each pass; else that of the items.

    Raises:
        UsageError: a set has no item, or a share of less than one.
    """

    def __init__(self, starts: Sequence[int], weights: Sequence[float], seed: int = 0, shuffle: bool = True) -> None:
        self._starts, self._seed, self._shuffle = [int(start) for start in starts], seed, shuffle
        total, total_weight = self._starts[-1], math.fsum(weights)
        wanted = [total * (weight / total_weight) for weight in weights]
        # The largest remainders get the places that are left.
        self.num_places = [int(share) for share in wanted]
        by_remainder = sorted(range(len(wanted)), key=lambda number: self.num_places[number] - wanted[number])
        for number in by_remainder[: total - sum(self.num_places)]:
            self.num_places[number] += 1
        for number, (first, last) in enumerate(pairwise(self._starts)):
            if last == first or not self.num_places[number]:
                got = f"{last - first} items, {self.num_places[number]} of the {total} places of an epoch"
                problem, remedy = f"set {number + 1} would never come", "raise its weight, or leave it out"
                raise UsageError(problem, place="weights", got=got, remedy=remedy)
        self._of_epoch = lru_cache(maxsize=2)(self._drawn)

    def __call__(self, epoch: int) -> Rows:
        """The item at each place of an epoch."""
        return self._of_epoch(epoch)[0]

    def turns(self, epoch: int) -> Rows:
        """How often the item at each place has come in the epoch before: 0 for the first time."""
        return self._of_epoch(epoch)[1]

    def _drawn(self, epoch: int) -> tuple[Rows, Rows]:
        items, turns = [], []
        for number, (first, last) in enumerate(pairwise(self._starts)):
            size, count = last - first, self.num_places[number]
            begin, end = epoch * count, (epoch + 1) * count
            passes = range(begin // size, -(-end // size))
            in_order = np.concatenate([self._pass(number, size, each) for each in passes])
            of_set = in_order[begin - passes[0] * size : end - passes[0] * size]
            items.append(first + of_set)
            turns.append(_turns_of(of_set))
        return np.concatenate(items), np.concatenate(turns)

    def _pass(self, number: int, size: int, which: int) -> Rows:
        if not self._shuffle:
            return np.arange(size)
        return np.random.default_rng([self._seed, number, which, _STREAM_OF_SETS]).permutation(size)


def _turns_of(items: Rows) -> Rows:
    """How often each of some numbers stands before its place."""
    by_item = np.argsort(items, kind="stable")
    ordered = items[by_item]
    turns = np.empty(len(items), np.int64)
    turns[by_item] = np.arange(len(items)) - np.searchsorted(ordered, ordered)
    return turns


def training_rounds(
    num_items: int, batching: Batching, shard: Shard, epoch: int = 0, costs: Costs | None = None
) -> Rounds:
    """The batches of all ranks in one epoch of training.

    Every item comes once over the ranks, except the counted ones that do not fill a round: those that ``drop_last``
    leaves out, and rounds with fewer items than ranks, for which ``shard.uneven`` says what happens.

    With costs the ranks' totals of them are nearly equal: for 28,000 durations as in LibriSpeech, 8 ranks and batches
    of 16 the largest and the smallest differ by 0.005 % of their mean, for 2,700 and batches of 8 by 0.4 %.

    Args:
        costs: (N,) cost of each item; needed for bucketing.

    Raises:
        UsageError: items are left over and ``shard.uneven`` is ``error``, or ``max_batch_cost`` is less than one cost.
    """
    rng, world_size = np.random.default_rng([shard.seed, epoch]), shard.world_size
    is_mixed = batching.bucketing and batching.shuffle
    order = rng.permutation(num_items) if batching.shuffle else np.arange(num_items)
    round_items = items_of_a_round(num_items, batching.batch_size, world_size, batching.drop_last)
    if costs is not None and batching.max_batch_cost is not None and num_items:
        round_items = min(round_items, _items_of_average_cost(costs, batching) * world_size)
    num_dropped = num_items % round_items if batching.drop_last else 0
    order = order[: num_items - num_dropped]
    if costs is None:
        assert not batching.bucketing, "bucketing needs costs"
        return evened_out(cut_into_rounds(order, round_items), shard, num_dropped)
    if not batching.bucketing:
        rounds = list(cut_into_rounds(order, round_items))
    else:
        rounds = list(_bucketed(order, costs, batching, round_items, world_size, rng))
        if is_mixed:
            rounds = [rounds[index] for index in rng.permutation(len(rounds))]
    if world_size > 1:
        rounds = list(_balanced(rounds, costs, world_size, rng if is_mixed else None))
    return evened_out(rounds, shard, num_dropped)


def _items_of_average_cost(costs: Costs, batching: Batching) -> int:
    """How many items of average cost a batch holds."""
    assert batching.max_batch_cost is not None
    limit, largest, words = batching.max_batch_cost, float(costs.max()), batching.words
    if largest > limit:
        raise UsageError(
            f"{words.max_batch_cost} {limit:g}{words.unit} cannot hold the longest {words.item} "
            f"({largest:g}{words.unit})",
            remedy=words.remedy,
        )
    return int(limit / float(costs.mean()))


def _bucketed(
    order: Rows, costs: Costs, batching: Batching, round_items: int, world_size: int, rng: np.random.Generator
) -> Iterator[Rows]:
    thousandths = _thousandths(costs[order])
    keys = thousandths * _UNITS
    if batching.shuffle:
        keys += _noise(thousandths, round_items, _PADDING - _LESS_PADDING * (1 - 1 / world_size), rng)
    by_cost = order[np.argsort(-keys, kind="stable")]
    sorted_costs = costs[by_cost]
    start = 0
    while start < len(by_cost):
        num_items = round_items
        if batching.max_batch_cost is not None:
            num_items = _items_within_limit(sorted_costs[start:], batching, world_size)  # a view
        yield by_cost[start : start + num_items]
        start += num_items


def _noise(thousandths: Rows, round_items: int, padding: float, rng: np.random.Generator) -> Rows:
    """Whole numbers that are added to the costs before the sort, in units of a thousandth; alike on all machines.

    ``padding``: the share of padding in what is computed that is aimed at.

    Evenly drawn numbers, squared: of the distributions tried (even, exponential, products of even ones) pairs met
    again least often at the same padding, 30 % less often than with even ones.
    """
    ordered, num_items = -np.sort(-thousandths), len(thousandths)
    sizes = np.minimum(round_items, num_items - np.arange(0, num_items, round_items))
    used, computed = int(ordered.sum()), int((ordered[::round_items] * sizes).sum())
    share = 1 - used / max(computed, 1)
    # Part of the noise only exchanges items of one cost: 0.85 of what is there counts.
    mean_share = min(max(padding - 0.85 * share, _LEAST_NOISE * share), _MOST_NOISE * share)
    most = int(3 * mean_share * _UNITS * used / max(num_items, 1))  # the mean of the squares is a third
    even = rng.integers(0, _STEPS, num_items)
    squares: Rows = even * even // _STEPS  # divided here already, which keeps the next product within 64 bits
    return squares * most // _STEPS


def _items_within_limit(costs: Costs, batching: Batching, world_size: int) -> int:
    """How many of the first items make a round in which no rank's batch costs more than the limit, padding included."""
    assert batching.max_batch_cost is not None
    fitting = int(batching.max_batch_cost / float(costs[0]))
    size = fitting if batching.batch_size == -1 else min(fitting, batching.batch_size)
    # The largest cost need not be the first one.
    largest = np.maximum.accumulate(costs[: size * world_size].astype(np.float64))
    per_rank = np.arange(len(largest)) // world_size + 1
    within = int(np.count_nonzero(per_rank * largest <= batching.max_batch_cost))
    return within if within == len(costs) else max(within // world_size, 1) * world_size


def _thousandths(costs: Costs) -> Rows:
    """Costs in whole thousandths: sums of them are the same on every machine, whatever order it adds in."""
    return np.rint(costs.astype(np.float64) * 1000.0).astype(np.int64)


def _balanced(rounds: Sequence[Rows], costs: Costs, world_size: int, rng: np.random.Generator | None) -> Iterator[Rows]:
    """Each round's items in an order that, dealt in turn, gives all ranks nearly equal cost.

    Within a round the largest costs come first and every other layer runs backwards, so that two layers together give
    every rank the same; with ``rng`` each two layers are then dealt to the ranks at random, so that items that share a
    round again seldom share a rank again. Of the parts that result, the rank with the least cost so far gets the one
    with most. Items that do not fill a layer stay at the end, so the first ranks get them.
    """
    thousandths = _thousandths(costs)
    totals = np.zeros(world_size, np.int64)
    for items in rounds:
        by_cost = items[np.argsort(-thousandths[items], kind="stable")]
        incomplete = by_cost[len(items) // world_size * world_size :]
        layers = by_cost[: len(items) - len(incomplete)].reshape(-1, world_size)
        layers[1::2] = layers[1::2, ::-1].copy()
        if rng is not None:
            for first in range(0, len(layers) - 1, 2):
                layers[first : first + 2] = layers[first : first + 2, rng.permutation(world_size)]
        parts = thousandths[layers].sum(axis=0)
        columns = np.empty(world_size, np.int64)
        columns[np.argsort(totals, kind="stable")] = np.argsort(-parts, kind="stable")
        totals += parts[columns]
        totals[: len(incomplete)] += thousandths[incomplete]
        yield np.concatenate([layers[:, columns].ravel(), incomplete])


def sequential_rounds(starts: Rows, batching: Batching, shard: Shard, epoch: int = 0, window: int = 0) -> Rounds:
    """The batches of all ranks in one epoch of training.

    The items lie one behind the other in parts, such as tar files. In training the parts come in another order in each
    epoch. Laid end to end in this order, their items are cut into one stretch for each rank, of equal lengths but for
    one item. So each rank reads its stretch from front to back, and the numbers of parts and ranks need not fit each
    other: a part across the border of two stretches is read by both ranks, each its own items of it.

    Every item comes once over the ranks, except the counted ones that do not fill a round, as in `training_rounds`.

    Args:
        starts: (parts + 1,) the first item of each part, and the number of all items.
        batching: its ``shuffle`` puts the parts into another order in each epoch; it has no bucketing.
        shard: the ranks.
        epoch: which epoch.
        window: with ``shuffle``, this many neighbours of a stretch are shuffled among themselves, so that no item comes
            more than so many places too early or too late. Below 2 a part's items come in their own order.

    Raises:
        UsageError: items are left over and ``shard.uneven`` is ``error``.
    """
    assert not batching.bucketing, "buckets would not be read from front to back"
    world_size, num_items = shard.world_size, int(starts[-1])
    rng = np.random.default_rng([shard.seed, epoch])
    parts = np.arange(len(starts) - 1)
    parts = rng.permutation(parts) if batching.shuffle else parts
    sizes = np.diff(starts)[parts]
    # What each item's position is ahead of a plain count: the same for all items of a part.
    ahead = starts[parts] - np.concatenate([[0], np.cumsum(sizes)[:-1]])
    order: Rows = np.arange(int(sizes.sum())) + np.repeat(ahead, sizes)
    round_items = items_of_a_round(num_items, batching.batch_size, world_size, batching.drop_last)
    num_dropped = num_items % round_items if batching.drop_last else 0
    order = order[: num_items - num_dropped]
    num_full, num_last = divmod(len(order), round_items)
    full_items = num_full * round_items // world_size
    # Of the last ones, which do not fill a round, the first ranks get one item more.
    lengths = [full_items + len(range(rank, num_last, world_size)) for rank in range(world_size)]
    stretches = np.split(order, np.cumsum(lengths)[:-1])
    if batching.shuffle and window > 1:
        for rank, stretch in enumerate(stretches):  # the windows' borders are others in each epoch
            windows = (np.arange(len(stretch)) + int(rng.integers(window))) // window
            stretches[rank] = stretch[np.lexsort((rng.random(len(stretch)), windows))]
    return evened_out(_rounds(stretches, num_full, full_items, num_last), shard, num_dropped)


def sequential_plans(starts: Rows, batching: Batching, shard: Shard, window: int = 0) -> Plans:
    """The same by epoch, also for what is left of an epoch that began with another number of ranks."""

    def make(epoch: int, shard: Shard, items: Rows) -> Rounds:
        return sequential_rounds(np.searchsorted(items, starts), batching, shard, epoch, window)

    return Plans(int(starts[-1]), shard, make)


def _rounds(stretches: Sequence[Rows], num_full: int, full_items: int, num_last: int) -> Iterator[Rows]:
    """The items of each round in the order in which `Rounds` gives every rank those of its own stretch."""
    world_size = len(stretches)
    in_turn = np.stack([stretch[:full_items] for stretch in stretches], axis=1).ravel()
    yield from np.split(in_turn, num_full) if num_full else ()
    if num_last:
        last = np.empty(num_last, np.int64)
        for rank, stretch in enumerate(stretches):
            last[rank::world_size] = stretch[full_items:]
        yield last
