"""Running a DAG over its data layer without gradients, on one rank and on all: evaluation, inference. No metrics."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import fx, nn

from nemo_lite.backends.pytorch.data import Batch, Shard
from nemo_lite.backends.pytorch.distributed import Comm, needs_all_ranks
from nemo_lite.backends.pytorch.lowering import lower
from nemo_lite.backends.pytorch.modes import evaluating
from nemo_lite.backends.pytorch.nm import DataLayerNM
from nemo_lite.backends.pytorch.placement import to_device
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.backends.pytorch.statistics import mean_statistics
from nemo_lite.core.dag import Dag
from nemo_lite.core.nm_tensor import NmTensor
from nemo_lite.errors import DagError

# The number of a row whose batch was only run because the other ranks had one.
_UNCOUNTED = -1


class Row(NamedTuple):
    """What one batch gave.

    Attributes:
        number: position of the batch in data order, over all ranks; -1 for one that does not count.
        ids: positions of its items in the data layer, where it knows them.
        values: one for each wire.
    """

    number: int
    ids: list[int] | None
    values: list[Any]


class Evaluation:
    """A DAG lowered for evaluation.

    Args:
        wires: what to compute for each batch.
        device: where.
        precision: in what.

    Raises:
        DagError: the wires do not form one DAG, or their data layer does not run on torch.
    """

    def __init__(self, wires: Sequence[NmTensor], device: torch.device, precision: Precision) -> None:
        self.dag = Dag(wires)
        self.data_layer = torch_data_layer(self.dag)
        self.module: fx.GraphModule = lower(self.dag.slice(), "EvaluationDag")
        self._device, self._precision = device, precision

    @property
    def modules(self) -> list[nn.Module]:
        """The DAG's modules."""
        return [module for module in self.dag.modules.values() if isinstance(module, nn.Module)]

    def rows(self, comm: Comm) -> Iterator[Row]:
        """What each batch of this rank gives: over all ranks every item once, modules in evaluation mode.

        Normalisation layers use the mean of the ranks' statistics. Modes and statistics are put back when the iteration
        ends, also when it is left early.
        """
        self.module.to(self._device)
        with mean_statistics(self.modules, comm), evaluating([self.module]), torch.no_grad():
            for count, (batch, counts) in enumerate(self._batches(comm)):
                with self._precision.forward():
                    values = self.module(*to_device(batch.values, self._device))
                if not counts:
                    yield Row(_UNCOUNTED, None, [])
                    continue
                number = count * comm.world_size + comm.rank if batch.number is None else batch.number
                yield Row(number, None if batch.ids is None else list(batch.ids), list(values))

    def _batches(self, comm: Comm) -> Iterator[tuple[Batch, bool]]:
        """This rank's batches, each with whether it counts.

        Running sharded modules is an exchange that all ranks must make equally often: one that has no batch left, while
        others have, runs one that does not count.
        """
        batches = self.data_layer.loader(training=False, shard=Shard(comm.rank, comm.world_size)).epoch(0)
        if not needs_all_ranks(self.modules, in_training=False):
            yield from ((batch, True) for batch in batches)
            return
        spare = None
        while True:
            batch = next(batches, None)
            if comm.sum([float(batch is not None)]) == [0.0]:
                return
            if batch is None and spare is None:
                spare = next(self.data_layer.loader(training=False, shard=Shard(0, comm.world_size)).epoch(0))
            yield (batch, True) if batch is not None else (cast("Batch", spare), False)


class Certificate:
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
        """Take notice of a batch."""
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


class EvaluationRun:
    """An evaluation on all ranks while and after it runs; see :class:`nemo_lite.core.actions.Evaluated`."""

    def __init__(self, evaluation: Evaluation, comm: Comm) -> None:
        self._evaluation, self._comm = evaluation, comm
        self._certificate = Certificate(evaluation.data_layer)

    def __iter__(self) -> Iterator[list[list[Any]]]:
        for rows in self._comm.rounds(map(tuple, self._evaluation.rows(self._comm))):
            in_order = in_data_order([rows])
            for row in in_order:
                self._certificate.note(row.ids)
            yield [list(column) for column in zip(*(row.values for row in in_order), strict=True)]

    @property
    def num_items(self) -> int | None:
        """How many items came; ``None`` where the data layer does not number them."""
        return self._certificate.num_items

    @property
    def digest(self) -> str:
        """A hash of the names of the items that came."""
        return self._certificate.digest


def torch_data_layer(dag: Dag) -> DataLayerNM:
    """The DAG's data layer.

    Raises:
        DagError: it does not run on torch.
    """
    layer = dag.data_layer
    if not isinstance(layer, DataLayerNM):
        raise DagError(
            f"{layer.name} ({type(layer).__name__}) is not a data layer", remedy="derive it from DataLayerNM"
        )
    return layer


def in_data_order(rounds: Iterable[Sequence[Sequence[Any]]]) -> list[Row]:
    """All rows of all rounds by number; they travelled as plain tuples."""
    rows = (Row(*travelled) for arrived in rounds for travelled in arrived)
    return sorted((row for row in rows if row.number != _UNCOUNTED), key=lambda row: row.number)
