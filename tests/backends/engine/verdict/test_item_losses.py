"""Items with an infinite loss are left out of their step: the others train as if they had not been there."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from toys.device_verdict import use_device_verdict
from toys.fake_comm import FakeComm
from toys.host_reads import BetweenLoggingSteps
from toys.nets import BD, Net, Points, train
from toys.ranks import results_of

import nemo_lite as nemo
from nemo_lite.backends.pytorch.common import LossAggregatorNM
from nemo_lite.backends.pytorch.data.loaders import Batch
from nemo_lite.backends.pytorch.engine.batches import StepBatches
from nemo_lite.backends.pytorch.engine.verdict import ComputedStep
from nemo_lite.base.errors import NonFiniteLossError, UsageError
from nemo_lite.core.neural_types import LossType, NeuralType


class SquaredErrors(nemo.LossNM):
    """The squared error, infinite where the target is."""

    input_ports = {"out": BD, "target": BD}
    output_ports = {"loss": NeuralType(None, LossType())}
    when_infinite = "its target is out of reach"

    def _loss_function(self, out, target):
        error = (out - torch.where(target.isinf(), 0.0, target)).square()
        return self.mean_over_items(torch.where(target.isinf(), math.inf, error)[:, 0])


class ErrorsByCount(SquaredErrors):
    """The sum of the squared errors divided by that of the targets' whole parts; infinite where the target is."""

    def _loss_function(self, out, target):
        is_finite = target.isfinite()
        target = torch.where(is_finite, target, 1.0)
        losses = torch.where(is_finite, (out - target).square(), math.inf)
        return self.mean_over_items(losses[:, 0], target[:, 0].ceil())


class SumOfErrors(SquaredErrors):
    """The sum of the squared errors, infinite where the target is."""

    def _loss_function(self, out, target):
        error = (out - torch.where(target.isinf(), 0.0, target)).square()
        return 0.01 * self.sum_over_items(torch.where(target.isinf(), math.inf, error)[:, 0])


class OutOfReach(Points):
    """24 points in batches of 4; those at some positions have an infinite target, or one that is no number."""

    def __init__(self, *infinite, nan=(), batch_size=4):
        super().__init__(n=24, batch_size=batch_size)
        self.y[list(infinite)], self.y[list(nan)] = math.inf, math.nan


class Without(Points):
    """The same batches without some of their items; a batch of which nothing is left does not come."""

    def __init__(self, *missing):
        super().__init__(n=24, batch_size=4)
        self._missing = set(missing)

    @property
    def dataset(self):
        return None

    @property
    def data_iterator(self):
        rows = ([i for i in range(first, first + 4) if i not in self._missing] for first in range(0, 24, 4))
        return ((self.x[own], self.y[own]) for own in rows if own)


def built(data, made=SquaredErrors):
    net = Net()
    x, y = data()
    return net, made()(out=net(x=x), target=y)


def untouched():
    return [value for weight in Net().state_dict().values() for value in weight.flatten().tolist()]


def weights_after(factory, data, num_steps=None, **kwargs):
    net, loss = built(data, kwargs.pop("made", SquaredErrors))
    params = {"num_epochs": None if num_steps else 2, "max_steps": num_steps}
    train(factory, [loss], params={**params, "grad_norm_clip": kwargs.pop("clip", None)}, **kwargs)
    return [value for weight in net.state_dict().values() for value in weight.flatten().tolist()]


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("kwargs", [{}, {"clip": 0.05}, {"batches_per_step": 2}, {"batches_per_step": 3, "clip": 0.05}])
def test_the_rest_of_the_batch_trains_as_if_the_item_had_not_been_there(factory, monkeypatch, on_device, kwargs):
    if on_device:
        use_device_verdict(monkeypatch)
    expected = weights_after(factory, Without(5, 9, 10), **dict(kwargs))
    assert weights_after(factory, OutOfReach(5, 9, 10), **kwargs) == pytest.approx(expected, rel=1e-5)
    assert expected != pytest.approx(untouched(), rel=1e-3)


def test_a_batch_of_which_nothing_is_left_gives_its_place_to_the_others_of_its_step(factory):
    class TwoAtATime(Without):
        @property
        def data_iterator(self):
            rows = ([0, 1, 2, 3], range(8, 16), range(16, 24))
            return ((self.x[list(own)], self.y[list(own)]) for own in rows)

    expected = weights_after(factory, TwoAtATime())
    found = weights_after(factory, OutOfReach(4, 5, 6, 7), batches_per_step=2)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("on_device", [False, True])
def test_left_out_items_are_named_once_exactly_with_the_reason_and_counted(factory, monkeypatch, capsys, on_device):
    if on_device:
        use_device_verdict(monkeypatch)
    weights_after(factory, OutOfReach(5, 9, 10))
    told = capsys.readouterr().err
    reason = "its loss is infinite (its target is out of reach)"
    assert f"points[5]: {reason}; step 1 leaves it out" in told
    assert f"points[10]: {reason}; step 2 leaves it out" in told
    assert told.count("points[") == 3
    assert "6 times an item was left out of its step, because its loss was infinite (3 different items)" in told
    assert "skipped" not in told


def test_a_reason_that_several_losses_have_is_told_once(factory, capsys):
    x, y = OutOfReach(5)()
    out = Net()(x=x)
    losses = {f"loss_{number}": SquaredErrors()(out=out, target=y) for number in (1, 2)}
    train(factory, [LossAggregatorNM(num_inputs=2)(**losses)], params={"num_epochs": 1})
    told = capsys.readouterr().err
    assert "points[5]: its loss is infinite (its target is out of reach); step 1 leaves it out" in told


@pytest.mark.parametrize("on_device", [False, True])
def test_a_step_that_is_skipped_names_the_items_that_are_at_fault_and_no_others(
    factory, monkeypatch, capsys, on_device
):
    if on_device:
        use_device_verdict(monkeypatch)
    weights_after(factory, OutOfReach(4, 12, 13, 14, 15, nan=(5,)))
    told = capsys.readouterr().err
    assert "the loss of step 1 is not finite; points[5]; the step is skipped" in told
    assert "the loss of step 3 is not finite; points[12], points[13], points[14], points[15]; the step" in told
    with pytest.raises(NonFiniteLossError, match=r"step 1 is not finite; points\[5\], points\[6\]"):
        weights_after(factory, OutOfReach(4, nan=(5, 6)), stop_on_nan_loss=True)


@pytest.mark.parametrize("on_device", [False, True])
def test_a_step_of_several_batches_of_which_nothing_is_left_changes_no_weights(factory, monkeypatch, capsys, on_device):
    if on_device:
        use_device_verdict(monkeypatch)
    found = weights_after(factory, OutOfReach(*range(8)), num_steps=1, batches_per_step=2, optimizer="adam")
    assert found == untouched()
    assert "the loss of step 0 is not finite; points[0], " in capsys.readouterr().err


def test_items_that_are_only_counted_after_the_first_twenty(factory, capsys):
    data = OutOfReach(*(i for i in range(24) if i % 8))
    data.batch_size = 8
    weights_after(factory, data)
    told = capsys.readouterr().err
    assert told.count("its loss is infinite") == 20
    assert "step 2 leaves it out; further ones are only counted" in told
    assert "42 times an item was left out of its step, because its loss was infinite (21 different items)" in told


def test_nothing_is_read_back_from_the_device_in_a_step(monkeypatch):
    use_device_verdict(monkeypatch)
    for kwargs in ({}, {"batches_per_step": 2}):
        watch = BetweenLoggingSteps(last=2)
        factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
        _, loss = built(OutOfReach())
        train(factory, [loss], watch, params={"max_steps": 3}, **kwargs)
        assert watch.reads.found == []


def test_where_nothing_is_left_out_weights_are_to_the_bit_those_of_the_plain_mean(factory):
    class PlainMean(SquaredErrors):
        def _loss_function(self, out, target):
            return nn.functional.mse_loss(out, target)

    def weights(made):
        net, data = Net(), Points(n=22, batch_size=4)
        x, y = data()
        train(factory, [made()(out=net(x=x), target=y)], params={"num_epochs": 3}, batches_per_step=2)
        return net.state_dict()

    one, other = weights(SquaredErrors), weights(PlainMean)
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_zero_weight_batches_and_values_of_other_shapes_count_nothing():
    loss = SquaredErrors()
    loss.item_losses = []
    objective: Any = SimpleNamespace(loss_modules=[loss])
    items = ComputedStep(0, objective, StepBatches(num_items=2, world_size=2), str)
    for factor, told in ((1.0, [1.0, math.inf]), (0.0, [math.inf, math.inf]), (1.0, [1.0, 2.0, math.inf])):
        items.begin_batch()
        loss.mean_over_items(torch.tensor(told))
        items.weighted(Batch((torch.zeros(2),)), torch.tensor(1.0), factor)
    comm = FakeComm(world_size=2)
    items.correction(comm)
    assert items.num_left_out is not None
    assert items.num_left_out.item() == 2.0  # one of ours, one of the other rank's
    assert items.statuses[2] is None


def _on_a_rank(*infinite):
    made = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=5)
    return weights_after(made, OutOfReach(*infinite))


def test_ranks_divide_by_what_is_left_on_all_of_them(factory):
    class BothRanks(Without):
        @property
        def data_iterator(self):
            rows = ([i for i in range(first, first + 8) if i not in self._missing] for first in range(0, 24, 8))
            return ((self.x[own], self.y[own]) for own in rows)

    missing = (1, 8, 9, 10, 11, 21)
    expected = weights_after(factory, BothRanks(*missing))
    first, second = results_of(2, _on_a_rank, *missing)
    assert first == second
    assert first == pytest.approx(expected, rel=1e-5)


def _on_a_rank_by(made, *infinite):
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=5)
    return weights_after(factory, OutOfReach(*infinite), made=made)


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("made", [ErrorsByCount, SumOfErrors])
def test_other_reductions_are_over_all_micro_batches_of_a_step(factory, monkeypatch, made, on_device):
    if on_device:
        use_device_verdict(monkeypatch)
    expected = weights_after(factory, OutOfReach(5, 9, 10, 16, 17, 18, 19, batch_size=8), made=made)
    found = weights_after(factory, OutOfReach(5, 9, 10, 16, 17, 18, 19), made=made, batches_per_step=2)
    assert found == pytest.approx(expected, rel=1e-5)
    assert expected != pytest.approx(untouched(), rel=1e-3)
    mean = weights_after(factory, OutOfReach(5, 9, 10, 16, 17, 18, 19, batch_size=8))
    assert expected != pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize("made", [ErrorsByCount, SumOfErrors])
def test_other_reductions_are_over_all_ranks(factory, made):
    expected = weights_after(factory, OutOfReach(1, 8, 9, 10, 11, 21, batch_size=8), made=made)
    first, second = results_of(2, _on_a_rank_by, made, 1, 8, 9, 10, 11, 21)
    assert first == second
    assert first == pytest.approx(expected, rel=1e-5)


def test_losses_of_different_reductions_in_steps_of_several_batches_are_refused(factory):
    net = Net()
    x, y = OutOfReach()()
    out = net(x=x)
    losses = [SquaredErrors(name="by_item")(out=out, target=y), ErrorsByCount(name="by_count")(out=out, target=y)]
    train(factory, losses, params={"max_steps": 1})
    with pytest.raises(UsageError, match=r"^by_item, by_count: losses .* different ways.* the same reduction$"):
        train(factory, losses, params={"max_steps": 1}, batches_per_step=2)
