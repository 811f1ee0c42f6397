"""Averaged weights: the moving average of the steps, the mean of checkpoints, statistics for them, on several ranks."""

from contextlib import nullcontext

import pytest
import torch
from toys.apex_installed import apex_from
from toys.nets import Mse, Net, Points, train
from toys.rank_training import rank_factory
from toys.ranks import results_of

import nemo_lite as nemo
from nemo_lite.backends.pytorch.checkpoint.storage import read_tensors
from nemo_lite.backends.pytorch.engine.averages import Averaging
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.core.run_options import Optimization
from nemo_lite.errors import CheckpointError, UsageError

FLOAT32 = Precision(Optimization.mxprO0, torch.device("cpu"))


class Averaged(nemo.NeMoCallback):
    """What the net's state is in each step, inside the average at the end, and behind it."""

    def __init__(self, net, last=0, folder=""):
        self.net, self.last, self.folder = net, last, folder
        self.weights, self.words = [], ""
        self.averaged, self.before, self.behind = {}, {}, {}

    def state(self):
        return {name: value.clone() for name, value in self.net.state_dict().items()}

    def on_step_end(self, state):
        self.weights.append(self.net.fc.weight.detach().clone())

    def on_action_end(self, state):
        self.before = self.state()
        with state.averaging.applied(self.last, self.folder) as self.words:
            self.averaged = self.state()
        self.behind = self.state()


def run(factory, *callbacks, net, data=None, steps=6, **params):
    x, y = (data or Points())()
    loss = Mse()(out=net(x=x), target=y)
    optimization = {"lr": 0.1, "momentum": 0.0, "max_steps": steps, **params}
    factory.train([loss], callbacks=[*callbacks], optimizer="sgd", optimization_params=optimization)


def test_the_moving_average_takes_every_step_and_the_run_s_weights_stay(factory):
    net = Net(norm=True)
    first, watch = net.fc.weight.detach().clone(), Averaged(net)
    run(factory, watch, net=net, ema_decay=0.3)
    mean = first
    for step, weight in enumerate(watch.weights):
        decay = min(0.3, (1 + step) / (10 + step))
        mean = decay * mean + (1 - decay) * weight
    torch.testing.assert_close(watch.averaged["fc.weight"], mean)
    assert watch.words == "moving average of the weights, decay 0.3"
    torch.testing.assert_close(watch.behind, watch.before, rtol=0, atol=0)
    torch.testing.assert_close(watch.before["fc.weight"], watch.weights[-1], rtol=0, atol=0)


class SavesAveraged(Averaged):
    """Also what the net computes with inside the average, and the file that is saved there."""

    def __init__(self, net, path, last=0, folder=""):
        super().__init__(net, last, folder)
        self.path, self.masters, self.computed, self.file = path, [], {}, {}

    def on_step_end(self, state):
        self.masters.append(self.net.state_dict()["fc.weight"].clone())

    def on_action_end(self, state):
        self.before = self.state()
        computed_before = self.net.fc.weight.detach().clone()
        with state.averaging.applied(self.last, self.folder):
            self.computed = {name: value.detach().clone() for name, value in self.net.named_parameters()}
            state.save_module(self.net, self.path)
        self.file, self.behind = read_tensors(self.path), self.state()
        assert torch.equal(self.net.fc.weight, computed_before)


LEVELS = [*(("native", level) for level in ("O0", "O1", "O2", "O3")), ("apex", "O2")]


@pytest.mark.slow
@pytest.mark.parametrize("last", [0, 2])
@pytest.mark.parametrize(("backend", "level"), LEVELS)
def test_at_every_level_the_file_has_the_averaged_weights_that_were_evaluated(tmp_path, backend, level, last):
    net = Net(norm=True)
    first = net.fc.weight.detach().clone()
    watch = SavesAveraged(net, tmp_path / "averaged.safetensors", last, tmp_path)
    saver = nemo.CheckpointCallback(tmp_path, step_freq=1, epoch_freq=-1)
    with apex_from() if backend == "apex" else nullcontext():
        made = nemo.NeuralModuleFactory(
            placement=nemo.DeviceType.CPU, optimization_level=level, amp_backend=backend, set_default=False
        )
        run(made, saver, watch, net=net, ema_decay=0.3)
    for name, value in watch.computed.items():
        assert torch.equal(watch.file[name].to(value.dtype), value), name
    mean = first
    for step, weight in enumerate(watch.masters):
        decay = min(0.3, (1 + step) / (10 + step))
        mean = decay * mean + (1 - decay) * weight
    expected = sum(watch.masters[-2:]) / 2 if last else mean
    tolerance = 0.01 if level == "O3" else 1e-6  # O3 has weights in half precision alone
    torch.testing.assert_close(watch.file["fc.weight"], expected, rtol=tolerance, atol=0)
    assert not torch.equal(watch.file["fc.weight"], watch.before["fc.weight"])
    torch.testing.assert_close(watch.behind, watch.before, rtol=0, atol=0)


def test_training_with_a_moving_average_is_bitwise_training_without(factory):
    nets = [Net(norm=True), Net(norm=True)]
    run(factory, net=nets[0])
    other = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
    run(other, Averaged(nets[1]), net=nets[1], ema_decay=0.9)
    torch.testing.assert_close(nets[1].state_dict(), nets[0].state_dict(), rtol=0, atol=0)


def test_statistics_of_averaged_weights_are_the_plain_mean_over_the_batches_of_an_epoch(factory):
    net, data = Net(norm=True), Points()
    watch = Averaged(net)
    run(factory, watch, net=net, data=data, ema_decay=0.9)
    batches = data.x.split(4)
    torch.testing.assert_close(watch.averaged["norm.running_mean"], torch.stack([b.mean(0) for b in batches]).mean(0))
    torch.testing.assert_close(watch.averaged["norm.running_var"], torch.stack([b.var(0) for b in batches]).mean(0))
    assert net.norm.momentum == 0.1


def test_a_frozen_module_keeps_its_statistics(factory):
    net, frozen = Net(norm=True), Net(norm=True, name="frozen")
    frozen.freeze()
    x, _ = Points()()
    loss = Mse()(out=net(x=x), target=frozen(x=x))
    watch = Averaged(frozen)
    train(factory, [loss], watch, params={"max_steps": 3, "ema_decay": 0.9})
    torch.testing.assert_close(watch.averaged, watch.before, rtol=0, atol=0)


def test_the_last_checkpoints_are_averaged(factory, tmp_path):
    net = Net()
    saver = nemo.CheckpointCallback(tmp_path, step_freq=1, epoch_freq=-1)
    watch = Averaged(net, 2, tmp_path)
    run(factory, saver, watch, net=net)
    torch.testing.assert_close(watch.averaged["fc.weight"], sum(watch.weights[-2:]) / 2)
    assert watch.words == "mean of the checkpoints of 5, 6 steps"


def test_averages_that_there_are_none_of_are_refused(factory, tmp_path):
    with pytest.raises(UsageError, match=r'there is no moving average of the weights; train with .*"ema_decay": 0.999'):
        run(factory, Averaged(net := Net()), net=net, steps=1)
    with pytest.raises(CheckpointError, match="there is no checkpoint to average"):
        run(factory, Averaged(net := Net(), 2, tmp_path), net=net, steps=2)
    with pytest.raises(UsageError, match=r"ema_decay must be a number between 0 and 1: got 1\.5"):
        run(factory, net=Net(), ema_decay=1.5)
    with pytest.raises(UsageError, match="averages of weights do not go with shard_weights; leave one of the two out"):
        Averaging([Net()], 0.9, FLOAT32, factory._comm, True, lambda next_batch: None)


def test_an_average_of_other_weights_is_refused_and_a_state_without_one_starts_anew(factory, caplog):
    made = Averaging([net := Net()], 0.9, FLOAT32, factory._comm, False, lambda next_batch: None)
    with pytest.raises(CheckpointError, match="x: the average of weights does not fit the weights"):
        made.load_state_dict({"average": {"decay": 0.9, "means": [torch.zeros(2)]}}, "x")
    with torch.no_grad():
        net.fc.weight.fill_(3.0)
    made.load_state_dict({}, "old.json")
    assert "old.json has no average of weights: it begins with the weights of this step" in caplog.text
    assert made.state_dict()["average"]["means"][0].unique().tolist() == [3.0]


def averaged_on_rank():
    made, net = rank_factory(), Net(norm=True)
    watch = Averaged(net)
    x, y = Points(n=16, batch_size=2)()
    params = {"lr": 0.1, "momentum": 0.0, "max_steps": 4, "ema_decay": 0.5}
    made.train([Mse()(out=net(x=x), target=y)], callbacks=[watch], optimizer="sgd", optimization_params=params)
    return {name: value.tolist() for name, value in watch.averaged.items() if "running" not in name}


def test_all_ranks_have_the_same_average():
    first, second = results_of(2, averaged_on_rank)
    assert first == second
