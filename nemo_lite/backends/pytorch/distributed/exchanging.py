"""Which modules exchange something with other ranks while they run. Nothing is exchanged here."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from nemo_lite.backends.pytorch.distributed.batchnorm import is_synced
from nemo_lite.backends.pytorch.distributed.sharding import is_sharded


def needs_all_ranks(modules: Iterable[nn.Module], in_training: bool = True) -> bool:
    """Whether running any of these is an exchange, which all ranks must make equally often.

    Args:
        modules: they and all their parts are looked at.
        in_training: they run as in training; in evaluation, batch normalisation exchanges nothing.
    """
    given = list(modules)
    return is_sharded(given) or (in_training and any(is_synced(part) for module in given for part in module.modules()))
