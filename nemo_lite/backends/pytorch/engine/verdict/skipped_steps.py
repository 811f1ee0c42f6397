"""SkippedSteps: counts what training leaves out, tells about it on all ranks, and ends a run that leaves out too much.

A step is left out if its loss or gradient is not finite; an item is left out of its step if its own loss is infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from nemo_lite.backends.pytorch.checkpoint.state_check import as_count
from nemo_lite.backends.pytorch.data import Batch
from nemo_lite.backends.pytorch.distributed import Comm
from nemo_lite.backends.pytorch.engine.verdict.item_losses import INFINITE, NAN
from nemo_lite.core.run_options import RunOptions
from nemo_lite.errors import NonFiniteLossError, counted
from nemo_lite.utils import logging

_SHOWN_ITEMS = 20
_SHOWN_OF_A_STEP = 5

# Any: a training state is a tree of tensors, numbers and texts.


class Found(NamedTuple):
    """What a rank found in a step.

    Attributes:
        step: index of the step.
        batches: this rank's, by micro-batch.
        finite_losses: which of their losses are finite.
        statuses: by micro-batch, each item's, see `StepItems`; None where it is not known.
        reason: what an infinite loss of an item means.
    """

    step: int
    batches: Sequence[Batch]
    finite_losses: Sequence[bool]
    statuses: Sequence[Sequence[float] | None]
    reason: str

    def items(self, status: int) -> list[int]:
        """Positions in the data layer of the items with this status."""
        return [item for item, own in self._known() if own == status]

    def _known(self) -> Iterator[tuple[int, float]]:
        for batch, statuses in zip(self.batches, self.statuses, strict=True):
            if statuses is not None and batch.ids is not None:
                yield from zip(batch.ids, statuses, strict=True)

    def suspects(self) -> tuple[list[int], bool]:
        """The items that a step is left out for, and whether exactly these; else they are all of the batches."""
        exact = self.items(NAN) or self.items(INFINITE)
        if exact:
            return exact, True
        bad = [batch for batch, finite in zip(self.batches, self.finite_losses, strict=True) if not finite]
        return [item for batch in bad for item in batch.ids or ()], False


class SkippedSteps:
    """The steps whose loss or gradient is not finite, and the items that others leave out.

    Args:
        comm: the ranks.
        options: when it is too much.
        place_of: where item ``i`` of the data layer comes from, for messages.
        weights_not_finite: the names of the weights that are not finite on this rank.
        scales_loss: under a loss scale, a gradient that is not finite says that the scale is too high. Such a step is
            left out too, but it is no fault of the data or the weights.
    """

    def __init__(
        self,
        comm: Comm,
        options: RunOptions,
        place_of: Callable[[int], str],
        weights_not_finite: Callable[[], Sequence[str]],
        scales_loss: bool = False,
    ) -> None:
        self._comm, self._options, self._place_of, self._scales_loss = comm, options, place_of, scales_loss
        self._weights_not_finite = weights_not_finite
        self._total = self._in_a_row = self._untold = 0
        self._num_left_out = 0
        self._left_out: set[str] = set()

    def state_dict(self) -> dict[str, Any]:
        """The counts, for a training state."""
        counts = {"total": self._total, "in_a_row": self._in_a_row, "num_left_out": self._num_left_out}
        return {"skipped": {**counts, "left_out": sorted(self._left_out)}}

    def load_state_dict(self, state: Mapping[str, Any], place: str = "") -> None:
        """Go on with the counts of :meth:`state_dict`."""
        if (saved := state.get("skipped")) is not None:
            names = ("total", "in_a_row", "num_left_out")
            counts = (as_count(saved[name], f"skipped.{name}", place) for name in names)
            self._total, self._in_a_row, self._num_left_out = counts
            self._left_out = {str(place_of_item) for place_of_item in saved["left_out"]}

    def none(self) -> None:
        """The last step counts."""
        if self._untold:
            logging.warning("%s skipped after it", counted(self._untold, "more step was", "more steps were"))
        self._in_a_row = self._untold = 0

    def left_out(self, found: Found) -> None:
        """Tell about the items that a step which counts leaves out. All ranks call it, if one of them has such."""
        own = [self._place_of(item) for item in found.items(INFINITE)]
        for place in chain.from_iterable(self._comm.gather(own) or ()):
            self._tell_of_item(place, found)

    def add(self, found: Found) -> None:
        """Tell about a step that is left out. All ranks call it.

        Raises:
            NonFiniteLossError: the options say so, at the first such step or after so many in a row; or the weights
                that the step began with are not finite.
        """
        options, by_rank = self._options, self._comm.gather(self._suspects(found))
        problem, is_of_loss = self._comm.share(_problem_of(found.step, by_rank))
        self.check_weights(problem)
        self._in_a_row += 1
        is_overflow = self._scales_loss and not is_of_loss
        if options.stop_on_nan_loss and not is_overflow:
            raise NonFiniteLossError(problem, remedy="the weights are those of the step before")
        if self._in_a_row >= options.max_nonfinite_steps:
            raise NonFiniteLossError(
                f"{problem}; it was step {self._in_a_row} in a row",
                remedy="the weights are those before them; lower the learning rate, or look at the items",
            )
        if is_overflow:
            logging.info("%s; the step is skipped, and the loss scale lowered", problem)
            return
        self._total += 1
        # Of several in a row the first is told; of a run that diverges the error tells the last.
        if self._in_a_row > 1:
            self._untold += 1
            return
        logging.warning("%s; the step is skipped", problem)

    def check_weights(self, problem: str) -> None:
        """See that the weights are finite. All ranks call it.

        Args:
            problem: what the error says first.

        Raises:
            NonFiniteLossError: they are not.
        """
        by_rank = self._comm.gather(list(self._weights_not_finite())) or ()
        names = self._comm.share(list(dict.fromkeys(chain.from_iterable(by_rank))))
        if names:
            got = f"NaN or infinity in {_shortened(names)}"
            remedy = "go on from a checkpoint saved before, with a lower learning rate"
            raise NonFiniteLossError(f"{problem}; the weights are not finite", got=got, remedy=remedy)

    def report(self, num_steps: int) -> None:
        """Say at the end how many of the run's steps were left out, and how many items of the others."""
        if self._num_left_out:
            left_out = "%s an item was left out of its step, because its loss was infinite (%s)"
            items = counted(len(self._left_out), "different item")
            logging.warning(left_out, counted(self._num_left_out, "time"), items)
        if self._total:
            skipped = "%d of %d steps were skipped: their loss or gradient was not finite"
            logging.warning(skipped, self._total, num_steps)

    def _tell_of_item(self, place: str, found: Found) -> None:
        self._num_left_out += 1
        if place in self._left_out:
            return
        self._left_out.add(place)
        if len(self._left_out) > _SHOWN_ITEMS:
            return
        reason = f" ({found.reason})" if found.reason else ""
        last = "; further ones are only counted" if len(self._left_out) == _SHOWN_ITEMS else ""
        logging.warning("%s: its loss is infinite%s; step %d leaves it out%s", place, reason, found.step, last)

    def _suspects(self, found: Found) -> tuple[list[str], bool, bool]:
        """The places of this rank's items whose loss is not finite, whether exactly these; whether a loss is it."""
        items, is_exact = found.suspects()
        return [self._place_of(item) for item in items], is_exact, is_exact or not all(found.finite_losses)


def _problem_of(step: int, by_rank: Sequence[tuple[list[str], bool, bool]] | None) -> tuple[str, bool]:
    """A message about a step that is not finite, and whether a loss is it; ``by_rank``: what each rank suspects."""
    ranks = by_rank or ()
    if not any(is_of_loss for _, _, is_of_loss in ranks):
        return f"the gradient of step {step} is not finite", False
    problem = f"the loss of step {step} is not finite"
    for wanted, head in ((True, ""), (False, "in the batch: ")):
        told = [
            f"{f'rank {rank}: ' if len(ranks) > 1 else ''}{_shortened(places)}"
            for rank, (places, is_exact, _) in enumerate(ranks)
            if places and is_exact == wanted
        ]
        problem += f"; {head}{'; '.join(told)}" if told else ""
    return problem, True


def _shortened(places: Sequence[str]) -> str:
    return f"{', '.join(places[:_SHOWN_OF_A_STEP])}{', ...' if len(places) > _SHOWN_OF_A_STEP else ''}"
