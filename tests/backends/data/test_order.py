"""The order of items, requests for them, and seeds."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product, zip_longest
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from nemo_lite.backends.pytorch.data.loaders import Batch, Counts, DatasetLoader, ItemDataset, Loaded, Request
from nemo_lite.backends.pytorch.data.order import (
    Batching,
    Leftover,
    Plan,
    Shard,
    Stretch,
    evaluation_plan,
    evened_out,
    training_rounds,
)
from nemo_lite.backends.pytorch.data.order import plans as plans_of
from nemo_lite.backends.pytorch.generators import seed_all, seed_of
from nemo_lite.base.errors import DataChangedError, DataError, UnknownNameError, UsageError

# Which items come in which batch: a pure function of size, seed, epoch, rank and world size.


SIZES = st.integers(0, 200)
BATCHES = st.integers(1, 17)
WORLDS = st.integers(1, 9)


def plans(num_items: int, batch_size: int, world_size: int, **settings: Any) -> list[Plan]:
    """The plan of every rank in training."""
    settings = {"epoch": 0, "seed": 0, "uneven": "pad", **settings}
    epoch, seed, uneven = (settings.pop(name) for name in ("epoch", "seed", "uneven"))
    shards = [Shard(rank, world_size, seed, uneven) for rank in range(world_size)]
    batching = Batching(batch_size, **settings)
    return [training_rounds(num_items, batching, shard, epoch).of_rank(shard.rank) for shard in shards]


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


# What a worker does: a request in, one batch out, faults told instead of raised.


class Words(ItemDataset[str, str]):
    """Items that are the word they are found by; some words cannot be read."""

    def read(self, position: int, ref: str, request: Request[str], counts: Counts) -> str:
        counts["read"][ref] += 1
        if ref == "bad":
            raise DataError("it is bad", place=f"words:{position}")
        if ref == "gone":
            raise DataChangedError("the words are others now")
        if ref == "wrong":
            raise UsageError("an argument does not fit the words")
        return f"{ref}!" if request.training else ref

    def collate(self, items: Sequence[str]) -> tuple[Any, ...]:
        return (list(items),)

    def amount(self, items: Sequence[str]) -> float:
        return float(sum(map(len, items)))


def load(words: str, spares: str = "", training: bool = False) -> Loaded:
    items = list(enumerate(words.split()))
    return Words()[Request(0, items, list(enumerate(spares.split(), len(items))), training)]


def test_a_batch_holds_its_items_their_positions_and_its_amount() -> None:
    assert load("one three") == Loaded((["one", "three"],), [0, 1], 8.0, [], {"read": {"one": 1, "three": 1}})
    assert load("one", training=True).values == (["one!"],)


def test_faults_are_told_with_their_position_and_the_rest_of_the_batch_is_kept() -> None:
    loaded = load("bad one bad")
    assert loaded.values == (["one"],)
    assert loaded.ids == [1]
    assert loaded.faults == [(0, "words:0: it is bad"), (2, "words:2: it is bad")]
    assert loaded.counts == {"read": {"bad": 2, "one": 1}}


def test_one_spare_is_used_when_no_other_item_can_be() -> None:
    assert load("one", spares="two three").ids == [0]
    loaded = load("bad", spares="bad two three")
    assert (loaded.values, loaded.ids) == ((["two"],), [2])
    assert [position for position, _ in loaded.faults] == [0, 1]
    nothing = load("bad", spares="bad")
    assert (nothing.values, nothing.ids, nothing.amount) == ((), [], 0.0)


def test_what_is_wrong_with_all_items_ends_the_run() -> None:
    assert load("bad gone one") == Loaded(fatal="the words are others now")
    assert load("wrong").fatal == "an argument does not fit the words"


def test_torch_pins_the_values_of_a_batch_and_leaves_the_rest_as_it_is() -> None:
    class Pinnable:
        def pin_memory(self) -> str:
            return "pinned"

    loaded = load("bad one")._replace(values={"words": (Pinnable(), ["one"])})
    pinned: Any = pin_memory(loaded)
    assert type(pinned) is Loaded
    assert pinned.values == {"words": ("pinned", ["one"])}
    assert pinned[1:] == loaded[1:]


# Every random draw follows from (base, rank, epoch, position): the seeds, and what data sets draw for a batch.


def test_each_base_rank_and_epoch_has_a_seed_of_its_own() -> None:
    bases = [0, 1, 2, 2**32 - 1, 2**32, 2**32 + 1, 2**64]
    places = list(product(bases, range(4), range(30)))
    seeds = {seed_of(base, rank=rank, epoch=epoch) for base, rank, epoch in places}
    assert len(seeds) == len(places)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(2, rank=1, epoch=3) in seeds  # the same in another call


def test_seeding_gives_python_numpy_and_torch_streams_of_their_own() -> None:
    def draws(seed: int) -> tuple[float, float, float]:
        seed_all(seed)
        return random.random(), float(np.random.rand()), torch.rand((), dtype=torch.float64).item()

    one, other = draws(seed_of(1)), draws(seed_of(2))
    assert one == draws(seed_of(1))
    assert len({*one, *other}) == 6


# Data sets

EMPTY = Batch((torch.empty(0, 5, dtype=torch.float64),))


class Draws(Dataset[Any]):
    """Items that tell which worker made them and a draw of each generator."""

    def __getitem__(self, index: int) -> torch.Tensor:
        worker = get_worker_info()
        drawn = [random.random(), float(np.random.rand()), torch.rand((), dtype=torch.float64).item()]
        return torch.tensor([-1 if worker is None else worker.id, index, *drawn], dtype=torch.float64)

    def __len__(self) -> int:
        return 8


def loader_of(seed: int = 3, rank: int = 0, workers: int = 2) -> DatasetLoader:
    shard = Shard(rank, 1 + rank, seed)
    return DatasetLoader(Draws(), plans_of(8, Batching(1), shard, training=True), ["item"], shard, num_workers=workers)


def rows_of(batches: Iterable[Batch]) -> list[list[float]]:
    """The item of each batch with what was drawn for it."""
    return [row[1:] for row in torch.cat([batch.values[0] for batch in batches]).tolist()]


@pytest.mark.slow
def test_what_is_drawn_for_a_batch_follows_from_base_rank_epoch_and_position() -> None:
    loader = loader_of()
    torch.manual_seed(1)
    first, second, again = (rows_of(loader.epoch(epoch)) for epoch in (0, 1, 0))
    assert again == first  # the workers lived through all three passes
    for workers in (0, 1):
        torch.manual_seed(2)
        assert rows_of(loader_of(workers=workers).epoch(1)) == second
    others = [rows_of(loader_of(**place, workers=0).epoch(0)) for place in ({"seed": 4}, {"rank": 1})]
    drawn = [number for rows in (first, second, *others) for row in rows for number in row[1:]]
    assert len(set(drawn)) == len(drawn) == 3 * (8 + 8 + 8 + 4)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_goes_on_behind_some_rounds_reads_and_draws_what_is_left(workers: int) -> None:
    loader = loader_of(workers=workers)
    whole = rows_of(loader.epoch(3))
    for done in (1, 5, 8):
        assert rows_of([*loader.rest_of_epoch(3, [Stretch(1, done)]), EMPTY]) == whole[done:]


@pytest.mark.slow
def test_a_pass_that_was_left_early_does_not_change_the_next() -> None:
    loader = loader_of()
    whole = rows_of(loader.epoch(1))
    for passes in (0, 1):
        started = loader.epoch(passes)
        next(started)
    assert rows_of(loader.epoch(1)) == whole


@pytest.mark.slow
def test_torch_alone_lets_the_draws_of_an_epoch_depend_on_those_before() -> None:
    """The reason for seeds that travel with the requests; should this fail, torch does it itself."""
    epochs = []
    for passes in (1, 2):
        generator = torch.Generator()
        loader: DataLoader[Any] = DataLoader(Draws(), num_workers=1, persistent_workers=True, generator=generator)
        for epoch in range(2 - passes, 2):
            generator.manual_seed(epoch)
            rows = torch.cat(list(loader))
        epochs.append(rows)
    assert not torch.equal(epochs[0][:, 2:], epochs[1][:, 2:])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_the_runs_own_generators_are_left_where_they_were(workers: int) -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(()).item()

    seed_all(3)
    expected = drawn()
    seed_all(3)
    list(loader_of(workers=workers).epoch(0))
    assert drawn() == expected


def test_the_runs_own_generators_are_put_back_where_a_data_set_fails() -> None:
    class Fails(Dataset[Any]):
        def __getitem__(self, index: int) -> float:
            raise RuntimeError(f"drawn {random.random()}")

    plan_of = plans_of(3, Batching(1), Shard(), training=True)
    seed_all(3)
    expected = random.random(), float(np.random.rand())
    seed_all(3)
    with pytest.raises(RuntimeError, match="drawn"):
        list(DatasetLoader(Fails(), plan_of, ["x"], Shard()).epoch(0))
    assert (random.random(), float(np.random.rand())) == expected


def test_a_data_set_that_fetches_a_batch_at_once_is_asked_for_it() -> None:
    class AtOnce(Dataset[Any]):
        def __getitems__(self, positions: list[int]) -> list[int]:
            return [100 + position for position in positions]

    plan_of = plans_of(5, Batching(3), Shard(), training=False)
    batches = DatasetLoader(AtOnce(), plan_of, ["x"], Shard()).epoch(0)
    assert [batch.values[0].tolist() for batch in batches] == [[100, 101, 102], [103, 104]]
