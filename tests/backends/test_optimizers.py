"""Optimizers by name: formulas, states, options, LARC, and those of apex."""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from toys.apex_installed import FOLDER, apex_from, copy_without
from toys.lion import Lion, registered_lion

from nemo_lite.backends.pytorch import optimizers as from_apex
from nemo_lite.backends.pytorch.checkpoint.fitting import check_state
from nemo_lite.backends.pytorch.checkpoint.storage import load_training_state, save_training_state
from nemo_lite.backends.pytorch.optimizers import (
    AdamW,
    Lamb,
    Novograd,
    create_optimizer,
    take_saved_types,
    with_own_flags,
)
from nemo_lite.backends.pytorch.precision import choose_precision
from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.base.ranges import Between
from nemo_lite.core.run_options import Optimization
from nemo_lite.utils import logging
from nemo_lite.utils.optimizers import OPTIMIZERS, check_options, constructor_defaults, register_optimizer

# Optimizers by name: the formulas step by step, no host sync, a state that survives, options that are checked.


NAMES = tuple(OPTIMIZERS)


def some_params(seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((3, 4), (4,), (2, 1, 3), ())
    return [nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype)) for s in shapes]


def set_grads(params, step):
    """Deterministic gradients of very different sizes; the last parameter has its first one at the second step."""
    generator = torch.Generator().manual_seed(100 + step)
    for index, param in enumerate(params):
        grad = torch.randn(param.shape, generator=generator, dtype=torch.float64) * 10.0 ** (index - 1)
        param.grad = None if (index == 3 and step == 0) else grad.to(param.dtype)


def run(optimizer, params, steps=range(5)):
    for step in steps:
        set_grads(params, step)
        before = [None if param.grad is None else param.grad.clone() for param in params]
        optimizer.step()
        for param, grad in zip(params, before, strict=True):
            assert grad is None or torch.equal(param.grad, grad), "gradients are left as they are"
    return params


def run_formula(update, steps=range(5)):
    """The same gradients through ``update(p, g, t, state) -> p``, one parameter at a time."""
    params, states = some_params(), [{"t": 0} for _ in range(4)]
    for step in steps:
        set_grads(params, step)
        for param, state in zip(params, states, strict=True):
            if param.grad is not None:
                state["t"] += 1
                param.data = update(param.detach(), param.grad, state["t"], state)
    return params


def assert_close(left, right):
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)


def novograd(lr, b1, b2, eps, wd, averaging=False, amsgrad=False, luc=None):
    def update(p, g, t, state):
        square = float((g * g).sum())
        state["v"] = square if t == 1 else b2 * state["v"] + (1 - b2) * square
        state["max"] = max(state.get("max", 0.0), state["v"])
        v = state["max"] if amsgrad else state["v"]
        u = g / (math.sqrt(v) + eps) + wd * p
        if averaging:
            u = u * (1 - b1)
        state["m"] = b1 * state.get("m", 0.0) + u
        rate = lr
        if luc:
            rate = min(luc * float(p.norm()) / (float(state["m"].norm()) + 1e-8), lr)
        return p - rate * state["m"]

    return update


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"wd": 0.1},
        {"wd": 0.1, "averaging": True},
        {"amsgrad": True},
        {"wd": 0.01, "luc": 1e-3},
        {"luc": 0.5},
    ],
)
def test_novograd_follows_its_formula(options):
    params = some_params()
    optimizer = Novograd(
        params,
        lr=0.02,
        betas=(0.9, 0.3),
        eps=1e-6,
        weight_decay=options.get("wd", 0.0),
        grad_averaging=options.get("averaging", False),
        amsgrad=options.get("amsgrad", False),
        luc="luc" in options,
        luc_trust=options.get("luc", 1e-3),
    )
    expected = run_formula(novograd(0.02, 0.9, 0.3, 1e-6, **{"wd": 0.0, **options}))
    assert_close(run(optimizer, params), expected)


def test_novograd_without_momentum_follows_its_formula():
    params = some_params()
    run(Novograd(params, lr=0.02, betas=(0.0, 0.3)), params)
    assert_close(params, run_formula(novograd(0.02, 0.0, 0.3, 1e-8, 0.0)))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_adamw_follows_nemos_formula(weight_decay, amsgrad):
    lr, b1, b2, eps = 0.02, 0.9, 0.99, 1e-4

    def update(p, g, t, state):
        state["m"] = b1 * state.get("m", 0.0) + (1 - b1) * g
        state["v"] = b2 * state.get("v", 0.0) + (1 - b2) * g * g
        state["max"] = torch.maximum(state.get("max", torch.zeros_like(p)), state["v"])
        size = lr * math.sqrt(1 - b2**t) / (1 - b1**t)
        root = (state["max"] if amsgrad else state["v"]).sqrt()
        return p - size * (weight_decay * p + state["m"] / (root + eps))

    params = some_params()
    optimizer = AdamW(params, lr, (b1, b2), eps, weight_decay, amsgrad)
    assert_close(run(optimizer, params), run_formula(update))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_lamb_follows_its_formula(weight_decay):
    lr, b1, b2, eps = 0.02, 0.9, 0.99, 1e-4

    def update(p, g, t, state):
        state["m"] = b1 * state.get("m", 0.0) + (1 - b1) * g
        state["v"] = b2 * state.get("v", 0.0) + (1 - b2) * g * g
        u = state["m"] / (1 - b1**t) / ((state["v"] / (1 - b2**t)).sqrt() + eps) + weight_decay * p
        return p - lr * float(p.norm() / u.norm()) * u

    params = some_params()
    assert_close(run(Lamb(params, lr, (b1, b2), eps, weight_decay), params), run_formula(update))


def test_lamb_moves_a_tensor_of_zeros_and_leaves_one_without_direction():
    params = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))]
    params[0].grad, params[1].grad = torch.ones(3), torch.zeros(3)
    Lamb(params, lr=0.1).step()
    torch.testing.assert_close(params[0].detach(), torch.full((3,), -0.1))
    assert torch.equal(params[1].detach(), torch.ones(3))


def test_the_names_stand_for_the_formulas_with_nemos_defaults():
    def sgd(p, g, t, state):
        state["m"] = 0.9 * state.get("m", 0.0) + g
        return p - 0.02 * state["m"]

    def adam(decoupled):
        def update(p, g, t, state):
            wd = 0.1
            g = g if decoupled else g + wd * p
            state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * g
            state["v"] = 0.999 * state.get("v", 0.0) + 0.001 * g * g
            u = state["m"] / (1 - 0.9**t) / ((state["v"] / (1 - 0.999**t)).sqrt() + 1e-8)
            return p - 0.02 * (u + (wd * p if decoupled else 0.0))

        return update

    cases = {
        "sgd": (sgd, {}),
        "fused_sgd": (sgd, {}),
        "adam": (adam(False), {"weight_decay": 0.1}),
        "fused_adam": (adam(True), {"weight_decay": 0.1}),
        "novograd": (novograd(0.02, 0.95, 0.25, 1e-8, 0.001), {"weight_decay": 0.001}),
        "fused_novograd": (
            novograd(0.02, 0.95, 0.25, 1e-8, 0.5, luc=2e-3),
            {"weight_decay": 0.5, "luc": True, "luc_eta": 2e-3},
        ),
    }
    for name, (formula, options) in cases.items():
        params = some_params()
        run(create_optimizer(name, params, {"lr": 0.02, **options}), params)
        for a, b in zip(params, run_formula(formula), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


def test_the_constructor_of_novograd_has_nemos_other_default():
    assert Novograd(some_params()).defaults["betas"] == (0.95, 0.98)
    assert create_optimizer("novograd", some_params(), {"lr": 1}).defaults["betas"] == (0.95, 0.25)


class NoHostSync(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default), "host sync"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["adam_w", "novograd", "lamb"])
def test_a_step_reads_nothing_back_from_the_device(name):
    params = some_params()
    options = {"lr": 0.1, "weight_decay": 0.1}
    if name == "novograd":
        options |= {"luc": True, "amsgrad": True, "grad_averaging": True}
    optimizer = create_optimizer(name, params, options)
    with NoHostSync():
        run_without_checks(optimizer, params)


def run_without_checks(optimizer, params):
    for step in range(3):
        set_grads(params, step)
        optimizer.step()


def test_the_guard_against_host_syncs_sees_one():
    with NoHostSync(), pytest.raises(AssertionError, match="host sync"):
        bool(torch.zeros(()) == 0)


@pytest.mark.parametrize("name", NAMES)
def test_the_state_survives_a_save_and_a_load_bit_by_bit(name, tmp_path):
    straight, resumed = some_params(dtype=torch.float32), some_params(dtype=torch.float32)
    run(create_optimizer(name, straight, {"lr": 0.02, "weight_decay": 0.01}), straight, range(6))

    first = create_optimizer(name, resumed, {"lr": 0.02, "weight_decay": 0.01})
    run(first, resumed, range(3))
    save_training_state(tmp_path / "t.safetensors", {"optimizer": first.state_dict()})
    second = create_optimizer(name, resumed, {"lr": 0.5})
    second.load_state_dict(load_training_state(tmp_path / "t.safetensors")["optimizer"])
    run(second, resumed, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(straight, resumed, strict=True))


def another(value):
    """Another value of an option."""
    if isinstance(value, tuple):
        return tuple(map(another, value))
    if isinstance(value, bool):
        return not value
    return 0.5 * value or 0.01


def settings_of_torch():
    """Each optimizer of torch that the engine can drive, with its defaults and with each option changed."""
    left_out = ("LBFGS", "SparseAdam", "Muon")  # a closure, sparse gradients, matrices only
    chooses_kernels = ("foreach", "fused", "capturable", "differentiable")
    for name, cls in vars(torch.optim).items():
        if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and name not in ("Optimizer", *left_out):
            defaults = constructor_defaults(cls)
            options = {key: value for key, value in defaults.items() if key not in ("lr", *chooses_kernels)}
            yield cls, {}
            for key, value in options.items():
                if isinstance(value, (bool, int, float)):
                    # SGD wants a momentum for nesterov.
                    more = {"momentum": 0.9, "dampening": 0} if key == "nesterov" else {}
                    yield cls, {key: 1.5 if key == "d" else another(value), **more}


def settings_by_name():
    """Each optimizer by name, with its defaults, with each option changed, and with LARC."""
    for name, options in OPTIMIZERS.items():
        for changed in ({}, {"larc": True}, *({key: another(value)} for key, value in options.items())):
            more = {"momentum": 0.9} if "nesterov" in changed else {}
            yield partial(create_optimizer, name), {"optimization_params": {"lr": 0.02, **changed, **more}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("settings", [settings_of_torch, settings_by_name])
def test_every_optimizer_with_every_option_goes_on_from_a_file_to_the_bit(settings, dtype, tmp_path):
    def steps(optimizer, params, numbers):
        for number in numbers:
            set_grads(params, number)
            optimizer.step()

    wrong, count = [], 0
    for make, options in settings():
        straight, resumed = some_params(dtype=dtype), some_params(dtype=dtype)
        steps(make(straight, **options), straight, range(5))
        first = make(resumed, **options)
        steps(first, resumed, range(3))
        state = {"step": 3, "epoch": 0, "optimizers": [first.state_dict()], "optimizer_names": [type(first).__name__]}
        save_training_state(tmp_path / "t.safetensors", state)
        loaded, second = load_training_state(tmp_path / "t.safetensors"), make(resumed, **options)
        check_state(loaded, [second], "t")
        second.load_state_dict(with_own_flags(second, loaded["optimizers"][0]))
        take_saved_types(second, loaded["optimizers"][0])
        steps(second, resumed, range(3, 5))
        count += 1
        if not all(torch.allclose(a, b, 0, 0, equal_nan=True) for a, b in zip(straight, resumed, strict=True)):
            wrong.append((type(second).__name__, options))
    assert wrong == []
    assert count > 40


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_second_moments_of_half_weights_are_not_rounded_by_a_load(dtype):
    param = nn.Parameter(torch.ones(4, dtype=dtype))
    param.grad = torch.full((4,), 300 * 1.234567, dtype=dtype)
    optimizer, loaded = Novograd([param], amsgrad=True), Novograd([param], amsgrad=True)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    loaded.load_state_dict(saved)
    for key in ("exp_avg_sq", "max_exp_avg_sq"):
        assert torch.equal(loaded.state[param][key], saved["state"][0][key])
        assert loaded.state[param][key].item() > torch.finfo(torch.float16).max


@pytest.mark.parametrize("name", NAMES)
def test_parameters_that_are_not_contiguous_are_stepped_alike_also_after_a_load(name, tmp_path):
    plain = nn.Parameter(torch.arange(12.0).reshape(3, 4))
    turned = nn.Parameter(torch.arange(12.0).reshape(3, 4).t().contiguous().t())
    optimizers = [create_optimizer(name, [param], {"lr": 0.01}) for param in (plain, turned)]
    for step in range(4):
        grad = torch.arange(12.0).reshape(3, 4) - step
        plain.grad, turned.grad = grad.clone(), grad.t().contiguous().t()
        for optimizer in optimizers:
            optimizer.step()
            save_training_state(tmp_path / "t.safetensors", optimizer.state_dict())
            optimizer.load_state_dict(load_training_state(tmp_path / "t.safetensors"))
    torch.testing.assert_close(plain, turned)


def test_half_precision_parameters_keep_their_second_moment_in_float32():
    params = some_params(dtype=torch.bfloat16)
    optimizer = Novograd(params)
    run(optimizer, params, range(2))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(optimizer, params, range(2, 4))
    assert {state["exp_avg_sq"].dtype for state in optimizer.state.values()} == {torch.float32}


def test_a_state_of_nemo_without_the_newer_options_is_continued():
    params = some_params()
    optimizer = Novograd(params, weight_decay=0.1)
    run(optimizer, params, range(2))
    old = copy.deepcopy(optimizer.state_dict())
    for group in old["param_groups"]:
        for key in ("luc", "luc_trust", "luc_eps"):
            del group[key]
    optimizer.load_state_dict(old)
    run(optimizer, params, range(2, 4))


def test_a_loaded_state_chooses_no_kernel():
    own = torch.optim.Adam([torch.zeros(2)], lr=0.1, capturable=True, foreach=False)
    saved = torch.optim.Adam([torch.ones(2)], lr=0.2, fused=True).state_dict()
    before = copy.deepcopy(saved)
    (group,) = with_own_flags(own, saved)["param_groups"]
    flags = {"fused": None, "foreach": False, "capturable": True}
    assert group == before["param_groups"][0] | flags
    assert saved == before
    # An optimizer without such options gets none.
    (group,) = with_own_flags(Novograd([torch.zeros(2)]), saved)["param_groups"]
    assert not flags.keys() & group.keys()


def test_parameters_of_several_types_are_updated_alike():
    params = [*some_params(dtype=torch.float32), *some_params(dtype=torch.float64)]
    for name in ("adam_w", "novograd", "lamb"):
        optimizer = create_optimizer(name, params, {"lr": 0.01})
        for half in (params[:4], params[4:]):
            set_grads(half, 1)
        optimizer.step()
        assert {optimizer.state[param]["exp_avg_sq"].dtype for param in params[4:]} == {torch.float64}
        for single, double in zip(params[:4], params[4:], strict=True):
            torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-6)


def test_a_closure_is_called_with_gradients_enabled():
    param = nn.Parameter(torch.ones(2))

    def closure():
        loss = (param**2).sum()
        loss.backward()
        return loss

    assert AdamW([param]).step(closure).item() == 2.0
    assert param.grad.tolist() == [2.0, 2.0]


def test_options_of_the_trainer_and_none_are_passed_over():
    params = {
        "lr": 0.1,
        "num_epochs": 3,
        "max_steps": None,
        "grad_norm_clip": 1.0,
        "amp_min_loss_scale": 1,
        "betas": None,
    }
    assert create_optimizer("adam", some_params(), {**params, "larc": False, "larc_eta": 0.1}).defaults["betas"] == (
        0.9,
        0.999,
    )


def test_every_name_of_the_command_line_is_known_and_fused_where_torch_can():
    nemos = {"sgd", "adam", "adam_w", "novograd", "lamb"}
    nemos |= {f"fused_{name}" for name in ("adam", "lamb", "novograd", "sgd")}
    assert set(OPTIMIZERS) >= nemos
    for name in OPTIMIZERS:
        optimizer = create_optimizer(name, iter(some_params()), {"lr": 0.1, "weight_decay": 0.01})
        assert optimizer.param_groups[0]["lr"] == 0.1
        assert optimizer.defaults.get("fused", "own") in (True, "own")


def test_an_option_of_another_optimizer_is_left_out_with_a_warning(capsys):
    create_optimizer("sgd", some_params(), {"lr": 0.1, "betas": (0.9, 0.9)})
    assert "optimizer sgd does not use betas" in capsys.readouterr().err


def test_groups_have_options_of_their_own():
    params = some_params()
    groups = [{"params": params[:2], "lr": 0.5, "luc_eta": 0.1}, {"params": params[2], "weight_decay": 0.0}]
    optimizer = create_optimizer("novograd", groups, {"lr": 0.1, "weight_decay": 0.2})
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.2, 0.0]
    assert [group["luc_trust"] for group in optimizer.param_groups] == [0.1, 1e-3]


def test_a_parameter_that_nobody_knows_is_left_out_with_the_nearest_name(capsys):
    given = {"lr": 1, "momentun": 1, "max_epochs": 1, "lacr": True, "larc_eta": 0.1}
    optimizer = create_optimizer("sgd", [{"params": some_params(), "weigth_decay": 1}], given)
    assert optimizer.param_groups[0]["momentum"] == 0.9
    told = capsys.readouterr().err
    assert "optimizer sgd: momentun is not a parameter (did you mean momentum?); it is left out" in told
    assert "max_epochs is not a parameter (did you mean num_epochs?)" in told
    assert "weigth_decay is not a parameter (did you mean weight_decay?)" in told
    assert "lacr is not a parameter (did you mean larc?)" in told
    assert "larc_eta has no effect without larc" in told


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("novogard", {"lr": 1}, UnknownNameError, r'optimizer "novogard" is not known.*did you mean novograd\?'),
        ("sgd", {}, UsageError, "optimizer sgd: the learning rate is missing"),
        ("sgd", {"lr": -1}, UsageError, "lr of optimizer sgd is out of range: got -1, wanted a number from 0"),
        ("adam", {"lr": "1e-3"}, UsageError, "lr of optimizer adam is out of range: got '1e-3'"),
        ("adam", {"lr": math.nan}, UsageError, "lr of optimizer adam is out of range: got nan"),
        (
            "adam",
            {"lr": 1, "betas": (0.9, 1)},
            UsageError,
            r"betas of optimizer adam are out of range: got \(0\.9, 1\)",
        ),
        ("adam", {"lr": 1, "betas": [0.9]}, UsageError, "betas of optimizer adam are out of range"),
        ("novograd", {"lr": 1, "luc": 3}, UsageError, "luc of optimizer novograd is not a truth value: got 3"),
        ("sgd", {"lr": 1, "larc": "yes"}, UsageError, "larc is not a truth value: got 'yes', wanted True or False"),
        ("sgd", {"lr": 1, "larc": True, "larc_eta": 0}, UsageError, "larc_eta is 0, wanted float above 0"),
    ],
)
def test_what_cannot_be_is_named(name, options, error, message):
    with pytest.raises(error, match=message):
        create_optimizer(name, some_params(), options)


def test_nothing_to_optimize_is_an_error():
    with pytest.raises(UsageError, match="optimizer sgd: there is nothing to optimize"):
        create_optimizer("sgd", [], {"lr": 1})
    with pytest.raises(UsageError, match="takes parameters, or dicts with params: got str"):
        create_optimizer("sgd", ["weight"], {"lr": 1})


def test_values_out_of_range_are_refused_by_the_classes_too():
    with pytest.raises(UsageError, match="eps of Novograd is out of range: got -1"):
        Novograd(some_params(), eps=-1)


def test_sparse_gradients_are_refused():
    layer = nn.Embedding(3, 2, sparse=True)
    layer(torch.tensor([1])).sum().backward()
    with pytest.raises(UsageError, match="cannot use sparse gradients; make the layer with sparse=False"):
        AdamW(layer.parameters()).step()


# An optimizer that is new


@pytest.fixture
def lion():
    with registered_lion():
        yield


@pytest.mark.usefixtures("lion")
def test_a_new_optimizer_has_the_options_of_its_constructor():
    assert OPTIMIZERS["lion"] == {"betas": (0.9, 0.99), "weight_decay": 0.0, "cautious": False}
    optimizer = create_optimizer("lion", some_params(), {"lr": 1, "cautious": True, "betas": [0.5, 0]})
    assert isinstance(optimizer, Lion)
    assert optimizer.defaults == {"lr": 1, "betas": (0.5, 0), "weight_decay": 0.0, "cautious": True}


def test_the_new_optimizer_follows_its_formula():
    def update(p, g, t, state):
        m = state.get("m", 0.0)
        state["m"] = 0.99 * m + 0.01 * g
        return p - 0.02 * (torch.sign(0.9 * m + 0.1 * g) + 0.1 * p)

    params = some_params()
    assert_close(run(Lion(params, 0.02, weight_decay=0.1), params), run_formula(update))


def test_a_new_optimizer_has_its_steps_counted_from_1():
    params = some_params()
    optimizer = Lion(params)
    run(optimizer, params, range(3))
    assert [optimizer.state[param]["step"] for param in params] == [3, 3, 3, 2]
    assert set(optimizer.state[params[0]]) == {"step", "exp_avg"}


@pytest.mark.usefixtures("lion")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cautious": 1}, "cautious of optimizer lion is not a truth value: got 1, wanted True or False"),
        (
            {"betas": (0.9, 0.9, 0.9)},
            r"betas of optimizer lion are out of range: got .*, wanted 2 numbers from 0",
        ),
        ({"betas": 0.9}, "betas of optimizer lion are out of range: got 0.9"),
        ({"betas": (True, 0.9)}, r"betas of optimizer lion are out of range: got \(True, 0.9\)"),
        (
            {"weight_decay": "none"},
            "weight_decay of optimizer lion is out of range: got 'none'",
        ),
        ({"weight_decay": True}, "weight_decay of optimizer lion is out of range: got True"),
    ],
)
def test_an_option_of_a_new_optimizer_must_have_the_type_of_its_default(options, message):
    with pytest.raises(UsageError, match=message):
        create_optimizer("lion", some_params(), {"lr": 1, **options})


class Ranged(Lion):
    ranges = {"decay_rate": Between(-1, 0, below=True)}

    def __init__(self, params, lr=1e-3, decay_rate=-0.8, mode="fast", clip=(1.0, 5.0), limit=None):
        super().__init__(params, lr)
        given = {"decay_rate": decay_rate, "mode": mode, "clip": clip, "limit": limit}
        check_options("Ranged", given, Ranged)


def test_a_class_may_have_bounds_texts_and_tuples_of_its_own():
    Ranged(some_params(), decay_rate=-0.5, mode="slow", clip=(2, 7), limit=3)
    with pytest.raises(
        UsageError, match=r"decay_rate of Ranged is out of range: got 0\.5, wanted a number from -1, be"
    ):
        Ranged(some_params(), decay_rate=0.5)
    with pytest.raises(UsageError, match="mode of Ranged is of the wrong type: got 3, wanted str"):
        Ranged(some_params(), mode=3)


def test_an_optimizer_whose_arguments_lack_defaults_is_refused_by_their_names():
    def bare(params, lr=1e-3, *, rho, **kwargs):
        raise AssertionError

    with pytest.raises(UsageError, match="optimizer bare: arguments without a default: rho, kwargs; give each"):
        register_optimizer("bare", bare)
    assert "bare" not in OPTIMIZERS


# LARC around optimizers: its formula, and that nothing else of them changes.


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


# The fused optimizers: apex's where it is installed, otherwise our own, which is said once.


CASES = [
    ("fused_adam", "FusedAdam", torch.optim.AdamW, ("FusedAdam", True)),
    ("fused_sgd", "FusedSGD", torch.optim.SGD, ("FusedSGD", 0.9)),
    ("fused_novograd", "FusedNovoGrad", Novograd, ("FusedNovoGrad", (0.95, 0.25), False)),
    ("fused_lamb", "FusedLAMB", Lamb, ("FusedLAMB", 0.0, math.inf)),
]


def made(name, **options):
    return create_optimizer(name, [nn.Parameter(torch.ones(2))], {"lr": 0.1, **options})


@pytest.mark.parametrize(("name", "apex_class", "own", "call"), CASES)
def test_the_names_are_apexs_where_it_is_installed_and_our_own_elsewhere(name, apex_class, own, call):
    with apex_from() as apex:
        optimizer = made(name)
        assert (type(optimizer).__module__, type(optimizer).__name__) == ("apex.optimizers", apex_class)
        assert apex.calls == [call]
    assert type(made(name)) is own


@pytest.mark.parametrize(("name", "options"), [("fused_adam", {"amsgrad": True}), ("fused_novograd", {"luc": True})])
def test_an_option_that_apex_lacks_makes_it_our_own(name, options, capsys):
    with apex_from():
        assert not type(made(name, **options)).__module__.startswith("apex")
    assert f"{name}: not of apex: it has no {next(iter(options))}" in capsys.readouterr().out


def test_which_one_it_is_is_said_once(capsys, monkeypatch):
    monkeypatch.setattr(logging, "_once", set())
    made("fused_adam")
    made("fused_adam")
    assert capsys.readouterr().out.count("fused_adam: not of apex: its optimizers are for GPUs") == 1
    monkeypatch.setattr(from_apex, "_DEVICES", ("cpu",))  # what a GPU would read without it
    made("fused_adam")
    assert "fused_adam: not of apex: apex is not installed" in capsys.readouterr().out
    with apex_from():
        made("fused_sgd")
    assert "fused_sgd: apex.optimizers.FusedSGD" in capsys.readouterr().out


def test_on_a_cpu_and_without_its_extensions_apex_is_not_used(capsys, monkeypatch, tmp_path):
    with apex_from():
        monkeypatch.setattr(from_apex, "_DEVICES", ("cuda",))
        assert type(made("fused_adam")) is torch.optim.AdamW
    broken = copy_without("nothing", tmp_path / "broken")
    (broken / "apex" / "optimizers" / "__init__.py").write_text("import amp_C")
    with apex_from(broken):
        assert type(made("fused_adam")) is torch.optim.AdamW
    told = capsys.readouterr().out
    assert "fused_adam: not of apex: its optimizers are for GPUs" in told
    assert "fused_adam: not of apex: it cannot be used here (No module named 'amp_C')" in told


def test_an_optimizer_of_apex_gets_master_weights():
    net, precision = nn.Linear(1, 1), choose_precision(Optimization.mxprO2, torch.device("cpu"))
    with apex_from(), precision.prepared([net], trained=True):
        optimizer = create_optimizer("fused_adam", net.parameters(), {"lr": 0.1})
        precision.adopt([net], [optimizer])
        assert [p.dtype for p in optimizer.param_groups[0]["params"]] == [torch.float32] * 2
    assert (FOLDER / "apex" / "optimizers").is_dir()
