"""Loaders: what a data layer gives to the engine, batch after batch: requests in order, and the seeds of their draws.

A request is read item by item; an account keeps the items that could not be used.

Every random draw for a batch follows from (seed, rank, epoch, position). The DataLoader seeds its workers once, when
they start: their draws would depend on the epochs before, on the number of workers and on which of them reads which
batch. So each request carries its epoch and its position. A run that is resumed draws what the uninterrupted one draws.
"""

from __future__ import annotations

import hashlib
import random
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from nemo_lite.backends.pytorch.data.order import Leftover, Plan, Plans, Rows, Shard, Stretch, divided
from nemo_lite.backends.pytorch.data.workers import (
    content_of,
    for_workers,
    pins_memory_for,
    start_work,
    within_silence,
    workers_for,
)
from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.generators import GENERATORS, another_thread_trains
from nemo_lite.backends.pytorch.tensor_codec import Tree
from nemo_lite.base.errors import (
    DataChangedError,
    DataError,
    NemoLiteError,
    NeuralPortNameMismatchError,
    counted,
    listed,
)
from nemo_lite.core.neural_types import Value
from nemo_lite.utils import logging

T = TypeVar("T")
R = TypeVar("R")
ItemT = TypeVar("ItemT")
# By kind, then by what was found: {"resampled": {8000: 3}}. Any: whatever a data layer counts by, a text or a number.
Counts: TypeAlias = "dict[str, Counter[Any]]"


class Request(NamedTuple, Generic[R]):
    """One batch to read.

    Attributes:
        epoch: part of the seed of every random draw.
        items: position in the data layer of each item, and what a worker needs to find it.
        spares: items to try, one after the other, when none of the others can be used.
        training: whether the batch is for training.
        position: of the batch in its epoch: the other part of that seed.
    """

    epoch: int
    items: Sequence[tuple[int, R]]
    spares: Sequence[tuple[int, R]] = ()
    training: bool = False
    position: int = 0


class Loaded(NamedTuple):
    """One batch, and what was noticed on the way. A NamedTuple, of which torch's DataLoader can pin all tensors.

    Attributes:
        values: a tuple in port order, or a dictionary by port. Any: ports carry tensors, lists or numbers.
        ids: positions of its items; none when no item could be used.
        amount: how much it holds, in the data layer's ``amount_unit``.
        faults: positions of the items that could not be used, each with the reason.
        counts: other findings.
        fatal: a reason to end the run, or nothing.
    """

    values: Value = ()
    ids: Sequence[int] = ()
    amount: float = 0.0
    faults: Sequence[tuple[int, str]] = ()
    counts: Mapping[str, Mapping[Any, int]] | None = None
    fatal: str = ""


class ItemDataset(Dataset[Loaded], Generic[R, ItemT]):
    """Reads the items of a request one after the other, and makes a batch of those that can be used.

    It goes to the worker processes, so keep it small. Equal requests must give equal batches, in any process: random
    draws follow from ``request.epoch`` and the item's position.
    """

    @abstractmethod
    def read(self, position: int, ref: R, request: Request[R], counts: Counts) -> ItemT:
        """One item.

        Args:
            position: of the item in the data layer.
            ref: where it is: what the loader's ``refs_of`` gave for the position.
            request: the batch that it is for.
            counts: take findings that are no faults (``counts["resampled"][8000] += 1``).

        Raises:
            DataError: the item cannot be used.
            DataChangedError: no item can be used any more; the run ends. So it does with any other NemoLiteError.
        """

    @abstractmethod
    def collate(self, items: Sequence[ItemT]) -> tuple[object, ...]:
        """A batch of items, in port order."""

    def amount(self, items: Sequence[ItemT]) -> float:
        """How much the items are, in the data layer's ``amount_unit``; by default their number."""
        return float(len(items))

    def __getitem__(self, request: Request[R]) -> Loaded:
        ids, items, faults = list[int](), list[ItemT](), list[tuple[int, str]]()
        counts: Counts = defaultdict(Counter)
        try:
            for number, (position, ref) in enumerate([*request.items, *request.spares]):
                if items and number >= len(request.items):
                    break  # spares are for batches that would be empty
                try:
                    items.append(self.read(position, ref, request, counts))
                    ids.append(position)
                except DataChangedError:
                    raise
                except DataError as error:
                    faults.append((position, str(error)))
        except NemoLiteError as error:
            return Loaded(fatal=str(error))  # as data: raised in a worker it would arrive with a traceback in its text
        values = self.collate(items) if items else ()
        # Plain dictionaries: torch pins a mapping by updating a copy of it, which would double the counts of a Counter.
        plain = {kind: dict(count) for kind, count in counts.items()}
        return Loaded(values, ids, self.amount(items), faults, plain)


# What the ranks tell each other: faults by position, and counts by kind.
_Noted: TypeAlias = "tuple[dict[int, str], Mapping[str, Mapping[Any, int]]]"

# A night's run survives one unusable item in a thousand; a small set ten, but no more than a tenth of it.
_SHARE, _COUNT, _MOST = 0.001, 10, 0.1


def budget_of(max_corrupt: float | None, num_items: int, training: bool) -> int:
    """How many items may turn out unusable before the run ends.

    Args:
        max_corrupt: how many, or below 1 which share. None: in training one in a thousand, or ten where that is more,
            but never over a tenth; in evaluation none.
    """
    if max_corrupt is not None:
        return int(max_corrupt * num_items if max_corrupt < 1 else max_corrupt)
    return int(min(max(_SHARE * num_items, _COUNT), _MOST * num_items)) if training else 0


class UnusableItems:
    """Items that could not be used, against a budget, and counts of other findings: in all epochs of a data layer.

    On several ranks each notes what it read itself, until they settle: then every rank knows what all have noted.

    Args:
        name: of the data, for messages.
        budget: how many items may be unusable, on all ranks together, before the run ends.
        place_of: where an item comes from; it is put before a reason that does not start with it.
        noun: what messages call an item.
        remedy: what the user can do when the budget is used up.
        tell_counts: logs the findings that are no faults, by kind. They are the same in each epoch, so it is called
            once, after the first.

    Attributes:
        faults: why items could not be used, by their positions.
    """

    def __init__(
        self,
        name: str,
        budget: int,
        place_of: Callable[[int], str],
        *,
        noun: str = "item",
        remedy: str = "mend or leave out the items, or raise max_corrupt",
        tell_counts: Callable[[Counts], None] | None = None,
    ) -> None:
        self.faults: dict[int, str] = {}
        self._name, self._budget, self._place_of = name, budget, place_of
        self._noun, self._remedy, self._tell_counts = noun, remedy, tell_counts
        self._num_settled = self._num_told = 0
        # Of each kind: settled, and what this rank has counted since then.
        self._counts: Counts = defaultdict(Counter)
        self._unsettled: Counts = defaultdict(Counter)

    def note(self, loaded: Loaded) -> None:
        """Enter what a batch noticed.

        Raises:
            DataError: the batch ends the run, or more items are unusable than the budget allows (all are listed).
        """
        if loaded.fatal:
            raise DataError(loaded.fatal)
        for item, reason in loaded.faults:
            if item in self.faults:
                continue  # of an earlier epoch, with the rank that found it
            place = self._place_of(item)
            self.faults[item] = reason if reason.startswith(f"{place}:") else f"{place}: {reason}"
        self._check_budget()
        _add(self._unsettled, loaded.counts or {})

    def state_dict(self) -> dict[str, object]:
        """The faults that this rank knows, for a checkpoint: the settled ones, the same on all ranks, and new ones."""
        faults = [[item, reason] for item, reason in self.faults.items()]
        return {"settled": faults[: self._num_settled], "new": faults[self._num_settled :]}

    def load_state_dict(self, states: Sequence[Mapping[str, Tree]]) -> None:
        """Go on with this rank's state, or with those of all ranks of a run that had another number of them."""
        faults = {item: reason for state in states for item, reason in [*state["settled"], *state["new"]]}
        self.faults = dict(sorted(faults.items())) if len(states) > 1 else faults
        self._num_settled = len(faults) if len(states) > 1 else len(states[0]["settled"])
        self._num_told = len(faults)

    def settle(self, comm: Comm) -> None:
        """Bring together what the ranks have noted since they last settled. All ranks call it.

        Each reason gets the rank and the machine where the item was read: machines may have the same paths and other
        disks.

        Raises:
            DataError: more items are unusable on all ranks than the budget allows; the same error on all.
        """
        settled = dict(islice(self.faults.items(), self._num_settled))
        reader = f"{comm.label}: " if comm.label else ""
        new = {item: reader + reason for item, reason in islice(self.faults.items(), self._num_settled, None)}
        gathered = comm.gather((new, {kind: dict(count) for kind, count in self._unsettled.items()}))
        faults, counts = comm.share(_together(gathered or ()))
        _add(self._counts, counts)
        self.faults, self._unsettled = settled | faults, defaultdict(Counter)
        self._num_settled = len(self.faults)
        self._check_budget()

    def _check_budget(self) -> None:
        count = len(self.faults)
        if count <= self._budget:
            return
        faults = list(self.faults.values())
        self._num_told = count  # here: a report would list them a second time
        verdict = f"{counted(count, self._noun)} cannot be used and max_corrupt allows {self._budget}"
        if count == 1:
            raise DataError(f"{faults[0]}; {verdict}: {self._remedy}")
        raise DataError(f"{self._name}: {verdict}; {self._remedy}\n{listed(faults, count)}")

    def report(self) -> None:
        """Log what is new since the last report."""
        count, num_told = len(self.faults), self._num_told
        if count > num_told:
            self._num_told = count
            lines = "\n".join(f"  {fault}" for fault in islice(self.faults.values(), num_told, None))
            skipped = f"{counted(count, self._noun)} skipped so far (max_corrupt {self._budget})"
            if num_told:
                skipped += f", {count - num_told} of them new"
            logging.warning(f"{self._name}: {skipped}:\n{lines}")
        if self._tell_counts is not None:
            tell_counts, self._tell_counts = self._tell_counts, None
            of_all: Counts = defaultdict(Counter)
            _add(of_all, self._counts)
            _add(of_all, self._unsettled)
            tell_counts(of_all)


def _add(counts: Counts, more: Mapping[str, Mapping[object, int]]) -> None:
    for kind, count in more.items():
        counts[kind].update(count)


def _together(gathered: Sequence[_Noted]) -> _Noted:
    """The notes of all ranks: reasons by position, in order, and counts of each kind."""
    faults = {item: reason for noted, _ in gathered for item, reason in noted.items()}
    counts: Counts = defaultdict(Counter)
    for _, counts_there in gathered:
        _add(counts, counts_there)
    return dict(sorted(faults.items())), {kind: dict(count) for kind, count in counts.items()}


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

    values: tuple[Value, ...]
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


class BatchLoader:
    """Gives the batches of an epoch on one rank: a pure function of (data, seed, epoch, rank, world size).

    A subclass gives `epoch`, and of the rest what it can tell.

    Attributes:
        account: the items that could not be used, which checkpoints hold; or None.
    """

    account: UnusableItems | None = None

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches of that epoch."""
        raise NotImplementedError(f"{type(self).__name__} has no epoch")

    @property
    def num_rounds(self) -> int | None:
        """How many rounds (one batch on every rank) an epoch has, the same on all ranks; None: that is not known.

        A rank may have fewer batches: in evaluation, and in training with ``uneven="join"``.
        """
        return None

    def leftover(self, epoch: int) -> Leftover:
        """How many items that do not fill the rounds come twice or not at all; 0 where that is not known."""
        return Leftover()

    def rest_of_epoch(self, epoch: int, done: Sequence[Stretch]) -> Iterator[Batch]:
        """The batches of an epoch after the rounds that are done: here those are read as well, and thrown away."""
        if not done:
            return self.epoch(epoch)
        num_rounds = done[0].num_rounds
        logging.info("The data layer gives batches only in order: reading the %d that are done again", num_rounds)
        return islice(self.epoch(epoch), num_rounds, None)

    def digest(self, epoch: int, done: Sequence[Stretch]) -> str:
        """A hash of which items make which batches in an epoch, on rank 0 in the last of these stretches of rounds.

        Equal hashes: the rounds that were done before a run was resumed took the items that this loader says. "" where
        the loader cannot tell; then it cannot find out what other numbers of ranks have left either.
        """
        return ""

    def settle(self, comm: Comm) -> None:
        """Bring together what the loaders of all ranks noticed while they gave batches; here nothing.

        All ranks call it, once at the end of each epoch of training and of each evaluation. A loader raises the same
        error on all of them, or on none.
        """

    def take_workers(self, earlier: BatchLoader) -> None:
        """Go on with the workers of a loader that is not used any more, where that is possible."""

    def close(self) -> None:
        """End the workers, if there are any. Nothing is asked of the loader afterwards."""


class EpochSampler:
    """A sampler of torch's DataLoader: gives the requests chosen last, once.

    Attributes:
        epoch: of the requests.
        requests: one for each batch of a pass.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.requests: Iterable[Request[object]] = ()

    def __iter__(self) -> Iterator[Request[object]]:
        return iter(self.requests)


class SeededDataset(Dataset[T]):
    """A data set that takes a `Request`; what it draws for one starts from a seed of its own.

    In the process of the run its generators (Python's, NumPy's, torch's on the CPU) are set aside meanwhile, and its
    threads read one after the other. While another thread trains they are that training's, and are not seeded.

    Args:
        dataset: gives what it is asked for.
        base, rank: of the seeds.
    """

    def __init__(self, dataset: Dataset[T], base: int, rank: int) -> None:
        self._dataset, self._base, self._rank = dataset, base, rank
        self._bits: np.random.BitGenerator | None = None

    def __getitem__(self, request: Request[object]) -> T:
        if get_worker_info() is not None:
            self._seed(request)
            return self._dataset[request]
        with GENERATORS:
            return self._dataset[request] if another_thread_trains() else self._read_apart(request)

    def _read_apart(self, request: Request[object]) -> T:
        # About 60 microseconds in all. An exchange of NumPy's generators takes a hundredth of the time that reading and
        # writing the state does; what is lost by it is the second number of a pair that randn() had drawn.
        python, torch_state, bits = random.getstate(), torch.default_generator.get_state(), get_bit_generator()
        self._bits = self._bits or np.random.MT19937(0)
        set_bit_generator(self._bits)
        try:
            self._seed(request)
            return self._dataset[request]
        finally:
            set_bit_generator(bits)
            torch.default_generator.set_state(torch_state)
            random.setstate(python)

    def _seed(self, request: Request[object]) -> None:
        """Seed the generators of Python, NumPy and torch (on the CPU), each with words of its own."""
        place = f"{self._base} {self._rank} {request.epoch} {request.position}"
        digest = hashlib.blake2b(place.encode(), digest_size=32).digest()  # 30 times as fast as a SeedSequence
        random.seed(int.from_bytes(digest[:8], "little"))
        np.random.seed(np.frombuffer(digest, np.uint32, 4, 8))
        torch.default_generator.manual_seed(int.from_bytes(digest[24:], "little") >> 1)


class PlannedLoader(BatchLoader):
    """Batches of one rank, one request a batch. Workers, if any, are torch's and live as long as the loader.

    Args:
        dataset: gives the batch that a request describes, such as an `ItemDataset`; goes to the workers.
        plan_of: the batches of this rank in an epoch.
        port_names: names of the output ports; a dictionary of values is read in this order.
        shard: this rank and the base of the workers' seeds.
        refs_of: what a worker needs in an epoch to find the items at some positions; by default the positions.
        items_of: the positions in the data layer of the items that an epoch's plan numbers; by default these numbers.
            ``refs_of`` gets the numbers.
        training: requests name spare items, and a batch of which no item can be used is an error (other ranks wait at
            the same step). Otherwise such a batch does not come: its number is missing among those of the others.
        account: notes what every batch noticed.
        num_workers: processes that read batches; with 0 they are read when asked for. None: what suits ``device``.
        pin_memory: page-locked tensors, which go to a GPU faster. None: where ``device`` is one.
        device: where the batches go; by default the CPU.
        worker_timeout: seconds to wait for a batch of the workers; 0: for ever. None: 600.
        multiprocessing_context: ``fork``, ``spawn`` or ``forkserver``: how workers start. None: `for_workers` says.
    """

    def __init__(
        self,
        dataset: Dataset[Loaded],
        plan_of: Callable[[int], Plan],
        port_names: Sequence[str],
        shard: Shard,
        *,
        refs_of: Callable[[int, Rows], Sequence[object]] | None = None,
        items_of: Callable[[int], Rows] | None = None,
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
        self._refs_of, self._items_of, self._training, self.account = refs_of, items_of, training, account
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
        return self.num_rounds

    @property
    def num_rounds(self) -> int:
        """How many rounds the epoch has that was read last."""
        return self._plan_of(self._sampler.epoch).num_rounds

    def leftover(self, epoch: int) -> Leftover:
        """How many items that do not fill the rounds of that epoch come twice or not at all."""
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
        self._sampler.epoch = epoch
        self._sampler.requests = self._requests(epoch, plan.batches, start, sum(num_rounds for _, num_rounds in done))
        try:
            for index, loaded in enumerate(within_silence(self._loader, self._worker_timeout), start):
                if self.account is not None:
                    self.account.note(loaded)
                if loaded.ids:
                    values = as_values(loaded.values, self._port_names)
                    number = None if plan.numbers is None else plan.numbers[index]
                    yield Batch(values, loaded.ids, loaded.amount, number)
                elif self._training:
                    problems = [text for _, text in loaded.faults]
                    raise DataError(f"nothing of a batch can be used:\n{listed(problems, len(problems))}")
        except BaseException:
            if self.account is not None:
                self.account.report()  # after an error the ranks do not settle
            raise

    def _requests(self, epoch: int, batches: Sequence[Rows], start: int, num_done: int) -> Iterator[Request[object]]:
        """A request for each batch from batch ``start`` on, made in this process, one by one.

        ``num_done``: batches of the epoch that are done, with this number of ranks or another one.
        """
        for position, index in enumerate(range(start, len(batches)), num_done):
            # From a neighbouring batch, so of similar cost where there is bucketing.
            spares = self._items(epoch, batches[index - 1][:_NUM_SPARES]) if self._training else ()
            yield Request(epoch, self._items(epoch, batches[index]), spares, self._training, position)

    def _items(self, epoch: int, rows: Rows) -> list[tuple[int, object]]:
        positions: list[int] = (rows if self._items_of is None else self._items_of(epoch)[rows]).tolist()
        return list(zip(positions, positions if self._refs_of is None else self._refs_of(epoch, rows), strict=True))

    def take_workers(self, earlier: BatchLoader) -> None:
        """Take the workers of a loader that is not used any more, if they have the data set that this one's need."""
        if isinstance(earlier, PlannedLoader) and self._worker_settings() == earlier._worker_settings() is not None:
            self._loader, self._sampler = earlier._loader, earlier._sampler

    def close(self) -> None:
        """Let go of torch's loader, with which its workers end. The garbage collector may take long, or never come."""
        del self._loader

    def _worker_settings(self) -> tuple[object, ...] | None:
        content = content_of(self._loader.dataset)
        return None if content is None else (content, self._loader.num_workers, self._loader.pin_memory)

    def digest(self, epoch: int, done: Sequence[Stretch]) -> str:
        """See `BatchLoader.digest`."""
        return self._plans.digest(epoch, done) if done and isinstance(self._plans, Plans) else ""

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
        dataset: Dataset[object],
        plan_of: Callable[[int], Plan],
        port_names: Sequence[str],
        shard: Shard,
        collate_fn: Callable[[list[Value]], Value] | None = None,
        **settings: Any,
    ) -> None:
        batches = _Collated(dataset, default_collate if collate_fn is None else collate_fn)
        super().__init__(batches, plan_of, port_names, shard, **settings)


class _Collated(Dataset[Loaded]):
    """A map-style data set, asked for whole batches. What it raises ends the run."""

    def __init__(self, dataset: Dataset[object], collate_fn: Callable[[list[Value]], Value]) -> None:
        self._dataset, self._collate_fn = dataset, collate_fn

    def __getitem__(self, request: Request[int]) -> Loaded:
        positions = [position for position, _ in request.items]
        at_once = getattr(self._dataset, "__getitems__", None)
        items = at_once(positions) if at_once else [self._dataset[position] for position in positions]
        return Loaded(self._collate_fn(items), positions, float(len(positions)))


def _as_it_is(loaded: object) -> object:  # torch's type for it foresees lists of items only
    return loaded


class IteratorLoader(BatchLoader):
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
        batches: Callable[[], Iterable[Value]],
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


def as_values(batch: object, port_names: Sequence[str]) -> tuple[object, ...]:
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
