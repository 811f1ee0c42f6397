"""Weights & Biases: what is recorded there, and one run for all."""

from __future__ import annotations

import sys

import pytest
from toys.fake_action_state import FakeState, Scalar, train

from nemo_lite.core.callbacks import CallbackList, WandbCallback, WandBLogger
from nemo_lite.errors import UsageError


def test_wandb_gets_values_rates_epochs_and_hyperparameters(wandb):
    logger = WandBLogger(2, wandb_name="run", wandb_project="speech", args={"lr": 0.1})
    train(FakeState(), [logger], steps_per_epoch=3)
    assert wandb.inits == [{"name": "run", "project": "speech"}]
    assert wandb.hyperparameters == [{"lr": 0.1}]
    assert wandb.logged[:2] == [(0, {"loss": 0.5, "LR": 0.01}), (2, {"loss": 2.5, "LR": 0.01})]
    step, values = wandb.logged[2]
    assert (step, values["epoch"], sorted(values)) == (2, 0, ["epoch", "epoch_time"])


def test_two_wandb_callbacks_share_one_run(wandb):
    train(FakeState(), [WandBLogger(), WandBLogger()])
    assert len(wandb.inits) == 1


def test_wandb_gets_train_tensors_rate_and_epochs(wires, wandb):
    x, y = wires
    state = FakeState(values={x: Scalar(1.0, []), y: Scalar(2.0, [])})
    callback = WandbCallback(train_tensors=[x, y], wandb_name="run", args={}, update_freq=2)
    assert CallbackList([callback]).wires == [x, y]
    train(state, [callback], steps_per_epoch=3)
    assert [step for step, _ in wandb.logged] == [0, 2, 2]
    assert wandb.logged[0][1] == {"x": 1.0, "y": 2.0, "LR": 0.01}
    assert sorted(wandb.logged[2][1]) == ["epoch", "epoch_time"]


@pytest.mark.parametrize("make", [WandBLogger, WandbCallback])
def test_missing_wandb_is_an_error_with_the_install_line(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=f"{make.__name__}: Weights & Biases is not installed; pip install wandb"):
        make()
