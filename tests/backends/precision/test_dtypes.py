"""The half type of a device, and what stays in float32."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from nemo_lite.backends.pytorch.precision import cast, float32_parts, half_dtype, half_parts


@pytest.mark.parametrize(
    ("card", "major", "expected"),
    [("V100", 7, torch.float16), ("T4", 7, torch.float16), ("A100", 8, torch.bfloat16), ("H100", 9, torch.bfloat16)],
)
@pytest.mark.parametrize("name", ["auto", None])
def test_auto_is_bfloat16_only_where_a_gpu_has_it_in_hardware(monkeypatch, card, major, expected, name):
    # What torch asks the driver; it can make bfloat16 tensors on all four cards, by emulation.
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=major, name=card))
    monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda device: True)
    assert torch.cuda.is_bf16_supported()
    assert half_dtype(name, torch.device("cuda")) is expected
    assert half_dtype("float16", torch.device("cuda")) is torch.float16


def test_norms_and_parts_that_say_so_stay_in_float32():
    own = nn.Sequential(nn.Linear(2, 2))
    own.keep_float32 = True
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), own, nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 2)))
    assert list(float32_parts(net, norms_too=True)) == [net[1], own, net[3][0]]
    assert list(float32_parts(net, norms_too=False)) == [own]
    assert list(half_parts(net, norms_too=True)) == [net, net[0], net[3], net[3][1]]


def test_only_tensors_of_the_given_type_are_cast_wherever_they_are():
    ids, x = torch.arange(2), torch.ones(2)
    casted = cast(({"x": [x, ids]}, "text", x.double()), (torch.float32,), torch.bfloat16)
    assert [casted[0]["x"][0].dtype, casted[0]["x"][1].dtype, casted[1]] == [torch.bfloat16, torch.int64, "text"]
    assert casted[2].dtype is torch.float64
