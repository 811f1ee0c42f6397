"""LossScale: keeps small gradients of float16 above zero. It stays on the device: nothing is read back at a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_FIRST = 2.0**16
_GROWTH, _BACKOFF, _GROWTH_INTERVAL = 2.0, 0.5, 2000


class LossScale:
    """What a loss is multiplied with before its backward pass, and the gradients are divided by after it.

    It is halved at each step whose gradients are not finite, and doubled after 2000 others in a row: the numbers and
    the state of ``torch.amp.GradScaler``, which reads a number from the device at each step.
    Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018.

    Args:
        device: of the loss.
        lowest: lower bound of the scale; ``None``: there is none.
        highest: upper bound of the scale; ``None``: there is none.
    """

    def __init__(self, device: torch.device, lowest: float | None = None, highest: float | None = None) -> None:
        self._bounds = (lowest, highest)
        self._scale = torch.full((), _FIRST, device=device)
        self._num_good_steps = torch.zeros((), dtype=torch.int32, device=device)
        self._bound()

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss times the scale."""
        return loss * self._scale

    def unscale(self, gradients: Sequence[Tensor]) -> Tensor:
        """Divide gradients by the scale, in place; 1 if one of them is not finite, otherwise 0."""
        found = torch.zeros_like(self._scale)
        # The reciprocal in float64: in float32 that of a high scale would be rounded to 0 on some devices.
        inverse = self._scale.double().reciprocal().float()
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for gradient in gradients:
            by_dtype.setdefault(gradient.dtype, []).append(gradient)
        for alike in by_dtype.values():  # on a GPU one call takes all for the type of the first
            torch._amp_foreach_non_finite_check_and_unscale_(alike, found, inverse)
        return found

    def update(self, skip: Tensor) -> None:
        """Adapt the scale to a step: ``skip`` is 1 if it is left out, otherwise 0."""
        torch._amp_update_scale_(self._scale, self._num_good_steps, skip, _GROWTH, _BACKOFF, _GROWTH_INTERVAL)
        self._bound()

    def _bound(self) -> None:
        if self._bounds != (None, None):
            self._scale.clamp_(*self._bounds)

    def state_dict(self) -> dict[str, Any]:
        """The scale and its history, as ``torch.amp.GradScaler`` writes them. A host sync."""
        return {
            "scale": self._scale.item(),
            "growth_factor": _GROWTH,
            "backoff_factor": _BACKOFF,
            "growth_interval": _GROWTH_INTERVAL,
            "_growth_tracker": int(self._num_good_steps.item()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the scale of a state."""
        self._scale.fill_(state["scale"])
        self._num_good_steps.fill_(state["_growth_tracker"])
        self._bound()
