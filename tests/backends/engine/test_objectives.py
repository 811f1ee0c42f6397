"""What an optimizer minimises: losses and weights that fit each other, on one rank and on several."""

import pytest
import torch
from torch import nn
from toys.nets import Mse, Net, Points, Record, build, train
from toys.rank_training import rank_factory, train_net
from toys.ranks import on_ranks, results_of

import nemo_lite as nemo
from nemo_lite.errors import UsageError


def test_several_losses_are_summed(factory):
    data, net, record = Points(), Net(), Record()
    x, y = data()
    out = net(x=x)
    losses = [Mse()(out=out, target=y), Mse()(out=out, target=y)]
    train(factory, losses, record, params={"max_steps": 1})
    expected = 2 * nn.functional.mse_loss(Net()(x=data.x[:4]), data.y[:4])
    assert record.losses == [pytest.approx(expected.item())]


def test_optimizer_and_loss_tuples_are_taken_in_turn(factory):
    data, first, second, record = Points(), Net(name="first"), Net(name="second"), Record()
    x, y = data()
    losses = [Mse()(out=net(x=x), target=y) for net in (first, second)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (first, second)]
    before = [net.fc.weight.clone() for net in (first, second)]
    train(factory, [(o, [loss]) for o, loss in zip(optimizers, losses, strict=True)], record, params={"max_steps": 1})
    assert not torch.equal(first.fc.weight, before[0])
    assert torch.equal(second.fc.weight, before[1])


def test_a_loss_of_several_numbers_is_refused(factory):
    prediction = next(iter(build()[1].call.inputs.values()))
    with pytest.raises(UsageError, match=r"a loss must be a single number: got shape \(4, 1\)"):
        train(factory, [prediction])
    with pytest.raises(UsageError, match=r"a loss must be a single number: got shape \(4, 1\)"):
        train(factory, [prediction, prediction])


def test_a_loss_whose_modules_are_all_frozen_is_refused(factory):
    net, loss = build()
    net.freeze()
    with pytest.raises(UsageError, match="no weight that the loss depends on is trained; unfreeze a module"):
        train(factory, [loss])


def test_an_optimizer_of_other_weights_is_refused(factory):
    _, loss = build()
    other = torch.optim.SGD(Net().parameters(), lr=0.1)
    with pytest.raises(UsageError, match=r"SGD: the optimizer holds no weight .*: got mse\.loss"):
        train(factory, [loss], optimizer=other)


def test_things_to_optimize_are_modules_or_wires_in_a_list(factory):
    net, _ = build()
    for things, got in ((net, "Net"), ([net, "head"], "Net, str"), (net.parameters(), "generator")):
        with pytest.raises(UsageError, match=f"things_to_optimize must be a list of modules or wires: got {got}"):
            factory.create_optimizer("adam", things, {"lr": 0.1})


class Unfreeze(nemo.NeMoCallback):
    def __init__(self, net):
        super().__init__()
        self._net = net

    def on_step_start(self, state):
        if state.step == 2:
            self._net.unfreeze(["fc.weight"])


def unfreezing():
    made, net = rank_factory(), Net()
    net.freeze(["fc.weight"])
    return train_net(made, net, Points(n=16, batch_size=2), [Unfreeze(net)])


def test_weights_that_are_unfrozen_on_the_way_are_averaged_too():
    first, second = results_of(2, unfreezing)
    assert first == second


class LateUnreached(nemo.NeMoCallback):
    def __init__(self, net):
        super().__init__()
        self._net = net

    def on_step_start(self, state):
        if state.step == 2:
            self._net.unfreeze(["spare.weight"])


class Idle(Net):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(2, 2)


def unfreezing_an_idle_weight():
    made, net = rank_factory(), Idle()
    net.freeze(["spare.weight", "spare.bias"])
    train_net(made, net, Points(n=16, batch_size=2), [LateUnreached(net)])


def test_a_weight_that_is_unfrozen_and_not_reached_is_refused_before_a_step_is_made_with_it():
    finished = on_ranks(2, unfreezing_an_idle_weight)
    assert [end.code for end in finished] == [2, 2]
    assert "got idle.spare.weight; freeze them" in finished[0].err


def all_frozen():
    made, net = rank_factory(), Net()
    net.freeze()
    train_net(made, net, Points(n=16, batch_size=2))


def test_a_model_that_is_frozen_altogether_is_refused_in_one_line():
    finished = on_ranks(2, all_frozen)
    assert [end.code for end in finished] == [2, 2]
    assert "no weight that the loss depends on is trained" in finished[0].err


def with_an_idle_weight():
    train_net(rank_factory(), Idle(), Points(n=16, batch_size=2))


def test_a_weight_that_the_loss_does_not_reach_is_refused_by_name():
    finished = on_ranks(2, with_an_idle_weight)
    assert [end.code for end in finished] == [2, 2]
    assert "got idle.spare.weight, idle.spare.bias; freeze them" in finished[1].err
