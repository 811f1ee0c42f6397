"""Synchronised batch normalisation: several ranks compute what one process computes on the whole batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from toys.batch_norm_kernels import kernels_on_this_device
from toys.host_reads import HostReads
from toys.ranks import results_of

from nemo_asr.models.jasper import BatchNorm
from nemo_lite import NeuralModuleFactory
from nemo_lite.backends.pytorch.distributed import batchnorm
from nemo_lite.backends.pytorch.distributed.batchnorm import adding_nothing, make_groups, synced_batchnorm
from nemo_lite.backends.pytorch.distributed.comm import SingleProcess
from nemo_lite.backends.pytorch.distributed.failures import torch_errors_named
from nemo_lite.backends.pytorch.distributed.group import DataParallel
from nemo_lite.backends.pytorch.lowering import lower
from nemo_lite.backends.pytorch.nm import TrainableNeuralModuleWrapper
from nemo_lite.base.errors import UsageError
from nemo_lite.compat.tutorials import MSELoss, RealFunctionDataLayer
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_types import ChannelType, NeuralType

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "1d": lambda: nn.BatchNorm1d(3),
    "1d over frames": lambda: nn.BatchNorm1d(3),
    "2d": lambda: nn.BatchNorm2d(3),
    "3d": lambda: nn.BatchNorm3d(3),
    "cumulative": lambda: nn.BatchNorm1d(3, momentum=None),
    "without weights": lambda: nn.BatchNorm1d(3, affine=False),
    "without running statistics": lambda: nn.BatchNorm1d(3, track_running_stats=False),
    "with a forward of its own": lambda: BatchNorm(3, eps=1e-3),
}
TOLERANCES = {torch.float32: 1e-6, torch.float64: 1e-13}
SHAPES = {"1d": (), "2d": (4, 2), "3d": (2, 2, 2)}


def data(name: str, num_rows: int = 6) -> Tensor:
    shape = SHAPES.get(name, (5,))
    x = torch.randn(num_rows, 3, *shape, generator=torch.Generator().manual_seed(1))
    if name == "with a forward of its own":  # it takes another way for what lies in memory as (B, T, C)
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    return x


def trained(layer: nn.Module, batches: Sequence[Tensor], rows: slice) -> dict[str, Tensor]:
    """Outputs and input gradients of the last batch, weight gradients of all, buffers, and an evaluation."""
    result: dict[str, Tensor] = {}
    for batch in batches:
        x = batch[rows].detach().requires_grad_()
        y = layer(x)
        target = torch.linspace(-1, 1, batch[0].numel(), device=batch.device).view(batch[0].shape)
        ((y - target) ** 3).sum().mul(0.02).backward()
        assert x.grad is not None
        result |= {"output": y.detach(), "of input": x.grad}
    result |= {f"of {name}": p.grad for name, p in layer.named_parameters() if p.grad is not None}
    result |= {name: buffer.clone() for name, buffer in layer.named_buffers()}
    layer.eval()
    result["evaluated"] = layer(batches[0][rows]).detach()
    return result


def prepared(name: str) -> nn.Module:
    layer = LAYERS[name]()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(2))
    return layer


def rows_of(rank: int, bounds: Sequence[int]) -> slice:
    return slice(bounds[rank], bounds[rank + 1])


def in_steps(
    name: str, rows: slice, sync: bool, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> dict[str, Tensor]:
    layer, x = prepared(name).to(device, dtype), data(name).to(device, dtype)
    with synced_batchnorm([layer], None) if sync else contextlib.nullcontext():
        return {key: value.cpu() for key, value in trained(layer, [x + 1, x / 3], rows).items()}


def on_rank(
    names: Sequence[str], bounds: Sequence[int], sync: bool, by_kernels: bool = False, device: str = "cpu"
) -> list[dict[str, dict[str, Tensor]]]:
    dist.init_process_group("gloo")
    rows = rows_of(dist.get_rank(), bounds)
    with kernels_on_this_device() if by_kernels else contextlib.nullcontext():
        return [{name: in_steps(name, rows, sync, dtype, device) for name in names} for dtype in TOLERANCES]


def joined(results: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """What the ranks have together: rows side by side, sums of weight gradients, the one state of buffers."""
    whole: dict[str, Tensor] = {}
    for key in results[0]:
        values = [result[key] for result in results]
        if key in ("output", "of input", "evaluated"):
            whole[key] = torch.cat(values)
        elif key.startswith("of "):
            whole[key] = torch.stack(values).sum(0)
        else:
            whole[key] = values[0]
            assert all(torch.equal(value, values[0]) for value in values), key
    return whole


def largest_difference(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Relative to the largest value of each tensor."""
    assert got.keys() == wanted.keys()
    return max(float((got[key] - value).abs().max() / value.abs().max().clamp(min=1)) for key, value in wanted.items())


BOUNDS = {"even": (0, 3, 6), "uneven": (0, 1, 6), "the first has nothing": (0, 0, 6), "the second": (0, 6, 6)}
all_bounds = pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)


def see_that_two_ranks_give_what_one_process_gives(bounds: tuple[int, ...], *about: Any) -> None:
    # An empty batch has no order in memory.
    names = [name for name in LAYERS if 0 < bounds[1] < bounds[2] or name != "with a forward of its own"]
    of_ranks = results_of(2, on_rank, names, bounds, True, *about)
    for position, (dtype, tolerance) in enumerate(TOLERANCES.items()):
        for name in names:
            alone = in_steps(name, slice(None), False, dtype)
            together = joined([of_rank[position][name] for of_rank in of_ranks])
            if name == "without running statistics":  # evaluation takes those of the batch then, each rank its own
                del alone["evaluated"], together["evaluated"]
            assert largest_difference(together, alone) < tolerance, (name, dtype)


@all_bounds
def test_two_ranks_give_what_one_process_gives(bounds: tuple[int, ...]) -> None:
    see_that_two_ranks_give_what_one_process_gives(bounds)


@all_bounds
def test_by_the_kernels_for_gpus_they_give_the_same(bounds: tuple[int, ...]) -> None:
    """A rehearsal: the kernels are computed as torch's source does, on the CPU."""
    see_that_two_ranks_give_what_one_process_gives(bounds, True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@all_bounds
def test_on_a_gpu_two_ranks_give_what_one_process_gives(bounds: tuple[int, ...]) -> None:
    see_that_two_ranks_give_what_one_process_gives(bounds, False, "cuda")


def test_without_synchronisation_they_differ() -> None:
    results = [of_rank[0]["1d"] for of_rank in results_of(2, on_rank, ["1d"], (0, 3, 6), False)]
    alone = in_steps("1d", slice(None), False)
    got = {key: torch.cat([result[key] for result in results]) for key in ("output", "of input")}
    assert largest_difference(got, {key: alone[key] for key in got}) > 0.1


def far_from_zero(sync: bool = True) -> Tensor:
    if not sync:
        return cast(Tensor, nn.BatchNorm1d(3, affine=False)(1000 + data("1d", 64)))
    dist.init_process_group("gloo")
    with synced_batchnorm([layer := nn.BatchNorm1d(3, affine=False)], None):
        return cast(Tensor, layer(1000 + data("1d", 64)[rows_of(dist.get_rank(), (0, 40, 64))]))


def test_the_variance_of_values_far_from_zero_does_not_cancel() -> None:
    together = torch.cat(results_of(2, far_from_zero))
    exact = nn.BatchNorm1d(3, affine=False).double()((1000 + data("1d", 64)).double())
    assert (together - exact).abs().max() < 2 * (far_from_zero(sync=False) - exact).abs().max()


def half_precision(by_kernels: bool) -> tuple[Tensor, Tensor]:
    dist.init_process_group("gloo")
    layer, rows = nn.BatchNorm1d(3), rows_of(dist.get_rank(), (0, 2, 6))
    kernels = kernels_on_this_device() if by_kernels else contextlib.nullcontext()
    with kernels, synced_batchnorm([layer], None), torch.autocast("cpu", torch.bfloat16):
        x = data("1d")[rows].bfloat16().requires_grad_()
        y = layer(x)
        y.float().pow(3).sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


@pytest.mark.parametrize("by_kernels", [False, True])
def test_half_types_keep_their_type_and_are_computed_in_float32(by_kernels: bool) -> None:
    results = results_of(2, half_precision, by_kernels)
    layer, x = nn.BatchNorm1d(3), data("1d").bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
        y.float().pow(3).sum().backward()
    assert x.grad is not None
    for position, wanted in enumerate((y.detach(), x.grad)):
        got = torch.cat([result[position] for result in results])
        assert got.dtype == torch.bfloat16
        assert torch.allclose(got.float(), wanted.float(), rtol=0.02, atol=0.02)


def beside_a_filler() -> tuple[Tensor, Tensor]:
    """Under autocast, a rank's batch is bfloat16, and what stands for a batch on a rank without one is float32."""
    dist.init_process_group("gloo")
    layer, x = nn.BatchNorm1d(3), data("1d").requires_grad_()
    if dist.get_rank() == 0:
        x = data("1d").bfloat16().requires_grad_()
    with synced_batchnorm([layer], None), torch.autocast("cpu", torch.bfloat16):
        with adding_nothing([layer]) if dist.get_rank() else contextlib.nullcontext():
            y = layer(x)
        y.float().pow(3).sum().mul(1.0 - dist.get_rank()).backward()
    assert x.grad is not None
    return y.detach(), x.grad


def test_a_filler_of_another_type_changes_nothing_for_the_rank_with_a_batch() -> None:
    (output, gradient), (filler, of_filler) = results_of(2, beside_a_filler)
    layer, x = nn.BatchNorm1d(3), data("1d").bfloat16().requires_grad_()
    y = layer(x)
    y.float().pow(3).sum().backward()
    assert x.grad is not None
    assert (output.dtype, gradient.dtype, filler.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    assert torch.allclose(output.float(), y.detach().float(), rtol=0.02, atol=0.02)
    assert torch.allclose(gradient.float(), x.grad.float(), rtol=0.02, atol=0.02)
    assert not of_filler.any()


class Group:
    """Two ranks, of which this is one; nothing travels."""

    def size(self) -> int:
        return 2


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What a layer over :class:`Group` sends."""
    tensors: list[Tensor] = []
    monkeypatch.setattr(dist, "all_gather", lambda of_all, own, group: tensors.append(own))
    monkeypatch.setattr(dist, "all_reduce", lambda sums, group: tensors.append(sums))
    return tensors


def synced_layer(num_channels: int) -> nn.Module:
    layer = nn.BatchNorm1d(num_channels, device="meta")
    layer.__class__ = batchnorm._synced(nn.BatchNorm1d, Group())
    return layer


@pytest.mark.parametrize("by_kernels", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [4, 0])
def test_on_a_device_the_host_reads_nothing_and_all_ranks_send_one_type(
    sent: list[Tensor], num_rows: int, dtype: torch.dtype, by_kernels: bool
) -> None:
    """On the meta device, which refuses to be read; torch's function reads the counts of all ranks at each layer."""
    layer = synced_layer(3)
    x = torch.empty(num_rows, 3, 5, device="meta", dtype=dtype, requires_grad=True)
    with kernels_on_this_device() if by_kernels else contextlib.nullcontext(), HostReads() as reads:
        y = layer(x)
        y.sum().backward()
    assert (y.dtype, reads.found) == (dtype, [])
    assert x.grad is not None
    forward, backward = sent
    assert forward.dtype == backward.dtype == (torch.float32 if by_kernels else torch.float64)
    assert (forward.numel(), backward.numel()) == (7, 6)


def wholly_half(by_kernels: bool) -> dict[str, Tensor]:
    """A layer of half weights and statistics, as at O3."""
    dist.init_process_group("gloo")
    with kernels_on_this_device() if by_kernels else contextlib.nullcontext():
        return in_steps("1d", rows_of(dist.get_rank(), (0, 2, 6)), True, torch.bfloat16)


def test_the_kernels_for_gpus_take_half_weights_and_statistics() -> None:
    by_kernels, otherwise = (joined(results_of(2, wholly_half, by)) for by in (True, False))
    assert all(value.dtype == otherwise[key].dtype for key, value in by_kernels.items())
    by_kernels, otherwise = ({key: value.float() for key, value in each.items()} for each in (by_kernels, otherwise))
    assert largest_difference(by_kernels, otherwise) < 0.02


class Moved(TorchDispatchMode):
    """Adds up the bytes of all tensors of a size that operations read or write, and lists these operations."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.num_bytes, self.operations = size, 0, list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.is_view:
            return result
        tensors = [each for each in (*args, result) if isinstance(each, Tensor) and each.numel() == self.size]
        if tensors:
            self.operations.append(func.overloadpacket.__name__)
            self.num_bytes += sum(each.numel() * each.element_size() for each in tensors)
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("sent")
def test_the_kernels_for_gpus_move_the_input_three_times_and_five_times_and_keep_it_alone(dtype: torch.dtype) -> None:
    layer, x = synced_layer(8), torch.empty(4, 8, 50, device="meta", dtype=dtype, requires_grad=True)
    num_bytes, kept = x.numel() * x.element_size(), list[Tensor]()
    with (
        kernels_on_this_device(),
        torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each),
    ):
        with Moved(x.numel()) as forward:
            y = layer(x)
        gradient = torch.empty_like(y)
        with Moved(x.numel()) as backward:
            y.backward(gradient)
    assert forward.operations == ["batch_norm_stats", "batch_norm_elemt"]
    assert backward.operations == ["batch_norm_backward_reduce", "batch_norm_backward_elemt"]
    assert (forward.num_bytes, backward.num_bytes) == (3 * num_bytes, 5 * num_bytes)
    assert [each.dtype for each in kept if each.numel() == x.numel()] == [dtype]


def in_groups() -> tuple[Tensor, list[str]]:
    dist.init_process_group("gloo")
    errors = []
    for size in (3, -1):
        with pytest.raises(UsageError) as caught:
            make_groups(4, size)
        errors.append(str(caught.value))
    assert make_groups(4, 0) is None
    assert make_groups(4, 4) is None
    layer = nn.BatchNorm1d(3)
    with synced_batchnorm([layer], make_groups(4, 2)):
        layer(data("1d", 8)[2 * dist.get_rank() : 2 * dist.get_rank() + 2])
    assert layer.running_mean is not None
    with synced_batchnorm([layer], make_groups(4, 1)):
        assert type(layer) is nn.BatchNorm1d
    return layer.running_mean, errors


def test_groups_of_two_of_four_ranks_share_statistics_among_themselves_only() -> None:
    results = results_of(4, in_groups)
    of_groups = [0.1 * data("1d", 8)[rows].mean(0) for rows in (slice(0, 4), slice(4, 8))]
    for rank, (mean, errors) in enumerate(results):
        assert torch.allclose(mean, of_groups[rank // 2], atol=1e-6)
        assert not torch.allclose(mean, of_groups[1 - rank // 2], atol=1e-3)
        assert "got 3 for 4 processes, wanted 1, 2, 4" in errors[0]
        assert "got -1 for 4 processes" in errors[1]


def identity() -> list[Any]:
    dist.init_process_group("gloo")
    layers = [nn.BatchNorm2d(3), BatchNorm(3), nn.Linear(3, 3)]
    model = nn.Sequential(*layers, nn.Sequential(layers[0]))
    before = (
        [type(layer) for layer in layers],
        repr(model),
        {k: id(v) for k, v in model.state_dict(keep_vars=True).items()},
    )
    with contextlib.suppress(ZeroDivisionError), synced_batchnorm([model], None):
        inside = [isinstance(layer, cls) for layer, cls in zip(layers, before[0], strict=True)]
        changed = [type(layer) is not cls for layer, cls in zip(layers, before[0], strict=True)]
        same_text = repr(model) == before[1]
        raise ZeroDivisionError
    after = (
        [type(layer) for layer in layers],
        repr(model),
        {k: id(v) for k, v in model.state_dict(keep_vars=True).items()},
    )
    too_few = ""
    with synced_batchnorm([one := nn.BatchNorm1d(3)], None):
        try:
            one(torch.zeros(1 - dist.get_rank(), 3))
        except UsageError as error:
            too_few = str(error)
    return [inside, changed, same_text, before == after, too_few]


def test_layers_are_what_they_were_afterwards_also_after_an_error() -> None:
    for inside, changed, same_text, unchanged, too_few in results_of(2, identity):
        assert inside == [True, True, True]
        assert changed == [True, True, False]
        assert same_text
        assert unchanged
        # Every rank is told, the one without a value too.
        assert too_few.startswith("batch normalisation needs at least two values per channel: got 1 on 2 ranks")


def lowered() -> nn.Module:
    """A DAG with two normalised layers, as fx module: batch -> loss."""
    torch.manual_seed(3)
    NeuralModuleFactory.reset_default_factory()
    ports = {"x": NeuralType("B D", ChannelType())}, {"y_pred": NeuralType("B D", ChannelType())}
    net = nn.Sequential(nn.Linear(1, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1), nn.BatchNorm1d(1))
    x, y = RealFunctionDataLayer(n=8, batch_size=8)()
    loss = MSELoss()(predictions=TrainableNeuralModuleWrapper(net, *ports)(x=x), target=y)
    return lower(Dag([loss]).slice())


def parallel(num_batches: int) -> tuple[list[Tensor], list[Tensor]]:
    dist.init_process_group("gloo")
    module = lowered()
    replica = DataParallel(module, torch.device("cpu"))
    with synced_batchnorm([module], None):
        for batch in range(num_batches):
            with replica.sync_only_if(batch == num_batches - 1):
                (loss,) = replica(*batch_of(batch, 4 * dist.get_rank(), 4))
                (loss / num_batches).backward()
    return [p.grad for p in module.parameters() if p.grad is not None], list(module.buffers())


def batch_of(number: int, start: int, count: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(8, 1, generator=torch.Generator().manual_seed(number))[start : start + count]
    return x, x.sin()


@pytest.mark.parametrize("num_batches", [1, 3])
def test_inside_ddp_over_a_lowered_dag_gradients_are_those_of_one_process(num_batches: int) -> None:
    results = results_of(2, parallel, num_batches)
    module = lowered()
    for batch in range(num_batches):
        (loss,) = module(*batch_of(batch, 0, 8))
        (loss / num_batches).backward()
    for gradients, buffers in results:
        for got, parameter in zip(gradients, module.parameters(), strict=True):
            assert parameter.grad is not None
            assert torch.allclose(got, parameter.grad, atol=1e-6)
        for got, buffer in zip(buffers, module.buffers(), strict=True):
            assert torch.allclose(got, buffer, atol=1e-6)


def test_a_batch_of_one_item_is_a_users_mistake_in_one_line():
    told = (
        r"^rank 1 \(node2\): batch normalisation cannot train on one value per channel: got a batch of "
        r"torch\.Size\(\[1, 4\]\); the last batch of an epoch may have a single item: choose another batch_size, "
    )
    layer = nn.BatchNorm1d(4)
    with pytest.raises(UsageError, match=told), torch_errors_named("rank 1 (node2)"):
        layer(torch.zeros(1, 4))
    with pytest.raises(UsageError, match=r"^batch normalisation cannot train"), SingleProcess().guarded():
        layer(torch.zeros(1, 4))
    with pytest.raises(ValueError, match="expected 2D or 3D input"), torch_errors_named():
        layer(torch.zeros(1))
