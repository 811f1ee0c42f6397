"""TrainableNeuralModuleWrapper: any nn.Module as a typed module."""

from __future__ import annotations

import torch
from torch import nn
from toys.nets import BD, Points

import nemo_lite as nemo


def test_a_wrapped_module_connects_trains_and_keeps_its_names():
    inner = nn.Bilinear(1, 1, 2)
    wrapped = nemo.TrainableNeuralModuleWrapper(inner, {"a": BD, "b": BD}, {"out": BD}, name="pair")
    x, y = Points()()
    assert nemo.Dag([wrapped(a=x, b=y)]).modules == {"pair": wrapped}
    a, b = torch.ones(3, 1), torch.full((3, 1), 2.0)
    assert torch.equal(wrapped(a=a, b=b), inner(a, b))
    assert wrapped.state_dict().keys() == inner.state_dict().keys() == {"weight", "bias"}
    assert wrapped.num_weights == 4
    wrapped.load_state_dict({"weight": torch.zeros(2, 1, 1), "bias": torch.ones(2)})
    assert torch.equal(inner.bias, torch.ones(2))
