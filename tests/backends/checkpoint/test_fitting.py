"""Whether stored tensors fit a module: older names and types are adapted, differences are named."""

from __future__ import annotations

import torch
from torch import nn

from nemo_lite.backends.pytorch.checkpoint.storage import load_module, save_module


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def assert_same(left: nn.Module, right: nn.Module) -> None:
    assert left.state_dict().keys() == right.state_dict().keys()
    assert all(torch.equal(value, right.state_dict()[name]) for name, value in left.state_dict().items())


def test_a_counter_that_old_files_lack_is_the_modules_own(tmp_path):
    saved, loaded = normed(), normed()
    loaded[1].num_batches_tracked += 7
    torch.save({n: v for n, v in saved.state_dict().items() if "num_batches" not in n}, tmp_path / "m.pt")
    load_module(loaded, tmp_path / "m.pt")
    assert torch.equal(loaded[0].weight, saved[0].weight)
    assert loaded[1].num_batches_tracked == 7


def test_the_names_of_a_wrapped_module_are_taken_apart(tmp_path):
    saved, loaded = normed(), normed()
    torch.save({f"module.{name}": value for name, value in saved.state_dict().items()}, tmp_path / "m.pt")
    load_module(loaded, tmp_path / "m.pt")
    assert_same(saved, loaded)


def test_the_conversion_of_half_weights_is_said(tmp_path, capsys):
    save_module(nn.Linear(1, 1).half(), tmp_path / "m.pt")
    load_module(nn.Linear(1, 1), tmp_path / "m.pt")
    assert "m.pt: its weights are float16; converted to float32" in capsys.readouterr().out


def test_half_precision_weights_fill_a_float_module(tmp_path):
    loaded = nn.Linear(1, 1)
    save_module(nn.Linear(1, 1).half(), tmp_path / "m.safetensors")
    load_module(loaded, tmp_path / "m.safetensors")
    assert loaded.weight.dtype == torch.float32
