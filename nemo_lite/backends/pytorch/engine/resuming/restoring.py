"""Checkpoints read on all ranks: by rank 0 for the others, or by each its own pieces of divided weights."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nemo_lite.backends.pytorch.checkpoint.contents import Chosen, Contents
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.backends.pytorch.checkpoint.store.reports import on_every_rank
from nemo_lite.backends.pytorch.distributed import READING_CHECKPOINT, Comm, is_sharded
from nemo_lite.backends.pytorch.engine.module_state import named_weighted_modules
from nemo_lite.core.graph.neural_module import NeuralModule
from nemo_lite.errors import CheckpointError

# Any: what travels between ranks is plain values.


def read_chosen(
    comm: Comm,
    modules: Mapping[str, nn.Module],
    choose: Callable[[], Chosen | None],
    optimizers: Sequence[torch.optim.Optimizer] = (),
    check: Callable[[Contents], object] = lambda contents: None,
) -> Contents | None:
    """What rank 0 chooses, on all ranks. It reads it too, and the others need not have its files.

    Where weights are divided among the ranks, each reads its own pieces: all ranks need the files.
    """

    def read(chosen: Chosen) -> Contents:
        contents = chosen.read(modules, optimizers)
        check(contents)
        return contents

    def read_on_first() -> tuple[Any, ...] | None:
        return None if (chosen := choose()) is None else tuple(read(chosen))

    with READING_CHECKPOINT:
        if is_sharded(modules.values()):
            shared: Any = comm.from_first(lambda: None if (chosen := choose()) is None else tuple(chosen))
            return None if shared is None else on_every_rank(comm, lambda: read(Chosen(*shared)))
        travels: Any = comm.from_first(read_on_first)
    return None if travels is None else Contents(*travels)


def refuse_newer_elsewhere(comm: Comm, checkpoints: CheckpointFolder) -> None:
    """See that no rank has a newer checkpoint in its folder than rank 0, from whose folder a run goes on.

    Rank 0 may be on another machine than before. All ranks call it.

    Raises:
        CheckpointError: one has; the same error on every rank.
    """
    own = (platform.node(), str(checkpoints.folder.absolute()), checkpoints.newest_step())
    ranks = comm.share(comm.gather(own)) or [own]
    (first_host, first_folder, first), *others = ranks
    newer = [(step, host, folder) for host, folder, step in others if step is not None and step > (first or 0)]
    if not newer:
        return
    step, host, folder = max(newer)
    error = CheckpointError(
        "another machine has a newer checkpoint than that of rank 0, from which the run would go on",
        place=f"{host}:{folder}",
        got=f"step {step} there, {'none' if first is None else f'step {first}'} in {first_host}:{first_folder}",
        remedy="start rank 0 on that machine, or use a folder on a file system that all machines share; if it is of "
        "another run, move it away",
    )
    error.is_common = True
    raise error


def restore_weights(comm: Comm, modules: Iterable[NeuralModule], folder: str | Path, pattern: str) -> None:
    """Fill the modules with the weights of the newest checkpoint whose name contains ``pattern``.

    Raises:
        CheckpointError: nothing to restore, no such checkpoint, or one that does not fit.
    """
    named = named_weighted_modules(modules)
    if not named:
        raise CheckpointError("no module of the DAG has weights to restore", place=str(folder))
    contents = read_chosen(comm, named, lambda: CheckpointFolder(folder).choose(named, pattern))
    assert contents is not None
    contents.fill(named)
