"""What the factory asks of PyTorch: devices, seeds, the group of processes and the actions object."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch

from nemo_lite.backends.pytorch.actions import PtActions
from nemo_lite.backends.pytorch.distributed import Comm, SingleProcess
from nemo_lite.backends.pytorch.placement import choose_device, describe
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.core.factory import DeviceType, Optimization
from nemo_lite.errors import UsageError


class PyTorchAdapter:
    """The PyTorch backend as the factory sees it."""

    def choose_device(self, placement: DeviceType | None, local_rank: int | None) -> tuple[torch.device, str]:
        """The device, and in words what it is."""
        device = choose_device(placement, local_rank)
        return device, describe(device)

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

    def make_comm(self, local_rank: int | None) -> Comm:
        """This process alone.

        Raises:
            UsageError: a launcher started more than one.
        """
        world_size = os.environ.get("WORLD_SIZE", "1")
        if world_size != "1":
            raise UsageError("several processes are not supported yet", got=f"WORLD_SIZE={world_size}", wanted="1")
        return SingleProcess()

    def make_actions(
        self,
        *,
        device: torch.device,
        comm: Comm,
        level: Optimization,
        amp_dtype: str | None,
        seed: int,
        tb_writer: Any,
    ) -> PtActions:
        """A new actions object."""
        return PtActions(
            tb_writer=tb_writer, optimization_level=level, device=device, comm=comm, amp_dtype=amp_dtype, seed=seed
        )
