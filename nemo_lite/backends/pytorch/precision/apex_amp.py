"""ApexAmp: the levels by NVIDIA's apex.amp, through its documented calls, for runs that must train as NeMo 0.x did.

apex.amp was part of apex until 2025-05-08; its tag 24.04.01 is the one meant here. None of its calls was ever run with
the real one in the tests of this repository: they run against a small package with the published signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import nn

from nemo_lite.backends.pytorch.precision.apex_package import problem_with_apex
from nemo_lite.backends.pytorch.precision.dtypes import HALVES, stays_float32
from nemo_lite.backends.pytorch.precision.half_modules import casting_inputs
from nemo_lite.backends.pytorch.precision.saved_weights import SavedWeights
from nemo_lite.errors import UsageError

# Any: apex has no types.

_DEVICES = ("cuda",)
_PLACE = "amp_backend apex"
_OURS = 'amp_backend="native" computes the same levels'


def import_amp() -> Any:
    """``apex.amp``.

    Raises:
        UsageError: there is no apex, one without amp, another package of that name, or one that cannot be imported.
    """
    problem, remedy = problem_with_apex("amp")
    if problem:
        raise UsageError(problem, place=_PLACE, remedy=f"{remedy}; or {_OURS}")
    try:
        return import_module("apex.amp")
    except (ImportError, AttributeError) as error:
        raise UsageError("apex.amp cannot be imported", place=_PLACE, got=str(error), remedy=f"{_OURS}") from error


class ApexAmp:
    """One training by apex.amp, in float16.

    Args:
        level: ``"O1"`` to ``"O3"``.
        device: a GPU.
        amp_dtype: ``"auto"``, ``"float16"`` or None.
        min_loss_scale: lower bound of the loss scale.
        max_loss_scale: upper bound of the loss scale.

    Attributes:
        saved: apex's master weights.
        leaves_out_step: apex leaves out the step whose backward pass was the last.

    Raises:
        UsageError: no apex with amp, no GPU, or bfloat16.
    """

    _has_initialized: ClassVar[bool] = False

    def __init__(
        self,
        level: str,
        device: torch.device,
        amp_dtype: str | None,
        min_loss_scale: float | None,
        max_loss_scale: float | None,
    ) -> None:
        self._amp = import_amp()
        if amp_dtype == "bfloat16":
            raise UsageError("apex.amp computes in float16", place=_PLACE, got="bfloat16", remedy=_OURS)
        if device.type not in _DEVICES:
            raise UsageError("apex.amp computes on GPUs", place=_PLACE, got=device.type, remedy=_OURS)
        self._level, self._bounds = level, (min_loss_scale, max_loss_scale)
        self._optimizers: list[torch.optim.Optimizer] = []
        self.saved = SavedWeights()
        self.leaves_out_step = False

    @classmethod
    def is_active(cls) -> bool:
        """Whether torch's functions cast by themselves now, as apex makes them do at O1."""
        return cls._has_initialized

    @property
    def scales_loss(self) -> bool:
        """At O1 and O2 the loss is scaled, and apex leaves out a step whose gradients overflow."""
        return self._level != "O3"

    def initialize(self, modules: Iterable[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """``amp.initialize``: before modules are replicated over the ranks.

        Modules that say so (``keep_float32``) are not handed over. Files get float32 weights, the master weights where
        there are such.

        Raises:
            UsageError: it was called before in this process.
        """
        if ApexAmp._has_initialized:
            raise UsageError("apex.amp can be initialised once in a process", place=_PLACE, remedy=_OURS)
        ApexAmp._has_initialized = True
        given = list(modules)
        wide = [module for module in given if stays_float32(module, norms_too=False)]
        models = [module for module in given if module not in wide and any(True for _ in module.parameters())]
        before = [_parameters(optimizer) for optimizer in optimizers]
        self._optimizers = list(optimizers)
        low, high = self._bounds
        self._amp.initialize(
            models,
            self._optimizers,
            opt_level=self._level,
            min_loss_scale=low,
            max_loss_scale=high,
            verbosity=0,
        )
        for optimizer, halves in zip(self._optimizers, before, strict=True):
            optimizer.zero_grad()  # makes the master weights, which apex puts off until here
            pairs = zip(halves, self._amp.master_params(optimizer), strict=True)
            self.saved.wide.update((half, master) for half, master in pairs if half is not master)
        for part in dict.fromkeys(part for model in models for part in model.modules()):
            self.saved.attach(part)
        for module in wide:
            casting_inputs(module, HALVES, torch.float32)
            if self._level == "O1":
                _run_inside(module, self._amp.disable_casts)

    def backward(self, loss: torch.Tensor, is_last: bool) -> None:
        """Add the gradients of a loss. After the last one of a step they are unscaled, and ``leaves_out_step`` is set.

        A step that apex leaves out is left out here, at once: it replaces ``step`` of the optimizer for one call.
        """
        steps = [vars(optimizer).get("step") for optimizer in self._optimizers]
        with self._amp.scale_loss(loss, self._optimizers, delay_unscale=not is_last) as scaled:
            scaled.backward()
        self.leaves_out_step = False
        for optimizer, step in zip(self._optimizers, steps, strict=True):
            if vars(optimizer).get("step") is not step:
                self.leaves_out_step = True
                optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """The loss scale and its history."""
        return dict(self._amp.state_dict()) if self._optimizers else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the loss scale; a state that apex did not write leaves it as it is."""
        if self._optimizers and all(name.startswith("loss_scaler") for name in state):
            self._amp.load_state_dict(state)


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _run_inside(module: nn.Module, make_context: Callable[[], AbstractContextManager[Any]]) -> None:
    """Let each forward of a module run inside a context of its own."""
    open_ones = ExitStack()

    def enter(*unused: object) -> None:
        open_ones.enter_context(make_context())

    def leave(*unused: object) -> None:
        open_ones.close()

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)
