"""Which batches the ranks compute until they next exchange results, in evaluation and inference. No modules, no values.

A round is one batch for each rank, neighbours in the data. Ranks exchange after a block of rounds: a rank that is
slower at one batch is faster at another, so they wait less for each other than after each round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from nemo_lite.backends.pytorch.data import Batch
from nemo_lite.backends.pytorch.distributed import WAITING_FOR_DATA, Comm
from nemo_lite.interruption import flags_of, signal_in

# A block ends after about a second, so that results and stop signals do not wait long, and holds about as much memory
# on all ranks together, or one round.
_BLOCK_SECONDS, _BLOCK_BYTES, _MOST_ROUNDS = 1.0, 64 * 2**20, 16


class BatchResult(NamedTuple):
    """The values of one batch.

    Attributes:
        number: position of the batch in data order, over all ranks.
        ids: positions of its items in the data layer, where it knows them.
        values: one for each wire: tensors, lists of texts or numbers.
    """

    number: int
    ids: list[int] | None
    values: list[Any]


class StopsEarly:
    """Whether an evaluation ends early, because a rank got a stop signal.

    Args:
        received: gives the signal that this rank got, 0 for none.

    Attributes:
        signal: the signal for which all ranks end the evaluation; 0 while they go on.
    """

    def __init__(self, received: Callable[[], int] = int) -> None:
        self.received, self.signal = received, 0


class Rounds:
    """This rank's batches, in blocks of rounds that all ranks begin together.

    When a rank's batch of a round cannot be used, its next batch waits for its own round. So blocks come in data order,
    and rank 0 need not keep results back.

    Args:
        batches: those of this rank.
        comm: the ranks. Each block begins with one exchange.
        stops: asked before each block whether to stop early, on all ranks alike.
        one_at_a_time: blocks are single rounds.
    """

    def __init__(self, batches: Iterator[Batch], comm: Comm, stops: StopsEarly, one_at_a_time: bool) -> None:
        self._batches, self._comm, self._stops = batches, comm, stops
        # A process alone exchanges nothing, so it need not hold results back.
        self._most = 1 if one_at_a_time or comm.world_size == 1 else _MOST_ROUNDS
        self._length = 1
        self._spent = [0.0, 0.0]  # seconds and bytes of this rank's last block

    def blocks(self, compute: Callable[[int, Batch], BatchResult]) -> Iterator[list[BatchResult]]:
        """The results of each block, equally many blocks on all ranks; none of this rank's batches may be in one.

        Args:
            compute: called with each batch and its number, in order.
        """
        numbered = self._numbered()
        number, batch = next(numbered, (None, None))
        while (end := self._next_block_end(number)) is not None:
            started, results = time.monotonic(), []
            while batch is not None and number is not None and number < end:
                results.append(compute(number, batch))
                number, batch = next(numbered, (None, None))
            num_bytes = sum(v.nbytes for row in results for v in row.values if isinstance(v, torch.Tensor))
            self._spent = [time.monotonic() - started, float(num_bytes)]
            yield results

    def _numbered(self) -> Iterator[tuple[int, Batch]]:
        for count, batch in enumerate(WAITING_FOR_DATA.around(self._batches)):
            yield count * self._comm.world_size + self._comm.rank if batch.number is None else batch.number, batch

    def _next_block_end(self, number: int | None) -> int | None:
        """Agree on the next block: it begins with the earliest round of all ranks' next batches.

        Args:
            number: of this rank's next batch; ``None`` if there is none.

        Returns:
            The number of the first batch behind the block; ``None`` if no block follows.
        """
        size = self._comm.world_size
        firsts = [0.0] * size
        firsts[self._comm.rank] = 0.0 if number is None else number // size + 1.0
        flags = flags_of(self._stops.received())
        sums = self._comm.sum([*firsts, *self._spent, *flags])  # each rank adds to its own first round
        self._stops.signal = signal_in(sums[size + 2 :])
        first = min(filter(None, sums[:size]), default=None)
        if first is None or self._stops.signal:
            return None
        self._length = self._fitting(*sums[size : size + 2])
        return (int(first) - 1 + self._length) * size

    def _fitting(self, seconds: float, num_bytes: float) -> int:
        """How many rounds the next block has, by what the last one took on all ranks together."""
        if not seconds:  # there was none
            return 1
        in_time = _BLOCK_SECONDS * self._comm.world_size * self._length / seconds
        in_memory = _BLOCK_BYTES * self._length / max(num_bytes, 1.0)
        return max(1, min(self._most, int(in_time), int(in_memory)))
