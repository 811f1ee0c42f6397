"""Optimizers by name: torch's, apex's and our own over lists of tensors; parameter groups, LARC, loaded states.

The table of names is `nemo_lite/utils/optimizers.py`; learning rates, clipping and the loss scale are elsewhere.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, ParamsT

from nemo_lite.backends.pytorch.foreach_optimizers import AdamW as AdamW
from nemo_lite.backends.pytorch.foreach_optimizers import Lamb as Lamb
from nemo_lite.backends.pytorch.foreach_optimizers import Novograd as Novograd
from nemo_lite.backends.pytorch.foreach_optimizers import Options, norms, saved_states
from nemo_lite.backends.pytorch.precision import problem_with_apex
from nemo_lite.backends.pytorch.tensor_codec import Tree
from nemo_lite.base.errors import UnknownNameError, UsageError, did_you_mean
from nemo_lite.base.ranges import NotNegativeFloat, PositiveFloat, check_number
from nemo_lite.utils import LogMode, logging
from nemo_lite.utils.optimizers import OPTIMIZERS, check_options, constructor_defaults

_FLAGS = ("fused", "foreach", "capturable")
"""Options of torch's optimizers that choose a kernel, and so go with this run's devices and weights."""


def with_own_flags(optimizer: Optimizer, state: Mapping[str, Tree]) -> dict[str, Tree]:
    """A state whose groups have the optimizer's own choice of kernels in the place of the saved one.

    Args:
        optimizer: about to load the state; stays as it is.
        state: its ``state_dict()`` in this or another run; stays as it is.
    """
    groups = list(state["param_groups"])
    for number, (group, own_group) in enumerate(zip(groups, optimizer.param_groups, strict=False)):
        options = {option: value for option, value in group.items() if option not in _FLAGS}
        groups[number] = options | {flag: own_group[flag] for flag in _FLAGS if flag in own_group}
    return {**state, "param_groups": groups}


def take_saved_types(optimizer: Optimizer, state: Mapping[str, object]) -> None:
    """Give loaded numbers of which there is one a parameter the type in which they were saved.

    torch has cast them to the parameter's type, and a half type rounds them.
    """
    for param, saved in saved_states(optimizer, state):
        for key, value in saved.items():
            loaded = optimizer.state[param].get(key)
            is_number = type(value) is type(loaded) is Tensor and value.dim() == 0 < param.dim()
            if is_number and value.dtype != loaded.dtype:
                optimizer.state[param][key] = value.to(loaded.device, copy=True)


def lay_out_like_parameters(optimizer: Optimizer) -> None:
    """Give loaded states the strides of their parameters: files do not keep them, and fused kernels do not look."""
    for param, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == param.shape and value.stride() != param.stride():
                state[key] = torch.empty_like(param, dtype=value.dtype).copy_(value)


MODULE_LR = "module_lr"
DECAY_WEIGHTS_ONLY = "decay_weights_only"


def checked_module_lr(rates: object, module_names: Iterable[str]) -> dict[str, float]:
    """``module_lr`` of the optimization parameters: learning rates by module name.

    Args:
        rates: what the user gave.
        module_names: the names of the modules that are trained.

    Raises:
        UsageError: no dictionary of numbers from 0.
        UnknownNameError: no such module.
    """
    if not isinstance(rates, Mapping):
        wanted = "a dictionary of learning rates by module name"
        raise UsageError("module_lr is of the wrong type", got=type(rates).__name__, wanted=wanted)
    module_names = list(module_names)
    for name, rate in rates.items():
        if name not in module_names:
            raise UnknownNameError("module", str(name), module_names, place=MODULE_LR)
        check_number(f"{MODULE_LR} {name}", rate, NotNegativeFloat)
    return {name: float(rate) for name, rate in rates.items()}


def parameter_groups(modules: Mapping[str, nn.Module], module_lr: Mapping[str, float]) -> list[Options]:
    """The parameters in groups: first those of modules without a rate of their own, then a group for each other module.

    Groups come in the order of the modules, so that a training state fits in whichever order rates were given. Each
    parameter is in one group, a frozen one too: it has no gradient, so the optimizer leaves it as it is until then.

    Args:
        modules: what is trained, by name.
        module_lr: learning rates by module name.

    Raises:
        UsageError: a parameter that two modules share, which would have two learning rates.
    """
    rates: dict[nn.Parameter, tuple[float | None, str]] = {}
    for name, module in modules.items():
        rate = module_lr.get(name)
        for parameter in module.parameters():
            other, its_name = rates.setdefault(parameter, (rate, name))
            if other != rate:
                raise UsageError(
                    "modules that share a weight have different learning rates",
                    place=MODULE_LR,
                    got=f"{_shown(other)} for {its_name}, {_shown(rate)} for {name}",
                    remedy="give both the same",
                )
    without_rate = [parameter for parameter, (rate, _) in rates.items() if rate is None]
    groups: list[Options] = [{"params": without_rate}] if without_rate else []
    for name in modules:
        parameters = [parameter for parameter, (rate, owner) in rates.items() if rate is not None and owner == name]
        if parameters:
            groups.append({"params": parameters, "lr": module_lr[name]})
    return groups


def is_decay_of_weights_only(value: object) -> bool:
    """``decay_weights_only`` of the optimization parameters; None is False.

    Raises:
        UsageError: no truth value.
    """
    if value is not None and not isinstance(value, bool):
        problem = "decay_weights_only is not a truth value"
        raise UsageError(problem, got=repr(value), wanted="True or False")
    return bool(value)


def decaying_weights_only(groups: Sequence[Mapping[str, Tree]]) -> list[Options]:
    """The groups, each followed by one of its biases and of the gains of its norms, whose ``weight_decay`` is 0.

    These are the parameters with at most one dimension: decay pulls them to 0, where a gain switches its channel off,
    and they are too few to overfit. Source: Goyal et al., "Accurate, Large Minibatch SGD", 2017.

    Args:
        groups: what an optimizer takes, each with ``params``.
    """
    split: list[Options] = []
    for group in groups:
        weights = [parameter for parameter in group["params"] if parameter.ndim > 1]
        small = [parameter for parameter in group["params"] if parameter.ndim <= 1]
        split += [{**group, "params": weights}] if weights else []
        split += [{**group, "params": small, "weight_decay": 0.0}] if small else []
    return split


def _shown(rate: float | None) -> str:
    return "that of the run" if rate is None else f"{rate:g}"


# Devices for which torch has one kernel for all of a step.
_FUSED_DEVICES = ("cpu", "cuda")


def sgd(groups: list[Options], lr: float = 1e-3, momentum: float = 0.9, weight_decay: float = 0.0) -> Optimizer:
    """torch's SGD, for parameters of which some may get their first gradient later."""
    optimizer = _fused(torch.optim.SGD, groups, lr=lr, momentum=momentum, weight_decay=weight_decay)
    optimizer.register_step_pre_hook(_start_momentum)
    return optimizer


def _adam(optimizer: Callable[..., Optimizer]) -> Callable[..., Optimizer]:
    """torch's Adam or AdamW, with the options and defaults that both share."""

    def make(
        groups: list[Options],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> Optimizer:
        return _fused(optimizer, groups, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)

    return make


def _fused(optimizer: Callable[..., Optimizer], groups: list[Options], **options: Any) -> Optimizer:
    """``optimizer`` in its fused form, where all of its parameters allow it.

    For a 3-layer perceptron of width 32 on one CPU core a fused step of Adam takes 134 us, 265 us over lists of tensors
    and 327 us tensor by tensor; of SGD 91, 136 and 146 us.
    """
    params = [param for group in groups for param in group["params"]]
    can_fuse = all(param.is_floating_point() and param.device.type in _FUSED_DEVICES for param in params)
    # Weights that are divided among ranks are of a class of their own, for which torch has no fused SGD.
    if optimizer is torch.optim.SGD and any(type(param) not in (Tensor, nn.Parameter) for param in params):
        return optimizer(groups, **options, foreach=True)
    return optimizer(groups, **options, fused=True if can_fuse else None)


def _start_momentum(optimizer: Optimizer, *unused: object) -> None:
    """Zero momentum for a parameter that has its first gradient, which gives the same first step.

    Without it torch's fused SGD ends in a TypeError if other parameters had theirs earlier (unfreezing does that).
    """
    for group in optimizer.param_groups:
        for param in group["params"] if group["momentum"] else ():
            if param.grad is not None and optimizer.state[param].get("momentum_buffer") is None:
                optimizer.state[param]["momentum_buffer"] = torch.zeros_like(param)


adam = _adam(torch.optim.Adam)
"""The decay is added to the gradient."""
decoupled_adam = _adam(torch.optim.AdamW)
"""As apex's FusedAdam: the decay is decoupled from the gradient."""


_DEVICES = ("cuda",)


def apex_or(native: Callable[..., Optimizer], name: str, apex_class: str, **fixed: Any) -> Callable[..., Optimizer]:
    """A constructor with the arguments of ``native``: of apex's class where it can be had, otherwise of ``native``.

    None of apex's classes was ever run with the real apex in the tests of this repository: they run against a small
    package with the published signatures.

    Which of the two it is, and why, is logged once.

    Args:
        native: what computes the same formula here.
        name: the optimizer's, for the log.
        apex_class: in ``apex.optimizers``.
        fixed: arguments of apex's class that make its formula the same.
    """

    defaults = constructor_defaults(native)

    def make(groups: list[Options], **options: Any) -> Optimizer:
        changed = [option for option, value in options.items() if value != defaults[option]]
        problem, optimizer = _of_apex(groups, apex_class, options, changed, fixed)
        which = f"not of apex: {problem}" if problem else f"apex.optimizers.{apex_class}"
        logging.info("%s: %s", name, which, mode=LogMode.ONCE)
        return native(groups, **options) if optimizer is None else optimizer

    constructor: Any = make
    constructor.__signature__ = inspect.signature(native)
    constructor.ranges = getattr(native, "ranges", {})
    return make


def _of_apex(
    groups: list[Options], apex_class: str, options: Options, changed: Sequence[str], fixed: Options
) -> tuple[str, Optimizer | None]:
    """Why apex's optimizer cannot be had, or "" and the optimizer; ``changed``: options that are not the defaults."""
    parameters = [parameter for group in groups for parameter in group["params"]]
    if any(parameter.device.type not in _DEVICES for parameter in parameters):
        return "its optimizers are for GPUs", None
    problem, _ = problem_with_apex("optimizers")
    if problem:
        return problem, None
    if any(type(parameter) not in (Tensor, nn.Parameter) for parameter in parameters):
        return "its optimizers do not take weights that are divided among ranks", None
    try:
        cls: Any = getattr(import_module("apex.optimizers"), apex_class)
        # apex knows amsgrad only to refuse it.
        arguments = set(inspect.signature(cls).parameters) - {"amsgrad"}
        missing = [option for option in changed if option not in arguments]
        if missing:
            return f"it has no {', '.join(missing)}", None
        optimizer: Optimizer = cls(groups, **{o: value for o, value in options.items() if o in arguments}, **fixed)
    except (ImportError, AttributeError, RuntimeError) as error:  # built without its CUDA extensions
        return f"it cannot be used here ({error})", None
    return "", optimizer


fused_adam = apex_or(decoupled_adam, "fused_adam", "FusedAdam", adam_w_mode=True)
fused_sgd = apex_or(sgd, "fused_sgd", "FusedSGD")
fused_novograd = apex_or(Novograd, "fused_novograd", "FusedNovoGrad", reg_inside_moment=True)
# apex clips by a norm of 1 unless told otherwise; here grad_norm_clip does that.
fused_lamb = apex_or(Lamb, "fused_lamb", "FusedLAMB", max_grad_norm=math.inf)


DEFAULT_ETA = 0.02
_EPS = 1e-8


def larc_options(larc: object, eta: object) -> float | None:
    """``larc_eta`` if ``larc`` is asked for, otherwise None.

    Raises:
        UsageError: ``larc`` is no truth value, or ``larc_eta`` is no number above 0.
    """
    if larc not in (None, True, False):
        raise UsageError("larc is not a truth value", got=repr(larc), wanted="True or False")
    given = check_number("larc_eta", eta, PositiveFloat | None)
    if eta is not None and larc is None:
        logging.warning("larc_eta has no effect without larc; give larc=True, or leave it out")
    return float(given or DEFAULT_ETA) if larc else None


class Larc:
    """LARC around an optimizer: from now on, each of its steps scales the gradients first.

    For a tensor p with gradient g, the group's weight decay wd and learning rate lr: the gradient becomes
    ``(g + wd p) min(rate / lr, 1)`` with ``rate = eta |p| / (|g| + wd |p| + 1e-8)``, and the optimizer itself decays
    nothing; so its rate is ``min(rate, lr)``. Where |p| or |g| is 0, g stays as it is.

    Source: You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks", 2017 (LARS, whose rate is
    multiplied with lr); clipped to lr as in NVIDIA's LARC, with its constants.

    Args:
        optimizer: any; its gradients are changed in place.
        eta: the trust coefficient.
    """

    def __init__(self, optimizer: Optimizer, eta: float) -> None:
        self._eta = eta
        self._decays: list[Any] = []  # of the groups, while the optimizer steps
        optimizer.register_step_pre_hook(self._scale)
        optimizer.register_step_post_hook(self._restore)

    def _scale(self, optimizer: Optimizer, *unused: object) -> None:
        self._decays = [group.get("weight_decay") for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            _scale_gradients(group, self._eta)
            if "weight_decay" in group:
                group["weight_decay"] = 0.0

    def _restore(self, optimizer: Optimizer, *unused: object) -> None:
        for group, decay in zip(optimizer.param_groups, self._decays, strict=True):
            if decay is not None:
                group["weight_decay"] = decay


@torch.no_grad()
def _scale_gradients(group: Options, eta: float) -> None:
    """Nothing is read back from the device."""
    params: list[Tensor] = [parameter for parameter in group["params"] if parameter.grad is not None]
    if not params:
        return
    grads: list[Tensor] = [parameter.grad for parameter in params if parameter.grad is not None]
    decay, of_params, of_grads = group.get("weight_decay", 0.0), torch.stack(norms(params)), torch.stack(norms(grads))
    rates = eta * of_params / (of_grads + decay * of_params + _EPS)
    counts = (of_params > 0) & (of_grads > 0)
    if decay:
        added = torch._foreach_mul(params, list((decay * counts).to(of_params.dtype).unbind()))
        torch._foreach_add_(grads, added)
    factors = torch.where(counts, (rates / group["lr"]).clamp(max=1.0), 1.0)
    torch._foreach_mul_(grads, list(factors.unbind()))


# What train() reads from the same dictionary.
_OF_THE_TRAINER = (
    *("num_epochs", "max_steps", "grad_norm_clip", "amp_min_loss_scale", "ema_decay"),
    *(MODULE_LR, DECAY_WEIGHTS_ONLY),
)
# What is done around any optimizer.
_AROUND = ("larc", "larc_eta")
_ALIASES = {"luc_eta": "luc_trust"}


def create_optimizer(name: str, params: ParamsT, optimization_params: Mapping[str, object]) -> Optimizer:
    """The optimizer called ``name``.

    Args:
        name: one of ``OPTIMIZERS``.
        params: parameters, or groups (dicts with ``params`` and options of their own).
        optimization_params: ``lr``, and options of the optimizer's constructor (``luc_eta`` is Novograd's
            ``luc_trust``); None stands for the default. What only ``train`` reads (``num_epochs``, ``max_steps``,
            ``grad_norm_clip``, ``amp_min_loss_scale``, ``ema_decay``, ``module_lr``, ``decay_weights_only``) is
            ignored. An option that only other optimizers take, or none, is left out with a warning. ``larc`` (True)
            and ``larc_eta`` (0.02) go with all; see :class:`Larc`.

    Raises:
        UnknownNameError: no such optimizer.
        UsageError: no ``lr``, nothing to optimize, a value out of range or of a wrong type.
    """
    constructor = OPTIMIZERS.constructor_of(name)
    params_of_name = {key: value for key, value in optimization_params.items() if key not in _AROUND}
    larc_eta = larc_options(optimization_params.get("larc"), optimization_params.get("larc_eta"))
    options = {**OPTIMIZERS[name], **_own_options(name, params_of_name)}
    if "lr" not in options:
        raise UsageError("the learning rate is missing", place=f"optimizer {name}", remedy='give "lr"')
    items = list(params)
    groups = [_group(name, item) for item in items if not isinstance(item, Tensor)]
    tensors = [item for item in items if isinstance(item, Tensor)]
    if tensors:
        groups.insert(0, {"params": tensors})
    if not any(group["params"] for group in groups):
        raise UsageError("there is nothing to optimize", place=f"optimizer {name}", remedy="give it parameters")
    optimizer: Optimizer = constructor(groups, **options)
    optimizer.register_load_state_dict_post_hook(lay_out_like_parameters)
    if larc_eta is not None:
        Larc(optimizer, larc_eta)
    return optimizer


def _group(name: str, item: object) -> Options:
    if not isinstance(item, Mapping):
        raise UsageError(f"optimizer {name} takes parameters, or dicts with params", got=type(item).__name__)
    params = item["params"]
    return {"params": [params] if isinstance(params, Tensor) else list(params), **_own_options(name, item)}


def _own_options(name: str, params: Mapping[str, object]) -> Options:
    """Those of ``params`` that the optimizer takes, under the names of its constructor."""
    taken = {"lr", *OPTIMIZERS[name]}
    of_all = {"lr", *_ALIASES}.union(*OPTIMIZERS.values())
    options: Options = {}
    for key, value in params.items():
        if key == "params" or key in _OF_THE_TRAINER or value is None:
            continue
        if key not in of_all:
            near = did_you_mean(key, {*of_all, *_OF_THE_TRAINER, *_AROUND})
            logging.warning("optimizer %s: %s is not a parameter%s; it is left out", name, key, near)
        elif _ALIASES.get(key, key) in taken:
            options[_ALIASES.get(key, key)] = tuple(value) if isinstance(value, list) else value
        else:
            logging.warning("optimizer %s does not use %s", name, key)
    check_options(f"optimizer {name}", options, OPTIMIZERS.constructor_of(name))
    return options
