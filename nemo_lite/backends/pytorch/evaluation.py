"""Running a DAG over its data layer without gradients: for evaluation and inference. No metrics here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn

from nemo_lite.backends.pytorch.data import Shard
from nemo_lite.backends.pytorch.distributed import Comm
from nemo_lite.backends.pytorch.lowering import lower
from nemo_lite.backends.pytorch.modes import evaluating
from nemo_lite.backends.pytorch.nm import DataLayerNM
from nemo_lite.backends.pytorch.placement import to_device
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.core.dag import Dag
from nemo_lite.core.nm_tensor import NmTensor
from nemo_lite.errors import DagError


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

    def batches(self, comm: Comm) -> Iterator[tuple[Any, ...]]:
        """The wires' values for each batch of this rank: every item once, in data order, modules in evaluation mode.

        The modules' own modes are put back when the iteration ends, also when it is left early.
        """
        self.module.to(self._device)
        loader = self.data_layer.loader(training=False, shard=Shard(comm.rank, comm.world_size))
        with evaluating([self.module]), torch.no_grad():
            for batch in loader.epoch(0):
                with self._precision.forward():
                    values = self.module(*to_device(batch.values, self._device))
                yield values


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
