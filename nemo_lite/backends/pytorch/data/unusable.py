"""The account of items that could not be used: one budget and one report for all ranks. Nothing is read here."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

from nemo_lite.backends.pytorch.data.items import Counts, Loaded
from nemo_lite.backends.pytorch.distributed import Comm
from nemo_lite.errors import DataError, counted
from nemo_lite.utils import logging

# What the ranks tell each other: faults by position, and counts by kind.
_Noted: TypeAlias = "tuple[dict[int, str], Mapping[str, Mapping[Any, int]]]"

MAX_LISTED = 5  # how many places an error or a summary names
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


def listed(problems: Sequence[str], total: int) -> str:
    """The first few problems, one a line, and how many more there are."""
    shown = problems[:MAX_LISTED]
    more = [f"... and {total - len(shown)} more"] if total > len(shown) else []
    return "\n".join([*shown, *more])


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

    def state_dict(self) -> dict[str, Any]:
        """The faults that this rank knows, for a checkpoint: the settled ones, the same on all ranks, and new ones."""
        faults = [[item, reason] for item, reason in self.faults.items()]
        return {"settled": faults[: self._num_settled], "new": faults[self._num_settled :]}

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on with this rank's state, or with those of all ranks of a run that had another number of them."""
        parts = [_settled_and_new(state) for state in states]
        found = {item: reason for settled, new in parts for item, reason in [*settled, *new]}
        self.faults = dict(sorted(found.items())) if len(states) > 1 else found
        self._num_settled = len(found) if len(states) > 1 else min(len(settled) for settled, _ in parts)
        self._num_told = len(found)

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
        faults, count = list(self.faults.values()), len(self.faults)
        if count <= self._budget:
            return
        self._num_told = count  # here: a report would list them a second time
        verdict = f"{counted(count, self._noun)} cannot be used and max_corrupt allows {self._budget}"
        if count == 1:
            raise DataError(f"{faults[0]}; {verdict}: {self._remedy}")
        raise DataError(f"{self._name}: {verdict}; {self._remedy}\n{listed(faults, count)}")

    def report(self) -> None:
        """Log what is new since the last report."""
        if len(self.faults) > self._num_told:
            self._num_told = len(self.faults)
            lines = "\n".join(f"  {fault}" for fault in self.faults.values())
            skipped = f"{counted(len(self.faults), self._noun)} skipped so far (max_corrupt {self._budget})"
            logging.warning(f"{self._name}: {skipped}:\n{lines}")
        if self._tell_counts is not None:
            tell_counts, self._tell_counts = self._tell_counts, None
            of_all: Counts = defaultdict(Counter)
            _add(of_all, self._counts)
            _add(of_all, self._unsettled)
            tell_counts(of_all)


def _settled_and_new(state: Mapping[str, Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    if "faults" in state:  # of an older version: all of them, and how many are settled
        return state["faults"][: state["settled"]], state["faults"][state["settled"] :]
    return state["settled"], state["new"]


def _add(counts: Counts, more: Mapping[str, Mapping[Any, int]]) -> None:
    for kind, count in more.items():
        counts[kind].update(count)


def _together(gathered: Sequence[_Noted]) -> _Noted:
    """What all ranks have noted: reasons by position, in order, and counts of each kind."""
    faults = {item: reason for noted, _ in gathered for item, reason in noted.items()}
    counts: Counts = defaultdict(Counter)
    for _, counts_there in gathered:
        _add(counts, counts_there)
    return dict(sorted(faults.items())), {kind: dict(count) for kind, count in counts.items()}
