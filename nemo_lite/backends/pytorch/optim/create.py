"""Optimizers by NeMo's names. Learning-rate policies, clipping and loss scaling are the training loop's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, ParamsT

from nemo_lite.backends.pytorch.optim.list_optimizers import AdamW, Lamb, Novograd, check_ranges
from nemo_lite.errors import UnknownNameError, UsageError
from nemo_lite.utils import logging

# What train() reads from the same dictionary.
_OF_THE_TRAINER = ("num_epochs", "max_steps", "grad_norm_clip", "amp_min_loss_scale")
_LARC = ("larc", "larc_eta")
# Devices for which torch has one kernel for all of a step.
_FUSED_DEVICES = ("cpu", "cuda")
_ALIASES = {"luc_eta": "luc_trust"}


def create_optimizer(name: str, params: ParamsT, optimization_params: Mapping[str, Any]) -> Optimizer:
    """The optimizer called ``name``.

    ========================= ==============================================================================
    sgd                       torch's, momentum 0.9 unless given
    adam                      torch's Adam (the decay is added to the gradient)
    fused_adam                torch's AdamW: what apex calls FusedAdam decouples the decay
    adam_w                    :class:`AdamW`
    novograd, fused_novograd  :class:`Novograd`, betas (0.95, 0.25) unless given
    lamb, fused_lamb          :class:`Lamb`
    ========================= ==============================================================================

    torch's own run in their fused form on CPU and CUDA: for a 3-layer perceptron of width 32 on one CPU core a step of
    Adam takes 134 us so, 265 us over lists of tensors and 327 us tensor by tensor; of SGD 91, 136 and 146 us.

    Args:
        name: one of the above.
        params: parameters, or groups (dicts with ``params`` and options of their own).
        optimization_params: ``lr``, and what the optimizer takes: ``momentum``, ``weight_decay``, ``betas``, ``eps``,
            ``amsgrad``, ``grad_averaging``, ``luc``, ``luc_eta``; None stands for the default. What only ``train``
            reads (``num_epochs``, ``max_steps``, ``grad_norm_clip``, ``amp_min_loss_scale``) is passed over. An
            option that only other optimizers take is left out with a warning.

    Raises:
        UnknownNameError: no such optimizer, or an option that no optimizer takes.
        UsageError: no ``lr``, nothing to optimize, a value out of range, or LARC.
    """
    if name not in _OPTIMIZERS:
        raise UnknownNameError("optimizer", name, _OPTIMIZERS)
    make, defaults = _OPTIMIZERS[name]
    options = defaults | _own_options(name, optimization_params)
    if "lr" not in options:
        raise UsageError("the learning rate is missing", place=f"optimizer {name}", remedy='give "lr"')
    items = list(params)
    groups = [_group(name, item) for item in items if not isinstance(item, Tensor)]
    tensors = [item for item in items if isinstance(item, Tensor)]
    if tensors:
        groups.insert(0, {"params": tensors})
    if not any(group["params"] for group in groups):
        raise UsageError("there is nothing to optimize", place=f"optimizer {name}", remedy="give it parameters")
    optimizer = make(groups, **options)
    optimizer.register_load_state_dict_post_hook(_lay_out_like_parameters)
    return optimizer


def _lay_out_like_parameters(optimizer: Optimizer) -> None:
    """Give loaded states the strides of their parameters: files do not keep them, and fused kernels do not look."""
    for param, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == param.shape and value.stride() != param.stride():
                state[key] = torch.empty_like(param, dtype=value.dtype).copy_(value)


def _group(name: str, item: object) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise UsageError(f"optimizer {name} takes parameters, or dicts with params", got=type(item).__name__)
    params = item["params"]
    return {"params": [params] if isinstance(params, Tensor) else list(params), **_own_options(name, item)}


def _own_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What of ``given`` the optimizer takes, under the names of its constructor."""
    own = {"lr", *_OPTIMIZERS[name][1]}
    known = {"lr", *_ALIASES}.union(*(defaults for _, defaults in _OPTIMIZERS.values()))
    options: dict[str, Any] = {}
    for key, value in given.items():
        if key in _LARC and value:
            raise _no_larc(key)
        if key == "params" or key in _OF_THE_TRAINER or key in _LARC or value is None:
            continue
        if key not in known:
            raise UnknownNameError("optimization parameter", key, {*known, *_OF_THE_TRAINER}, place=f"optimizer {name}")
        if _ALIASES.get(key, key) in own:
            options[_ALIASES.get(key, key)] = tuple(value) if isinstance(value, list) else value
        else:
            logging.warning("optimizer %s does not use %s", name, key)
    check_ranges(f"optimizer {name}", options)
    return options


def _no_larc(key: str) -> UsageError:
    return UsageError(
        "there is no LARC: it was part of apex.parallel, which apex no longer has",
        place=key,
        remedy="leave it out; novograd with luc, and lamb, also limit the update of each tensor",
    )


def _of_torch(optimizer: Callable[..., Optimizer]) -> Callable[..., Optimizer]:
    def make(groups: list[dict[str, Any]], **options: Any) -> Optimizer:
        params = [param for group in groups for param in group["params"]]
        fused = all(param.is_floating_point() and param.device.type in _FUSED_DEVICES for param in params)
        # Weights that are divided among ranks are of a class of their own, for which torch has no fused SGD.
        if optimizer is torch.optim.SGD and any(type(param) not in (Tensor, nn.Parameter) for param in params):
            return optimizer(groups, **options, foreach=True)
        return optimizer(groups, **options, fused=True if fused else None)

    return make


def _sgd(groups: list[dict[str, Any]], **options: Any) -> Optimizer:
    optimizer = _of_torch(torch.optim.SGD)(groups, **options)
    optimizer.register_step_pre_hook(_start_momentum)
    return optimizer


def _start_momentum(optimizer: Optimizer, *unused: object) -> None:
    """Zero momentum for a parameter that has its first gradient, which gives the same first step.

    Without it torch's fused SGD ends in a TypeError if other parameters had theirs earlier (unfreezing does that).
    """
    for group in optimizer.param_groups:
        for param in group["params"] if group["momentum"] else ():
            if param.grad is not None and "momentum_buffer" not in optimizer.state[param]:
                optimizer.state[param]["momentum_buffer"] = torch.zeros_like(param)


_ADAM = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False}
_NOVOGRAD = {
    "betas": (0.95, 0.25),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "grad_averaging": False,
    "amsgrad": False,
    "luc": False,
    "luc_trust": 1e-3,
}
_LAMB = {"betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0}
_OPTIMIZERS: dict[str, tuple[Callable[..., Optimizer], dict[str, Any]]] = {
    "sgd": (_sgd, {"momentum": 0.9, "weight_decay": 0.0}),
    "adam": (_of_torch(torch.optim.Adam), _ADAM),
    "fused_adam": (_of_torch(torch.optim.AdamW), _ADAM),
    "adam_w": (AdamW, _ADAM),
    "novograd": (Novograd, _NOVOGRAD),
    "fused_novograd": (Novograd, _NOVOGRAD),
    "lamb": (Lamb, _LAMB),
    "fused_lamb": (Lamb, _LAMB),
}
