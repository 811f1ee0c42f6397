"""Batches: what a data layer hands to the engine, and the loader that serves any map-style data set. No devices here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


@dataclass(frozen=True)
class Shard:
    """Which part of the data is ours, and the base of every random draw on it."""

    rank: int = 0
    world_size: int = 1
    seed: int = 0


@dataclass(slots=True)
class Batch:
    """One batch.

    Attributes:
        values: one entry for each output port of the data layer, in port order.
        ids: positions of the items in the data layer, where it knows them.
        amount: how much it holds, in the data layer's ``amount_unit`` (items, seconds of audio).
    """

    values: tuple[Any, ...]
    ids: Sequence[int] | None = None
    amount: float = 0.0


class BatchLoader(Protocol):
    """Gives the batches of an epoch on one rank: a pure function of (data, seed, epoch, rank, world size)."""

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches of that epoch."""

    def __len__(self) -> int:
        """How many batches an epoch has on this rank."""


class EpochOrder:
    """The order of one rank's items, a list of positions for each batch; ``set_epoch`` chooses the epoch. Reads no data.

    Without ``shuffle`` every item comes exactly once, dealt to the ranks in turn. With it, the ranks get equally many items:
    the few that are missing are repeated from the front of the shuffled order (or left out with ``drop_last``).
    """

    def __init__(self, num_items: int, batch_size: int, shard: Shard, *, shuffle: bool, drop_last: bool) -> None:
        self.num_items = num_items
        self.batch_size = batch_size if batch_size > 0 else max(num_items, 1)
        self.shard, self.shuffle, self.drop_last = shard, shuffle, drop_last
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order ``iter`` gives."""
        self._epoch = epoch

    def _num_mine(self) -> int:
        rank, world_size = self.shard.rank, self.shard.world_size
        if not self.shuffle:
            return len(range(rank, self.num_items, world_size))
        return self.num_items // world_size if self.drop_last else -(-self.num_items // world_size)

    def __len__(self) -> int:
        mine = self._num_mine()
        return mine // self.batch_size if self.drop_last else -(-mine // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = np.arange(self.num_items)
        if self.shuffle:
            order = np.random.default_rng([self.shard.seed, self._epoch]).permutation(order)
            order = np.resize(order, self._num_mine() * self.shard.world_size)
        mine = order[self.shard.rank :: self.shard.world_size].tolist()
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            yield mine[start : start + self.batch_size]


class DatasetLoader:
    """Batches of a map-style data set through torch's DataLoader.

    Args:
        dataset: gives an item for a position.
        order: which positions make which batch.
        port_names: names of the output ports; a collated dictionary is read in this order.
        settings: further arguments of :class:`torch.utils.data.DataLoader` (num_workers, pin_memory, collate_fn).
    """

    def __init__(
        self, dataset: Dataset[Any], order: EpochOrder, port_names: Sequence[str], settings: Mapping[str, Any]
    ) -> None:
        self._order, self._port_names = order, tuple(port_names)
        self._generator = torch.Generator()
        workers = settings.get("num_workers", 0)
        self._loader: DataLoader[Any] = DataLoader(
            dataset, batch_sampler=order, generator=self._generator, persistent_workers=workers > 0, **settings
        )

    def __len__(self) -> int:
        return len(self._order)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches of that epoch; the workers' random draws follow from the seed, the rank and the epoch."""
        self._order.set_epoch(epoch)
        shard = self._order.shard
        self._generator.manual_seed(int(np.random.default_rng([shard.seed, epoch, shard.rank]).integers(2**63)))
        for ids, values in zip(self._order, self._loader, strict=True):
            yield Batch(as_values(values, self._port_names), ids, float(len(ids)))


class IteratorLoader:
    """Batches of a data layer that makes them itself (``data_iterator``)."""

    def __init__(
        self, batches: Callable[[], Iterable[Any]], port_names: Sequence[str], num_batches: int | None
    ) -> None:
        self._batches, self._port_names, self._num_batches = batches, tuple(port_names), num_batches

    def __len__(self) -> int:
        if self._num_batches is None:
            raise TypeError("the number of batches is not known")
        return self._num_batches

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches; each must be a tuple in port order or a dictionary by port."""
        for values in self._batches():
            yield Batch(as_values(values, self._port_names), None, float(_num_items(values)))


def as_values(values: Any, port_names: Sequence[str]) -> tuple[Any, ...]:
    """A collated batch as a tuple in port order."""
    if isinstance(values, Mapping):
        return tuple(values[name] for name in port_names)
    return tuple(values) if isinstance(values, (list, tuple)) else (values,)


def _num_items(values: Any) -> int:
    first = as_values(values, ())[0] if not isinstance(values, Mapping) else next(iter(values.values()))
    return len(first) if hasattr(first, "__len__") else 1
