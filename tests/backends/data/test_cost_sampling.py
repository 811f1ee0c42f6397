"""Batches of items that differ in cost: which rank gets what, in every epoch, on any number of ranks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_lite.backends.pytorch.data.order import Batching, CostWords, Leftover, Shard, training_rounds
from nemo_lite.base.errors import UsageError

SIZES = st.integers(1, 200)
WORLDS = st.integers(1, 5)
BATCHES = st.integers(1, 9)


def durations_of(num_items, seed=0):
    return np.random.default_rng(seed).uniform(1.0, 20.0, num_items).astype(np.float32)


def librispeech_like(num_items, seed=0):
    """Two thirds around 14 s, the rest spread down to a second, nothing above 17 s."""
    rng = np.random.default_rng(seed)
    around = rng.normal(14.0, 1.3, num_items * 2 // 3)
    spread = rng.uniform(1.3, 15.0, num_items - len(around))
    return rng.permutation(np.clip(np.concatenate([around, spread]), 1.3, 17.0)).astype(np.float32)


def plans(durations, batching, world_size, epoch=0, seed=0, uneven="pad"):
    shards = [Shard(rank, world_size, seed, uneven) for rank in range(world_size)]
    return [training_rounds(len(durations), batching, shard, epoch, durations).of_rank(shard.rank) for shard in shards]


def padding_share(costs, batches):
    """Share of what is computed that is padding."""
    used = sum(float(costs[rows].sum(dtype=np.float64)) for rows in batches)
    return 1.0 - used / sum(float(costs[rows].max()) * len(rows) for rows in batches)


def plan_alone(durations, batching, epoch=0):
    return plans(durations, batching, 1, epoch)[0]


def rows_of(plans_of_ranks):
    batches = [rows for plan in plans_of_ranks for rows in plan.batches]
    return np.concatenate(batches) if batches else np.zeros(0, np.int64)


@settings(max_examples=60, deadline=None)
@given(SIZES, BATCHES, WORLDS, st.booleans(), st.booleans(), st.integers(0, 3))
def test_every_item_comes_once_over_the_ranks_but_for_the_counted_repeats(n, size, world, shuffle, bucketing, epoch):
    ranks = plans(durations_of(n), Batching(size, shuffle, bucketing), world, epoch)
    rows = rows_of(ranks)
    assert set(rows.tolist()) == set(range(n))
    assert len(rows) == n + ranks[0].leftover.num_repeated
    assert ranks[0].leftover.num_repeated < world
    assert all(len(batch) <= size for plan in ranks for batch in plan.batches)


@settings(max_examples=60, deadline=None)
@given(SIZES, BATCHES, WORLDS, st.booleans(), st.booleans())
def test_all_ranks_have_equally_many_batches_none_of_them_empty(n, size, world, bucketing, drop_last):
    ranks = plans(durations_of(n), Batching(size, bucketing=bucketing, drop_last=drop_last), world)
    assert len({len(plan) for plan in ranks}) == 1
    assert all(len(batch) for plan in ranks for batch in plan.batches)
    if drop_last:
        assert all(len(batch) == size for plan in ranks for batch in plan.batches)
        assert len(ranks[0]) == n // (size * world)
        assert len(set(rows_of(ranks).tolist())) == len(ranks[0]) * size * world
        assert ranks[0].leftover == Leftover(num_dropped=n % (size * world))


@settings(max_examples=40, deadline=None)
@given(SIZES, WORLDS, st.booleans(), st.integers(20, 100), st.sampled_from([-1, 1, 4, 100]))
def test_batches_by_cost_hold_the_limit_and_every_item(n, world, shuffle, limit, size):
    durations = durations_of(n)
    batching = Batching(size, shuffle, bucketing=True, max_batch_cost=float(limit))
    ranks = plans(durations, batching, world)
    assert set(rows_of(ranks).tolist()) == set(range(n))
    for plan in ranks:
        for batch in plan.batches:
            assert len(batch) * durations[batch].max() <= limit * (1 + 1e-6)
            assert size == -1 or len(batch) <= size


class CountedCosts(np.ndarray):
    """Costs that count how many of them are gathered by positions; a slice copies nothing."""

    num_gathered = 0

    def __getitem__(self, key):
        if isinstance(key, np.ndarray):
            CountedCosts.num_gathered += key.size
        return super().__getitem__(key)


def test_a_plan_with_a_limit_gathers_each_cost_a_few_times_and_not_once_a_round():
    costs, batching = durations_of(5000), Batching(8, bucketing=True, max_batch_cost=100.0)
    counted = costs.view(CountedCosts)
    CountedCosts.num_gathered = 0
    plan = plan_alone(counted, batching)
    assert len(plan) > 500
    assert CountedCosts.num_gathered <= 4 * len(costs)
    as_plain = plan_alone(costs, batching)
    assert [rows.tolist() for rows in plan.batches] == [rows.tolist() for rows in as_plain.batches]


def test_batches_by_cost_are_filled_on_every_rank():
    batching = Batching(-1, bucketing=True, max_batch_cost=50.0)
    ranks = plans(np.full(120, 5.0, np.float32), batching, 3)
    assert [[len(rows) for rows in plan.batches] for plan in ranks] == [[10] * 4] * 3


@pytest.mark.parametrize("bucketing", [False, True])
def test_the_plan_is_a_function_of_seed_and_epoch_alone(bucketing):
    durations, batching = durations_of(300), Batching(8, bucketing=bucketing)
    first = rows_of(plans(durations, batching, 2, epoch=3, seed=1))
    np.random.seed(99)
    np.testing.assert_array_equal(first, rows_of(plans(durations, batching, 2, epoch=3, seed=1)))
    assert (first != rows_of(plans(durations, batching, 2, epoch=4, seed=1))).any()
    assert (first != rows_of(plans(durations, batching, 2, epoch=3, seed=2))).any()


def test_without_shuffle_the_order_is_that_of_the_data():
    plan = plan_alone(durations_of(10), Batching(4, shuffle=False))
    assert [batch.tolist() for batch in plan.batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    two = plans(durations_of(10), Batching(2, shuffle=False), 2)
    steps = [np.concatenate(batches) for batches in zip(*(plan.batches for plan in two), strict=True)]
    assert [sorted(step.tolist()) for step in steps] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_last_step_with_fewer_items_than_ranks_repeats_some_and_counts_them():
    ranks = plans(durations_of(9), Batching(2, shuffle=False), 4)
    assert [plan.batches[-1].tolist() for plan in ranks] == [[8], [8], [8], [8]]
    assert ranks[0].leftover.num_repeated == 3


@settings(max_examples=60, deadline=None)
@given(SIZES, BATCHES, WORLDS, st.booleans(), st.sampled_from([None, 40.0]))
def test_leftover_items_are_dropped_or_go_to_the_first_ranks_or_end_the_run(n, size, world, shuffle, seconds):
    durations = durations_of(n)
    batching = Batching(size, shuffle, bucketing=True, max_batch_cost=seconds)
    dropping, joining = (plans(durations, batching, world, uneven=uneven) for uneven in ("drop", "join"))
    rows = rows_of(dropping).tolist()
    assert len(set(rows)) == len(rows) == n - dropping[0].leftover.num_dropped
    assert {len(plan) for plan in dropping} == {dropping[0].num_rounds}
    assert sorted(rows_of(joining).tolist()) == list(range(n))
    counts = [len(plan) for plan in joining]
    assert counts == sorted(counts, reverse=True)
    assert {plan.num_rounds for plan in joining} == {counts[0]}
    if dropping[0].leftover.num_dropped:
        with pytest.raises(UsageError, match=f"left over at the end of an epoch, for {world} ranks; choose uneven="):
            plans(durations, batching, world, uneven="error")
    else:
        assert plans(durations, batching, world, uneven="error")[0].num_rounds == dropping[0].num_rounds


@pytest.mark.parametrize("shuffle", [False, True])
@settings(max_examples=40, deadline=None)
@given(n=SIZES, size=BATCHES, seed=st.integers(0, 9))
def test_an_optimizer_step_takes_the_same_items_by_cost_on_one_two_and_four_ranks(shuffle, n, size, seed):
    def steps(world, batches_per_step):
        ranks = plans(durations_of(n), Batching(size, shuffle), world, epoch=2, seed=seed)
        starts = range(0, ranks[0].num_rounds, batches_per_step)
        groups = [[rows for plan in ranks for rows in plan.batches[k : k + batches_per_step]] for k in starts]
        return [set(np.concatenate(group).tolist()) for group in groups]

    assert steps(1, 4) == steps(2, 2) == steps(4, 1)


# Measured on five epochs: 0.005 % and 0.0002 %; 0.48 % and 0.05 %, for the last step has few utterances. Dealt as they
# come the ranks would differ by 2 % and 5.7 %.
@pytest.mark.parametrize(
    ("num_items", "size", "bucketing", "most"),
    [(28000, 16, False, 1e-4), (28000, 16, True, 1e-5), (2700, 8, False, 0.01), (2700, 1, True, 0.001)],
)
def test_all_ranks_get_almost_the_same_cost_in_an_epoch(num_items, size, bucketing, most):
    durations = librispeech_like(num_items)
    for epoch in range(2):
        ranks = plans(durations, Batching(size, bucketing=bucketing), 8, epoch)
        assert len(set(rows_of(ranks).tolist())) == num_items
        totals = [sum(float(durations[rows].sum(dtype=np.float64)) for rows in plan.batches) for plan in ranks]
        assert max(totals) - min(totals) <= most * np.mean(totals)


def test_the_whole_set_is_one_batch_on_each_rank_with_batch_size_minus_one():
    ranks = plans(durations_of(10), Batching(-1), 2)
    assert [len(plan) for plan in ranks] == [1, 1]
    assert sorted(rows_of(ranks).tolist()) == list(range(10))


@pytest.mark.parametrize(
    ("num_items", "size", "world"), [(28000, 64, 1), (28000, 32, 8), (2700, 32, 1), (10000, 16, 2)]
)
def test_bucketing_computes_at_most_two_percent_of_padding(num_items, size, world):
    durations = librispeech_like(num_items)
    for plan in plans(durations, Batching(size, bucketing=True), world):
        assert padding_share(durations, plan.batches) <= 0.02
    random = plan_alone(durations, Batching(size))
    assert padding_share(durations, random.batches) > 0.2


@pytest.mark.parametrize(("num_items", "most"), [(28000, 0.02), (33000, 0.019), (66000, 0.018)])
def test_eight_ranks_in_step_lose_less_than_two_percent_to_padding_and_to_waiting_for_each_other(num_items, most):
    durations = librispeech_like(num_items)
    ranks = plans(durations, Batching(64, bucketing=True), 8)
    longest = [
        max(float(durations[rows].max()) * len(rows) for rows in round_)
        for round_ in zip(*(plan.batches for plan in ranks), strict=True)
    ]
    assert 1 - float(durations.sum(dtype=np.float64)) / (8 * sum(longest)) <= most


def test_bucketing_gives_all_ranks_batches_of_equal_cost_at_the_same_step():
    durations = librispeech_like(28000)
    ranks = plans(durations, Batching(16, bucketing=True), 8)
    cost = np.array([[durations[rows].max() * len(rows) for rows in plan.batches] for plan in ranks])
    waiting = 1 - cost.sum() / (cost.max(axis=0).sum() * 8)
    assert waiting < 0.01


def pairs_of(batches, num_items):
    """Each two items that share a batch, as one number."""
    twos = [np.sort(rows)[np.column_stack(np.triu_indices(len(rows), 1))] for rows in batches]
    return np.concatenate([two[:, 0] * num_items + two[:, 1] for two in twos])


def share_of_pairs_that_meet_again(durations, batching, world):
    first, second = (
        pairs_of([rows for plan in plans(durations, batching, world, epoch) for rows in plan.batches], len(durations))
        for epoch in (0, 1)
    )
    return len(np.intersect1d(first, second)) / len(first)


# Measured over three epochs: 19, 8.8, 39 and 5.3 % of the pairs. In random batches: 1, 0.5, 3 and 0.5 %; with batches
# of sorted utterances: all. Below 2 % of padding more than that is not to be had for such durations.
@pytest.mark.parametrize(
    ("num_items", "size", "world", "most_again", "most_padding"),
    [(3000, 32, 1, 0.22, 0.02), (3000, 16, 1, 0.11, 0.02), (1000, 32, 1, 0.45, 0.031), (3000, 16, 8, 0.08, 0.041)],
)
def test_bucketing_gives_an_utterance_other_neighbours_in_each_epoch(num_items, size, world, most_again, most_padding):
    durations, batching = librispeech_like(num_items), Batching(size, bucketing=True)
    assert share_of_pairs_that_meet_again(durations, batching, world) < most_again
    for plan in plans(durations, batching, world):
        assert padding_share(durations, plan.batches) < most_padding


def test_bucketing_mixes_the_order_of_lengths():
    durations = librispeech_like(2700)
    means = [float(durations[rows].mean()) for rows in plan_alone(durations, Batching(32, bucketing=True)).batches]
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.3


def test_bucketing_without_shuffle_is_the_same_in_every_epoch_and_pads_least():
    durations, batching = librispeech_like(500), Batching(16, shuffle=False, bucketing=True)
    first, second = (plan_alone(durations, batching, epoch).batches for epoch in (0, 1))
    assert [rows.tolist() for rows in first] == [rows.tolist() for rows in second]
    assert padding_share(durations, first) < padding_share(
        durations, plan_alone(durations, Batching(16, bucketing=True)).batches
    )


def test_equal_costs_make_random_batches():
    durations, batching = np.full(640, 2.0, np.float32), Batching(16, bucketing=True)
    assert share_of_pairs_that_meet_again(durations, batching, 1) < 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size is a number above 0, or -1 for the whole set: got 0"),
        ({"batch_size": None}, "batch_size is a number above 0, or -1 for the whole set: got None"),
        ({"batch_size": 4, "max_batch_cost": 30.0}, "max_batch_cost needs bucketing; set bucketing to true"),
        ({"batch_size": 4, "max_batch_cost": 9.0, "bucketing": True, "drop_last": True}, "exclude each other"),
    ],
)
def test_contradictory_wishes_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        Batching(**arguments)


def test_a_limit_below_the_largest_cost_is_refused_in_the_words_of_the_data_layer():
    costs, words = np.array([1.0, 9.0]), CostWords("max_batch_seconds", "utterance", " s", "raise it, or wait")
    with pytest.raises(UsageError, match=r"^max_batch_cost 5 cannot hold the longest item \(9\); raise it$"):
        plan_alone(costs, Batching(8, bucketing=True, max_batch_cost=5.0))
    with pytest.raises(UsageError, match=r"^max_batch_seconds 5 s .* utterance \(9 s\); raise it, or wait"):
        plan_alone(costs, Batching(8, bucketing=True, max_batch_cost=5.0, words=words))
    with pytest.raises(UsageError, match="max_batch_seconds needs bucketing; set bucketing to true"):
        Batching(8, max_batch_cost=5.0, words=words)
