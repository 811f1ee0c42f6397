"""The joint in slices equals the joint as a whole: losses, gradients, dropout."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nemo_asr.models.transducer.lattice import Durations, lattice_losses
from nemo_asr.models.transducer.sliced_joint import Kept, sliced_losses

NUM_TOKENS, HIDDEN, DURATIONS = 7, 5, Durations((0, 1, 2), (0, 1, 2))
ONE_NODE, EVERYTHING = 1, 1 << 30


def inputs(dtype=torch.float64, activation=nn.ReLU, dropout=0.0, num_extra=3):
    torch.manual_seed(0)
    layers = [activation(), *([nn.Dropout(dropout)] if dropout else []), nn.Linear(HIDDEN, NUM_TOKENS + num_extra)]
    net = nn.Sequential(*layers).to(dtype)
    frames, states = torch.randn(3, 6, HIDDEN, dtype=dtype), torch.randn(3, 4, HIDDEN, dtype=dtype)
    columns = torch.stack([torch.full((3, 4), NUM_TOKENS - 1), torch.randint(0, NUM_TOKENS - 1, (3, 4))], -1)
    return frames.requires_grad_(), states.requires_grad_(), net, Kept(columns, NUM_TOKENS)


def losses_of(kept):
    blank, label, duration = kept.split([1, 1, kept.shape[-1] - 2], -1)
    ends = torch.tensor([6, 4, 5]), torch.tensor([3, 2, 0])
    if not duration.shape[-1]:
        return lattice_losses(blank, label, *ends, Durations((1,), (0,)))
    return lattice_losses(blank + duration, label + duration, *ends, DURATIONS)


def losses_of_all(frames, states, net, kept):
    """The same by torch's own gradients, of all nodes at once."""
    logits = net(frames.unsqueeze(2) + states.unsqueeze(1))
    columns = kept.columns.unsqueeze(1).expand(-1, frames.shape[1], -1, -1)
    tokens = logits[..., :NUM_TOKENS].log_softmax(-1).gather(-1, columns)
    return losses_of(torch.cat([tokens, logits[..., NUM_TOKENS:].log_softmax(-1)], -1))


def results(losses, frames, states, net):
    weights = torch.tensor([1.0, -0.5, 2.0], dtype=losses.dtype)
    return losses, *torch.autograd.grad(losses, (frames, states, *net.parameters()), weights)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Sigmoid])
@pytest.mark.parametrize("num_extra", [0, 3])
@pytest.mark.parametrize("slice_bytes", [ONE_NODE, 2_000, EVERYTHING])
def test_losses_and_gradients_are_those_of_the_whole_joint(activation, num_extra, slice_bytes):
    frames, states, net, kept = inputs(activation=activation, num_extra=num_extra)
    wanted = results(losses_of_all(frames, states, net, kept), frames, states, net)
    sliced = sliced_losses(frames, states, net, kept, losses_of, slice_bytes=slice_bytes)
    torch.testing.assert_close(results(sliced, frames, states, net), wanted, rtol=0, atol=1e-6)


def test_a_batch_without_utterances_has_no_losses_and_gradients_of_zero():
    frames, states, net, kept = inputs()
    empty = sliced_losses(
        frames[:0], states[:0], net, Kept(kept.columns[:0], NUM_TOKENS), lambda kept: kept.sum((1, 2, 3))
    )
    assert empty.shape == (0,)
    gradients = torch.autograd.grad(empty.sum(), list(net.parameters()))
    assert not any(gradient.any() for gradient in gradients)


def test_dropout_is_the_same_in_both_passes_and_goes_on_with_the_generator_of_the_run(monkeypatch):
    masks = []
    drawn = torch.Tensor.bernoulli_

    def noted(*args, **kwargs):
        mask = drawn(*args, **kwargs)
        masks.append(mask.clone())
        return mask

    monkeypatch.setattr(torch.Tensor, "bernoulli_", noted)
    frames, states, net, kept = inputs(dropout=0.4)
    state = torch.get_rng_state()
    found = results(sliced_losses(frames, states, net, kept, losses_of, slice_bytes=3_000), frames, states, net)
    half = len(masks) // 2
    assert half > 3
    assert all(torch.equal(one, other) for one, other in zip(masks[:half], masks[half:], strict=True))
    assert 0.5 < torch.cat([mask.flatten() for mask in masks]).mean() < 0.7
    torch.set_rng_state(state)
    again = results(sliced_losses(frames, states, net, kept, losses_of, slice_bytes=3_000), frames, states, net)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    other = sliced_losses(frames, states, net, kept, losses_of, slice_bytes=3_000)
    assert not torch.equal(found[0], other)


@pytest.mark.parametrize("slice_bytes", [ONE_NODE, EVERYTHING])
def test_gradients_with_dropout_are_those_of_finite_differences(slice_bytes):
    frames, states, net, kept = inputs(dropout=0.4, activation=nn.Tanh)

    def losses(frames, states):
        torch.manual_seed(2)  # the same masks in each call
        return sliced_losses(frames, states, net, kept, losses_of, slice_bytes=slice_bytes)

    assert torch.autograd.gradcheck(losses, (frames, states))


def test_without_training_nothing_is_dropped_or_drawn():
    frames, states, net, kept = inputs(dropout=0.4)
    net.eval()
    state = torch.get_rng_state()
    sliced = sliced_losses(frames, states, net, kept, losses_of)
    torch.testing.assert_close(sliced, losses_of_all(frames, states, net, kept))
    assert torch.equal(torch.get_rng_state(), state)


def test_frozen_weights_get_no_gradient_and_the_others_do():
    frames, states, net, kept = inputs()
    net.requires_grad_(False)
    sliced_losses(frames, states, net, kept, losses_of).sum().backward()
    assert frames.grad is not None
    assert net[-1].weight.grad is None
    sliced_losses(frames.detach(), states.detach(), net.requires_grad_(), kept, losses_of).sum().backward()
    assert net[-1].weight.grad is not None
