"""Loaders, batches of items in parts, and the account of unusable items."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset
from toys.ranks import on_ranks

from nemo_lite import DeviceType, NeuralModuleFactory
from nemo_lite.backends.pytorch.data.loaders import (
    Batch,
    Counts,
    DatasetLoader,
    ItemDataset,
    IteratorLoader,
    Loaded,
    PlannedLoader,
    Request,
    UnusableItems,
    as_values,
    budget_of,
    leftover_of,
    length_of,
    listed,
    settle,
)
from nemo_lite.backends.pytorch.data.order import (
    Batching,
    Leftover,
    Plan,
    Plans,
    Shard,
    Stretch,
    cut_into_rounds,
    evened_out,
    sequential_plan,
    sequential_plans,
)
from nemo_lite.backends.pytorch.data.order import plans as plans_by_cost
from nemo_lite.backends.pytorch.distributed.comm import Comm, SingleProcess
from nemo_lite.base.errors import DataError, UsageError

# Batches and the loaders that make them, on one rank and on several.


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
    assert [length_of(loader) for loader in loaders] == [2, 2, 2]


def test_a_loader_counts_the_steps_of_all_ranks_and_tells_what_is_left_over() -> None:
    joining = [loader_of(Shard(rank, 3, uneven="join")) for rank in range(3)]
    assert [loader.num_rounds for loader in joining] == [2, 2, 2]
    assert [len(list(loader.epoch(0))) for loader in joining] == [2, 1, 1]
    assert leftover_of(joining[0], 0) == Leftover()
    assert leftover_of(loader_of(Shard(0, 3)), 4) == Leftover(num_repeated=2)
    assert leftover_of(loader_of(Shard(0, 3, uneven="drop")), 0) == Leftover(num_dropped=1)
    assert leftover_of(loader_of(Shard(0, 2), drop_last=True), 0) == Leftover(num_dropped=4)


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
    settle(loader, SingleProcess())
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
    assert leftover_of(loader, 0) == Leftover()
    assert length_of(loader) is None
    assert [batch.number for batch in loader.epoch(0)] == [None, None, None]


def test_loaders_that_offer_it_settle_what_they_noticed_and_others_need_not() -> None:
    class Noticing(IteratorLoader):
        def settle(self, comm: Comm) -> None:
            settled.append(comm)

    settled: list[Comm] = []
    comm = SingleProcess()
    settle(IteratorLoader(three, ["x"], Shard()), comm)
    settle(Noticing(three, ["x"], Shard()), comm)
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


# Batches of items that lie one behind the other in parts: each rank reads one stretch, in every epoch.


PARTS = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any)
WORLDS = st.integers(1, 5)
SIZES = st.sampled_from([-1, 1, 3, 8])
WINDOWS = st.sampled_from([0, 5, 1000])


def plans(parts, batching, world_size, *, epoch=0, window=0, seed=0, uneven="pad"):
    starts = np.cumsum([0, *parts])
    shards = [Shard(rank, world_size, seed, uneven) for rank in range(world_size)]
    return [sequential_plan(starts, batching, shard, epoch, window) for shard in shards]


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
    assert [batch.tolist() for batch in sequential_plan(starts, batching, Shard(0, 2)).batches] == [[0, 1, 2], [3]]
    assert [batch.tolist() for batch in sequential_plan(starts, batching, Shard(1, 2)).batches] == [[4, 5, 6], [3]]
    assert sequential_plan(starts, batching, Shard(1, 2)).leftover == Leftover(num_repeated=1)
    assert sequential_plan(starts, batching, Shard(1, 2, uneven="drop")).leftover == Leftover(num_dropped=1)
    with pytest.raises(UsageError, match="1 item is left over at the end of an epoch, for 2 ranks"):
        sequential_plan(starts, batching, Shard(0, 2, uneven="error"))


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


# The account of unusable items: its budget, its reports, and one account for all ranks.


def account_of(budget: int, **options: object) -> UnusableItems:
    return UnusableItems("set", budget, lambda item: f"set:{item}", **options)  # type: ignore[arg-type]


def faulty(*items: int, **counts: dict[str, int]) -> Loaded:
    return Loaded(faults=[(item, f"set:{item}: it is bad") for item in items], counts=counts)


@pytest.mark.parametrize(
    ("max_corrupt", "num_items", "training", "budget"),
    [
        *[(3, 100, training, 3) for training in (True, False)],
        (0.25, 40, False, 10),
        (0, 40, True, 0),
        (None, 40, True, 4),
        (None, 1000, True, 10),
        (None, 30_000, True, 30),
        (None, 30_000, False, 0),
    ],
)
def test_the_budget_is_a_number_or_a_share(
    max_corrupt: float | None, num_items: int, training: bool, budget: int
) -> None:
    assert budget_of(max_corrupt, num_items, training) == budget


def test_more_faults_than_the_budget_end_the_run_and_are_listed_once(capsys: pytest.CaptureFixture[str]) -> None:
    account = account_of(1, noun="word", remedy="mend them")
    account.note(faulty(4))
    account.note(faulty(4))  # the same one in another epoch
    with pytest.raises(DataError) as error:
        account.note(faulty(2))
    assert str(error.value) == (
        "set: 2 words cannot be used and max_corrupt allows 1; mend them\nset:4: it is bad\nset:2: it is bad"
    )
    account.report()
    assert capsys.readouterr().err == ""
    with pytest.raises(DataError, match=r"^set:7: it is bad; 1 item cannot be used and max_corrupt allows 0: mend or"):
        account_of(0).note(faulty(7))


def test_a_reason_that_does_not_start_with_its_place_gets_it() -> None:
    account = account_of(2)
    account.note(Loaded(faults=[(1, "it is bad"), (2, "set:2: it is bad")]))
    assert account.faults == {1: "set:1: it is bad", 2: "set:2: it is bad"}


def test_a_reason_to_end_the_run_does_so_whatever_the_budget() -> None:
    with pytest.raises(DataError, match=r"^the set changed$"):
        account_of(9).note(Loaded(fatal="the set changed"))


def test_reports_tell_new_faults_and_tell_the_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[Counts] = []
    account = account_of(9, tell_counts=told.append)
    account.note(faulty(3, read={"a": 1, "b": 2}))
    account.note(faulty(read={"b": 1}))
    account.settle(SingleProcess())
    account.note(faulty(read={"b": 1}))
    account.report()
    assert "set: 1 item skipped so far (max_corrupt 9):\n  set:3: it is bad" in capsys.readouterr().err
    assert told == [{"read": {"a": 1, "b": 4}}]
    account.report()
    assert capsys.readouterr().err == ""
    account.note(faulty(5))
    account.report()
    assert "set: 2 items skipped so far (max_corrupt 9), 1 of them new:\n  set:5: it is bad" in capsys.readouterr().err
    assert len(told) == 1


class CountingReads(dict[int, str]):
    """Faults that count how often all of them are read."""

    num_reads = 0

    def values(self) -> Any:
        self.num_reads += 1
        return super().values()


def test_a_batch_without_faults_costs_the_same_however_many_there_were_before() -> None:
    account = account_of(1000)
    account.faults = faults = CountingReads()
    account.note(faulty(*range(1000)))
    account.note(faulty())
    assert faults.num_reads == 0


def test_a_long_list_is_cut_and_says_how_many_more_there_are() -> None:
    assert listed(list("abc"), 3) == "a\nb\nc"
    assert listed(list("abcdefg"), 9).splitlines() == [*"abcde", "... and 4 more"]


def noted_by_ranks(budget: int) -> dict[int, str]:
    """Each rank notes items of its own and one of all; twice, so that settled ones are not settled again."""
    comm: Comm = NeuralModuleFactory(placement=DeviceType.CPU)._comm
    with comm.guarded():
        account = account_of(budget, tell_counts=lambda counts: print("counted", dict(counts["read"])))
        for _ in range(2):
            account.note(faulty(9, 4 - comm.rank, read={"x": 1 + comm.rank}))
            account.settle(comm)
            account.report()
    comm.close()
    return account.faults


def test_ranks_settle_to_one_account_and_rank_0_tells_it_once() -> None:
    first, second = on_ranks(2, noted_by_ranks, 3)
    assert first.code == second.code == 0, first.err + second.err
    assert list(first.result) == [3, 4, 9]
    assert first.result == second.result
    assert first.out.count("counted {'x': 3}") == first.out.count("counted") == 1
    host = socket.gethostname()
    assert f"\n  rank 1 ({host}): set:3: it is bad\n  rank 0 ({host}): set:4: it is bad\n" in first.err
    assert first.err.count("3 items skipped so far (max_corrupt 3):") == first.err.count("skipped so far") == 1


def test_ranks_together_exceed_a_budget_that_each_alone_keeps_and_fail_alike() -> None:
    ends = on_ranks(2, noted_by_ranks, 2)
    assert [end.code for end in ends] == [2, 2]
    told = [end.err.partition("DataError: ")[2] for end in ends if "DataError: " in end.err]
    assert told[0].startswith("set: 3 items cannot be used and max_corrupt allows 2; mend or leave out")
    assert set(told) == {told[0]}


def test_a_resumed_run_counts_on_from_the_faults_of_before() -> None:
    before = account_of(2)
    before.note(faulty(5, 3))
    resumed = account_of(2)
    resumed.load_state_dict([before.state_dict()])
    resumed.note(faulty(3))
    assert list(resumed.faults) == [5, 3]
    with pytest.raises(DataError, match="max_corrupt allows 2"):
        resumed.note(faulty(7))


def test_a_run_of_other_ranks_counts_on_from_the_faults_of_all() -> None:
    accounts = [account_of(9), account_of(9)]
    for account, item in zip(accounts, (5, 3), strict=True):
        account.note(faulty(item))
    resumed = account_of(9)
    resumed.load_state_dict([account.state_dict() for account in accounts])
    assert (list(resumed.faults), len(resumed.state_dict()["settled"])) == ([3, 5], 2)


def test_a_state_of_an_older_version_gives_the_same_account() -> None:
    account = account_of(9)
    account.note(faulty(5, 3))
    account.settle(SingleProcess())
    account.note(faulty(7))
    state = account.state_dict()
    assert [len(state["settled"]), len(state["new"])] == [2, 1]
    older = {"faults": [*state["settled"], *state["new"]], "settled": 2}
    resumed = account_of(9)
    resumed.load_state_dict([older])
    assert (list(resumed.faults), resumed.state_dict()) == ([3, 5, 7], state)
