"""Training on several ranks gives what one process gives; what the ranks decide, they decide together."""

from __future__ import annotations

import contextlib
import math
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from toys.nets import Mse, Net, Points
from toys.ranks import results_of

import nemo_lite as nemo
from nemo_lite.backends.pytorch.distributed import group
from nemo_lite.backends.pytorch.distributed.comm import ReplicaOptions
from nemo_lite.backends.pytorch.distributed.group import DataParallel, _LastFirst, _Sending
from nemo_lite.backends.pytorch.engine import module_state
from nemo_lite.backends.pytorch.engine.batches import StepBatches
from nemo_lite.base.errors import UnknownNameError, UsageError

NUM_ITEMS, BATCH = 42, 4  # an epoch ends with a step of 10 items: uneven batches on every number of ranks


class Steps(nemo.NeMoCallback):
    """For each step: this rank's losses with their weight in items, and the gradient that the step took."""

    def __init__(self):
        super().__init__()
        self.losses, self.gradients, self._batches = [], [], []

    def on_step_start(self, state):
        self._batches = []

    def on_batch_end(self, state):
        count = len(state["tensors"].get_tensor("x"))
        self._batches.append((float(state["tensors"].get_tensor("loss")), count))

    def on_step_end(self, state):
        self.losses.append(self._batches)
        self.gradients.append([p.grad.flatten().tolist() for m in state.modules.values() for p in m.parameters()])


def train(accumulated, max_steps=20, twin="", norm=False, synced=False, **kwargs):
    """What one rank does: its steps, and the weights at the end."""
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=5)
    with broken(twin):
        data, net = Points(n=NUM_ITEMS, batch_size=BATCH, shuffle=True), Net(norm=norm)
        x, y = data()
        x.rename("x")
        loss = Mse()(out=net(x=x), target=y)
        steps = Steps()
        factory.train(
            [loss],
            callbacks=[steps],
            optimizer="sgd",
            optimization_params={"lr": 0.1, "momentum": 0.9, "max_steps": max_steps},
            batches_per_step=accumulated,
            synced_batchnorm=synced,
            **kwargs,
        )
    return steps.losses, steps.gradients, {name: v.tolist() for name, v in net.state_dict().items()}


def statically(**options):
    """The weights after a training with two micro-batches a step."""
    return train(2, **options)[2]


def with_static_graph():
    return statically(static_graph=True)


@pytest.mark.slow
def test_a_static_graph_gives_the_weights_of_one_that_is_not():
    (plain, _), (first, second) = results_of(2, statically), results_of(2, with_static_graph)
    assert first == second
    for name, weights in plain.items():  # the gradients of its first step are added in another order
        torch.testing.assert_close(torch.tensor(first[name]), torch.tensor(weights), rtol=1e-6, atol=1e-6)


def compressing():
    with pytest.raises(UsageError, match="gradient_compression=bfloat16 needs nccl: got dist_backend=gloo"):
        train(1, gradient_compression="bfloat16")


@pytest.mark.slow
def test_without_nccl_gradients_are_not_compressed():
    results_of(2, compressing)


def test_gradients_travel_in_bfloat16_by_the_hook_of_torch(monkeypatch):
    made = []

    class Noted(torch.nn.Module):
        def __init__(self, module, **options):
            super().__init__()
            self.reducer = Mock()
            made.append(options["static_graph"])

        def register_comm_hook(self, state, hook):
            made.append(hook)

    monkeypatch.setattr(group, "DistributedDataParallel", Noted)
    for options in (ReplicaOptions(), ReplicaOptions(True, "bfloat16")):
        DataParallel(Net(), torch.device("cpu"), options=options)
    assert made == [False, True, default_hooks.bf16_compress_hook]


def test_sharded_weights_do_not_go_with_options_of_ddp_and_a_type_must_be_known():
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, shard_weights=True)
    x, y = Points()()
    given = {"optimizer": "sgd", "optimization_params": {"max_steps": 1}}
    for option in ({"static_graph": True}, {"gradient_compression": "bfloat16"}):
        with pytest.raises(UsageError, match=f"shard_weights does not go with {next(iter(option))}"):
            factory.train([Mse()(out=Net()(x=x), target=y)], **given, **option)
    with pytest.raises(UnknownNameError, match="bfloat16"):
        factory.train([Mse()(out=Net()(x=x), target=y)], **given, gradient_compression="fp8")


@contextlib.contextmanager
def broken(twin):
    """The engine with one thing broken."""
    with pytest.MonkeyPatch.context() as patch:
        if twin == "never exchanges":
            patch.setattr(DataParallel, "sync_only_if", lambda self, is_last: self._ddp.no_sync())
            patch.setattr(module_state, "refuse_drifted_weights", lambda modules, comm: None)  # it would end the run
        elif twin == "weighs batches, not items":
            patch.setattr(StepBatches, "loss_factors", lambda taken: [1 / len(taken.batches)] * len(taken.batches))
        yield


def trajectory(results):
    """The loss of each step over all its items, and the gradient of each step on every rank."""
    losses = []
    for batches_of_ranks in zip(*(losses for losses, _, _ in results), strict=True):
        batches = [batch for rank in batches_of_ranks for batch in rank]
        losses.append(math.fsum(loss * count for loss, count in batches) / sum(count for _, count in batches))
    return torch.tensor(losses), [
        torch.tensor([[x for part in g for x in part] for g in gradients]) for _, gradients, _ in results
    ]


@pytest.fixture(scope="module")
def alone():
    return trajectory([results_of(1, train, 4)[0]])


@pytest.mark.parametrize(("world_size", "accumulated"), [(2, 2), (4, 1)])
def test_gradients_and_losses_are_those_of_one_process_that_accumulates(alone, world_size, accumulated):
    losses, gradients = trajectory(results_of(world_size, train, accumulated))
    assert len(losses) == 20
    torch.testing.assert_close(losses, alone[0], rtol=1e-5, atol=1e-6)
    for of_rank in gradients:
        torch.testing.assert_close(of_rank, alone[1][0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("twin", ["never exchanges", "weighs batches, not items"])
def test_a_broken_engine_is_caught_by_that_comparison(alone, twin):
    _, gradients = trajectory(results_of(2, train, 2, 20, twin))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(gradients[0], alone[1][0], rtol=1e-5, atol=1e-6)


def test_a_step_whose_backward_ended_has_sent_its_gradients_and_one_that_raised_has_not():
    sent = []
    sending = _Sending(lambda: sent.append(1))
    with sending:
        pass
    with pytest.raises(ZeroDivisionError), sending:
        raise ZeroDivisionError
    assert sent == [1]


def test_gradients_of_tied_weights_are_sent_last_as_they_come_last() -> None:
    net = nn.ModuleDict({name: nn.Linear(2, 2) for name in ("embedding", "middle", "last", "head")})
    net["head"].weight = net["embedding"].weight
    names = [name.removeprefix("module.") for name, _ in _LastFirst(net).named_modules()]
    assert [name for name in names if name in net] == ["last", "middle", "embedding", "head"]
