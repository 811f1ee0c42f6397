"""LARC around optimizers: its formula, and that nothing else of them changes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from nemo_lite.backends.pytorch.create_optimizer import create_optimizer


def expected_gradient(p, g, lr, decay, eta):
    """The formula of You et al. (2017), for one tensor, with the clipping of NVIDIA's LARC."""
    if p.norm() == 0 or g.norm() == 0:
        return g
    rate = eta * p.norm() / (g.norm() + decay * p.norm() + 1e-8)
    return (g + decay * p) * min(rate / lr, 1)


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("lr", [1e-4, 1.0])  # below the rates of LARC, and above
def test_each_tensor_steps_by_its_own_rate(lr, decay):
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.zeros(4)), nn.Parameter(torch.randn(2) * 100)]
    params += [nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(1))]
    gradients = [torch.randn(3, 4), torch.randn(4), torch.randn(2), torch.zeros(2)]
    options = {"lr": lr, "momentum": 0.0, "weight_decay": decay, "larc": True, "larc_eta": 0.01}
    optimizer = create_optimizer("sgd", params, options)
    before = [p.detach().clone() for p in params]
    for p, g in zip(params, gradients, strict=False):
        p.grad = g.clone()
    optimizer.step()
    for p, was, g in zip(params, before, gradients, strict=False):
        torch.testing.assert_close(p.detach(), was - lr * expected_gradient(was, g, lr, decay, 0.01))
    assert torch.equal(params[-1], before[-1])  # it has no gradient
    assert optimizer.param_groups[0]["weight_decay"] == decay


@pytest.mark.parametrize("name", ["adam", "novograd", "fused_lamb"])
def test_any_optimizer_can_have_it_and_nobody_has_it_unasked(name):
    def stepped(**larc):
        weight = nn.Parameter(torch.tensor([3.0, 4.0]))
        optimizer = create_optimizer(name, [weight], {"lr": 0.1, "weight_decay": 0.1, **larc})
        for factor in (1.0, 5.0):
            weight.grad = torch.tensor([1.0, -2.0]) * factor
            optimizer.step()
        return weight.detach(), copy.deepcopy(optimizer.state_dict()["param_groups"])

    (plain, groups), (scaled, with_larc) = stepped(), stepped(larc=True)
    assert not torch.equal(plain, scaled)
    assert groups == with_larc
    assert torch.equal(stepped(larc=False, larc_eta=0.1)[0], plain)


def test_a_rate_of_0_changes_nothing():
    weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = create_optimizer("sgd", [weight], {"lr": 0.0, "larc": True})
    weight.grad = torch.ones(2)
    optimizer.step()
    assert weight.tolist() == [3.0, 4.0]
