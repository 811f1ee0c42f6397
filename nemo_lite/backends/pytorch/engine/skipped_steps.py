"""SkippedSteps: counts the steps that are left out, tells about them on all ranks, and ends a run with too many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from nemo_lite.backends.pytorch.data import Batch
from nemo_lite.backends.pytorch.distributed import Comm
from nemo_lite.core.run_options import RunOptions
from nemo_lite.errors import NonFiniteLossError
from nemo_lite.utils import logging


class Found(NamedTuple):
    """What a rank found in a step that is left out.

    Attributes:
        step: index of the step.
        batches: this rank's, by micro-batch.
        finite_losses: which of their losses are finite.
    """

    step: int
    batches: Sequence[Batch]
    finite_losses: Sequence[bool]


class SkippedSteps:
    """The steps whose loss or gradient is not finite.

    Args:
        comm: the ranks.
        options: when it is too much.
        place_of: where item ``i`` of the data layer comes from, for messages.
        scales_loss: under a loss scale, a gradient that is not finite says that the scale is too high. Such a step is
            left out too, but it is no fault of the data or the weights.
    """

    def __init__(
        self, comm: Comm, options: RunOptions, place_of: Callable[[int], str], scales_loss: bool = False
    ) -> None:
        self._comm, self._options, self._place_of, self._scales_loss = comm, options, place_of, scales_loss
        self._total = self._in_a_row = 0

    def none(self) -> None:
        """The last step counts."""
        self._in_a_row = 0

    def add(self, found: Found) -> None:
        """Tell about a step that is left out. All ranks call it.

        Raises:
            NonFiniteLossError: the options say so, at the first such step or after so many in a row.
        """
        options, by_rank = self._options, self._comm.gather(self._suspects(found))
        problem, is_of_loss = self._comm.share(_problem_of(found.step, by_rank))
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
        logging.warning("%s; the step is skipped", problem)

    def report(self, num_steps: int) -> None:
        """Say at the end how many of the run's steps were left out."""
        if self._total:
            skipped = "%d of %d steps were skipped: their loss or gradient was not finite"
            logging.warning(skipped, self._total, num_steps)

    def _suspects(self, found: Found) -> list[str]:
        """Texts about this rank's batches whose loss is not finite: the places of their items, where they are known."""
        bad = [batch for batch, finite in zip(found.batches, found.finite_losses, strict=True) if not finite]
        places = [self._place_of(i) for batch in bad for i in batch.ids or ()]
        return [f"{', '.join(places[:5])}{', ...' if len(places) > 5 else ''}"] if bad else []


def _problem_of(step: int, by_rank: Sequence[list[str]] | None) -> tuple[str, bool]:
    """A message about a step that is not finite, and whether a loss is it; ``by_rank``: what each rank suspects."""
    suspects = [(rank, places) for rank, texts in enumerate(by_rank or ()) for places in texts]
    if not suspects:  # the losses are finite
        return f"the gradient of step {step} is not finite", False
    several = len(by_rank or ()) > 1
    items = "; ".join(f"rank {rank}: {places}" if several else places for rank, places in suspects if places)
    return f"the loss of step {step} is not finite{'; in the batch: ' if items else ''}{items}", True
