"""Memory of a training step, counted by shapes: what is held, for how long, and that nothing is computed or changed."""

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from toys.nets import BD, Mse, Net, Points

import nemo_lite as nemo
from nemo_lite.backends.pytorch.engine.step_memory import state_bytes
from nemo_lite.backends.pytorch.iterations import iterations

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


class Recurrent(Chain):
    """An LSTM over steps of one value, which is torch's own operator of oneDNN on a CPU."""

    def __init__(self, units):
        super().__init__(1)
        self.lstm = torch.nn.LSTM(1, units)

    def forward(self, x):
        return self.lstm(x.T.unsqueeze(2))[0].mean(2).T


class Products(Chain):
    """Two products of one shape, and one of another."""

    def __init__(self):
        super().__init__(64)
        self.square, self.wide = torch.nn.Linear(64, 64), torch.nn.Linear(64, 65)

    def forward(self, x):
        return self.wide(self.square(self.square(x)))[:, :64]


class PickingRows(Products):
    """Products of as many rows as values say."""

    def forward(self, x):
        rows = super().forward(x)
        return rows * self.square(rows[rows.detach().any(1).nonzero().squeeze(1)]).mean()


class Looping(Chain):
    """Doubles parts of its input one by one: what an iteration needs ends with it."""

    def __init__(self, needed):
        super().__init__(1)
        self.needed, self.count = needed, 0

    def forward(self, x):
        out = torch.empty_like(x)
        for part in iterations(range(0, x.shape[1], 1 << 10), x, self.needed):
            self.count += 1
            doubled = x[:, part : part + (1 << 10)] * 2
            out[:, part : part + (1 << 10)] = doubled.tanh()
        return out * self.scale


def made_of(num_items, net=None, size=SIZE):
    """A factory, the wires of a loss, and a batch."""
    x, y = Points()()
    loss = Mse()(out=(net or Chain(size))(x=x), target=y)
    batch = [torch.empty(num_items, size, device="meta"), torch.empty(num_items, size, device="meta")]
    return nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU), [loss], batch


def memory_of(num_items, net=None, optimizer="adam", size=SIZE, batches_per_step=1, **params):
    factory, losses, batch = made_of(num_items, net, size)
    return factory.step_memory(losses, batch, optimizer, {"lr": 0.1, **params}, batches_per_step)


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


def test_gradients_of_earlier_micro_batches_and_an_average_of_weights_are_counted():
    row, one = 4 * SIZE, memory_of(8)
    accumulating, averaging = memory_of(8, batches_per_step=2), memory_of(8, ema_decay=0.99)
    assert one.gradients == row
    assert memory_of(8, batches_per_step=5) == accumulating
    assert accumulating.passes - one.passes == row
    assert accumulating._replace(passes=one.passes) == one
    assert averaging == one._replace(optimizer=one.optimizer + row)


def test_an_evaluation_holds_no_outputs_for_a_backward_pass():
    net, row, rows = Chain(), 4 * SIZE, 8
    factory, losses, batch = made_of(rows, net)
    net.eval()
    # The batch, and two values on the way.
    assert 3.9 * rows * row < factory.evaluation_memory(losses, batch) < 4.1 * rows * row
    assert not net.training
    assert net.scale.grad is None


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


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_what_an_lstm_keeps_for_the_backward_pass_is_counted():
    units, labels, rows = 64, 256, 8
    state = 4 * units * labels * rows  # bytes of its outputs
    passes = memory_of(rows, Recurrent(units), size=labels).passes
    # One of outputs, fifteen of workspace; the way back: a gradient of the outputs, and eight inside.
    assert 25 * state < passes < 26.5 * state
    _, *_, workspace = torch.ops.aten.mkldnn_rnn_layer(
        torch.zeros(labels, rows, 1), *(weight.detach() for weight in torch.nn.LSTM(1, units).parameters()),
        *torch.zeros(2, rows, units), False, [], 2, units, 1, True, False, False, True,
    )  # fmt: skip
    assert 15 * state < workspace.numel() * workspace.element_size() < 15.5 * state


def test_the_count_leaves_out_iterations_that_hold_no_more_and_finds_the_same_bytes():
    few, every = Looping(3), Looping(1 << 10)
    assert memory_of(8, few) == memory_of(8, every)
    assert (few.count, every.count) == (4, SIZE >> 10)
    assert len(iterations(range(64), torch.zeros(1), 3)) == 64


@pytest.mark.parametrize("level", [nemo.Optimization.mxprO2, nemo.Optimization.mxprO3])
def test_half_weights_are_counted_and_are_afterwards_what_they_were(level):
    net, rows = Chain(), 8
    _, losses, batch = made_of(rows, net)
    half = nemo.NeuralModuleFactory(
        placement=nemo.DeviceType.CPU, optimization_level=level, amp_dtype="bfloat16"
    ).step_memory(losses, batch, "sgd", {"lr": 0.1})
    # Half outputs and gradients, beside a batch in float32.
    assert 0.5 < half.passes / memory_of(rows).passes < 0.8
    assert half.weights == memory_of(rows).weights
    assert {tensor.dtype for tensor in net.state_dict().values()} == {torch.float32}
    assert net.scale.detach().sum() == SIZE


def test_kernels_of_products_in_bfloat16_are_counted_for_each_shape():
    def kernels(level, net):
        factory, losses, batch = made_of(32, net, 64)
        factory = nemo.NeuralModuleFactory(
            placement=nemo.DeviceType.CPU, optimization_level=level, amp_dtype="bfloat16"
        )
        return factory.step_memory(losses, batch, "sgd", {"lr": 0.1}).kernels

    assert kernels(nemo.Optimization.mxprO0, Products()) == kernels(nemo.Optimization.mxprO1, Chain(64)) == 0
    # Forward; backward for the inputs and for the weights.
    assert kernels(nemo.Optimization.mxprO1, Products()) == 6 * 3 << 19
    # Any number of shapes: as many as are kept.
    assert kernels(nemo.Optimization.mxprO1, PickingRows()) == 64 * 3 << 19
    assert kernels(nemo.Optimization.mxprO0, PickingRows()) == 0


@pytest.mark.parametrize(("level", "of_state", "of_gradient"), [("O0", 4, 4), ("O1", 4, 4), ("O2", 4, 6), ("O3", 2, 2)])
def test_the_state_of_the_optimizer_is_counted_in_the_type_that_a_run_has(level, of_state, of_gradient):
    x, y = Points()()
    net, kept = Net(), []
    losses = [Mse()(out=net(x=x), target=y)]
    amp_dtype = None if level == "O0" else "bfloat16"
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, optimization_level=level, amp_dtype=amp_dtype)
    batch = [torch.empty(4, 3, device="meta"), torch.empty(4, 1, device="meta")]
    counted = factory.step_memory(losses, batch, "adam_w", {"lr": 0.1})
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: kept.append(_bytes_kept(optimizer)))
    try:
        factory.train(losses, optimizer="adam_w", optimization_params={"lr": 0.1, "max_steps": 1})
    finally:
        hook.remove()
    size = sum(weight.numel() for weight in net.parameters())
    assert counted.optimizer == kept[-1] == 2 * size * of_state
    assert counted.gradients == size * of_gradient


def _bytes_kept(optimizer):
    """Of its state, without counts of steps."""
    states = [value for state in optimizer.state.values() for value in state.values()]
    return sum(value.nbytes for value in states if isinstance(value, torch.Tensor) and value.dim())


def test_a_state_that_will_be_is_counted_and_one_that_is_there_is_not():
    weight = torch.nn.Parameter(torch.ones(1000))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    assert state_bytes(optimizer) == pytest.approx(8000, rel=1e-2)
    weight.grad = torch.ones(1000)
    optimizer.step()
    assert state_bytes(optimizer) == 0
