"""Objectives: the losses that one optimizer minimises, checked, lowered and wrapped for all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from nemo_lite.backends.pytorch.distributed.comm import PLAIN_REPLICA, Comm, Replica, ReplicaOptions
from nemo_lite.backends.pytorch.distributed.contract import effective_batch
from nemo_lite.backends.pytorch.engine.module_state import modules_of
from nemo_lite.backends.pytorch.lowering import Lowering, lower
from nemo_lite.backends.pytorch.nm import DataLayerNM, LossNM
from nemo_lite.backends.pytorch.optimizers import (
    DECAY_WEIGHTS_ONLY,
    MODULE_LR,
    checked_module_lr,
    create_optimizer,
    decaying_weights_only,
    is_decay_of_weights_only,
    parameter_groups,
)
from nemo_lite.backends.pytorch.precision import Precision, float32_parts
from nemo_lite.base.errors import UsageError
from nemo_lite.core.callbacks.base import Callback, is_overridden
from nemo_lite.core.callbacks.progress_bar import ProgressBar
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_module import NeuralModule, unique_names
from nemo_lite.core.neural_types import ModuleCall, NmTensor
from nemo_lite.core.run_options import WITHOUT_CUDA_GRAPHS, CompileOptions, Objective, RunOptions
from nemo_lite.utils import logging

# What ``train`` was asked for, checked before anything runs. Nothing is built and nothing runs here.


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
        reached = {parameter for parameter in _parameters(modules) if parameter.requires_grad}
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


# Objectives: from losses to what an optimizer minimises, with whole or sharded weights. No training loop here.


@dataclass
class LoweredObjective:
    """An `Objective` as a module on all ranks, with its optimizer.

    Attributes:
        module: computes the losses, then the extra wires, from a batch; its gradients are averaged over the ranks.
        num_losses: how many of its outputs are losses; they are summed.
        returned_wires: those of a batch, then those of the module's outputs.
        calls: those that the module makes.
        optimizer: updates ``parameters``.
        parameters: what is clipped and updated.
        initial_lrs: learning rate of each parameter group before any policy.
        loss_modules: those that give the losses, and any others on the way.
        halves: the half weights that are rounded from ``parameters``, where the precision has such.
    """

    module: Replica
    num_losses: int
    returned_wires: Sequence[NmTensor]
    calls: Set[ModuleCall]
    optimizer: torch.optim.Optimizer
    parameters: Sequence[nn.Parameter]
    initial_lrs: Sequence[float]
    loss_modules: Sequence[LossNM] = ()
    halves: Sequence[torch.Tensor] = ()

    def clear_gradients(self) -> None:
        """Let the gradients of the weights go, also those of the half weights that the optimizer does not hold."""
        for half in self.halves:
            half.grad = None
        if is_overridden(self.optimizer, "zero_grad", torch.optim.Optimizer):  # by its class, or by apex on the object
            self.optimizer.zero_grad(set_to_none=True)
            return
        for parameter in self.parameters:  # zero_grad itself takes 6 microseconds more, for torch's profiler
            parameter.grad = None


class Objectives:
    """Makes objectives and optimizers.

    Args:
        comm: the ranks.
        device: where modules run.
        shard_weights: shard weights over the ranks.
        half: the type of autocast, if the run computes under it.
    """

    def __init__(self, comm: Comm, device: torch.device, shard_weights: bool, half: torch.dtype | None = None) -> None:
        self._comm, self._device, self._shard_weights, self._half = comm, device, shard_weights, half

    def make_all(
        self,
        modules: Sequence[nn.Module],
        goals: Sequence[tuple[Objective, Dag, Sequence[NmTensor]]],
        params: Mapping[str, object],
        precision: Precision,
        lowering: Lowering = lower,
        replication: ReplicaOptions = PLAIN_REPLICA,
    ) -> list[LoweredObjective]:
        """The objectives of a run, lowered.

        Args:
            modules: all of the run, prepared, see :meth:`prepared`.
            goals: each objective with its DAG, and the wires whose values are read beside the losses.
            params: options of the optimizers.
            precision: that of the run.
            lowering: how the DAG becomes a module.
            replication: how its gradients are exchanged.

        Raises:
            UsageError: an optimizer holds no weight that its losses depend on, or not such as the precision needs.
        """
        optimizers = [self._optimizer_of(objective, params) for objective, _, _ in goals]
        precision.adopt(modules, optimizers)
        return [
            self._lowered(dag, optimizer, objective.losses, extra_wires, precision, lowering, replication)
            for (objective, dag, extra_wires), optimizer in zip(goals, optimizers, strict=True)
        ]

    def _optimizer_of(self, objective: Objective, params: Mapping[str, object]) -> torch.optim.Optimizer:
        """The optimizer, made if a name was given; it holds a weight that the losses depend on."""
        losses = objective.losses
        optimizer = self.create_optimizer(
            objective.optimizer, objective.modules or losses, objective.optimizer_params(params)
        )
        if not {*_updated_by(optimizer)} & {*_parameters(Dag(losses).modules.values())}:
            raise UsageError(
                "the optimizer holds no weight that these losses depend on",
                place=type(optimizer).__name__,
                got=", ".join(wire.place for wire in losses),
                remedy=self._remedy(),
            )
        return optimizer

    def _lowered(
        self,
        dag: Dag,
        optimizer: torch.optim.Optimizer,
        losses: Sequence[NmTensor],
        extra_wires: Sequence[NmTensor],
        precision: Precision,
        lowering: Lowering,
        replication: ReplicaOptions,
    ) -> LoweredObjective:
        """The DAG of these losses, on all ranks."""
        reached = Dag(losses)
        extra = [wire for wire in extra_wires if wire in reached and wire not in (*dag.inputs, *losses)]
        part = dag.slice([*losses, *extra])
        module = self._comm.replicate(lowering(part, "TrainingDag").to(self._device), replication)
        return LoweredObjective(
            module,
            len(losses),
            [*dag.inputs, *losses, *extra],
            {node.call for node in part.nodes},
            optimizer,
            _updated_by(optimizer),
            [group["lr"] for group in optimizer.param_groups],
            [module for module in reached.modules.values() if isinstance(module, LossNM)],
            precision.halves_of(optimizer),
        )

    @contextmanager
    def prepared(self, modules: Sequence[nn.Module], precision: Precision) -> Iterator[None]:
        """Inside, the modules are sharded if asked for, on the device, and in the types of the precision."""
        self._shard(modules)  # before anything is moved: the whole model may not fit on the device
        for module in modules:
            module.to(self._device)
        if precision.casts_weights:  # replicas make the half weights equal, which is not enough for those in float32
            tensors = [tensor for module in modules for tensor in module.state_dict().values()]
            self._comm.make_equal([tensor for tensor in tensors if isinstance(tensor, torch.Tensor)])
        with precision.prepared(modules, trained=True):
            yield

    def shard(self, dag: Dag) -> None:
        """Shard the weights of its modules, if that was asked for. Weights that are sharded stay so."""
        self._shard(modules_of(dag))

    def _shard(self, modules: Iterable[nn.Module]) -> None:
        if self._shard_weights:
            weighted = [module for module in modules if _parameters([module])]
            wide = [part for module in weighted for part in float32_parts(module, norms_too=True)]
            self._comm.shard(weighted, self._device, self._half, wide)

    def _remedy(self) -> str:
        if self._shard_weights:  # sharding replaces parameters, so the optimizer must be made after it
            return "make it with create_optimizer of the factory"
        return "make it of the parameters of the DAG's modules"

    def create_optimizer(
        self,
        optimizer: str | torch.optim.Optimizer,
        things_to_optimize: Sequence[object],
        optimizer_params: Mapping[str, object],
    ) -> torch.optim.Optimizer:
        """See :meth:`~nemo_lite.backends.pytorch.actions.PtActions.create_optimizer`."""
        if isinstance(optimizer, torch.optim.Optimizer):
            _refuse_options_of_groups(optimizer, optimizer_params)
            return optimizer
        is_list = isinstance(things_to_optimize, (list, tuple))
        things: Sequence[object] = things_to_optimize if is_list else [things_to_optimize]
        wires = [thing for thing in things if isinstance(thing, NmTensor)]
        modules = [thing for thing in things if isinstance(thing, nn.Module)]
        if len(wires) + len(modules) < len(things):
            raise UsageError(
                "things_to_optimize must be modules or wires",
                place="create_optimizer",
                got=", ".join(type(thing).__name__ for thing in things),
            )
        if wires:
            modules += modules_of(Dag(wires))
        self._shard(modules)
        parameters = _parameters(modules)
        if not parameters:
            raise UsageError("there is nothing to optimize", place="create_optimizer", got="modules without parameters")
        for module in modules:
            module.to(self._device)
        groups = _groups(modules, optimizer_params)
        if is_decay_of_weights_only(optimizer_params.get(DECAY_WEIGHTS_ONLY)):
            groups = decaying_weights_only(groups or [{"params": parameters}])
        return create_optimizer(optimizer, groups or parameters, dict(optimizer_params))


def _updated_by(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _groups(modules: Iterable[nn.Module], optimizer_params: Mapping[str, object]) -> list[dict[str, object]]:
    """Parameter groups by the learning rates of modules; none where no module has its own."""
    if not optimizer_params.get(MODULE_LR):
        return []
    named = _named(modules)
    module_lr = checked_module_lr(optimizer_params[MODULE_LR], named)
    rates = ", ".join(f"{module_lr.get(name, optimizer_params.get('lr'))} for {name}" for name in named)
    logging.info("Learning rates: %s", rates)
    return parameter_groups(named, module_lr)


def _named(modules: Iterable[nn.Module]) -> dict[str, nn.Module]:
    """The modules with parameters, by the names under which they are saved."""
    with_parameters = [module for module in modules if _parameters([module])]
    named = unique_names(module for module in with_parameters if isinstance(module, NeuralModule))
    unnamed = {type(module).__name__: module for module in with_parameters if not isinstance(module, NeuralModule)}
    return {**unnamed, **{name: module for name, module in named.items() if isinstance(module, nn.Module)}}


def _refuse_options_of_groups(optimizer: torch.optim.Optimizer, optimizer_params: Mapping[str, object]) -> None:
    for option in (MODULE_LR, DECAY_WEIGHTS_ONLY):
        if not optimizer_params.get(option):
            continue
        raise UsageError(
            f"{option} has no effect on an optimizer that is there already",
            place=type(optimizer).__name__,
            remedy="give its constructor groups of parameters, or name the optimizer",
        )


def _parameters(modules: Iterable[object]) -> list[nn.Parameter]:
    """Every parameter once, also those that are shared or frozen (a frozen one gets no gradient, so it stays)."""
    return list(dict.fromkeys(p for module in modules if isinstance(module, nn.Module) for p in module.parameters()))


def refuse_unreached(loss: torch.Tensor, modules: Iterable[tuple[str, nn.Module]]) -> None:
    """Raise UsageError for weights that are to be trained and that the loss does not depend on.

    Data parallelism waits for the gradient of every weight: if one never comes, no gradients are exchanged.

    Args:
        loss: what is minimised.
        modules: the modules with their names for messages.
    """
    reached = _reached(loss)
    weights = [
        (f"{module_name}.{name}", parameter)
        for module_name, module in modules
        for name, parameter in module.named_parameters()
    ]
    missing = [name for name, parameter in weights if parameter.requires_grad and parameter not in reached]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise UsageError(
            "the loss does not depend on weights that are to be trained",
            got=shown,
            remedy="freeze them, or use them: several processes wait for the gradient of every weight",
        )


def _reached(loss: torch.Tensor) -> set[torch.Tensor]:
    """The leaves of the graph behind a loss."""
    seen: set[object] = set()
    leaves: set[torch.Tensor] = set()
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            leaves.add(variable)
        stack.extend(function for function, _ in node.next_functions)
    return leaves
