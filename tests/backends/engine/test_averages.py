"""Averaged weights: the moving average of the steps, the mean of checkpoints, statistics for them, on several ranks."""

from contextlib import nullcontext

import pytest
import torch
from toys.apex_installed import apex_from
from toys.names import forget_names
from toys.nets import BD, Mse, Net, Points, train
from toys.rank_training import rank_factory
from toys.ranks import results_of

import nemo_lite as nemo
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder, read_checkpoint
from nemo_lite.backends.pytorch.checkpoint.storage import read_tensors
from nemo_lite.backends.pytorch.engine.averages import Averaging, estimate, mean_of_checkpoints
from nemo_lite.backends.pytorch.nm import TrainableNeuralModuleWrapper
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.core.callbacks.action_state import Best
from nemo_lite.core.run_options import Optimization

FLOAT32 = Precision(Optimization.mxprO0, torch.device("cpu"))


class Averaged(nemo.NeMoCallback):
    """What the net's state is in each step, inside the average at the end, and behind it."""

    def __init__(self, net, checkpoints=0, folder=""):
        self.net, self.checkpoints, self.folder = net, checkpoints, folder
        self.weights, self.words = [], ""
        self.averaged, self.before, self.behind = {}, {}, {}

    def state(self):
        return {name: value.clone() for name, value in self.net.state_dict().items()}

    def on_step_end(self, state):
        self.weights.append(self.net.fc.weight.detach().clone())

    def on_action_end(self, state):
        self.before = self.state()
        with state.averaging.applied(self.checkpoints, self.folder) as self.words:
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

    def __init__(self, net, path, checkpoints=0, folder=""):
        super().__init__(net, checkpoints, folder)
        self.path, self.masters, self.computed, self.file = path, [], {}, {}

    def on_step_end(self, state):
        self.masters.append(self.net.state_dict()["fc.weight"].clone())

    def on_action_end(self, state):
        self.before = self.state()
        computed_before = self.net.fc.weight.detach().clone()
        with state.averaging.applied(self.checkpoints, self.folder):
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


def test_the_best_checkpoints_are_averaged_by_the_rates_that_they_had(factory, tmp_path):
    net = Net()
    best = Best("dev", "wer", 2)
    saver = nemo.CheckpointCallback(
        tmp_path, step_freq=1, epoch_freq=-1, checkpoints_to_keep=1, best_of="dev", best_to_keep=2
    )
    x, y = Points()()
    given = iter([9.0, 0.3, 0.1, 0.5, 0.2, 0.4, 0.6])  # before the first step, and behind each
    rates = nemo.EvaluatorCallback(
        [Mse()(out=net(x=x), target=y)], lambda *_: None, lambda _: {"wer": next(given)}, eval_step=1, name="dev"
    )
    watch = Averaged(net, best, tmp_path)
    run(factory, rates, saver, watch, net=net)
    assert watch.words == "mean of the checkpoints of 2, 4 steps"
    torch.testing.assert_close(watch.averaged["fc.weight"], (watch.weights[1] + watch.weights[3]) / 2)


def test_averages_that_there_are_none_of_are_refused(factory, tmp_path):
    with pytest.raises(UsageError, match=r'there is no moving average of the weights; train with .*"ema_decay": 0.999'):
        run(factory, Averaged(net := Net()), net=net, steps=1)
    with pytest.raises(CheckpointError, match="there is no checkpoint to average"):
        run(factory, Averaged(net := Net(), 2, tmp_path), net=net, steps=2)
    with pytest.raises(UsageError, match=r"ema_decay is 1\.5, wanted float above 0, below 1 or null"):
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
    assert made.state_dict()["average"]["means"]["Net.fc.weight"].unique().tolist() == [3.0]


def averaging_of(*modules):
    comm = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)._comm
    return Averaging([*modules], 0.9, FLOAT32, comm, False, lambda next_batch: None)


def filled(name, value):
    net = Net(name=name)
    with torch.no_grad():
        net.fc.weight.fill_(value)
    return net


def test_the_averages_of_two_modules_of_equal_shapes_go_by_their_names_in_any_order():
    state = averaging_of(filled("one", 1.0), filled("two", 2.0)).state_dict()
    forget_names()
    turned = averaging_of(filled("two", 0.0), filled("one", 0.0))
    turned.load_state_dict(state)
    means = turned.state_dict()["average"]["means"]
    found = {name: value.unique().tolist() for name, value in means.items() if "weight" in name}
    assert found == {"two.fc.weight": [2.0], "one.fc.weight": [1.0]}
    forget_names()
    other = averaging_of(filled("one", 0.0), filled("three", 0.0))
    with pytest.raises(CheckpointError, match="x: the average of weights does not fit the weights"):
        other.load_state_dict(state, "x")


def test_a_damaged_checkpoint_is_told_and_not_averaged_and_the_ones_before_count_on(factory, tmp_path, caplog):
    class Damages(nemo.NeMoCallback):
        def on_action_end(self, state):
            for step, change in ((4, lambda raw: bytes([*raw[:-1], raw[-1] ^ 1])), (2, lambda raw: raw[:-1])):
                path = tmp_path / f"checkpoint-STEP-{step}/Net-STEP-{step}.safetensors"
                path.write_bytes(change(path.read_bytes()))

    net = Net()
    saver = nemo.CheckpointCallback(tmp_path, step_freq=1, epoch_freq=-1, checkpoints_to_keep=9)
    watch = Averaged(net, 4, tmp_path)
    run(factory, saver, Damages(), watch, net=net)
    assert watch.words == "mean of the checkpoints of 1, 3, 5, 6 steps"
    torch.testing.assert_close(watch.averaged["fc.weight"], sum(watch.weights[step - 1] for step in (1, 3, 5, 6)) / 4)
    told = [line for line in caplog.messages if "is damaged" in line]
    taking = "taking " + ", ".join(f"checkpoint-STEP-{step}" for step in (6, 5, 3, 1))
    assert told == [
        f"{tmp_path}/checkpoint-STEP-2 is damaged and not used: Net-STEP-2.safetensors has "
        f"{(size := (tmp_path / 'checkpoint-STEP-2/Net-STEP-2.safetensors').stat().st_size)} bytes, "
        f"{size + 1} were written; {taking}",
        f"{tmp_path}/checkpoint-STEP-4 is damaged and not used: Net-STEP-4.safetensors has changed "
        f"(SHA-256 differs); {taking}",
    ]
    for stored in CheckpointFolder(tmp_path).sets():
        (stored.path / f"Net-STEP-{stored.number}.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"every checkpoint is damaged: got checkpoint-STEP-\d: Net"):
        mean_of_checkpoints(tmp_path, {"Net": net}, 2)


class NamesOfOne(torch.nn.Module):
    """A user's own wrapper: its state_dict takes no arguments."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)

    def state_dict(self):  # type: ignore[override]
        return self.inner.state_dict()

    def load_state_dict(self, state, strict=True):  # type: ignore[override]
        self.inner.load_state_dict(state, strict)


class Own(NamesOfOne, nemo.TrainableNM):
    input_ports = {"x": BD}
    output_ports = {"out": BD}

    def __init__(self):
        nemo.TrainableNM.__init__(self)
        self.inner = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))


def wrapped():
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    return TrainableNeuralModuleWrapper(inner, {"x": BD}, {"out": BD})


@pytest.mark.parametrize(
    ("make", "level"), [(wrapped, "O0"), (wrapped, "O1"), (wrapped, "O2"), (wrapped, "O3"), (Own, "O0")]
)
def test_checkpoints_of_a_module_with_a_state_of_its_own_are_averaged_by_the_names_in_it(tmp_path, make, level):
    class Stored(nemo.NeMoCallback):
        def on_action_end(self, state):
            with state.averaging.applied(2, tmp_path):
                self.averaged = {name: value.clone() for name, value in net.state_dict().items()}

    net, watch = make(), Stored()
    saver = nemo.CheckpointCallback(tmp_path, step_freq=1)
    made = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, optimization_level=level, set_default=False)
    run(made, saver, watch, net=net)
    sets = [read_checkpoint(tmp_path, f"STEP-{step}").weights for step in (5, 6)]
    for name in ("0.weight", "0.bias", "1.weight", "1.bias"):
        values = [next(iter(weights.values()))[name] for weights in sets]
        mean = sum(value.float() for value in values) / 2
        tolerance = 0.01 if level == "O3" else 1e-6
        torch.testing.assert_close(watch.averaged[name].float(), mean, rtol=tolerance, atol=0.0, msg=name)
        assert not torch.equal(values[0], values[1])


def test_a_layer_that_a_batch_goes_through_twice_counts_each_call():
    once, twice = torch.nn.BatchNorm1d(1), torch.nn.BatchNorm1d(1)
    data = [torch.tensor([[float(number)], [number + 2.0]]) for number in range(10)]

    def go(next_batch):
        for number, x in enumerate(data):
            next_batch(True)
            once(x)
            twice(x)
            twice(x + 100)
            if number == 4:  # one that does not count is put back
                next_batch(False)
                before = once.running_mean.clone(), once.running_var.clone()
                once(x + 1000)
                once.running_mean, once.running_var = before

    estimate([once, twice], go)
    assert (once.running_mean.item(), twice.running_mean.item()) == pytest.approx((5.5, 55.5))
    assert (once.momentum, len(once._forward_pre_hooks)) == (0.1, 0)


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
