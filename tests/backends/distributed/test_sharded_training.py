"""FSDP2 behind ``shard_weights``: the same script, results and checkpoints as with whole weights on every rank."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from toys.nets import BD, Mse, Points
from toys.ranks import results_of

import nemo_lite as nemo


class Deep(nemo.TrainableNM):
    """Blocks in a row, as encoders have them."""

    input_ports = {"x": BD}
    output_ports = {"out": BD}

    def __init__(self, name=None):
        super().__init__(name=name)
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(3)))
        self.last = nn.Linear(3, 1)

    def forward(self, x):
        return self.last(self.blocks(x))


def train(folder, sharded, max_steps, optimizer, resume=False):
    """Losses, the values of an evaluation over uneven batches, the names of the files saved, and the weights."""
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=5, shard_weights=sharded)
    net = Deep(name="net")
    x, y = Points(n=18, batch_size=2, shuffle=True)()
    loss = Mse()(out=net(x=x), target=y)
    held_out, _ = Points(n=5, batch_size=2)()
    seen, losses = [], []
    callbacks = [
        nemo.CheckpointCallback(folder, step_freq=3, force_load=resume),
        nemo.SimpleLossLoggerCallback([loss], lambda values: losses.append(float(values[0])), step_freq=1),
        nemo.EvaluatorCallback(
            [net(x=held_out)], lambda values, _: seen.extend(next(iter(values.values()))), lambda _: None, eval_step=3
        ),
    ]
    params = {"lr": 0.05, "max_steps": max_steps, "grad_norm_clip": 1.0}
    factory.train([loss], callbacks=callbacks, optimizer=optimizer, optimization_params=params, batches_per_step=2)
    evaluated = torch.cat(seen).flatten().tolist() if seen else []
    values = factory.infer([net(x=held_out)], checkpoint_dir=folder)
    inferred = None if values is None else torch.cat(values[0]).flatten().tolist()
    return losses, evaluated, inferred


class WeightedMse(Mse):
    """A loss with a weight of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def _loss_function(self, out, target):
        return (self.scale * (out - target)).square().mean()


def with_a_weighted_loss(sharded):
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=5, shard_weights=sharded)
    net, mse = Deep(name="net"), WeightedMse()
    x, y = Points(n=16, batch_size=2)()
    loss, losses = mse(out=net(x=x), target=y), []
    optimizer = factory.create_optimizer("adam", [net, mse], {"lr": 0.05})
    logger = nemo.SimpleLossLoggerCallback([loss], lambda values: losses.append(float(values[0])), step_freq=1)
    factory.train([(optimizer, [loss])], callbacks=[logger], optimization_params={"max_steps": 6})
    return losses


def test_losses_with_weights_and_optimizers_made_before_train_go_with_sharding():
    whole, sharded = (results_of(2, with_a_weighted_loss, sharded)[0] for sharded in (False, True))
    assert sharded == pytest.approx(whole, rel=1e-4, abs=1e-5)


def weights_in(folder):
    net = Deep()
    net.restore_from(sorted(folder.glob("net-STEP-*.safetensors"))[-1])
    return nn.utils.parameters_to_vector(net.parameters()).detach()


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "novograd"])
def test_sharded_and_whole_weights_train_evaluate_and_save_the_same(tmp_path, optimizer):
    (whole, _), (sharded, other) = (
        results_of(2, train, tmp_path / name, name == "sharded", 6, optimizer) for name in ("whole", "sharded")
    )
    for mine, theirs in zip(sharded, whole, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    assert other[1:] == ([], None)
    torch.testing.assert_close(weights_in(tmp_path / "sharded"), weights_in(tmp_path / "whole"), rtol=1e-4, atol=1e-5)


def test_a_run_goes_on_with_sharded_weights_and_back_from_its_checkpoints(tmp_path):
    straight = results_of(2, train, tmp_path / "straight", False, 9, "adam")[0]
    parts = [
        loss
        for steps, sharded in ((3, False), (6, True), (9, False))
        for loss in results_of(2, train, tmp_path / "parts", sharded, steps, "adam", steps > 3)[0][0]
    ]
    assert parts == pytest.approx(straight[0], rel=1e-4, abs=1e-5)
