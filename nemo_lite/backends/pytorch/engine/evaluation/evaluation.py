"""Running a DAG over its data layer without gradients, on one rank and on all: evaluation, inference. No metrics."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import torch
from torch import fx

from nemo_lite.backends.pytorch.data import Batch, BatchLoader, Shard, settle, take_workers
from nemo_lite.backends.pytorch.distributed import EVALUATION, Comm, CopyComparison, needs_all_ranks
from nemo_lite.backends.pytorch.engine.evaluation.rounds import BatchResult, Rounds, StopsEarly
from nemo_lite.backends.pytorch.engine.generators import generators_set_aside
from nemo_lite.backends.pytorch.engine.module_state import evaluating, mean_statistics, modules_of
from nemo_lite.backends.pytorch.lowering import Lowering, lower
from nemo_lite.backends.pytorch.nm import DataLayerNM
from nemo_lite.backends.pytorch.placement import AheadOfUse
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.core.graph.dag import Dag
from nemo_lite.core.neural_types.nm_tensor import NmTensor
from nemo_lite.errors import DagError, UsageError

# Any: values of wires are tensors, lists of texts or numbers.
WireValues: TypeAlias = "list[Any]"
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
        self._ahead = AheadOfUse(device)
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
            stops: asked before each block whether to stop early, on all ranks alike.
        """
        self.module.to(self._device)
        loader, spare = self._loader(Shard(comm.rank, comm.world_size)), None
        if self._last_loader is not None:
            take_workers(loader, self._last_loader)
            self._last_loader = None
        stops = stops or StopsEarly()
        layer = self.data_layer
        self._copies = self._copies or CopyComparison(comm, layer.copied(), layer.label, layer.place_of)
        together = needs_all_ranks(self.modules, in_training=False)  # they exchange values, so all ranks run them
        rounds = Rounds(map(self._sent, loader.epoch(0)), comm, stops, one_at_a_time=together)
        with (
            self._precision.prepared(self.modules),
            mean_statistics(self.modules, comm),
            evaluating([self.module]),
            generators_set_aside(self._device, self.dag.modules),
            torch.no_grad(),
        ):
            for block in rounds.blocks(self._result):
                if together and not block:
                    spare = spare or self._any_batch(comm)
                    self._run(spare)
                yield block
        if not stops.signal:
            settle(loader, comm)
            self._copies.compare(_COPIES_SECONDS)
        if self._keeps_workers:
            self._last_loader = loader

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
        if self.items is None:
            return ""
        names = "\n".join(map(self._data_layer.id_of, sorted(self.items)))
        return hashlib.sha256(names.encode()).hexdigest()[:16]


class EvaluationRun(ItemsComputed):
    """An evaluation on all ranks while and after it runs; see :class:`nemo_lite.core.action_state.Evaluated`.

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
