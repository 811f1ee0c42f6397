"""Batches of items that lie one behind the other in parts: each rank reads one stretch, in every epoch."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_lite.backends.pytorch.data.order import (
    Batching,
    Leftover,
    Plans,
    Shard,
    Stretch,
    cut_into_rounds,
    evened_out,
    sequential_plans,
    sequential_rounds,
)
from nemo_lite.backends.pytorch.data.order import plans as plans_by_cost
from nemo_lite.base.errors import UsageError

PARTS = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any)
WORLDS = st.integers(1, 5)
SIZES = st.sampled_from([-1, 1, 3, 8])
WINDOWS = st.sampled_from([0, 5, 1000])


def plans(parts, batching, world_size, *, epoch=0, window=0, seed=0, uneven="pad"):
    starts = np.cumsum([0, *parts])
    shards = [Shard(rank, world_size, seed, uneven) for rank in range(world_size)]
    return [sequential_rounds(starts, batching, shard, epoch, window).of_rank(shard.rank) for shard in shards]


def rows_of(plan):
    return np.concatenate([*plan.batches, np.zeros(0, np.int64)]).tolist()


@settings(max_examples=100, deadline=None)
@given(PARTS, SIZES, WORLDS, WINDOWS, st.booleans())
def test_every_item_comes_once_over_the_ranks_but_for_the_counted_repeats(parts, size, world, window, shuffle):
    ranks = plans(parts, Batching(size, shuffle), world, window=window)
    rows = [row for plan in ranks for row in rows_of(plan)]
    assert set(rows) == set(range(sum(parts)))
    assert len(rows) == sum(parts) + ranks[0].leftover.num_repeated
    assert ranks[0].leftover.num_repeated < world


@settings(max_examples=100, deadline=None)
@given(PARTS, SIZES, WORLDS, WINDOWS, st.booleans())
def test_all_ranks_have_equally_many_batches_none_of_them_empty(parts, size, world, window, drop_last):
    ranks = plans(parts, Batching(size, drop_last=drop_last), world, window=window)
    assert len({plan.num_rounds for plan in ranks} | {len(plan) for plan in ranks}) == 1
    assert all(len(batch) for plan in ranks for batch in plan.batches)
    if drop_last and size > 0:
        assert all(len(batch) == size for plan in ranks for batch in plan.batches)
        assert ranks[0].leftover.num_dropped == sum(parts) % (size * world)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(PARTS, SIZES, WORLDS, st.integers(0, 3))
def test_without_a_window_each_part_is_read_once_from_front_to_back(parts, size, world, epoch):
    part_of = np.repeat(np.arange(len(parts)), parts)
    visits = []
    for plan in plans(parts, Batching(size), world, epoch=epoch, uneven="drop"):
        for part, rows in groupby(rows_of(plan), lambda row: int(part_of[row])):
            visits.append(part)
            assert (np.diff(list(rows)) == 1).all()
    # Only a part across the border of two stretches is read by two ranks, each its own items of it.
    assert len(visits) <= len(set(visits)) + world - 1


def test_the_parts_come_in_another_order_in_each_epoch_and_the_same_one_in_every_process():
    orders = [rows_of(plans([2] * 8, Batching(4), 1, epoch=epoch)[0]) for epoch in (0, 1, 2, 3, 0)]
    assert len(set(map(tuple, orders))) > 2
    assert orders[0] == orders[-1]
    assert rows_of(plans([5, 5, 5], Batching(4, shuffle=False), 1, window=5)[0]) == list(range(15))


@pytest.mark.parametrize("world", [1, 2])
def test_a_window_moves_no_item_further_than_its_size(world):
    parts, window = [60, 50, 90], 20
    plain, shuffled = (plans(parts, Batching(4), world, window=each) for each in (0, window))
    for one, other in zip(plain, shuffled, strict=True):
        places = {row: place for place, row in enumerate(rows_of(one))}
        moves = [abs(places[row] - place) for place, row in enumerate(rows_of(other))]
        assert window / 4 < np.mean(moves) < window
        assert max(moves) < window


def test_items_that_do_not_fill_a_round_are_dealt_with_as_uneven_says():
    starts, batching = np.array([0, 3, 7]), Batching(3, shuffle=False)
    padded = sequential_rounds(starts, batching, Shard(0, 2))
    assert [batch.tolist() for batch in padded.of_rank(0).batches] == [[0, 1, 2], [3]]
    assert [batch.tolist() for batch in padded.of_rank(1).batches] == [[4, 5, 6], [3]]
    assert padded.leftover == Leftover(num_repeated=1)
    dropped = sequential_rounds(starts, batching, Shard(1, 2, uneven="drop"))
    assert dropped.leftover == Leftover(num_dropped=1)
    with pytest.raises(UsageError, match="1 item is left over at the end of an epoch, for 2 ranks"):
        sequential_rounds(starts, batching, Shard(0, 2, uneven="error"))


# What is left of an epoch

STRETCHES = st.lists(st.tuples(WORLDS, st.integers(0, 3)), min_size=1, max_size=3)


def plans_for_kind(kind, parts, size):
    """The plans of a rank: of parts that lie one behind the other, or of items in buckets by cost."""
    num_items = sum(parts)
    if kind == "sequential":
        return lambda shard: sequential_plans(np.cumsum([0, *parts]), Batching(size), shard, 5)
    costs = np.random.default_rng(1).uniform(1, 20, num_items)
    return lambda shard: plans_by_cost(num_items, Batching(size, bucketing=True), shard, training=True, costs=costs)


@pytest.mark.parametrize("kind", ["sequential", "by cost"])
@settings(max_examples=60, deadline=None)
@given(parts=PARTS, size=SIZES, stretches=STRETCHES, world=WORLDS)
def test_what_several_numbers_of_ranks_have_left_comes_once_on_those_that_go_on(kind, parts, size, stretches, world):
    plans_for, done, used = plans_for_kind(kind, parts, size), [], []
    for world_size, num_rounds in stretches:
        ranks = [plans_for(Shard(rank, world_size, 3, "join")).after(2, done) for rank in range(world_size)]
        used += [row for plan in ranks for rows in plan.batches[:num_rounds] for row in rows.tolist()]
        done.append(Stretch(world_size, num_rounds))
    ranks = [plans_for(Shard(rank, world, 3, "join")).after(2, done) for rank in range(world)]
    rest = [row for plan in ranks for rows in plan.batches for row in rows.tolist()]
    assert sorted([*used, *rest]) == [*range(sum(parts))]


def test_the_rounds_of_an_epoch_are_made_once_for_each_number_of_ranks_that_began_it():
    made = []

    def make(epoch, shard, items):
        made.append((epoch, shard.world_size, len(items)))
        return evened_out(cut_into_rounds(np.arange(len(items)), 2 * shard.world_size), shard)

    plans_of_rank, done = Plans(100, Shard(1, 4), make), (Stretch(8, 2), Stretch(3, 1))
    for num_rounds in range(1, 4):  # checkpoints of this epoch
        plans_of_rank.digest(7, (*done, Stretch(4, num_rounds)))
        plans_of_rank.after(7, done)
    assert made == [(7, 8, 100), (7, 3, 68), (7, 4, 62)]
    plans_of_rank(8)
    plans_of_rank.digest(8, (Stretch(4, 2),))
    assert made[3:] == [(8, 4, 100)]
    assert plans_of_rank.digest(7, done) != plans_of_rank.digest(8, done[:1])
    assert len(plans_of_rank._kept) == 1, "of the newest epoch"


def test_a_digest_tells_another_order_other_batches_and_other_items():
    done = [Stretch(2, 1)]
    digests = [
        plans_for_kind(kind, parts, size)(Shard(0, 1, seed)).digest(epoch, done)
        for kind, parts, size, seed, epoch in (
            ("sequential", [9, 9], 3, 3, 2),
            ("by cost", [9, 9], 3, 3, 2),
            ("sequential", [9, 10], 3, 3, 2),
            ("sequential", [9, 9], 4, 3, 2),
            ("sequential", [9, 9], 3, 4, 2),
            ("sequential", [9, 9], 3, 3, 3),
        )
    ]
    assert len(set(digests)) == len(digests)
    of_rank_1 = plans_for_kind("sequential", [9, 9], 3)(Shard(1, 5, 3)).digest(2, done)
    assert of_rank_1 == digests[0], "it is of those who did the rounds, whoever asks"
