"""Where things run: choosing a device, and moving a batch there. No distribution over processes here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from nemo_lite.core.factory import DeviceType
from nemo_lite.errors import DeviceError


def choose_device(placement: DeviceType | None, local_rank: int | None = None) -> torch.device:
    """The device for a placement; without one, the GPU if there is one, else the CPU.

    Raises:
        DeviceError: a GPU is asked for where there is none, or none for this local rank.
    """
    has_gpu = torch.cuda.is_available()
    if placement is DeviceType.CPU or (placement is None and not has_gpu):
        return torch.device("cpu")
    if not has_gpu:
        assert placement is not None
        raise DeviceError(
            f"placement {placement.name} asks for a GPU, and there is none",
            got=f"torch {torch.__version__}, CUDA not available",
            remedy="use DeviceType.CPU, or leave the placement out",
        )
    index, count = local_rank or 0, torch.cuda.device_count()
    if index >= count:
        raise DeviceError(
            f"local_rank {index} takes GPU {index}, and there is none of that number",
            got=f"{count} GPU{'s' if count > 1 else ''}",
            wanted=f"local_rank below {count}",
        )
    return torch.device("cuda", index)


def describe(device: torch.device) -> str:
    """A device in words."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({torch.get_num_threads()} threads)"


def to_device(values: Iterable[Any], device: torch.device) -> tuple[Any, ...]:
    """Move the tensors among these values; copies from pinned memory overlap with what the device is doing."""
    if device.type == "cpu":
        return values if isinstance(values, tuple) else tuple(values)
    return tuple(v.to(device, non_blocking=True) if isinstance(v, torch.Tensor) else v for v in values)


def to_cpu(values: Iterable[Any]) -> list[Any]:
    """The same values with tensors detached and in host memory."""
    return [v.detach().cpu() if isinstance(v, torch.Tensor) else v for v in values]
