"""Items: a request for a batch of them, reading it, and the account of those that could not be used. No order here."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from torch.utils.data import Dataset

from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.tensor_codec import Tree
from nemo_lite.base.errors import DataChangedError, DataError, NemoLiteError, counted, listed
from nemo_lite.core.neural_types import Value
from nemo_lite.utils import logging

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
