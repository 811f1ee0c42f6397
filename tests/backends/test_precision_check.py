"""The precision check: each node of a DAG beside itself in float32."""

from __future__ import annotations

import math

import pytest
import torch
from toys.names import forget_names
from toys.nets import BD, Mse, Net, Points, train

import nemo_lite as nemo
from nemo_lite.base.errors import UsageError


def factory(level, **options):
    return nemo.NeuralModuleFactory(
        placement=nemo.DeviceType.CPU, random_seed=1, optimization_level=level, set_default=False, **options
    )


class Twice(nemo.NonTrainableNM):
    """Gives integers beside floats, and no weights."""

    input_ports = {"x": BD}
    output_ports = {"doubled": BD, "counts": BD}

    def forward(self, x):
        return x * 2, torch.ones(x.shape, dtype=torch.int64)


class OfIntegers(nemo.NonTrainableNM):
    input_ports = {"counts": BD}
    output_ports = {"sums": BD}

    def forward(self, counts):
        return counts.sum(1)


def wired(net, data=None):
    x, y = (data or Points())()
    forget_names()
    doubled, counts = Twice(name="twice")(x=x)
    loss = Mse(name="mse")(out=net(x=doubled), target=y)
    return loss, OfIntegers(name="of_integers")(counts=counts)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_the_report_says_of_each_node_its_type_its_error_and_its_range(level):
    net = Net(norm=True, name="net")
    before = {name: value.clone() for name, value in net.state_dict().items()}
    report = factory(level).precision_check(wired(net), 2)
    by_name = {node.name: node for node in report.nodes}
    twice, of_net, mse, integers = (by_name[name] for name in ("twice", "net", "mse", "of_integers"))
    assert (report.num_batches, report.about.partition(":")[0]) == (2, level)
    assert (twice.dtypes, twice.error, twice.is_finite) == (("float32",), 0.0, True)
    assert "bfloat16" in of_net.dtypes
    assert 1e-4 < of_net.relative_error < 2e-2
    assert of_net.error == pytest.approx(of_net.relative_error * of_net.largest, rel=0.05)
    assert 0 < of_net.smallest < of_net.largest
    assert mse.dtypes == ("float32",)
    assert (integers.dtypes, integers.error) == ((), 0.0)
    for name, value in net.state_dict().items():  # nothing was trained, and nothing moved
        assert torch.equal(value, before[name])
        assert value.dtype == before[name].dtype
    assert net.training


def test_a_node_that_hands_on_what_it_gets_has_its_type():
    class Identity(nemo.NonTrainableNM):
        input_ports = {"x": BD}
        output_ports = {"same": BD}

        def forward(self, x):
            return x

    x, _ = Points()()
    first, second = factory("O3").precision_check([Identity()(x=Net()(x=x))], 1).nodes
    assert (first.dtypes, second.dtypes) == (("bfloat16",), ("bfloat16",))


def test_the_numbers_are_those_of_the_two_runs():
    class Third(nemo.TrainableNM):
        input_ports = {"x": BD}
        output_ports = {"out": BD}

        def __init__(self):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.tensor([1 / 3]))

        def forward(self, x):
            return x * self.factor

    x, _ = Points(n=4, batch_size=2)()
    (node,) = factory("O3").precision_check([Third()(x=x)], 2).nodes
    inputs = Points(n=4).x
    exact = inputs * torch.tensor(1 / 3)
    half = (inputs.bfloat16() * torch.tensor(1 / 3).bfloat16()).double()
    assert node.error == pytest.approx((half - exact.double()).abs().max().item())
    assert node.relative_error == pytest.approx(node.error / exact.abs().max().item())
    assert (node.smallest, node.largest) == (half.abs().min().item(), half.abs().max().item())


def test_a_value_that_a_half_cannot_hold_is_told():
    class Overflows(nemo.TrainableNM):
        input_ports = {"x": BD}
        output_ports = {"out": BD}

        def __init__(self):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.tensor([3.4e38]))

        def forward(self, x):
            return x / x * self.factor  # the nearest bfloat16 of the factor is infinite

    x, _ = Points()()
    report = factory("O3").precision_check([Overflows()(x=x)], 1)
    assert not report.nodes[0].is_finite
    assert math.isinf(report.nodes[0].largest)
    assert "not finite" in report.as_text()


def test_weights_can_come_from_a_checkpoint(tmp_path):
    first = factory("O2")
    net = Net(name="net")
    train(first, [wired(net)[0]], lr=0.5)
    first.train(
        [wired(net)[0]],
        optimizer="sgd",
        optimization_params={"lr": 0.5, "max_steps": 1},
        callbacks=[nemo.CheckpointCallback(tmp_path, step_freq=1)],
    )
    trained = first.precision_check([wired(net)[0]], 1)
    other = Net(name="net")
    torch.nn.init.zeros_(other.fc.weight)
    loaded = factory("O2").precision_check([wired(other)[0]], 1, checkpoint_dir=tmp_path)
    assert [node.largest for node in loaded.nodes] == [node.largest for node in trained.nodes]


def test_float32_has_nothing_to_compare_and_no_batch_nothing_to_run():
    with pytest.raises(UsageError, match="compares a level with float32: got O0, which is float32; take O1, O2 or O3"):
        factory("O0").precision_check(wired(Net()), 1)
    with pytest.raises(UsageError, match="precision_check: points gives no batch to check"):
        factory("O1").precision_check(wired(Net(), Points(n=0)), 1)
