"""Training at each level: what is computed in which type, what is learned, what is saved, and how it goes on."""

from __future__ import annotations

import math

import pytest
import torch
from toys.device_verdict import use_device_verdict
from toys.fake_comm import FakeComm
from toys.names import forget_names
from toys.nets import BD, Mse, Net, Points, Record, build, train
from toys.rank_training import rank_factory, train_net
from toys.ranks import on_ranks

import nemo_lite as nemo
from nemo_lite.backends.pytorch.actions import PtActions
from nemo_lite.base.errors import UsageError

LEVELS = ["O0", "O1", "O2", "O3"]
F32, HALF = torch.float32, torch.bfloat16


def factory(level, **options):
    return nemo.NeuralModuleFactory(
        placement=nemo.DeviceType.CPU, random_seed=1, optimization_level=level, set_default=False, **options
    )


class Watched(Net):
    """Notes its types while it runs."""

    def forward(self, x):
        out = super().forward(x)
        self.seen = (x.dtype, self.fc.weight.dtype, self.norm.weight.dtype, self.norm.running_mean.dtype, out.dtype)
        return out


class States(nemo.NeMoCallback):
    """Notes the types of gradients and of the optimizer's states, and what a state_dict has, at each step."""

    def __init__(self, net):
        super().__init__()
        self.net, self.seen = net, set()

    def on_step_end(self, state):
        (optimizer,) = state.optimizers
        weight = optimizer.param_groups[0]["params"][-2]  # of fc
        moment = optimizer.state[weight]["momentum_buffer"].dtype
        saved = self.net.state_dict()["fc.weight"].dtype
        self.seen.add((self.net.fc.weight.grad.dtype, weight.grad.dtype, moment, saved))


@pytest.mark.parametrize(
    ("level", "forward", "states"),
    [
        # input, weight, normalisation, running statistics, output; gradient, of what is updated, optimizer, saved
        ("O0", (F32, F32, F32, F32, F32), (F32, F32, F32, F32)),
        ("O1", (F32, F32, F32, F32, HALF), (F32, F32, F32, F32)),
        ("O2", (HALF, HALF, F32, F32, HALF), (HALF, F32, F32, F32)),
        ("O3", (HALF, HALF, HALF, HALF, HALF), (HALF, HALF, HALF, F32)),
    ],
)
def test_each_level_learns_in_its_types(level, forward, states):
    net = Watched(norm=True)
    seen, record = States(net), Record()
    net, loss = build(Points(n=32, batch_size=4), net)
    factory(level).train(
        [loss],
        optimizer="sgd",
        optimization_params={"lr": 0.05, "momentum": 0.9, "num_epochs": 8, "grad_norm_clip": 5.0},
        callbacks=[seen, record],
        batches_per_step=2,
    )
    assert (net.seen, seen.seen) == (forward, {states})
    assert sum(record.losses[-4:]) < 0.1 * sum(record.losses[:4])
    assert {tensor.dtype for tensor in (*net.parameters(), *net.buffers())} == {F32, torch.int64}


@pytest.mark.parametrize("level", LEVELS)
def test_going_on_from_a_checkpoint_gives_the_same_bits_as_training_in_one_go(level, tmp_path):
    def weights_after(epochs, folder):
        net, loss = build(Points(n=8), Net(norm=True))
        params = {"lr": 0.05, "num_epochs": epochs}
        callbacks = [nemo.CheckpointCallback(folder, epoch_freq=1)]
        factory(level).train([loss], optimizer="adam", optimization_params=params, callbacks=callbacks)
        return net.state_dict()

    once = weights_after(2, tmp_path / "once")
    weights_after(1, tmp_path / "twice")
    twice = weights_after(2, tmp_path / "twice")
    assert all(torch.equal(once[name], twice[name]) for name in once)
    rounded = torch.equal(once["fc.weight"], once["fc.weight"].bfloat16().float())
    assert rounded == (level == "O3")


@pytest.mark.parametrize("wrote", LEVELS)
def test_a_checkpoint_of_any_level_loads_at_any_other(wrote, tmp_path):
    net, loss = build(net=Net(norm=True, name="net"))
    params = {"lr": 0.05, "num_epochs": 1}
    factory(wrote).train(
        [loss],
        optimizer="novograd",
        optimization_params=params,
        callbacks=[nemo.CheckpointCallback(tmp_path, epoch_freq=1)],
    )
    for level in LEVELS:
        forget_names()
        other, loss = build(net=Net(norm=True, name="net"))
        x, _ = Points()()
        values, before = factory(level), net.state_dict()
        values.infer([other(x=x)], checkpoint_dir=tmp_path)
        assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
        record = Record()
        params["num_epochs"] = 2
        values.train(
            [loss],
            optimizer="novograd",
            optimization_params=params,
            callbacks=[nemo.CheckpointCallback(tmp_path / level, load_from_folder=tmp_path), record],
        )
        assert len(record.losses) == 3


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_an_evaluation_during_training_takes_modules_of_its_own_and_changes_nothing(level):
    def trained(make_callbacks=lambda net: []):
        net, loss = build(Points(n=8), Net(norm=True))
        params = {"lr": 0.1, "num_epochs": 2}
        factory(level).train([loss], optimizer="sgd", optimization_params=params, callbacks=make_callbacks(net))
        return net.state_dict()

    dtypes = []

    def evaluates(net):
        class Head(Net):
            input_ports = {"x": BD}

            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(1, 1)

            def forward(self, x):
                dtypes.append((x.dtype, self.fc.weight.dtype))
                return self.fc(x)

        head = Head()
        x, _ = Points(n=4)()
        values = head(x=net(x=x))
        return [nemo.EvaluatorCallback([values], lambda *_: None, lambda so_far: {}, eval_step=1)]

    alone, beside = trained(), trained(evaluates)
    assert all(torch.equal(alone[name], beside[name]) for name in alone)
    assert set(dtypes) == {(HALF, HALF)}


def test_a_frozen_module_keeps_its_bits_and_learns_once_it_is_unfrozen():
    frozen = Net(name="frozen")
    frozen.fc = torch.nn.Linear(3, 3)
    frozen.freeze()
    before = frozen.fc.weight.detach().clone()
    x, y = Points(n=8)()
    net = Net(name="net")
    loss = Mse()(out=net(x=frozen(x=x)), target=y)
    train(factory("O2"), [loss], params={"max_steps": 3})
    assert torch.equal(frozen.fc.weight, before)
    unfreeze = nemo.core.UnfreezeCallback([frozen], start_step=1)
    params = {"lr": 0.1, "max_steps": 3}
    factory("O2").train([loss], optimizer="sgd", optimization_params=params, callbacks=[unfreeze])
    assert not torch.equal(frozen.fc.weight, before)
    assert not torch.equal(frozen.fc.weight, frozen.fc.weight.bfloat16().float())


@pytest.mark.parametrize("judge", ["host", "device"])
@pytest.mark.parametrize("level", ["O2", "O3"])
def test_a_step_whose_loss_is_not_finite_changes_no_weight(level, judge, monkeypatch):
    if judge == "device":
        use_device_verdict(monkeypatch)
    weights = []

    class Weights(nemo.NeMoCallback):
        def on_step_end(self, state):
            weights.append(net.state_dict()["fc.weight"].clone())

    net, loss = build(Points(n=12, bad_item=5))  # in the second step
    params = {"lr": 0.1, "num_epochs": 1}
    factory(level).train([loss], optimizer="adam", optimization_params=params, callbacks=[Weights()])
    first, second, third = weights
    assert torch.equal(first, second)
    assert not torch.equal(second, third)
    assert math.isfinite(third.sum().item())


def test_an_optimizer_that_a_user_made_updates_the_float32_weights():
    net, loss = build()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    (before, _) = optimizer.param_groups[0]["params"]
    factory("O2").train([loss], optimizer=optimizer, optimization_params={"max_steps": 2})
    assert optimizer.param_groups[0]["params"][0] is before is net.fc.weight
    assert not torch.equal(net.fc.weight, net.fc.weight.bfloat16().float())


def test_a_module_that_is_half_already_is_refused_in_one_line():
    net, loss = build()
    net.bfloat16()
    message = "optimizer SGD: O2 needs float32 weights to update: got parameters that were bfloat16 before the run"
    with pytest.raises(UsageError, match=message):
        train(factory("O2"), [loss])


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_weights_that_are_divided_among_ranks_need_another_level(level):
    with pytest.raises(UsageError, match=f'shard_weights does not go with {level}; take optimization_level="O1"'):
        train(factory(level, shard_weights=True), [build()[1]])


def test_master_weights_are_made_equal_to_those_of_rank_0():
    class Second(FakeComm):
        """Rank 0 has zeros."""

        def make_equal(self, tensors):
            for tensor in tensors:
                tensor.detach().zero_()

    for level in ("O2", "O3"):
        net, loss = build()
        actions = PtActions(optimization_level=level, device=torch.device("cpu"), comm=Second(rank=1, world_size=2))
        params = {"lr": 0.0, "max_steps": 1, "momentum": 0.0}
        actions.train([loss], "sgd", params)
        assert [parameter.abs().sum().item() for parameter in net.parameters()] == [0.0, 0.0]


def on_a_rank():
    made = rank_factory(optimization_level="O2", dist_timeout=30.0)
    net, seen = Watched(norm=True, name="net"), set()
    with torch.no_grad():
        net.fc.weight.add_(made.global_rank)  # rank 0's are taken, to the last bit

    class Types(nemo.NeMoCallback):
        def on_step_end(self, state):
            seen.add((net.fc.weight.grad.dtype, state.optimizers[0].param_groups[0]["params"][-2].grad.dtype))

    weights = train_net(
        made, net, Points(n=16, batch_size=2), [Types()], max_steps=4, batches_per_step=2, synced_batchnorm=True
    )
    return weights, seen == {(HALF, F32)}, net.seen[2] is F32


def test_two_ranks_exchange_half_gradients_and_update_the_same_float32_weights():
    (first, *types), (second, *others) = (finished.result for finished in on_ranks(2, on_a_rank))
    assert types == others == [True, True]
    assert first == second
    alone = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=5, optimization_level="O2")
    net = Net(norm=True, name="net")
    x, y = Points(n=16, batch_size=4)()  # the same statistics: 2 ranks x 2
    params = {"lr": 0.1, "momentum": 0.0, "max_steps": 4}
    alone.train([Mse()(out=net(x=x), target=y)], optimizer="sgd", optimization_params=params, batches_per_step=2)
    together = torch.tensor(first["fc.weight"])
    torch.testing.assert_close(together, net.fc.weight.detach(), rtol=0.0, atol=0.02)
    assert not torch.equal(together, together.bfloat16().float())
