"""Training states of NeMo 0.x (``trainer-STEP-<n>.pt``) as ours, and whether they fit the optimizers of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

# Any: what a file holds.

OF_NEMO = "of_nemo"


def as_ours(state: dict[str, Any]) -> dict[str, Any]:
    """A training state; one of NeMo gets our names, and ``of_nemo`` says so."""
    if "optimizer_state" not in state or "optimizers" in state:
        return state
    epoch = state.get("epoch", state.get("epoch_num", 0))  # before 0.10 it was epoch_num
    return {"step": state.get("step", 0), "epoch": epoch, "optimizers": state["optimizer_state"], OF_NEMO: True}


def can_go_on(state: Mapping[str, Any], optimizers: Sequence[Optimizer]) -> bool:
    """Whether training goes on from this state: always from ours, whose misfits are errors, and from NeMo's if it fits.

    NeMo's says neither the kind of an optimizer nor the parameters' names: the shapes and what is kept must be right.
    """
    if not state.get(OF_NEMO):
        return "optimizers" in state
    saved = state["optimizers"]
    if not isinstance(saved, list) or len(saved) != len(optimizers):
        return False
    try:
        return all(_fits(each, optimizer) for each, optimizer in zip(saved, optimizers, strict=True))
    except (KeyError, TypeError, AttributeError, ValueError):
        return False


def _fits(saved: Mapping[str, Any], optimizer: Optimizer) -> bool:
    groups = zip(saved["param_groups"], optimizer.param_groups, strict=True)
    pairs = [pair for theirs, ours in groups for pair in zip(theirs["params"], ours["params"], strict=True)]
    return all(_is_state_of(saved["state"][key], param, optimizer) for key, param in pairs if key in saved["state"])


def _is_state_of(kept: Mapping[str, Any], param: Tensor, optimizer: Optimizer) -> bool:
    kind = type(optimizer).__name__
    if kind == "SGD":
        momentum = kept.get("momentum_buffer")
        return "exp_avg" not in kept and (momentum is None or bool(momentum.shape == param.shape))
    wanted = 1 if kind == "Novograd" else param.numel()  # NovoGrad keeps one number a tensor
    return bool(kept["exp_avg"].shape == param.shape and kept["exp_avg_sq"].numel() == wanted)
