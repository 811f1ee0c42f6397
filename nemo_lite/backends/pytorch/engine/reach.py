"""Which weights a loss depends on: read off the autograd graph, before anything flows back through it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from nemo_lite.errors import UsageError


def refuse_unreached(loss: torch.Tensor, modules: Iterable[tuple[str, nn.Module]]) -> None:
    """Raise UsageError for weights that are to be trained and that the loss does not depend on.

    Data parallelism waits for the gradient of every weight: one that never comes would leave the others unexchanged.

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
