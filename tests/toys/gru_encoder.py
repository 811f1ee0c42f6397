"""An encoder of a user's own, in one file: ``jasper.py --import gru_encoder.py`` and a YAML section ``GruEncoder``."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

import nemo_asr
from nemo_lite import TrainableNM
from nemo_lite.core.neural_types import (
    AcousticEncodedRepresentation,
    AxisKind,
    AxisType,
    LengthsType,
    NeuralType,
    SpectrogramType,
)
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape


class GruEncoder(TrainableNM):
    """One GRU over the frames, from the first to the last: B x D x T to B x hidden x T."""

    def __init__(self, feat_in: int, hidden: int = 32, name: str | None = None) -> None:
        super().__init__(name=name)
        self.gru = nn.GRU(feat_in, hidden, batch_first=True)

    @property
    def input_ports(self) -> Ports:
        features = AxisType(AxisKind.Dimension, self.gru.input_size)
        axes = (AxisType(AxisKind.Batch), features, AxisType(AxisKind.Time))
        return {"frames": NeuralType(axes, SpectrogramType()), "num_frames": NeuralType("B", LengthsType())}

    @property
    def output_ports(self) -> Ports:
        axes = (AxisType(AxisKind.Batch), AxisType(AxisKind.Dimension, self.gru.hidden_size), AxisType(AxisKind.Time))
        encoded = NeuralType(axes, AcousticEncodedRepresentation())
        return {"states": encoded, "num_states": NeuralType("B", LengthsType())}

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, _, time = shapes["frames"]
        return {"states": (batch, self.gru.hidden_size, time), "num_states": (batch,)}

    def forward(self, frames: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        states, _ = self.gru(frames.transpose(1, 2))
        return states.transpose(1, 2), num_frames.long()


nemo_asr.register(GruEncoder, role="encoder")
