"""PyTorchAdapter: what the factory gets from PyTorch."""

from __future__ import annotations

import random

import numpy as np
import torch
from toys.launchers import no_launcher

from nemo_lite.backends.pytorch.actions import PtActions, PyTorchAdapter
from nemo_lite.backends.pytorch.distributed.comm import SingleProcess
from nemo_lite.core.backend import ActionSettings, DeviceType, LaunchOptions, Optimization


def test_a_process_that_no_launcher_started_is_alone():
    comm, device, name = PyTorchAdapter().join(DeviceType.CPU, None, LaunchOptions())
    assert isinstance(comm, SingleProcess)
    assert (device, name.startswith("CPU (")) == (torch.device("cpu"), True)


def test_a_process_that_is_to_be_alone_says_what_it_ignores(monkeypatch, caplog):
    no_launcher(monkeypatch)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    comm, *_ = PyTorchAdapter().join(DeviceType.CPU, None, LaunchOptions(launcher="none"))
    assert isinstance(comm, SingleProcess)
    assert caplog.messages == ["--launcher none: this process runs alone and ignores RANK=1 LOCAL_RANK=1"]


def test_a_seed_reaches_every_generator(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    draws = []
    for _ in range(2):
        PyTorchAdapter().seed(2**40 + 5)
        draws.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert draws[0] == draws[1]
    assert not torch.backends.cudnn.deterministic


def test_cudnn_takes_slow_repeatable_algorithms_where_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    PyTorchAdapter().set_cudnn(benchmark=True, deterministic=False)
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic) == (True, False)
    PyTorchAdapter().set_cudnn(benchmark=False, deterministic=True)
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic) == (False, True)


def test_the_settings_of_a_factory_reach_the_actions():
    settings = ActionSettings(Optimization.mxprO0, None, "auto", 3, (), shard_weights=False)
    actions = PyTorchAdapter().make_actions(torch.device("cpu"), SingleProcess(), None, settings)
    assert isinstance(actions, PtActions)
    assert (actions.step, actions.epoch, actions.optimizers, actions.inferred) == (0, 0, [], None)
