"""What ``train`` was asked for, checked before anything runs. Nothing is built and nothing runs here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.distributed.contract import effective_batch
from nemo_lite.backends.pytorch.engine.objectives import LoweredObjective
from nemo_lite.backends.pytorch.nm import DataLayerNM
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.base.errors import UsageError
from nemo_lite.core.callbacks.base import Callback
from nemo_lite.core.callbacks.tracking import ProgressBar
from nemo_lite.core.neural_types import NmTensor
from nemo_lite.core.run_options import WITHOUT_CUDA_GRAPHS, CompileOptions, Objective, RunOptions
from nemo_lite.utils import logging

# Any: what a script gives is checked here.


def check_policy(lr_policy: object) -> None:
    """Raise UsageError for what is not a function of (initial rate, step, epoch): a name, or a class of policies."""
    if lr_policy is None or (callable(lr_policy) and not isinstance(lr_policy, type)):
        return
    got = lr_policy.__name__ if isinstance(lr_policy, type) else repr(lr_policy)
    remedy = "make an object of the class, or get_lr_policy(name, ...) from nemo_lite.utils.lr_policies"
    raise UsageError("lr_policy must be a policy or a function of (initial rate, step, epoch)", got=got, remedy=remedy)


def check_callbacks(callbacks: Sequence[Callback] | None) -> Sequence[Callback]:
    """The callbacks as a sequence; ``None`` is none.

    Raises:
        UsageError: it is not a list, but one callback, say.
    """
    if callbacks is not None and not isinstance(callbacks, (list, tuple)):
        got = type(callbacks).__name__
        raise UsageError("callbacks must be a list", got=got, remedy="put brackets around it")
    return callbacks or ()


def with_bar(
    callbacks: Sequence[Callback] | None, tensors_to_evaluate: Sequence[NmTensor] | None = None
) -> list[Callback]:
    """The callbacks, checked, and a progress bar if there is none among them.

    Args:
        callbacks: of the script.
        tensors_to_evaluate: wires for those callbacks that print them, as in the first NeMo.
    """
    checked = check_callbacks(callbacks)
    for callback in checked:
        callback.take_tensors_to_evaluate(tensors_to_evaluate or ())
    return [*checked, *([] if any(isinstance(each, ProgressBar) for each in checked) else [ProgressBar()])]


def tell_batch_size(data_layer: DataLayerNM, comm: Comm, batches: int, label: str = "") -> None:
    """Log how many items a step takes."""
    batch_size = data_layer.setting("batch_size", 1)
    if batch_size > 0:
        most = "at most " if data_layer.setting("max_batch_seconds", None) else ""
        batch = effective_batch(batch_size, comm.world_size, batches, "items")
        logging.info("%s%s%s", label, most, batch)


def check_sharding(shard_weights: bool, comm: Comm, precision: Precision, options: RunOptions) -> None:
    """Say that one process has nothing to divide.

    Raises:
        UsageError: float16, whose loss scale would have to be found over all parts of a gradient; or O2 and O3, whose
            half weights would have to be divided too; or options of DistributedDataParallel, which sharding replaces.
    """
    if shard_weights and (options.static_graph or options.gradient_compression):
        name = "static_graph" if options.static_graph else "gradient_compression"
        raise UsageError(f"shard_weights does not go with {name}", remedy="leave one of them out")
    if shard_weights and precision.casts_weights:
        level = precision.level.short
        raise UsageError(f"shard_weights does not go with {level}", remedy='take optimization_level="O1"')
    if shard_weights and precision.dtype is torch.float16:
        raise UsageError("shard_weights does not go with float16", remedy='compute in bfloat16: amp_dtype="bfloat16"')
    if shard_weights and comm.world_size == 1:
        logging.warning("shard_weights has no effect: there is one process")


def check_cuda_graphs(
    options: CompileOptions, device: torch.device, batches_per_step: int, objectives: Sequence[LoweredObjective]
) -> None:
    """See that no gradient is added to one that lies in the memory of a CUDA graph, whose next run writes over it.

    Args:
        options: how the DAGs are compiled.
        device: where they run.
        batches_per_step: the most micro-batches of any update.
        objectives: of the run.

    Raises:
        UsageError: one would be: of several micro-batches, or of a weight that another objective trains.
    """
    if not options.has_cuda_graphs or device.type == "cpu":
        return
    got = f"batches_per_step {batches_per_step}" if batches_per_step > 1 else ""
    for objective in objectives:
        modules = [call.module for call in objective.calls if isinstance(call.module, nn.Module)]
        reached = {weight for module in modules for weight in module.parameters() if weight.requires_grad}
        others = {weight for other in objectives for weight in other.parameters} - {*objective.parameters}
        if not got and reached & others:
            got = "objectives whose losses depend on weights that others of them train"
    if got:
        mode = WITHOUT_CUDA_GRAPHS
        remedy = f'take mode "{mode}" (--compile_mode {mode}) or "default", or larger batches, one a step'
        problem = f"compile mode {options.mode} cannot add gradients up on a GPU: its CUDA graphs write over them"
        raise UsageError(problem, got=got, remedy=remedy)


def lanes_of(
    tensors: Sequence[object], optimizer: str | torch.optim.Optimizer | None, batches_per_step: int
) -> list[list[Objective]]:
    """The objectives of a run, in lanes: those of a lane take turns with the batches of one loader.

    Losses alone are one objective; ``(optimizer, losses)`` tuples are one lane; each `Objective` is a lane of its own.

    Raises:
        UsageError: something else, or an optimizer too few or too many.
    """
    if not isinstance(tensors, (list, tuple)):
        got = type(tensors).__name__
        raise UsageError("tensors_to_optimize must be a list", got=got, remedy="put brackets around it")
    if not tensors:
        raise UsageError("tensors_to_optimize is empty", wanted="losses, or (optimizer, [losses]) tuples")
    if all(isinstance(item, Objective) for item in tensors):
        lanes = [replace(item, optimizer=item.optimizer or optimizer) for item in tensors]
        if any(objective.optimizer is None for objective in lanes):
            raise UsageError("an optimizer is missing", wanted="optimizer= a name or an instance")
        if lanes[0].every != 1:
            problem = "the first objective is updated at each step, and its epochs are those of the run"
            raise UsageError(problem, place="Objective", got=f"every={lanes[0].every}")
        return [[objective] for objective in lanes]
    if all(isinstance(item, NmTensor) for item in tensors):
        if optimizer is None:
            raise UsageError("an optimizer is missing", wanted="optimizer= a name or an instance")
        return [[Objective(tensors, optimizer)]]
    for item in tensors:
        if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], torch.optim.Optimizer)):
            got = ", ".join(type(item).__name__ for item in tensors)
            raise UsageError("tensors_to_optimize takes losses, or (optimizer, [losses]) tuples", got=got)
    if optimizer is not None or batches_per_step > 1:
        raise UsageError("(optimizer, [losses]) tuples go with neither optimizer= nor batches_per_step above 1")
    return [[Objective(losses, chosen) for chosen, losses in tensors]]


def terms_of_lanes(lanes: Sequence[Sequence[Objective]]) -> dict[str, str]:
    """Settings of objectives with data of their own, for the run contract; empty without such objectives."""
    if len(lanes) == 1:
        return {}
    return {
        f"objective {number}": f"every {objective.every}, batches {objective.batches}, {objective.optimizer_params({})}"
        for number, (objective,) in enumerate(lanes, 1)
    }
