"""Which weights FSDP2 divides, which stay together in a module, and which it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from toys.ranks import results_of

from nemo_lite.backends.pytorch.distributed.batchnorm import is_sharded, synced_batchnorm
from nemo_lite.backends.pytorch.distributed.sharding import like, shard, whole
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.backends.pytorch.tutorials import TaylorNet
from nemo_lite.core.graph.neural_module import WeightShareTransform
from nemo_lite.core.neural_types import ChannelType, NeuralType
from nemo_lite.errors import UsageError

CPU = torch.device("cpu")


def both() -> dict[str, Any]:
    dist.init_process_group("gloo")
    results = {"shared": shared(), "refused": refused()}
    dist.destroy_process_group()
    return results


@pytest.fixture(scope="module")
def results() -> list[Any]:
    return results_of(2, both)


class Pair(TrainableNM):
    """Blocks that share a weight among themselves, one that runs twice, and a normalisation between them."""

    input_ports = {"x": NeuralType("B D", ChannelType())}
    output_ports = {"y": NeuralType("B D", ChannelType())}

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        first, second, twice = (nn.Linear(3, 3) for _ in range(3))
        second.weight = first.weight
        twice.weight = nn.Parameter(twice.weight.detach().t())  # not contiguous
        self.layers = nn.Sequential(first, second, twice, nn.BatchNorm1d(3), twice, nn.Linear(3, 3), nn.Linear(3, 3))
        self.inner = inner
        self.frozen = nn.ModuleList([nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])])

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 3)."""
        for layer in (*self.layers, *self.frozen[0]):  # type: ignore[misc]  # a list of lists
            x = layer(x)
        return x


def shared() -> tuple[list[bool], Any]:
    torch.manual_seed(dist.get_rank())
    module, x = Pair(), torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    rows = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    with synced_batchnorm([module], None):
        shard([module], CPU)
        module.layers[5].requires_grad_(False)
        (module(x[rows]).square().mean() + module(2 * x[rows]).square().mean()).backward()
    kinds = [type(layer).__mro__[1].__name__ == "FSDPModule" for layer in module.layers]
    return kinds, whole({name: p.grad for name, p in module.named_parameters() if p.grad is not None})


def test_shared_weights_stay_together_and_what_runs_twice_has_both_gradients(results: list[Any]) -> None:
    torch.manual_seed(0)
    module, x = Pair(), torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    module.layers[5].requires_grad_(False)
    (module(x).square().mean() + module(2 * x).square().mean()).backward()
    wanted = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    assert results[0]["shared"][0] == [False, False, False, False, False, True, True]
    got = results[0]["shared"][1]
    assert got.keys() == wanted.keys()
    assert all(torch.allclose(got[name], gradient, atol=1e-6) for name, gradient in wanted.items())


def refused() -> list[str]:
    tied, transposed, scalar = TaylorNet(2), Pair(), TaylorNet(2)
    tied.tie_weights_with(other := TaylorNet(2), ["fc1.weight"])
    names = {"layers.6.weight": ("layers.5.weight", WeightShareTransform.TRANSPOSE)}
    transposed.tie_weights_with(Pair(), ["layers.6.weight"], names)
    scalar.scale = nn.Parameter(torch.ones(()))
    messages = []
    for modules in ([other, tied], [transposed], [scalar], [inner := TaylorNet(2), Pair(inner)]):
        with pytest.raises(UsageError) as caught:
            shard(modules, CPU)
        messages.append(str(caught.value))
    assert not is_sharded([tied, other, transposed, scalar])
    return messages


def test_weights_that_cannot_be_divided_are_refused_by_name(results: list[Any]) -> None:
    problem = "weights that modules share cannot be sharded: got the same as"
    remedy = "train without FSDP2, or do not tie them"
    for result in results:
        assert result["refused"] == [
            f"TaylorNet.fc1.weight: {problem} TaylorNet.fc1.weight; {remedy}",
            f"Pair.layers.6.weight: {problem} another one; {remedy}",
            "TaylorNet.scale: a weight without dimensions cannot be sharded; give it the shape (1,)",
            f"Pair.inner.fc1.weight: {problem} TaylorNet.fc1.weight; {remedy}",
        ]


def test_a_tensor_that_is_whole_or_of_another_shape_stays_itself() -> None:
    tensor = torch.zeros(2)
    assert like(tensor, torch.ones(2)) is tensor
    assert like(tensor, None) is tensor
