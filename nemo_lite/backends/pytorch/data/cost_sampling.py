"""Which items make which batch when items differ in cost: by shuffling, buckets and a limit of cost. No data in here.

Pure functions of (costs, seed, epoch, rank, world size). A *round* is one batch on every rank. Its items are chosen
together and dealt to the ranks in turn, so that all ranks have batches of equal cost in the same round: a round lasts
as long as its slowest rank. A cost is a number that grows with the work for an item, such as its seconds of audio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_lite.backends.pytorch.data.order import (
    Plan,
    Plans,
    Rounds,
    Rows,
    Shard,
    cut_into_rounds,
    evaluation_plan,
    evened_out,
    items_of_a_round,
)
from nemo_lite.errors import UsageError

Costs: TypeAlias = "npt.NDArray[np.floating[Any]]"

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
    num_items: int, batching: Batching, shard: Shard, *, training: bool, costs: Costs | None = None
) -> Callable[[int], Plan]:
    """The batches of one rank by epoch: see `training_plan`, and in evaluation `order.evaluation_plan`."""
    if training:

        def make(epoch: int, shard: Shard, items: Rows) -> Rounds:
            return training_rounds(len(items), batching, shard, epoch, None if costs is None else costs[items])

        return Plans(num_items, shard, make)
    plan = evaluation_plan(num_items, batching.batch_size, shard)
    return lambda epoch: plan


def training_plan(num_items: int, batching: Batching, shard: Shard, epoch: int = 0, costs: Costs | None = None) -> Plan:
    """The batches of one rank in one epoch of training, see :func:`training_rounds`."""
    return training_rounds(num_items, batching, shard, epoch, costs).of_rank(shard.rank)


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


def padding_share(costs: Costs, batches: Sequence[Rows]) -> float:
    """Share of what is computed that is padding: 1 - sum of costs / sum of (largest in the batch * batch size)."""
    used = sum(float(costs[rows].sum(dtype=np.float64)) for rows in batches)
    computed = sum(float(costs[rows].max()) * len(rows) for rows in batches)
    return 1.0 - used / computed


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
