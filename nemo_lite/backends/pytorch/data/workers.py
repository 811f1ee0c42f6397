"""How batches are loaded where nobody says so: the number of processes that load them, and page-locked memory."""

from __future__ import annotations

import os

import torch

_MOST = 8  # more of them decode audio faster than a GPU trains on it


def workers_for(device: torch.device, chosen: int | None = None) -> int:
    """The number of processes that load batches for a device.

    Args:
        device: where the batches go. For a CPU it is 0: it has the loading and the training to do either way. For a GPU
            it is this GPU's share of the cores without one, from 1 to 8.
        chosen: what the user wants; ``None``: the number above.
    """
    if chosen is not None:
        return chosen
    if device.type == "cpu":
        return 0
    # What this process may use: a scheduler often gives a job some of a machine's cores.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_MOST, cores // max(torch.cuda.device_count(), 1) - 1))


def pins_memory_for(device: torch.device, chosen: bool | None = None) -> bool:
    """Whether batches are put into page-locked memory: for a GPU, which fetches them from there by itself.

    Args:
        device: where the batches go.
        chosen: what the user wants; ``None``: what suits the device.
    """
    return device.type == "cuda" if chosen is None else chosen
