"""What train() and the factory refuse, and what a step or a run that went wrong leaves behind."""

import math
import re

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from toys.nets import BD, Mse, Net, Points, Record, build, train

import nemo_lite as nemo
from nemo_lite.backends.pytorch.engine.step_values import StepValues
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.core.graph.dag import Dag
from nemo_lite.errors import CheckpointError, UsageError


@pytest.fixture
def factory():
    return nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"num_epochs": "3"}, "num_epochs must be a whole number, at least 1: got '3'"),
        ({"num_epochs": 1.5}, "num_epochs must be a whole number, at least 1: got 1.5"),
        ({"max_steps": 0}, "max_steps must be a whole number, at least 1: got 0"),
        ({"num_epochs": 1, "grad_norm_clip": -1.0}, "grad_norm_clip must be a number above 0: got -1.0"),
        ({"num_epochs": 1, "grad_norm_clip": "1"}, "grad_norm_clip must be a number above 0: got '1'"),
    ],
)
def test_numbers_that_cannot_be_are_refused(factory, params, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        train(factory, [build()[1]], params=params)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batches_per_step": 0}, "batches_per_step must be a whole number, at least 1: got 0"),
        ({"callbacks": Record()}, "callbacks must be a list: got Record; put brackets around it"),
        ({"lr_policy": "CosineAnnealing"}, "lr_policy must be a policy .* got 'CosineAnnealing'; make an object"),
        ({"lr_policy": nemo.utils.lr_policies.CosineAnnealing}, "got CosineAnnealing; make an object of the class"),
    ],
)
def test_arguments_of_another_kind_are_refused(factory, arguments, message):
    params = {"num_epochs": 1, "lr": 0.1}
    with pytest.raises(UsageError, match=message):
        factory.train([build()[1]], optimizer="sgd", optimization_params=params, **arguments)


def test_one_loss_without_a_list_is_refused(factory):
    with pytest.raises(UsageError, match="tensors_to_optimize must be a list: got NmTensor; put brackets around it"):
        factory.train(build()[1], optimizer="sgd", optimization_params={"num_epochs": 1, "lr": 0.1})


def test_one_evaluator_without_a_list_is_refused(factory):
    evaluator = nemo.EvaluatorCallback(build()[1], lambda values, collected: None, lambda collected: None)
    with pytest.raises(UsageError, match="callbacks must be a list: got EvaluatorCallback"):
        factory.eval(evaluator)


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


@pytest.mark.parametrize("params", [{"num_epochs": 2}, {"max_steps": 2}])
def test_an_epoch_without_a_batch_is_an_error_and_not_a_run_without_end(factory, params):
    with pytest.raises(UsageError, match="the data layer gave no batch in epoch 0; it has no items"):
        train(factory, [build(Points(n=0))[1]], params=params)


def test_things_to_optimize_are_modules_or_wires_in_a_list(factory):
    net, _ = build()
    for things, got in ((net, "Net"), ([net, "head"], "Net, str"), (net.parameters(), "generator")):
        with pytest.raises(UsageError, match=f"things_to_optimize must be a list of modules or wires: got {got}"):
            factory.create_optimizer("adam", things, {"lr": 0.1})


class UsedUp(Points):
    """A data layer whose iterator serves for one epoch only."""

    dataset = None

    def __init__(self):
        super().__init__()
        self.iterator = iter([(self.x, self.y)])

    @property
    def data_iterator(self):
        return self.iterator


def test_an_iterator_that_is_used_up_after_its_first_epoch_is_told(factory):
    with pytest.raises(UsageError, match=r"gave no batch in epoch 1; .* data_iterator must give a new one for each"):
        train(factory, [build(UsedUp())[1]])


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


def test_a_finished_run_that_is_started_again_trains_no_further(factory, tmp_path):
    net, loss = build()

    def checkpoints():
        return nemo.CheckpointCallback(tmp_path, step_freq=3)  # three steps are an epoch: saved by the last of them

    train(factory, [loss], checkpoints())
    weight, record = net.fc.weight.detach().clone(), Record()
    factory.train(
        [loss],
        optimizer="sgd",
        callbacks=[record, checkpoints()],
        optimization_params={"lr": 0.1, "momentum": 0.0, "num_epochs": 2},
    )
    assert record.events == ["action_start", "action_end"]
    assert torch.equal(net.fc.weight, weight)


def two_of_one_name():
    x, y = Points()()
    first, second = Net(), Net()
    second.fc = nn.Linear(1, 1)
    return Mse()(out=second(x=first(x=x)), target=y)


def test_modules_that_cannot_be_saved_side_by_side_are_told_before_the_first_step(factory, tmp_path):
    record = Record()
    callbacks = [record, nemo.CheckpointCallback(tmp_path, step_freq=100)]
    with pytest.raises(CheckpointError, match='two modules would be saved as "Net"; give each its own name='):
        factory.train(
            [two_of_one_name()], optimizer="sgd", callbacks=callbacks, optimization_params={"max_steps": 9, "lr": 0.1}
        )
    assert record.events == ["action_start"]


def test_a_checkpoint_folder_that_cannot_be_written_is_told_before_the_first_step(factory, tmp_path):
    (tmp_path / "file").touch()
    record = Record()
    callbacks = [record, nemo.CheckpointCallback(tmp_path / "file" / "folder", step_freq=100)]
    with pytest.raises(UsageError, match="file"):
        factory.train(
            [build()[1]], optimizer="sgd", callbacks=callbacks, optimization_params={"max_steps": 9, "lr": 0.1}
        )
    assert record.events == ["action_start"]


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"placement": "CPU"}, "placement must be a DeviceType: got 'CPU', wanted DeviceType.GPU, DeviceType.CPU"),
        ({"random_seed": "a"}, "random_seed must be a whole number, at least 0: got 'a'"),
        ({"random_seed": -1}, "random_seed must be a whole number, at least 0: got -1"),
    ],
)
def test_arguments_of_the_factory_of_another_kind_are_refused(arguments, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        nemo.NeuralModuleFactory(set_default=False, **{"placement": nemo.DeviceType.CPU, **arguments})
