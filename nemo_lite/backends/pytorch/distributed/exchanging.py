"""Which modules exchange something with other ranks while they run. Nothing is exchanged here."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from nemo_lite.backends.pytorch.distributed.batchnorm import is_synced

SHARDED = "of_sharded_weights"
"""A class attribute of modules whose weights are divided among the ranks; asking for it imports nothing of FSDP2."""


def is_sharded(modules: Iterable[nn.Module]) -> bool:
    """Whether running any of them puts weights together, an exchange that all ranks must make equally often."""
    return any(hasattr(type(part), SHARDED) for module in modules for part in module.modules())


def needs_all_ranks(modules: Iterable[nn.Module], in_training: bool = True) -> bool:
    """Whether running any of these is an exchange, which all ranks must make equally often.

    Args:
        modules: they and all their parts are looked at.
        in_training: they run as in training; in evaluation, batch normalisation exchanges nothing.
    """
    given = list(modules)
    return is_sharded(given) or (in_training and any(is_synced(part) for module in given for part in module.modules()))
