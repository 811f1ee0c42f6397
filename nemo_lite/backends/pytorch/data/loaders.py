"""Batches: what a data layer hands to the engine, and the loaders of a map-style data set and of an iterator.

Which items make which batch is decided in ``order.py``, seeds in ``seeds.py``. No devices here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from nemo_lite.backends.pytorch.data.order import EpochOrder, Leftover, Shard
from nemo_lite.backends.pytorch.data.seeds import Asking
from nemo_lite.backends.pytorch.data.seeds import Seeded
from nemo_lite.backends.pytorch.distributed import Comm
from nemo_lite.errors import NeuralPortNameMismatchError


@dataclass(slots=True)
class Batch:
    """One batch.

    Attributes:
        values: one entry for each output port of the data layer, in port order.
        ids: positions of the items in the data layer, where it knows them.
        amount: how much it holds, in the data layer's ``amount_unit`` (items, seconds of audio).
        number: in evaluation, its position in data order among the batches of all ranks. Numbers of a rank ascend; one
            is missing where nothing of the batch could be used.
    """

    values: tuple[Any, ...]
    ids: Sequence[int] | None = None
    amount: float = 0.0
    number: int | None = None

    @property
    def num_items(self) -> int:
        """How many items it holds; where it does not know them, the size of its first value's first axis."""
        if self.ids is not None:
            return len(self.ids)
        value = self.values[0]
        scalar = getattr(value, "ndim", 1) == 0 or not hasattr(value, "__len__")
        return 1 if scalar else len(value)


class BatchLoader(Protocol):
    """Gives the batches of an epoch on one rank: a pure function of (data, seed, epoch, rank, world size).

    It may also say what becomes of the items that do not fill the steps of an epoch: ``leftover(epoch)``, see
    :func:`leftover_of`; and bring together what each rank noticed on the way: ``settle(comm)``, see :func:`settle`.
    """

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches of that epoch."""

    def __len__(self) -> int:
        """How many steps an epoch has: the same on all ranks.

        A rank may have fewer batches: in evaluation, and in training with ``uneven="join"``.
        """


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
        self._plan, self._port_names = lru_cache(maxsize=1)(order.plan), tuple(port_names)
        self._asking = Asking()
        self._loader: DataLoader[Any] = DataLoader(
            Seeded(dataset, order.shard.seed, order.shard.rank),
            batch_sampler=self._asking,
            generator=torch.Generator(),  # its own: the global one stays where the user left it
            persistent_workers=settings.get("num_workers", 0) > 0,
            **settings,
        )

    def __len__(self) -> int:
        return self._plan(self._asking.epoch).num_steps

    def leftover(self, epoch: int) -> Leftover:
        """What becomes of the items that do not fill the steps of that epoch."""
        return self._plan(epoch).leftover

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches of that epoch. The workers live through all epochs; each epoch's draws start from its seed.

        Raises:
            UsageError: items are left over, and the shard's ``uneven`` is ``error``.
        """
        plan = self._plan(epoch)
        self._asking.choose(epoch, plan.batches)
        for index, (rows, values) in enumerate(zip(plan.batches, self._loader, strict=True)):
            yield Batch(as_values(values, self._port_names), rows.tolist(), float(len(rows)), plan.number(index))


class IteratorLoader:
    """Batches of a data layer that makes them itself (``data_iterator``).

    On several ranks each reads all of them and keeps those whose turn is its own.

    Args:
        batches: gives the batches of an epoch.
        port_names: names of the output ports.
        num_batches: how many there are over all ranks, where that is known.
        shard: which part is ours.
        numbered: for evaluation: batches tell their number.
    """

    def __init__(
        self,
        batches: Callable[[], Iterable[Any]],
        port_names: Sequence[str],
        num_batches: int | None,
        shard: Shard | None = None,
        numbered: bool = False,
    ) -> None:
        self._batches, self._port_names, self._num_batches = batches, tuple(port_names), num_batches
        self._shard, self._numbered = shard or Shard(), numbered

    def __len__(self) -> int:
        if self._num_batches is None:
            raise TypeError("the number of batches is not known")
        return -(-self._num_batches // self._shard.world_size)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches; each must be a tuple in port order or a dictionary by port."""
        rank, world_size = self._shard.rank, self._shard.world_size
        for number, values in enumerate(self._batches()):
            if number % world_size == rank:
                batch = Batch(as_values(values, self._port_names), number=number if self._numbered else None)
                batch.amount = float(batch.num_items)
                yield batch


def length_of(loader: BatchLoader) -> int | None:
    """How many steps the epoch has, where the loader knows it."""
    try:
        return len(loader)
    except TypeError:
        return None


def leftover_of(loader: BatchLoader, epoch: int) -> Leftover:
    """What becomes of the items that do not fill the steps of an epoch; nothing where the loader does not say."""
    leftover: Callable[[int], Leftover] | None = getattr(loader, "leftover", None)
    return Leftover() if leftover is None else leftover(epoch)


def settle(loader: BatchLoader, comm: Comm) -> None:
    """Let the loaders of all ranks bring together what each noticed while it gave its batches, where they do so.

    All ranks call it, once at the end of each epoch of training and of each evaluation. A loader raises the same error
    on all of them, or on none.
    """
    offered: Callable[[Comm], None] | None = getattr(loader, "settle", None)
    if offered is not None:
        offered(comm)


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
