"""The eight ways in which two neural types can stand to each other. Nothing else in this file."""

from __future__ import annotations

from enum import Enum


class NeuralTypeComparisonResult(Enum):
    """Result of ``first.compare(second)``; a port of type ``first`` takes ``second`` when it is SAME or GREATER."""

    SAME = 0
    LESS = 1  # first is a special case of second
    GREATER = 2  # second is a special case of first
    DIM_INCOMPATIBLE = 3  # the axes are of the same kinds, but a fixed size differs
    TRANSPOSE_SAME = 4  # another order of the axes, or lists instead of tensors
    CONTAINER_SIZE_MISMATCH = 5  # composed elements of one class with different numbers of fields
    INCOMPATIBLE = 6
    SAME_TYPE_INCOMPATIBLE_PARAMS = 7  # e.g. another sample rate
