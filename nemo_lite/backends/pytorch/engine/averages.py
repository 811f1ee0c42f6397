"""Averages of weights over steps, and statistics of normalisation estimated for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from nemo_lite.backends.pytorch.checkpoint.folder import MeanWeights, mean_of_newest
from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.engine.module_state import RunningStatistics, named_weighted_modules
from nemo_lite.backends.pytorch.placement import Snapshot
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.errors import CheckpointError, UsageError
from nemo_lite.utils import logging

# The statistics of normalisation layers, estimated again for weights that no step has seen. No averaging in here.


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


# Averaging: weights averaged over the steps or the last checkpoints of a run, used for a while. No loop in here.


# Any: a training state is a tree of tensors and numbers.

_WARM_UP = 10
"""A mean over about a tenth of the steps so far, while these are few: it would keep the first weights for long."""


class Averaging:
    """The weights of a run's modules, averaged.

    The exponential moving average takes every step: ``mean = d * mean + (1 - d) * weights`` with
    d = min(``decay``, (1 + t) / (10 + t)) after step t. It is the same on all ranks, as the weights are, and is kept in
    float32 on their device; the host reads nothing. Where weights are rounded from float32 master weights, the masters
    are averaged, and the rounded ones follow: what is evaluated is what a file gets.

    Source: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992; statistics that are
    estimated again: Izmailov et al., "Averaging Weights Leads to Wider Optima", UAI 2018.

    Args:
        modules: of the run.
        decay: of the exponential moving average; None: there is none.
        precision: of the run, after it has adopted the optimizers.
        comm: the ranks.
        is_sharded: weights are divided among the ranks.
        run_for_statistics: runs batches of the training data through the modules in training mode, and calls its
            argument before each.

    Raises:
        UsageError: a decay with weights that are divided among the ranks.
    """

    def __init__(
        self,
        modules: Sequence[NeuralModule],
        decay: float | None,
        precision: Precision,
        comm: Comm,
        is_sharded: bool,
        run_for_statistics: Callable[[Callable[[], None]], None],
    ) -> None:
        self._all, self._decay, self._comm, self._is_sharded = modules, decay, comm, is_sharded
        self._modules = [module for module in modules if isinstance(module, nn.Module)]
        self._run_for_statistics = run_for_statistics
        parameters = (parameter for module in self._modules for parameter in module.parameters())
        self._parameters = [*dict.fromkeys(each for each in parameters if each.is_floating_point())]
        self._masters = precision.masters_of(self._parameters)
        self._means: list[Tensor] = []
        if decay is not None:
            self._refuse_sharded()
            self._means = [_float32(master) for master in self._masters]

    def update(self, step: int) -> None:
        """Take the weights after a step into the exponential moving average, if there is one."""
        if self._decay is None:
            return
        decay = min(self._decay, (1 + step) / (_WARM_UP + step))
        weights = [master.detach() for master in self._masters]
        in_float32 = [each if each.dtype == torch.float32 else each.float() for each in weights]
        torch._foreach_lerp_(self._means, in_float32, 1.0 - decay)

    def state_dict(self) -> dict[str, Any]:
        """The moving average, for a training state; empty without one."""
        return {} if self._decay is None else {"average": {"decay": self._decay, "means": list(self._means)}}

    def load_state_dict(self, state: Mapping[str, Any], place: str = "") -> None:
        """Go on with the average of :meth:`state_dict`; without one, from the weights as they are now.

        Raises:
            CheckpointError: it is of other weights.
        """
        if self._decay is None:
            return
        saved: Sequence[Tensor] | None = state.get("average", {}).get("means")
        if saved is None:
            logging.warning("%s has no average of weights: it begins with the weights of this step", place or "state")
            saved = [_float32(master) for master in self._masters]
        if [each.shape for each in saved] != [each.shape for each in self._means]:
            raise CheckpointError("the average of weights does not fit the weights", place=place)
        for mean, value in zip(self._means, saved, strict=True):
            mean.copy_(value)

    @contextmanager
    def applied(self, last: int = 0, folder: str | Path = "") -> Iterator[str]:
        """Inside, the modules have averaged weights, and statistics that were estimated again on the training data.

        All ranks call it. What is evaluated and saved inside is the averaged model; afterwards weights and statistics
        are as before, so that training goes on as without it.

        Args:
            last: average so many of the newest checkpoints in ``folder``; 0: take the exponential moving average.
            folder: read on rank 0.

        Yields:
            What was averaged, in words.

        Raises:
            UsageError: there is no moving average, or weights are divided among the ranks.
            CheckpointError: no checkpoint, or one that does not fit.
        """
        self._refuse_sharded()
        values, words = self._mean_of_checkpoints(last, folder) if last else self._moving_average()
        weights = Snapshot(dict.fromkeys([*self._masters, *self._parameters]))
        statistics = RunningStatistics(self._modules)
        weights.keep()
        statistics.keep()
        try:
            with torch.no_grad():
                for master, parameter, value in zip(self._masters, self._parameters, values, strict=True):
                    master.copy_(value)
                    parameter.copy_(master)
            estimate(self._modules, self._run_for_statistics)
            yield words
        finally:
            weights.put_back()
            statistics.put_back()

    def _moving_average(self) -> tuple[list[Tensor], str]:
        if self._decay is None:
            remedy = 'train with optimization_params={"ema_decay": 0.999}'
            raise UsageError("there is no moving average of the weights", place="averaging", remedy=remedy)
        return self._means, f"moving average of the weights, decay {self._decay:g}"

    def _mean_of_checkpoints(self, last: int, folder: str | Path) -> tuple[list[Tensor], str]:
        named = named_weighted_modules(self._all)
        travels: Any = self._comm.from_first(lambda: tuple(mean_of_newest(folder, named, last)))
        mean = MeanWeights(*travels)
        by_parameter = {
            parameter: mean.tensors[module_name][name]
            for module_name, module in named.items()
            for name, parameter in module.named_parameters()
        }
        values = [by_parameter[parameter] for parameter in self._parameters]
        return values, f"mean of the checkpoints of {', '.join(map(str, mean.steps))} steps"

    def _refuse_sharded(self) -> None:
        if self._is_sharded:
            problem, remedy = "averages of weights do not go with shard_weights", "leave one of the two out"
            raise UsageError(problem, remedy=remedy)


def _float32(parameter: Tensor) -> Tensor:
    return parameter.detach().to(torch.float32, copy=True)
