"""Batches: what a data layer gives to the engine, and the loaders that make them. No order of items, no devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Protocol, cast

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from nemo_lite.backends.pytorch.data.items import Loaded, Request
from nemo_lite.backends.pytorch.data.order import Leftover, Plan, Plans, Rows, Shard, Stretch, divided
from nemo_lite.backends.pytorch.data.seeds import EpochSampler, SeededDataset
from nemo_lite.backends.pytorch.data.unusable import UnusableItems, listed
from nemo_lite.backends.pytorch.data.worker_server import content_of, for_workers
from nemo_lite.backends.pytorch.data.workers import pins_memory_for, start_work, within_silence, workers_for
from nemo_lite.backends.pytorch.distributed import Comm
from nemo_lite.errors import DataError, NeuralPortNameMismatchError
from nemo_lite.utils import logging

_NUM_SPARES = 4


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

    It may have more methods:

    - ``__len__()``: how many rounds (one batch on every rank) an epoch has, the same on all ranks. A rank may have
      fewer batches: in evaluation, and in training with ``uneven="join"``. See :func:`length_of`.
    - ``leftover(epoch)``: what becomes of the items that do not fill the rounds, see :func:`leftover_of`.
    - ``settle(comm)``: bring together what each rank noticed on the way, see :func:`settle`.
    - ``rest_of_epoch(epoch, done)``: the batches of an epoch after the rounds that are done, without reading those, see
      :func:`rest_of_epoch`.
    - ``digest(epoch, done)``: a hash of which items make which batches, see :func:`digest_of`.
    - ``take_workers(earlier)``: take the workers of another loader, see :meth:`PlannedLoader.take_workers`.
    - ``account``: the items that could not be used, which checkpoints hold: `UnusableItems`, or None.
    """

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches of that epoch."""


class PlannedLoader:
    """Batches of one rank, one request a batch. Workers, if any, are torch's and live as long as the loader.

    Args:
        dataset: gives the batch that a request describes, such as an `ItemDataset`; goes to the workers.
        plan_of: the batches of this rank in an epoch.
        port_names: names of the output ports; a dictionary of values is read in this order.
        shard: this rank and the base of the workers' seeds.
        refs_of: what a worker needs to find the items at some positions; by default the positions.
        training: requests name spare items, and a batch of which no item can be used is an error (other ranks wait at
            the same step). Otherwise such a batch does not come: its number is missing among those of the others.
        account: notes what every batch noticed.
        num_workers: processes that read batches; with 0 they are read when asked for. None: what suits ``device``.
        pin_memory: page-locked tensors, which go to a GPU faster. None: where ``device`` is one.
        device: where the batches go; by default the CPU.
        worker_timeout: seconds to wait for a batch of the workers; 0: for ever. None: 600.
        multiprocessing_context: ``fork``, ``spawn`` or ``forkserver``: how workers start. None: `worker_server` says.
    """

    def __init__(
        self,
        dataset: Dataset[Loaded],
        plan_of: Callable[[int], Plan],
        port_names: Sequence[str],
        shard: Shard,
        *,
        refs_of: Callable[[Rows], Sequence[Any]] | None = None,
        training: bool = False,
        account: UnusableItems | None = None,
        num_workers: int | None = None,
        pin_memory: bool | None = None,
        device: torch.device | None = None,
        worker_timeout: float | None = None,
        multiprocessing_context: str | None = None,
    ) -> None:
        device = device or torch.device("cpu")
        self._worker_timeout = worker_timeout
        num_workers = workers_for(device, num_workers)
        self._plans, self._shard, self._port_names = plan_of, shard, tuple(port_names)
        self._plan_of = lru_cache(maxsize=1)(plan_of)
        self._refs_of, self._training, self.account = refs_of, training, account
        self._sampler = EpochSampler()
        seeded: Dataset[Loaded] = SeededDataset(dataset, shard.seed, shard.rank)
        if num_workers:
            seeded, multiprocessing_context = for_workers(seeded, multiprocessing_context)
        self._loader: DataLoader[Loaded] = DataLoader(
            seeded,
            batch_size=None,
            sampler=self._sampler,
            collate_fn=_as_it_is,
            num_workers=num_workers,
            multiprocessing_context=multiprocessing_context if num_workers else None,
            persistent_workers=num_workers > 0,
            pin_memory=pins_memory_for(device, pin_memory),
            worker_init_fn=start_work,
            generator=torch.Generator(),  # its own: the global one stays where the user left it
        )

    def __len__(self) -> int:
        return self._plan_of(self._sampler.epoch).num_rounds

    def leftover(self, epoch: int) -> Leftover:
        """What becomes of the items that do not fill the rounds of that epoch."""
        return self._plan_of(epoch).leftover

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches of that epoch. What is drawn for a batch starts from a seed of its position in the epoch.

        Raises:
            DataError: more items are unusable than the account allows, a batch ends the run, or no item of a training
                batch can be used.
            DataWorkerError: the workers gave nothing for too long.
            UsageError: items are left over, and the shard's ``uneven`` is ``error``.
        """
        return self.rest_of_epoch(epoch, ())

    def rest_of_epoch(self, epoch: int, done: Sequence[Stretch]) -> Iterator[Batch]:
        """The batches of that epoch after the rounds that are done, which are not read. See :meth:`epoch`."""
        before, start = divided(done, self._shard.world_size)
        if before:
            assert isinstance(self._plans, Plans), "a loader without a digest cannot plan what other ranks have left"
            plan = self._plans.after(epoch, before)
        else:
            plan = self._plan_of(epoch)
        requests = _Requests(epoch, plan.batches, self._refs_of, self._training, start)
        self._sampler.choose(epoch, requests, sum(num_rounds for _, num_rounds in done))
        try:
            for index, loaded in enumerate(within_silence(self._loader, self._worker_timeout), start):
                if self.account is not None:
                    self.account.note(loaded)
                if loaded.ids:
                    values = as_values(loaded.values, self._port_names)
                    yield Batch(values, loaded.ids, loaded.amount, plan.number(index))
                elif self._training:
                    problems = [text for _, text in loaded.faults]
                    raise DataError(f"nothing of a batch can be used:\n{listed(problems, len(problems))}")
        except BaseException:
            if self.account is not None:
                self.account.report()  # after an error the ranks do not settle
            raise

    def take_workers(self, earlier: BatchLoader) -> None:
        """Take the workers of a loader that is not used any more, if they have the data set that this one's need."""
        if isinstance(earlier, PlannedLoader) and self._worker_settings() == earlier._worker_settings() is not None:
            self._loader, self._sampler = earlier._loader, earlier._sampler

    def _worker_settings(self) -> tuple[object, ...] | None:
        content = content_of(self._loader.dataset)
        return None if content is None else (content, self._loader.num_workers, self._loader.pin_memory)

    def digest(self, epoch: int, done: Sequence[Stretch]) -> str:
        """See :func:`digest_of`."""
        return self._plans.digest(epoch, done) if isinstance(self._plans, Plans) else ""

    def settle(self, comm: Comm) -> None:
        """Bring together what could not be used on any rank, and log it. All ranks call it, at the end of an epoch.

        Raises:
            DataError: on all ranks together it is more than the account allows; the same error on all.
        """
        if self.account is not None:
            self.account.settle(comm)
            self.account.report()


class DatasetLoader(PlannedLoader):
    """Batches of a map-style data set.

    Args:
        dataset: gives an item for a position.
        plan_of, port_names, shard: see `PlannedLoader`.
        collate_fn: makes a batch of a list of items; by default torch's.
        settings: further arguments of `PlannedLoader`.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        plan_of: Callable[[int], Plan],
        port_names: Sequence[str],
        shard: Shard,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **settings: Any,
    ) -> None:
        batches = _Collated(dataset, default_collate if collate_fn is None else collate_fn)
        super().__init__(batches, plan_of, port_names, shard, **settings)


@dataclass(frozen=True)
class _Requests:
    """A request for each batch of an epoch from batch ``start`` on. They are made in this process, one by one."""

    epoch: int
    batches: Sequence[Rows]
    refs_of: Callable[[Rows], Sequence[Any]] | None
    training: bool
    start: int = 0

    def __len__(self) -> int:
        return max(len(self.batches) - self.start, 0)

    def __iter__(self) -> Iterator[Request[Any]]:
        for index in range(self.start, len(self.batches)):
            rows = self.batches[index]
            # From a neighbouring batch, so of similar cost where there is bucketing.
            spares = self._items(self.batches[index - 1][:_NUM_SPARES]) if self.training else ()
            yield Request(self.epoch, self._items(rows), spares, self.training)

    def _items(self, rows: Rows) -> list[tuple[int, Any]]:
        positions: list[int] = rows.tolist()
        return list(zip(positions, positions if self.refs_of is None else self.refs_of(rows), strict=True))


class _Collated(Dataset[Loaded]):
    """A map-style data set, asked for whole batches. What it raises ends the run."""

    def __init__(self, dataset: Dataset[Any], collate_fn: Callable[[list[Any]], Any]) -> None:
        self._dataset, self._collate_fn = dataset, collate_fn

    def __getitem__(self, request: Request[int]) -> Loaded:
        positions = [position for position, _ in request.items]
        at_once = getattr(self._dataset, "__getitems__", None)
        items = at_once(positions) if at_once else [self._dataset[position] for position in positions]
        return Loaded(self._collate_fn(items), positions, float(len(positions)))


def _as_it_is(loaded: Any) -> Any:  # torch's type for it foresees lists of items only
    return loaded


class IteratorLoader:
    """Batches of a data layer that makes them itself (``data_iterator``).

    On several ranks each reads all of them and keeps those whose turn is its own.

    Args:
        batches: gives the batches of an epoch.
        port_names: names of the output ports.
        shard: this rank.
        numbered: for evaluation: batches have their number.
    """

    def __init__(
        self,
        batches: Callable[[], Iterable[Any]],
        port_names: Sequence[str],
        shard: Shard,
        numbered: bool = False,
    ) -> None:
        self._batches, self._port_names = batches, tuple(port_names)
        self._shard, self._numbered = shard, numbered

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches; each must be a tuple in port order or a dictionary by port."""
        rank, world_size = self._shard.rank, self._shard.world_size
        for number, values in enumerate(self._batches()):
            if number % world_size == rank:
                batch = Batch(as_values(values, self._port_names), number=number if self._numbered else None)
                batch.amount = float(batch.num_items)
                yield batch


def length_of(loader: BatchLoader) -> int | None:
    """How many rounds (one batch on every rank) an epoch has, where the loader knows it."""
    try:
        return len(cast(Sized, loader))
    except TypeError:
        return None


def rest_of_epoch(loader: BatchLoader, epoch: int, done: Sequence[Stretch]) -> Iterator[Batch]:
    """The batches of an epoch after the rounds that are done.

    A loader that does not find the place itself is read from the start of the epoch, and what is done thrown away.
    """
    if not done:
        return loader.epoch(epoch)
    offered: Callable[[int, Sequence[Stretch]], Iterator[Batch]] | None = getattr(loader, "rest_of_epoch", None)
    if offered is not None:
        return offered(epoch, done)
    (_, num_rounds), *_ = done
    logging.info("The data layer gives batches only in order: reading the %d that are done again", num_rounds)
    return islice(loader.epoch(epoch), num_rounds, None)


def digest_of(loader: BatchLoader, epoch: int, done: Sequence[Stretch]) -> str:
    """A hash of which items make which batches in an epoch, on rank 0 in the last of these stretches of rounds.

    Equal hashes: the rounds that were done before a run was resumed took the items that this loader says. "" where the
    loader cannot tell; then it cannot find out what other numbers of ranks have left either.
    """
    offered: Callable[[int, Sequence[Stretch]], str] | None = getattr(loader, "digest", None)
    return "" if offered is None or not done else offered(epoch, done)


def take_workers(loader: BatchLoader, earlier: BatchLoader) -> None:
    """Let a loader go on with the workers of one that is not used any more, where it can."""
    offered: Callable[[BatchLoader], None] | None = getattr(loader, "take_workers", None)
    if offered is not None:
        offered(earlier)


def leftover_of(loader: BatchLoader, epoch: int) -> Leftover:
    """What becomes of the items that do not fill the rounds of an epoch; nothing where the loader does not say."""
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


def as_values(batch: object, port_names: Sequence[str]) -> tuple[Any, ...]:
    """A collated batch as a tuple in port order.

    Raises:
        NeuralPortNameMismatchError: it does not hold one value for each output port of the data layer.
    """
    if isinstance(batch, (tuple, list)) and len(batch) == len(port_names):
        return tuple(batch)
    if isinstance(batch, Mapping):
        if not batch.keys() >= set(port_names):
            raise _mismatch("lacks ports", f"values for {', '.join(map(str, batch))}", port_names)
        return tuple(batch[name] for name in port_names)
    # A list is what torch's default collation makes of tuples; for one port it may also be the value itself.
    if isinstance(batch, tuple) or len(port_names) != 1:
        num_values = len(batch) if isinstance(batch, (tuple, list)) else 1
        raise _mismatch("does not hold its ports", f"{num_values} values", port_names)
    return (batch,)


def _mismatch(problem: str, got: str, port_names: Sequence[str]) -> NeuralPortNameMismatchError:
    wanted = f"{len(port_names)} ({', '.join(port_names)})"
    return NeuralPortNameMismatchError(f"a batch of the data layer {problem}", got=got, wanted=wanted)
