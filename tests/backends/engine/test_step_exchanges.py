"""How many exchanges a step waits for beside DDP's, and that what they agree on is what it was."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from toys.nets import Mse, Net, Points
from toys.rank_training import rank_factory
from toys.ranks import on_ranks, results_of

import nemo_lite as nemo
from nemo_lite.backends.pytorch.data.loaders import BatchLoader
from nemo_lite.backends.pytorch.distributed.process import BACKWARD
from nemo_lite.backends.pytorch.engine.verdict import Verdict


class ItemLosses(Mse):
    """A loss that tells those of its items."""

    def _loss_function(self, out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.mean_over_items((out - target).square().mean(1))


class Exchanges(nemo.NeMoCallback):
    """The collectives of each step, in order, and when the backward pass ran."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[list[str]] = []
        reduce, enter = dist.all_reduce, type(BACKWARD).__enter__

        def all_reduce(*args: Any, **kwargs: Any) -> Any:
            self.note("begun" if kwargs.get("async_op") else "waited for")
            return reduce(*args, **kwargs)

        def entered(activity: Any) -> None:
            if activity is BACKWARD:
                self.note("backward")
            enter(activity)

        dist.all_reduce = all_reduce
        type(BACKWARD).__enter__ = entered

    def note(self, what: str) -> None:
        if self.steps:
            self.steps[-1].append(what)

    def on_step_start(self, state: Any) -> None:
        self.steps.append([])

    def on_step_end(self, state: Any) -> None:
        self.steps.append([])


def train(loss: Any, accumulated: int = 1, shard: bool = False) -> Any:
    made = rank_factory(shard_weights=shard)
    net, seen = Net(name="net"), Exchanges()
    x, y = Points(n=48)()
    made.train(
        [loss()(out=net(x=x), target=y)],
        callbacks=[seen],
        optimizer="sgd",
        optimization_params={"lr": 0.1, "max_steps": 3},
        batches_per_step=accumulated,
    )
    return seen.steps[0::2][:3]


@pytest.mark.parametrize("loss", [Mse, ItemLosses])
@pytest.mark.parametrize("accumulated", [1, 2])
def test_on_a_cpu_the_one_exchange_of_a_step_runs_beside_its_last_backward_pass(loss: Any, accumulated: int) -> None:
    expected = ["backward"] * (accumulated - 1) + ["begun", "backward"]
    for steps in results_of(2, train, loss, accumulated):
        assert steps == [expected] * 3


def test_ranks_with_gradients_of_their_own_agree_after_the_backward_pass() -> None:
    for steps in results_of(2, train, Mse, 1, True):
        assert all(step[0] == "backward" and "begun" in step[1:] for step in steps)


class Poisoned(Points):
    """An item of rank 1's batch at step 1 whose loss is infinite, while its gradient is finite."""

    def __init__(self, what: float) -> None:
        super().__init__(n=24)
        self.y[8:][1::2] = what


class OnlyLoss(Mse):
    """A loss that is not finite for targets that are not, with finite gradients."""

    def _loss_function(self, out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        known = torch.where(target.isfinite(), target, 0.0)
        return (out - known).square().mean() + torch.where(target.isfinite(), 0.0, target).sum()


def skipping(what: float) -> Any:
    made = rank_factory()
    net, data = Net(name="net"), Poisoned(what)
    x, y = data()
    weights: list[Any] = []

    class Weights(nemo.NeMoCallback):
        def on_step_end(self, state: Any) -> None:
            weights.append(net.fc.weight.tolist())

    params = {"lr": 0.1, "max_steps": 3}
    loss = OnlyLoss()(out=net(x=x), target=y)
    made.train([loss], callbacks=[Weights()], optimizer="sgd", optimization_params=params)
    return weights


@pytest.mark.parametrize("what", [math.inf, math.nan])
def test_a_loss_that_is_not_finite_on_one_rank_with_finite_gradients_skips_the_step_on_all(what: float) -> None:
    finished = on_ranks(2, skipping, what)
    assert [end.code for end in finished] == [0, 0], finished[0].err
    first, second = (end.result for end in finished)
    assert first == second
    assert first[0] == first[1] != first[2] or first[0] != first[1] == first[2] or first[0] == first[1] == first[2]
    assert "is not finite" in finished[0].out + finished[0].err


class Tail(Points):
    """Rank 0 has three batches, rank 1 two; an item of its second one makes every gradient NaN."""

    def __init__(self) -> None:
        super().__init__(n=24)
        self.y[13] = math.inf

    def loader(self, *, training: bool, shard: Any) -> Any:
        loader = super().loader(training=training, shard=shard)

        class Short(BatchLoader):
            def epoch(self, epoch: int) -> Any:
                batches = list(loader.epoch(epoch))
                return iter(batches[:2] if epoch == 0 and shard.rank else batches)

        return Short()


def tail(policy: str, in_time: bool) -> Any:
    """Weights after two epochs; ``in_time``: the exchange comes after the backward pass, as for divided weights."""
    made = rank_factory()
    net, data = Net(name="net"), Tail()
    x, y = data()
    with pytest.MonkeyPatch.context() as patch:
        if in_time:
            patch.setattr(Verdict, "allows_losses", lambda self, losses: None)
        made.train(
            [ItemLosses()(out=net(x=x), target=y)],
            optimizer="sgd",
            optimization_params={"lr": 0.1, "num_epochs": 2},
            uneven=policy,
        )
    return {name: value.tolist() for name, value in net.state_dict().items()}


@pytest.mark.parametrize("policy", ["pad", "join", "drop"])
def test_an_early_exchange_gives_the_weights_of_a_late_one_bit_by_bit(policy: str) -> None:
    early, late = results_of(2, tail, policy, False), results_of(2, tail, policy, True)
    assert early == late
    assert early[0] == early[1]
    assert all(math.isfinite(value) for value in early[0]["fc.weight"][0])
