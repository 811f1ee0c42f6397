"""A small net, its data and its loss, for tests of the engine; what a run of it recorded."""

import math

import torch
from torch import nn
from torch.utils.data import TensorDataset

import nemo_lite as nemo
from nemo_lite.core.neural_types import ChannelType, LossType, NeuralType

BD = NeuralType("B D", ChannelType())


class Points(nemo.DataLayerNM):
    output_ports = {"x": BD, "y": BD}

    def __init__(self, n=12, batch_size=4, shuffle=False, bad_item=None):
        super().__init__()
        # Not a name, which two of them could not share.
        self.label = "points"
        self.batch_size, self.shuffle = batch_size, shuffle
        generator = torch.Generator().manual_seed(3)
        x = torch.rand(n, 3, generator=generator)
        y = x.sum(1, keepdim=True)
        if bad_item is not None:
            y[bad_item] = math.nan
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    @property
    def dataset(self):
        return TensorDataset(self.x, self.y)


class Net(nemo.TrainableNM):
    input_ports = {"x": BD}
    output_ports = {"out": BD}

    def __init__(self, norm=False, name=None):
        super().__init__(name=name)
        torch.manual_seed(0)
        self.norm = nn.BatchNorm1d(3) if norm else nn.Identity()
        self.fc = nn.Linear(3, 1)

    def forward(self, x):
        return self.fc(self.norm(x))


class Mse(nemo.LossNM):
    input_ports = {"out": BD, "target": BD}
    output_ports = {"loss": NeuralType(None, LossType())}

    def _loss_function(self, out, target):
        return nn.functional.mse_loss(out, target)


class Record(nemo.NeMoCallback):
    """Losses, learning rates, events, and any named tensors of each step."""

    def __init__(self, *names):
        super().__init__()
        self.names, self.losses, self.rates, self.events, self.tensors = names, [], [], [], []

    def on_action_start(self, state):
        self.events.append("action_start")

    def on_epoch_start(self, state):
        self.events.append(f"epoch_start {state['epoch']}")

    def on_step_start(self, state):
        self.events.append(f"step_start {state['step']}")

    def on_batch_end(self, state):
        self.events.append("batch_end")

    def on_step_end(self, state):
        self.events.append(f"step_end {state['step']}")
        self.losses.append(state["tensors"].get_tensor("loss").item())
        self.rates.append(state.learning_rate)
        self.tensors.append([state["tensors"].get_tensor(name) for name in self.names])

    def on_epoch_end(self, state):
        self.events.append(f"epoch_end {state['epoch']}")

    def on_action_end(self, state):
        self.events.append("action_end")


def build(data=None, net=None, weight=1.0):
    data, net = data or Points(), net or Net()
    x, y = data()
    return net, Mse()(out=net(x=x), target=y)


def train(factory, losses, record=None, *, lr=0.1, **kwargs):
    params = {"lr": lr, **kwargs.pop("params", {"num_epochs": 2})}
    if not any(isinstance(loss, tuple) for loss in losses):
        kwargs.setdefault("optimizer", "sgd")
        params.setdefault("momentum", 0.0)
    factory.train(losses, callbacks=[record] if record else [], optimization_params=params, **kwargs)


def made_factory(shard_weights=False):
    return nemo.NeuralModuleFactory(
        placement=nemo.DeviceType.CPU, random_seed=1, dist_timeout=15.0, shard_weights=shard_weights
    )


def sharded_net(factory):
    net = Net(name="net")
    x, y = Points(n=4, batch_size=1)()
    factory.train([Mse()(out=net(x=x), target=y)], optimizer="sgd", optimization_params={"lr": 0.1, "max_steps": 1})
    return net
