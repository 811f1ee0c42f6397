"""Batches and the loaders that make them, on one rank and on several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from nemo_lite.backends.pytorch.data import (
    Batch,
    DatasetLoader,
    EpochOrder,
    IteratorLoader,
    Leftover,
    Shard,
    as_values,
    leftover_of,
    length_of,
    settle,
)
from nemo_lite.backends.pytorch.distributed import Comm, SingleProcess
from nemo_lite.errors import UsageError


class Positions(Dataset[Any]):
    """Items that are their own position."""

    def __getitem__(self, index: int) -> int:
        assert type(index) is int
        return index

    def __len__(self) -> int:
        return 10


def loader_of(shard: Shard | None = None, batch_size: int = 3, workers: int = 0, **settings: Any) -> DatasetLoader:
    settings = {"even": True, "shuffle": True, "drop_last": False, **settings}
    order = EpochOrder(10, batch_size, shard or Shard(), **settings)
    return DatasetLoader(Positions(), order, ["index"], {"num_workers": workers})


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_the_items_of_the_order_with_their_positions(workers: int) -> None:
    order, loader = EpochOrder(10, 3, Shard(), even=True, shuffle=True, drop_last=False), loader_of(workers=workers)
    for epoch in (0, 1):
        batches = list(loader.epoch(epoch))
        for batch, rows in zip(batches, order.plan(epoch).batches, strict=True):
            assert batch.ids == rows.tolist() == batch.values[0].tolist()
            assert batch.amount == batch.num_items == len(rows)
            assert batch.number is None


def test_in_evaluation_batches_tell_their_place_in_data_order_over_all_ranks() -> None:
    loaders = [loader_of(Shard(rank, 3), 2, even=False) for rank in range(3)]
    batches = [batch for loader in loaders for batch in loader.epoch(0)]
    in_order = sorted(batches, key=lambda batch: -1 if batch.number is None else batch.number)
    assert [batch.number for batch in in_order] == list(range(5))
    assert [item for batch in in_order for item in batch.ids or ()] == list(range(10))
    assert [length_of(loader) for loader in loaders] == [2, 2, 2]


def test_a_loader_counts_the_steps_of_all_ranks_and_tells_what_is_left_over() -> None:
    joining = [loader_of(Shard(rank, 3, uneven="join")) for rank in range(3)]
    assert [len(loader) for loader in joining] == [2, 2, 2]
    assert [len(list(loader.epoch(0))) for loader in joining] == [2, 1, 1]
    assert leftover_of(joining[0], 0) == Leftover()
    assert leftover_of(loader_of(Shard(0, 3)), 4) == Leftover(num_repeated=2)
    assert leftover_of(loader_of(Shard(0, 3, uneven="drop")), 0) == Leftover(num_dropped=1)
    assert leftover_of(loader_of(Shard(0, 2), drop_last=True), 0) == Leftover(num_dropped=4)


def test_items_left_over_end_a_run_that_does_not_allow_them() -> None:
    with pytest.raises(UsageError, match="1 item is left over at the end of an epoch, for 3 ranks; choose"):
        list(loader_of(Shard(0, 3, uneven="error")).epoch(0))


# Iterators


def three() -> Iterator[Any]:
    for number in range(3):
        yield torch.full((2,), float(number))


def test_in_evaluation_the_batches_of_an_iterator_go_to_the_ranks_in_turn() -> None:
    ranks = [list(IteratorLoader(three, ["x"], 3, Shard(rank, 2), numbered=True).epoch(0)) for rank in range(2)]
    assert [[batch.number for batch in rank] for rank in ranks] == [[0, 2], [1]]
    assert [[batch.values[0].tolist() for batch in rank] for rank in ranks] == [[[0, 0], [2, 2]], [[1, 1]]]
    assert len(IteratorLoader(three, ["x"], 3, Shard(1, 2))) == 2


def test_what_is_left_over_is_nothing_where_a_loader_does_not_say() -> None:
    loader = IteratorLoader(three, ["x"], None)
    assert leftover_of(loader, 0) == Leftover()
    assert length_of(loader) is None
    assert [batch.number for batch in loader.epoch(0)] == [None, None, None]


def test_loaders_that_offer_it_settle_what_they_noticed_and_others_need_not() -> None:
    class Noticing(IteratorLoader):
        def settle(self, comm: Comm) -> None:
            settled.append(comm)

    settled: list[Comm] = []
    comm = SingleProcess()
    settle(IteratorLoader(three, ["x"], None), comm)
    settle(Noticing(three, ["x"], None), comm)
    assert settled == [comm]


def test_a_batch_of_an_iterator_counts_its_items() -> None:
    def batches() -> Iterator[Any]:
        yield torch.zeros(4, 2)
        yield (torch.zeros(3),)
        yield ["a", "b"]
        yield torch.tensor(1.0)

    loader = IteratorLoader(batches, ["x"], 4)
    found = list(loader.epoch(0))
    assert [batch.amount for batch in found] == [4.0, 3.0, 2.0, 1.0]
    assert [batch.num_items for batch in found] == [4, 3, 2, 1]
    assert len(loader) == 4


def test_positions_count_the_items_of_a_batch_where_they_are_known() -> None:
    assert Batch((torch.zeros(7),), ids=[4, 5]).num_items == 2
    assert Batch((torch.zeros(7),)).num_items == 7


def test_one_port_may_hold_a_list() -> None:
    assert as_values(["a", "b"], ["text"]) == (["a", "b"],)
    assert as_values([7], ["x"]) == (7,)
    assert as_values((7,), ["x"]) == (7,)
    assert as_values({"y": 2, "x": 1, "more": 3}, ["x", "y"]) == (1, 2)
