"""Order of the items: a pure function of (lengths, seed, epoch, rank, world size). No file is read here."""

from __future__ import annotations

import hashlib
import random
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from torch.utils.data import Dataset, get_worker_info

from nemo_lite.core.run_options import Uneven as Uneven
from nemo_lite.errors import DataChangedError as DataChangedError
from nemo_lite.errors import DataError, NemoLiteError, UnknownNameError, UsageError

# From a request to one batch: what a worker process of a data layer does. No order of items, no budget for faults.


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

    values: Any = ()
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
    def collate(self, items: Sequence[ItemT]) -> tuple[Any, ...]:
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


# Seeds: every random draw follows from (base, rank, epoch) or, for data, (base, rank, epoch, position). No order
# here.
# DataLoader takes requests from an `EpochSampler` and gives them to a `SeededDataset`, in its workers or in this
# process.
# torch's DataLoader seeds its workers once, when they start: their draws would depend on the epochs before, on the
# number of workers and on which of them reads a batch. So each request carries its epoch and its position in it, and
# all draws for a request start from a seed made of these. A run that is resumed anywhere draws what the uninterrupted
# one draws.


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


class EpochSampler:
    """A sampler of torch's DataLoader: gives the requests chosen last, once.

    Attributes:
        epoch: of the requests.
        requests: one for each batch of a pass.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.requests: Iterable[Request[Any]] = ()

    def __iter__(self) -> Iterator[Request[Any]]:
        return iter(self.requests)


class SeededDataset(Dataset[T]):
    """A data set that takes a `Request`; what it draws for one starts from a seed of its own.

    In the process of the run its generators (Python's, NumPy's, torch's on the CPU) are set aside meanwhile.

    Args:
        dataset: gives what it is asked for.
        base, rank: of the seeds.
    """

    def __init__(self, dataset: Dataset[T], base: int, rank: int) -> None:
        self._dataset, self._base, self._rank = dataset, base, rank
        self._bits: np.random.BitGenerator | None = None

    def __getitem__(self, request: Request[Any]) -> T:
        if get_worker_info() is not None:
            self._seed(request)
            return self._dataset[request]
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

    def _seed(self, request: Request[Any]) -> None:
        """Seed the generators of Python, NumPy and torch (on the CPU), each with words of its own."""
        place = f"{self._base} {self._rank} {request.epoch} {request.position}"
        digest = hashlib.blake2b(place.encode(), digest_size=32).digest()  # 30 times as fast as a SeedSequence
        random.seed(int.from_bytes(digest[:8], "little"))
        np.random.seed(np.frombuffer(digest, np.uint32, 4, 8))
        torch.default_generator.manual_seed(int.from_bytes(digest[24:], "little") >> 1)


# How the items of a round are dealt to the ranks, in training and in evaluation. Pure functions, no data in here.
# A *round* is one batch on every rank. In training its items are chosen together and dealt to the ranks in turn, so
# the items that several rounds take together do not depend on how many ranks share them.


Rows: TypeAlias = "npt.NDArray[np.int64]"


@dataclass(frozen=True)
class Shard:
    """Which part of the data this rank gets, the base of every random draw on it, and what happens at uneven ends.

    Attributes:
        rank: this process, from 0.
        world_size: number of ranks.
        seed: base of the draws.
        uneven: what becomes of a training round with fewer items than ranks, see `Uneven`; with ``join`` such rounds
            come last, and the lowest ranks get an item each.

    Raises:
        UnknownNameError: ``uneven`` is none of these.
    """

    rank: int = 0
    world_size: int = 1
    seed: int = 0
    uneven: str = "pad"

    def __post_init__(self) -> None:
        if self.uneven not in get_args(Uneven):
            raise UnknownNameError("uneven", self.uneven, get_args(Uneven))


class Stretch(NamedTuple):
    """Rounds of an epoch that are done, all with one number of ranks.

    Attributes:
        world_size: the number of ranks.
        num_rounds: how many rounds.
    """

    world_size: int
    num_rounds: int


def divided(done: Sequence[Stretch], world_size: int) -> tuple[Sequence[Stretch], int]:
    """The stretches that this number of ranks does not go on with, and the rounds done of the one that it does."""
    if done and done[-1].world_size == world_size:
        return done[:-1], done[-1].num_rounds
    return done, 0


class Leftover(NamedTuple):
    """The items that do not fill the rounds of an epoch, over all ranks.

    Attributes:
        num_repeated: how many come a second time.
        num_dropped: how many do not come.
    """

    num_repeated: int = 0
    num_dropped: int = 0


@dataclass(frozen=True)
class Plan:
    """The batches of one rank in one epoch, by position.

    Attributes:
        batches: positions of the items of each batch.
        num_rounds: batches of the rank that has most; the same on all ranks.
        leftover: what became of the items that do not fill a round.
        numbers: in evaluation, the position of each batch in data order over all ranks; in training nothing.
    """

    batches: Sequence[Rows]
    num_rounds: int
    leftover: Leftover = field(default_factory=Leftover)
    numbers: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def num_steps(self) -> int:
        """The older name of ``num_rounds``."""
        return self.num_rounds

    def number(self, index: int) -> int | None:
        """The number of this rank's batch ``index``, see ``numbers``."""
        return None if self.numbers is None else self.numbers[index]


@dataclass(frozen=True)
class Rounds:
    """The rounds of an epoch of training, for all ranks.

    Attributes:
        items: positions of the items of each round, which go to the ranks in turn.
        world_size: number of ranks.
        leftover: what became of the items that do not fill a round.
    """

    items: Sequence[Rows]
    world_size: int
    leftover: Leftover = field(default_factory=Leftover)

    def of_rank(self, rank: int) -> Plan:
        """The batches of one rank."""
        batches = [items[rank :: self.world_size] for items in self.items if len(items) > rank]
        return Plan(batches, len(self.items), self.leftover)


class Plans:
    """The plans of one rank by epoch, also of what is left of an epoch that began with other numbers of ranks.

    The rounds of the newest epoch are kept: its plan, its rest and its digests need the same ones.

    Args:
        num_items: all items.
        shard: this rank.
        make: the rounds of an epoch for the ranks of a shard and for the items at some positions, which ascend. It
            gives positions among these.
    """

    def __init__(self, num_items: int, shard: Shard, make: Callable[[int, Shard, Rows], Rounds]) -> None:
        self._num_items, self._shard, self._make = num_items, shard, make
        self._epoch: int | None = None
        self._kept: dict[tuple[tuple[Stretch, ...], int], Rounds] = {}
        self._digests: dict[tuple[tuple[Stretch, ...], int], str] = {}

    def __call__(self, epoch: int) -> Plan:
        return self.after(epoch, ())

    def after(self, epoch: int, done: Sequence[Stretch]) -> Plan:
        """The batches of this rank for the items that some rounds of the epoch have not taken.

        Args:
            epoch: which epoch.
            done: the rounds, in order. Each stretch was planned for the items that those before it had left.
        """
        return self._rounds(epoch, tuple(done), self._shard.world_size).of_rank(self._shard.rank)

    def digest(self, epoch: int, done: Sequence[Stretch]) -> str:
        """A hash of the plan that the last of these stretches follows on rank 0: of items, order and batches."""
        *before, (world_size, _) = done
        plan = self._rounds(epoch, tuple(before), world_size).of_rank(0)
        if (key := (tuple(before), world_size)) not in self._digests:
            lengths = np.array([len(plan), *map(len, plan.batches)], np.int64)
            self._digests[key] = hashlib.sha256(np.concatenate([lengths, *plan.batches]).tobytes()).hexdigest()[:16]
        return self._digests[key]

    def _rounds(self, epoch: int, done: tuple[Stretch, ...], world_size: int) -> Rounds:
        """The rounds that this number of ranks makes of the items that some rounds of the epoch have not taken."""
        if epoch != self._epoch:
            self._epoch, self._kept, self._digests = epoch, {}, {}
        if (key := (done, world_size)) not in self._kept:
            left = self._left(epoch, done)
            rounds = self._make(epoch, replace(self._shard, world_size=world_size), left)
            if len(left) < self._num_items:
                rounds = replace(rounds, items=[left[rows] for rows in rounds.items])
            self._kept[key] = rounds
        return self._kept[key]

    def _left(self, epoch: int, done: tuple[Stretch, ...]) -> Rows:
        if not done:
            return np.arange(self._num_items)
        *before, (world_size, num_rounds) = done
        left = self._left(epoch, tuple(before))
        taken = self._rounds(epoch, tuple(before), world_size).items[:num_rounds]
        return np.setdiff1d(left, np.concatenate([left[:0], *taken]))


def evaluation_plan(num_items: int, batch_size: int, shard: Shard) -> Plan:
    """The batches of one rank in evaluation: over the ranks every item once, nothing repeated or left out.

    Batches are blocks of the data, numbered in data order; number ``b`` is batch ``b // world_size`` of rank
    ``b % world_size``, so that one batch of each rank, in order of the ranks, is a stretch of the data. On several
    ranks they are as equal as blocks can be: few items do not all go to rank 0.

    Args:
        batch_size: most items of a batch; below 1, a rank's items are one batch.
    """
    rank, world_size = shard.rank, shard.world_size
    if world_size == 1:
        size = batch_size if batch_size > 0 else num_items
    else:
        num_rounds = -(-num_items // (batch_size * world_size)) if batch_size > 0 else 1
        size = -(-num_items // (max(num_rounds, 1) * world_size))
    size = max(size, 1)
    num_blocks = -(-num_items // size)
    numbers, rows = range(rank, num_blocks, world_size), np.arange(num_items)
    blocks = [rows[number * size : (number + 1) * size] for number in numbers]
    return Plan(blocks, -(-num_blocks // world_size), numbers=numbers)


def items_of_a_round(num_items: int, batch_size: int, world_size: int, drop_last: bool) -> int:
    """Items of a full training round, on all ranks together.

    With a batch size below 1 a round is the whole set; with ``drop_last`` the part of it that ranks share equally.
    """
    if batch_size < 1:
        per_rank = num_items // world_size if drop_last else -(-num_items // world_size)
        batch_size = max(per_rank, 1)
    return batch_size * world_size


def cut_into_rounds(order: Rows, round_items: int) -> Iterator[Rows]:
    """An order cut into rounds, the last one smaller where it does not come out even."""
    for start in range(0, len(order), round_items):
        yield order[start : start + round_items]


def evened_out(rounds: Iterable[Rows], shard: Shard, num_dropped: int = 0) -> Rounds:
    """Training rounds with an item for every rank, or those that ``shard.uneven`` allows.

    Args:
        rounds: positions of the items of each round, none of them empty.
        shard: the number of ranks, and what becomes of rounds with fewer items than ranks.
        num_dropped: items that were left out before.

    Raises:
        UsageError: there are such rounds, and ``uneven`` is ``error``.
    """
    rounds, world_size = list(rounds), shard.world_size
    short = [items for items in rounds if len(items) < world_size]
    num_repeated = 0
    if short and shard.uneven == "error":
        raise _left_over(sum(map(len, short)), world_size)
    if short and shard.uneven == "pad":
        rounds = [items if len(items) >= world_size else np.resize(items, world_size) for items in rounds]
        num_repeated = sum(world_size - len(items) for items in short)
    elif short:
        rounds = [items for items in rounds if len(items) >= world_size]
        if shard.uneven == "join":
            # Longest first: a rank that has nothing in one of them has nothing in those behind it.
            rounds += sorted(short, key=len, reverse=True)
        else:
            num_dropped += sum(map(len, short))
    return Rounds(rounds, world_size, Leftover(num_repeated, num_dropped))


def _left_over(num_items: int, world_size: int) -> UsageError:
    items = "1 item is" if num_items == 1 else f"{num_items} items are"
    return UsageError(
        f"{items} left over at the end of an epoch, for {world_size} ranks",
        place="uneven=error",
        remedy="choose uneven=pad, drop or join, another batch_size, or drop_last",
    )
