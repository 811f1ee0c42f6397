"""How one module's weight stands for another's. The tying itself needs tensors and is the backend's."""

from __future__ import annotations

from enum import Enum


class WeightShareTransform(Enum):
    """How a weight is shared: as it is, or transposed."""

    SAME = 0
    TRANSPOSE = 1
