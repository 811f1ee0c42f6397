"""Precision: autocast around a forward, a scaled backward, the update. O0 is float32, O1 ``torch.amp``. No loop."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_

from nemo_lite.core.backend import Optimization
from nemo_lite.errors import UnknownNameError, UsageError

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Precision:
    """How a run computes.

    Args:
        level: O0 or O1.
        device: where it runs.
        amp_dtype: ``"bfloat16"`` or ``"float16"`` for O1; by default bfloat16, or float16 where a GPU has none.
        min_loss_scale: lower bound of the loss scale (float16 only).
        max_loss_scale: upper bound of the loss scale (float16 only).

    Raises:
        UsageError: O2 or O3, or float16 on a CPU.
        UnknownNameError: another ``amp_dtype``.
    """

    def __init__(
        self,
        level: Optimization,
        device: torch.device,
        amp_dtype: str | None = None,
        min_loss_scale: float | None = None,
        max_loss_scale: float | None = 2.0**24,
    ) -> None:
        if level in (Optimization.mxprO2, Optimization.mxprO3):
            raise UsageError(
                f"optimization level {level.short} is not supported", remedy="use O1 (mixed) or O0 (float32)"
            )
        self.level, self.device = level, device
        self.dtype = _choose_dtype(amp_dtype, device) if level is Optimization.mxprO1 else torch.float32
        # Without float16 it is disabled, and hands everything through.
        self._scaler = torch.amp.GradScaler(device.type, enabled=self.dtype is torch.float16)
        self._bounds = (min_loss_scale, max_loss_scale)
        self._nothing = nullcontext()

    def forward(self) -> AbstractContextManager[Any]:
        """The context of a forward; features and losses leave it by themselves (``keep_float32``)."""
        return self._nothing if self.dtype is torch.float32 else torch.autocast(self.device.type, self.dtype)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of a loss, scaled against underflow where the dtype needs it."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch's

    def update(
        self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter], max_grad_norm: float | None
    ) -> None:
        """Clip the gradients' norm and let the optimizer step; under float16, a step with an overflow is left out."""
        self._scaler.unscale_(optimizer)
        if max_grad_norm is not None:
            clip_grad_norm_(parameters, max_grad_norm)
        self._scaler.step(optimizer)
        self._scaler.update()
        if self._scaler.is_enabled() and self._bounds != (None, None):
            scale = self._scaler.scale(torch.ones((), device=self.device))
            assert isinstance(scale, torch.Tensor)
            self._scaler.update(scale.clamp(*self._bounds))

    def describe(self) -> str:
        """One line for the log: which types are used where."""
        if self.dtype is torch.float32:
            return "O0: float32 throughout"
        name = str(self.dtype).removeprefix("torch.")
        scaling = "the loss is scaled" if self._scaler.is_enabled() else "no loss scaling needed"
        if self.device.type == "cpu" and torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2"):
            scaling += "; this CPU has no instructions for it, so O0 is faster"
        return f"O1: {name} where torch.amp finds it safe, features and losses in float32; {scaling}"

    def state_dict(self) -> dict[str, Any]:
        """The loss scale and its history."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the loss scale; a state without one (another dtype wrote it) leaves it as it is."""
        if state:
            self._scaler.load_state_dict(state)


def _choose_dtype(amp_dtype: str | None, device: torch.device) -> torch.dtype:
    if amp_dtype is None:
        has_bfloat16 = device.type == "cpu" or torch.cuda.is_bf16_supported()
        return torch.bfloat16 if has_bfloat16 else torch.float16
    if amp_dtype not in _DTYPES:
        raise UnknownNameError("amp_dtype", amp_dtype, _DTYPES)
    if amp_dtype == "float16" and device.type == "cpu":
        raise UsageError("float16 is not computed on a CPU", place="amp_dtype", remedy="use bfloat16")
    return _DTYPES[amp_dtype]
