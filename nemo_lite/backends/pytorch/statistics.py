"""Running statistics of normalisation layers, put back after a step that must leave no trace. Nothing else."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase


class RunningStatistics:
    """Means, variances and counts that a forward in training mode moves, as they were before it.

    A NaN in one batch would stay in them for ever, and evaluation reads them.

    Args:
        modules: what runs; every normalisation layer in them is looked after.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        layers = {part: None for module in modules for part in module.modules() if isinstance(part, _NormBase)}
        buffers = list(dict.fromkeys(buffer for layer in layers for buffer in layer.buffers(recurse=False)))
        # One call copies all tensors of one kind; each has its own device and dtype.
        kinds = dict.fromkeys((buffer.device, buffer.dtype) for buffer in buffers)
        self._buffers = [[b for b in buffers if (b.device, b.dtype) == kind] for kind in kinds]
        self._kept = [[buffer.clone() for buffer in group] for group in self._buffers]

    def keep(self) -> None:
        """Remember the statistics as they are."""
        for buffers, kept in zip(self._buffers, self._kept, strict=True):
            torch._foreach_copy_(kept, buffers)

    def put_back(self) -> None:
        """Make them what they were when :meth:`keep` was called."""
        for buffers, kept in zip(self._buffers, self._kept, strict=True):
            torch._foreach_copy_(buffers, kept)
