"""The iterations of a loop in a module, of which a count of memory needs only some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

T = TypeVar("T")


def iterations(items: Sequence[T], tensor: Tensor, needed: int) -> Sequence[T]:
    """The items that a loop goes over: all, or the first ones and the last where a step's memory is counted.

    A count (`engine.step_memory`) computes no values. If iterations in the middle hold no more than the first ones, and
    leave nothing behind, their operators would only take its time.

    Args:
        items: one for each iteration.
        tensor: that the loop reads; in a count it has a shape and no values.
        needed: the first iterations, among which the peak is. The last one is what lives on behind the loop.
    """
    if not isinstance(tensor, FakeTensor) or len(items) <= needed:
        return items
    return [*items[:needed], items[-1]]
