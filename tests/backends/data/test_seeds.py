"""Every random draw follows from (base, rank, epoch, position): the seeds, and what data sets draw for a batch."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from nemo_lite.backends.pytorch.data.cost_sampling import Batching, plans
from nemo_lite.backends.pytorch.data.loaders import Batch, DatasetLoader
from nemo_lite.backends.pytorch.data.order import Shard, Stretch, seed_all, seed_of


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
    return DatasetLoader(Draws(), plans(8, Batching(1), shard, training=True), ["item"], shard, num_workers=workers)


def rows_of(batches: Iterable[Batch]) -> list[list[float]]:
    """The item of each batch with what was drawn for it."""
    return [row[1:] for row in torch.cat([batch.values[0] for batch in batches]).tolist()]


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


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_goes_on_behind_some_rounds_reads_and_draws_what_is_left(workers: int) -> None:
    loader = loader_of(workers=workers)
    whole = rows_of(loader.epoch(3))
    for done in (1, 5, 8):
        assert rows_of([*loader.rest_of_epoch(3, [Stretch(1, done)]), EMPTY]) == whole[done:]


def test_a_pass_that_was_left_early_does_not_change_the_next() -> None:
    loader = loader_of()
    whole = rows_of(loader.epoch(1))
    for passes in (0, 1):
        started = loader.epoch(passes)
        next(started)
    assert rows_of(loader.epoch(1)) == whole


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

    plan_of = plans(3, Batching(1), Shard(), training=True)
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

    plan_of = plans(5, Batching(3), Shard(), training=False)
    batches = DatasetLoader(AtOnce(), plan_of, ["x"], Shard()).epoch(0)
    assert [batch.values[0].tolist() for batch in batches] == [[100, 101, 102], [103, 104]]
