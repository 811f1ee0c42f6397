"""LossScale: the numbers of torch's GradScaler, without a host read."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nemo_lite.backends.pytorch.precision import LossScale

CPU = torch.device("cpu")


NEARLY = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000, "_growth_tracker": 1998}


def of_torch(factors, start=None):
    """Scales and gradients of a weight under torch's scaler; each step's loss is the weight times a factor."""
    weight, scaler, seen = torch.nn.Parameter(torch.ones(2)), torch.amp.GradScaler("cpu"), []
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler.load_state_dict(start or scaler.state_dict())
    for factor in factors:
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.unscale_(optimizer)
        assert weight.grad is not None
        seen.append((weight.grad.tolist(), scaler.get_scale()))
        scaler.step(optimizer)
        scaler.update()
    return seen, scaler.state_dict()


def of_ours(factors, start=None, **bounds):
    weight, scale, seen = torch.nn.Parameter(torch.ones(2)), LossScale(CPU, **bounds), []
    scale.load_state_dict(start or scale.state_dict())
    for factor in factors:
        weight.grad = None
        scale.scaled((weight * factor).sum()).backward()
        assert weight.grad is not None
        found = scale.unscale([weight.grad])
        seen.append((weight.grad.tolist(), scale.state_dict()["scale"]))
        scale.update(found)
    return seen, scale.state_dict()


def test_scale_gradients_and_state_are_those_of_torchs_scaler():
    factors, start = [1.0, 0.5, 2.0, float("inf"), 3.0, float("inf"), 3.0], {**NEARLY, "scale": 2.0**15}
    ours, theirs = of_ours(factors, start), of_torch(factors, start)
    assert repr(ours) == repr(theirs)  # as text, in which NaN equals NaN
    assert [scale for _, scale in ours[0]] == [2.0**15, 2.0**15, *[2.0**16] * 2, *[2.0**15] * 2, 2.0**14]


def test_a_state_of_torchs_scaler_is_continued():
    scale = LossScale(CPU)
    scale.load_state_dict(of_torch([1.0, float("inf"), 1.0])[1])
    assert scale.state_dict() == of_torch([1.0, float("inf"), 1.0])[1]


def test_the_scale_stays_within_its_bounds():
    inf = float("inf")
    assert of_ours([inf] * 3, lowest=2.0**15)[1]["scale"] == 2.0**15
    assert of_ours([1.0], highest=8.0)[1]["scale"] == 8.0
    scale = LossScale(CPU, highest=8.0)
    scale.load_state_dict({"scale": 2.0**20, "_growth_tracker": 0})
    assert scale.state_dict()["scale"] == 8.0


def test_a_step_reads_nothing_back_and_runs_on_the_meta_device():
    class Reads(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    for device in (CPU, torch.device("meta")):
        scale, weight = LossScale(device, 1.0, 2.0**24), torch.nn.Parameter(torch.ones(2, device=device))
        with Reads() as reads:
            scale.scaled(weight.sum()).backward()
            scale.update(scale.unscale([weight.grad]))
        assert reads.count == 0
    with Reads() as reads, pytest.raises(RuntimeError, match="meta"):
        scale.state_dict()
    assert reads.count == 1


def test_gradients_of_several_types_are_divided_type_by_type():
    class Calls(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.dtypes = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default:
                self.dtypes.append({gradient.dtype for gradient in args[0]})
            return func(*args, **(kwargs or {}))

    gradients = [torch.full((2,), 2.0**16, dtype=dtype) for dtype in (torch.float32, torch.bfloat16, torch.float32)]
    with Calls() as calls:
        assert LossScale(CPU).unscale(gradients).item() == 0.0
    assert calls.dtypes == [{torch.float32}, {torch.bfloat16}]
    assert [gradient.tolist() for gradient in gradients] == [[1.0, 1.0]] * 3
    gradients[1][0] = float("nan")
    assert LossScale(CPU).unscale(gradients).item() == 1.0
