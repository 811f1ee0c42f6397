"""Training and evaluation modes of modules that several DAGs share. Nothing runs here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn

from nemo_lite.backends.pytorch.nm import TrainableNM


def set_training(modules: Iterable[nn.Module]) -> None:
    """Put modules into training mode. Frozen ones, and parts that a user put into evaluation mode, stay as they are."""
    for module in modules:
        frozen = isinstance(module, TrainableNM) and module.is_frozen()
        if not module.training and not frozen:
            module.train()


@contextmanager
def evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Evaluation mode inside, and every part's own mode again afterwards."""
    before = [(part, part.training) for module in modules for part in module.modules()]
    for part, _ in before:
        part.training = False
    try:
        yield
    finally:
        for part, training in before:
            part.training = training
