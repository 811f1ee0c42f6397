"""MasterWeights: an optimizer updates float32 weights, the modules compute with halves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nemo_lite.backends.pytorch.precision import choose_precision
from nemo_lite.core.backend import Optimization
from nemo_lite.errors import UsageError

CPU = torch.device("cpu")


def update(precision, optimizer, max_grad_norm=None):
    found = precision.finish_backward(optimizer, optimizer.param_groups[0]["params"], max_grad_norm)
    assert found.item() == 0.0
    precision.update(optimizer, optimizer.step)


def step(precision, optimizer, weight, gradient):
    weight.grad = torch.full_like(weight, gradient)
    update(precision, optimizer)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.LBFGS, torch.optim.Adam])
def test_an_optimizer_has_the_float32_weights_inside_and_its_own_parameters_afterwards(make):
    net, precision = nn.Linear(1, 1), choose_precision(Optimization.mxprO2, CPU)
    optimizer = make(net.parameters(), lr=0.1)
    before = list(net.parameters())
    with precision.prepared([net], trained=True):
        precision.adopt([net], [optimizer])
        inside = optimizer.param_groups[0]["params"]
        assert [p.dtype for p in inside] == [torch.float32] * 2
        assert [p.dtype for p in net.parameters()] == [torch.bfloat16] * 2
        assert all(half is p for half, p in zip(precision.halves_of(optimizer), before, strict=True))
    assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], before, strict=True))
    assert precision.halves_of(optimizer) == ()


def test_updates_that_a_half_cannot_hold_add_up_in_the_master_weight():
    net, precision = nn.Linear(1, 1, bias=False), choose_precision(Optimization.mxprO2, CPU)
    nn.init.ones_(net.weight)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    with precision.prepared([net], trained=True):
        precision.adopt([net], [optimizer])
        for _ in range(100):
            step(precision, optimizer, net.weight, 2.0**-12)  # bfloat16 next to 1: 2^-8 below
        assert net.weight.item() == pytest.approx(1 - 100 * 2.0**-12, abs=2.0**-9)
    assert net.weight.item() == pytest.approx(1 - 100 * 2.0**-12, abs=1e-7)


def test_a_state_from_before_goes_on_and_is_found_again():
    net, precision = nn.Linear(1, 1, bias=False), choose_precision(Optimization.mxprO2, CPU)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.5)
    net.weight.grad = torch.ones_like(net.weight)
    optimizer.step()
    with precision.prepared([net], trained=True):
        precision.adopt([net], [optimizer])
        step(precision, optimizer, net.weight, 1.0)
    (buffer,) = (state["momentum_buffer"] for state in optimizer.state.values())
    assert (list(optimizer.state), buffer.item(), buffer.dtype) == ([net.weight], 1.5, torch.float32)


def test_a_weight_without_a_gradient_stays_as_it_is():
    net, precision = nn.Linear(1, 1), choose_precision(Optimization.mxprO2, CPU)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    bias = net.bias.item()
    with precision.prepared([net], trained=True):
        precision.adopt([net], [optimizer])
        step(precision, optimizer, net.weight, 1.0)
    assert net.bias.item() == bias


def test_clipping_looks_at_the_gradients_of_the_master_weights():
    net, precision = nn.Linear(2, 1, bias=False), choose_precision(Optimization.mxprO2, CPU)
    nn.init.zeros_(net.weight)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    with precision.prepared([net], trained=True):
        precision.adopt([net], [optimizer])
        net.weight.grad = torch.tensor([[3.0, 4.0]], dtype=torch.bfloat16)
        update(precision, optimizer, max_grad_norm=1.0)
    torch.testing.assert_close(net.weight.detach(), torch.tensor([[-0.6, -0.8]]))


def test_two_optimizers_of_one_weight_share_its_master_weight():
    net, precision = nn.Linear(1, 1), choose_precision(Optimization.mxprO2, CPU)
    first, second = (torch.optim.SGD(net.parameters(), lr=1.0) for _ in range(2))
    with precision.prepared([net], trained=True):
        precision.adopt([net], [first])
        precision.adopt([net], [second])
        assert first.param_groups[0]["params"][0] is second.param_groups[0]["params"][0]


def test_an_optimizer_made_over_half_parameters_is_refused_in_one_line():
    net, precision = nn.Linear(1, 1).half(), choose_precision(Optimization.mxprO2, CPU)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    message = (
        r"optimizer SGD: O2 needs float32 weights to update: got parameters that were float16 before the run; "
        "leave the modules in float32: O2 makes the half weights itself"
    )
    with precision.prepared([net], trained=True), pytest.raises(UsageError, match=message):
        precision.adopt([net], [optimizer])


def test_an_optimizer_that_keeps_parameters_elsewhere_is_refused_in_one_line():
    class Hoarder(torch.optim.SGD):
        def __init__(self, params):
            self.mine = list(params)
            super().__init__(self.mine, lr=1.0)
            self.by_name = {"weight": self.mine[0]}

    net, precision = nn.Linear(1, 1), choose_precision(Optimization.mxprO2, CPU)
    message = r"optimizer Hoarder: this optimizer cannot have master weights: got .* in mine; use O1"
    with precision.prepared([net], trained=True), pytest.raises(UsageError, match=message):
        precision.adopt([net], [Hoarder(net.parameters())])
