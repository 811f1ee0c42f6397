"""Values that are not finite, somewhere in a step, on one rank or on all: the step leaves no trace in what is saved."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from toys.faulty_run import Mse, Net, Points
from toys.ranks import results_of

import nemo_lite as nemo
from nemo_lite.backends.pytorch.precision import LossScale, Precision
from nemo_lite.base.errors import CheckpointError
from nemo_lite.core.app_state import AppState

pytestmark = pytest.mark.slow
PLACES = ("input", "loss", "gradient")
STEPS, BAD_STEP = 6, 2
VALUES = (math.nan, math.inf, -math.inf)


class Poison:
    """Says whether the forward that runs now is of the bad step."""

    def __init__(self, place: str, value: float, applies: bool) -> None:
        self.place, self.value, self.applies, self.step = place, value, applies, -1

    def is_at(self, place: str) -> bool:
        return self.applies and self.step == BAD_STEP and self.place == place


class PoisonedNet(Net):
    def __init__(self, poison: Poison) -> None:
        super().__init__()
        self.poison = poison

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.poison.is_at("input"):
            x = torch.full_like(x, self.poison.value)
        if self.poison.is_at("statistics"):  # finite themselves, but their variance is not
            x = x * 1e30
        out = super().forward(x)
        if self.poison.is_at("gradient"):
            out.register_hook(lambda gradient: torch.full_like(gradient, self.poison.value))
        return out


class PoisonedMse(Mse):
    def __init__(self, poison: Poison) -> None:
        super().__init__()
        self.poison = poison

    def _loss_function(self, out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = super()._loss_function(out, target)
        return loss * self.poison.value if self.poison.is_at("loss") else loss


class Watch(nemo.NeMoCallback):
    def __init__(self, poison: Poison) -> None:
        super().__init__()
        self.poison = poison

    def on_step_start(self, state: Any) -> None:
        self.poison.step = state.step


def train(
    poison: Poison, accumulate: int, shard: bool, callbacks: Sequence[nemo.NeMoCallback] = (), **options: Any
) -> dict[str, Any]:
    """The weights and statistics after a run with one bad step."""
    AppState().modules.clear()
    about = {"placement": nemo.DeviceType.CPU, "random_seed": 5, "shard_weights": shard, "dist_timeout": 30.0}
    made = nemo.NeuralModuleFactory.get_default_factory() if "RANK" in os.environ else None  # a rank has one
    factory = made or nemo.NeuralModuleFactory(**about, **options)
    net, (x, y) = PoisonedNet(poison), Points(32)()
    loss = PoisonedMse(poison)(out=net(x=x), target=y)
    params = {"lr": 0.05, "max_steps": STEPS}
    factory.train(
        [loss],
        optimizer="adam_w",
        optimization_params=params,
        callbacks=[Watch(poison), *callbacks],
        batches_per_step=accumulate,
    )
    whole = {
        name: getattr(value, "full_tensor", lambda value=value: value)() for name, value in net.state_dict().items()
    }
    return {name: value.tolist() for name, value in whole.items()}


HALF = {"optimization_level": "O1", "amp_dtype": "bfloat16"}
make_precision = Precision.__init__


def with_a_loss_scale(precision: Precision, level: Any, device: torch.device, *args: Any, **kwargs: Any) -> None:
    """In the place of ``Precision.__init__``: a CPU scales losses too, which otherwise only float16 on a GPU needs."""
    make_precision(precision, level, device, *args, **kwargs)
    precision._scale = LossScale(device)


def wrong_in(weights: dict[str, Any]) -> list[str]:
    """The names of tensors that are not finite."""
    return [name for name, value in weights.items() if not torch.tensor(value).isfinite().all()]


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("options", [{}, HALF], ids=["O0", "O1"])
@pytest.mark.parametrize("place", PLACES)
def test_a_step_that_is_not_finite_leaves_no_trace(place, options, scaled, monkeypatch):
    if scaled:
        monkeypatch.setattr(Precision, "__init__", with_a_loss_scale)
    for value, accumulate in itertools.product(VALUES, (1, 2)):
        weights = train(Poison(place, value, True), accumulate, False, **options)
        assert wrong_in(weights) == [], (value, accumulate)
        assert weights != train(Poison(place, value, False), accumulate, False, **options)


def test_statistics_that_overflow_while_the_loss_is_finite_are_never_saved(tmp_path):
    saving = nemo.CheckpointCallback(tmp_path, step_freq=STEPS)
    with pytest.raises(CheckpointError, match=r"NaN or infinity in layers\.1\.running_var"):
        train(Poison("statistics", math.nan, True), 1, False, [saving])
    assert list(tmp_path.rglob("*.safetensors")) == []


def train_all(shard: bool, bad_ranks: tuple[int, ...], scaled: bool) -> list[tuple[str, dict[str, Any]]]:
    """On a rank: the weights after each kind of bad step."""
    rank, options = int(os.environ["RANK"]), HALF if scaled else {}
    if scaled:
        Precision.__init__ = with_a_loss_scale  # type: ignore[method-assign]  # of this rank, which ends
    return [
        (f"{place} {accumulate}", train(Poison(place, math.nan, rank in bad_ranks), accumulate, shard, **options))
        for place, accumulate in itertools.product(PLACES, (1, 2))
    ]


@pytest.mark.parametrize(
    ("shard", "bad_ranks", "scaled"),
    [
        pytest.param(False, (1,), False, id="one-ddp"),
        pytest.param(False, (0, 1), False, id="all-ddp", marks=pytest.mark.long),
        pytest.param(False, (1,), True, id="scaled-ddp", marks=pytest.mark.long),
        pytest.param(True, (1,), False, id="one-sharded", marks=pytest.mark.long),
        pytest.param(True, (0, 1), False, id="all-sharded", marks=pytest.mark.long),
        pytest.param(True, (1,), True, id="scaled-sharded", marks=pytest.mark.long),
    ],
)
def test_a_step_that_is_not_finite_on_some_rank_leaves_no_trace_on_any(shard, bad_ranks, scaled):
    first, second = results_of(2, train_all, shard, bad_ranks, scaled, timeout=120)
    for (case, weights), (_, others) in zip(first, second, strict=True):
        assert wrong_in(weights) + wrong_in(others) == [], case
        trained = [name for name in weights if "running" not in name]
        assert [weights[name] for name in trained] == [others[name] for name in trained], case
