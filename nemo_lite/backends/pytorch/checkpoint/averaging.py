"""The mean of the weights of a folder's newest checkpoints. Statistics of normalisation are not averaged here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.backends.pytorch.checkpoint.storage import read_fitting
from nemo_lite.errors import CheckpointError


class MeanWeights(NamedTuple):
    """Parameters of modules, averaged over checkpoints.

    Attributes:
        tensors: by the module's name and their own, in float32.
        steps: the steps after which the checkpoints were saved.
    """

    tensors: Mapping[str, Mapping[str, Tensor]]
    steps: tuple[int, ...]


def mean_of_newest(folder: str | Path, modules: Mapping[str, nn.Module], count: int) -> MeanWeights:
    """The mean of each parameter over the newest ``count`` complete checkpoints, or over all if there are fewer.

    Args:
        folder: where the checkpoints are.
        modules: by the names under which they were saved.
        count: how many, at least 1.

    Raises:
        CheckpointError: no complete checkpoint, or one that does not fit the modules.
    """
    sets = CheckpointFolder(folder).sets()[-count:]
    if not sets:
        raise CheckpointError("there is no checkpoint to average", place=str(folder))
    sums: dict[str, dict[str, Tensor]] = {}
    for found in sets:  # one at a time: memory holds one checkpoint and the sums
        for module_name, module in modules.items():
            path = found.path_of(module_name)
            if path is None:
                raise CheckpointError(f"checkpoint {found.tag} has no {module_name}", place=str(folder))
            stored, sums_of_module = read_fitting(module, path), sums.setdefault(module_name, {})
            for name, _ in module.named_parameters():
                value = stored[name].to(torch.float32)
                sums_of_module[name] = sums_of_module[name].add_(value) if name in sums_of_module else value.clone()
    means = {
        module_name: {name: total.div_(len(sets)) for name, total in of_module.items()}
        for module_name, of_module in sums.items()
    }
    return MeanWeights(means, tuple(found.number if found.step is None else found.step for found in sets))
