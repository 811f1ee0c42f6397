"""Memory of a training step, counted by shapes: what is held, for how long, and that nothing is computed or changed."""

import pytest
import torch
from toys.nets import BD, Mse, Points

import nemo_lite as nemo
from nemo_lite.backends.pytorch.engine.step_memory import ManyOperatorsError, state_bytes

SIZE, LAYERS = 1 << 16, 6


class Chain(nemo.TrainableNM):
    """A weight for each column, and functions that keep their outputs for the backward pass."""

    input_ports = {"x": BD}
    output_ports = {"out": BD}

    def __init__(self, size=SIZE, reads=False):
        super().__init__()
        self.scale, self.reads = torch.nn.Parameter(torch.ones(size)), reads
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.reads and float(x.sum()) > 0:
            x = 2 * x
        self.seen += x.mean()
        x = x * self.scale
        for _ in range(LAYERS):
            x = x.tanh()
        return x


def memory_of(num_items, net=None, optimizer="adam", factory=None, size=SIZE, most=None):
    x, y = Points()()
    loss = Mse()(out=(net or Chain(size))(x=x), target=y)
    made = factory or nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
    batch = [torch.empty(num_items, size, device="meta"), torch.empty(num_items, size, device="meta")]
    return made.step_memory([loss], batch, optimizer, {"lr": 0.1}, most)


def test_outputs_that_the_backward_pass_needs_are_held_until_then():
    row, rows = 4 * SIZE, 8
    memory = memory_of(rows)
    assert memory.weights == row + 4
    assert memory.optimizer == pytest.approx(2 * row, rel=1e-3)
    # The batch, the product and the outputs; on top the gradients of the way back, two at a time, and the weight's.
    held = 2 + 1 + LAYERS
    assert held * rows * row < memory.passes < (held + 2.2) * rows * row + 2 * row
    assert memory.peak == memory.weights + memory.optimizer + memory.passes


def test_bytes_grow_with_the_batch_and_the_optimizer_decides_on_its_own():
    two, four = memory_of(2), memory_of(4)
    assert four.passes / two.passes == pytest.approx(2.0, rel=0.01)
    assert (two.weights, two.optimizer) == (four.weights, four.optimizer)
    assert memory_of(2, optimizer="sgd").optimizer <= memory_of(2, optimizer="adam").optimizer / 2
    assert memory_of(1, size=64).peak < 5_000


def test_nothing_is_computed_so_a_step_may_be_larger_than_any_machine():
    assert memory_of(1 << 24).peak > 10 << 40  # 10 TiB


def test_modules_and_generators_stay_as_they_are():
    net = Chain()
    net.eval()
    state, scale, before = net.seen.clone(), net.scale, torch.get_rng_state()
    memory_of(2, net)
    assert net.scale is scale
    assert type(net.scale) is torch.nn.Parameter
    assert net.scale.grad is None
    assert torch.equal(net.seen, state)
    assert not net.training
    assert torch.equal(torch.get_rng_state(), before)


def test_an_operation_that_needs_values_is_an_error():
    with pytest.raises(RuntimeError):
        memory_of(2, Chain(reads=True))


def test_a_step_of_more_operators_than_wanted_is_given_up():
    scale = Chain()
    with pytest.raises(ManyOperatorsError, match="more than 20 operators"):
        memory_of(2, scale, most=20)
    assert type(scale.scale) is torch.nn.Parameter
    assert scale.scale.sum() == SIZE  # the weights are there again
    assert memory_of(2, most=200) == memory_of(2)


def test_a_state_that_will_be_is_counted_and_one_that_is_there_is_not():
    weight = torch.nn.Parameter(torch.ones(1000))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    assert state_bytes(optimizer) == pytest.approx(8000, rel=1e-2)
    weight.grad = torch.ones(1000)
    optimizer.step()
    assert state_bytes(optimizer) == 0
