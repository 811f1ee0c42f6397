"""Seeds: every random draw follows from (base, rank, worker, epoch). No order of data in here.

DataLoader takes requests from an `EpochSampler` and sends them to the workers' `SeededDataset`.

torch's DataLoader seeds its workers once, when they start. As they live through all epochs, the draws of an epoch would
depend on the epochs before it, and a resumed run would see others. So each request carries its epoch, and a worker
seeds itself again at the first request of each pass.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

T = TypeVar("T")


def seed_of(base: int, *, rank: int = 0, worker: int | None = None, epoch: int = 0) -> int:
    """The seed of one stream of draws, from 0 to 2**63 - 1; another stream for each combination.

    Args:
        base: of the run, 0 or more.
        rank: which process.
        worker: which of its processes that load data; None for itself.
        epoch: which epoch.
    """
    entropy = [base, rank, epoch, 0 if worker is None else worker + 1]
    words = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    return int(words[0] >> np.uint64(1))


def seed_all(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch in this process, each with a stream of its own."""
    random.seed(seed)
    # Spread first: of the same words NumPy's Mersenne twister would make the very draws of Python's.
    np.random.seed(np.random.SeedSequence(seed).generate_state(4))
    torch.manual_seed(seed)


class EpochRequest(NamedTuple):
    """What a data set is asked for.

    Attributes:
        number: counts the passes over the data in this process.
        epoch: of the pass.
        request: what the data set itself is asked for. Any: each data set has requests of its own.
    """

    number: int
    epoch: int
    request: Any


class SizedRequests(Protocol):
    """The requests of a pass."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


def reseeding(base: int | None, rank: int) -> Callable[[int], None]:
    """A function that seeds torch, NumPy and Python before an epoch, differently on each rank, for dropout.

    Without a base it does nothing.
    """
    if base is None:
        return lambda epoch: None
    return lambda epoch: seed_all(seed_of(base, rank=rank, epoch=epoch))


class EpochSampler:
    """A sampler that gives the requests chosen last, each with its epoch. Each iteration is a new pass."""

    def __init__(self) -> None:
        self.epoch = self._number = 0
        self._requests: SizedRequests = ()

    def choose(self, epoch: int, requests: SizedRequests) -> None:
        """What the next pass asks for."""
        self.epoch, self._requests = epoch, requests

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Any]:
        self._number += 1
        for request in self._requests:
            yield EpochRequest(self._number, self.epoch, request)


class SeededDataset(Dataset[T]):
    """A data set that takes an `EpochRequest`; in a worker process each pass starts from its seed.

    In the process of the run nothing is seeded: its generators are the run's.

    Args:
        dataset: gives what it is asked for.
        base, rank: of the seeds.
    """

    def __init__(self, dataset: Dataset[T], base: int, rank: int) -> None:
        self._dataset, self._base, self._rank = dataset, base, rank
        self._seeded = 0

    def __getitem__(self, request: EpochRequest) -> T:
        worker = get_worker_info()
        if worker is not None and self._seeded != request.number:
            self._seeded = request.number
            seed_all(seed_of(self._base, rank=self._rank, worker=worker.id, epoch=request.epoch))
        return self._dataset[request.request]
