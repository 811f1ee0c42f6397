"""The buffers of each rank: which are kept, and that they are put back or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from toys.fake_comm import FakeComm
from toys.nets import Net
from toys.rank_training import rank_factory
from toys.ranks import results_of

from nemo_lite.backends.pytorch.distributed.comm import SingleProcess
from nemo_lite.backends.pytorch.engine.module_state import mean_statistics
from nemo_lite.backends.pytorch.engine.resuming import own_buffers, set_own_buffers
from nemo_lite.base.errors import CheckpointError

STATISTICS = ["net.norm.num_batches_tracked", "net.norm.running_mean", "net.norm.running_var"]


class SecondOfTwo(FakeComm):
    """Rank 1 of two; rank 0 has the buffers of another net."""

    def __init__(self, first: Net) -> None:
        super().__init__(1, 2)
        self._first = {name: buffer.clone() for name, buffer in first.state_dict(prefix="net.").items()}

    def share(self, value: Any) -> Any:
        return {name: self._first[name] for name in value}


def net_of_rank(mean: float) -> Net:
    net = Net(norm=True)
    net.norm.running_mean.fill_(mean)
    net.register_buffer("table", torch.arange(3.0))
    net.register_buffer("derived", torch.ones(2), persistent=False)
    return net


def differing(one: Net, other: Net) -> dict[str, torch.Tensor]:
    """The buffers that a rank with ``other`` keeps beside one with ``one``."""
    return own_buffers({"net": other}, SecondOfTwo(one))


def test_a_rank_keeps_what_differs_from_the_others() -> None:
    nets = [net_of_rank(1.0), net_of_rank(2.0)]
    nets[1].table[0] = 9.0
    kept = differing(*nets)
    assert sorted(kept) == ["net.norm.running_mean", "net.table"], "what is derived is in no checkpoint"
    assert kept["net.table"].tolist() == [9.0, 1.0, 2.0]


def test_what_is_equal_on_all_ranks_is_left_to_the_weights() -> None:
    assert differing(net_of_rank(1.0), net_of_rank(1.0)) == {}
    assert own_buffers({"net": net_of_rank(1.0)}, SingleProcess()) == {}
    wide = [net_of_rank(1.0).double() for _ in range(2)]
    assert sorted(differing(*wide)) == STATISTICS[1:], "a mean of equal float64 numbers may be rounded"


def of_three_ranks() -> tuple[list[str], bool]:
    """Names of what this rank keeps where statistics are equal; whether their mean is what they are."""
    comm = rank_factory()._comm
    net = net_of_rank(1 / 3)
    net.norm.running_var.copy_(torch.tensor([0.1, 1e-7, 3e30]))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    kept = own_buffers({"net": net}, comm)
    with mean_statistics([net], comm):
        are_equal = all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    return sorted(kept), are_equal


def test_the_mean_of_equal_statistics_is_these_statistics_to_the_bit() -> None:
    assert results_of(3, of_three_ranks) == [([], True)] * 3


def test_copies_do_not_change_with_the_buffers_and_are_put_back() -> None:
    net = net_of_rank(1.0)
    kept = differing(net_of_rank(2.0), net)
    net.norm.running_mean.fill_(7.0)
    set_own_buffers({"net": net}, {**kept, "net.gone": torch.ones(1)}, "here")
    assert net.norm.running_mean.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("value", [torch.ones(4), torch.ones(3, dtype=torch.int64)])
def test_a_buffer_of_another_shape_or_type_is_refused_by_name(value: torch.Tensor) -> None:
    net = net_of_rank(1.0)
    with pytest.raises(CheckpointError, match=r"here: a rank's own net\.norm\.running_mean does not fit: got .*float"):
        set_own_buffers({"net": net}, {"net.table": torch.zeros(3), "net.norm.running_mean": value}, "here")
    assert net.table.tolist() == [0.0, 1.0, 2.0], "nothing is filled then"
