"""InferenceCache: values of wires that ``infer(cache=True)`` keeps, and what follows from them (``use_cache=True``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from nemo_lite.backends.pytorch.distributed import needs_all_ranks
from nemo_lite.backends.pytorch.engine.evaluation.rounds import BatchResult
from nemo_lite.backends.pytorch.engine.module_state import evaluating
from nemo_lite.backends.pytorch.lowering import Lowering, lower
from nemo_lite.backends.pytorch.placement import to_device
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.core.graph.dag import slice_between
from nemo_lite.core.neural_types.nm_tensor import NmTensor
from nemo_lite.errors import UsageError

# Any: values of wires are tensors, lists of texts or numbers.
WireValues: TypeAlias = "list[Any]"


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
    ) -> Iterator[list[BatchResult]]:
        with precision.prepared(module.children()), evaluating([module]), torch.no_grad():
            for batch, *values in kept:
                moved = to_device(values, device)
                with precision.forward():
                    yield [batch._replace(values=list(module(*moved)))]
