"""Frames: which frames of a padded batch belong to an utterance, and zeros in the others.

Between the layers of an encoder a tensor is zero behind each utterance wherever a convolution reads it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nemo_lite.core.neural_types import AxisKind, AxisType, ElementType, NeuralType

BATCH, TIME = AxisType(AxisKind.Batch), AxisType(AxisKind.Time)


def frames_type(size: int, element: ElementType) -> NeuralType:
    """(B, size, T) of an element: what encoders take and give."""
    return NeuralType((BATCH, AxisType(AxisKind.Dimension, size), TIME), element)


def valid_frames(lengths: Tensor, num_frames: int) -> Tensor:
    """(B, 1, T): True where a frame belongs to the utterance."""
    return (torch.arange(num_frames, device=lengths.device) < lengths.unsqueeze(1)).unsqueeze(1)


def runs_on_cpu(x: Tensor) -> bool:
    """Whether kernels made for the CPU may be called; compilers and exporters are to see plain operations."""
    # Compiling comes before tracing: a compiler ends its graph at the call that torch.jit.is_tracing() makes too.
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not torch._C._is_tracing()


def are_full(lengths: Tensor, num_frames: int) -> bool:
    """Whether it is known that no utterance is shorter than its batch; only on CPU is it looked at."""
    return runs_on_cpu(lengths) and int(lengths.min()) >= num_frames


def is_time_major(x: Tensor) -> bool:
    """Whether (B, C, T) lies in memory as (B, T, C)."""
    return x.transpose(1, 2).is_contiguous()


class Frames:
    """Of a padded batch (B, C, T), each utterance has the first ``lengths`` frames.

    What is made of the lengths is made once, for all layers at one frame rate.

    Args:
        lengths: (B,), whole numbers.
        is_masking: False: what lies behind an utterance is left as it is.
    """

    def __init__(self, lengths: Tensor, is_masking: bool = True) -> None:
        self.lengths, self.is_masking = lengths, is_masking
        self._valid: Tensor | None = None
        self._padding: Tensor | None = None
        self._strided: dict[int, Frames] = {}

    def strided(self, stride: int) -> Frames:
        """Of the output of a convolution with same padding: ``ceil(length / stride)``."""
        if stride == 1:
            return self
        if stride not in self._strided:
            self._strided[stride] = Frames((self.lengths - 1) // stride + 1, self.is_masking)
        return self._strided[stride]

    def valid(self, num_frames: int) -> Tensor:
        """(B, 1, T): True where a frame belongs to the utterance."""
        if self._valid is None:
            self._valid = valid_frames(self.lengths, num_frames)
        return self._valid

    def padding(self, num_frames: int) -> Tensor | None:
        """(N,): ``b * T + t`` of each frame behind an utterance; None if nothing is masked. For tensors on CPU only."""
        if self._padding is None and self.is_masking:
            self._padding = torch.from_numpy(np.flatnonzero(~self.valid(num_frames).numpy()))
        return self._padding

    def masked(self, x: Tensor) -> Tensor:
        """(B, C, T) with zeros behind each utterance."""
        return torch.where(self.valid(x.shape[2]), x, 0.0) if self.is_masking else x


def clear(rows: Tensor, padding: Tensor | None) -> Tensor:
    """Write zeros into the frames ``padding`` of contiguous (B, T, C), in place, and return it."""
    if padding is not None:
        rows.view(-1, rows.shape[2]).index_fill_(0, padding, 0.0)  # a view, or an error: never a copy
    return rows
