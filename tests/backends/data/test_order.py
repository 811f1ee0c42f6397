"""Which items come in which batch: a pure function of size, seed, epoch, rank and world size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_lite.backends.pytorch.data.cost_sampling import Batching, training_plan
from nemo_lite.backends.pytorch.data.cost_sampling import plans as plans_of
from nemo_lite.backends.pytorch.data.order import Leftover, Plan, Shard, evaluation_plan, evened_out
from nemo_lite.errors import UnknownNameError, UsageError

SIZES = st.integers(0, 200)
BATCHES = st.integers(1, 17)
WORLDS = st.integers(1, 9)


def plans(num_items: int, batch_size: int, world_size: int, **settings: Any) -> list[Plan]:
    """The plan of every rank in training."""
    settings = {"epoch": 0, "seed": 0, "uneven": "pad", **settings}
    epoch, seed, uneven = (settings.pop(name) for name in ("epoch", "seed", "uneven"))
    shards = [Shard(rank, world_size, seed, uneven) for rank in range(world_size)]
    return [training_plan(num_items, Batching(batch_size, **settings), shard, epoch) for shard in shards]


def orders(num_items: int, batch_size: int, world_size: int, **settings: Any) -> list[list[list[int]]]:
    """The batches of every rank."""
    return [listed(plan) for plan in plans(num_items, batch_size, world_size, **settings)]


def listed(plan: Plan) -> list[list[int]]:
    return [rows.tolist() for rows in plan.batches]


def flat(ranks: Sequence[Sequence[Sequence[int]]]) -> list[int]:
    return [item for rank in ranks for batch in rank for item in batch]


def round_by_round(ranks: Sequence[Plan]) -> list[list[int]]:
    """The first batches of all ranks, then the second ones ..."""
    rounds = zip_longest(*map(listed, ranks))
    return [batch for batches in rounds for batch in batches if batch is not None]


# Evaluation


def evaluation_plans(num_items: int, batch_size: int, world_size: int) -> list[Plan]:
    return [evaluation_plan(num_items, batch_size, Shard(rank, world_size)) for rank in range(world_size)]


@given(SIZES, st.integers(-1, 17), WORLDS)
def test_in_evaluation_one_round_after_the_other_is_the_data_in_order(num_items: int, batch: int, world: int) -> None:
    ranks = evaluation_plans(num_items, batch, world)
    assert flat([round_by_round(ranks)]) == list(range(num_items))
    numbered = {number: rows for plan in ranks for number, rows in zip(plan.numbers or (), listed(plan), strict=True)}
    assert flat([[numbered[number] for number in sorted(numbered)]]) == list(range(num_items))
    assert sorted(numbered) == list(range(len(numbered)))
    assert {plan.leftover for plan in ranks} == {Leftover()}


@given(SIZES, BATCHES, WORLDS)
def test_in_evaluation_loads_differ_by_one_batch_at_most_and_rounds_are_as_few_as_they_can_be(
    num_items: int, batch: int, world: int
) -> None:
    ranks = evaluation_plans(num_items, batch, world)
    sizes = [len(rows) for rows in round_by_round(ranks)]
    assert all(1 <= size <= batch for size in sizes)
    assert len(set(sizes[:-1])) <= 1
    loads = [sum(map(len, listed(plan))) for plan in ranks]
    assert max(loads) - min(loads) <= max(sizes, default=0)
    counts = [len(plan) for plan in ranks]
    assert counts == sorted(counts, reverse=True)
    assert max(counts) - min(counts) <= 1
    assert {plan.num_rounds for plan in ranks} == {max(counts)} == {-(-num_items // (batch * world))}


def test_few_items_are_shared_by_all_ranks_and_not_one_full_batch_on_the_first() -> None:
    assert [listed(plan) for plan in evaluation_plans(8, 32, 4)] == [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]]]
    assert [listed(plan) for plan in evaluation_plans(2, 32, 4)] == [[[0]], [[1]], [], []]


def test_a_rank_alone_evaluates_batches_of_the_size_it_was_given() -> None:
    assert listed(evaluation_plan(10, 4, Shard())) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert listed(evaluation_plan(3, -1, Shard())) == [[0, 1, 2]]
    assert listed(evaluation_plan(0, 4, Shard())) == listed(evaluation_plan(0, -1, Shard())) == []


def test_in_evaluation_the_plan_is_the_same_in_every_epoch_whatever_is_set_for_training() -> None:
    plan_of = plans_of(10, Batching(2, shuffle=True, drop_last=True), Shard(1, 3), training=False)
    assert listed(plan_of(0)) == listed(plan_of(7)) == listed(evaluation_plan(10, 2, Shard(1, 3)))


# Training


@given(SIZES, BATCHES, WORLDS, st.booleans())
def test_in_training_every_item_comes_and_the_few_that_come_twice_are_counted(
    num_items: int, batch: int, world: int, shuffle: bool
) -> None:
    ranks = plans(num_items, batch, world, shuffle=shuffle)
    counts = Counter(flat(list(map(listed, ranks))))
    assert set(counts) == set(range(num_items))
    assert {plan.leftover for plan in ranks} == {Leftover(counts.total() - num_items, 0)}
    assert ranks[0].leftover.num_repeated < world


@given(SIZES, BATCHES, WORLDS, st.booleans(), st.sampled_from(["pad", "drop"]))
def test_in_training_all_ranks_have_a_batch_in_each_step(
    num_items: int, batch: int, world: int, drop_last: bool, uneven: str
) -> None:
    ranks = plans(num_items, batch, world, drop_last=drop_last, uneven=uneven)
    assert {len(plan) for plan in ranks} == {ranks[0].num_rounds}
    assert all(1 <= len(rows) <= batch for plan in ranks for rows in plan.batches)
    for rows in zip(*(plan.batches for plan in ranks), strict=True):
        assert max(map(len, rows)) - min(map(len, rows)) <= 1


@given(SIZES, BATCHES, WORLDS)
def test_with_drop_last_no_item_comes_twice_and_all_batches_are_full(num_items: int, batch: int, world: int) -> None:
    ranks = plans(num_items, batch, world, drop_last=True, uneven="error")
    items = flat(list(map(listed, ranks)))
    assert len(set(items)) == len(items)
    assert {len(rows) for plan in ranks for rows in plan.batches} <= {batch}
    # Nothing is left out that another full batch on every rank could hold.
    assert num_items - len(items) == ranks[0].leftover.num_dropped < batch * world


@given(SIZES, BATCHES, WORLDS)
def test_with_drop_only_a_step_with_fewer_items_than_ranks_is_left_out(num_items: int, batch: int, world: int) -> None:
    ranks = plans(num_items, batch, world, uneven="drop")
    items = flat(list(map(listed, ranks)))
    rest = num_items % (batch * world)
    assert len(set(items)) == len(items) == num_items - ranks[0].leftover.num_dropped
    assert {plan.leftover for plan in ranks} == {Leftover(0, rest if rest < world else 0)}


@given(SIZES, BATCHES, WORLDS)
def test_with_join_every_item_comes_once_and_the_first_ranks_go_on_alone(
    num_items: int, batch: int, world: int
) -> None:
    ranks = plans(num_items, batch, world, uneven="join")
    assert sorted(flat(list(map(listed, ranks)))) == list(range(num_items))
    assert {plan.leftover for plan in ranks} == {Leftover()}
    counts = [len(plan) for plan in ranks]
    assert counts == sorted(counts, reverse=True)
    assert {plan.num_rounds for plan in ranks} == {counts[0]}
    assert counts[0] - counts[-1] <= 1


def test_short_steps_come_last_and_the_longest_first_where_ranks_join() -> None:
    steps = [np.array(step) for step in ([0], [1, 2, 3, 4], [5, 6], [7, 8, 9])]
    ranks = [evened_out(steps, Shard(0, 3, uneven="join")).of_rank(rank) for rank in range(3)]
    assert [listed(plan) for plan in ranks] == [[[1, 4], [7], [5], [0]], [[2], [8], [6]], [[3], [9]]]
    assert {plan.num_rounds for plan in ranks} == {4}
    padded = [evened_out(steps, Shard(0, 3, uneven="pad")).of_rank(rank) for rank in range(3)]
    assert [listed(plan) for plan in padded] == [
        [[0], [1, 4], [5], [7]],
        [[0], [2], [6], [8]],
        [[0], [3], [5], [9]],
    ]
    assert padded[0].leftover == Leftover(num_repeated=3)
    assert evened_out(steps, Shard(0, 3, uneven="drop"), num_dropped=5).leftover == Leftover(num_dropped=8)


def test_leftover_items_are_an_error_where_they_are_not_allowed_and_say_what_to_do() -> None:
    assert len(plans(12, 2, 4, uneven="error")[0]) == 2
    with pytest.raises(UsageError) as error:
        plans(10, 2, 4, uneven="error")
    assert str(error.value) == (
        "uneven=error: 2 items are left over at the end of an epoch, for 4 ranks; "
        "choose uneven=pad, drop or join, another batch_size, or drop_last"
    )
    with pytest.raises(UsageError, match="1 item is left over"):
        plans(9, 2, 4, uneven="error")


def test_a_policy_that_is_none_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r'uneven "pda" is not known; known: drop, error, join, pad'):
        Shard(0, 1, uneven="pda")


@pytest.mark.parametrize("shuffle", [False, True])
@given(num_items=SIZES, batch=BATCHES, seed=st.integers(0, 9))
def test_an_optimizer_step_takes_the_same_items_on_one_two_and_four_ranks(
    shuffle: bool, num_items: int, batch: int, seed: int
) -> None:
    def steps(world: int, batches_per_step: int) -> list[set[int]]:
        ranks = orders(num_items, batch, world, shuffle=shuffle, seed=seed, epoch=3)
        starts = range(0, len(ranks[0]), batches_per_step)
        return [set(flat([rank[start : start + batches_per_step] for rank in ranks])) for start in starts]

    assert steps(1, 4) == steps(2, 2) == steps(4, 1)


@given(st.integers(20, 200), WORLDS, st.integers(0, 1000), st.integers(0, 1000))
def test_the_order_follows_from_seed_and_epoch_alone(num_items: int, world: int, seed: int, epoch: int) -> None:
    first = orders(num_items, 4, world, seed=seed, epoch=epoch)
    assert first == orders(num_items, 4, world, seed=seed, epoch=epoch)
    assert first != orders(num_items, 4, world, seed=seed, epoch=epoch + 1)
    assert first != orders(num_items, 4, world, seed=seed + 1, epoch=epoch)


def test_seed_and_epoch_are_two_numbers_and_not_their_sum() -> None:
    assert orders(50, 4, 1, seed=1, epoch=2) != orders(50, 4, 1, seed=2, epoch=1)


def test_without_shuffling_all_epochs_are_alike() -> None:
    assert orders(10, 4, 2, shuffle=False, epoch=0) == orders(10, 4, 2, shuffle=False, epoch=5)


def test_a_batch_size_of_minus_one_is_one_batch_of_everything() -> None:
    assert orders(7, -1, 1, shuffle=False) == [[[0, 1, 2, 3, 4, 5, 6]]]
    assert orders(7, -1, 2, shuffle=False) == [[[0, 2, 4, 6]], [[1, 3, 5]]]
    assert orders(7, -1, 2, shuffle=False, drop_last=True) == [[[0, 2, 4]], [[1, 3, 5]]]
    assert orders(0, -1, 1) == [[]]
