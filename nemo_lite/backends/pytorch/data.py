"""Batches: what a data layer hands to the engine, and the loader that serves a map-style data set. No devices here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from nemo_lite.errors import NeuralPortNameMismatchError


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
    """The order of one rank's items, a list of positions for each batch. Reads no data.

    The items are dealt to the ranks in turn. In training the ranks must make the same number of steps: they get equally
    many.

    Args:
        num_items: items of the data set.
        batch_size: items of a batch; with -1 a rank's items are one batch.
        shard: which part is ours.
        even: give every rank equally many items: the few that are missing are repeated from the front of the order (or,
            with ``drop_last``, the few that are too many left out). Without it every item comes exactly once.
        shuffle: draw another order for each epoch, from the seed.
        drop_last: leave out the last batch where it is smaller than the others.
    """

    def __init__(
        self, num_items: int, batch_size: int, shard: Shard, *, even: bool, shuffle: bool, drop_last: bool
    ) -> None:
        self.num_items, self.even = num_items, even
        self.batch_size = batch_size if batch_size > 0 else max(num_items, 1)
        self.shard, self.shuffle, self.drop_last = shard, shuffle, drop_last
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order ``iter`` gives."""
        self._epoch = epoch

    def _num_mine(self) -> int:
        rank, world_size = self.shard.rank, self.shard.world_size
        if not self.even:
            return len(range(rank, self.num_items, world_size))
        return self.num_items // world_size if self.drop_last else -(-self.num_items // world_size)

    def __len__(self) -> int:
        mine = self._num_mine()
        return mine // self.batch_size if self.drop_last else -(-mine // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = np.arange(self.num_items)
        if self.shuffle:
            order = np.random.default_rng([self.shard.seed, self._epoch]).permutation(order)
        if self.even:
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
        """The batches of that epoch. The workers live through all epochs; their random state starts from the seed."""
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
        for batch in self._batches():
            values = as_values(batch, self._port_names)
            yield Batch(values, None, float(_num_items(values[0])))


def length_of(loader: BatchLoader) -> int | None:
    """How many batches the epoch has on this rank, where the loader knows it."""
    try:
        return len(loader)
    except TypeError:
        return None


def as_values(batch: Any, port_names: Sequence[str]) -> tuple[Any, ...]:
    """A collated batch as a tuple in port order.

    Raises:
        NeuralPortNameMismatchError: it does not hold one value for each output port of the data layer.
    """
    wanted = f"{len(port_names)} ({', '.join(port_names)})"
    if isinstance(batch, Mapping):
        if not batch.keys() >= set(port_names):
            got = f"values for {', '.join(map(str, batch))}"
            raise NeuralPortNameMismatchError("a batch of the data layer lacks ports", got=got, wanted=wanted)
        return tuple(batch[name] for name in port_names)
    # A list is what torch's default collation makes of tuples; for one port it may also be the value itself.
    several = isinstance(batch, (tuple, list)) and (len(port_names) > 1 or isinstance(batch, tuple) or len(batch) == 1)
    values = tuple(batch) if several else (batch,)
    if len(values) != len(port_names):
        problem = "a batch of the data layer does not hold its ports"
        raise NeuralPortNameMismatchError(problem, got=f"{len(values)} values", wanted=wanted)
    return values


def _num_items(value: Any) -> int:
    scalar = getattr(value, "ndim", 1) == 0 or not hasattr(value, "__len__")
    return 1 if scalar else len(value)
