"""What fits a module or an optimizer; states of NeMo; weights that are not finite are refused."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn
from toys.nets import BD, Net, build

import nemo_lite as nemo
from nemo_lite.backends.pytorch.checkpoint.fitting import as_ours, can_go_on, check_state, refuse_not_finite
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder, read_checkpoint
from nemo_lite.backends.pytorch.checkpoint.storage import (
    ModuleWeights,
    load_module,
    load_training_state,
    save_module,
    save_training_state,
)
from nemo_lite.backends.pytorch.foreach_optimizers import Novograd
from nemo_lite.backends.pytorch.nm import TrainableNeuralModuleWrapper
from nemo_lite.base.errors import CheckpointError, NemoLiteError
from nemo_lite.compat.tutorials import MSELoss, RealFunctionDataLayer, TaylorNet
from nemo_lite.core.callbacks import ModuleSaverCallback


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


BAD = (None, "x", -1, 2**70, float("inf"), True, [], {}, [1], {"a": 1}, torch.zeros(7, 5), torch.zeros(0))


def trained(optimizer):
    module = torch.nn.Linear(3, 2)
    made = optimizer(module.parameters(), lr=0.1)
    module(torch.ones(1, 3)).sum().backward()
    made.step()
    return made, {"step": 1, "epoch": 0, "optimizers": [made.state_dict()], "optimizer_names": [type(made).__name__]}


def places_in(tree, path=()):
    """The paths of all values of a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, (list, tuple)) else ()
    for key, value in items:
        yield (*path, key)
        yield from places_in(value, (*path, key))


def changed(tree, path, value):
    if not path:
        return value
    if isinstance(tree, dict):
        return {key: changed(each, path[1:], value) if key == path[0] else each for key, each in tree.items()}
    return type(tree)(changed(each, path[1:], value) if at == path[0] else each for at, each in enumerate(tree))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adafactor, torch.optim.Rprop])
def test_a_state_of_the_optimizer_fits(optimizer):
    made, state = trained(optimizer)
    check_state(state, [made], "x")


class OneMoment(torch.optim.Optimizer):
    """As users write them: one second moment for a tensor under Adam's name, lists, and values of no parameter."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr, "clip": float("inf")})

    def step(self, closure=None):
        self.state["of_all"] = {"seen": 1}
        for param in self.param_groups[0]["params"]:
            square, kept = param.grad.square().sum(), [torch.eye(7), None]
            self.state[param] = {"step": 1, "exp_avg": torch.ones(1), "exp_avg_sq": square, "factors": kept}


@pytest.mark.parametrize("optimizer", [OneMoment, Novograd])
def test_one_second_moment_for_a_tensor_fits(optimizer, tmp_path):
    made, state = trained(optimizer)
    save_training_state(tmp_path / "state.safetensors", state)
    check_state(load_training_state(tmp_path / "state.safetensors"), [made], "x")


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("step",), -1, "in step: got -1, wanted a number from 0"),
        (("epoch",), float("nan"), "in epoch: got nan, wanted a number from 0"),
        (("optimizers",), {}, "in optimizers: got a dict of 0, wanted a list"),
        (("optimizers", 0), 3, "in optimizers.0: got 3, wanted a mapping"),
        (("optimizers", 0, "param_groups", 0, "lr"), "x", "in optimizers.0.param_groups.0.lr: got 'x', wanted as this"),
        (("optimizers", 0, "param_groups", 0, "betas"), (1, None), "in optimizers.0.param_groups.0.betas: got (1, N"),
        (("optimizers", 0, "param_groups", 0, "params"), [0], "in optimizers.0.param_groups.0: wanted a group of 2"),
        (("optimizers", 0, "state", 0, "exp_avg"), torch.zeros(3, 2), "got a tensor of shape (3, 2), wanted a tensor"),
        (("optimizers", 0, "state", 0, "exp_avg"), [1.0], "in optimizers.0.state.0.exp_avg: got a list of 1, wanted a"),
        (("optimizers", 0, "state", 0), 5, "in optimizers.0.state.0: got 5, wanted the state of a parameter"),
    ],
)
def test_what_does_not_fit_is_told_by_its_place_in_the_state(path, value, told):
    made, state = trained(torch.optim.Adam)
    before = copy.deepcopy(made.state_dict())
    with pytest.raises(CheckpointError) as caught:
        check_state(changed(state, path, value), [made], "ck")
    assert str(caught.value).startswith("ck: the training state does not fit this run in ")
    assert told in str(caught.value)
    assert str(made.state_dict()) == str(before)


@pytest.mark.slow
def test_no_wrong_value_anywhere_in_a_state_ends_a_run_with_an_error_of_pythons(tmp_path):
    def train(max_steps):
        made = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
        source = tmp_path / "bad" if max_steps > 2 else None
        saves = nemo.CheckpointCallback(tmp_path, load_from_folder=source, step_freq=2)
        made.train([build()[1]], "adam", {"lr": 0.02, "max_steps": max_steps}, callbacks=[saves])

    train(2)
    found = CheckpointFolder(tmp_path).newest()
    state = load_training_state(found.path_of("trainer"))
    contents = CheckpointFolder(tmp_path).read({"Net": build()[0]})
    paths = [*places_in(state)]
    assert len(paths) > 30
    num_refused, wrong = 0, []
    # Each value, and at each another thing; the same in every run.
    for number, path in enumerate(paths):
        bad = changed(state, path, BAD[number % len(BAD)])
        weights = {"Net": ModuleWeights("Net", contents.weights["Net"])}
        CheckpointFolder(tmp_path / "bad").save(weights, bad, kind="STEP", number=2, keep=1)
        try:
            train(3)
        except NemoLiteError:
            num_refused += 1
        except Exception as error:
            wrong.append((path, BAD[number % len(BAD)], error))
    assert wrong == []
    assert num_refused > len(paths) // 2


PARAMS = [torch.zeros(1, 4), torch.zeros(1)]


def state_of_nemo(kept: list[dict[str, Any]], params: list[int] | None = None, **group: Any) -> dict[str, Any]:
    groups = [{"lr": 0.01, "params": params or [0, 1], **group}]
    return {"step": 3, "epoch_num": 1, "optimizer_state": [{"state": dict(enumerate(kept)), "param_groups": groups}]}


def moments(squares: list[Any]) -> list[dict[str, Any]]:
    return [
        {"step": 3, "exp_avg": torch.ones_like(param), "exp_avg_sq": square}
        for param, square in zip(PARAMS, squares, strict=True)
    ]


MOMENTUM = [{"momentum_buffer": torch.ones_like(param)} for param in PARAMS]
ADAM = moments([torch.ones(1, 4), torch.ones(1)])
NOVOGRAD = moments([torch.tensor(1.0), torch.tensor(2.0)])


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(param.clone()) for param in PARAMS]


@pytest.mark.parametrize(
    ("make", "fitting"), [(torch.optim.SGD, MOMENTUM), (torch.optim.Adam, ADAM), (Novograd, NOVOGRAD)]
)
def test_a_state_fits_the_optimizer_that_keeps_the_same(make: Any, fitting: list[dict[str, Any]]) -> None:
    optimizer = make(parameters(), lr=0.1)
    for kept in (MOMENTUM, ADAM, NOVOGRAD):
        assert can_go_on(as_ours(state_of_nemo(kept)), [optimizer]) == (kept is fitting)
    assert not can_go_on(as_ours(state_of_nemo(fitting)), [optimizer, optimizer])
    assert not can_go_on(as_ours(state_of_nemo(fitting, params=[0])), [optimizer])
    assert not can_go_on(as_ours(state_of_nemo([*reversed(fitting)])), [optimizer])
    assert not can_go_on({}, [optimizer])


def test_names_of_before_0_10_become_ours() -> None:
    state = as_ours(state_of_nemo(MOMENTUM))
    assert (state["step"], state["epoch"], len(state["optimizers"])) == (3, 1, 1)
    assert as_ours({"step": 1, "optimizers": []}) == {"step": 1, "optimizers": []}


@pytest.mark.parametrize(("optimizer", "steps"), [("novograd", 5), ("sgd", 8)])
def test_training_goes_on_from_nemos_folder_or_starts_with_its_weights(
    tmp_path: Any, optimizer: str, steps: int
) -> None:
    torch.save(TaylorNet(dim=4).state_dict(), tmp_path / "TaylorNet-STEP-3.pt")
    group = {"betas": (0.95, 0.25), "eps": 1e-8, "weight_decay": 0.0, "grad_averaging": False}  # as NeMo 0.9 has it
    torch.save(state_of_nemo(NOVOGRAD, **group), tmp_path / "trainer-STEP-3.pt")
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, set_default=False)
    x, y = RealFunctionDataLayer(n=16, batch_size=8)()
    loss = MSELoss()(predictions=TaylorNet(dim=4)(x=x), target=y)
    made: list[int] = []
    counter = nemo.SimpleLossLoggerCallback([loss], print_func=lambda values: made.append(1), step_freq=1)
    callbacks = [nemo.CheckpointCallback(tmp_path / "new", load_from_folder=tmp_path), counter]
    factory.train([loss], callbacks=callbacks, optimizer=optimizer, optimization_params={"max_steps": 8, "lr": 0.01})
    assert len(made) == steps


class Spoil(nemo.NeMoCallback):
    """Makes a weight infinite after a step, as a rate that is much too high does."""

    def __init__(self, net, step):
        super().__init__()
        self.net, self.step = net, step

    def on_step_end(self, state):
        if state.step == self.step:
            with torch.no_grad():
                self.net.fc.weight[0, 0] = math.inf


def test_a_run_whose_weights_are_not_finite_ends_and_its_good_checkpoints_stay(factory, tmp_path):
    net, loss = build(net=Net(norm=True, name="net"))
    callbacks = [Spoil(net, 3), nemo.CheckpointCallback(tmp_path, step_freq=1, checkpoints_to_keep=2)]
    with pytest.raises(
        CheckpointError, match=r"Net: weights that are not finite are not saved: got NaN or infinity in fc"
    ):
        factory.train(
            [loss], optimizer="sgd", callbacks=callbacks, optimization_params={"lr": 0.1, "momentum": 0, "max_steps": 6}
        )
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-STEP-2", "checkpoint-STEP-3"]
    assert all(torch.isfinite(value).all() for value in read_checkpoint(tmp_path).weights["net"].values())


def test_a_saver_of_modules_refuses_them_too(factory, tmp_path):
    net, loss = build(net=Net(name="net"))
    with pytest.raises(CheckpointError, match="weights that are not finite are not saved"):
        factory.train(
            [loss],
            optimizer="sgd",
            callbacks=[Spoil(net, 1), ModuleSaverCallback([net], step_freq=2, folder=tmp_path)],
            optimization_params={"lr": 0.1, "max_steps": 2},
        )
    assert list(tmp_path.iterdir()) == []


def test_infinities_of_a_buffer_may_be_a_mask_and_nan_may_not():
    net = Net(norm=True)
    net.register_buffer("mask", torch.full((2,), -math.inf))
    refuse_not_finite(net, net.state_dict())
    net.norm.running_var[1] = math.nan
    with pytest.raises(CheckpointError, match=r"got NaN or infinity in norm\.running_var; the checkpoints"):
        refuse_not_finite(net, net.state_dict())


def test_an_infinite_weight_of_a_wrapped_module_is_refused():
    net = TrainableNeuralModuleWrapper(nn.Linear(3, 1), {"x": BD}, {"out": BD})
    refuse_not_finite(net, net.state_dict())
    with torch.no_grad():
        net._pt_module.weight[0, 1] = math.inf
    with pytest.raises(CheckpointError, match=r"Wrapper: weights that are not .*: got NaN or infinity in weight"):
        refuse_not_finite(net, net.state_dict())


def test_only_some_of_many_weights_are_listed():
    net = Net(norm=True)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(math.nan)
    with pytest.raises(CheckpointError, match=r"norm\.weight, norm\.bias, fc\.weight and 1 more"):
        refuse_not_finite(net, net.state_dict())


@pytest.fixture
def factory():
    return nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
