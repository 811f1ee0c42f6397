"""Batches and the loaders that make them, on one rank and on several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from nemo_lite.backends.pytorch.data.loaders import (
    Batch,
    Counts,
    DatasetLoader,
    ItemDataset,
    IteratorLoader,
    PlannedLoader,
    Request,
    UnusableItems,
    as_values,
)
from nemo_lite.backends.pytorch.data.order import Batching, Leftover, Plan, Shard
from nemo_lite.backends.pytorch.data.order import plans as plans_by_cost
from nemo_lite.backends.pytorch.distributed.comm import Comm, SingleProcess
from nemo_lite.base.errors import DataError, UsageError


class Positions(Dataset[Any]):
    """Items that are their own position."""

    def __getitem__(self, index: int) -> int:
        assert type(index) is int
        return index

    def __len__(self) -> int:
        return 10


def loader_of(shard: Shard | None = None, batch_size: int = 3, workers: int = 0, **settings: Any) -> DatasetLoader:
    plan_of = plans_of(shard or Shard(), batch_size, **settings)
    return DatasetLoader(Positions(), plan_of, ["index"], shard or Shard(), num_workers=workers)


def plans_of(shard: Shard, batch_size: int, training: bool = True, **batching: Any) -> Callable[[int], Plan]:
    return plans_by_cost(10, Batching(batch_size, **batching), shard, training=training)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_the_items_of_the_order_with_their_positions(workers: int) -> None:
    plan_of, loader = plans_of(Shard(), 3), loader_of(workers=workers)
    for epoch in (0, 1):
        batches = list(loader.epoch(epoch))
        for batch, rows in zip(batches, plan_of(epoch).batches, strict=True):
            assert batch.ids == rows.tolist() == batch.values[0].tolist()
            assert batch.amount == batch.num_items == len(rows)
            assert batch.number is None


def test_in_evaluation_batches_tell_their_place_in_data_order_over_all_ranks() -> None:
    loaders = [loader_of(Shard(rank, 3), 2, training=False) for rank in range(3)]
    batches = [batch for loader in loaders for batch in loader.epoch(0)]
    in_order = sorted(batches, key=lambda batch: -1 if batch.number is None else batch.number)
    assert [batch.number for batch in in_order] == list(range(5))
    assert [item for batch in in_order for item in batch.ids or ()] == list(range(10))
    assert [loader.num_rounds for loader in loaders] == [2, 2, 2]


def test_a_loader_counts_the_steps_of_all_ranks_and_tells_what_is_left_over() -> None:
    joining = [loader_of(Shard(rank, 3, uneven="join")) for rank in range(3)]
    assert [loader.num_rounds for loader in joining] == [2, 2, 2]
    assert [len(list(loader.epoch(0))) for loader in joining] == [2, 1, 1]
    assert joining[0].leftover(0) == Leftover()
    assert loader_of(Shard(0, 3)).leftover(4) == Leftover(num_repeated=2)
    assert loader_of(Shard(0, 3, uneven="drop")).leftover(0) == Leftover(num_dropped=1)
    assert loader_of(Shard(0, 2), drop_last=True).leftover(0) == Leftover(num_dropped=4)


def test_items_left_over_end_a_run_that_does_not_allow_them() -> None:
    with pytest.raises(UsageError, match="1 item is left over at the end of an epoch, for 3 ranks; choose"):
        list(loader_of(Shard(0, 3, uneven="error")).epoch(0))


# Items that cannot be used


class Numbers(ItemDataset[str, int]):
    """Items 100, 101, ... that are found by their numbers as texts; those in ``bad`` cannot be read."""

    def __init__(self, *bad: int) -> None:
        self.bad = bad

    def read(self, position: int, ref: str, request: Request[str], counts: Counts) -> int:
        if position in self.bad:
            raise DataError("it is bad")
        return int(ref)

    def collate(self, items: Sequence[int]) -> tuple[Any, ...]:
        return (torch.tensor(items),)


def lenient_loader(*bad: int, training: bool, budget: int = 9, workers: int = 0) -> PlannedLoader:
    plan_of = plans_by_cost(6, Batching(2, shuffle=False), Shard(), training=training)
    return PlannedLoader(
        Numbers(*bad),
        plan_of,
        ["number"],
        Shard(),
        refs_of=lambda epoch, rows: [str(100 + row) for row in rows.tolist()],
        training=training,
        account=UnusableItems("set", budget, lambda item: f"set:{item}"),
        num_workers=workers,
    )


def numbers_of(loader: PlannedLoader) -> list[list[int]]:
    return [batch.values[0].tolist() for batch in loader.epoch(0)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_what_cannot_be_used_is_left_out_of_its_batch(workers: int) -> None:
    loader = lenient_loader(1, training=False, workers=workers)
    assert numbers_of(loader) == [[100], [102, 103], [104, 105]]
    assert [batch.ids for batch in loader.epoch(0)] == [[0], [2, 3], [4, 5]]


def test_in_evaluation_a_batch_of_which_nothing_can_be_used_does_not_come() -> None:
    batches = list(lenient_loader(2, 3, training=False).epoch(0))
    assert [(batch.number, batch.ids) for batch in batches] == [(0, [0, 1]), (2, [4, 5])]


def test_in_training_an_item_of_a_neighbouring_batch_stands_in_for_an_empty_one() -> None:
    assert numbers_of(lenient_loader(2, 3, training=True)) == [[100, 101], [100], [104, 105]]
    assert numbers_of(lenient_loader(0, 1, 4, training=True)) == [[105], [102, 103], [105]]


def test_in_training_nothing_usable_around_a_batch_ends_the_run() -> None:
    with pytest.raises(DataError, match=r"^nothing of a batch can be used:\nit is bad"):
        numbers_of(lenient_loader(*range(6), training=True))


def test_settling_reports_what_was_left_out_and_an_error_does_so_too(capsys: pytest.CaptureFixture[str]) -> None:
    loader = lenient_loader(1, training=False)
    numbers_of(loader)
    assert capsys.readouterr().err == ""
    loader.settle(SingleProcess())
    assert "set: 1 item skipped so far (max_corrupt 9):\n  set:1: it is bad" in capsys.readouterr().err
    loader = lenient_loader(1, training=False)
    with pytest.raises(RuntimeError, match="the step failed"):
        fail_within(loader.epoch(0))
    assert "1 item skipped so far" in capsys.readouterr().err


def fail_within(batches: Any) -> None:
    next(batches)
    batches.throw(RuntimeError("the step failed"))


def test_more_than_the_account_allows_ends_the_run() -> None:
    with pytest.raises(DataError, match="set: 2 items cannot be used and max_corrupt allows 1"):
        numbers_of(lenient_loader(1, 4, training=False, budget=1))


# Iterators


def three() -> Iterator[Any]:
    for number in range(3):
        yield torch.full((2,), float(number))


def test_in_evaluation_the_batches_of_an_iterator_go_to_the_ranks_in_turn() -> None:
    ranks = [list(IteratorLoader(three, ["x"], Shard(rank, 2), numbered=True).epoch(0)) for rank in range(2)]
    assert [[batch.number for batch in rank] for rank in ranks] == [[0, 2], [1]]
    assert [[batch.values[0].tolist() for batch in rank] for rank in ranks] == [[[0, 0], [2, 2]], [[1, 1]]]


def test_what_is_left_over_is_nothing_where_a_loader_does_not_say() -> None:
    loader = IteratorLoader(three, ["x"], Shard())
    assert loader.leftover(0) == Leftover()
    assert loader.num_rounds is None
    assert [batch.number for batch in loader.epoch(0)] == [None, None, None]


def test_loaders_that_offer_it_settle_what_they_noticed_and_others_need_not() -> None:
    class Noticing(IteratorLoader):
        def settle(self, comm: Comm) -> None:
            settled.append(comm)

    settled: list[Comm] = []
    comm = SingleProcess()
    IteratorLoader(three, ["x"], Shard()).settle(comm)
    Noticing(three, ["x"], Shard()).settle(comm)
    assert settled == [comm]


def test_a_batch_of_an_iterator_counts_its_items() -> None:
    def batches() -> Iterator[Any]:
        yield torch.zeros(4, 2)
        yield (torch.zeros(3),)
        yield ["a", "b"]
        yield torch.tensor(1.0)

    loader = IteratorLoader(batches, ["x"], Shard())
    found = list(loader.epoch(0))
    assert [batch.amount for batch in found] == [4.0, 3.0, 2.0, 1.0]
    assert [batch.num_items for batch in found] == [4, 3, 2, 1]


def test_positions_count_the_items_of_a_batch_where_they_are_known() -> None:
    assert Batch((torch.zeros(7),), ids=[4, 5]).num_items == 2
    assert Batch((torch.zeros(7),)).num_items == 7


def test_one_port_may_hold_a_list() -> None:
    assert as_values(["a", "b"], ["text"]) == (["a", "b"],)
    assert as_values([7], ["x"]) == (7,)
    assert as_values((7,), ["x"]) == (7,)
    assert as_values({"y": 2, "x": 1, "more": 3}, ["x", "y"]) == (1, 2)
