"""Modes and running statistics: what training, skipped steps and evaluations leave behind."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from toys.nets import Mse, Net, Points, build, train
from toys.rank_training import rank_factory, train_net
from toys.ranks import results_of

import nemo_lite as nemo
from nemo_lite.backends.pytorch.engine.module_state import evaluating, set_training


def test_a_frozen_module_keeps_its_weights_its_statistics_and_its_mode(factory, capsys):
    net, head = Net(norm=True, name="net"), Net(name="head")
    head.fc = nn.Linear(1, 1)
    x, y = Points()()
    loss = Mse()(out=head(x=net(x=x)), target=y)
    net.freeze()
    state = {key: value.clone() for key, value in net.state_dict().items()}
    train(factory, [loss])
    assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())
    assert not net.training
    assert head.training
    frozen, trained = (sum(p.numel() for p in module.parameters()) for module in (net, head))
    assert f"Training {trained} of {frozen + trained} parameters" in capsys.readouterr().out


def test_a_part_that_the_user_put_into_evaluation_mode_stays_there(factory):
    net, loss = build(net=Net(norm=True))
    net.norm.eval()
    mean = net.norm.running_mean.clone()
    train(factory, [loss])
    assert torch.equal(net.norm.running_mean, mean)


def test_a_part_stays_in_evaluation_mode_also_where_the_module_is_in_it_and_the_log_says_so(factory, capsys):
    net, loss = build(net=Net(norm=True, name="net"))
    net.eval()
    net.fc.train()
    mean = net.norm.running_mean.clone()
    train(factory, [loss])
    assert torch.equal(net.norm.running_mean, mean)
    assert (net.training, net.norm.training) == (True, False)
    told = "net: 1 part in evaluation mode, which training leaves there: norm; call train() of the module for all"
    assert told in capsys.readouterr().err


def test_a_module_in_evaluation_mode_with_all_its_parts_is_trained_but_for_frozen_parts(factory):
    net, loss = build(net=Net(norm=True, name="net"))
    net.inner = Net(norm=True, name="inner")
    net.inner.freeze()
    net.eval()
    train(factory, [loss])
    assert all(part.training for part in (net, net.norm, net.fc))
    assert not any(part.training for part in net.inner.modules())


def test_a_graph_for_training_leaves_a_part_in_evaluation_mode():
    net = Net(norm=True)
    net.norm.eval()
    with nemo.core.NeuralGraph(operation_mode=nemo.core.OperationMode.training) as graph:
        net(x=graph)
    assert (net.training, net.norm.training) == (True, False)


def test_evaluations_that_overlap_leave_modes_alone_in_whatever_order_they_end():
    net, other = Net(norm=True), Net(norm=True)
    net.norm.eval()
    first, second, third = evaluating([net]), evaluating([net, other]), evaluating([other])
    for one in (first, second, third):
        one.__enter__()
    for one in (first, third):
        one.__exit__(None, None, None)
    assert not any(part.training for module in (net, other) for part in module.modules())
    second.__exit__(None, None, None)
    assert [part.training for part in (net, net.fc, net.norm, other.norm)] == [True, True, False, True]


def test_an_evaluation_that_is_left_open_does_not_take_a_later_training_out_of_its_mode():
    net = Net(norm=True)
    left_open = evaluating([net])
    left_open.__enter__()
    set_training([net])
    with evaluating([net]):
        assert not net.norm.training
    assert all(part.training for part in net.modules())
    left_open.__exit__(None, None, None)
    assert all(part.training for part in net.modules())


class BadInput(Points):
    """Points of which one coordinate is not a number, in the second batch."""

    @property
    def dataset(self):
        x = self.x.clone()
        x[5, 0] = math.nan
        return TensorDataset(x, self.y)


@pytest.mark.parametrize("per_step", [1, 3])
def test_a_skipped_step_leaves_the_running_statistics_as_they_were(factory, per_step):
    net, loss = build(BadInput(), Net(norm=True))
    seen = []

    class Watch(nemo.NeMoCallback):
        def on_step_end(self, state):
            seen.append({name: buffer.clone() for name, buffer in net.norm.named_buffers()})

    train(factory, [loss], Watch(), batches_per_step=per_step, params={"num_epochs": 1})
    before = seen[0] if per_step == 1 else dict(Net(norm=True).norm.named_buffers())
    after = seen[1 if per_step == 1 else 0]
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert net.norm.num_batches_tracked == (2 if per_step == 1 else 0)


class Watching(nemo.NeMoCallback):
    """The batch-norm statistics of this rank right before and after an evaluation, and the mode."""

    def __init__(self, net):
        super().__init__()
        self.net, self.seen = net, []

    def on_step_end(self, state):
        self.seen.append((self.net.training, self.net.norm.running_mean.tolist()))


def evaluated_while_training():
    made, net = rank_factory(), Net(norm=True)
    before, after = Watching(net), Watching(net)
    used = []
    sets = []
    for count in (6, 4):
        x, _ = Points(n=count, batch_size=2)()
        sets.append(nemo.EvaluatorCallback([net(x=x)], lambda values, _: None, lambda _: used.append(1), eval_step=1))
    train_net(made, net, Points(n=16, batch_size=2), [before, *sets, after], max_steps=3)
    return before.seen, after.seen, net.norm.running_mean.tolist(), len(used)


def test_evaluations_of_several_sets_leave_modes_and_statistics_of_the_training_alone():
    first, second = results_of(2, evaluated_while_training)
    assert first[0] == first[1]
    assert second[0] == second[1]
    assert first[0] != second[0]  # each rank has statistics of its own while it trains
    assert first[2] == second[2]  # and all the same in the end
    assert all(training for training, _ in first[0])
    assert first[3] >= 6
    assert second[3] == 0
