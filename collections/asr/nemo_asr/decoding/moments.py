"""FrameMoments: of what a search reads, all that is needed to say how far it is from what a model knows."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from nemo_asr.decoding.hypotheses import time_axis
from nemo_asr.models.jasper import valid_frames
from nemo_asr.run.transcribe.domain import MOST_DIMENSIONS
from nemo_lite import NonTrainableNM
from nemo_lite.core.neural_types import EncodedRepresentation, LengthsType, NeuralType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape


class FrameMoments(NonTrainableNM):
    """The moments of valid frames: (B, T, D), or (B, D, T), to (B, K + 1, K + 1); see `nemo_asr.run.transcribe.domain`.

    Args:
        frames: of what type they are.
        name: the module's name.
    """

    output_ports: Ports = {"moments": NeuralType("B D D", EncodedRepresentation())}

    def __init__(self, frames: NeuralType, name: str | None = None) -> None:
        super().__init__(name)
        self._frames, self._time_axis = frames, time_axis(frames)

    @property
    def input_ports(self) -> Ports:
        return {"frames": self._frames, "length": NeuralType("B", LengthsType())}

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return {}

    def forward(self, frames: Tensor, length: Tensor) -> Tensor:
        """float64."""
        frames = frames.movedim(self._time_axis, 1).double()
        batch, time, dims = frames.shape
        folds, width = -(-dims // MOST_DIMENSIONS), min(dims, MOST_DIMENSIONS)
        folded = pad(frames, (0, folds * width - dims)).view(batch, time, folds, width).sum(2)
        with_one = pad(folded, (1, 0), value=1.0)
        # Not by products with 0: behind the end there may be anything.
        with_one = torch.where(valid_frames(length, time).movedim(1, 2), with_one, 0.0)
        return with_one.mT @ with_one
