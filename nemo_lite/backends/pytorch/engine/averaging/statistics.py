"""The statistics of normalisation layers, estimated again for weights that no step has seen. No averaging in here."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase


def estimate(modules: Iterable[nn.Module], run: Callable[[Callable[[], None]], None]) -> None:
    """Give normalisation layers the plain mean of their statistics over some batches.

    Layers in evaluation mode (those of frozen modules) keep theirs.

    Args:
        modules: those whose layers learn.
        run: runs the batches in training mode, and calls its argument before each.
    """
    parts = (part for module in modules for part in module.modules())
    layers = [part for part in parts if isinstance(part, _NormBase) and part.training and part.track_running_stats]
    if not layers:
        return
    before = [layer.momentum for layer in layers]
    num_batches = 0

    def next_batch() -> None:
        # The running mean of k values: new = old + (value - old) / k. With momentum None torch reads k from the device.
        nonlocal num_batches
        num_batches += 1
        for layer in layers:
            layer.momentum = 1.0 / num_batches

    try:
        with torch.no_grad():
            run(next_batch)
    finally:
        for layer, momentum in zip(layers, before, strict=True):
            layer.momentum = momentum
