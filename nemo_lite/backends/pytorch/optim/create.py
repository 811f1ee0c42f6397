"""Optimizers by NeMo's names. Learning rates: ``engine/training.py``; clipping and loss scale: ``precision.py``.

To add an optimizer: write it in a file beside this one, and add one line at the end of this file.
It is then one of ``nemo_lite.utils.argparse.OPTIMIZERS``, the choices of ``--optimizer``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from nemo_lite.backends.pytorch.optim.adam_w import AdamW
from nemo_lite.backends.pytorch.optim.from_apex import apex_or
from nemo_lite.backends.pytorch.optim.from_torch import adam, decoupled_adam, sgd
from nemo_lite.backends.pytorch.optim.groups import DECAY_WEIGHTS_ONLY, MODULE_LR
from nemo_lite.backends.pytorch.optim.lamb import Lamb
from nemo_lite.backends.pytorch.optim.larc import add_larc, larc_options
from nemo_lite.backends.pytorch.optim.loading import lay_out_like_parameters
from nemo_lite.backends.pytorch.optim.novograd import Novograd
from nemo_lite.backends.pytorch.optim.options import NO_DEFAULT, Options, check_options, constructor_defaults
from nemo_lite.errors import UnknownNameError, UsageError, did_you_mean
from nemo_lite.utils import logging
from nemo_lite.utils.argparse import OPTIMIZERS

# What makes each of OPTIMIZERS.
_CONSTRUCTORS: dict[str, Callable[..., Optimizer]] = {}

# What train() reads from the same dictionary.
_OF_THE_TRAINER = (
    *("num_epochs", "max_steps", "grad_norm_clip", "amp_min_loss_scale", "ema_decay"),
    *(MODULE_LR, DECAY_WEIGHTS_ONLY),
)
# What is done around any optimizer.
_AROUND = ("larc", "larc_eta")
# Arguments of constructors that are no options by name; every optimizer takes ``lr``.
_NOT_BY_NAME = ("lr", "luc_eps")
_ALIASES = {"luc_eta": "luc_trust"}


def create_optimizer(name: str, params: ParamsT, optimization_params: Mapping[str, object]) -> Optimizer:
    """The optimizer called ``name``.

    Args:
        name: one of those at the end of this file.
        params: parameters, or groups (dicts with ``params`` and options of their own).
        optimization_params: ``lr``, and options of the optimizer's constructor (``luc_eta`` is Novograd's
            ``luc_trust``); None stands for the default. What only ``train`` reads (``num_epochs``, ``max_steps``,
            ``grad_norm_clip``, ``amp_min_loss_scale``, ``ema_decay``, ``module_lr``, ``decay_weights_only``) is
            ignored. An option that only other optimizers take, or none, is left out with a warning. ``larc`` (True)
            and ``larc_eta`` (0.02) go with all; see `add_larc`.

    Raises:
        UnknownNameError: no such optimizer.
        UsageError: no ``lr``, nothing to optimize, a value out of range or of a wrong type.
    """
    if name not in OPTIMIZERS:
        raise UnknownNameError("optimizer", name, OPTIMIZERS)
    given = {key: value for key, value in optimization_params.items() if key not in _AROUND}
    larc_eta = larc_options({key: optimization_params.get(key) for key in _AROUND})
    options = {**OPTIMIZERS[name], **_own_options(name, given)}
    if "lr" not in options:
        raise UsageError("the learning rate is missing", place=f"optimizer {name}", remedy='give "lr"')
    items = list(params)
    groups = [_group(name, item) for item in items if not isinstance(item, Tensor)]
    tensors = [item for item in items if isinstance(item, Tensor)]
    if tensors:
        groups.insert(0, {"params": tensors})
    if not any(group["params"] for group in groups):
        raise UsageError("there is nothing to optimize", place=f"optimizer {name}", remedy="give it parameters")
    optimizer = _CONSTRUCTORS[name](groups, **options)
    optimizer.register_load_state_dict_post_hook(lay_out_like_parameters)
    if larc_eta is not None:
        add_larc(optimizer, larc_eta)
    return optimizer


def _group(name: str, item: object) -> Options:
    if not isinstance(item, Mapping):
        raise UsageError(f"optimizer {name} takes parameters, or dicts with params", got=type(item).__name__)
    params = item["params"]
    return {"params": [params] if isinstance(params, Tensor) else list(params), **_own_options(name, item)}


def _own_options(name: str, given: Mapping[str, object]) -> Options:
    """What of ``given`` the optimizer takes, under the names of its constructor."""
    own = {"lr", *OPTIMIZERS[name]}
    known = {"lr", *_ALIASES}.union(*OPTIMIZERS.values())
    options: Options = {}
    for key, value in given.items():
        if key == "params" or key in _OF_THE_TRAINER or value is None:
            continue
        if key not in known:
            near = did_you_mean(key, {*known, *_OF_THE_TRAINER, *_AROUND})
            logging.warning("optimizer %s: %s is not a parameter%s; it is left out", name, key, near)
        elif _ALIASES.get(key, key) in own:
            options[_ALIASES.get(key, key)] = tuple(value) if isinstance(value, list) else value
        else:
            logging.warning("optimizer %s does not use %s", name, key)
    check_options(f"optimizer {name}", options, _CONSTRUCTORS[name])
    return options


def register(name: str, optimizer: Callable[..., Optimizer], **defaults: object) -> None:
    """Make an optimizer known to :func:`create_optimizer`, and to ``--optimizer`` of the scripts.

    Args:
        name: its name there.
        optimizer: a class or function. It takes the parameters (groups of them), ``lr``, and options. Each but the
            first needs a default, which also says what type a given value must have.
        defaults: where the name's defaults differ from the constructor's.

    Raises:
        UsageError: an argument without a default, or ``*args`` or ``**kwargs``.
    """
    options = {**constructor_defaults(optimizer), **defaults}
    if without := [option for option, default in options.items() if default is NO_DEFAULT]:
        problem = f"arguments without a default: {', '.join(without)}"
        raise UsageError(problem, place=f"optimizer {name}", remedy="give each argument a default")
    _CONSTRUCTORS[name] = optimizer
    OPTIMIZERS[name] = {option: default for option, default in options.items() if option not in _NOT_BY_NAME}


register("sgd", sgd)
register("adam", adam)
register("fused_adam", apex_or(decoupled_adam, "fused_adam", "FusedAdam", adam_w_mode=True))
register("fused_sgd", apex_or(sgd, "fused_sgd", "FusedSGD"))
register("adam_w", AdamW)
register("novograd", Novograd, betas=(0.95, 0.25))
novograd_of_apex = apex_or(Novograd, "fused_novograd", "FusedNovoGrad", reg_inside_moment=True)
register("fused_novograd", novograd_of_apex, betas=(0.95, 0.25))
register("lamb", Lamb)
# apex clips by a norm of 1 unless told otherwise; here grad_norm_clip does that.
register("fused_lamb", apex_or(Lamb, "fused_lamb", "FusedLAMB", max_grad_norm=math.inf))
