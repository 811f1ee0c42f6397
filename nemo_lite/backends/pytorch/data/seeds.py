"""Seeds: every random draw follows from (base, rank, epoch) or, for data, (base, rank, epoch, position). No order here.

DataLoader takes requests from an `EpochSampler` and gives them to a `SeededDataset`, in its workers or in this process.

torch's DataLoader seeds its workers once, when they start: their draws would depend on the epochs before, on the number
of workers and on which of them reads a batch. So each request carries its epoch and its position in it, and all draws
for a request start from a seed made of these. A run that is resumed anywhere draws what the uninterrupted one draws.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from torch.utils.data import Dataset, get_worker_info

T = TypeVar("T")


def seed_of(base: int, *, rank: int = 0, epoch: int = 0) -> int:
    """The seed of one stream of draws, from 0 to 2**63 - 1; another stream for each combination.

    Args:
        base: of the run, 0 or more.
        rank: which process.
        epoch: which epoch.
    """
    words = np.random.SeedSequence([base, rank, epoch, 0]).generate_state(1, np.uint64)
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
        epoch: of the pass.
        position: of the request in its epoch.
        request: what the data set itself is asked for. Any: each data set has requests of its own.
    """

    epoch: int
    position: int
    request: Any


class SizedRequests(Protocol):
    """The requests of a pass."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


class EpochSampler:
    """A sampler that gives the requests chosen last, each with its epoch and position. Each iteration is a new pass."""

    def __init__(self) -> None:
        self.epoch = self._first = 0
        self._requests: SizedRequests = ()

    def choose(self, epoch: int, requests: SizedRequests, first: int = 0) -> None:
        """What the next pass asks for.

        Args:
            epoch: of the pass.
            requests: those of the pass.
            first: position of the first of them in the epoch: more than 0 where others of the epoch are done.
        """
        self.epoch, self._requests, self._first = epoch, requests, first

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Any]:
        for position, request in enumerate(self._requests, self._first):
            yield EpochRequest(self.epoch, position, request)


class SeededDataset(Dataset[T]):
    """A data set that takes an `EpochRequest`; what it draws for one starts from a seed of its own.

    In the process of the run its generators (Python's, NumPy's, torch's on the CPU) are set aside meanwhile.

    Args:
        dataset: gives what it is asked for.
        base, rank: of the seeds.
    """

    def __init__(self, dataset: Dataset[T], base: int, rank: int) -> None:
        self._dataset, self._base, self._rank = dataset, base, rank
        self._bits: np.random.BitGenerator | None = None

    def __getitem__(self, request: EpochRequest) -> T:
        if get_worker_info() is not None:
            self._seed(request)
            return self._dataset[request.request]
        # About 60 microseconds in all. An exchange of NumPy's generators takes a hundredth of the time that reading and
        # writing the state does; what is lost by it is the second number of a pair that randn() had drawn.
        python, torch_state, bits = random.getstate(), torch.default_generator.get_state(), get_bit_generator()
        self._bits = self._bits or np.random.MT19937(0)
        set_bit_generator(self._bits)
        try:
            self._seed(request)
            return self._dataset[request.request]
        finally:
            set_bit_generator(bits)
            torch.default_generator.set_state(torch_state)
            random.setstate(python)

    def _seed(self, request: EpochRequest) -> None:
        """Seed the generators of Python, NumPy and torch (on the CPU), each with words of its own."""
        place = f"{self._base} {self._rank} {request.epoch} {request.position}"
        digest = hashlib.blake2b(place.encode(), digest_size=32).digest()  # 30 times as fast as a SeedSequence
        random.seed(int.from_bytes(digest[:8], "little"))
        np.random.seed(np.frombuffer(digest, np.uint32, 4, 8))
        torch.default_generator.manual_seed(int.from_bytes(digest[24:], "little") >> 1)
