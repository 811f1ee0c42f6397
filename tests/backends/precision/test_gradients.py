"""Gradients: clipped as torch does, and whether they are finite, on the device."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from nemo_lite.backends.pytorch.precision import clip, dense_gradients, not_finite

META = torch.device("meta")


def parameters(*gradients):
    made = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(made, gradients, strict=True):
        parameter.grad = gradient.clone()
    return made


@pytest.mark.parametrize("max_norm", [0.5, 1e9])
def test_clipping_gives_the_very_gradients_of_torch(max_norm):
    generator = torch.Generator().manual_seed(1)
    gradients = [torch.randn(shape, generator=generator) for shape in ((3, 5), (7,), (), (2, 3, 4))]
    theirs, ours = parameters(*gradients), parameters(*gradients)
    nn.utils.clip_grad_norm_(theirs, max_norm)
    assert clip(dense_gradients(ours), max_norm).item() == 0.0
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(theirs, ours, strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_one_value_that_is_not_finite_is_found(bad, dtype):
    gradients = [torch.ones(3, dtype=dtype), torch.ones((), dtype=torch.float32)]
    assert not_finite(gradients).item() == 0.0
    assert clip(gradients, 1.0).item() == 0.0
    gradients[0][1] = bad
    assert not_finite(gradients).item() != 0.0
    assert clip(gradients, 1.0).item() != 0.0


def test_halves_whose_squares_leave_their_range_are_finite():
    gradients = [torch.full((4,), 60000.0, dtype=torch.float16)]
    assert clip(gradients, 1.0).item() == 0.0
    assert gradients[0].tolist() == [0.5] * 4


def test_a_sparse_gradient_is_found_and_clipped_by_its_values():
    embedding = nn.Embedding(5, 4, sparse=True)
    embedding(torch.tensor([1, 1])).sum().backward()
    gradients = dense_gradients([embedding.weight])
    assert not_finite(gradients).item() == 0.0
    clip(gradients, 1.0)
    torch.testing.assert_close(embedding.weight.grad.to_dense()[1], torch.full((4,), 0.5))
    gradients[0][0, 0] = math.nan
    assert not_finite(gradients).item() != 0.0


def test_nothing_is_read_back_on_the_meta_device():
    gradients = [torch.empty(3, device=META), torch.empty((), device=META, dtype=torch.bfloat16)]
    assert clip(gradients, 1.0).device == not_finite(gradients).device == META
