"""What apex.amp documents: initialize, scale_loss, master_params, disable_casts, state_dict, load_state_dict.

O1 does not cast (the real one replaces functions of torch), but notes where casts are off. O2 and O3 make float16
weights and cast what enters and leaves a model. Master weights are made at the first ``zero_grad``, as in apex.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict

import torch

from .. import calls

_FIRST_SCALE = 2.0**16
scales: dict[str, float | int | str] = {}
casts_are_on = True


def initialize(
    models,
    optimizers=None,
    enabled=True,
    opt_level="O1",
    cast_model_type=None,
    patch_torch_functions=None,
    keep_batchnorm_fp32=None,
    master_weights=None,
    loss_scale=None,
    cast_model_outputs=None,
    num_losses=1,
    verbosity=1,
    min_loss_scale=None,
    max_loss_scale=2.0**24,
):
    calls.append(("initialize", len(models), len(optimizers), opt_level, min_loss_scale, max_loss_scale))
    scales.update(scale=1.0 if opt_level == "O3" else min(_FIRST_SCALE, max_loss_scale), unskipped=0, level=opt_level)
    if opt_level in ("O2", "O3"):
        for model in models:
            _cast(model, keep_norms=opt_level == "O2")
    for optimizer in optimizers:
        _patch(optimizer, opt_level == "O2")
    return models, optimizers


def _cast(model, keep_norms):
    for part in model.modules():
        if not (keep_norms and isinstance(part, torch.nn.modules.batchnorm._BatchNorm)):
            for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
                tensor.data = tensor.data.half() if tensor.is_floating_point() else tensor.data
        part._register_state_dict_hook(_as_float32)
    forward = model.forward

    def new_forward(*args, **kwargs):
        halves = {key: value.half() if value.is_floating_point() else value for key, value in kwargs.items()}
        return forward(*args, **halves).float()

    model.forward = new_forward


def _as_float32(module, state, prefix, metadata):
    for key, value in state.items():
        state[key] = value.float() if value.dtype is torch.float16 else value


def _patch(optimizer, makes_masters):
    old_step, old_zero_grad = optimizer.step, optimizer.zero_grad
    optimizer._pairs = []
    optimizer._is_made = False

    def zero_grad(set_to_none=True):
        if makes_masters and not optimizer._is_made:
            optimizer._is_made = True
            for group in optimizer.param_groups:
                for index, param in enumerate(group["params"]):
                    if param.dtype is torch.float16:
                        master = torch.nn.Parameter(param.detach().float())
                        optimizer._pairs.append((param, master))
                        group["params"][index] = master
        for half, _ in optimizer._pairs:
            half.grad = None
        old_zero_grad()

    def step(closure=None):
        old_step()
        for half, master in optimizer._pairs:
            half.data.copy_(master.data)

    optimizer.zero_grad, optimizer.step = zero_grad, step


@contextlib.contextmanager
def scale_loss(loss, optimizers, loss_id=0, model=None, delay_unscale=False, delay_overflow_check=False):
    calls.append(("scale_loss", delay_unscale))
    if scales["level"] == "O3":
        yield loss.float()
        return
    yield loss.float() * scales["scale"]
    if delay_unscale:
        return
    overflows = [_unscale(optimizer) for optimizer in optimizers]
    if not any(overflows):
        scales["unskipped"] += 1
        return
    scales["scale"] /= 2
    for optimizer in optimizers:
        _skip_once(optimizer)


def _unscale(optimizer):
    for half, master in optimizer._pairs:
        master.grad = None if half.grad is None else half.grad.float()
    grads = [p.grad for p in master_params(optimizer) if p.grad is not None]
    for grad in grads:
        grad.div_(scales["scale"])
    return not all(torch.isfinite(grad).all() for grad in grads)


def _skip_once(optimizer):
    step = optimizer.step

    def skip_step(closure=None):
        calls.append(("skip_step",))
        for _, master in optimizer._pairs:
            master.grad = None
        optimizer.step = step

    optimizer.step = skip_step


def master_params(optimizer):
    for group in optimizer.param_groups:
        yield from group["params"]


@contextlib.contextmanager
def disable_casts():
    global casts_are_on
    casts_are_on = False
    yield
    casts_are_on = True


def state_dict(destination=None):
    state = {"loss_scale": scales["scale"], "unskipped": scales["unskipped"]}
    return OrderedDict(loss_scaler0=state)


def load_state_dict(state_dict):
    scales["scale"] = state_dict["loss_scaler0"]["loss_scale"]
    scales["unskipped"] = state_dict["loss_scaler0"]["unskipped"]
