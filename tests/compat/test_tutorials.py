"""The tutorial: a Taylor series learns a function."""

from __future__ import annotations

import pytest
import torch

import nemo_lite as nemo
from nemo_lite.base.errors import UnknownNameError
from nemo_lite.compat.tutorials import L1Loss, MSELoss, RealFunctionDataLayer, TaylorNet


def test_a_polynomial_is_the_sum_of_its_terms():
    net = TaylorNet(dim=3)
    x = torch.tensor([[2.0]])
    terms = torch.tensor([[2.0, 4.0 / 2, 8.0 / 6]])
    torch.testing.assert_close(net(x=x), net.fc1(terms))


def test_the_smallest_example_learns():
    data, net, loss = RealFunctionDataLayer(batch_size=50, n=200, x_lo=-1, x_hi=1), TaylorNet(dim=4), MSELoss()
    x, y = data()
    wire = loss(predictions=net(x=x), target=y)
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
    before = sum(map(float, factory.infer([wire])[0]))
    factory.train([wire], optimizer="adam", optimization_params={"lr": 0.1, "num_epochs": 10})
    assert sum(map(float, factory.infer([wire])[0])) < before / 10


def test_the_losses_are_means():
    predictions, target = torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1)
    assert MSELoss()(predictions=predictions, target=target) == 5.0
    assert L1Loss()(predictions=predictions, target=target) == 2.0


def test_another_function_is_refused():
    with pytest.raises(UnknownNameError, match='function "tan" is not known; known: cos, sin'):
        RealFunctionDataLayer(batch_size=1, f_name="tan")
