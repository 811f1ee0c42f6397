"""Averages of weights over steps, and statistics of normalisation estimated for them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from nemo_lite.backends.pytorch.checkpoint.fitting import parameters_of_state
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.backends.pytorch.checkpoint.record import best_of
from nemo_lite.backends.pytorch.checkpoint.storage import read_fitting
from nemo_lite.backends.pytorch.distributed.batchnorm import is_synced
from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.engine.module_state import RunningStatistics, named_weighted_modules
from nemo_lite.backends.pytorch.placement import Snapshot
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.backends.pytorch.tensor_codec import Tree
from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.core.callbacks.action_state import Best
from nemo_lite.core.neural_module import NeuralModule, unique_names
from nemo_lite.utils import logging


def estimate(modules: Iterable[nn.Module], run: Callable[[Callable[[bool], None]], None]) -> None:
    """Give normalisation layers the plain mean of their statistics over some batches.

    A layer that a batch goes through twice counts twice. Layers in evaluation mode (those of frozen modules) keep
    theirs.

    Args:
        modules: those whose layers learn.
        run: runs the batches in training mode. Before each it calls its argument with whether the batch counts; the
            statistics of one that does not are put back, but those of layers that are synchronised over ranks.
    """
    parts = (part for module in modules for part in module.modules())
    layers = [part for part in parts if isinstance(part, _NormBase) and part.training and part.track_running_stats]
    if not layers:
        return
    before = [layer.momentum for layer in layers]
    num_calls, is_counted = Counter[nn.Module](), True

    def next_batch(counts: bool = True) -> None:
        nonlocal is_counted
        is_counted = counts

    def next_call(layer: _NormBase, inputs: object) -> None:
        # The running mean of k values: new = old + (value - old) / k. With momentum None torch reads k from the device.
        if is_counted or is_synced(layer):
            num_calls[layer] += 1
            layer.momentum = 1.0 / num_calls[layer]

    hooks = [layer.register_forward_pre_hook(next_call) for layer in layers]
    # Inside, compiled regions run as they are: torch would compile them anew for each momentum. Where torch._dynamo,
    # whose import takes seconds, is not imported, nothing is compiled.
    is_compiled = "torch._dynamo" in sys.modules
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager") if is_compiled else nullcontext():
            run(next_batch)
    finally:
        for hook, layer, momentum in zip(hooks, layers, before, strict=True):
            hook.remove()
            layer.momentum = momentum


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
        run_for_statistics: runs batches of the training data through the modules in training mode, see
            :func:`estimate`.

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
        run_for_statistics: Callable[[Callable[[bool], None]], None],
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
            self._means = [master.detach().to(torch.float32, copy=True) for master in self._masters]

    def update(self, step: int) -> None:
        """Take the weights after a step into the exponential moving average, if there is one."""
        if self._decay is None:
            return
        decay = min(self._decay, (1 + step) / (_WARM_UP + step))
        weights = [master.detach() for master in self._masters]
        in_float32 = [each if each.dtype == torch.float32 else each.float() for each in weights]
        torch._foreach_lerp_(self._means, in_float32, 1.0 - decay)

    def state_dict(self) -> dict[str, object]:
        """The moving average by the weights' names, for a training state; empty without one."""
        return {} if self._decay is None else {"average": {"decay": self._decay, "means": self._means_by_name()}}

    def load_state_dict(self, state: Mapping[str, Tree], place: str = "") -> None:
        """Go on with the average of :meth:`state_dict`; without one, from the weights as they are now.

        Raises:
            CheckpointError: it is of other weights.
        """
        if self._decay is None:
            return
        saved: Tree = state.get("average", {}).get("means")
        if saved is None:
            logging.warning("%s has no average of weights: it begins with the weights of this step", place or "state")
            for mean, master in zip(self._means, self._masters, strict=True):
                mean.copy_(master.detach())
            return
        means = self._means_by_name()
        if not isinstance(saved, Mapping) or _shapes(saved) != _shapes(means):
            raise CheckpointError("the average of weights does not fit the weights", place=place)
        for name, mean in means.items():
            mean.copy_(saved[name])

    def _means_by_name(self) -> dict[str, Tensor]:
        names: dict[Tensor, str] = {}  # of a weight that several modules have, the first
        with_weights = (each for each in self._all if [*_named_parameters(each)])
        for label, module in unique_names(with_weights).items():
            for name, parameter in _named_parameters(module):
                names.setdefault(parameter, f"{label}.{name}")
        return {names[parameter]: mean for parameter, mean in zip(self._parameters, self._means, strict=True)}

    @contextmanager
    def applied(self, checkpoints: int | Best = 0, folder: str | Path = "") -> Iterator[str]:
        """Inside, the modules have averaged weights, and statistics that were estimated again on the training data.

        All ranks call it. What is evaluated and saved inside is the averaged model; afterwards weights and statistics
        are as before, so that training goes on as without it.

        Args:
            checkpoints: average so many of the newest ones in ``folder``, or the best ones; 0: take the exponential
                moving average.
            folder: read on rank 0.

        Yields:
            What was averaged, in words.

        Raises:
            UsageError: there is no moving average, or weights are divided among the ranks.
            CheckpointError: no checkpoint, or one that does not fit.
        """
        self._refuse_sharded()
        values, words = self._mean_of_checkpoints(checkpoints, folder) if checkpoints else self._moving_average()
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

    def _mean_of_checkpoints(self, checkpoints: int | Best, folder: str | Path) -> tuple[list[Tensor], str]:
        named = named_weighted_modules(self._all)
        means, steps = self._comm.from_first(lambda: mean_of_checkpoints(folder, named, checkpoints))
        by_parameter = {
            parameter: means[module_name][name]
            for module_name, module in named.items()
            for name, parameter in parameters_of_state(module).items()
        }
        if any(each.requires_grad and each not in by_parameter for each in self._parameters):
            problem = "a module keeps weights that are trained out of its state_dict: they cannot be averaged"
            raise CheckpointError(problem, place=str(folder))
        pairs = zip(self._parameters, self._masters, strict=True)
        values = [by_parameter.get(parameter, master.detach()) for parameter, master in pairs]
        return values, f"mean of the checkpoints of {', '.join(map(str, steps))} steps"

    def _refuse_sharded(self) -> None:
        if self._is_sharded:
            problem, remedy = "averages of weights do not go with shard_weights", "leave one of the two out"
            raise UsageError(problem, remedy=remedy)


def mean_of_checkpoints(
    folder: str | Path, modules: Mapping[str, nn.Module], checkpoints: int | Best
) -> tuple[dict[str, dict[str, Tensor]], list[int]]:
    """The mean of each parameter over the newest complete checkpoints, or the best ones; over all if there are fewer.

    Args:
        folder: where the checkpoints are.
        modules: by the names under which they were saved.
        checkpoints: how many of the newest, at least 1; or the best.

    Returns:
        The means by the module's name and their own, in float32; the steps after which the checkpoints were saved.

    Raises:
        CheckpointError: no complete checkpoint, or one that does not fit the modules.
    """
    made = CheckpointFolder(folder)
    if isinstance(checkpoints, Best):
        chosen = best_of(made.newest_sets(sys.maxsize), checkpoints)
    else:
        chosen = made.newest_sets(checkpoints)
    sets = sorted(chosen, key=lambda each: each.serial)
    if not sets:
        raise CheckpointError("there is no checkpoint to average", place=str(folder))
    sums: dict[str, dict[str, Tensor]] = {name: {} for name in modules}
    for checkpoint in sets:  # one at a time: memory holds one checkpoint and the sums
        for module_name, module in modules.items():
            path = checkpoint.path_of(module_name)
            if path is None:
                raise CheckpointError(f"checkpoint {checkpoint.tag} has no {module_name}", place=str(folder))
            stored, totals = read_fitting(module, path), sums[module_name]
            for name in parameters_of_state(module):
                value = stored[name].to(torch.float32)
                totals[name] = totals[name].add_(value) if name in totals else value.clone()
    for total in (total for totals in sums.values() for total in totals.values()):
        total.div_(len(sets))
    return sums, [checkpoint.number if checkpoint.step is None else checkpoint.step for checkpoint in sets]


def _named_parameters(module: object) -> Iterator[tuple[str, nn.Parameter]]:
    return module.named_parameters() if isinstance(module, nn.Module) else iter(())


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
