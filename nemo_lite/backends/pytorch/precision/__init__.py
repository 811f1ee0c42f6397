"""Precision: the types that a run computes in, and the backward pass and the update that they need."""

from nemo_lite.backends.pytorch.precision.gradients import own_part
from nemo_lite.backends.pytorch.precision.policy import Precision

__all__ = ["Precision", "own_part"]
