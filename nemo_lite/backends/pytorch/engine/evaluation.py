"""Running a DAG over its data layer without gradients, on one rank and on all: evaluation, inference. No metrics."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import fx, nn

from nemo_lite.backends.pytorch.data import Batch, BatchLoader, Shard, settle
from nemo_lite.backends.pytorch.distributed import EVALUATION, WAITING_FOR_DATA, Comm, needs_all_ranks
from nemo_lite.backends.pytorch.engine.module_state import evaluating, mean_statistics, modules_of
from nemo_lite.backends.pytorch.lowering import Lowering, lower
from nemo_lite.backends.pytorch.nm import DataLayerNM
from nemo_lite.backends.pytorch.placement import to_device
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.core.graph.dag import Dag, slice_between
from nemo_lite.core.graph.nm_tensor import NmTensor
from nemo_lite.errors import DagError, UsageError
from nemo_lite.interruption import flags_of, signal_in

# Any: values of wires are tensors, lists of texts or numbers.
WireValues: TypeAlias = "list[Any]"
_Agree: TypeAlias = "Callable[[int], None]"

_PLACEHOLDER = -1  # number of a row that stands for a batch in a round where this rank has none


class BatchResult(NamedTuple):
    """The values of one batch, or a placeholder.

    Attributes:
        number: position of the batch in data order, over all ranks; -1 in a placeholder.
        ids: positions of its items in the data layer, where it knows them.
        values: one for each wire; none in a placeholder.
    """

    number: int
    ids: list[int] | None
    values: WireValues

    @property
    def counts(self) -> bool:
        """Whether it holds the values of a batch: it is not a placeholder."""
        return self.number != _PLACEHOLDER


class _StopsEarly:
    """Whether an evaluation ends early, because a rank got a stop signal.

    Args:
        received: gives the signal that this rank got, 0 for none.

    Attributes:
        signal: the signal for which all ranks end the evaluation; 0 while they go on.
    """

    def __init__(self, received: Callable[[], int] = int) -> None:
        self.received, self.signal = received, 0


class Evaluation:
    """A DAG lowered for evaluation.

    Args:
        wires: what to compute for each batch.
        device: where.
        precision: in what.
        lowering: how it becomes a module.

    Raises:
        DagError: the wires do not form one DAG, or their data layer does not run on torch.
    """

    def __init__(
        self, wires: Sequence[NmTensor], device: torch.device, precision: Precision, lowering: Lowering = lower
    ) -> None:
        self.dag = Dag(wires)
        self.data_layer, self.modules = torch_data_layer(self.dag), modules_of(self.dag)
        self.module: fx.GraphModule = lowering(self.dag.slice(), "EvaluationDag")
        self._device, self._precision = device, precision

    def rows(self, comm: Comm, stops: _StopsEarly | None = None) -> Iterator[BatchResult]:
        """The values of each batch of this rank: over all ranks every item once, modules in evaluation mode.

        All ranks give the same number of rows. The n-th rows of all ranks are neighbours in the data; a rank without a
        batch there gives a placeholder. Each row begins with an exchange, so all ranks must take their rows alike.

        Normalisation layers use the mean of the ranks' statistics. Modes and statistics are put back when the iteration
        ends, also when it is left early. At its end the loaders of all ranks settle what they noticed.

        Args:
            comm: the ranks.
            stops: asked before each row whether to stop early, on all ranks alike.
        """
        self.module.to(self._device)
        loader, spare = self._loader(Shard(comm.rank, comm.world_size)), None
        with (
            self._precision.prepared(self.modules),
            mean_statistics(self.modules, comm),
            evaluating([self.module]),
            torch.no_grad(),
        ):
            for number, batch in _in_step(loader.epoch(0), comm, stops or _StopsEarly()):
                if batch is not None:
                    yield BatchResult(number, None if batch.ids is None else list(batch.ids), self._run(batch))
                    continue
                if needs_all_ranks(self.modules, in_training=False):  # they exchange values, so all ranks run them
                    spare = spare or self._any_batch(comm)
                    self._run(spare)
                yield BatchResult(_PLACEHOLDER, None, [])
        if stops is None or not stops.signal:
            settle(loader, comm)

    def _loader(self, shard: Shard) -> BatchLoader:
        return self.data_layer.loader(training=False, shard=shard)

    def _run(self, batch: Batch) -> WireValues:
        with EVALUATION, self._precision.forward():
            return list(self.module(*to_device(batch.values, self._device)))

    def _any_batch(self, comm: Comm) -> Batch:
        """The first batch of the whole set, as this rank's part may be empty."""
        batch = next(self._loader(Shard()).epoch(0), None)
        if batch is None:
            raise UsageError(
                f"{self.data_layer.name} gives batches to other ranks, and none to a process that asks for all",
                place=f"rank {comm.rank}",
                remedy="its loader must give the same data at each call",
            )
        return batch


def _in_step(batches: Iterator[Batch], comm: Comm, stops: _StopsEarly) -> Iterator[tuple[int, Batch | None]]:
    """This rank's batches with their numbers, and None in each round in which it has no batch.

    A round is one batch for each rank, neighbours in the data. When a rank's batch of a round cannot be used, its next
    batch waits for its own round. So rounds come in data order, and rank 0 need not keep results back.
    """
    for count, batch in enumerate(WAITING_FOR_DATA.around(batches)):
        number = count * comm.world_size + comm.rank if batch.number is None else batch.number
        while not (vote := _vote(number // comm.world_size, comm, stops)).is_own:
            if vote.is_over:
                return
            yield _PLACEHOLDER, None
        yield number, batch
    while not _vote(None, comm, stops).is_over:
        yield _PLACEHOLDER, None


class _Vote(NamedTuple):
    is_own: bool
    is_over: bool


def _vote(own_round: int | None, comm: Comm, stops: _StopsEarly) -> _Vote:
    """Whether the round of this rank's next batch is the earliest of all ranks' next ones; whether no round follows."""
    votes = [0.0] * comm.world_size
    votes[comm.rank] = 0.0 if own_round is None else own_round + 1.0
    sums = comm.sum([*votes, *flags_of(stops.received())])  # each rank adds to its own vote
    votes, stops.signal = sums[: comm.world_size], signal_in(sums[comm.world_size :])
    if stops.signal:
        return _Vote(is_own=False, is_over=True)
    earliest = min(filter(None, votes), default=0.0)
    return _Vote(is_own=votes[comm.rank] == earliest > 0.0, is_over=earliest == 0.0)


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
        self._stops = _StopsEarly(received)

    def __iter__(self) -> Iterator[list[WireValues]]:
        for rows in self._comm.rounds(map(tuple, self._evaluation.rows(self._comm, self._stops))):
            in_order = in_data_order([rows])
            for row in in_order:
                self.note(row.ids)
            yield [list(column) for column in zip(*(row.values for row in in_order), strict=True)]
        self._agree(self._stops.signal)


class InferenceCache:
    """The values of wires for each batch of this rank."""

    def __init__(self) -> None:
        self._values: dict[NmTensor, WireValues] = {}
        self._batches: list[BatchResult] = []

    def clear(self) -> None:
        """Forget them."""
        self._values.clear()

    def keeping(self, tensors: Sequence[NmTensor], rows: Iterable[BatchResult]) -> Iterator[BatchResult]:
        """The rows; once all have been taken, they are kept."""
        taken = []
        for row in rows:
            if row.counts:
                taken.append(row)
            yield row
        self._values.update({wire: [row.values[i] for row in taken] for i, wire in enumerate(tensors)})
        self._batches = [row._replace(values=[]) for row in taken]

    def rows(
        self, tensors: Sequence[NmTensor], device: torch.device, precision: Precision, lowering: Lowering = lower
    ) -> Iterator[BatchResult]:
        """The values of wires that follow from those kept.

        Raises:
            DagError: they need more than what was kept.
            UsageError: weights that they need are divided among the ranks.
        """
        part = slice_between(self._values, tensors)
        module = lowering(part, "FromCache").to(device)
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
        kept: Iterable[tuple[Any, ...]], module: nn.Module, device: torch.device, precision: Precision
    ) -> Iterator[BatchResult]:
        with precision.prepared(module.children()), evaluating([module]), torch.no_grad():
            for batch, *values in kept:
                moved = to_device(values, device)
                with precision.forward():
                    yield batch._replace(values=list(module(*moved)))


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


def in_data_order(rounds: Iterable[Sequence[tuple[Any, ...]]]) -> list[BatchResult]:
    """All rows of all rounds by number; they travelled as plain tuples."""
    rows = (BatchResult(*travelled) for arrived in rounds for travelled in arrived)
    return sorted((row for row in rows if row.counts), key=lambda row: row.number)
