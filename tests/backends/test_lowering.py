"""Lowering: a DAG becomes a readable fx module that shares the user's objects and lets intermediates go."""

import gc
import weakref

import pytest
import torch
from torch import fx, nn

from nemo_lite.backends.pytorch.lowering import lower
from nemo_lite.backends.pytorch.nm import DataLayerNM, TrainableNM
from nemo_lite.base.errors import DagError, NeuralPortNameMismatchError
from nemo_lite.compat.tutorials import MSELoss, RealFunctionDataLayer, TaylorNet
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_types import ChannelType, NeuralType

BD = NeuralType("B D", ChannelType())


class Linear(TrainableNM):
    input_ports = {"x": BD}
    output_ports = {"y": BD}

    def __init__(self, name=None):
        super().__init__(name=name)
        self.fc = nn.Linear(1, 1)

    def forward(self, x):
        return self.fc(x)


class Split(TrainableNM):
    input_ports = {"x": BD}
    output_ports = {"low": BD, "high": BD}
    outputs = 2

    def forward(self, x):
        return (x - 1, x + 1, x + 2)[: self.outputs]


@pytest.fixture
def wires():
    return RealFunctionDataLayer(batch_size=4, n=16)()


def test_the_lowered_module_computes_what_the_modules_compute_by_hand(wires):
    net, loss = TaylorNet(dim=3), MSELoss()
    lowered = lower(Dag([loss(predictions=net(x=wires.x), target=wires.y)]).slice())
    x, y = torch.rand(4, 1), torch.rand(4, 1)
    assert isinstance(lowered, fx.GraphModule)
    assert torch.equal(lowered(x, y)[0], loss(predictions=net(x=x), target=y))


def test_the_submodules_are_the_users_own_objects_and_keep_their_state_keys(wires):
    net = TaylorNet(dim=3)
    lowered = lower(Dag([net(x=wires.x)]).slice())
    assert lowered.taylor_net is net
    assert list(lowered.state_dict()) == ["taylor_net.fc1.weight", "taylor_net.fc1.bias"]


def test_the_code_reads_as_a_script(wires):
    first, second = Linear(name="first"), Linear(name="second")
    code = lower(Dag([second(x=first(x=wires.x))]).slice()).code
    assert "first = self.first(x = x)" in code
    assert "second = self.second(x = first);  first = None" in code


def test_a_module_called_twice_is_one_submodule(wires):
    shared = Linear()
    lowered = lower(Dag([shared(x=shared(x=wires.x))]).slice())
    assert len(list(lowered.parameters())) == 2
    x = torch.rand(3, 1)
    assert torch.equal(lowered(x, x)[0], shared(x=shared(x=x)))


def test_several_outputs_are_unpacked_in_port_order(wires):
    low, high = Split()(x=wires.x)
    lowered = lower(Dag([high, low]).slice())
    x = torch.zeros(2, 1)
    high_value, low_value = lowered(x, x)
    assert high_value.tolist() == [[1.0], [1.0]]
    assert low_value.tolist() == [[-1.0], [-1.0]]


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_module_that_returns_fewer_or_more_outputs_than_its_ports_is_refused_by_name(wires, outputs):
    split = Split(name="splitter")
    split.outputs = outputs
    lowered = lower(Dag([split(x=wires.x).low]).slice())
    with pytest.raises(
        NeuralPortNameMismatchError, match=rf"splitter: .* got {outputs} outputs, wanted 2 \(low, high\)"
    ):
        lowered(torch.zeros(2, 1), torch.zeros(2, 1))


def test_an_intermediate_is_freed_as_soon_as_its_last_reader_has_run(wires):
    alive = []

    class Watch(Linear):
        def forward(self, x):
            out = super().forward(x)
            alive.append(weakref.ref(out))
            return out

    class Count(Linear):
        def forward(self, x):
            gc.collect()
            self.count = sum(ref() is not None for ref in alive)
            return super().forward(x)

    count = Count()
    wire = wires.x
    for _ in range(4):
        wire = Watch()(x=wire)
    lowered = lower(Dag([count(x=wire)]).slice())
    with torch.no_grad():
        lowered(torch.zeros(2, 1), torch.zeros(2, 1))
    assert count.count == 1  # only its own input


def test_a_module_that_is_not_torch_is_refused_by_name(wires):
    from nemo_lite.core.neural_module import NeuralModule

    class Plain(NeuralModule):
        input_ports = {"x": BD}
        output_ports = {"y": BD}

        def forward(self, x):
            return x

    with pytest.raises(DagError, match=r"plain \(Plain\) does not run on torch; derive it from TrainableNM"):
        lower(Dag([Plain().connect(x=wires.x)]).slice())


def test_the_order_of_the_inputs_is_that_of_the_data_layers_ports():
    class Three(DataLayerNM):
        output_ports = {"a": BD, "b": BD, "c": BD}

        def __len__(self):
            return 1

    a, b, c = Three()()
    del b
    lowered = lower(Dag([Linear()(x=c), a]).slice())
    assert [node.name for node in lowered.graph.nodes if node.op == "placeholder"] == ["a", "b", "c"]
