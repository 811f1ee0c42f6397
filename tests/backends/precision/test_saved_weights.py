"""SavedWeights: float32 tensors in a state, of parts whose own tensors are half."""

from __future__ import annotations

import torch
from torch import nn

from nemo_lite.backends.pytorch.precision import SavedWeights, own_tensors


def test_a_state_has_the_float32_values_and_loading_changes_both():
    layer, saved = nn.Linear(1, 1), SavedWeights()
    wide = layer.weight.data.clone()
    layer.weight.data = wide.half()
    saved.wide[layer.weight] = wide
    handles = saved.attach(layer)
    assert layer.state_dict()["weight"].data_ptr() == wide.data_ptr()
    layer.load_state_dict({"weight": torch.tensor([[1 / 3]]), "bias": torch.zeros(1)})
    assert (wide.item(), layer.weight.item()) == (torch.tensor(1 / 3).item(), torch.tensor(1 / 3).half().item())
    for handle in handles:
        handle.remove()
    assert layer.state_dict()["weight"].dtype is torch.float16


def test_without_a_float32_value_the_half_is_widened():
    layer, saved = nn.Linear(1, 1).half(), SavedWeights()
    saved.wide[layer.weight] = None
    saved.attach(layer)
    state = layer.state_dict()
    assert (state["weight"].dtype, state["bias"].dtype) == (torch.float32, torch.float16)
    assert torch.equal(state["weight"], layer.weight.float())


def test_a_parts_own_tensors_are_its_parameters_and_buffers():
    net = nn.Sequential(nn.BatchNorm1d(1))
    assert list(own_tensors(net)) == []
    names = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert [name for name, _ in own_tensors(net[0])] == names
