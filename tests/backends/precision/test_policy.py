"""Precision: what is computed in which type, and what is refused."""

from __future__ import annotations

import pytest
import torch
from toys.nets import BD, Mse, Net, Points

import nemo_lite as nemo
from nemo_lite.backends.pytorch.precision import choose_precision
from nemo_lite.core.backend import Optimization
from nemo_lite.errors import UnknownNameError, UsageError

CPU = torch.device("cpu")


def test_o1_on_a_cpu_computes_in_bfloat16_and_keeps_features_and_losses_in_float32():
    class Features(nemo.NonTrainableNM):
        input_ports = {"x": BD}
        output_ports = {"features": BD}
        keep_float32 = True

        def forward(self, x):
            self.seen = (x @ x.T).dtype
            return x

    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, optimization_level="O1")
    features, net, mse = Features(), Net(), Mse()
    x, y = Points()()
    out = net(x=features(x=x))
    values, losses = factory.infer([out, mse(out=out, target=y)])
    assert (features.seen, values[0].dtype, losses[0].dtype) == (torch.float32, torch.bfloat16, torch.float32)


@pytest.mark.parametrize(
    ("level", "dtype", "error", "message"),
    [
        (Optimization.mxprO1, "float16", UsageError, "amp_dtype: float16 is not computed on a CPU; use bfloat16"),
        (Optimization.mxprO1, "float61", UnknownNameError, 'amp_dtype "float61" is not known'),
        (Optimization.mxprO2, "float16", UsageError, "amp_dtype: float16 is not computed on a CPU; use bfloat16"),
        (Optimization.mxprO0, "bf16", UnknownNameError, r'"bf16" is not known; known: auto, bfloat16, float16'),
    ],
)
def test_a_precision_that_a_device_does_not_have_is_refused(level, dtype, error, message):
    with pytest.raises(error, match=message):
        choose_precision(level, CPU, dtype)


def test_a_precision_says_what_it_does():
    assert choose_precision(Optimization.mxprO0, CPU).describe() == "O0: float32 throughout"
    assert (
        choose_precision(Optimization.mxprO1, CPU).describe().startswith("O1: bfloat16 where torch.amp finds it safe")
    )
    assert (
        "O2: bfloat16 weights and activations; master weights" in choose_precision(Optimization.mxprO2, CPU).describe()
    )
    assert choose_precision(Optimization.mxprO3, CPU).describe().startswith("O3: bfloat16 throughout, but for features")


def test_gradients_are_clipped_to_the_norm_before_the_step():
    weight = torch.nn.Parameter(torch.zeros(2))
    precision, optimizer = choose_precision(Optimization.mxprO0, CPU), torch.optim.SGD([weight], lr=1.0)
    precision.backward((weight * torch.tensor([3.0, 4.0])).sum())
    assert precision.finish_backward(optimizer, [weight], max_grad_norm=1.0).item() == 0.0
    precision.update(optimizer, optimizer.step)
    torch.testing.assert_close(weight.detach(), -torch.tensor([0.6, 0.8]))


def test_no_gradients_at_all_are_finite_on_their_device():
    weight, meta = torch.nn.Parameter(torch.zeros(2)), torch.device("meta")
    optimizer = torch.optim.SGD([weight], lr=1.0)
    assert choose_precision(Optimization.mxprO0, CPU).finish_backward(optimizer, [weight], 1.0).item() == 0.0
    assert choose_precision(Optimization.mxprO0, meta).finish_backward(optimizer, [weight], None).device == meta


@pytest.mark.parametrize("level", list(Optimization))
def test_without_float16_losses_are_not_scaled_and_there_is_no_scale_to_save(level):
    weight = torch.nn.Parameter(torch.ones(2))
    precision = choose_precision(level, CPU)
    precision.backward(weight.sum())
    assert weight.grad is not None
    assert weight.grad.tolist() == [1.0, 1.0]
    assert precision.state_dict() == {}
    precision.load_state_dict({"scale": 8.0})  # what a float16 run wrote: nothing happens
    precision.load_state_dict({})
