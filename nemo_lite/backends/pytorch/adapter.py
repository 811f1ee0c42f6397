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
from nemo_lite.utils.launch import forget_launcher, launch_line, who_am_i


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
            if launch.launcher == "none" and (ignored := forget_launcher()):
                logging.warning(ignored)
            device = choose_device(placement)
            if placement is DeviceType.AllGpu and torch.cuda.device_count() > 1:
                line = launch_line(torch.cuda.device_count(), sys.argv)
                logging.warning("AllGpu: no launcher started this script, so it runs on one GPU; for all: %s", line)
            return SingleProcess(), device, describe(device)
        patience = Patience(launch.start_seconds, launch.timeout_seconds, launch.silence_seconds)
        group = ProcessGroup(process, lambda: choose_device(placement, process.local_rank), launch.backend, patience)
        return group, group.device, describe(group.device)

    def check_precision(
        self, device: torch.device, level: Optimization, amp_dtype: str | None, amp_backend: str
    ) -> None:
        """Raise UsageError when the device does not compute in this precision, or apex is asked for and absent."""
        Precision(level, device, amp_dtype, amp_backend=amp_backend)

    def seed(self, seed: int) -> None:
        """Seed Python's, numpy's and torch's generators."""
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)

    def set_cudnn(self, benchmark: bool, deterministic: bool) -> None:
        """Let cuDNN time its algorithms, or take only those that repeat their results to the last bit."""
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = benchmark, deterministic

    def make_actions(
        self, device: torch.device, comm: Comm, tb_writer: TbWriter | None, settings: ActionSettings
    ) -> PtActions:
        """A new actions object."""
        return PtActions(device=device, comm=comm, tb_writer=tb_writer, **vars(settings))
