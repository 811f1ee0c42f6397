"""Precision: types, gradients, the loss scale, half modules, master weights."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from toys.nets import BD, Mse, Net, Points

import nemo_lite as nemo
from nemo_lite.backends.pytorch.half_modules import (
    HalfModules,
    SavedWeights,
    cast,
    float32_parts,
    half_dtype,
    half_parts,
    own_tensors,
)
from nemo_lite.backends.pytorch.precision import LossScale, choose_precision, clip, dense_gradients, not_finite
from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.core.run_options import Optimization

# Precision: what is computed in which type, and what is refused.


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


# The half type of a device, and what stays in float32.


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


# Gradients: clipped as torch does, and whether they are finite, on the device.


META = torch.device("meta")


def parameters(*gradients):
    made = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(made, gradients, strict=True):
        parameter.grad = gradient.clone()
    return made


@pytest.mark.parametrize("max_norm", [0.5, 1e9])
def test_clipping_gives_the_very_gradients_of_torch(max_norm):
    generator = torch.Generator().manual_seed(1)
    gradients = [torch.randn(shape, generator=generator) for shape in ((3, 5), (7,), (), (2, 3, 4))]
    theirs, ours = parameters(*gradients), parameters(*gradients)
    nn.utils.clip_grad_norm_(theirs, max_norm)
    assert clip(dense_gradients(ours), max_norm).item() == 0.0
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(theirs, ours, strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_one_value_that_is_not_finite_is_found(bad, dtype):
    gradients = [torch.ones(3, dtype=dtype), torch.ones((), dtype=torch.float32)]
    assert not_finite(gradients).item() == 0.0
    assert clip(gradients, 1.0).item() == 0.0
    gradients[0][1] = bad
    assert not_finite(gradients).item() != 0.0
    assert clip(gradients, 1.0).item() != 0.0


def test_halves_whose_squares_leave_their_range_are_finite():
    gradients = [torch.full((4,), 60000.0, dtype=torch.float16)]
    assert clip(gradients, 1.0).item() == 0.0
    assert gradients[0].tolist() == [0.5] * 4


def test_a_sparse_gradient_is_found_and_clipped_by_its_values():
    embedding = nn.Embedding(5, 4, sparse=True)
    embedding(torch.tensor([1, 1])).sum().backward()
    gradients = dense_gradients([embedding.weight])
    assert not_finite(gradients).item() == 0.0
    clip(gradients, 1.0)
    torch.testing.assert_close(embedding.weight.grad.to_dense()[1], torch.full((4,), 0.5))
    gradients[0][0, 0] = math.nan
    assert not_finite(gradients).item() != 0.0


def test_nothing_is_read_back_on_the_meta_device():
    gradients = [torch.empty(3, device=META), torch.empty((), device=META, dtype=torch.bfloat16)]
    assert clip(gradients, 1.0).device == not_finite(gradients).device == META


# LossScale: the numbers of torch's GradScaler, without a host read.


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


# SavedWeights: float32 tensors in a state, of parts whose own tensors are half.


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


# HalfModules: halves while an action runs, float32 outside of it and in files.


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


# MasterWeights: an optimizer updates float32 weights, the modules compute with halves.


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


def test_modules_in_half_weights_are_refused_to_another_thread():
    net = Net(name="net")
    mode, other = (choose_precision(Optimization.mxprO3, CPU) for _ in range(2))

    def use() -> None:
        with other.prepared([net]):
            """Nothing to do."""

    with ThreadPoolExecutor(1) as pool:
        with mode.prepared([net]), pytest.raises(UsageError, match="another thread computes with net in half weights"):
            pool.submit(use).result()
        assert net.fc.weight.dtype is torch.float32
        pool.submit(use).result()
    with mode.prepared([net]), other.prepared([net]):
        assert net.fc.weight.dtype is torch.bfloat16
    assert net.fc.weight.dtype is torch.float32
