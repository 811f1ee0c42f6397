"""PyTorchAdapter: devices, seeds, ranks and the actions object, as the factory asks for them."""

from __future__ import annotations

import random
import sys

import numpy as np
import torch

from nemo_lite.backends.pytorch.actions import PtActions
from nemo_lite.backends.pytorch.distributed import Comm, Patience, ProcessGroup, SingleProcess
from nemo_lite.backends.pytorch.placement import choose_device, describe
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.core.action_state import TbWriter
from nemo_lite.core.backend import ActionSettings, DeviceType, LaunchOptions, Optimization
from nemo_lite.utils import logging
from nemo_lite.utils.launch import launch_line, restart_warning, who_am_i


class PyTorchAdapter:
    """The PyTorch backend as the factory sees it."""

    def join(
        self, placement: DeviceType | None, local_rank: int | None, launch: LaunchOptions
    ) -> tuple[Comm, torch.device, str]:
        """The group of ranks that a launcher started, or this process alone; its device, and the device's name."""
        process = who_am_i(
            local_rank,
            launcher=launch.launcher,
            init_method=launch.init_method,
            rank=launch.rank,
            world_size=launch.world_size,
        )
        if process is None:
            device = choose_device(placement)
            if placement is DeviceType.AllGpu and torch.cuda.device_count() > 1:
                line = launch_line(torch.cuda.device_count(), sys.argv)
                logging.warning("AllGpu: no launcher started this script, so it runs on one GPU; for all: %s", line)
            return SingleProcess(), device, describe(device)
        if warning := restart_warning():
            logging.warning(warning)
        patience = Patience(launch.start_seconds, launch.timeout_seconds)
        group = ProcessGroup(process, lambda: choose_device(placement, process.local_rank), launch.backend, patience)
        return group, group.device, describe(group.device)

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
        self, device: torch.device, comm: Comm, tb_writer: TbWriter | None, settings: ActionSettings
    ) -> PtActions:
        """A new actions object."""
        return PtActions(device=device, comm=comm, tb_writer=tb_writer, **vars(settings))
