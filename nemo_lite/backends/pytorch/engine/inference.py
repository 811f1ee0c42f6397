"""What ``infer(cache=True)`` keeps on this rank, and going on from it. Running a whole DAG is elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from nemo_lite.backends.pytorch.distributed import needs_all_ranks
from nemo_lite.backends.pytorch.engine.evaluation import Row
from nemo_lite.backends.pytorch.engine.modes import evaluating
from nemo_lite.backends.pytorch.lowering import lower
from nemo_lite.backends.pytorch.placement import to_device
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.core.graph.dag import slice_between
from nemo_lite.core.graph.nm_tensor import NmTensor
from nemo_lite.errors import UsageError


class InferenceCache:
    """The values of wires for each batch of this rank."""

    def __init__(self) -> None:
        self._values: dict[NmTensor, list[Any]] = {}
        self._batches: list[Row] = []

    def clear(self) -> None:
        """Forget them."""
        self._values.clear()

    def keeping(self, tensors: Sequence[NmTensor], rows: Iterable[Row]) -> Iterator[Row]:
        """The rows; once all have been taken, they are kept."""
        taken = []
        for row in rows:
            if row.counts:
                taken.append(row)
            yield row
        self._values.update({wire: [row.values[i] for row in taken] for i, wire in enumerate(tensors)})
        self._batches = [row._replace(values=[]) for row in taken]

    def rows(self, tensors: Sequence[NmTensor], device: torch.device, precision: Precision) -> Iterator[Row]:
        """The values of wires that follow from those kept.

        Raises:
            DagError: they need more than what was kept.
            UsageError: weights that they need are divided among the ranks.
        """
        part = slice_between(self._values, tensors)
        module = lower(part, "FromCache").to(device)
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
    ) -> Iterator[Row]:
        with evaluating([module]), torch.no_grad():
            for batch, *values in kept:
                moved = to_device(values, device)
                with precision.forward():
                    yield batch._replace(values=list(module(*moved)))
