"""Which utterances make which batch: pure functions of (durations, seed, epoch, rank, world size). No files in here.

A *step* is one batch on every rank. Its utterances are chosen together and dealt to the ranks in turn, so that all
ranks have batches of equal cost at the same step: a step lasts as long as its slowest rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_lite.errors import UsageError

Rows: TypeAlias = "npt.NDArray[np.int64]"
Durations: TypeAlias = "npt.NDArray[np.floating[Any]]"

# Utterances are sorted within pools of steps. More steps in a pool: less padding, but the same neighbours more often.
# With n steps in a pool the padding is roughly 60 % / n on durations as in LibriSpeech.
_MIN_POOL_STEPS, _MAX_POOL_STEPS, _POOLS_PER_EPOCH = 32, 512, 4


@dataclass(frozen=True)
class Batching:
    """How utterances are gathered into batches.

    Attributes:
        batch_size: utterances in a batch on one rank; -1 for all of them.
        shuffle: another order in each epoch.
        bucketing: utterances of similar duration together.
        drop_last: leave out the utterances that do not fill a step.
        max_batch_seconds: with bucketing, at most so many seconds in a batch, padding included; then ``batch_size`` is
            only an upper limit.

    Raises:
        UsageError: values that contradict each other.
    """

    batch_size: int
    shuffle: bool = True
    bucketing: bool = False
    drop_last: bool = False
    max_batch_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1 and self.batch_size != -1:
            raise UsageError("batch_size is a number above 0, or -1 for the whole set", got=str(self.batch_size))
        if self.max_batch_seconds is not None and not self.bucketing:
            raise UsageError("max_batch_seconds needs bucketing", remedy="set bucketing to true")
        if self.max_batch_seconds is not None and self.drop_last:
            raise UsageError("max_batch_seconds and drop_last exclude each other: such batches have no nominal size")


@dataclass(frozen=True)
class Plan:
    """The batches of one rank in one epoch, by index.

    Attributes:
        batches: positions of the utterances of each batch.
        num_repeated: how many utterances come twice over all ranks, so that each rank has a batch in the last step.
    """

    batches: Sequence[Rows]
    num_repeated: int = 0

    def __len__(self) -> int:
        return len(self.batches)


def training_plan(
    durations: Durations, batching: Batching, *, seed: int = 0, epoch: int = 0, rank: int = 0, world_size: int = 1
) -> Plan:
    """The batches of ``rank`` in ``epoch``; every rank has equally many.

    Without ``drop_last`` every utterance comes at least once over the ranks; where a step has fewer utterances than
    there are ranks, some come twice (counted in the plan).

    Args:
        durations: (N,) seconds of each utterance.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(durations)) if batching.shuffle else np.arange(len(durations))
    step_items = _usual_step_items(durations, batching, world_size)
    if batching.drop_last:
        order = order[: len(order) // step_items * step_items]
    steps = list(_steps(order, durations, batching, step_items, world_size))
    if batching.shuffle and batching.bucketing:
        steps = [steps[index] for index in rng.permutation(len(steps))]
    num_repeated = sum(max(world_size - len(step), 0) for step in steps)
    return Plan([_dealt(step, rank, world_size) for step in steps], num_repeated)


def evaluation_plan(num_items: int, batch_size: int, *, rank: int = 0, world_size: int = 1) -> Plan:
    """The batches of ``rank`` in evaluation: every item once over the ranks, in order, nothing repeated or left out."""
    mine = np.arange(rank, num_items, world_size)
    size = batch_size if batch_size > 0 else max(len(mine), 1)
    return Plan([mine[start : start + size] for start in range(0, len(mine), size)])


def padding_share(durations: Durations, batches: Sequence[Rows]) -> float:
    """Share of what is computed that is padding: 1 - sum of durations / sum of (longest in the batch * batch size)."""
    used = sum(float(durations[rows].sum(dtype=np.float64)) for rows in batches)
    computed = sum(float(durations[rows].max()) * len(rows) for rows in batches)
    return 1.0 - used / computed


def _usual_step_items(durations: Durations, batching: Batching, world_size: int) -> int:
    """Utterances in a step; with ``max_batch_seconds`` in a step of average utterances."""
    num_items = len(durations)
    size = batching.batch_size if batching.batch_size > 0 else max(-(-num_items // world_size), 1)
    if batching.max_batch_seconds is not None and num_items:
        longest = float(durations.max())
        if longest > batching.max_batch_seconds:
            raise UsageError(
                f"max_batch_seconds {batching.max_batch_seconds:g} s cannot hold the longest utterance ({longest:g} s)",
                remedy="raise it, or lower max_duration",
            )
        size = min(size, int(batching.max_batch_seconds / float(durations.mean())))
    return size * world_size


def _steps(order: Rows, durations: Durations, batching: Batching, step_items: int, world_size: int) -> Iterator[Rows]:
    if not batching.bucketing:
        for start in range(0, len(order), step_items):
            yield order[start : start + step_items]
        return
    for pool in _pools(order, step_items):
        by_duration = pool[np.argsort(-durations[pool], kind="stable")]
        start = 0
        while start < len(by_duration):
            num_items = step_items
            if batching.max_batch_seconds is not None:
                num_items = _fitting(float(durations[by_duration[start]]), batching) * world_size
            yield by_duration[start : start + num_items]
            start += num_items


def _fitting(longest: float, batching: Batching) -> int:
    """How many utterances of this duration fit a batch."""
    assert batching.max_batch_seconds is not None
    fitting = int(batching.max_batch_seconds / longest)
    return fitting if batching.batch_size == -1 else min(fitting, batching.batch_size)


def _pools(order: Rows, step_items: int) -> list[Rows]:
    """Cut the order into pools of nearly equal numbers of steps; what does not fill a step is in the last one."""
    num_steps = -(-len(order) // step_items)
    pool_steps = min(max(num_steps // _POOLS_PER_EPOCH, _MIN_POOL_STEPS), _MAX_POOL_STEPS)
    num_pools = max(num_steps // pool_steps, 1)
    edges = np.arange(1, num_pools) * num_steps // num_pools * step_items
    return np.split(order, edges)


def _dealt(step: Rows, rank: int, world_size: int) -> Rows:
    """This rank's share; a step with fewer utterances than ranks is filled by repeating them."""
    if len(step) < world_size:
        step = np.resize(step, world_size)
    return step[rank::world_size]
