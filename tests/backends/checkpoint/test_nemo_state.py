"""Training states of NeMo 0.x: training goes on from one that fits; otherwise the weights alone are used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import nemo_lite as nemo
from nemo_lite.backends.pytorch.checkpoint.state import as_ours, can_go_on
from nemo_lite.backends.pytorch.optim.novograd import Novograd
from nemo_lite.backends.pytorch.tutorials import MSELoss, RealFunctionDataLayer, TaylorNet

PARAMS = [torch.zeros(1, 4), torch.zeros(1)]


def state_of_nemo(kept: list[dict[str, Any]], params: list[int] | None = None, **group: Any) -> dict[str, Any]:
    groups = [{"lr": 0.01, "params": params or [0, 1], **group}]
    return {"step": 3, "epoch_num": 1, "optimizer_state": [{"state": dict(enumerate(kept)), "param_groups": groups}]}


def moments(squares: list[Any]) -> list[dict[str, Any]]:
    return [
        {"step": 3, "exp_avg": torch.ones_like(param), "exp_avg_sq": square}
        for param, square in zip(PARAMS, squares, strict=True)
    ]


MOMENTUM = [{"momentum_buffer": torch.ones_like(param)} for param in PARAMS]
ADAM = moments([torch.ones(1, 4), torch.ones(1)])
NOVOGRAD = moments([torch.tensor(1.0), torch.tensor(2.0)])


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(param.clone()) for param in PARAMS]


@pytest.mark.parametrize(
    ("make", "fitting"), [(torch.optim.SGD, MOMENTUM), (torch.optim.Adam, ADAM), (Novograd, NOVOGRAD)]
)
def test_a_state_fits_the_optimizer_that_keeps_the_same(make: Any, fitting: list[dict[str, Any]]) -> None:
    optimizer = make(parameters(), lr=0.1)
    for kept in (MOMENTUM, ADAM, NOVOGRAD):
        assert can_go_on(as_ours(state_of_nemo(kept)), [optimizer]) == (kept is fitting)
    assert not can_go_on(as_ours(state_of_nemo(fitting)), [optimizer, optimizer])
    assert not can_go_on(as_ours(state_of_nemo(fitting, params=[0])), [optimizer])
    assert not can_go_on(as_ours(state_of_nemo([*reversed(fitting)])), [optimizer])
    assert not can_go_on({}, [optimizer])


def test_names_of_before_0_10_become_ours() -> None:
    state = as_ours(state_of_nemo(MOMENTUM))
    assert (state["step"], state["epoch"], len(state["optimizers"])) == (3, 1, 1)
    assert as_ours({"step": 1, "optimizers": []}) == {"step": 1, "optimizers": []}


@pytest.mark.parametrize(("optimizer", "steps"), [("novograd", 5), ("sgd", 8)])
def test_training_goes_on_from_nemos_folder_or_starts_with_its_weights(
    tmp_path: Any, optimizer: str, steps: int
) -> None:
    torch.save(TaylorNet(dim=4).state_dict(), tmp_path / "TaylorNet-STEP-3.pt")
    group = {"betas": (0.95, 0.25), "eps": 1e-8, "weight_decay": 0.0, "grad_averaging": False}  # as NeMo 0.9 has it
    torch.save(state_of_nemo(NOVOGRAD, **group), tmp_path / "trainer-STEP-3.pt")
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, set_default=False)
    x, y = RealFunctionDataLayer(n=16, batch_size=8)()
    loss = MSELoss()(predictions=TaylorNet(dim=4)(x=x), target=y)
    made: list[int] = []
    counter = nemo.SimpleLossLoggerCallback([loss], print_func=lambda values: made.append(1), step_freq=1)
    callbacks = [nemo.CheckpointCallback(tmp_path / "new", load_from_folder=tmp_path), counter]
    factory.train([loss], callbacks=callbacks, optimizer=optimizer, optimization_params={"max_steps": 8, "lr": 0.01})
    assert len(made) == steps
