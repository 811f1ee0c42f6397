"""How a run computes: a precision mode is a class, chosen once from the level and the backend. No loop in this file.

O0 is float32. O1 is ``torch.amp``: float32 weights, and each operation in the type that it is safe in. O2 has half
weights and activations, float32 master weights and normalisation layers. O3 is half throughout. In every mode modules
say themselves (``keep_float32``) that they stay in float32: features and losses do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from nemo_lite.backends.pytorch.half_modules import (
    HALVES,
    HalfModules,
    MasterWeights,
    SavedWeights,
    casting_inputs,
    check_dtype_name,
    half_dtype,
    name_of,
    parameters_of,
    stays_float32,
)
from nemo_lite.backends.pytorch.tensor_codec import Tree
from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.core.neural_types import Value
from nemo_lite.core.run_options import Optimization

# Any: arguments and results of modules; a state_dict may hold anything; apex has no types.


def choose_precision(
    level: Optimization,
    device: torch.device,
    amp_dtype: str | None = None,
    min_loss_scale: float | None = None,
    max_loss_scale: float | None = 2.0**24,
    amp_backend: str = "auto",
) -> Precision:
    """The mode in which a run computes.

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
    check_dtype_name(amp_dtype)
    if amp_backend not in _MODES:
        raise UnknownNameError("amp_backend", str(amp_backend), _MODES)
    return _MODES[amp_backend][level].make(level, device, amp_dtype, min_loss_scale, max_loss_scale)


class Precision:
    """Mode O0: float32 throughout. The base of the others; a further one is a subclass and a row of ``_NATIVE``.

    Args:
        level: the level that the mode stands for.
        device: where the run is.
        dtype: in what it computes.
        scale: scales the loss; None: it is not scaled.
    """

    casts_weights = False
    """Whether the weights themselves are half while a run computes: O2 and O3."""
    autocast_dtype: torch.dtype | None = None
    """The half type of autocast, where the mode has it (O1)."""
    needs_loss_scale: ClassVar[bool] = True
    """Whether losses are scaled where ``dtype`` is float16."""
    where = "throughout"
    """Which values are of ``dtype``, for :meth:`describe`."""

    def __init__(
        self,
        level: Optimization,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        scale: LossScale | None = None,
    ) -> None:
        self.level, self.device, self.dtype = level, device, dtype
        self._scale = scale

    @classmethod
    def make(
        cls,
        level: Optimization,
        device: torch.device,
        amp_dtype: str | None,
        min_loss_scale: float | None,
        max_loss_scale: float | None,
    ) -> Precision:
        """The mode for these arguments of :func:`choose_precision`."""
        dtype = cls.choose_dtype(amp_dtype, device)
        is_scaled = dtype is torch.float16 and cls.needs_loss_scale
        return cls(level, device, dtype, LossScale(device, min_loss_scale, max_loss_scale) if is_scaled else None)

    @staticmethod
    def choose_dtype(amp_dtype: str | None, device: torch.device) -> torch.dtype:
        """In what the mode computes."""
        return torch.float32

    def prepared(self, modules: Iterable[nn.Module], trained: bool = False) -> AbstractContextManager[None]:
        """Inside, modules on their device have weights of the mode's type; in files they are float32 in every mode.

        Enter it before modules are compiled or replicated over ranks. It may be entered again inside.

        Args:
            modules: those of a DAG.
            trained: their weights are about to change; otherwise they are afterwards what they were, to the last bit.
        """
        return nullcontext()

    def adopt(self, modules: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> None:
        """Let optimizers over prepared modules update their float32 master weights, if the mode has them (O2).

        Raises:
            UsageError: an optimizer cannot have them.
        """

    def halves_of(self, optimizer: Optimizer) -> Sequence[Tensor]:
        """The half weights whose master weights the optimizer updates; their gradients are to be cleared too."""
        return ()

    def masters_of(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """For each parameter of prepared modules the tensor that files get: its master weight, or itself."""
        return list(parameters)

    def forward(self) -> AbstractContextManager[object]:
        """The context of a forward; features and losses leave it by themselves (``keep_float32``)."""
        return nullcontext()

    @property
    def scales_loss(self) -> bool:
        """Whether a gradient that is not finite may only say that the loss scale is too high."""
        return self._scale is not None

    def backward(self, loss: Tensor, is_last: bool = True) -> None:
        """Add the gradients of a loss, scaled against underflow where the dtype needs it.

        Args:
            loss: of a micro-batch.
            is_last: the step has no further one.
        """
        scaled = loss if self._scale is None else self._scale.scaled(loss)
        scaled.backward()

    def finish_backward(
        self,
        optimizer: Optimizer,
        parameters: Sequence[nn.Parameter],
        max_grad_norm: float | None,
        correction: Tensor | None = None,
    ) -> Tensor:
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
        gradients = dense_gradients(parameters)
        if not gradients:
            return torch.zeros((), device=self.device)
        overflow = None if self._scale is None else self._scale.unscale(gradients)
        if correction is not None:
            multiply(gradients, correction)
        clipped = None if max_grad_norm is None else clip(gradients, max_grad_norm)
        if overflow is not None:
            return overflow
        return not_finite(gradients) if clipped is None else clipped

    def update(self, optimizer: Optimizer, step: Callable[[], object], skip: Tensor | None = None) -> None:
        """Update the weights, after :meth:`finish_backward`.

        Args:
            optimizer: makes its step.
            step: lets it: ``optimizer.step``, or a function that guards it.
            skip: on the device: 1 if the step is left out, otherwise 0. ``step`` must then see to it that nothing
                changes. ``None``: the step counts.
        """
        step()
        if self._scale is not None:
            self._scale.update(torch.zeros((), device=self.device) if skip is None else skip)

    def describe(self) -> str:
        """One line for the log: which types are used where."""
        types = f"{self.level.short}: {name_of(self.dtype)} {self.where}"
        if self.dtype is torch.float32:
            return types
        scaling = "the loss is scaled" if self.scales_loss else "no loss scaling needed"
        if self.device.type == "cpu" and torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2"):
            scaling += "; this CPU has no instructions for it, so O0 is faster"
        return f"{types}; {scaling}"

    def state_dict(self) -> dict[str, object]:
        """The loss scale and its history."""
        return {} if self._scale is None else self._scale.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Restore the loss scale; a state without one (another dtype wrote it) leaves it as it is."""
        if self._scale is not None and "scale" in state:
            self._scale.load_state_dict(state)


class Autocast(Precision):
    """Mode O1: float32 weights; ``torch.amp`` computes each operation in the type that it is safe in."""

    where = "where torch.amp finds it safe, features and losses in float32"

    def __init__(
        self, level: Optimization, device: torch.device, dtype: torch.dtype, scale: LossScale | None = None
    ) -> None:
        super().__init__(level, device, dtype, scale)
        self.autocast_dtype = dtype

    @staticmethod
    def choose_dtype(amp_dtype: str | None, device: torch.device) -> torch.dtype:
        """The half type."""
        return half_dtype(amp_dtype, device)

    def forward(self) -> AbstractContextManager[object]:
        """Autocast."""
        return torch.autocast(self.device.type, self.dtype)


class HalfWeights(Precision):
    """Mode O3: weights, activations and gradients are half, features and losses float32."""

    casts_weights = True
    # As in apex: the gradients stay float16, and dividing them by the scale again would lose what it saved.
    needs_loss_scale = False
    keeps_masters: ClassVar[bool] = False
    where = "throughout, but for features and losses in float32"

    def __init__(
        self, level: Optimization, device: torch.device, dtype: torch.dtype, scale: LossScale | None = None
    ) -> None:
        super().__init__(level, device, dtype, scale)
        self._half = HalfModules(dtype, norms_in_float32=self.keeps_masters, keeps_masters=self.keeps_masters)

    @staticmethod
    def choose_dtype(amp_dtype: str | None, device: torch.device) -> torch.dtype:
        """The half type."""
        return half_dtype(amp_dtype, device)

    def prepared(self, modules: Iterable[nn.Module], trained: bool = False) -> AbstractContextManager[None]:
        """Inside, weights are half."""
        return self._half.prepared(modules, trained)

    def masters_of(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """The float32 weights, where there are such."""
        return [self._half.saved.master_of(parameter) for parameter in parameters]


class HalfWithMasters(HalfWeights):
    """Mode O2: half weights and activations; optimizers update float32 master weights, norms are float32."""

    needs_loss_scale = True
    keeps_masters = True
    where = "weights and activations; master weights, normalisation, features and losses in float32"

    def __init__(
        self, level: Optimization, device: torch.device, dtype: torch.dtype, scale: LossScale | None = None
    ) -> None:
        super().__init__(level, device, dtype, scale)
        self._masters: dict[Optimizer, MasterWeights] = {}

    def prepared(self, modules: Iterable[nn.Module], trained: bool = False) -> AbstractContextManager[None]:
        """Inside, weights are half; at the end of a training the optimizers have the modules' parameters again."""
        return self._trained(modules) if trained else super().prepared(modules)

    @contextmanager
    def _trained(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        with super().prepared(modules, trained=True):
            try:
                yield
            finally:
                for masters in self._masters.values():
                    masters.release()
                self._masters.clear()

    def adopt(self, modules: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> None:
        """Give the optimizers the float32 weights."""
        masters = self._half.masters()
        for optimizer in dict.fromkeys(optimizers):
            self._masters[optimizer] = MasterWeights(optimizer, masters)

    def halves_of(self, optimizer: Optimizer) -> Sequence[Tensor]:
        """The modules' own parameters."""
        return self._masters[optimizer].halves if optimizer in self._masters else ()

    def finish_backward(
        self,
        optimizer: Optimizer,
        parameters: Sequence[nn.Parameter],
        max_grad_norm: float | None,
        correction: Tensor | None = None,
    ) -> Tensor:
        """As in the other modes, with the gradients of the float32 weights."""
        if optimizer in self._masters:
            self._masters[optimizer].take_gradients()
        return super().finish_backward(optimizer, parameters, max_grad_norm, correction)

    def update(self, optimizer: Optimizer, step: Callable[[], object], skip: Tensor | None = None) -> None:
        """Update the float32 weights, and round the half ones from them."""
        super().update(optimizer, step, skip)
        if optimizer in self._masters:
            self._masters[optimizer].hand_weights()


class ApexPrecision(Precision):
    """O1 to O3 by NVIDIA's apex.amp in float16, through its documented calls, for runs that must train as NeMo 0.x did.

    apex.amp was part of apex until 2025-05-08; its tag 24.04.01 is the one meant here. None of its calls was ever run
    with the real one in the tests of this repository: they run against a small package with the published signatures.

    Args:
        level: O1 to O3.
        device: a GPU.
        amp: the module ``apex.amp``.
        min_loss_scale: lower bound of the loss scale.
        max_loss_scale: upper bound of the loss scale.
    """

    _has_initialized: ClassVar[bool] = False

    def __init__(
        self,
        level: Optimization,
        device: torch.device,
        amp: ModuleType,
        min_loss_scale: float | None,
        max_loss_scale: float | None,
    ) -> None:
        super().__init__(level, device, torch.float16)
        self._amp, self._bounds = amp, (min_loss_scale, max_loss_scale)
        self._native = _NATIVE[level](level, device, torch.float16)  # for what is only evaluated
        self.casts_weights, self.where = self._native.casts_weights, self._native.where
        self._saved = SavedWeights()
        self._optimizers: list[Optimizer] = []
        self._leaves_out_step = False

    @classmethod
    def make(
        cls,
        level: Optimization,
        device: torch.device,
        amp_dtype: str | None,
        min_loss_scale: float | None,
        max_loss_scale: float | None,
    ) -> Precision:
        """The mode for these arguments of :func:`choose_precision`.

        Raises:
            UsageError: no apex with amp, no GPU, or bfloat16.
        """
        amp = import_amp()
        if amp_dtype == "bfloat16":
            raise UsageError("apex.amp computes in float16", place=_PLACE, got="bfloat16", remedy=_OURS)
        if device.type not in _DEVICES:
            raise UsageError("apex.amp computes on GPUs", place=_PLACE, got=device.type, remedy=_OURS)
        return cls(level, device, amp, min_loss_scale, max_loss_scale)

    def prepared(self, modules: Iterable[nn.Module], trained: bool = False) -> AbstractContextManager[None]:
        """Half weights for what is only evaluated. What apex trains it casts by itself, and it leaves it so."""
        is_apex = trained or ApexPrecision._has_initialized
        return nullcontext() if is_apex else self._native.prepared(modules)

    def forward(self) -> AbstractContextManager[object]:
        """Autocast, until apex makes torch's functions cast by themselves."""
        return nullcontext() if ApexPrecision._has_initialized else self._native.forward()

    def adopt(self, modules: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> None:
        """``amp.initialize``: before modules are replicated over the ranks.

        Modules that say so (``keep_float32``) are not handed over. Files get float32 weights, the master weights where
        there are such.

        Raises:
            UsageError: it was called before in this process.
        """
        if ApexPrecision._has_initialized:
            raise UsageError("apex.amp can be initialised once in a process", place=_PLACE, remedy=_OURS)
        ApexPrecision._has_initialized = True
        modules = list(modules)
        wide = [module for module in modules if stays_float32(module, norms_too=False)]
        models = [module for module in modules if module not in wide and any(True for _ in module.parameters())]
        self._optimizers = list(dict.fromkeys(optimizers))
        before = [parameters_of(optimizer) for optimizer in self._optimizers]
        lowest, highest = self._bounds
        self._amp.initialize(
            models,
            self._optimizers,
            opt_level=self.level.short,
            min_loss_scale=lowest,
            max_loss_scale=highest,
            verbosity=0,
        )
        for optimizer, halves in zip(self._optimizers, before, strict=True):
            optimizer.zero_grad()  # makes the master weights, which apex puts off until here
            pairs = zip(halves, self._amp.master_params(optimizer), strict=True)
            self._saved.wide.update((half, master) for half, master in pairs if half is not master)
        for part in dict.fromkeys(part for model in models for part in model.modules()):
            self._saved.attach(part)
        for module in wide:
            casting_inputs(module, HALVES, torch.float32)
            if self.level is Optimization.mxprO1:
                _run_inside(module, self._amp.disable_casts)

    def masters_of(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """apex's master weights, where it has such."""
        return [self._saved.master_of(parameter) for parameter in parameters]

    @property
    def scales_loss(self) -> bool:
        """At O1 and O2 the loss is scaled, and apex leaves out a step whose gradients overflow."""
        return self._native.needs_loss_scale

    def backward(self, loss: Tensor, is_last: bool = True) -> None:
        """Add the gradients of a loss. After the last one of a step they are unscaled.

        A step that apex leaves out is left out here, at once: it replaces ``step`` of the optimizer for one call.
        """
        steps = [vars(optimizer).get("step") for optimizer in self._optimizers]
        with self._amp.scale_loss(loss, self._optimizers, delay_unscale=not is_last) as scaled:
            scaled.backward()
        self._leaves_out_step = False
        for optimizer, step in zip(self._optimizers, steps, strict=True):
            if vars(optimizer).get("step") is not step:
                self._leaves_out_step = True
                optimizer.step()

    def finish_backward(
        self,
        optimizer: Optimizer,
        parameters: Sequence[nn.Parameter],
        max_grad_norm: float | None,
        correction: Tensor | None = None,
    ) -> Tensor:
        """As in the other modes; 1 for a step that apex leaves out."""
        if self._leaves_out_step:
            return torch.ones((), device=self.device)
        return super().finish_backward(optimizer, parameters, max_grad_norm, correction)

    def update(self, optimizer: Optimizer, step: Callable[[], object], skip: Tensor | None = None) -> None:
        """Update the weights, unless apex leaves out the step."""
        if not self._leaves_out_step:
            step()

    def describe(self) -> str:
        """One line for the log."""
        return f"{super().describe()}; by apex.amp"

    def state_dict(self) -> dict[str, object]:
        """The loss scale and its history."""
        return dict(self._amp.state_dict()) if self._optimizers else {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Restore the loss scale; a state that apex did not write leaves it as it is."""
        if self._optimizers and all(name.startswith("loss_scaler") for name in state):
            self._amp.load_state_dict(state)


def _run_inside(module: nn.Module, make_context: Callable[[], AbstractContextManager[object]]) -> None:
    """Let each forward of a module run inside a context of its own."""
    contexts = ExitStack()

    def enter(*unused: object) -> None:
        contexts.enter_context(make_context())

    def leave(*unused: object) -> None:
        contexts.close()

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)


_NATIVE: dict[Optimization, type[Precision]] = {
    Optimization.mxprO0: Precision,
    Optimization.mxprO1: Autocast,
    Optimization.mxprO2: HalfWithMasters,
    Optimization.mxprO3: HalfWeights,
}
_APEX = dict.fromkeys(Optimization, ApexPrecision) | {Optimization.mxprO0: Precision}
_MODES: dict[str, dict[Optimization, type[Precision]]] = {"auto": _NATIVE, "native": _NATIVE, "apex": _APEX}


_MARGIN = 1e-6  # as in torch.nn.utils.clip_grad_norm_
_ONE = torch.ones(())
_IS_SPARSE = attrgetter("is_sparse")


def dense_gradients(parameters: Sequence[torch.nn.Parameter]) -> list[Tensor]:
    """The gradients that are there; of a sparse one its values."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not any(map(_IS_SPARSE, gradients)):  # runs at every step: faster than a generator
        return gradients
    dense = []
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()  # the values of one that is not are a copy
            dense.append(parameter.grad.values())
        elif parameter.grad is not None:
            dense.append(parameter.grad)
    return dense


def clip(gradients: list[Tensor], max_norm: float) -> Tensor:
    """Scale gradients (at least one) down, in place, to a norm of at most ``max_norm``; returns as :func:`not_finite`.

    The numbers are those of ``torch.nn.utils.clip_grad_norm_``.
    """
    norm = _norm_of(gradients)
    torch._foreach_mul_(gradients, (max_norm / (norm + _MARGIN)).clamp(max=1.0))
    return not_finite(gradients) if own_part(gradients[0]) is not gradients[0] else norm * 0.0


def multiply(gradients: list[Tensor], factor: Tensor) -> None:
    """Multiply gradients with a number on their device, in place."""
    torch._foreach_mul_([own_part(gradient) for gradient in gradients], factor)


def not_finite(gradients: list[Tensor]) -> Tensor:
    """0 if all gradients (at least one) are finite, otherwise another number or NaN. Of shards, this rank's count."""
    parts = gradients if {*map(type, gradients)} == {Tensor} else [own_part(gradient) for gradient in gradients]
    if not parts[0].is_cpu:
        return _norm_of(parts) * 0.0
    # A third of the time of the norm, which a CPU takes tensor by tensor. (zeros_like takes a third of that of zeros.)
    flag = torch.zeros_like(_ONE)
    torch._amp_foreach_non_finite_check_and_unscale_(parts, flag, _ONE)
    return flag


def _norm_of(gradients: list[Tensor]) -> Tensor:
    """The 2-norm of all of them together; at least in float32, whose range a sum of squares of halves needs."""
    wide = torch.float64 if any(gradient.dtype == torch.float64 for gradient in gradients) else torch.float32
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2, dtype=wide)))
    return norm


def own_part(tensor: Value) -> Tensor:
    """This rank's part of a sharded tensor (DTensor); any other tensor itself. FSDP2 is not imported for it."""
    is_sharded = hasattr(tensor, "to_local")
    part: Tensor = tensor.detach().to_local() if is_sharded else tensor
    return part


_FIRST = 2.0**16
_GROWTH, _BACKOFF, _GROWTH_INTERVAL = 2.0, 0.5, 2000


class LossScale:
    """The number that a loss is multiplied with before its backward pass, and the gradients are divided by after it.

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
        overflow = torch.zeros_like(self._scale)
        # The reciprocal in float64: in float32 that of a high scale would be rounded to 0 on some devices.
        inverse = self._scale.double().reciprocal().float()
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for gradient in gradients:
            by_dtype.setdefault(gradient.dtype, []).append(gradient)
        for same_dtype in by_dtype.values():  # on a GPU one call takes all for the type of the first
            torch._amp_foreach_non_finite_check_and_unscale_(same_dtype, overflow, inverse)
        return overflow

    def update(self, skip: Tensor) -> None:
        """Adapt the scale to a step: ``skip`` is 1 if it is left out, otherwise 0."""
        torch._amp_update_scale_(self._scale, self._num_good_steps, skip, _GROWTH, _BACKOFF, _GROWTH_INTERVAL)
        self._bound()

    def _bound(self) -> None:
        if self._bounds != (None, None):
            self._scale.clamp_(*self._bounds)

    def state_dict(self) -> dict[str, object]:
        """The scale and its history, as ``torch.amp.GradScaler`` writes them. A host sync."""
        return {
            "scale": self._scale.item(),
            "growth_factor": _GROWTH,
            "backoff_factor": _BACKOFF,
            "growth_interval": _GROWTH_INTERVAL,
            "_growth_tracker": int(self._num_good_steps.item()),
        }

    def load_state_dict(self, state: Mapping[str, Tree]) -> None:
        """Go on with the scale of a state."""
        self._scale.fill_(state["scale"])
        self._num_good_steps.fill_(state["_growth_tracker"])
        self._bound()


_DEVICES = ("cuda",)
_PLACE = "amp_backend apex"
_OURS = 'amp_backend="native" computes the same levels'
REPOSITORY = "github.com/NVIDIA/apex"


def problem_with_apex(part: str) -> tuple[str, str]:
    """Why ``apex.<part>`` cannot be had, and what to do about it; two empty texts if it is there.

    Args:
        part: ``amp``, which apex had until 2025-05-08, or ``optimizers``.
    """
    spec = find_spec("apex")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        return "apex is not installed", f"install tag 24.04.01 of {REPOSITORY}"
    # The package of that name on the Python package index has nothing to do with NVIDIA's, and is best not imported.
    if not Path(folders[0], "optimizers").is_dir():
        remedy = f"pip uninstall apex, then install tag 24.04.01 of {REPOSITORY}"
        return f"the package apex that is installed is not NVIDIA's ({folders[0]})", remedy
    if not Path(folders[0], part).is_dir():
        return f"the apex that is installed has no {part}, which it lost in 2025", "install tag 24.04.01"
    return "", ""


def import_amp() -> ModuleType:
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
