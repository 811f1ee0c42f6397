"""CUDA tensors without CUDA: shapes, dtypes and devices are computed, values are not. For rehearsals of GPU code.

torch's ``FakeTensorMode`` refuses tensors of mixed devices and every read of a value, as a GPU run should. What it
cannot do even so depends on how torch is built (:data:`IS_BUILT_WITH_CUDA`). Without CUDA:

- autograd: the first operation on a fake CUDA tensor that needs a gradient ends the process (``InputMetadata`` asks for
  a CUDA device guard). So everything runs under ``no_grad``; the meta device rehearses the backward pass.
- brackets, ``copy_`` and ``contiguous``: they ask for that guard too, before any mode sees them. Here ``x[...]`` is put
  together from ``select``, ``slice`` and ``unsqueeze``, which do not; writing checks shapes and devices.

With CUDA and without a driver torch's own brackets and copies run, and graphs for the backward pass are built; the pass
itself asks the driver. So does cuDNN's LSTM: cuDNN is off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

DEVICE = torch.device("cuda", 0)
IS_BUILT_WITH_CUDA = torch.backends.cuda.is_built()
aten = torch.ops.aten


@contextmanager
def fake_cuda(autocast: torch.dtype | None = None) -> Iterator[None]:
    """Inside, tensors that are made on :data:`DEVICE` are fake, and autocast is on for it if a dtype is given."""
    own = {"__getitem__": _taken, "__setitem__": _put, "copy_": _copy_, "contiguous": _contiguous}
    if IS_BUILT_WITH_CUDA:
        own = {}
    for name, function in own.items():
        assert name not in vars(FakeTensor)
        setattr(FakeTensor, name, function)
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    # torch.autocast("cuda") looks for CUDA first, and disables itself.
    torch.set_autocast_enabled("cuda", autocast is not None)
    torch.set_autocast_dtype("cuda", autocast or before[1])
    try:
        with (
            FakeTensorMode(),
            torch.set_grad_enabled(IS_BUILT_WITH_CUDA),
            torch.backends.cudnn.flags(enabled=False),
        ):
            yield
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])
        for name in own:
            delattr(FakeTensor, name)


def on_cuda(module: nn.Module) -> nn.Module:
    """The module with fake weights and buffers of the same shapes. ``Module.to`` would need autograd."""
    for part in module.modules():
        for own in (part._parameters, part._buffers):
            for name, value in own.items():
                if value is not None:
                    fake = torch.empty(value.shape, dtype=value.dtype, device=DEVICE)
                    is_parameter = isinstance(value, nn.Parameter)
                    trained = IS_BUILT_WITH_CUDA and value.requires_grad
                    own[name] = nn.Parameter(fake, requires_grad=trained) if is_parameter else fake
    return module


def _taken(x: Tensor, index: Any) -> Tensor:
    indices = index if isinstance(index, tuple) else (index,)
    if Ellipsis in [each for each in indices if not isinstance(each, Tensor)]:
        at = next(number for number, each in enumerate(indices) if each is Ellipsis)
        missing = x.dim() - sum(each is not None for each in indices) + 1
        indices = (*indices[:at], *[slice(None)] * missing, *indices[at + 1 :])
    dim, by_tensor = 0, {}
    for each in indices:
        if each is None:
            x = x.unsqueeze(dim)
        elif isinstance(each, slice):
            x = aten.slice.Tensor(x, dim, each.start, each.stop, each.step or 1)
        elif isinstance(each, Tensor):
            by_tensor[dim] = each
        else:
            x = x.select(dim, each)
            continue
        dim += 1
    return aten.index.Tensor(x, [by_tensor.get(dim) for dim in range(max(by_tensor) + 1)]) if by_tensor else x


def _put(x: Tensor, index: Any, value: Any) -> None:
    _copy_(_taken(x, index), value)


def _copy_(target: Tensor, value: Any, non_blocking: bool = False) -> Tensor:
    """There are no values to write; shapes and devices have to fit."""
    assert torch.where(torch.ones_like(target, dtype=torch.bool), value, target).shape == target.shape
    return target


def _contiguous(x: Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=memory_format)
