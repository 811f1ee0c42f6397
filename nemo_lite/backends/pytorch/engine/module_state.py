"""Modes and running statistics of modules that several DAGs share: set for an action, put back after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from nemo_lite.backends.pytorch.distributed import Comm, is_synced, refuse_drifted_weights
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.backends.pytorch.precision import own_part
from nemo_lite.backends.pytorch.snapshot import Snapshot
from nemo_lite.core.graph.dag import Dag
from nemo_lite.core.graph.neural_module import NeuralModule, unique_names


def modules_of(dag: Dag) -> list[nn.Module]:
    """The modules of a DAG that run on torch."""
    return [module for module in dag.modules.values() if isinstance(module, nn.Module)]


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


class RunningStatistics:
    """Means, variances and counts that a forward in training mode moves, as they were before it.

    A NaN in one batch would stay in them for ever, and evaluation reads them.

    Args:
        modules: what runs; every normalisation layer in them is looked after.
        own_only: but not those whose statistics are those of several ranks.
    """

    def __init__(self, modules: Iterable[nn.Module], own_only: bool = False) -> None:
        parts = (part for module in modules for part in module.modules() if isinstance(part, _NormBase))
        layers = {part: None for part in parts if not (own_only and is_synced(part))}
        self._buffers = list(dict.fromkeys(buffer for layer in layers for buffer in layer.buffers(recurse=False)))
        self._before = Snapshot(self._buffers)

    def keep(self) -> None:
        """Remember the statistics as they are."""
        self._before.keep()

    def make_equal(self, comm: Comm) -> None:
        """Make means and variances their mean over the ranks, and remember those of before. All ranks call it."""
        self.keep()
        comm.average([buffer for buffer in self._buffers if buffer.is_floating_point()])

    def put_back(self) -> None:
        """Make them what they were when :meth:`keep` was called."""
        self._before.put_back()

    def put_back_where(self, flag: torch.Tensor) -> None:
        """The same if ``flag``, one number on the device, is not 0; the host does not learn which."""
        self._before.put_back_where(flag)


def make_statistics_equal(modules: Iterable[nn.Module], comm: Comm) -> None:
    """Give all ranks the mean of their statistics, for good.

    Raises:
        DistributedError: the ranks' weights have drifted apart.
    """
    modules = list(modules)
    refuse_drifted_weights(modules, comm)
    RunningStatistics(modules).make_equal(comm)


@contextmanager
def mean_statistics(modules: Iterable[nn.Module], comm: Comm) -> Iterator[None]:
    """Inside, normalisation layers have the mean of the ranks' statistics; afterwards each rank has its own again.

    So an evaluation, however often it comes, leaves the training as it was.

    Raises:
        DistributedError: the ranks' weights have drifted apart.
    """
    modules = list(modules)
    refuse_drifted_weights(modules, comm)
    statistics = RunningStatistics(modules)
    statistics.make_equal(comm)
    try:
        yield
    finally:
        statistics.put_back()


def weights_not_finite(modules: Iterable[tuple[str, nn.Module]]) -> list[str]:
    """The names of the parameters with a NaN or an infinity; of divided ones, in this rank's part. A host sync.

    Args:
        modules: with their names for messages.
    """
    parameters = ((f"{label}.{name}", own) for label, module in modules for name, own in module.named_parameters())
    named = [(name, own) for name, own in parameters if not own.is_meta]  # a rehearsal's have no values
    if not named:
        return []
    with torch.no_grad():
        are_finite = torch.stack([own_part(parameter).isfinite().all() for _, parameter in named]).tolist()
    return [name for (name, _), is_finite in zip(named, are_finite, strict=True) if not is_finite]


def named_weighted_modules(modules: Iterable[NeuralModule]) -> dict[str, nn.Module]:
    """The modules with something to save, by the names they are saved under.

    Raises:
        CheckpointError: two of one name.
    """
    named = unique_names(module for module in modules if isinstance(module, nn.Module) and module.state_dict())
    return {name: module for name, module in named.items() if isinstance(module, nn.Module)}
