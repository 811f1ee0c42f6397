"""Objectives with data, optimizer and turn of their own: several tasks and a GAN train, and resume to the bit."""

import pytest
import torch
from torch import nn
from toys.names import forget_names
from toys.nets import BD, Mse, Net, Points, Record
from toys.rank_training import rank_factory
from toys.ranks import results_of

import nemo_lite as nemo
from nemo_lite.backends.pytorch.data.loaders import Loaded, UnusableItems
from nemo_lite.base.errors import CheckpointError, UsageError


class Head(nemo.TrainableNM):
    input_ports = {"out": BD}
    output_ports = {"out": BD}

    def __init__(self, name):
        super().__init__(name=name)
        torch.manual_seed(1)
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(1, 1)

    def forward(self, out):
        return self.fc(self.drop(out))


def two_tasks(every=2, second=None, **settings):
    """A net that two tasks share, a head for each, and data layers of different lengths."""
    forget_names()
    net = Net(name="net")
    first, second = Points(n=12, batch_size=2, shuffle=True), second or Points(n=10, batch_size=4, shuffle=True)
    second.label = "second"
    heads, losses = [Head("one"), Head("two")], []
    for data, head in zip((first, second), heads, strict=True):
        x, y = data()
        losses.append(Mse()(out=head(out=net(x=x)), target=y))
    objectives = [
        nemo.Objective([losses[0]], optimizer="adam", lr=0.05, batches=2),
        nemo.Objective([losses[1]], every=every, **settings),
    ]
    return objectives, losses, [net, *heads]


class Turns(nemo.NeMoCallback):
    """The losses of each step, by task."""

    def __init__(self, losses):
        self.wires, self.seen, self.latest = losses, [], []

    def wanted_wires(self):
        return self.wires

    def on_step_end(self, state):
        self.latest.append(state["tensors"].get_tensor("loss").item())
        self.seen.append(state["tensors"].get_tensor(self.wires[0]).item())


def multi_task(folder, steps, made=None):
    objectives, losses, modules = two_tasks()
    turns = Turns(losses)
    made = made or nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=3)
    callbacks = [turns, nemo.CheckpointCallback(folder, step_freq=10**6)]
    made.train(objectives, "sgd", {"lr": 0.1, "max_steps": steps}, callbacks)
    weights = [value.tolist() for module in modules for value in module.state_dict().values()]
    return turns, weights, [type(optimizer).__name__ for optimizer in made.get_trainer().optimizers]


@pytest.mark.parametrize("cut", [1, 4, 6, 7])
def test_two_tasks_with_two_data_layers_are_resumed_to_the_bit(tmp_path, cut):
    whole, weights, optimizers = multi_task(tmp_path / "whole", 11)
    assert len(optimizers) == 2
    head, _, _ = multi_task(tmp_path / "parts", cut)
    rest, resumed, _ = multi_task(tmp_path / "parts", 11)
    assert head.latest + rest.latest == whole.latest
    assert resumed == weights


def test_an_objective_is_updated_in_its_turn_and_the_loss_is_that_of_the_last(factory):
    objectives, losses, (_, one, two) = two_tasks(every=3)
    updates = []

    class Watch(nemo.NeMoCallback):
        def on_step_start(self, state):
            self.before = one.fc.weight.clone(), two.fc.weight.clone()

        def on_step_end(self, state):
            changed = [not torch.equal(a, b) for a, b in zip(self.before, (one.fc.weight, two.fc.weight), strict=True)]
            updates.append(changed)

    turns, record = Turns(losses), Record()
    factory.train(objectives, "sgd", {"lr": 0.1, "max_steps": 6}, [turns, record, Watch()])
    assert updates == 2 * [[True, False], [True, False], [True, True]]
    is_of_first = [loss == first for loss, first in zip(turns.latest, turns.seen, strict=True)]
    assert is_of_first == 2 * [True, True, False]
    # Two micro-batches of the first objective a step, and one of the second in its turn.
    assert record.events[: record.events.index("step_end 2")].count("batch_end") == 7


def test_each_objective_has_its_own_optimizer_and_rate(factory):
    objectives, _, _ = two_tasks(optimizer="novograd", lr=0.02)
    factory.train(objectives, optimization_params={"lr": 0.1, "max_steps": 2})
    first, second = factory.get_trainer().optimizers
    assert (type(second).__name__, first.param_groups[0]["lr"], second.param_groups[0]["lr"]) == (
        "Novograd",
        0.05,
        0.02,
    )


class Critic(nemo.LossNM):
    """How far the scores of fakes are from a target; of real values too, where they are connected."""

    input_ports = {"fake": BD, "real": BD}
    output_ports = {"loss": Mse.output_ports["loss"]}

    def _loss_function(self, fake, real):
        return fake.square().mean() + (real - 1).square().mean()


class Fooled(nemo.LossNM):
    input_ports = {"fake": BD}
    output_ports = {"loss": Mse.output_ports["loss"]}

    def _loss_function(self, fake):
        return (fake - 1).square().mean()


def gan(folder, steps):
    forget_names()
    noise, real = Points(n=8, batch_size=2, shuffle=True), Points(n=12, batch_size=2, shuffle=True)
    real.label = "real"
    generator, critic = Net(name="generator"), Head("critic")
    x, y = real()
    told_apart = Critic()(fake=critic(out=generator(x=x)), real=critic(out=y))
    fooled = Fooled()(fake=critic(out=generator(x=noise()[0])))
    made = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=4)
    objectives = [
        nemo.Objective([told_apart], optimizer="adam", modules=[critic]),
        nemo.Objective([fooled], optimizer="adam", modules=[generator], every=2),
    ]
    record, frozen = Record(), []

    class Watch(nemo.NeMoCallback):
        def on_step_start(self, state):
            self.before = generator.fc.weight.clone()

        def on_step_end(self, state):
            frozen.append(torch.equal(self.before, generator.fc.weight))

    callbacks = [record, Watch(), nemo.CheckpointCallback(folder, step_freq=10**6)]
    made.train(objectives, optimization_params={"lr": 0.02, "max_steps": steps}, callbacks=callbacks)
    weights = [value.tolist() for module in (generator, critic) for value in module.state_dict().values()]
    return record.losses, frozen, weights


def test_a_gan_takes_turns_and_is_resumed_to_the_bit(tmp_path):
    losses, frozen, weights = gan(tmp_path / "whole", 9)
    assert frozen == [step % 2 == 0 for step in range(9)]
    first, _, _ = gan(tmp_path / "parts", 5)
    second, _, resumed = gan(tmp_path / "parts", 9)
    assert (first + second, resumed) == (losses, weights)


class Faulty(Points):
    """Notes an item as unusable when its loader is made."""

    def __init__(self, bad=None):
        super().__init__(n=10, batch_size=4)
        self.bad = bad

    def loader(self, *, training, shard):
        loader = super().loader(training=training, shard=shard)
        self.account = loader.account = UnusableItems("second", 9, lambda item: f"second:{item}")
        self.account.note(Loaded(faults=[] if self.bad is None else [(self.bad, "it is bad")]))
        return loader


def test_what_is_unusable_of_a_second_data_layer_is_told_at_the_end_and_known_to_a_resumed_run(tmp_path, caplog):
    def run(steps, data):
        made = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=3)
        callbacks = [nemo.CheckpointCallback(tmp_path, step_freq=10**6)]
        made.train(two_tasks(second=data)[0], "sgd", {"lr": 0.1, "max_steps": steps}, callbacks)
        told = [line for line in caplog.messages if "skipped so far" in line]
        caplog.clear()
        return data.account.faults, told

    assert run(2, Faulty(bad=7)) == (
        {7: "second:7: it is bad"},
        ["second: 1 item skipped so far (max_corrupt 9):\n  second:7: it is bad"],
    )
    assert run(4, Faulty()) == ({7: "second:7: it is bad"}, [])


def on_a_rank(folder, steps):
    turns, weights, _ = multi_task(folder, steps, rank_factory())
    return turns.latest, weights


def test_two_ranks_have_equal_weights_and_resume(tmp_path):
    (whole, weights), (_, others) = results_of(2, on_a_rank, tmp_path / "whole", 6)
    assert weights == others
    (head, _), _ = results_of(2, on_a_rank, tmp_path / "parts", 3)
    (rest, resumed), _ = results_of(2, on_a_rank, tmp_path / "parts", 6)
    assert (head + rest, resumed) == (whole, weights)


def test_what_does_not_go_with_objectives_is_refused(factory, tmp_path):
    objectives, losses, _ = two_tasks()
    with pytest.raises(UsageError, match=r"Objective: losses must be a list of wires: got NmTensor"):
        nemo.Objective(losses[0])
    with pytest.raises(UsageError, match=r"Objective\.every is 0, wanted int from 1 on"):
        nemo.Objective(losses, every=0)
    with pytest.raises(UsageError, match="an optimizer is missing"):
        factory.train(objectives, optimization_params={"max_steps": 1, "lr": 0.1})
    with pytest.raises(UsageError, match=r"the first objective is updated at each step.*got every=2"):
        factory.train(objectives[::-1], "sgd", {"max_steps": 1, "lr": 0.1})
    multi_task(tmp_path, 2)
    alone = two_tasks()[0][:1]
    with pytest.raises(CheckpointError, match="the optimizers differ"):
        factory.train(alone, "sgd", {"lr": 0.1, "max_steps": 3}, [nemo.CheckpointCallback(tmp_path, step_freq=1)])
