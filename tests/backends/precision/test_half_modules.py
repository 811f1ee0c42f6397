"""HalfModules: halves while an action runs, float32 outside of it and in files."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nemo_lite.backends.pytorch.precision import HalfModules

HALF = torch.bfloat16


def o2() -> HalfModules:
    return HalfModules(HALF, norms_in_float32=True, keeps_masters=True)


def o3() -> HalfModules:
    return HalfModules(HALF, norms_in_float32=False, keeps_masters=False)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4), nn.GroupNorm(2, 4), nn.Conv1d(4, 2, 1))


def state_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def assert_same(state, expected, but="nothing"):
    assert list(state) == list(expected)
    for name, value in expected.items():
        if not name.startswith(but):
            assert state[name].dtype == value.dtype, name
            assert torch.equal(state[name], value), name


@pytest.mark.parametrize(("half", "norm"), [(o2(), torch.float32), (o3(), HALF)])
def test_weights_are_half_inside_and_the_same_bits_as_before_afterwards(half, norm):
    module = net()
    before, parameters = state_of(module), list(module.parameters())
    with half.prepared([module], trained=False):
        assert (module[0].weight.dtype, module[1].weight.dtype, module[1].running_mean.dtype) == (HALF, norm, norm)
        assert module(torch.rand(2, 3, 5)).dtype is HALF
        assert_same(module.state_dict(), before, but="1.")  # the batch moved the statistics
    assert all(after is before for after, before in zip(module.parameters(), parameters, strict=True))
    assert_same(module.state_dict(), before, but="1.")
    assert module[1].running_mean.dtype is torch.float32


def test_loading_while_halves_are_in_use_reaches_the_float32_weights_in_full():
    module, other = net(), net()
    with torch.no_grad():
        other[0].weight.fill_(1 / 3)
    for half, trained in ((o2(), True), (o3(), False)):
        with half.prepared([module], trained=trained):
            module.load_state_dict(other.state_dict())
            assert torch.equal(module[0].weight, other[0].weight.to(HALF))
        assert torch.equal(module[0].weight, other[0].weight)


def test_weights_trained_in_halves_are_widened_afterwards():
    module = net()
    with o3().prepared([module], trained=True):
        with torch.no_grad():
            module[0].weight.mul_(2)
        halves = module[0].weight.clone()
        assert module.state_dict()["0.weight"].dtype is torch.float32
    assert torch.equal(module[0].weight, halves.float())


def test_a_buffer_keeps_its_float32_value_unless_it_changed():
    module = nn.Linear(1, 1)
    module.register_buffer("constant", torch.tensor([1 / 3]))
    module.register_buffer("counter", torch.tensor([1 / 3]))
    for half in (o2(), o3()):
        with half.prepared([module], trained=True):
            module.counter.add_(1)
        assert module.constant.item() == pytest.approx(1 / 3, abs=1e-8)
    assert module.counter.item() == pytest.approx(2 + 1 / 3, abs=0.02)


def test_a_part_that_stays_float32_gets_float32_and_gives_halves_to_the_rest():
    class Sensitive(nn.Module):
        keep_float32 = True

        def forward(self, x):
            self.seen = x.dtype
            return x * 2

    module = nn.Sequential(nn.Linear(2, 2), Sensitive(), nn.Linear(2, 2))
    for half in (o2(), o3()):
        with half.prepared([module], trained=False):
            assert module(torch.rand(3, 2)).dtype is HALF
        assert getattr(module[1], "seen") is torch.float32  # noqa: B009  # mypy: a part may be anything


def test_a_module_without_weights_takes_what_comes():
    module = nn.LogSoftmax(1)
    with o3().prepared([module], trained=False):
        assert module(torch.rand(2, 2)).dtype is torch.float32


def test_preparing_again_inside_changes_nothing_and_a_recurrent_net_works():
    module, half = nn.LSTM(2, 3), o2()
    with half.prepared([module], trained=True):
        with half.prepared([module], trained=False):
            assert module(torch.rand(4, 1, 2))[0].dtype is HALF
        assert module.weight_ih_l0.dtype is HALF
    assert module.weight_ih_l0.dtype is torch.float32
    assert not module._forward_pre_hooks
    assert not module._state_dict_hooks
    assert not module._load_state_dict_pre_hooks


def test_an_error_inside_leaves_float32_modules():
    module = net()
    before = state_of(module)
    with pytest.raises(ValueError, match="inside"), o3().prepared([module], trained=True):
        raise ValueError("inside")
    assert {value.dtype for value in module.parameters()} == {torch.float32}
    assert before["0.weight"].shape == module[0].weight.shape


def test_tied_weights_are_one_half():
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    half = o2()
    with half.prepared([first, second], trained=True):
        assert first.weight is second.weight
        assert len(half.masters()) == 3
        assert second.state_dict()["weight"].data_ptr() == first.state_dict()["weight"].data_ptr()
