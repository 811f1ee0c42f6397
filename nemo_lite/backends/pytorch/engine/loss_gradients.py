"""How large the gradients of several losses are where their ways part: one forward pass beside a training step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nemo_lite.backends.pytorch.distributed.batchnorm import needs_all_ranks
from nemo_lite.backends.pytorch.engine.module_state import left_as_they_are, modules_of
from nemo_lite.backends.pytorch.lowering import lower
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.core.callbacks.action_state import LossGradients
from nemo_lite.core.dag import Dag, parting_wires, slice_between
from nemo_lite.core.neural_types import NmTensor

# Half types hold nothing below 6e-8, and the gradient of a mean is small; the norms are divided by it again.
_SCALE = 1024.0


def loss_gradients(losses: Sequence[NmTensor], batch: Sequence[object], precision: Precision) -> LossGradients | None:
    """The norm of each loss's gradient on the wires where the ways to the losses part. A host sync.

    Modules are in the modes that they have. What they draw, buffers that they move and gradients stay as they are: how
    often somebody looks must not change the training.

    Args:
        losses: of one DAG.
        batch: the values of its data layer's wires, on the device.
        precision: in which they are computed.

    Returns:
        None where nothing with weights leads to all of them, or where modules exchange statistics or weights with other
        processes.
    """
    dag = Dag(losses)
    modules, wires = modules_of(dag), parting_wires(losses)
    measured = [wire for wire in wires if _has_weights(wire)]
    if not measured or needs_all_ranks(modules):
        return None
    shared = lower(dag.slice(wires), "Shared").to(precision.device)
    part = slice_between([*dag.inputs, *wires], losses)
    heads = lower(part, "Heads").to(precision.device)
    with left_as_they_are(modules, precision.device), precision.prepared(modules):
        with torch.no_grad():
            values: dict[NmTensor, Any] = dict(zip(dag.inputs, batch, strict=True))
            values.update(zip(wires, shared(*batch), strict=True))
        leaves = []
        for wire in measured:
            if values[wire].is_floating_point():
                values[wire] = values[wire].detach().requires_grad_()
                leaves.append(wire)
        with torch.enable_grad(), precision.forward():
            numbers = heads(*(values[wire] for wire in part.inputs))
        # Of two losses none has a node behind these wires that the other has too; of more, some may.
        norms = [_norm(number, [values[wire] for wire in leaves], keep=len(losses) > 2) for number in numbers]
    return LossGradients(", ".join(wire.place for wire in leaves), norms)


def _norm(loss: Tensor, leaves: Sequence[Tensor], keep: bool) -> float:
    if not loss.requires_grad:
        return 0.0
    total = loss.sum()
    gradients = torch.autograd.grad(total, leaves, torch.full_like(total, _SCALE), retain_graph=keep, allow_unused=True)
    squares = [gradient.double().square().sum() for gradient in gradients if gradient is not None]
    return float(torch.stack(squares).sum().sqrt()) / _SCALE if squares else 0.0


def _has_weights(wire: NmTensor) -> bool:
    return any(next(module.parameters(), None) is not None for module in modules_of(Dag([wire])))
