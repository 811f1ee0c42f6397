"""Weights of ranks that have drifted apart: found at evaluations and checkpoints, by rank and name, in every type."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from toys.fake_comm import FakeComm
from toys.nets import Mse, Net, Points
from toys.rank_training import rank_factory, train_net
from toys.ranks import on_ranks, results_of

import nemo_lite as nemo
from nemo_lite.backends.pytorch.distributed import replicas

TYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.int64,
    torch.uint8,
    torch.bool,
)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_one_bit_of_a_weight_of_any_type_changes_its_sum(dtype: torch.dtype) -> None:
    tensor = torch.ones(3, 5).to(dtype)
    (before,) = replicas.bit_sums([tensor])
    assert replicas.bit_sums([tensor.clone()]) == [before]
    for index in (0, 3, 14):
        changed = tensor.clone()
        changed.view(torch.uint8).view(-1)[index * tensor.element_size()] ^= 1
        assert replicas.bit_sums([changed]) != [before]


def test_sums_of_tensors_that_are_empty_strided_or_begin_within_a_word() -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    tensors = [torch.empty(0), base.t(), base.view(-1)[1:8], torch.tensor(2.0, dtype=torch.float16)]
    clones = [tensor.contiguous().clone() for tensor in tensors]
    assert replicas.bit_sums(tensors) == replicas.bit_sums(clones)
    assert replicas.bit_sums([base.view(-1)[1:8]]) != replicas.bit_sums([base.view(-1)[2:9]])


class Differing(FakeComm):
    """Three ranks, the last of which has another first weight of the second layer."""

    def __init__(self, gathered: list[Any] | None = None) -> None:
        super().__init__(0, 3)
        self.gathered = gathered

    def all_same(self, digest: bytes | None, label: str) -> bool:
        return False

    def gather(self, value: Any) -> list[Any]:
        _, sums = value
        return [value, value, ("node2", [sums[0], sums[1] + 1, sums[2] + 1, *sums[3:]])]


def test_the_error_names_the_rank_its_machine_and_the_first_tensor() -> None:
    layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    wanted = r"drifted apart: got Sequential\.0\.bias of rank 2 \(node2\) unlike that of ranks 0, 1, and 1 more tensor"
    with pytest.raises(nemo.errors.DistributedError, match=wanted) as told:
        replicas.refuse_drifted_weights([layers], Differing())
    assert told.value.is_common
    assert told.value.exit_code == 3


def test_half_weights_are_compared_with_the_float32_ones_that_a_checkpoint_would_hold() -> None:
    layer = nn.Linear(2, 2).half()
    layer.register_state_dict_post_hook(lambda part, state, *unused: state.update(weight=part.weight.float()))
    names = [name for name, _ in replicas._replicated([layer])]
    assert names == ["Linear.weight", "Linear.bias", "Linear.weight (float32)"]


class Flip(nemo.NeMoCallback):
    """One bit of one weight of rank 1 changes after a step."""

    def __init__(self, net: nn.Module, step: int = 2) -> None:
        super().__init__()
        self.net, self.step = net, step

    def on_step_end(self, state: Any) -> None:
        if state.global_rank == 1 and state.step == self.step:
            with torch.no_grad():
                self.net.fc.weight.view(torch.int32).view(-1)[1] ^= 1


def drifting(moment: str, folder: str, level: str) -> Any:
    made = rank_factory(optimization_level=level)
    net = Net(norm=True, name="net")
    callbacks: list[Any] = [Flip(net)]
    if moment == "evaluation":
        x, y = Points(n=8)()
        wires = [Mse()(out=net(x=x), target=y)]
        callbacks.append(nemo.EvaluatorCallback(wires, lambda *_: None, lambda *_: {}, eval_step=4))
    elif moment == "checkpoint":
        callbacks.append(nemo.CheckpointCallback(folder, step_freq=4))
    return train_net(made, net, Points(), callbacks, max_steps=6)


@pytest.mark.parametrize("moment", ["evaluation", "checkpoint", "end"])
def test_a_flipped_bit_ends_all_ranks_by_name_at_the_next_exchange(moment: str, tmp_path: Any) -> None:
    finished = on_ranks(2, drifting, moment, str(tmp_path / "ck"), "O0")
    for rank in finished:
        assert rank.code == 3, rank.err
        assert "the weights of the ranks have drifted apart: got net.fc.weight of rank 1 (" in rank.err
        assert "unlike that of rank 0" in rank.err
        assert "Traceback" not in rank.err
    assert not list(tmp_path.glob("ck/checkpoint-*"))


class Statistics(nemo.NeMoCallback):
    """The running mean after each step: each rank's own."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net, self.seen = net, []

    def on_step_end(self, state: Any) -> None:
        if isinstance(self.net.norm, nn.BatchNorm1d):
            self.seen.append(self.net.norm.running_mean.tolist())


def not_drifting(level: str, uneven: str, shard: bool) -> Any:
    made = rank_factory(optimization_level=level, shard_weights=shard)
    net, data = Net(norm=not shard, name="net"), Points(n=20)
    x, y = data()
    evaluated = Mse()(out=net(x=x), target=y)
    evaluator = nemo.EvaluatorCallback([evaluated], lambda *_: None, lambda *_: {}, eval_step=2)
    statistics = Statistics(net)
    params = {"lr": 0.1, "max_steps": 5}
    made.train(
        [Mse()(out=net(x=x), target=y)],
        callbacks=[evaluator, statistics],
        optimizer="sgd",
        optimization_params=params,
        uneven=uneven,
    )
    return statistics.seen


@pytest.mark.parametrize(
    ("level", "uneven", "shard"),
    [("O0", "pad", False), ("O2", "pad", False), ("O3", "drop", False), ("O0", "join", False), ("O0", "pad", True)],
)
def test_statistics_half_weights_and_divided_ones_are_no_drift(level: str, uneven: str, shard: bool) -> None:
    first, second = results_of(2, not_drifting, level, uneven, shard)
    assert shard or first != second
