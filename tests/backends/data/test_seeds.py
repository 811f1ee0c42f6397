"""Every random draw follows from (base, rank, worker, epoch): the seeds, and what workers of a DataLoader draw."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from nemo_lite.backends.pytorch.data import Batch, Batching, DatasetLoader, Shard, plans
from nemo_lite.backends.pytorch.data.seeds import reseeding, seed_all, seed_of


def test_an_epoch_is_seeded_by_its_rank_and_number_or_not_at_all_without_a_base() -> None:
    def drawn(base: int | None, rank: int, epoch: int) -> float:
        seed_all(7)
        reseeding(base, rank)(epoch)
        return random.random()

    assert len({drawn(*place) for place in ((None, 0, 0), (1, 0, 0), (1, 1, 0), (1, 0, 1))}) == 4
    assert drawn(None, 0, 0) == drawn(None, 1, 5)


def test_each_base_rank_worker_and_epoch_has_a_seed_of_its_own() -> None:
    bases = [0, 1, 2, 2**32 - 1, 2**32, 2**32 + 1, 2**64]
    places = list(product(bases, range(4), [None, 0, 1, 2], range(30)))
    seeds = {seed_of(base, rank=rank, worker=worker, epoch=epoch) for base, rank, worker, epoch in places}
    assert len(seeds) == len(places)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(2, rank=1, worker=0, epoch=3) in seeds  # the same in another call


def test_seeding_gives_python_numpy_and_torch_streams_of_their_own() -> None:
    def draws(seed: int) -> tuple[float, float, float]:
        seed_all(seed)
        return random.random(), float(np.random.rand()), torch.rand((), dtype=torch.float64).item()

    one, other = draws(seed_of(1)), draws(seed_of(2))
    assert one == draws(seed_of(1))
    assert len({*one, *other}) == 6


# Workers


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


def by_worker(batches: list[Batch]) -> dict[int, list[list[float]]]:
    """The draws of each worker in its order."""
    rows = torch.cat([batch.values[0] for batch in batches]).tolist()
    return {worker: [row[2:] for row in rows if row[0] == worker] for worker in sorted({row[0] for row in rows})}


def test_what_workers_draw_follows_from_base_rank_worker_and_epoch() -> None:
    loader = loader_of()
    torch.manual_seed(1)
    first, second, again = (by_worker(list(loader.epoch(epoch))) for epoch in (0, 1, 0))
    assert again == first  # the workers lived through all three passes
    torch.manual_seed(2)
    resumed = by_worker(list(loader_of().epoch(1)))
    assert resumed == second
    others = [by_worker(list(loader_of(**place).epoch(0))) for place in ({"seed": 4}, {"rank": 1})]
    streams = [draws for found in (first, second, *others) for draws in found.values()]
    assert len(streams) == 8
    drawn = [number for stream in streams for numbers in stream for number in numbers]
    assert len(set(drawn)) == len(drawn)


def test_a_pass_that_was_left_early_does_not_change_the_next() -> None:
    loader = loader_of()
    whole = by_worker(list(loader.epoch(1)))
    for passes in (0, 1):
        started = loader.epoch(passes)
        next(started)
    assert by_worker(list(loader.epoch(1))) == whole


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


def test_without_workers_draws_come_from_the_runs_own_generators() -> None:
    def drawn(seed: int) -> dict[int, list[list[float]]]:
        seed_all(seed)
        return by_worker(list(loader_of(workers=0).epoch(0)))

    assert drawn(5) == drawn(5) != drawn(6)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_global_generator_is_left_where_the_user_put_it(workers: int) -> None:
    class Plain(Dataset[Any]):
        def __getitem__(self, index: int) -> int:
            return index

    plan_of = plans(3, Batching(1), Shard(), training=True)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    list(DatasetLoader(Plain(), plan_of, ["x"], Shard(), num_workers=workers).epoch(0))
    assert torch.equal(torch.rand(1), expected)


def test_a_data_set_that_fetches_a_batch_at_once_is_asked_for_it() -> None:
    class AtOnce(Dataset[Any]):
        def __getitems__(self, positions: list[int]) -> list[int]:
            return [100 + position for position in positions]

    plan_of = plans(5, Batching(3), Shard(), training=False)
    batches = DatasetLoader(AtOnce(), plan_of, ["x"], Shard()).epoch(0)
    assert [batch.values[0].tolist() for batch in batches] == [[100, 101, 102], [103, 104]]
