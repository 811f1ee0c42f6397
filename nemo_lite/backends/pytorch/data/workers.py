"""The processes that load batches: their number where nobody says it, their start, and page-locked memory."""

from __future__ import annotations

import gc
import os

import torch

from nemo_lite.interruption import leave_signals_to_parent

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


def start_work(_worker: int = 0) -> None:
    """What a process that loads batches does first: leave signals and the parent's objects to the parent.

    It is a fork: what was garbage in the parent is garbage here as well, and to collect it would end things whose
    threads the fork does not have (a session of ONNX Runtime then waits for ever or crashes). Frozen, those objects are
    never collected here, and the collector does not write to pages that both share.
    """
    gc.freeze()
    leave_signals_to_parent()
