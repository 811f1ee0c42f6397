"""The lattice of a transducer, against all of its paths one by one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from toys.host_reads import HostReads
from toys.lattice_paths import losses_by_paths

from nemo_asr.models.transducer.lattice import Durations, lattice_losses

RNNT = Durations((1,), (0,))
MULTI_BLANK = Durations((1, 2, 4), (0,))
TDT = [Durations(each, each) for each in ((0, 1, 2, 3, 4), (0, 1), (1, 2), (3, 0, 1, 8))]


def random_arcs(
    kind, seed, batch=3, num_frames=4, num_labels=3, dtype=torch.float64
) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    blank, label = (
        torch.randn(batch, num_frames, num_labels + 1, len(durations), generator=generator, dtype=dtype) - 1
        for durations in kind
    )
    frames = torch.randint(1, num_frames + 1, (batch,), generator=generator)
    labels = torch.randint(0, num_labels + 1, (batch,), generator=generator)
    return (blank.requires_grad_(), label.requires_grad_()), frames, labels


@pytest.mark.parametrize("kind", [RNNT, MULTI_BLANK, *TDT], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_losses_and_gradients_are_those_of_all_paths_one_by_one(kind, seed):
    arcs, frames, labels = random_arcs(kind, seed)
    wanted = losses_by_paths(*arcs, frames, labels, durations=kind)
    losses = lattice_losses(*arcs, frames, labels, durations=kind)
    torch.testing.assert_close(losses, wanted, rtol=0, atol=1e-12)
    weights = torch.where(wanted.isinf(), 0.0, torch.tensor([1.0, 0.25, -3.0], dtype=torch.float64))
    gradients = torch.autograd.grad(losses, arcs, weights, retain_graph=True)
    expected = torch.autograd.grad(wanted, arcs, weights, materialize_grads=True)
    torch.testing.assert_close(gradients, expected, rtol=0, atol=1e-12)


def test_float32_arcs_are_summed_with_the_error_of_float64():
    arcs, frames, labels = random_arcs(TDT[0], 0, batch=2, num_frames=120, num_labels=40, dtype=torch.float32)
    exact = lattice_losses(arcs[0].double(), arcs[1].double(), frames, labels, durations=TDT[0])
    losses = lattice_losses(*arcs, frames, labels, durations=TDT[0])
    assert losses.dtype == torch.float32
    assert torch.equal(losses, exact.float())


@pytest.mark.parametrize("kind", [RNNT, MULTI_BLANK, *TDT], ids=str)
def test_padding_and_neighbours_change_nothing(kind):
    arcs, frames, labels = random_arcs(kind, 5, num_frames=6)
    together = lattice_losses(*arcs, frames, labels, durations=kind)
    for item in range(3):
        own = [each[item : item + 1, : frames[item], : labels[item] + 1] for each in arcs]
        alone = lattice_losses(own[0], own[1], frames[item, None], labels[item, None], durations=kind)
        torch.testing.assert_close(alone[0], together[item], rtol=0, atol=1e-12)


def test_where_no_path_fits_the_loss_is_infinite_and_the_gradient_zero():
    arcs, _, _ = random_arcs(TDT[2], 0, batch=2)
    losses = lattice_losses(*arcs, torch.tensor([3, 4]), torch.tensor([3, 3]), durations=TDT[2])
    assert losses[0] == math.inf  # three labels take three frames at least, and the end one
    assert losses[1].isfinite()
    for gradient in torch.autograd.grad(losses, arcs, torch.tensor([0.0, 1.0], dtype=torch.float64)):
        assert gradient.isfinite().all()
        assert not gradient[0].any()
        assert gradient[1].any()


def test_an_arc_that_is_not_a_number_spoils_its_own_item_alone():
    arcs, frames, labels = random_arcs(RNNT, 1)
    blank = arcs[0].detach().clone()
    blank[1, 0, 0] = math.nan
    losses = lattice_losses(blank, arcs[1], torch.full_like(frames, 4), labels, durations=RNNT)
    assert losses.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("kind", [RNNT, MULTI_BLANK, *TDT], ids=str)
def test_it_runs_on_the_meta_device_where_no_value_can_be_read(kind):
    arcs, frames, labels = random_arcs(kind, 0)
    arcs = [each.detach().to("meta").requires_grad_() for each in arcs]
    losses = lattice_losses(*arcs, frames.to("meta"), labels.to("meta"), durations=kind)
    assert losses.shape == (3,)
    assert [each.shape for each in torch.autograd.grad(losses.sum(), arcs)] == [each.shape for each in arcs]


def test_nothing_is_read_by_the_host():
    arcs, frames, labels = random_arcs(TDT[0], 0)
    with HostReads() as reads:
        lattice_losses(*arcs, frames, labels, durations=TDT[0]).sum().backward()
    assert reads.found == []


def test_without_gradients_the_losses_are_the_same():
    arcs, frames, labels = random_arcs(RNNT, 0)
    losses = lattice_losses(*arcs, frames, labels, durations=RNNT)
    assert torch.equal(
        lattice_losses(arcs[0].detach(), arcs[1].detach(), frames, labels, durations=RNNT), losses.detach()
    )
