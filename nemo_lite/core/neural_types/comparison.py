"""The eight ways in which two neural types can stand to each other. Nothing else in this file."""

from __future__ import annotations

from enum import Enum


class NeuralTypeComparisonResult(Enum):
    """Result of ``first.compare(second)``."""

    SAME = 0
    LESS = 1  # first is a special case of second
    GREATER = 2  # second is a special case of first: a port of type first takes it
    DIM_INCOMPATIBLE = 3  # same elements, other axes
    TRANSPOSE_SAME = 4  # same elements, same axes in another order
    CONTAINER_SIZE_MISMATCH = 5  # same axes, but a fixed size or the kind of container differs
    INCOMPATIBLE = 6
    SAME_TYPE_INCOMPATIBLE_PARAMS = 7  # e.g. another sample rate
