"""Which items make which batch when the items lie one behind the other in parts, such as tar files. No data in here.

A pure function of (parts, seed, epoch, rank, world size). In training the parts come in another order in each epoch.
Laid end to end in this order, their items are cut into one stretch for each rank, of equal lengths but for one item.
So each rank reads its stretch from front to back, each item is read by one rank, and the numbers of parts and ranks
need not fit each other: a part across the border of two stretches is read by both ranks, each its own items of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nemo_lite.backends.pytorch.data.cost_sampling import Batching
from nemo_lite.backends.pytorch.data.order import Plan, Plans, Rounds, Rows, Shard, evened_out, items_of_a_round


def sequential_plan(starts: Rows, batching: Batching, shard: Shard, epoch: int = 0, window: int = 0) -> Plan:
    """The batches of one rank in one epoch of training, see :func:`sequential_rounds`."""
    return sequential_rounds(starts, batching, shard, epoch, window).of_rank(shard.rank)


def sequential_rounds(starts: Rows, batching: Batching, shard: Shard, epoch: int = 0, window: int = 0) -> Rounds:
    """The batches of all ranks in one epoch of training.

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
    order = _laid_end_to_end(starts, rng.permutation(parts) if batching.shuffle else parts)
    round_items = items_of_a_round(num_items, batching.batch_size, world_size, batching.drop_last)
    num_dropped = num_items % round_items if batching.drop_last else 0
    order = order[: num_items - num_dropped]
    num_full, rest = divmod(len(order), round_items)
    full_items = num_full * round_items // world_size
    # Of a rest that does not fill a round the first ranks get one item more.
    lengths = [full_items + len(range(rank, rest, world_size)) for rank in range(world_size)]
    stretches = np.split(order, np.cumsum(lengths)[:-1])
    if batching.shuffle and window > 1:
        stretches = [_shuffled_nearby(stretch, window, rng) for stretch in stretches]
    return evened_out(_rounds(stretches, num_full, full_items, rest), shard, num_dropped)


def sequential_plans(starts: Rows, batching: Batching, shard: Shard, window: int = 0) -> Plans:
    """The same by epoch, also for what is left of an epoch that began with another number of ranks."""

    def make(epoch: int, shard: Shard, items: Rows) -> Rounds:
        return sequential_rounds(np.searchsorted(items, starts), batching, shard, epoch, window)

    return Plans(int(starts[-1]), shard, make)


def _laid_end_to_end(starts: Rows, parts: Rows) -> Rows:
    lengths = np.diff(starts)[parts]
    # What each item's position is ahead of a plain count: the same for all items of a part.
    ahead = starts[parts] - np.concatenate([[0], np.cumsum(lengths)[:-1]])
    order: Rows = np.arange(int(lengths.sum())) + np.repeat(ahead, lengths)
    return order


def _shuffled_nearby(stretch: Rows, window: int, rng: np.random.Generator) -> Rows:
    """Each window of neighbours in a random order. The windows' borders are others in each epoch."""
    windows = (np.arange(len(stretch)) + int(rng.integers(window))) // window
    return stretch[np.lexsort((rng.random(len(stretch)), windows))]


def _rounds(stretches: Sequence[Rows], num_full: int, full_items: int, rest: int) -> Iterator[Rows]:
    """The items of each round in the order in which `Rounds` gives every rank those of its own stretch."""
    world_size = len(stretches)
    in_turn = np.stack([stretch[:full_items] for stretch in stretches], axis=1).ravel()
    yield from np.split(in_turn, num_full) if num_full else ()
    if rest:
        last = np.empty(rest, np.int64)
        for rank, stretch in enumerate(stretches):
            last[rank::world_size] = stretch[full_items:]
        yield last
