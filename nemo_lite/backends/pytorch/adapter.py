"""What the factory asks of PyTorch: devices, seeds, the group of processes and the actions object."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nemo_lite.backends.pytorch.actions import PtActions
from nemo_lite.backends.pytorch.distributed import Comm, SingleProcess
from nemo_lite.backends.pytorch.placement import choose_device, describe
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.core.factory import DeviceType, Launch, Optimization


class PyTorchAdapter:
    """The PyTorch backend as the factory sees it."""

    def join(
        self, placement: DeviceType | None, local_rank: int | None, launch: Launch
    ) -> tuple[Comm, torch.device, str]:
        """The group of processes that a launcher started, or this one alone; the device, and in words what it is."""
        device = choose_device(placement)
        return SingleProcess(), device, describe(device)

    def check_precision(self, device: torch.device, level: Optimization, amp_dtype: str | None) -> None:
        """Raise UsageError when the device does not compute in this precision."""
        Precision(level, device, amp_dtype)

    def seed(self, seed: int) -> None:
        """Seed Python's, numpy's and torch's generators, and take repeatable algorithms of cuDNN."""
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        torch.backends.cudnn.deterministic = True

    def set_benchmark(self, benchmark: bool) -> None:
        """Let cuDNN time its algorithms."""
        torch.backends.cudnn.benchmark = benchmark

    def make_actions(
        self,
        *,
        device: torch.device,
        comm: Comm,
        level: Optimization,
        amp_dtype: str | None,
        seed: int | None,
        tb_writer: Any,
        files: Sequence[str | Path],
        shard_weights: bool,
    ) -> PtActions:
        """A new actions object."""
        return PtActions(
            tb_writer=tb_writer,
            optimization_level=level,
            device=device,
            comm=comm,
            amp_dtype=amp_dtype,
            seed=seed,
            files=files,
            shard_weights=shard_weights,
        )
