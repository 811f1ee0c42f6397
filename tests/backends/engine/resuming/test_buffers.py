"""The buffers of each rank: which are kept, and that they are put back or refused by name."""

from __future__ import annotations

import pytest
import torch
from toys.nets import Net

from nemo_lite.backends.pytorch.engine.resuming.buffers import own_buffers, set_own_buffers, without_common
from nemo_lite.errors import CheckpointError


def net_of_rank(mean: float) -> Net:
    net = Net(norm=True)
    net.norm.running_mean.fill_(mean)
    net.register_buffer("table", torch.arange(3.0))
    net.register_buffer("derived", torch.ones(2), persistent=False)
    return net


def test_a_rank_keeps_statistics_and_what_differs_from_the_others() -> None:
    nets = [net_of_rank(1.0), net_of_rank(1.0)]
    nets[1].table[0] = 9.0
    kept = without_common([own_buffers({"net": net}) for net in nets], {"net": nets[0]})
    statistics = ["net.norm.running_mean", "net.norm.running_var", "net.norm.num_batches_tracked"]
    assert [sorted(own) for own in kept] == [sorted([*statistics, "net.table"])] * 2
    assert kept[1]["net.table"].tolist() == [9.0, 1.0, 2.0]


def test_what_is_equal_on_all_ranks_is_left_to_the_weights() -> None:
    nets = [net_of_rank(1.0), net_of_rank(2.0)]
    kept = without_common([own_buffers({"net": net}) for net in nets], {"net": nets[0]})
    assert "net.table" not in kept[0]
    assert "net.derived" not in kept[0], "it follows from arguments, and no checkpoint holds it"


def test_copies_do_not_change_with_the_buffers_and_are_put_back() -> None:
    net = net_of_rank(1.0)
    kept = own_buffers({"net": net})
    net.norm.running_mean.fill_(7.0)
    set_own_buffers({"net": net}, {**kept, "net.gone": torch.ones(1)}, "here")
    assert net.norm.running_mean.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("value", [torch.ones(4), torch.ones(3, dtype=torch.int64)])
def test_a_buffer_of_another_shape_or_type_is_refused_by_name(value: torch.Tensor) -> None:
    net = net_of_rank(1.0)
    with pytest.raises(CheckpointError, match=r"here: a rank's own net\.norm\.running_mean does not fit: got .*float"):
        set_own_buffers({"net": net}, {"net.table": torch.zeros(3), "net.norm.running_mean": value}, "here")
    assert net.table.tolist() == [0.0, 1.0, 2.0], "nothing is filled then"
