"""loss_gradients: the norms equal those of a hand computation, and the training is the same to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from toys.nets import BD, Mse, Points, made_factory, train

import nemo_lite as nemo
from nemo_lite.backends.pytorch.common import LossAggregatorNM
from nemo_lite.backends.pytorch.engine.loss_gradients import loss_gradients
from nemo_lite.backends.pytorch.placement import choose_device
from nemo_lite.backends.pytorch.precision import choose_precision
from nemo_lite.core.callbacks import LossBalanceCallback
from nemo_lite.core.dag import parting_wires


class Encoder(nemo.TrainableNM):
    """Draws, and moves statistics."""

    input_ports = {"x": BD}
    output_ports = {"encoded": BD, "middle": BD}

    def __init__(self, dropout=0.5):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.second = nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        middle = self.norm(self.first(x))
        return self.dropout(self.second(middle)), middle


class Head(nemo.TrainableNM):
    input_ports = {"encoded": BD}
    output_ports = {"out": BD}

    def __init__(self, width=4):
        super().__init__()
        torch.manual_seed(width)
        self.fc = nn.Linear(width, 1)

    def forward(self, encoded):
        return self.fc(encoded)


class PerItem(nemo.LossNM):
    """Tells the trainer of its items."""

    input_ports, output_ports = Mse.input_ports, Mse.output_ports

    def _loss_function(self, out, target):
        return self.mean_over_items(3 * (out - target).abs().sum(1))


def two_losses(of_middle=False, dropout=0.5, data=None):
    """Two heads on one encoder, or one of them on its middle; the weighted sum, and the parts."""
    encoder, heads = Encoder(dropout), (Head(), Head(5 if of_middle else 4))
    x, y = (data or Points())()
    encoded, middle = encoder(x=x)
    parts = [
        Mse()(out=heads[0](encoded=encoded), target=y),
        PerItem()(out=heads[1](encoded=middle if of_middle else encoded), target=y),
    ]
    total = LossAggregatorNM(2, [0.7, 0.3])(loss_1=parts[0], loss_2=parts[1])
    return (encoder, *heads), parts, total


def precision():
    return choose_precision(nemo.Optimization.mxprO0, choose_device(nemo.DeviceType.CPU))


def test_the_norms_are_those_of_the_gradients_on_the_wire_where_the_ways_part():
    data = Points()
    (encoder, first, second), parts, _ = two_losses(dropout=0.0, data=data)
    batch = data.x[:4], data.y[:4]
    gradients = loss_gradients(parts, batch, precision())
    encoded = encoder(batch[0])[0].detach().requires_grad_()
    losses = nn.functional.mse_loss(first(encoded), batch[1]), 3 * (second(encoded) - batch[1]).abs().mean()
    expected = [torch.autograd.grad(loss, encoded)[0].norm().item() for loss in losses]
    assert gradients.place == "encoder.encoded"
    assert gradients.norms == pytest.approx(expected, rel=1e-6)
    assert [wire.output_port_name for wire in parting_wires(parts)] == ["encoded"]


def test_losses_of_several_outputs_part_at_all_of_them():
    data = Points()
    (encoder, first, second), parts, _ = two_losses(of_middle=True, dropout=0.0, data=data)
    gradients = loss_gradients(parts, (data.x, data.y), precision())
    encoded, middle = (part.detach().requires_grad_() for part in encoder(data.x))
    of_first = torch.autograd.grad(nn.functional.mse_loss(first(encoded), data.y), encoded)[0].norm().item()
    of_second = torch.autograd.grad(3 * (second(middle) - data.y).abs().mean(), middle)[0].norm().item()
    assert gradients.place == "encoder.encoded, encoder.middle"
    assert gradients.norms == pytest.approx([of_first, of_second], rel=1e-6)


def test_a_frozen_encoder_is_compared_too():
    data = Points()
    (encoder, *_), parts, _ = two_losses(dropout=0.0, data=data)
    before = loss_gradients(parts, (data.x, data.y), precision()).norms
    for weight in encoder.parameters():
        weight.requires_grad = False
    assert loss_gradients(parts, (data.x, data.y), precision()).norms == before


def test_losses_that_share_no_weights_are_not_compared():
    data = Points()
    x, y = data()
    parts = [Mse()(out=Head(3)(encoded=x), target=y), Mse()(out=Head(3)(encoded=x), target=y)]
    assert loss_gradients(parts, (data.x, data.y), precision()) is None


@pytest.mark.parametrize("batches_per_step", [1, 2])
def test_a_run_that_is_looked_at_is_the_same_to_the_bit(batches_per_step):
    states = []
    for looks in (False, True):
        modules, parts, total = two_losses()
        losses = {"mse": (parts[0], 0.7), "item": (parts[1], 0.3)}
        train(
            made_factory(), [total], LossBalanceCallback(losses) if looks else None, batches_per_step=batches_per_step
        )
        states.append([module.state_dict() for module in modules] + [torch.get_rng_state()])
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)


def test_the_first_step_says_the_ratio_and_records_it(capsys):
    _, parts, total = two_losses()
    records = []
    losses = {"mse": (parts[0], 0.7), "item": (parts[1], 0.3)}
    train(made_factory(), [total], LossBalanceCallback(losses, lambda kind, **fields: records.append((kind, fields))))
    said = capsys.readouterr()
    assert (said.out + said.err).count("Gradients of the parts of the loss on encoder.encoded, each times its wei") == 1
    ((kind, fields),) = records
    assert kind == "gradients"
    assert fields["step"] == 1
    assert sorted(fields["norms"]) == ["item", "mse"]
