"""The tensors of a step: which can be read, and what is computed when it is asked for."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from toys.nets import BD, Mse, Net, Points, Record, build, train

import nemo_lite as nemo
from nemo_lite.backends.pytorch.engine.state import StepValues
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.base.errors import DagError
from nemo_lite.core.dag import Dag


def test_a_renamed_wire_beyond_the_training_dag_is_computed_when_asked_for(factory):
    net, loss = build()
    prediction = next(iter(loss.call.inputs.values()))
    head = Net(name="head")
    head.fc = nn.Linear(1, 1)
    head(x=prediction).rename("beyond")
    record = Record("beyond")
    train(factory, [loss], record, params={"max_steps": 1})
    assert record.tensors[0][0].shape == (4, 1)
    assert not record.tensors[0][0].requires_grad
    assert head.fc.weight.grad is None
    del net


def test_a_wire_of_the_training_dag_that_was_not_kept_is_an_error_with_the_remedy(factory):
    _, loss = build()
    prediction = next(iter(loss.call.inputs.values()))

    class Ask(nemo.NeMoCallback):
        def on_step_end(self, state):
            state["tensors"].get_tensor(prediction)

    with pytest.raises(DagError, match=r"net\.out was not kept in this step: .*; name the wire before training starts"):
        train(factory, [loss], Ask())


def test_the_loss_of_an_objective_that_is_not_at_its_turn_can_be_read_too(factory):
    data, nets = Points(), [Net(name="first"), Net(name="second")]
    x, y = data()
    losses = [Mse()(out=net(x=x), target=y) for net in nets]
    seen = []

    class Ask(nemo.NeMoCallback):
        def on_step_end(self, state):
            seen.append([state["tensors"].get_tensor(loss).item() for loss in losses])

    pairs = [(torch.optim.SGD(net.parameters(), lr=0.1), [loss]) for net, loss in zip(nets, losses, strict=True)]
    train(factory, pairs, Ask(), params={"max_steps": 2})
    assert seen[0][1] == pytest.approx(nn.functional.mse_loss(Net()(x=data.x[:4]), data.y[:4]).item())
    assert len(seen) == 2


def test_an_unknown_tensor_name_lists_the_known_ones(factory):
    _, loss = build()
    next(iter(loss.call.inputs.values())).rename("guess")
    with pytest.raises(DagError, match=r'named "guesss"; known: .*guess.*\(did you mean guess\?\)'):
        train(factory, [loss], Record("guesss"))


class Mean(nemo.NonTrainableNM):
    """Less a mean that it keeps."""

    input_ports = {"x": BD}
    output_ports = {"out": BD}

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x):
        return x - self.mean


def test_modules_beyond_the_training_dag_are_moved_to_its_device():
    _, loss = build()
    prediction = next(iter(loss.call.inputs.values()))
    beyond = Mean()(x=prediction)
    dag = Dag([loss])
    device = torch.device("meta")
    values = StepValues(dag, Precision(nemo.Optimization.mxprO0, device))
    calls = {node.call for node in dag.slice().nodes}
    values.set(torch.zeros((), device=device), calls, [prediction], [torch.zeros(4, 1, device=device)])
    assert values.get_tensor(beyond).device == device


class Noisy(nemo.TrainableNM):
    """Draws from every generator, moves statistics and counts; behind what is trained."""

    input_ports = {"x": BD}
    output_ports = {"y": BD}

    def __init__(self):
        super().__init__(name="noisy")
        self.drop, self.norm, self.rng = nn.Dropout(0.5), nn.BatchNorm1d(1), torch.Generator()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count += 1
        own = torch.rand(1, generator=self.rng).item()
        return self.drop(self.norm(x)) + own + random.random() + float(np.random.rand())


class Dropping(Net):
    def forward(self, x):
        return self.fc(nn.functional.dropout(x, 0.3, self.training) + random.random() + float(np.random.rand()))


class Look(nemo.NeMoCallback):
    def __init__(self, wire, every):
        super().__init__()
        self.wire, self.every, self.seen = wire, every, {}

    def wanted_wires(self):
        return [self.wire]

    def on_step_end(self, state):
        if state.step % self.every == 0:
            self.seen[state.step] = state.tensors.get_tensor(self.wire)


@pytest.mark.parametrize("level", ["O0", "O3"])
def test_reading_a_wire_beyond_the_training_dag_changes_nothing_however_often(level):
    def trained(every):
        factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1, optimization_level=level)
        net, noisy = Dropping(), Noisy()
        x, y = Points()()
        out = net(x=x)
        before = {name: value.clone() for name, value in noisy.state_dict().items()}
        look = Look(noisy(x=out), every)
        train(factory, [Mse()(out=out, target=y)], look, params={"num_epochs": 3})
        assert all(torch.equal(value, before[name]) for name, value in noisy.state_dict().items())
        assert noisy.training
        assert noisy.norm.training
        return net.state_dict(), look.seen

    never, _ = trained(10**6)
    for every in (1, 4):
        weights, seen = trained(every)
        assert all(torch.equal(value, never[name]) for name, value in weights.items())
        assert len(seen) == -(-9 // every)
