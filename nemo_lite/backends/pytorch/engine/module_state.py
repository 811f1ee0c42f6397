"""Modes and running statistics of modules that several DAGs share: set for an action, put back after it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from nemo_lite.backends.pytorch.distributed.batchnorm import is_synced
from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.distributed.replicas import refuse_drifted_weights
from nemo_lite.backends.pytorch.generators import Before, generators_set_aside, to_put_back
from nemo_lite.backends.pytorch.nm import LossNM, TrainableNM
from nemo_lite.backends.pytorch.placement import Snapshot
from nemo_lite.backends.pytorch.precision import own_part
from nemo_lite.base.errors import MAX_LISTED, counted
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_module import NeuralModule, unique_names
from nemo_lite.utils import logging


def modules_of(dag: Dag) -> list[nn.Module]:
    """The modules of a DAG that run on torch."""
    return [module for module in dag.modules.values() if isinstance(module, nn.Module)]


def set_training(modules: Iterable[nn.Module]) -> None:
    """Put modules into training mode. Frozen ones, and parts that a user put into evaluation mode, stay as they are.

    Where all of a module is in evaluation mode, as after loading, nothing says which parts a user wants there: all but
    the frozen ones are put into training mode.
    """
    for module in modules:
        if module.training or _is_frozen(module):
            continue
        parts = dict(module.named_modules())
        if any(part.training for part in parts.values()):
            module.training = True
            _tell_of_evaluated_parts(module, parts)
            continue
        module.train()
        for part in parts.values():
            if _is_frozen(part):
                part.eval()


def _tell_of_evaluated_parts(module: nn.Module, parts: Mapping[str, nn.Module]) -> None:
    names = [name for name, part in parts.items() if not part.training and not _is_frozen(part)]
    if names:
        listed = ", ".join([*names[:MAX_LISTED], *(["..."] if len(names) > MAX_LISTED else [])])
        label = module.label if isinstance(module, NeuralModule) else type(module).__name__
        text = "%s: %s in evaluation mode, which training leaves there: %s; call train() of the module for all"
        logging.warning(text, label, counted(len(names), "part"), listed)


def _is_frozen(module: nn.Module) -> bool:
    return isinstance(module, TrainableNM) and module.is_frozen()


@contextmanager
def left_as_they_are(modules: Iterable[object], device: torch.device) -> Iterator[None]:
    """A pass inside changes nothing: generators, buffers and what losses tell of items are the same afterwards."""
    named = {str(number): module for number, module in enumerate(modules)}
    parts = [module for module in named.values() if isinstance(module, nn.Module)]
    buffers = Snapshot(dict.fromkeys(buffer for part in parts for buffer in part.buffers()))
    told = [(part, part.item_losses) for part in parts if isinstance(part, LossNM)]
    buffers.keep()
    for module, _ in told:
        module.item_losses = None
    try:
        with generators_set_aside(device, named):
            yield
    finally:
        buffers.put_back()
        for module, item_losses in told:
            module.item_losses = item_losses


_modes_aside: list[Before] = []
_MODES = threading.RLock()


@contextmanager
def evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Evaluation mode inside, and every part's own mode again afterwards.

    Several may be open at once, one inside the other or in several threads, and end in any order: a part has its own
    mode again when nobody evaluates it any more.
    """
    seen: set[nn.Module] = set()
    parts = [part for module in modules for _, part in module.named_modules(seen)]
    with _MODES:
        before: Before = {part: part.training for part in parts}
        _modes_aside.append(before)
        _set_modes((part, False) for part in parts)
    try:
        yield
    finally:
        with _MODES:
            _set_modes(to_put_back(_modes_aside, before).items())


def _set_modes(modes: Iterable[tuple[nn.Module, bool]]) -> None:
    """Write only what differs: writing an attribute of a module takes much longer than reading it."""
    for part, training in modes:
        if part.training != training:
            part.training = training


class RunningStatistics(Snapshot):
    """Means, variances and counts that a forward in training mode moves, as they were before it.

    A NaN in one batch would stay in them for ever, and evaluation reads them.

    Args:
        modules: what runs; every normalisation layer in them is looked after.
        own_only: but not those whose statistics are those of several ranks.
    """

    def __init__(self, modules: Iterable[nn.Module], own_only: bool = False) -> None:
        parts = (part for module in modules for part in module.modules() if isinstance(part, _NormBase))
        layers = {part: None for part in parts if not (own_only and is_synced(part))}
        super().__init__(dict.fromkeys(buffer for layer in layers for buffer in layer.buffers(recurse=False)))

    def make_equal(self, comm: Comm) -> None:
        """Make means and variances their mean over the ranks, and remember those of before. All ranks call it."""
        self.keep()
        comm.average([buffer for buffer in self._tensors if buffer.is_floating_point()])


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
