"""Which items come in which batch: a pure function of size, seed, epoch, rank and world size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset

from nemo_lite.backends.pytorch.data import Batch, DatasetLoader, EpochOrder, IteratorLoader, Shard, as_values

SIZES = st.integers(0, 200)
BATCHES = st.integers(1, 17)
WORLDS = st.integers(1, 9)


def orders(num_items: int, batch_size: int, world_size: int, **settings: Any) -> list[list[list[int]]]:
    """The batches of every rank."""
    settings = {"even": True, "shuffle": True, "drop_last": False, "epoch": 0, "seed": 0, **settings}
    epoch, seed = settings.pop("epoch"), settings.pop("seed")
    found = []
    for rank in range(world_size):
        order = EpochOrder(num_items, batch_size, Shard(rank, world_size, seed), **settings)
        order.set_epoch(epoch)
        found.append(list(order))
        assert len(order) == len(found[-1])
    return found


def flat(ranks: list[list[list[int]]]) -> list[int]:
    return [item for rank in ranks for batch in rank for item in batch]


@given(SIZES, BATCHES, WORLDS)
def test_in_evaluation_every_item_comes_exactly_once_over_all_ranks(num_items: int, batch: int, world: int) -> None:
    ranks = orders(num_items, batch, world, even=False, shuffle=False)
    assert sorted(flat(ranks)) == list(range(num_items))
    for rank in ranks:
        assert flat([rank]) == sorted(flat([rank]))


@given(SIZES, BATCHES, WORLDS, st.booleans(), st.booleans())
def test_in_training_all_ranks_get_the_same_batch_sizes(
    num_items: int, batch: int, world: int, shuffle: bool, drop_last: bool
) -> None:
    ranks = orders(num_items, batch, world, shuffle=shuffle, drop_last=drop_last)
    sizes = {tuple(len(batch) for batch in rank) for rank in ranks}
    assert len(sizes) == 1
    assert all(1 <= size <= batch for size in next(iter(sizes)))


@given(SIZES, BATCHES, WORLDS, st.booleans())
def test_in_training_every_item_comes_and_few_come_twice(num_items: int, batch: int, world: int, shuffle: bool) -> None:
    counts = Counter(flat(orders(num_items, batch, world, shuffle=shuffle)))
    assert set(counts) == set(range(num_items))
    if num_items >= world:
        assert max(counts.values(), default=1) <= 2
        assert sum(count - 1 for count in counts.values()) < world


@given(SIZES, BATCHES, WORLDS)
def test_without_the_rest_no_item_comes_twice_and_all_batches_are_full(num_items: int, batch: int, world: int) -> None:
    ranks = orders(num_items, batch, world, drop_last=True)
    items = flat(ranks)
    assert len(set(items)) == len(items)
    assert {len(batch) for rank in ranks for batch in rank} <= {batch}
    # Nothing is left out that another full batch on every rank could hold.
    assert num_items - len(items) < batch * world


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


def test_all_world_sizes_shuffle_the_same_order() -> None:
    alone, four = flat(orders(12, 3, 1)), orders(12, 3, 4)
    assert [item for items in zip(*(flat([rank]) for rank in four), strict=True) for item in items] == alone


def test_a_batch_size_of_minus_one_is_one_batch_of_everything() -> None:
    assert orders(7, -1, 1, shuffle=False) == [[[0, 1, 2, 3, 4, 5, 6]]]
    assert orders(0, -1, 1) == [[]]


# Loading


class Draws(Dataset[Any]):
    """Items that tell their position and a random draw."""

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, torch.rand(()).item()

    def __len__(self) -> int:
        return 10


def loaded(workers: int, epochs: tuple[int, ...] = (0, 1), seed: int = 0, rank: int = 0) -> list[Batch]:
    order = EpochOrder(10, 3, Shard(rank, 1 + rank, seed), even=True, shuffle=True, drop_last=False)
    loader = DatasetLoader(Draws(), order, ["index", "draw"], {"num_workers": workers})
    return [batch for epoch in epochs for batch in loader.epoch(epoch)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_the_items_of_the_order_with_their_positions(workers: int) -> None:
    order = EpochOrder(10, 3, Shard(), even=True, shuffle=True, drop_last=False)
    batches = loaded(workers)
    for epoch in (0, 1):
        order.set_epoch(epoch)
        for batch, ids in zip(batches[4 * epoch : 4 * epoch + 4], order, strict=True):
            assert batch.ids == ids == batch.values[0].tolist()
            assert batch.amount == len(ids)


def test_the_draws_of_workers_follow_from_the_seed() -> None:
    def draws(seed: int) -> list[float]:
        return [draw for batch in loaded(2, seed=seed) for draw in batch.values[1].tolist()]

    torch.manual_seed(1)
    first = draws(seed=3)
    torch.manual_seed(2)
    assert draws(seed=3) == first
    assert draws(seed=4) != first
    assert len(set(first)) == 20


def test_a_batch_of_an_iterator_counts_its_items() -> None:
    def batches() -> Iterator[Any]:
        yield torch.zeros(4, 2)
        yield (torch.zeros(3),)
        yield ["a", "b"]
        yield torch.tensor(1.0)

    loader = IteratorLoader(batches, ["x"], 4)
    assert [batch.amount for batch in loader.epoch(0)] == [4.0, 3.0, 2.0, 1.0]
    assert len(loader) == 4


def test_one_port_may_hold_a_list() -> None:
    assert as_values(["a", "b"], ["text"]) == (["a", "b"],)
    assert as_values([7], ["x"]) == (7,)
    assert as_values((7,), ["x"]) == (7,)
    assert as_values({"y": 2, "x": 1, "more": 3}, ["x", "y"]) == (1, 2)
