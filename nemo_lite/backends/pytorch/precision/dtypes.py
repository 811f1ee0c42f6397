"""The half type of a device, and the parts of a module that stay in float32. Nothing is converted in this file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from nemo_lite.errors import UnknownNameError, UsageError

AUTO = "auto"
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
HALVES = tuple(_DTYPES.values())
_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def half_dtype(amp_dtype: str | None, device: torch.device) -> torch.dtype:
    """The half type of this name; for ``auto`` or None, bfloat16 where the device computes it in hardware.

    NVIDIA's Volta (V100) and Turing (T4, RTX 20) emulate bfloat16, slowly: they get float16.

    Raises:
        UsageError: float16 on a CPU.
        UnknownNameError: another name.
    """
    check_dtype_name(amp_dtype)
    if amp_dtype is None or amp_dtype == AUTO:
        in_hardware = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if in_hardware else torch.float16
    if amp_dtype == "float16" and device.type == "cpu":
        raise UsageError("float16 is not computed on a CPU", place="amp_dtype", remedy="use bfloat16")
    return _DTYPES[amp_dtype]


def check_dtype_name(amp_dtype: str | None) -> None:
    """Raise UnknownNameError for what is neither a half type, ``auto`` nor None."""
    if amp_dtype not in (None, AUTO, *_DTYPES):
        raise UnknownNameError("amp_dtype", str(amp_dtype), [AUTO, *_DTYPES])


def name_of(dtype: torch.dtype) -> str:
    """``float32``."""
    return str(dtype).removeprefix("torch.")


def stays_float32(part: nn.Module, norms_too: bool) -> bool:
    """Whether a part of a module, with all that is in it, stays in float32 where the rest of the module is half.

    Args:
        part: it says so itself (``keep_float32``), or it is a normalisation layer.
        norms_too: normalisation layers stay.
    """
    return bool(getattr(part, "keep_float32", False)) or (norms_too and isinstance(part, _NORMS))


def takes_halves(part: nn.Module) -> bool:
    """Whether a part with float32 weights takes half inputs as they are: torch's kernels of batch normalisation do."""
    return isinstance(part, _NormBase) and not getattr(part, "keep_float32", False)


def half_parts(module: nn.Module, norms_too: bool) -> Iterator[nn.Module]:
    """The parts of a module, itself first, without those that stay in float32."""
    if not stays_float32(module, norms_too):
        yield module
        for child in module.children():
            yield from half_parts(child, norms_too)


def float32_parts(module: nn.Module, norms_too: bool) -> Iterator[nn.Module]:
    """The outermost parts of a module that stay in float32; the module itself if all of it does."""
    if stays_float32(module, norms_too):
        yield module
        return
    for child in module.children():
        yield from float32_parts(child, norms_too)


def cast(values: Any, from_: Iterable[torch.dtype], to: torch.dtype) -> Any:
    """The same values with tensors of some types in another type; in lists, tuples and dictionaries too.

    Any: arguments and results of modules.
    """
    if isinstance(values, torch.Tensor):
        return values.to(to) if values.dtype in from_ else values
    if type(values) in (list, tuple):
        return type(values)(cast(value, from_, to) for value in values)
    if type(values) is dict:
        return {key: cast(value, from_, to) for key, value in values.items()}
    return values
