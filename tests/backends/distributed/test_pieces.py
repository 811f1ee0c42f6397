"""Pieces of what is not divided: the tensors themselves. Those of divided tensors are tested with two ranks."""

from __future__ import annotations

import torch

from nemo_lite.backends.pytorch.distributed.comm import is_divided, piece_of


def test_a_tensor_that_is_not_divided_is_its_own_piece() -> None:
    tensor = torch.ones(3, requires_grad=True)
    assert [is_divided(each) for each in (tensor, 3, None)] == [False] * 3
    assert piece_of(tensor) is tensor
