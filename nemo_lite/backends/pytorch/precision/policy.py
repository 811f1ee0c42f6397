"""Precision: the types of a run: around a forward, in the backward, in the update. No loop.

O0 is float32. O1 is ``torch.amp``: float32 weights, and each operation in the type that it is safe in. O2 has half
weights and activations, float32 master weights and normalisation layers. O3 is half throughout. At every level modules
say themselves (``keep_float32``) that they stay in float32: features and losses do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from nemo_lite.backends.pytorch.precision.apex_amp import ApexAmp
from nemo_lite.backends.pytorch.precision.dtypes import check_dtype_name, half_dtype, name_of
from nemo_lite.backends.pytorch.precision.gradients import clip, dense_gradients, multiply, not_finite
from nemo_lite.backends.pytorch.precision.half_modules import HalfModules
from nemo_lite.backends.pytorch.precision.loss_scale import LossScale
from nemo_lite.backends.pytorch.precision.master_weights import MasterWeights
from nemo_lite.core.backend import Optimization
from nemo_lite.errors import UnknownNameError

_BACKENDS = ("auto", "native", "apex")


class Precision:
    """How a run computes.

    Args:
        level: O0 to O3.
        device: where it runs.
        amp_dtype: ``"bfloat16"`` or ``"float16"``, for O1 to O3; ``"auto"`` or None takes bfloat16 where the device
            computes it in hardware, else float16.
        min_loss_scale: lower bound of the loss scale (float16 only).
        max_loss_scale: upper bound of the loss scale (float16 only).
        amp_backend: what trains: ``"native"``, torch with what is in this package; ``"apex"``, apex.amp. ``"auto"`` is
            native. What is only evaluated is native always.

    Raises:
        UsageError: float16 on a CPU; or apex where it cannot be had.
        UnknownNameError: another ``amp_dtype`` or ``amp_backend``.
    """

    def __init__(
        self,
        level: Optimization,
        device: torch.device,
        amp_dtype: str | None = None,
        min_loss_scale: float | None = None,
        max_loss_scale: float | None = 2.0**24,
        amp_backend: str = "auto",
    ) -> None:
        self.level, self.device = level, device
        check_dtype_name(amp_dtype)
        if amp_backend not in _BACKENDS:
            raise UnknownNameError("amp_backend", str(amp_backend), _BACKENDS)
        self._apex: ApexAmp | None = None
        if amp_backend == "apex" and level is not Optimization.mxprO0:
            self._apex = ApexAmp(level.short, device, amp_dtype, min_loss_scale, max_loss_scale)
        self.dtype = torch.float32
        if level is not Optimization.mxprO0:
            self.dtype = torch.float16 if self._apex is not None else half_dtype(amp_dtype, device)
        # At O3, as in apex, losses are not scaled: the gradients stay float16, and dividing them by the scale again
        # would lose what it saved.
        is_scaled = self.dtype is torch.float16 and self._apex is None and level is not Optimization.mxprO3
        self._scale = LossScale(device, min_loss_scale, max_loss_scale) if is_scaled else None
        self._nothing = nullcontext()
        self._half: HalfModules | None = None
        if self.casts_weights:
            is_o2 = level is Optimization.mxprO2
            self._half = HalfModules(self.dtype, norms_in_float32=is_o2, keeps_masters=is_o2)
        self._masters: dict[torch.optim.Optimizer, MasterWeights] = {}

    @property
    def casts_weights(self) -> bool:
        """Whether the weights themselves are half while a run computes: O2 and O3."""
        return self.level in (Optimization.mxprO2, Optimization.mxprO3)

    def prepared(self, modules: Iterable[nn.Module], trained: bool = False) -> AbstractContextManager[None]:
        """Inside, modules on their device have weights of the level's type; in files they are float32 at every level.

        Enter it before modules are compiled or replicated over ranks. It may be entered again inside.

        Args:
            modules: those of a DAG.
            trained: their weights are about to change; otherwise they are afterwards what they were, to the last bit.
        """
        # What apex trains it casts by itself, and it leaves it so.
        is_apex = self._apex is not None and (trained or self._apex.is_active())
        if self._half is None or is_apex:
            return self._nothing
        return self._trained(modules, self._half) if trained else self._half.prepared(modules, trained=False)

    @contextmanager
    def _trained(self, modules: Iterable[nn.Module], half: HalfModules) -> Iterator[None]:
        with half.prepared(modules, trained=True):
            try:
                yield
            finally:
                for masters in self._masters.values():
                    masters.release()
                self._masters.clear()

    def adopt(self, modules: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Let optimizers over prepared modules update their float32 master weights, if the level has them (O2).

        Raises:
            UsageError: an optimizer cannot have them.
        """
        given = list(dict.fromkeys(optimizers))
        if self._apex is not None:
            self._apex.initialize(modules, given)
        elif self.level is Optimization.mxprO2 and self._half is not None:
            masters = self._half.masters()
            for optimizer in given:
                self._masters[optimizer] = MasterWeights(optimizer, masters)

    def halves_of(self, optimizer: torch.optim.Optimizer) -> Sequence[torch.Tensor]:
        """The half weights whose master weights the optimizer updates; their gradients are to be cleared too."""
        masters = self._masters.get(optimizer)
        return () if masters is None else masters.halves

    def masters_of(self, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """For each parameter of prepared modules the tensor that files get: its master weight, or itself."""
        holder = self._half if self._apex is None else self._apex
        return [parameter if holder is None else holder.saved.master_of(parameter) for parameter in parameters]

    def forward(self) -> AbstractContextManager[Any]:
        """The context of a forward; features and losses leave it by themselves (``keep_float32``)."""
        if self.level is not Optimization.mxprO1 or (self._apex is not None and self._apex.is_active()):
            return self._nothing
        return torch.autocast(self.device.type, self.dtype)

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """The half type of autocast, where the level has it (O1)."""
        return self.dtype if self.level is Optimization.mxprO1 and self._apex is None else None

    @property
    def scales_loss(self) -> bool:
        """Whether a gradient that is not finite may only say that the loss scale is too high."""
        return self._scale is not None if self._apex is None else self._apex.scales_loss

    def backward(self, loss: torch.Tensor, is_last: bool = True) -> None:
        """Add the gradients of a loss, scaled against underflow where the dtype needs it.

        Args:
            loss: of a micro-batch.
            is_last: the step has no further one.
        """
        if self._apex is not None:
            self._apex.backward(loss, is_last)
            return
        (loss if self._scale is None else self._scale.scaled(loss)).backward()  # type: ignore[no-untyped-call]  # torch's

    def finish_backward(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[torch.nn.Parameter],
        max_grad_norm: float | None,
        correction: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """After the last backward of a step: make the gradients those of the losses, and clip their norm.

        Nothing is read back from the device.

        Args:
            optimizer: about to make its step.
            parameters: all that it updates.
            max_grad_norm: the largest norm; ``None`` does not clip.
            correction: a number on the device that all gradients are multiplied with first.

        Returns:
            a number on the device: 0 if all gradients are finite, otherwise another one or NaN.
        """
        masters = self._masters.get(optimizer)
        if masters is not None:
            masters.take_gradients()
        gradients = dense_gradients(parameters)
        if not gradients:
            return torch.zeros((), device=self.device)
        found = None if self._scale is None else self._scale.unscale(gradients)
        if self._apex is not None and self._apex.leaves_out_step:
            return torch.ones((), device=self.device)
        if correction is not None:
            multiply(gradients, correction)
        clipped = None if max_grad_norm is None else clip(gradients, max_grad_norm)
        if found is not None:
            return found
        return not_finite(gradients) if clipped is None else clipped

    def update(
        self, optimizer: torch.optim.Optimizer, step: Callable[[], object], skip: torch.Tensor | None = None
    ) -> None:
        """Update the weights, after :meth:`finish_backward`.

        Args:
            optimizer: makes its step.
            step: lets it: ``optimizer.step``, or a function that guards it.
            skip: on the device: 1 if the step is left out, otherwise 0. ``step`` must then see to it that nothing
                changes. ``None``: the step counts.
        """
        if self._apex is not None and self._apex.leaves_out_step:
            return
        step()
        masters = self._masters.get(optimizer)
        if masters is not None:
            masters.hand_weights()
        if self._scale is not None:
            self._scale.update(torch.zeros((), device=self.device) if skip is None else skip)

    def describe(self) -> str:
        """One line for the log: which types are used where."""
        if self.level is Optimization.mxprO0:
            return "O0: float32 throughout"
        by = "" if self._apex is None else "; by apex.amp"
        scaling = "the loss is scaled" if self.scales_loss else "no loss scaling needed"
        if self.device.type == "cpu" and torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2"):
            scaling += "; this CPU has no instructions for it, so O0 is faster"
        return f"{self.level.short}: {name_of(self.dtype)} {_WHERE[self.level]}; {scaling}{by}"

    def state_dict(self) -> dict[str, Any]:
        """The loss scale and its history."""
        if self._apex is not None:
            return self._apex.state_dict()
        return {} if self._scale is None else self._scale.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the loss scale; a state without one (another dtype wrote it) leaves it as it is."""
        if self._apex is not None:
            self._apex.load_state_dict(state)
        elif self._scale is not None and "scale" in state:
            self._scale.load_state_dict(state)


_WHERE = {
    Optimization.mxprO1: "where torch.amp finds it safe, features and losses in float32",
    Optimization.mxprO2: "weights and activations; master weights, normalisation, features and losses in float32",
    Optimization.mxprO3: "throughout, but for features and losses in float32",
}
