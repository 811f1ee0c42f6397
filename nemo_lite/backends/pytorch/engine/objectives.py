"""Objectives: the losses that one optimizer minimises, checked, lowered and wrapped for all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from nemo_lite.backends.pytorch.distributed.comm import PLAIN_REPLICA, Comm, Replica, ReplicaOptions
from nemo_lite.backends.pytorch.engine.module_state import modules_of
from nemo_lite.backends.pytorch.half_modules import float32_parts, parameters_of
from nemo_lite.backends.pytorch.lowering import Lowering, lower
from nemo_lite.backends.pytorch.nm import LossNM
from nemo_lite.backends.pytorch.optimizers import (
    DECAY_WEIGHTS_ONLY,
    MODULE_LR,
    checked_module_lr,
    create_optimizer,
    decaying_weights_only,
    is_decay_of_weights_only,
    parameter_groups,
)
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.base.errors import UsageError
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_module import NeuralModule, unique_names
from nemo_lite.core.neural_types import ModuleCall, NmTensor
from nemo_lite.core.run_options import Objective
from nemo_lite.utils import logging


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
        lowered: what ``module`` runs on this rank.
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
    lowered: nn.Module
    loss_modules: Sequence[LossNM] = ()
    halves: Sequence[torch.Tensor] = ()


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
        if not {*parameters_of(optimizer)} & {*_parameters(Dag(losses).modules.values())}:
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
        lowered = lowering(part, "TrainingDag")
        # A module that nodes only refer to is in no call, but its gradients are exchanged as those of the others.
        referenced = [module for node in part.nodes for module in node.module.referenced]
        called: set[object] = {*lowered.modules()}
        for number, other in enumerate(dict.fromkeys(one for one in referenced if one not in called)):
            if isinstance(other, nn.Module):
                lowered.add_module(f"referenced_{number}", other)
        module = self._comm.replicate(lowered.to(self._device), replication)
        return LoweredObjective(
            module,
            len(losses),
            [*dag.inputs, *losses, *extra],
            {node.call for node in part.nodes},
            optimizer,
            parameters_of(optimizer),
            [group["lr"] for group in optimizer.param_groups],
            lowered,
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
            # Not in a variable: it would keep the float32 weights for as long as the modules are half.
            self._comm.make_equal(
                [each for module in modules for each in module.state_dict().values() if isinstance(each, torch.Tensor)]
            )
        with precision.prepared(modules, trained=True):
            yield

    def shard(self, dag: Dag) -> None:
        """Shard the weights of its modules, if that was asked for. Weights that are sharded stay so."""
        self._shard(modules_of(dag))

    def _shard(self, modules: Iterable[nn.Module]) -> None:
        if self._shard_weights:
            given = list(modules)
            wide = [part for module in given for part in float32_parts(module, norms_too=True)]
            self._comm.shard(given, self._device, self._half, wide)

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
