"""Choosing a device, and moving values to it and back."""

from __future__ import annotations

import re
import socket

import pytest
import torch

from nemo_lite.backends.pytorch.placement import choose_device, describe, to_cpu, to_device
from nemo_lite.core.backend import DeviceType
from nemo_lite.errors import DeviceError


def test_a_local_rank_without_a_gpu_of_its_own_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Volta")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    got = r"got cuda:0 Volta \(CUDA_VISIBLE_DEVICES=3\), wanted at most 1 .*\(--gpus-per-node\)"
    with pytest.raises(DeviceError, match=rf"{re.escape(socket.gethostname())}: .* local_rank 5 has none: {got}"):
        choose_device(None, local_rank=5)
    assert choose_device(None, local_rank=0) == torch.device("cuda", 0)


def test_several_processes_that_ask_for_gpus_rehearse_on_the_cpu_where_there_are_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(DeviceType.AllGpu, local_rank=1) == choose_device(None) == torch.device("cpu")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert describe(torch.device("cpu")) == "CPU (1 thread)"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert describe(torch.device("cpu")) == "CPU (2 threads)"
    with pytest.raises(DeviceError, match="placement AllGpu asks for a GPU, and there is none"):
        choose_device(DeviceType.AllGpu)


def test_tensors_move_and_other_values_stay():
    values = [torch.ones(2, requires_grad=True), "text", 3]
    meta, *rest = to_device(values, torch.device("meta"))
    assert (meta.device.type, rest) == ("meta", ["text", 3])
    back = to_cpu(values)
    assert (back[0].requires_grad, back[1:]) == (False, ["text", 3])
