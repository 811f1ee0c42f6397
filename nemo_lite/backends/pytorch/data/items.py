"""From a request to one batch: what a worker process of a data layer does. No order of items, no budget for faults."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from torch.utils.data import Dataset

from nemo_lite.errors import DataError, NemoLiteError

R = TypeVar("R")
ItemT = TypeVar("ItemT")
# By kind, then by what was found: {"resampled": {8000: 3}}. Any: whatever a data layer counts by, a text or a number.
Counts: TypeAlias = "dict[str, Counter[Any]]"


class DataChangedError(DataError):
    """The source of the data is not what it was when the run started: no item of it can be read any more."""


class Request(NamedTuple, Generic[R]):
    """One batch to read.

    Attributes:
        epoch: part of the seed of every random draw.
        items: position in the data layer of each item, and what a worker needs to find it.
        spares: items to try, one after the other, when none of the others can be used.
        training: whether the batch is for training.
    """

    epoch: int
    items: Sequence[tuple[int, R]]
    spares: Sequence[tuple[int, R]] = ()
    training: bool = False


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
