"""Piece: what one rank holds of a tensor that is divided among the ranks. Modules are divided in sharding.py."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Piece(NamedTuple):
    """A slice of a whole tensor.

    Attributes:
        tensor: this rank's values; empty where there are fewer rows than ranks.
        dim: the dimension along which the whole is divided.
        start: its first index in that dimension of the whole.
        size: of that dimension in the whole.
    """

    tensor: Tensor
    dim: int
    start: int
    size: int


def is_divided(tensor: object) -> bool:
    """Whether a tensor's values are divided among the ranks: a DTensor, whose class is slow to import."""
    return isinstance(tensor, Tensor) and hasattr(tensor, "device_mesh")


def piece_of(tensor: Tensor) -> Piece | Tensor:
    """This rank's piece of a divided tensor; the tensor itself where every rank has all of it.

    All ranks call it, in the same order: where each rank holds a summand, they are added up. Nothing else is exchanged.
    """
    if not is_divided(tensor):
        return tensor
    from torch.distributed.tensor import DTensor, Shard

    assert isinstance(tensor, DTensor)
    (placement,) = tensor.placements
    if not isinstance(placement, Shard):
        full: Tensor = tensor.full_tensor()
        return full.detach()
    size, mesh = tensor.shape[placement.dim], tensor.device_mesh
    rows = -(-size // mesh.size())  # as torch.chunk divides
    return Piece(tensor.to_local().detach(), placement.dim, min(mesh.get_local_rank() * rows, size), size)


def divided_as(tensor: Tensor, target: Tensor) -> Tensor:
    """A tensor divided as ``target`` is, of this rank's piece of its values."""
    from torch.distributed.tensor import DTensor

    assert isinstance(target, DTensor)
    own = tensor.to(target.device).contiguous()
    shape, stride = target.shape, target.stride()
    return DTensor.from_local(own, target.device_mesh, target.placements, run_check=False, shape=shape, stride=stride)
