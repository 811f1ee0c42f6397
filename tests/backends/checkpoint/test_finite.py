"""Weights that are not finite are refused, and the good sets stay."""

from __future__ import annotations

import math

import pytest
import torch
from toys.nets import Net, build

import nemo_lite as nemo
from nemo_lite.backends.pytorch.checkpoint.folder import read_checkpoint
from nemo_lite.backends.pytorch.checkpoint.tensors import refuse_not_finite
from nemo_lite.core.callbacks import ModuleSaverCallback
from nemo_lite.errors import CheckpointError


class Spoil(nemo.NeMoCallback):
    """Makes a weight infinite after a step, as a rate that is much too high does."""

    def __init__(self, net, step):
        super().__init__()
        self.net, self.step = net, step

    def on_step_end(self, state):
        if state.step == self.step:
            with torch.no_grad():
                self.net.fc.weight[0, 0] = math.inf


def test_a_run_whose_weights_are_not_finite_ends_and_its_good_checkpoints_stay(factory, tmp_path):
    net, loss = build(net=Net(norm=True, name="net"))
    callbacks = [Spoil(net, 3), nemo.CheckpointCallback(tmp_path, step_freq=1, checkpoints_to_keep=2)]
    with pytest.raises(
        CheckpointError, match=r"Net: weights that are not finite are not saved: got NaN or infinity in fc"
    ):
        factory.train(
            [loss], optimizer="sgd", callbacks=callbacks, optimization_params={"lr": 0.1, "momentum": 0, "max_steps": 6}
        )
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-STEP-2", "checkpoint-STEP-3"]
    assert all(torch.isfinite(value).all() for value in read_checkpoint(tmp_path).weights["net"].values())


def test_a_saver_of_modules_refuses_them_too(factory, tmp_path):
    net, loss = build(net=Net(name="net"))
    with pytest.raises(CheckpointError, match="weights that are not finite are not saved"):
        factory.train(
            [loss],
            optimizer="sgd",
            callbacks=[Spoil(net, 1), ModuleSaverCallback([net], step_freq=2, folder=tmp_path)],
            optimization_params={"lr": 0.1, "max_steps": 2},
        )
    assert list(tmp_path.iterdir()) == []


def test_infinities_of_a_buffer_may_be_a_mask_and_nan_may_not():
    net = Net(norm=True)
    net.register_buffer("mask", torch.full((2,), -math.inf))
    refuse_not_finite(net, net.state_dict())
    net.norm.running_var[1] = math.nan
    with pytest.raises(CheckpointError, match=r"got NaN or infinity in norm\.running_var; the checkpoints"):
        refuse_not_finite(net, net.state_dict())


def test_only_some_of_many_weights_are_listed():
    net = Net(norm=True)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(math.nan)
    with pytest.raises(CheckpointError, match=r"norm\.weight, norm\.bias, fc\.weight and 1 more"):
        refuse_not_finite(net, net.state_dict())


@pytest.fixture
def factory():
    return nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
