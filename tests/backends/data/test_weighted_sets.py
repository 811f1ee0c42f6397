"""Sets with weights: exact shares of each epoch, every item of a set equally often, the same for any ranks."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_lite.backends.pytorch.data.order import Batching, Plans, Shard, Stretch, WeightedSets, plans
from nemo_lite.base.errors import UsageError

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=4)
WEIGHTS = st.lists(st.floats(0.2, 5.0), min_size=4, max_size=4)


def sets_of(sizes, weights, **settings):
    return WeightedSets(np.cumsum([0, *sizes]).tolist(), weights[: len(sizes)], **settings)


@given(SIZES, WEIGHTS, st.integers(0, 20))
def test_each_epoch_has_the_shares_of_the_weights_but_for_one_place(sizes, weights, epoch):
    weights = weights[: len(sizes)]
    wanted = [sum(sizes) * weight / sum(weights) for weight in weights]
    if min(wanted) < 1:
        return
    items = sets_of(sizes, weights, seed=3)(epoch)
    assert len(items) == sum(sizes)
    numbers = np.searchsorted(np.cumsum(sizes), items, side="right")
    counts = np.bincount(numbers, minlength=len(sizes))
    assert all(abs(count - share) < 1 for count, share in zip(counts, wanted, strict=True))


@given(SIZES, WEIGHTS, st.integers(1, 9))
def test_after_any_epochs_items_of_a_set_have_come_equally_often(sizes, weights, num_epochs):
    try:
        sets = sets_of(sizes, weights, seed=1)
    except UsageError:
        return
    counts = Counter(item for epoch in range(num_epochs) for item in sets(epoch).tolist())
    first = 0
    for size in sizes:
        of_set = [counts[item] for item in range(first, first + size)]
        assert max(of_set) - min(of_set) <= 1
        first += size


def test_epochs_and_seeds_give_other_items_and_the_same_ones_again():
    sets = sets_of([100, 100], [1, 3], seed=5)
    assert sets.num_places == [50, 150]
    first, second = sets(0).copy(), sets(1).copy()
    assert sorted([*first[:50], *second[:50]]) == list(range(100)), "two epochs are one pass"
    assert (sets_of([100, 100], [1, 3], seed=5)(1) == second).all()
    assert (sets_of([100, 100], [1, 3], seed=6)(0) != first).any()
    assert sets_of([2, 2], [1, 3], shuffle=False)(0).tolist() == [0, 2, 3, 2]


def test_turns_count_how_often_an_item_has_come_in_the_epoch():
    sets = sets_of([2, 2], [1, 3], shuffle=False)
    assert sets.turns(0).tolist() == [0, 0, 0, 1]
    assert sets.turns(1).tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("bucketing", [False, True])
def test_any_number_of_ranks_takes_the_same_items_and_so_does_a_rest_on_other_ranks(bucketing):
    sets = sets_of([30, 10], [1, 2], seed=7)
    lengths = np.random.default_rng(0).uniform(1, 9, 40).astype(np.float32)

    def of_all_ranks(epoch, world, done=()):
        shards = [Shard(rank, world, 7) for rank in range(world)]
        batching = Batching(2, bucketing=bucketing)
        made = [plans(40, batching, s, training=True, costs=lambda e: lengths[sets(e)]) for s in shards]
        assert all(isinstance(plan, Plans) for plan in made)
        return [plan.after(epoch, done) for plan in made if isinstance(plan, Plans)]

    for epoch in range(3):
        wanted = sorted(sets(epoch).tolist())
        for world in (1, 2, 4):
            batches = [rows for plan in of_all_ranks(epoch, world) for rows in plan.batches]
            assert sorted(sets(epoch)[np.concatenate(batches)].tolist()) == wanted
        done = (Stretch(2, 3),)
        before = [rows for plan in of_all_ranks(epoch, 2) for rows in plan.batches[:3]]
        after = [rows for plan in of_all_ranks(epoch, 4, done) for rows in plan.batches]
        places = np.concatenate([*before, *after])
        assert sorted(places.tolist()) == list(range(40)), "no place is lost or comes twice"


def test_a_set_that_would_never_come_is_refused():
    with pytest.raises(UsageError, match=r"weights: set 2 would never come: got 10 items, 0 of the 20 places"):
        sets_of([10, 10], [1000, 1])
    with pytest.raises(UsageError, match=r"set 1 would never come: got 0 items"):
        sets_of([0, 10], [1, 1])
