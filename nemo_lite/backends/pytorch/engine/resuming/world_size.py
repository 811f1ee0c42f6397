"""A run that goes on with another number of ranks: refused by name, or allowed with what it changes. No plans here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nemo_lite.errors import CheckpointError, counted

# Any: a training state is a tree of tensors, numbers and texts.


class Pace(NamedTuple):
    """How many batches make a step and an epoch.

    Attributes:
        world_size: number of ranks.
        batches_per_step: of a rank.
        rounds_per_epoch: batches of a rank in an epoch; ``None`` where that is not known.
    """

    world_size: int = 1
    batches_per_step: int = 1
    rounds_per_epoch: int | None = None

    @property
    def step_batches(self) -> int:
        """Batches of all ranks in a step."""
        return self.world_size * self.batches_per_step

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps of an epoch; ``None`` where that is not known."""
        return None if self.rounds_per_epoch is None else math.ceil(self.rounds_per_epoch / self.batches_per_step)


def check_world_size(state: Mapping[str, Any], world_size: int, is_allowed: bool, place: str) -> None:
    """Refuse a training state that another number of ranks saved. States of older versions do not say how many.

    Raises:
        CheckpointError: it is another number, and not allowed.
    """
    saved = state.get("pace", [world_size])[0]
    if saved != world_size and not is_allowed:
        raise CheckpointError(
            "the checkpoint was saved by another number of processes",
            place=place,
            got=f"{saved} saved it, {world_size} would go on",
            wanted="as many",
            remedy=f"start {saved}; or give --allow_world_size_change "
            "(CheckpointCallback(allow_world_size_change=True)): what is left of the epoch is divided anew, and what "
            "that changes is told",
        )


def told(before: Pace, now: Pace) -> Iterator[str]:
    """What another number of ranks changes, and what can be done about it, a line each."""
    if before.world_size == now.world_size:
        return
    saved = counted(before.world_size, "process", "processes")
    yield f"{saved} saved the checkpoint, {now.world_size} will go on with it"
    factor = now.step_batches / before.step_batches
    if factor == 1.0:
        yield "the effective batch, the learning rate and the steps of an epoch stay what they were"
        return
    of_now, of_before = (f"{pace.world_size} x {pace.batches_per_step}" for pace in (now, before))
    kept = before.step_batches / now.world_size
    keeping = f"batches_per_step={kept:.0f} (--iter_per_step) keeps it" if kept >= 1 and kept == int(kept) else ""
    keeping = keeping or f"{1 / factor:.3g} times the batch_size keeps it"
    counts = f"{of_now} batches a step instead of {of_before}, {factor:.3g} times as many items"
    yield f"effective batch: {counts}; {keeping}"
    yield (
        f"learning rate: it stays as it is given; for such a batch usual are {factor:.3g} times of it, or "
        f"{math.sqrt(factor):.3g} times with Adam and its like"
    )
    steps, steps_before = now.steps_per_epoch, before.steps_per_epoch
    counts = f": an epoch has {counted(steps, 'step')} instead of {steps_before}" if steps and steps_before else ""
    yield (
        f"warm-up and schedule: they count steps{counts}; to keep their lengths in epochs, give {1 / factor:.3g} times "
        "the steps of each (--warmup_steps, --hold_steps, --max_steps)"
    )
