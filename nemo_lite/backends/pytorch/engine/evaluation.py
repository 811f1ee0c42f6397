"""Evaluation and inference: every item once on any number of ranks, and values that are kept.

A round is one batch for each rank, neighbours in the data. Ranks exchange after a block of rounds: a rank that is
slower at one batch is faster at another, so they wait less for each other than after each round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

import torch
from torch import fx, nn

from nemo_lite.backends.pytorch.data.loaders import Batch, BatchLoader
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.backends.pytorch.distributed.batchnorm import needs_all_ranks
from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.distributed.process import EVALUATION, WAITING_FOR_DATA
from nemo_lite.backends.pytorch.distributed.replicas import CopyComparison
from nemo_lite.backends.pytorch.engine.module_state import evaluating, mean_statistics, modules_of
from nemo_lite.backends.pytorch.engine.state import RunState
from nemo_lite.backends.pytorch.generators import generators_set_aside
from nemo_lite.backends.pytorch.lowering import Lowering, lower
from nemo_lite.backends.pytorch.nm import DataLayerNM
from nemo_lite.backends.pytorch.placement import AheadOfUse, ReadBeside, place, to_cpu, to_device
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.base.errors import DagError, UsageError
from nemo_lite.base.interruption import flags_of, signal_in
from nemo_lite.core.callbacks.action_state import EvaluationResult
from nemo_lite.core.callbacks.base import CallbackList
from nemo_lite.core.dag import Dag, slice_between
from nemo_lite.core.neural_types import NmTensor, Value

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
    values: list[Value]


class StopsEarly:
    """Whether an evaluation ends early, because a rank got a stop signal.

    Args:
        received: gives the signal that this rank got, 0 for none.

    Attributes:
        signal: the signal for which all ranks end the evaluation; 0 while they go on.
    """

    def __init__(self, received: Callable[[], int] = int) -> None:
        self.received, self.signal = received, 0


class EvaluationRounds:
    """This rank's batches, in blocks of rounds that all ranks begin together.

    When a rank's batch of a round cannot be used, its next batch waits for its own round. So blocks come in data order,
    and rank 0 need not keep results back.

    Args:
        batches: those of this rank.
        comm: the ranks. Each block begins with one exchange.
        stops: asked before each block whether to stop early, on all ranks alike.
        one_at_a_time: blocks are single rounds.

    Attributes:
        is_alone: there is no other rank to agree with.
    """

    def __init__(self, batches: Iterator[Batch], comm: Comm, stops: StopsEarly, one_at_a_time: bool) -> None:
        self._batches, self._comm, self._stops = batches, comm, stops
        # A process alone exchanges nothing, so it need not hold results back.
        self.is_alone = comm.world_size == 1
        self._most = 1 if one_at_a_time or self.is_alone else _MOST_ROUNDS
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


WireValues: TypeAlias = "list[Value]"


class InferenceCache:
    """The values of wires for each batch of this rank."""

    def __init__(self) -> None:
        self._values: dict[NmTensor, WireValues] = {}
        self._batches: list[BatchResult] = []

    def clear(self) -> None:
        """Forget them."""
        self._values.clear()

    def check(self, cache: bool, use_cache: bool) -> None:
        """Refuse to keep values beside those of an earlier call, and to use some where none are kept.

        Raises:
            UsageError: one of them.
        """
        if cache and self._values:
            raise UsageError("cache was set but was not empty", place="infer", remedy="call clear_cache() first")
        if use_cache and not self._values:
            raise UsageError(
                "use_cache was set, but cache was empty", place="infer", remedy="call infer(cache=True) first"
            )

    def keeping(self, tensors: Sequence[NmTensor], blocks: Iterable[list[BatchResult]]) -> Iterator[list[BatchResult]]:
        """The blocks; once all have been taken, their values are kept."""
        taken = []
        for block in blocks:
            taken += block
            yield block
        self._values.update({wire: [row.values[i] for row in taken] for i, wire in enumerate(tensors)})
        self._batches = [row._replace(values=[]) for row in taken]

    def blocks(
        self, tensors: Sequence[NmTensor], device: torch.device, precision: Precision, lowering: Lowering = lower
    ) -> Iterator[list[BatchResult]]:
        """The values of wires that follow from those kept, a batch at a time.

        Raises:
            DagError: they need more than what was kept.
            UsageError: weights that they need are divided among the ranks.
        """
        part = slice_between(self._values, tensors)
        module = lowering(part, "FromCache")
        place(module, device)
        if needs_all_ranks([module], in_training=False):  # the ranks may have kept different numbers of batches
            raise UsageError(
                "use_cache cannot run modules whose weights are divided among the ranks",
                place="infer",
                remedy="infer these wires without use_cache",
            )
        kept = zip(self._batches, *(self._values[wire] for wire in part.inputs), strict=True)
        return self._computed(kept, module, device, precision)

    @staticmethod
    def _computed(
        kept: Iterable[tuple[Value, ...]], module: nn.Module, device: torch.device, precision: Precision
    ) -> Iterator[list[BatchResult]]:
        with precision.prepared(module.children()), evaluating([module]), torch.no_grad():
            for batch, *values in kept:
                moved = to_device(values, device)
                with precision.forward():
                    yield [batch._replace(values=list(module(*moved)))]


_Agree: TypeAlias = "Callable[[int], None]"

_COPIES_SECONDS = 60.0
"""How long the end of an evaluation waits until the files that it read are compared; they are read meanwhile."""


class Evaluation:
    """A DAG lowered for evaluation.

    Args:
        wires: what to compute for each batch.
        device: where.
        precision: in what.
        lowering: how it becomes a module.
        keeps_workers: data workers live until :meth:`close`, for the next evaluation.

    Raises:
        DagError: the wires do not form one DAG, or their data layer does not run on torch.
    """

    def __init__(
        self,
        wires: Sequence[NmTensor],
        device: torch.device,
        precision: Precision,
        lowering: Lowering = lower,
        keeps_workers: bool = False,
    ) -> None:
        self.dag = Dag(wires)
        self.data_layer, self.modules = torch_data_layer(self.dag), modules_of(self.dag)
        self.module: fx.GraphModule = lowering(self.dag.slice(), "EvaluationDag")
        self._device, self._precision = device, precision
        self._ahead, self._reads = AheadOfUse(device), ReadBeside(device)
        self._keeps_workers = keeps_workers
        self._last_loader: BatchLoader | None = None
        self._copies: CopyComparison | None = None

    def blocks(self, comm: Comm, stops: StopsEarly | None = None) -> Iterator[list[BatchResult]]:
        """The values of each batch of this rank, in blocks: over all ranks every item once, modules in evaluation mode.

        All ranks give the same number of blocks, which may be empty; the n-th blocks of all ranks are neighbours in the
        data. Each block begins with an exchange, so all ranks must take their blocks alike.

        Normalisation layers use the mean of the ranks' statistics. Modes, statistics and generators of random numbers
        are put back when the iteration ends, also when it is left early. At its end the loaders of all ranks settle
        what they noticed, and the machines compare their copies of the data.

        Args:
            comm: the ranks.
            stops: asked before each block whether to stop early, on all ranks alike. With it, a process alone computes
                the next batch on a GPU while the caller reads this one, whose reads do not wait for the other.
        """
        self.place()
        loader, spare = self._loader(Shard(comm.rank, comm.world_size)), None
        if self._last_loader is not None:
            loader.take_workers(self._last_loader)
            self._last_loader = None
        is_read_at_once = stops is not None
        stops = stops or StopsEarly()
        layer = self.data_layer
        self._copies = self._copies or CopyComparison(comm, layer.copied(), layer.label, layer.place_of)
        together = needs_all_ranks(self.modules, in_training=False)  # they exchange values, so all ranks run them
        rounds = EvaluationRounds(map(self._sent, loader.epoch(0)), comm, stops, one_at_a_time=together)
        with (
            self._precision.prepared(self.modules),
            mean_statistics(self.modules, comm),
            evaluating([self.module, *self.modules]),
            generators_set_aside(self._device, self.dag.modules),
            torch.no_grad(),
        ):
            computed = rounds.blocks(self._result)
            if is_read_at_once and rounds.is_alone and self._reads.is_of_use:
                yield from self._read_beside(computed)
            for block in computed:
                if together and not block:
                    spare = spare or self._any_batch(comm)
                    self._run(spare)
                yield block
        if not stops.signal:
            loader.settle(comm)
            self._copies.compare(_COPIES_SECONDS)
        if self._keeps_workers:
            self._last_loader = loader

    def _read_beside(self, computed: Iterator[list[BatchResult]]) -> Iterator[list[BatchResult]]:
        """The blocks, each given out when the next one has been queued on the device."""
        waiting: list[BatchResult] | None = None
        mark = None
        for block in computed:
            next_mark = self._reads.mark()
            if waiting is not None:
                with self._reads.reading((row.values for row in waiting), mark):
                    yield waiting
            waiting, mark = block, next_mark
        if waiting is not None:
            with self._reads.reading((row.values for row in waiting), mark):
                yield waiting

    def compute(self, values: Sequence[object]) -> WireValues:
        """The wires' values for a batch that does not come from the data layer, in host memory. On this rank alone.

        Call :meth:`place` once before: looking at each module takes as long as a small model computes a short batch.

        Args:
            values: one for each output port of the data layer, in port order.
        """
        with (
            self._precision.prepared(self.modules),
            evaluating([self.module, *self.modules]),
            generators_set_aside(self._device, self.dag.modules),
            torch.no_grad(),
        ):
            return to_cpu(self._run(Batch(self._ahead.start(values))))

    def place(self) -> None:
        """Put the modules on the device. Those that are there are not written to: another thread may run them."""
        for module in (self.module, *self.modules):  # a module that another one refers to is no part of the former
            place(module, self._device)

    def close(self) -> None:
        """End the data workers that were kept."""
        self._last_loader = None

    def _sent(self, batch: Batch) -> Batch:
        """The batch on its way to the device, where the one before it is computed with."""
        batch.values = self._ahead.start(batch.values)
        return batch

    def _result(self, number: int, batch: Batch) -> BatchResult:
        return BatchResult(number, None if batch.ids is None else list(batch.ids), self._run(batch))

    def _loader(self, shard: Shard) -> BatchLoader:
        return self.data_layer.loader(training=False, shard=shard)

    def _run(self, batch: Batch) -> WireValues:
        self._ahead.arrive(batch.values)
        with EVALUATION, self._precision.forward():
            return list(self.module(*batch.values))

    def _any_batch(self, comm: Comm) -> Batch:
        """The first batch of the whole set, as this rank's part may be empty."""
        batch = next(self._loader(Shard()).epoch(0), None)
        if batch is None:
            raise UsageError(
                f"{self.data_layer.label} gives batches to other ranks, and none to a process that asks for all",
                place=f"rank {comm.rank}",
                remedy="its loader must give the same data at each call",
            )
        return self._sent(batch)


class ItemsComputed:
    """Which items an evaluation or inference has computed, over all ranks.

    Args:
        data_layer: whose items they are.

    Attributes:
        items: their positions in data order; None where the data layer does not number them.
    """

    def __init__(self, data_layer: DataLayerNM) -> None:
        self.items: list[int] | None = []
        self._data_layer = data_layer

    def note(self, ids: list[int] | None) -> None:
        """Add the items of a batch."""
        if ids is None:
            self.items = None
        elif self.items is not None:
            self.items.extend(ids)

    @property
    def num_items(self) -> int | None:
        """How many they are."""
        return None if self.items is None else len(self.items)

    @property
    def digest(self) -> str:
        """A hash of their names, repeated ones included: equal for equal sets, on any number of ranks. Without: ""."""
        return "" if self.items is None else self._data_layer.digest_of(self.items)


class InferenceRun(ItemsComputed, Iterator[WireValues]):
    """The batches of an inference, one after another, and which items they have been of so far.

    Args:
        data_layer: whose items they are.
        rows: the batches; none on ranks above 0.
    """

    def __init__(self, data_layer: DataLayerNM, rows: Iterator[BatchResult]) -> None:
        super().__init__(data_layer)
        self._rows = rows

    def __next__(self) -> WireValues:
        row = next(self._rows)
        self.note(row.ids)
        return row.values


class EvaluationRun(ItemsComputed):
    """An evaluation on all ranks while and after it runs; see :class:`nemo_lite.core.callbacks.action_state.Evaluated`.

    Args:
        evaluation: what to run.
        comm: the ranks.
        received: gives the stop signal that this rank got, 0 for none; the evaluation of all ranks ends early then.
        agree: called with that signal at the end, or with 0.
    """

    def __init__(self, evaluation: Evaluation, comm: Comm, received: Callable[[], int], agree: _Agree) -> None:
        super().__init__(evaluation.data_layer)
        self._evaluation, self._comm, self._agree = evaluation, comm, agree
        self._stops = StopsEarly(received)

    def __iter__(self) -> Iterator[list[WireValues]]:
        for rows in arriving(self._evaluation.blocks(self._comm, self._stops), self._comm):
            for _, of_round in groupby(rows, lambda row: row.number // self._comm.world_size):
                in_round = list(of_round)
                for row in in_round:
                    self.note(row.ids)
                yield [list(column) for column in zip(*(row.values for row in in_round), strict=True)]
        self._agree(self._stops.signal)


class Evaluations:
    """Evaluates during an action, for its callbacks; each set of wires is checked and lowered once.

    Args:
        comm: the ranks.
        device: where.
        precision: in what.
        lowering: how DAGs become modules.
        state: learns results, and stop signals that come meanwhile; its callbacks can evaluate from now on.
        callbacks: are told results.
        settle: waits for what is not known yet of the last step: before anything that reads weights.
        copies: comparisons of the training data on the machines; they go on before an evaluation.

    Attributes:
        results: the last one of each evaluation, by name.
    """

    def __init__(
        self,
        comm: Comm,
        device: torch.device,
        precision: Precision,
        lowering: Lowering,
        state: RunState,
        callbacks: CallbackList,
        settle: Callable[[], object] = lambda: None,
        copies: Sequence[CopyComparison] = (),
    ) -> None:
        self._comm, self._device, self._precision, self._lowering = comm, device, precision, lowering
        self._state, self._callbacks, self.settle, self._copies = state, callbacks, settle, copies
        self.results: dict[str, EvaluationResult] = {}
        self._prepared: dict[tuple[NmTensor, ...], Evaluation] = {}
        state.evaluate, state.publish = self.run, self.publish

    def prepare(self, wires: Sequence[NmTensor]) -> Evaluation:
        """The evaluation of these wires, checked and lowered once."""
        key = tuple(wires)
        if key not in self._prepared:
            self._prepared[key] = Evaluation(key, self._device, self._precision, self._lowering, keeps_workers=True)
        return self._prepared[key]

    def run(self, wires: Sequence[NmTensor]) -> EvaluationRun:
        """The values of ``wires`` for each batch of their data layer: ``ActionState.evaluate``."""
        self.settle()
        self.compare_copies()
        state, evaluation = self._state, self.prepare(wires)
        return EvaluationRun(evaluation, self._comm, lambda: state.stop_signals.received, state.agree_on_signal)

    def publish(self, make: Callable[[], EvaluationResult]) -> None:
        """Make the result of an evaluation known. See ``ActionState``."""
        if self._state.interrupted_by:  # perhaps in the middle of it
            return
        result = EvaluationResult(**self._comm.from_first(lambda: vars(make())))
        self._state.evaluation = self.results[result.name] = result
        self._callbacks.notify("on_evaluation_end", self._state)

    def compare_copies(self) -> None:
        """Go on with the comparison of the training data on the machines."""
        for comparison in self._copies:
            comparison.compare()

    def close(self) -> None:
        """End the data workers that wait for the next evaluation."""
        for evaluation in self._prepared.values():
            evaluation.close()


def torch_data_layer(dag: Dag) -> DataLayerNM:
    """The DAG's data layer.

    Raises:
        DagError: it does not run on torch.
    """
    layer = dag.data_layer
    if not isinstance(layer, DataLayerNM):
        raise DagError(
            f"{layer.label} ({type(layer).__name__}) is not a data layer", remedy="derive it from DataLayerNM"
        )
    return layer


def arriving(blocks: Iterable[list[BatchResult]], comm: Comm) -> Iterator[list[BatchResult]]:
    """On rank 0 the results of all ranks, a block at a time, in data order; on the others none, they send theirs."""
    for of_ranks in comm.rounds([tuple(row) for row in block] for block in blocks):
        # They travel as plain tuples.
        yield sorted((BatchResult._make(row) for block in of_ranks for row in block), key=lambda row: row.number)
