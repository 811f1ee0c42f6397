"""Optimizers by NeMo's names. Learning rates: ``engine/training.py``; clipping and loss scale: ``precision.py``.

To add an optimizer: write it in a file beside this one, and add one line to ``_OPTIMIZERS``.
The import of this file adds these names to ``nemo_lite.utils.argparse.OPTIMIZERS``, the choices of ``--optimizer``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from nemo_lite.backends.pytorch.optim.adam_w import AdamW
from nemo_lite.backends.pytorch.optim.foreach import Options, check_ranges
from nemo_lite.backends.pytorch.optim.from_torch import fused, sgd
from nemo_lite.backends.pytorch.optim.lamb import Lamb
from nemo_lite.backends.pytorch.optim.novograd import Novograd
from nemo_lite.errors import UnknownNameError, UsageError
from nemo_lite.utils import logging
from nemo_lite.utils.argparse import OPTIMIZERS

# What makes an optimizer, and the options it takes beside ``lr`` with their defaults.
_Entry: TypeAlias = "tuple[Callable[..., Optimizer], Options]"

# What train() reads from the same dictionary.
_OF_THE_TRAINER = ("num_epochs", "max_steps", "grad_norm_clip", "amp_min_loss_scale")
_LARC = ("larc", "larc_eta")
# Arguments of our own optimizers that are no options by name.
_NOT_BY_NAME = ("params", "lr", "luc_eps")
_ALIASES = {"luc_eta": "luc_trust"}


def create_optimizer(name: str, params: ParamsT, optimization_params: Mapping[str, object]) -> Optimizer:
    """The optimizer called ``name``.

    ========================= ==============================================================================
    sgd                       torch's, momentum 0.9 unless given
    adam                      torch's Adam (the decay is added to the gradient)
    fused_adam                torch's AdamW: what apex calls FusedAdam decouples the decay
    adam_w                    :class:`AdamW`
    novograd, fused_novograd  :class:`Novograd`, betas (0.95, 0.25) unless given
    lamb, fused_lamb          :class:`Lamb`
    ========================= ==============================================================================

    torch's optimizers run in their fused form on CPU and CUDA: for a 3-layer perceptron of width 32 on one CPU core a
    step of Adam takes 134 us so, 265 us over lists of tensors and 327 us tensor by tensor; of SGD 91, 136 and 146 us.

    Args:
        name: one of the above.
        params: parameters, or groups (dicts with ``params`` and options of their own).
        optimization_params: ``lr``, and what the optimizer takes: ``momentum``, ``weight_decay``, ``betas``, ``eps``,
            ``amsgrad``, ``grad_averaging``, ``luc``, ``luc_eta``; None stands for the default. What only ``train``
            reads (``num_epochs``, ``max_steps``, ``grad_norm_clip``, ``amp_min_loss_scale``) is ignored. An
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


def _group(name: str, item: object) -> Options:
    if not isinstance(item, Mapping):
        raise UsageError(f"optimizer {name} takes parameters, or dicts with params", got=type(item).__name__)
    params = item["params"]
    return {"params": [params] if isinstance(params, Tensor) else list(params), **_own_options(name, item)}


def _own_options(name: str, given: Mapping[str, object]) -> Options:
    """What of ``given`` the optimizer takes, under the names of its constructor."""
    own = {"lr", *_OPTIMIZERS[name][1]}
    known = {"lr", *_ALIASES}.union(*(defaults for _, defaults in _OPTIMIZERS.values()))
    options: Options = {}
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


def _own(optimizer: Callable[..., Optimizer], **defaults: object) -> _Entry:
    """One of our optimizers with the options of its constructor, ``defaults`` where NeMo's differ from those."""
    parameters = inspect.signature(optimizer).parameters.values()
    options = {each.name: each.default for each in parameters if each.name not in _NOT_BY_NAME}
    return optimizer, options | defaults


_ADAM = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False}
_OPTIMIZERS: dict[str, _Entry] = {
    "sgd": (sgd, {"momentum": 0.9, "weight_decay": 0.0}),
    "adam": (fused(torch.optim.Adam), _ADAM),
    "fused_adam": (fused(torch.optim.AdamW), _ADAM),
    "adam_w": _own(AdamW),
    "novograd": _own(Novograd, betas=(0.95, 0.25)),
    "fused_novograd": _own(Novograd, betas=(0.95, 0.25)),
    "lamb": _own(Lamb),
    "fused_lamb": _own(Lamb),
}
OPTIMIZERS.extend(_OPTIMIZERS)
