"""Where tests of GPU code run: on CUDA where there is one, and always on the CPU, as a rehearsal of the same lines."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import nemo_lite as nemo


def on_cpu_and(num_gpus: int) -> Any:
    """Parametrise ``device``: ``cpu``, and ``cuda`` where there are so many GPUs."""
    found = torch.cuda.device_count()
    reason = f"needs {num_gpus} CUDA device{'' if num_gpus == 1 else 's'}, found {found}; the same test ran on the CPU"
    cuda = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(found < num_gpus, reason=reason)])
    return pytest.mark.parametrize("device", ["cpu", cuda])


def factory_on(device: str, **settings: Any) -> nemo.NeuralModuleFactory:
    """A factory whose modules run there."""
    placement = nemo.DeviceType.CPU if device == "cpu" else nemo.DeviceType.AllGpu
    return nemo.NeuralModuleFactory(placement=placement, random_seed=1, **settings)
