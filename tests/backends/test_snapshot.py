"""Snapshot: put back by the host, or where the device says so."""

from __future__ import annotations

import math

import pytest
import torch
from toys.host_reads import HostReads

from nemo_lite.backends.pytorch.placement import _LARGE, Snapshot, replace_where

ON, OFF = torch.ones(()), torch.zeros(())


def some_tensors(device="cpu"):
    shapes = [(3, 4), (), (0,), (5,), (_LARGE,)]
    floats = [torch.zeros(shape, device=device) for shape in shapes]
    strided = torch.zeros(4, 3, device=device).t()
    counts = [torch.zeros((), dtype=torch.int64, device=device), torch.zeros(7, dtype=torch.int64, device=device)]
    return [*floats, strided, torch.zeros(2, dtype=torch.bfloat16, device=device), *counts]


@pytest.mark.parametrize("put_back", [Snapshot.put_back, lambda kept: kept.put_back_where(ON)])
def test_values_come_back_also_after_values_that_are_not_finite(put_back):
    tensors = some_tensors()
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    kept = Snapshot(tensors)
    kept.keep()
    for tensor in tensors:
        tensor.fill_(math.nan if tensor.is_floating_point() else 99)
    put_back(kept)
    assert [set(tensor.flatten().tolist()) for tensor in tensors] == [
        {number} if tensor.numel() else set() for number, tensor in enumerate(tensors)
    ]


def test_nothing_changes_where_the_device_says_so_also_after_nan_was_kept():
    tensors = some_tensors()
    tensors[0].fill_(math.nan)
    kept = Snapshot(tensors)
    kept.keep()
    for tensor in tensors:
        tensor.fill_(3)
    kept.put_back_where(OFF)
    assert all((tensor == 3).all() for tensor in tensors)


def test_values_can_be_put_into_the_tensors_that_replaced_those_kept():
    old, new = torch.ones(2), torch.full((2,), 7.0)
    kept = Snapshot([old])
    kept.keep()
    kept.put_back_where(ON, [new])
    assert new.tolist() == old.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.uint8, torch.bool, torch.complex128])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (_LARGE,)])
def test_lists_of_every_type_are_replaced_where_the_flag_says_so(dtype, shape):
    for is_on in (True, False):
        tensors = [torch.zeros(shape, dtype=dtype) for _ in range(2)]
        replace_where(torch.tensor(is_on), tensors, [torch.ones(shape, dtype=dtype) for _ in range(2)])
        assert all((tensor == is_on).all() for tensor in tensors)


def test_what_was_put_back_by_the_device_can_be_put_back_by_the_host_too():
    (tensor,) = tensors = [torch.ones(3)]
    kept = Snapshot(tensors)
    kept.keep()
    kept.put_back_where(ON)
    tensor.fill_(math.nan)
    kept.put_back()
    assert tensor.tolist() == [1.0] * 3


def test_the_host_reads_nothing():
    tensors = some_tensors("meta")
    with HostReads() as reads:
        kept = Snapshot(tensors)
        kept.keep()
        kept.put_back_where(torch.ones((), device="meta"))
    assert reads.found == []
