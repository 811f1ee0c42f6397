"""The largest batch before the first step, and any batch by trial: whether memory lacks is known before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from nemo_lite.backends.pytorch.distributed.failures import is_lack_of_memory, one_line
from nemo_lite.backends.pytorch.engine.module_state import left_as_they_are, modules_of, set_training
from nemo_lite.backends.pytorch.engine.objectives import LoweredObjective
from nemo_lite.backends.pytorch.engine.step_memory import state_bytes
from nemo_lite.backends.pytorch.lowering import lower
from nemo_lite.backends.pytorch.optimizers import create_optimizer
from nemo_lite.backends.pytorch.placement import to_device
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.base.errors import UsageError
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.core.neural_types import NmTensor, Value


def rehearse(
    objective: LoweredObjective,
    batch: Sequence[Value],
    modules: Mapping[str, NeuralModule],
    precision: Precision,
    place: str,
    batches_per_step: int = 1,
) -> None:
    """Forward and backward pass of a made-up batch, beside as much memory as the optimizer will keep.

    Nothing of the run changes: gradients are not kept, buffers and generators are put back, losses of items are not
    told, nothing is exchanged and no loss is scaled.

    Args:
        objective: whose losses.
        batch: in port order.
        modules: of the run, by name.
        precision: of the run.
        place: for messages.
        batches_per_step: micro-batches of a step; behind the first, its gradients are there too.

    Raises:
        UsageError: memory lacks.
    """
    try:
        with left_as_they_are(modules.values(), precision.device):
            weights = objective.halves or objective.parameters
            reserved = state_bytes(objective.optimizer) + (batches_per_step > 1) * _gradient_bytes(weights)
            _pass(objective.lowered, objective.num_losses, weights, reserved, batch, precision)
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
        if not is_lack_of_memory(error):
            raise
        raise UsageError(
            "memory lacks for the largest batch that training may read",
            place=place,
            got=one_line(error),
            remedy="lower --batch_size (nemo-lite plan --find_batch says which fits), or max_duration",
        ) from None


def tried_bytes(
    losses: Sequence[NmTensor],
    batch: Sequence[Value],
    precision: Precision,
    optimizer: str,
    params: Mapping[str, object],
    batches_per_step: int = 1,
) -> int | None:
    """What forward and backward pass of a made-up batch take on the device, by trying; None: memory lacks.

    Args:
        losses: the wires that are minimised. Their modules stay on the device, in training mode.
        batch: in port order.
        precision: of the run, on its device.
        optimizer, params: its name and options, and ``ema_decay``; as much memory as they will keep is set aside.
        batches_per_step: micro-batches of a step.

    Returns:
        bytes that torch's allocator held at most; 0 on a CPU, where nobody knows them.
    """
    dag, device = Dag(losses), precision.device
    modules = modules_of(dag)
    for module in modules:
        module.to(device)
    set_training(modules)
    weights = list(dict.fromkeys(weight for module in modules for weight in module.parameters()))
    lowered = lower(dag.slice(list(losses)), "TriedDag").to(device)
    reserved = state_bytes(create_optimizer(optimizer, weights, dict(params)))
    reserved += (batches_per_step > 1) * _gradient_bytes(weights)
    reserved += 4 * (params.get("ema_decay") is not None) * sum(weight.numel() for weight in weights)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()  # blocks of another batch's sizes
        torch.cuda.reset_peak_memory_stats(device)
    try:
        with precision.prepared(modules):
            _pass(lowered, len(losses), weights, reserved, batch, precision)
    except (RuntimeError, MemoryError) as error:
        if not is_lack_of_memory(error):
            raise
        return None
    return torch.cuda.max_memory_reserved(device) if on_gpu else 0


def _pass(
    lowered: nn.Module,
    num_losses: int,
    weights: Sequence[torch.Tensor],
    reserved_bytes: int,
    batch: Sequence[Value],
    precision: Precision,
) -> None:
    device = precision.device
    values = to_device(batch, device)
    reserved = torch.empty(reserved_bytes, dtype=torch.uint8, device=device)
    with precision.forward():
        outputs = lowered(*values)
    total = torch.stack([loss.reshape(()) for loss in outputs[:num_losses]]).sum()
    trained = [weight for weight in weights if weight.requires_grad]
    if total.requires_grad:
        # Not ``backward``: gradients are to end here, and data parallelism is not to hear of them.
        torch.autograd.grad(total, trained, allow_unused=True)
    del reserved


def _gradient_bytes(weights: Sequence[torch.Tensor]) -> int:
    return sum(weight.nbytes for weight in weights if weight.requires_grad)
